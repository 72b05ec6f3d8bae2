-- |
-- Packet logs: write the packets that a stack sends and receives to a file that Wireshark and tcpdump(8) can read,
-- and read such files.
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
import Weft.Tcp.Wire.Malformed (Malformed (..))
import Weft.Tcp.Wire.Pcap
import Weft.WholeFile (readWholeFile)

-- | Start a packet log in a file, which is overwritten. The first action of the result is for 'Weft.Tcp.stackTap',
-- and any thread may call it; the second ends the log. An error of the file, such as a full disk, also ends the log:
-- the given function is then called once with the error, and the stack continues.
captureTo :: FilePath -> (IOException -> IO ()) -> IO (Bool -> [ByteString] -> IO (), IO ())
captureTo path failed = do
  h <- openBinaryFile path WriteMode
  B.hPut h (fileHeader RawIp)
  -- The handle while the file is open. The lock is held during a write.
  lock <- newMVar (Just h)
  let -- A record is written completely even if the thread receives an exception.
      using act after = do
        r <- modifyMVarMasked lock $ \open -> case open of
          Nothing -> pure (Nothing, Right ())
          Just file -> do
            r <- try (act file)
            case r of
              -- hClose tries to write the buffered data again. That fails again, and the error is ignored.
              Left _ -> (Nothing, r) <$ (try (hClose file) :: IO (Either IOException ()))
              Right () -> pure (after file, r)
        either failed pure r
      write parts file = do
        t <- getPOSIXTime
        B.hPut file (encodeRecord (Record (floor (t * 1000000)) (B.concat parts)))
  pure (\_ parts -> using (write parts) Just, using hClose (const Nothing))

-- | Read the packets of a log. The number is that of the bytes at its end that are not a whole packet: more than 0 if
-- the file is cut off. Throws an 'IOError' if the file cannot be read, or is
-- longer than 1 GiB, or longer than 16 MiB and a pipe or a device.
readCapture :: FilePath -> IO (Either Malformed (LinkType, [Record], Int))
readCapture path = decodeFile <$> readWholeFile captureLimit path
  where
    captureLimit = 1073741824
