-- |
-- Flow control of request bodies (RFC 9113, 5.2 and 6.9). Pure.
--
-- The windows of all streams together are at most the number of bytes that the server is willing to keep unread. Up to
-- 'mostUnread' of it is for streams whether they are read or not: each that may begin has a share of one half. Out of
-- the other half an upload gets the protocol's default as soon as it uses its share. The rest is for streams whose
-- application reads what comes. So streams that are not read leave every other one its window, and hold no more than
-- 'mostUnread'.
--
-- The window of a stream that is read becomes sixteen times as large whenever half of it was read, up to 'firstGoal'.
-- Beyond that it follows what the application reads in a round trip ('sampled'): it grows if that was at least half of
-- it, since then it may be the window that limits the client, to sixteen times as much. It shrinks if the application
-- falls behind, or if other uploads have less; for that the stream withholds credit.
--
-- The connection's window is 'mostUnread' at first, and grows with those of the streams.
--
-- Invariants ('sound'): what the client may still send, what was received and not read, and what was read and not yet
-- returned add up to the size, for the connection and each stream; and the sizes of the streams' windows, the shares of
-- the streams that may still begin, and what is left of both parts add up to the limit.
module Weft.Http2.Core.Flow
  ( -- * Connections
    Receive,
    newReceive,
    receiveSize,
    receiveShare,
    mostUnread,
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

    -- * Round trips
    firstGoal,
    mayGrow,
    measured,
    readSince,
    sampled,

    -- * Sending windows
    maxWindow,
  )
where

-- | The receive window of a connection.
data Receive = Receive
  { -- | The window that the connection has, and the largest that it may get.
    receiveSize :: !Int,
    receiveMost :: !Int,
    -- | The first window of each stream.
    receiveShare :: !Int,
    -- | The client may still send as much.
    receiveRoom :: !Int,
    -- | Read or discarded, and not yet returned.
    receiveOwed :: !Int,
    -- | What no stream has, and none that may begin needs: of the part for all streams, and of that for those that are
    -- read.
    receiveFree :: !Int,
    receiveSpare :: !Int
  }
  deriving (Eq, Show)

-- | The receive window of a stream.
data StreamReceive = StreamReceive
  { -- | Its share, with what it has got besides; and what of that belongs to the part for streams that are read.
    streamSize :: !Int,
    streamGrown :: !Int,
    streamRoom :: !Int,
    streamOwed :: !Int,
    streamUnread :: !Int,
    -- | So much is to be withheld of what its application will have read.
    streamExcess :: !Int,
    -- | What its application has read in this round trip.
    streamRead :: !Int
  }
  deriving (Eq, Show)

-- | The largest window: section 6.9.1.
maxWindow :: Int
maxWindow = 2147483647

-- | What streams that nobody reads may hold, if the limit is not lower.
mostUnread :: Int
mostUnread = 1048576

-- | The size up to which the window of a stream that is read grows without a look at round trips.
firstGoal :: Int
firstGoal = 1048576

-- | Credit of that many bytes is returned at once.
mostOwed :: Int
mostOwed = 262144

-- | A connection of that many unread bytes, from 65,535, and that many streams.
newReceive :: Int -> Int -> Receive
newReceive bytes streams = Receive size most share size 0 (size - share * count) (most - size)
  where
    most = min maxWindow (max 65535 bytes)
    size = min mostUnread most
    count = max 1 streams
    share = min 65535 (size `div` (2 * count))

-- | The part for streams that are read.
readPart :: Receive -> Int
readPart r = receiveMost r - min mostUnread (receiveMost r)

-- | The invariant, given the streams that are open and how many more may begin.
sound :: Int -> [StreamReceive] -> Receive -> Bool
sound more streams r =
  and [streamOwed s >= 0 && streamUnread s >= 0 && streamRoom s + streamOwed s + streamUnread s == streamSize s | s <- streams]
    && and [streamGrown s >= 0 && streamSize s - streamGrown s >= receiveShare r && streamExcess s <= streamGrown s | s <- streams]
    && receiveOwed r >= 0
    && receiveFree r >= 0
    && receiveSpare r >= 0
    && receiveRoom r >= 0
    && receiveRoom r + receiveOwed r + sum (map streamUnread streams) == receiveSize r
    && sum (map streamGrown streams) + receiveSpare r == readPart r
    && sum (map streamSize streams) + more * receiveShare r + receiveFree r + receiveSpare r == receiveMost r
    && receiveSize r >= receiveMost r - receiveSpare r
    && receiveSize r <= receiveMost r

-- | A stream begins.
beginReceive :: Receive -> StreamReceive
beginReceive r = StreamReceive (receiveShare r) 0 (receiveShare r) 0 0 0 0

-- | The window of an upload becomes the protocol's default as soon as half of its share is used, read or not, if it
-- needs more than its share and the other half of the connection's window has that much left. Returns the increment.
widen :: Maybe Int -> Receive -> StreamReceive -> (Int, Receive, StreamReceive)
widen size r s
  | 2 * streamRoom s >= streamSize s || streamSize s /= receiveShare r || maybe False (<= streamSize s) size || more <= 0 || more > receiveFree r = (0, r, s)
  | otherwise = (more, r {receiveFree = receiveFree r - more}, s {streamSize = streamSize s + more, streamRoom = streamRoom s + more})
  where
    more = 65535 - streamSize s

-- | A stream ends. What nobody has read is returned to the connection, and what the stream had besides its share is
-- free again.
endReceive :: StreamReceive -> Receive -> (Int, Receive)
endReceive s r =
  settle
    r
      { receiveOwed = receiveOwed r + streamUnread s,
        receiveFree = receiveFree r + streamSize s - streamGrown s - receiveShare r,
        receiveSpare = receiveSpare r + streamGrown s
      }

-- | Bytes that were received and not read.
unreadOf :: StreamReceive -> Int
unreadOf = streamUnread

-- | How a frame of data fits the windows.
data Arrival = Fits !Receive !StreamReceive | BeyondStream | BeyondConnection
  deriving (Eq, Show)

-- | A frame of data came for a stream, of so many bytes with its padding, given how many more than its window the
-- client may believe that it has.
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

-- | Bytes of a stream were read. Returns the increments for the connection and the stream, which are zero until they
-- are worth a frame. The flags say whether the client goes on sending, and whether the application has read them.
consume :: Bool -> Bool -> Int -> Receive -> StreamReceive -> ((Int, Int), Receive, StreamReceive)
consume open byApplication n r0 s0
  | worth && byApplication && streamSize s < firstGoal && streamExcess s == 0 =
    let ((more, part), r', s') = grow (min (firstGoal - streamSize s) (max (15 * streamSize s) (65535 - streamSize s))) r s
     in ((whole + more, streamOwed s + part), r', returned s')
  | worth = ((whole, streamOwed s), r, returned s)
  | otherwise = ((whole, 0), r, s)
  where
    (whole, r) = settle r0 {receiveOwed = receiveOwed r0 + n, receiveSpare = receiveSpare r0 + withheld}
    -- What it keeps of its excess.
    owed = streamOwed s0 + n
    withheld = min owed (streamExcess s0)
    s =
      s0
        { streamUnread = streamUnread s0 - n,
          streamOwed = owed - withheld,
          streamSize = streamSize s0 - withheld,
          streamGrown = streamGrown s0 - withheld,
          streamExcess = streamExcess s0 - withheld
        }
    worth = open && streamOwed s > 0 && (2 * streamOwed s >= streamSize s || streamOwed s >= mostOwed)
    returned s' = s' {streamRoom = streamRoom s' + streamOwed s', streamOwed = 0}

-- | Enlarge the window of a stream that is read by at most that much. Returns the increments for the connection and the
-- stream.
grow :: Int -> Receive -> StreamReceive -> ((Int, Int), Receive, StreamReceive)
grow most r s = ((whole, more), r', s')
  where
    spare = min most (receiveSpare r)
    free = min (most - spare) (receiveFree r)
    more = spare + free
    whole = max 0 (receiveMost r - receiveSpare r + spare - receiveSize r)
    r' =
      r
        { receiveSpare = receiveSpare r - spare,
          receiveFree = receiveFree r - free,
          receiveSize = receiveSize r + whole,
          receiveRoom = receiveRoom r + whole
        }
    s' = s {streamSize = streamSize s + more, streamGrown = streamGrown s + spare, streamRoom = streamRoom s + more}

-- | Return to the client what is owed, if that is worth a frame: the less it may still send, the sooner.
settle :: Receive -> (Int, Receive)
settle r
  | receiveOwed r > 0 && (2 * receiveOwed r >= receiveRoom r || receiveOwed r >= mostOwed) = (receiveOwed r, r {receiveRoom = receiveRoom r + receiveOwed r, receiveOwed = 0})
  | otherwise = (0, r)

-- Round trips ------------------------------------------------------------------------

-- | Whether a look at round trips is of use for the stream.
mayGrow :: Receive -> StreamReceive -> Bool
mayGrow r s = streamSize s >= firstGoal && readPart r > 0

-- | The application has read that many bytes in this round trip.
measured :: Int -> StreamReceive -> StreamReceive
measured n s = s {streamRead = streamRead s + n}

-- | What it has read in this round trip.
readSince :: StreamReceive -> Int
readSince = streamRead

-- | A round trip is over, in which so many streams were read. Returns the increments for the connection and the stream.
--
-- A client that sends without pause has a window's worth under way, of which all, or all but what was read as the round
-- trip began, is read in it. If it was less than half, the window does not limit the client.
sampled :: Int -> Receive -> StreamReceive -> ((Int, Int), Receive, StreamReceive)
sampled readers r s0
  | streamGrown s > fair = ((0, 0), r, s {streamExcess = streamGrown s - fair})
  | 2 * n >= streamSize s = grow (max 0 (min (16 * n - streamSize s) (min (fair - streamGrown s) (receiveSpare r)))) r s {streamExcess = 0}
  -- The application lags: what has come waits for it.
  | 2 * streamUnread s >= streamSize s && 4 * n < streamSize s = ((0, 0), r, s {streamExcess = (streamGrown s + 1) `div` 2})
  | otherwise = ((0, 0), r, s {streamExcess = 0})
  where
    s = s0 {streamRead = 0}
    n = streamRead s0
    fair = readPart r `div` max 1 readers
