-- |
-- The bytes of a connection, as they are or within TLS.
module Weft.Warp.Stream
  ( Stream (..),
    plainStream,
  )
where

import Data.ByteString (ByteString)
import Data.Word (Word8)
import Foreign.Ptr (Ptr)
import Network.Wai.Handler.Warp.Internal (Transport (TCP))
import Weft.Socket (Socket, recvBuf)
import Weft.Socket.ByteString (recv, sendAll, sendMany, sendManyNow, sendNow)

-- | One thread receives and one sends at a time.
data Stream = Stream
  { -- | What has come, at least a byte; empty at the end.
    streamRecv :: !(IO ByteString),
    -- | The same, at most so many bytes, into memory.
    streamRecvBuf :: !(Ptr Word8 -> Int -> IO Int),
    streamSend :: !(ByteString -> IO ()),
    -- | Send without waiting: how many bytes, which may be zero, or why it failed. Throws nothing.
    streamSendNow :: !(ByteString -> IO (Either IOError Int)),
    streamSendMany :: !([ByteString] -> IO ()),
    streamSendManyNow :: !([ByteString] -> IO (Either IOError Int)),
    -- | Can the kernel send files on it?
    streamFile :: !Bool,
    -- | Say that nothing more will be sent, as far as the peer takes it. Throws nothing.
    streamBye :: !(IO ()),
    -- | What Warp calls it.
    streamTransport :: !Transport
  }

-- | A socket's own bytes.
plainStream :: Socket -> Stream
plainStream sock =
  Stream
    { streamRecv = recv sock receiveSize,
      streamRecvBuf = recvBuf sock,
      streamSend = sendAll sock,
      streamSendNow = sendNow sock,
      streamSendMany = sendMany sock,
      streamSendManyNow = sendManyNow sock,
      streamFile = True,
      streamBye = pure (),
      streamTransport = TCP
    }

-- | The most bytes of one receive, as Warp has it for its own connections.
receiveSize :: Int
receiveSize = 16384
