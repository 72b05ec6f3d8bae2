-- |
-- Stream sockets of the model kernel ("Kernel") as pure states: listening sockets with a queue, connected ones with
-- their received data. Sent data arrives at once, as far as there is room. "KernelSocket" has the calls.
module KernelStream
  ( Stream (..),
    newStream,
    streamCapacity,
    roomIn,
    readable,
    writable,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B

data Stream = Stream
  { -- | Bytes that have arrived and were not received.
    streamArrived :: !ByteString,
    -- | The peer has ended its stream (FIN).
    streamEnded :: !Bool,
    -- | The peer has reset the connection. Reported once by receiving, and by each send.
    streamReset :: !Bool,
    streamResetTold :: !Bool,
    -- | This side has ended its stream.
    streamShut :: !Bool,
    -- | Closing resets the peer (a linger time of zero).
    streamAborts :: !Bool,
    -- | The number of the other socket, if it was connected.
    streamPeer :: !(Maybe Int),
    -- | The ports of this side and of the peer.
    streamPort, streamRemote :: !Int,
    -- | For a listening socket: how many connections may wait, and those that do.
    streamBacklog :: !(Maybe Int),
    streamQueue :: ![Int],
    -- | For a listening socket: whether it refuses further connections, and keeps those that wait.
    streamRefuses :: !Bool,
    -- | The number of bytes sent.
    streamSent :: !Int
  }

-- | A socket that is not connected.
newStream :: Int -> Stream
newStream port = Stream B.empty False False False False False Nothing port 0 Nothing [] False 0

-- | The size of the receive buffer.
streamCapacity :: Int
streamCapacity = 700

roomIn :: Stream -> Int
roomIn s = max 0 (streamCapacity - B.length (streamArrived s))

-- | Whether receiving or accepting would not block.
readable :: Stream -> Bool
readable s = case streamBacklog s of
  Just _ -> not (null (streamQueue s))
  Nothing -> not (B.null (streamArrived s)) || streamEnded s || streamReset s

-- | Whether a send would not block. The second argument is the peer, if it still exists.
writable :: Stream -> Maybe Stream -> Bool
writable s peer = streamReset s || streamShut s || maybe True ((> 0) . roomIn) peer
