-- |
-- Stream sockets of the model kernel ("Kernel"), as pure states: listening ones with a queue, connected ones with what has arrived. What is
-- sent arrives at once, as far as there is room; the calls are in "KernelSocket".
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
  { -- | What has arrived and was not received.
    streamArrived :: !ByteString,
    -- | The peer sends no more (FIN).
    streamEnded :: !Bool,
    -- | Reset by the peer: told once by receiving, and by each send.
    streamReset :: !Bool,
    streamResetTold :: !Bool,
    -- | This side sends no more.
    streamShut :: !Bool,
    -- | Closing resets the peer (a linger time of zero).
    streamAborts :: !Bool,
    -- | The number of the other socket, if it was connected.
    streamPeer :: !(Maybe Int),
    -- | The port of this side, and of the other one.
    streamPort, streamRemote :: !Int,
    -- | Of a listening socket: how many may wait, and those that do.
    streamBacklog :: !(Maybe Int),
    streamQueue :: ![Int],
    -- | Bytes sent.
    streamSent :: !Int
  }

-- | Not connected.
newStream :: Int -> Stream
newStream port = Stream B.empty False False False False False Nothing port 0 Nothing [] 0

-- | How much a socket holds that was not received.
streamCapacity :: Int
streamCapacity = 700

roomIn :: Stream -> Int
roomIn s = max 0 (streamCapacity - B.length (streamArrived s))

-- | Would receiving, or accepting, give something?
readable :: Stream -> Bool
readable s = case streamBacklog s of
  Just _ -> not (null (streamQueue s))
  Nothing -> not (B.null (streamArrived s)) || streamEnded s || streamReset s

-- | Would a send be taken, or fail? The second one is the peer's, if that is still there.
writable :: Stream -> Maybe Stream -> Bool
writable s peer = streamReset s || streamShut s || maybe True ((> 0) . roomIn) peer
