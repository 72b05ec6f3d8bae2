-- | The parent's ends of pipes to a program, as a 'Connection': it sends on one pipe and receives from another. A
-- direction without a pipe fails with @EBADF@, as if it were closed. The threads and errors are those of
-- "Weft.Transport".
--
-- A pipe end is a 'Socket' on which nothing is called but read(2) and write(2), which share their waiting, their
-- deadlines and their closing with sockets.
module Weft.Process.Pipes
  ( pipesConnection,
  )
where

import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word8)
import Foreign.C.Error (eBADF, eINVAL)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Network.Socket (SockAddr (..))
import Weft.Deadline (Instant)
import Weft.FFI.Process
import Weft.Socket.Gather (sendGathered)
import Weft.Socket.Scratch
import Weft.Socket.Types
import Weft.Transport.Types

-- | The pipe that is sent on, and the one that is received from.
data Pipes = Pipes !(Maybe Socket) !(Maybe Socket)

-- | A connection that sends on the first pipe and receives from the second one. Its addresses are those of an unnamed
-- Unix socket.
pipesConnection :: Maybe Socket -> Maybe Socket -> Connection
pipesConnection to from = Connection pipesOperations (Pipes to from)

pipesOperations :: Operations Pipes
pipesOperations =
  Operations
    { opReceive = \(Pipes _ from) deadline n -> existing "connReceive" from deadline (`receive` n),
      opSend = \(Pipes to _) deadline (Region p n) -> existing "connSend" to deadline (\s -> sendAll s p n),
      opSendMany = \(Pipes to _) deadline strings -> existing "connSendMany" to deadline (`sendStrings` strings),
      opSendFile = \(Pipes to _) deadline strings range -> existing "connSendFile" to deadline $ \s -> do
        sendStrings s strings
        sendFileByReading (\piece -> sendStrings s [piece]) range,
      opShutdownSend = \(Pipes to _) _ -> mapM_ close to,
      opClose = closePipes,
      opAbort = closePipes,
      opPeer = const unnamed,
      opLocal = const (pure unnamed),
      opSendProgress = const (pure Nothing),
      opAwaitPeer = Nothing,
      opIsQuiet = const (pure False),
      opSecurity = const Nothing,
      opKeepsStrings = const False
    }
  where
    closePipes (Pipes to from) = mapM_ close to >> mapM_ close from
    unnamed = SockAddrUnix ""

existing :: String -> Maybe Socket -> Instant -> (Socket -> IO a) -> IO a
existing name end deadline act = case end of
  Just s -> act (withDeadline deadline s)
  Nothing -> ioError (socketError (location name) eBADF)

location :: String -> String
location name = "Weft.Process: " <> name

-- | What there is, at most the given number of bytes and the size of the scratch buffer.
receive :: Socket -> Int -> IO ByteString
receive s n
  | n <= 0 = ioError (socketError (location "connReceive") eINVAL)
  | otherwise = operate (location "connReceive") s Reading $ \fd -> withScratch $ \p -> do
    r <- cPipeRead fd p (fromIntegral room)
    decodeResult r $ \got -> do
      bytes <- B.packCStringLen (castPtr p, got)
      pure (if got > 0 && got < room then Drained bytes else Done bytes)
  where
    room = min n scratchSize

sendAll :: Socket -> Ptr Word8 -> Int -> IO ()
sendAll s p n = unless (n <= 0) $ do
  sent <- operate (location "connSend") s Writing $ \fd -> do
    r <- cPipeWrite fd p (fromIntegral n)
    decodeResult r (\sent -> pure (if sent < n then Drained sent else Done sent))
  sendAll s (p `plusPtr` sent) (n - sent)

sendStrings :: Socket -> [ByteString] -> IO ()
sendStrings s strings = unless (all B.null strings) (sendGathered (location "connSendMany") s (pure ()) cPipeWriteV strings)
