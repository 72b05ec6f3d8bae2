-- |
-- What a connection is to Warp, whichever its version: "Weft.Warp.Compat", of
-- which there is one for each shape of Warp's own type, makes that type from this.
module Weft.Warp.Wire
  ( Wire (..),
    WriteRoom,
    writeRoomSize,
  )
where

import Data.ByteString (ByteString)
import Data.IORef (IORef)
import Network.Wai.Handler.Warp.Internal (BufSize, Buffer, Recv, RecvBuf, SendFile)
import Weft.Socket (SockAddr)

-- | The operations of one connection.
data Wire = Wire
  { wireSendAll :: !(ByteString -> IO ()),
    wireSendMany :: !([ByteString] -> IO ()),
    -- | With the way to the connection's write buffer.
    wireSendFile :: !(WriteRoom -> SendFile),
    wireRecv :: !Recv,
    wireRecvBuf :: !RecvBuf,
    -- | Warp may call it from any thread, and more than once.
    wireClose :: !(IO ()),
    -- | Set by Warp when the connection turns out to be HTTP/2.
    wireHttp2 :: !(IORef Bool),
    -- | The local address; not every version asks.
    wireLocal :: !(IO SockAddr)
  }

-- | The write buffer of a connection, as it is now, and its size.
type WriteRoom = IO (Buffer, BufSize)

-- | Bytes in a write buffer: what Warp gives its own connections, and the largest
-- payload of an HTTP/2 frame. Memory that no response has needed is not touched.
writeRoomSize :: BufSize
writeRoomSize = 16384
