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

-- | Send a string, or as much of it as the kernel takes at once; wait until it takes some. At most 4 MiB and, on
-- a stream, 1,024 chunks are sent. Returns the number of bytes taken.
send :: Socket -> ByteString -> IO Int64
send s bytes = case L.toChunks (L.take 4194304 bytes) of
  [] -> pure 0
  chunks -> fromIntegral <$> sendSome "Weft.Socket.ByteString.Lazy.send" s chunks

-- | Send all of a string, many chunks by one system call. It is evaluated as it is sent. If it is cut off after a part,
-- further sends fail, as with 'Strict.sendAll'.
sendAll :: Socket -> ByteString -> IO ()
sendAll s = sendGathered "Weft.Socket.ByteString.Lazy.sendAll" s (cutOff s) (\fd iov n -> cSendV fd iov n nullPtr 0) . L.toChunks

-- | All bytes until the end of the stream. They are received when the string is evaluated: evaluation blocks and
-- throws, also when the deadline has passed. At the end the receiving direction is shut down.
getContents :: Socket -> IO ByteString
getContents s = L.fromChunks <$> go
  where
    go = unsafeInterleaveIO $ do
      chunk <- Strict.recv s defaultChunkSize
      if B.null chunk
        then [] <$ (shutdown s ShutdownReceive `catchIOError` const (pure ()))
        else (chunk :) <$> go

-- | Receive the data that has arrived, at most the given number of bytes; wait until there is some. Empty at the end
-- of the stream. Throws @EINVAL@ if the number is not positive.
recv :: Socket -> Int64 -> IO ByteString
recv s n = L.fromStrict <$> Strict.recv s (fromIntegral (min n (fromIntegral (maxBound :: Int))))
