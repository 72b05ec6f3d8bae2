-- |
-- Packet logs: the packets that a stack sends and receives, in a file format that Wireshark and
-- tcpdump(8) read; and reading such files back.
--
-- @since 0.1.0
module Weft.Tcp.Capture
  ( captureTo,
    readCapture,
    Record (..),
    LinkType (..),
    Malformed (..),
  )
where

import Control.Concurrent.MVar
import Control.Exception (IOException, try)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Time.Clock.POSIX (getPOSIXTime)
import System.IO
import Weft.Tcp.Wire.Bytes (Malformed (..))
import Weft.Tcp.Wire.Pcap

-- | Start a packet log in a file, which is overwritten. The first action of the result is for
-- 'Weft.Tcp.stackTap' and may be called by any thread; the second ends the log. An error of
-- the file, such as a full disk, also ends the log: the given function is called once with the
-- error, and the stack continues.
captureTo :: FilePath -> (IOException -> IO ()) -> IO (Bool -> [ByteString] -> IO (), IO ())
captureTo path failed = do
  h <- openBinaryFile path WriteMode
  B.hPut h (fileHeader RawIp)
  -- Holds the handle while the file is open. Locked during a write.
  lock <- newMVar (Just h)
  let -- A record is written completely even if the thread receives an exception.
      using act after = do
        r <- modifyMVarMasked lock $ \open -> case open of
          Nothing -> pure (Nothing, Right ())
          Just file -> do
            r <- try (act file)
            case r of
              -- hClose tries again to write the buffered data, and fails again.
              Left _ -> (Nothing, r) <$ (try (hClose file) :: IO (Either IOException ()))
              Right () -> pure (after file, r)
        either failed pure r
      write parts file = do
        t <- getPOSIXTime
        B.hPut file (encodeRecord (Record (floor (t * 1000000)) (B.concat parts)))
  pure (\_ parts -> using (write parts) Just, using hClose (const Nothing))

-- | The packets of a log.
readCapture :: FilePath -> IO (Either Malformed (LinkType, [Record]))
readCapture path = decodeFile <$> B.readFile path
