-- |
-- Packet logs: what a stack sends and receives, in a file that Wireshark and tcpdump(8)
-- open; and reading such a file back.
--
-- @since 0.1.0
module Weft.Tcp.Capture
  ( captureTo,
    readCapture,
  )
where

import Control.Concurrent.MVar
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Time.Clock.POSIX (getPOSIXTime)
import System.IO
import Weft.Tcp.Wire.Bytes (Malformed)
import Weft.Tcp.Wire.Pcap

-- | Begin a packet log in a file, which is overwritten. The first action is for
-- 'Weft.Tcp.stackTap' and may be used by any thread; the second ends the log.
captureTo :: FilePath -> IO (Bool -> [ByteString] -> IO (), IO ())
captureTo path = do
  h <- openBinaryFile path WriteMode
  B.hPut h (fileHeader RawIp)
  -- Full while the file is open; held for the time of a write.
  lock <- newMVar (Just h)
  let see _ parts = withMVar lock . mapM_ $ \file -> do
        t <- getPOSIXTime
        B.hPut file (encodeRecord (Record (floor (t * 1000000)) (B.concat parts)))
      end = modifyMVar_ lock (\open -> Nothing <$ mapM_ hClose open)
  pure (see, end)

-- | The packets of a log.
readCapture :: FilePath -> IO (Either Malformed (LinkType, [Record]))
readCapture path = decodeFile <$> B.readFile path
