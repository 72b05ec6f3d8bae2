-- |
-- Flow control of request bodies (RFC 9113, 5.2 and 6.9). Pure.
--
-- The window of the connection is the number of bytes that the server is willing to keep unread. It is divided among
-- the streams: each that may begin has a share of one half. Out of the other half an upload gets the protocol's default as
-- soon as it uses its share, and one whose application reads gets more. So the windows of all streams together never exceed that of the connection, and streams that are not read
-- leave every other one its window.
--
-- Invariants ('sound'): what the client may still send, what was received and not read, and what was read and not yet
-- returned add up to the size, for the connection; and the sizes of the streams' windows and the shares of the streams
-- that may still begin are at most the connection's.
module Weft.Http2.Core.Flow
  ( -- * Connections
    Receive,
    newReceive,
    receiveSize,
    receiveShare,
    sound,

    -- * Streams
    StreamReceive,
    beginReceive,
    widen,
    endReceive,
    unreadOf,
    Arrival (..),
    arrive,
    discard,
    consume,

    -- * Sending windows
    maxWindow,
  )
where

-- | The receive window of a connection.
data Receive = Receive
  { -- | All that may be unread.
    receiveSize :: !Int,
    -- | The first window of each stream.
    receiveShare :: !Int,
    -- | The client may still send as much.
    receiveRoom :: !Int,
    -- | Read or discarded, and not yet returned.
    receiveOwed :: !Int,
    -- | What no stream has, and none that may begin needs.
    receiveFree :: !Int
  }
  deriving (Eq, Show)

-- | The receive window of a stream.
data StreamReceive = StreamReceive
  { -- | Its share, with what it has got besides.
    streamSize :: !Int,
    streamRoom :: !Int,
    streamOwed :: !Int,
    streamUnread :: !Int
  }
  deriving (Eq, Show)

-- | The largest window: section 6.9.1.
maxWindow :: Int
maxWindow = 2147483647

-- | A connection of that many unread bytes, from 65,535, and that many streams.
newReceive :: Int -> Int -> Receive
newReceive bytes streams = Receive size share size 0 (size - share * count)
  where
    size = min maxWindow (max 65535 bytes)
    count = max 1 streams
    share = min 65535 (size `div` (2 * count))

-- | The invariant, given the streams that are open and how many more may begin.
sound :: Int -> [StreamReceive] -> Receive -> Bool
sound more streams r =
  and [streamOwed s >= 0 && streamUnread s >= 0 && streamRoom s + streamOwed s + streamUnread s == streamSize s | s <- streams]
    && receiveOwed r >= 0
    && receiveFree r >= 0
    && receiveRoom r >= 0
    && receiveRoom r + receiveOwed r + sum (map streamUnread streams) == receiveSize r
    && sum (map streamSize streams) + more * receiveShare r + receiveFree r == receiveSize r

-- | A stream begins.
beginReceive :: Receive -> StreamReceive
beginReceive r = StreamReceive (receiveShare r) (receiveShare r) 0 0

-- | The window of an upload becomes the protocol's default as soon as half of its share is used, read or not, if it needs
-- more than its share and the other half of the connection's window has that much left. Returns the increment.
widen :: Maybe Int -> Receive -> StreamReceive -> (Int, Receive, StreamReceive)
widen size r s
  | 2 * streamRoom s >= streamSize s || streamSize s /= receiveShare r || maybe False (<= streamSize s) size || more <= 0 || more > receiveFree r = (0, r, s)
  | otherwise = (more, r {receiveFree = receiveFree r - more}, s {streamSize = streamSize s + more, streamRoom = streamRoom s + more})
  where
    more = 65535 - streamSize s

-- | A stream ends. What nobody has read is returned to the connection, and what the stream had besides its share is
-- free again.
endReceive :: StreamReceive -> Receive -> (Int, Receive)
endReceive s r = settle r {receiveOwed = receiveOwed r + streamUnread s, receiveFree = receiveFree r + streamSize s - receiveShare r}

-- | Bytes that were received and not read.
unreadOf :: StreamReceive -> Int
unreadOf = streamUnread

-- | How a frame of data fits the windows.
data Arrival = Fits !Receive !StreamReceive | BeyondStream | BeyondConnection
  deriving (Eq, Show)

-- | A frame of data came for a stream, of so many bytes with its padding, given how many more than its window the client
-- may believe that it has.
arrive :: Int -> Int -> Receive -> StreamReceive -> Arrival
arrive slack n r s
  | n > receiveRoom r = BeyondConnection
  | n > streamRoom s + slack = BeyondStream
  | otherwise = Fits r {receiveRoom = receiveRoom r - n} s {streamRoom = streamRoom s - n, streamUnread = streamUnread s + n}

-- | A frame of data came that belongs to no stream: its bytes are returned. 'Nothing' if it exceeds the window.
discard :: Int -> Receive -> Maybe (Int, Receive)
discard n r
  | n > receiveRoom r = Nothing
  | otherwise = Just (settle r {receiveRoom = receiveRoom r - n, receiveOwed = receiveOwed r + n})

-- | Bytes of a stream were read. Returns the increments for the connection and the stream, which are zero until they are
-- worth a frame. The flags say whether the client goes on sending, and whether the application has read them.
consume :: Bool -> Bool -> Int -> Receive -> StreamReceive -> ((Int, Int), Receive, StreamReceive)
consume open byApplication n r s = ((whole, part), r'', s'')
  where
    s' = s {streamUnread = streamUnread s - n, streamOwed = streamOwed s + n}
    (whole, r') = settle r {receiveOwed = receiveOwed r + n}
    worth = open && 2 * streamOwed s' >= streamSize s'
    -- The window grows when half of it was read, as long as there is something left: to the protocol's default at first,
    -- and then to the double.
    more
      | worth && byApplication = min (receiveFree r') (max (streamSize s') (65535 - streamSize s'))
      | otherwise = 0
    part = if worth then streamOwed s' + more else 0
    r'' = r' {receiveFree = receiveFree r' - more}
    s''
      | worth = s' {streamSize = streamSize s' + more, streamRoom = streamRoom s' + part, streamOwed = 0}
      | otherwise = s'

-- | Return to the client what is owed, if that is worth a frame: the less it may still send, the sooner.
settle :: Receive -> (Int, Receive)
settle r
  | receiveOwed r > 0 && 2 * receiveOwed r >= receiveRoom r = (receiveOwed r, r {receiveRoom = receiveRoom r + receiveOwed r, receiveOwed = 0})
  | otherwise = (0, r)
