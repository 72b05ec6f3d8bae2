-- |
-- Sending and receiving lazy strings: the names, types and exceptions of
-- "Network.Socket.ByteString.Lazy". Everything honours the socket's deadline
-- ('Weft.Socket.withDeadline').
--
-- > import Weft.Socket
-- > import Weft.Socket.ByteString.Lazy
-- > import Prelude hiding (getContents)
--
-- @since 0.1.0
module Weft.Socket.ByteString.Lazy
  ( -- * Sending
    send,
    sendAll,

    -- * Receiving
    getContents,
    recv,
  )
where

import qualified Data.ByteString as B
import Data.ByteString.Lazy (ByteString)
import qualified Data.ByteString.Lazy as L
import Data.ByteString.Lazy.Internal (defaultChunkSize)
import Data.Int (Int64)
import Foreign.Ptr (nullPtr)
import Network.Socket (ShutdownCmd (ShutdownReceive))
import System.IO.Error (catchIOError)
import System.IO.Unsafe (unsafeInterleaveIO)
import Weft.FFI.Socket (cSendV)
import Weft.Socket.Basic (shutdown)
import qualified Weft.Socket.ByteString as Strict
import Weft.Socket.Gather
import Weft.Socket.Types
import Prelude hiding (getContents)

-- | Send what the kernel takes at once of a string, waiting until it takes some: of its first 4 MiB, and first
-- 1,024 chunks. How many bytes it took.
send :: Socket -> ByteString -> IO Int64
send s bytes = case L.toChunks (L.take 4194304 bytes) of
  [] -> pure 0
  chunks -> fromIntegral <$> sendSome "Weft.Socket.ByteString.Lazy.send" s chunks

-- | Send all of a string, many chunks by one system call. It is evaluated as it is sent. Cut off after a part
-- of it, it leaves the socket as 'Strict.sendAll' does.
sendAll :: Socket -> ByteString -> IO ()
sendAll s = sendGathered "Weft.Socket.ByteString.Lazy.sendAll" s (cutOff s) (\fd iov n -> cSendV fd iov n nullPtr 0) . L.toChunks

-- | All that comes until the end of the stream, received when the string is evaluated, which is what blocks, takes
-- exceptions and meets the deadline. At the end the receiving direction is shut down.
getContents :: Socket -> IO ByteString
getContents s = L.fromChunks <$> go
  where
    go = unsafeInterleaveIO $ do
      chunk <- Strict.recv s defaultChunkSize
      if B.null chunk
        then [] <$ (shutdown s ShutdownReceive `catchIOError` const (pure ()))
        else (chunk :) <$> go

-- | Receive the bytes that are there, at most the number given, waiting until there are some. Empty at the end of the stream.
recv :: Socket -> Int64 -> IO ByteString
recv s n = L.fromStrict <$> Strict.recv s (fromIntegral (min n (fromIntegral (maxBound :: Int))))
