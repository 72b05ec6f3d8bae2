-- |
-- The stack's state: the tables of connections and listeners, and functions that its loops
-- and its users share. Internal; programs use "Weft.Tcp".
--
-- A connection's state is in an 'MVar'. A thread takes it, runs one step of the core, sends
-- the resulting segments, and puts the new state back, without blocking in between. The tables
-- are changed by atomic operations; no thread holds two of them at once.
--
-- @since 0.1.0
module Weft.Tcp.Stack
  ( -- * The stack
    Stack (..),
    StackSettings (..),
    Expiry (..),
    Counter (..),
    count,
    countIn,
    readCounter,
    stackEnv,
    configFor,
    openingFor,

    -- * Connections
    Socket (..),
    Armed (..),
    Holder (..),
    Entry (..),
    unlist,
    newSocket,
    lookupEntry,
    insertEntry,
    claimFlow,
    deleteLive,
    deleteLingering,
    noPortLeft,
    dynamicPorts,
    tableSize,

    -- * Listeners
    Listening (..),
    Listeners (..),
    AcceptQueue (..),
    lookupListening,

    -- * Sending
    answering,
    sendSegment,
    sendWhole,
  )
where

import Control.Concurrent (ThreadId)
import Control.Concurrent.MVar
import Control.Monad (forM_, when)
import Data.Array (Array, bounds, elems, (!))
import Data.Array.IO (IOUArray, readArray, writeArray)
import Data.Bits (shiftR, xor, (.&.))
import Data.ByteString (ByteString)
import Data.IORef
import qualified Data.IntSet as IntSet
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isJust)
import Data.Sequence (Seq)
import Data.Word (Word16, Word32)
import Foreign.C.Types (CInt)
import qualified Weft.Core.Time as Clock
import Weft.Sys (WordArray, addWord, now)
import Weft.Tcp.Core hiding (now)
import Weft.Tcp.Core.Listener
import Weft.Tcp.Core.Packed (Packed, pack)
import Weft.Tcp.Core.Secret
import Weft.Tcp.Core.TimeWait (Waiting)
import Weft.Tcp.Device
import Weft.Tcp.Stack.Answers (Answers, Kind, mayAnswer)
import Weft.Tcp.Stack.Orphans (Orphans)
import Weft.Tcp.Stack.SynFilter (SynFilter)
import Weft.Tcp.Stack.Waker (Waker, newWaker)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Fragments (Fragments)
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (..))
import qualified Weft.Tcp.Wire.Segment as Segment
import qualified Weft.Timer as Timer
import Weft.Wire.Put (putLength, runPut)

-- | Settings of a stack.
data StackSettings = StackSettings
  { -- | The stack's addresses, of either IP version.
    stackAddresses :: ![Address],
    -- | Settings of all connections. MTU and offload are taken from the device.
    stackConfig :: !Config,
    stackPolicy :: !Policy,
    -- | The maximum number of connections in TIME-WAIT. Above it, the oldest are removed.
    maxTimeWait :: !Int,
    -- | The maximum number of closed connections whose peer has not closed, too, or has not acknowledged all data. Each
    -- keeps its data. Above it, the oldest are reset.
    maxOrphans :: !Int,
    -- | SYNs that are answered by a cookie, a second; a tenth of them at once. Above this rate, a SYN is answered when
    -- it comes a second time, as those of clients do: a client then waits a second longer for its connection, and the
    -- packets of all are not lost in front of a stack that does nothing but answer.
    stackCookieRate :: !Int,
    -- | Called with each received ('True') or sent ('False') packet, for a packet log. It runs in the stack's loops
    -- and in the threads that use connections, possibly at the same time. If it throws, it is not called again, and
    -- the stack continues ('CallbackErrors').
    stackTap :: !(Maybe (Bool -> [ByteString] -> IO ())),
    -- | Called with soft errors of connections (MUST-47). It runs on the stack's loops and must not
    -- block. Its exceptions are dropped ('CallbackErrors').
    stackSoftErrors :: !(Maybe (Flow -> SoftError -> IO ()))
  }

-- | A running stack.
data Stack = Stack
  { device :: !Device,
    settings :: !StackSettings,
    -- | Settings of connections over IPv4 and over IPv6, with the device's segment sizes.
    config4, config6 :: !Config,
    secret :: !Secret,
    -- | Connections, and those in TIME-WAIT, in shards by flow. Changed by atomic
    -- operations, from any thread.
    table :: !(Array Int (IORef (Map.Map Flow Entry))),
    -- | Flows in TIME-WAIT, the oldest first. An entry stays here if a new connection reuses its
    -- flow. Changed by atomic operations, from any thread.
    timeWaits :: !(IORef (Seq (Instant, Flow, IORef Waiting))),
    -- | The number of flows with a dynamic local port ('dynamicPorts'), by remote port, remote address and
    -- local address. Changed by atomic operations, from any thread.
    dynamicFlows :: !(IORef (Map.Map (Word16, Address, Address) Int)),
    listeners :: !(IORef Listeners),
    -- | Sockets whose timer has expired. Filled by dispatchers, emptied by the timer loop.
    fired :: !(IORef [Socket]),
    firedSignal :: !(MVar ()),
    fragments :: !(IORef Fragments),
    -- | Whether entries of 'timeWaits' and 'fragments' expire later ("Weft.Tcp.Stack.Expiry"). Changed by atomic
    -- operations, from any thread.
    expiry :: !(IORef Expiry),
    -- | The next local port to try for an outgoing connection.
    nextPort :: !(IORef Word16),
    -- | Indexed by 'fromEnum' of a 'Counter'.
    counters :: !(IOUArray Int Int),
    -- | Set before the stack closes its connections and listeners. A thread that enters one into the tables
    -- checks this afterwards, and closes its entry if it is set.
    stopped :: !(IORef Bool),
    -- | The threads of the loops. Written once.
    workers :: !(IORef [ThreadId]),
    -- | Which SYNs are answered by a cookie.
    synFilter :: !SynFilter,
    answers :: !Answers,
    -- | 256 numbers of packets that may be fragmented; pairs of hosts share them by a hash. Changed by atomic
    -- operations.
    fragmentCounts :: !WordArray,
    -- | The connections for which 'Weft.Tcp.Core.State.isOrphan' holds. A connection's step changes its entry, by
    -- atomic operations.
    orphans :: !(IORef (Orphans Socket))
  }

-- | The states are @NothingExpires -> TimerSet -> ExpiryDue -> NothingExpires@. Whoever adds an entry that expires
-- makes the first move and sets a timer; the timer, on a dispatcher, makes the second one and wakes the timer loop,
-- which makes the third one before it looks for expired entries. So no entry is without a timer.
data Expiry = NothingExpires | TimerSet | ExpiryDue
  deriving (Eq)

-- | The counters of a stack.
data Counter
  = PacketsIn
  | PacketsOut
  | Malformed'
  | BadChecksums
  | NotForUs
  | ResetsOut
  | CookiesSent
  | CookiesTaken
  | SynsIgnored
  | HalfOpenEvicted
  | Accepted
  | Connects
  | -- | Exceptions of 'stackTap' and 'stackSoftErrors'.
    CallbackErrors
  | -- | Answers to strangers that were not sent, since there were too many ("Weft.Tcp.Stack.Answers").
    AnswersLimited
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | Add one to a counter. With several queues, concurrent increments may be lost, so the value may be too
-- small but never too large.
count :: Stack -> Counter -> IO ()
count st = countIn (counters st)

-- | 'count', given the array of counters.
countIn :: IOUArray Int Int -> Counter -> IO ()
countIn ns c = readArray ns (fromEnum c) >>= \n -> writeArray ns (fromEnum c) (n + 1)

-- | The value of a counter since the stack was started.
readCounter :: Stack -> Counter -> IO Int
readCounter st c = readArray (counters st) (fromEnum c)

-- | An entry of the connection table.
data Entry
  = Live !Socket
  | Lingering !(IORef Waiting)

-- | A connection and what the stack keeps for it.
data Socket = Socket
  { -- | The addresses and ports of the connection.
    socketFlow :: !Flow,
    socketStack :: !Stack,
    -- | Taken during a step.
    socketConn :: !(MVar Packed),
    -- | Notified by steps when the receiving (sending) thread should try again.
    socketReader, socketWriter :: !Waker,
    -- | The timer that is set. Accessed only while 'socketConn' is held.
    socketTimer :: !(IORef Armed),
    -- | The listener whose accept queue the connection enters once it is open, for an incoming connection.
    socketListener :: !(Maybe Listening),
    -- | The connection's owner. Changed only by atomic operations.
    socketHolder :: !(IORef Holder)
  }

-- | The states are @Backlogged -> Held -> Released@, or @Held -> Released@ for an outgoing connection, with 'CutOff'
-- between the last two if a send was cut off. 'Severed' comes before 'Released' if the stack ends first. The thread
-- that ends the state 'Backlogged' also removes the connection from the listener's backlog.
data Holder
  = -- | Counted in its listener's backlog: half open, or open and not yet accepted.
    Backlogged
  | -- | In use by the user.
    Held
  | -- | In use by the user, but a send was cut off after a part: further sends throw.
    CutOff
  | -- | Ended with the stack, or with its device: operations throw @ENETDOWN@.
    Severed
  | -- | Closed by the user: operations throw @EBADF@.
    Released
  deriving (Eq, Show)

-- | The time at which the timer expires, and the timer.
data Armed = Unarmed | Armed !Instant !Timer.Timer

-- | A listening port.
data Listening = Listening
  { listeningPort :: !Word16,
    listeningAddress :: !(Maybe Address),
    backlog :: !(IORef Backlog),
    -- | Changed by atomic operations, from any thread.
    acceptQueue :: !(IORef AcceptQueue),
    -- | When a SYN was last answered by a cookie. Written by the loops.
    lastCookie :: !(IORef (Maybe Instant)),
    -- | Notified when there is a connection to accept, and when the listener is closed.
    acceptWaker :: !Waker,
    -- | The listener itself, in a 'Just' that its connections share.
    listeningSelf :: !(Maybe Listening)
  }

-- | The listeners of a stack.
data Listeners = Listeners
  { byPort :: !(Map.Map (Word16, Maybe Address) Listening),
    -- | The free ports from 32768 on, for each address that has had a listener on such a port, and the port at
    -- which the next search begins.
    freePorts :: !(Map.Map (Maybe Address) IntSet.IntSet),
    nextListenPort :: !Int
  }

-- | The open connections that have not been accepted.
data AcceptQueue
  = Arrived !(Seq Socket)
  | -- | The listener is closed; accepting threads get this error.
    NoMore !CInt

-- | The time of the monotonic clock, and the settings for the address's IP version.
stackEnv :: Stack -> Address -> IO Env
stackEnv st a = do
  Clock.Instant ns <- now
  pure (Env (Instant (fromIntegral (ns `div` 1000))) (case a of V4 {} -> config4 st; V6 {} -> config6 st))

-- | Settings with the largest segments that a device accepts, for an IP header of the given size.
configFor :: Device -> Int -> Config -> Config
configFor d headers cfg =
  cfg
    { announcedMss = room - 20,
      pathRoom = room,
      offloadBytes = if deviceOffloads d then 65535 - headers - 60 else 0
    }
  where
    room = deviceMtu d - headers

-- | The initial values for a connection of that flow: sequence number, timestamp offset
-- and segment sizes.
openingFor :: Stack -> Env -> Flow -> Opening
openingFor st env f =
  Opening
    { initialSequence = sequenceFor (secret st) (envNow env) f,
      timestampOffset = offsetFor (secret st) f,
      pathKnown = pathRoom (config env),
      mssDefault = case remoteAddress f of V4 {} -> 536; V6 {} -> 1220
    }
  where
    envNow (Env t _) = t

-- | A socket for a connection, with its listener if it is an incoming one. It is not put into the
-- table.
newSocket :: Stack -> Flow -> Maybe Listening -> Conn -> IO Socket
newSocket st f l c = Socket f st <$> (newMVar $! pack c) <*> newWaker <*> newWaker <*> newIORef Unarmed <*> pure l <*> newIORef (if isJust l then Backlogged else Held)

-- | Remove a socket from its listener's backlog, if it is there.
unlist :: Socket -> IO ()
unlist sock = forM_ (socketListener sock) $ \l -> do
  listed <- atomicModifyIORef' (socketHolder sock) (\h -> (if h == Backlogged then Held else h, h == Backlogged))
  when listed (atomicModifyIORef' (backlog l) (\b -> (leave (socketFlow sock) b, ())))

-- The table -------------------------------------------------------------------------

shard :: Stack -> Flow -> IORef (Map.Map Flow Entry)
shard st f = table st ! (fromIntegral (remotePort f `xor` localPort f) .&. snd (bounds (table st)))

-- | The table's entry for a flow.
lookupEntry :: Stack -> Flow -> IO (Maybe Entry)
lookupEntry st f = Map.lookup f <$> readIORef (shard st f)

-- | Insert an entry into the table, replacing any entry of the flow.
insertEntry :: Stack -> Flow -> Entry -> IO ()
insertEntry st f e = atomicModifyIORef' (shard st f) (\m -> (Map.insert f e m, ()))

-- | Insert an entry unless the flow has one. Returns whether it was inserted.
claimFlow :: Stack -> Flow -> Entry -> IO Bool
claimFlow st f e = do
  ours <- atomicModifyIORef' (shard st f) $ \m ->
    if Map.member f m then (m, False) else (Map.insert f e m, True)
  ours <$ when ours (countDynamic 1 st f)

-- | Remove a connection from the table, unless its TIME-WAIT or a later connection has replaced it.
deleteLive :: Socket -> IO ()
deleteLive sock = do
  there <- atomicModifyIORef' (shard st f) $ \m -> case Map.lookup f m of
    Just (Live other) | socketConn other == socketConn sock -> (Map.delete f m, True)
    _ -> (m, False)
  when there (countDynamic (-1) st f)
  where
    st = socketStack sock
    f = socketFlow sock

-- | Remove a connection in TIME-WAIT from the table, unless a later connection has replaced it.
-- Returns whether it was there.
deleteLingering :: Stack -> Flow -> IORef Waiting -> IO Bool
deleteLingering st f w = do
  there <- atomicModifyIORef' (shard st f) $ \m -> case Map.lookup f m of
    Just (Lingering w') | w' == w -> (Map.delete f m, True)
    _ -> (m, False)
  there <$ when there (countDynamic (-1) st f)

-- | The range of local ports for 'Weft.Tcp.connect' (RFC 6335, section 6).
dynamicPorts :: (Word16, Word16)
dynamicPorts = (49152, 65535)

-- | Add to the number of flows with a dynamic port that have the same local address and remote port and address.
countDynamic :: Int -> Stack -> Flow -> IO ()
countDynamic n st f =
  when (localPort f >= fst dynamicPorts) $
    atomicModifyIORef' (dynamicFlows st) (\m -> (Map.alter change (remotePort f, remoteAddress f, localAddress f) m, ()))
  where
    change old = let new = fromMaybe 0 old + n in if new == 0 then Nothing else Just new

-- | Whether all dynamic ports of a local address are in use with that remote port and address.
noPortLeft :: Stack -> Address -> Word16 -> Address -> IO Bool
noPortLeft st to port own = do
  m <- readIORef (dynamicFlows st)
  pure (Map.findWithDefault 0 (port, to, own) m > fromIntegral (snd dynamicPorts - fst dynamicPorts))

-- | The number of connections, including those in TIME-WAIT. O(shards).
tableSize :: Stack -> IO Int
tableSize st = sum <$> mapM (fmap Map.size . readIORef) (elems (table st))

-- | The listener on a port, at that address or at all addresses.
lookupListening :: Stack -> Address -> Word16 -> IO (Maybe Listening)
lookupListening st a p = do
  m <- byPort <$> readIORef (listeners st)
  pure (case Map.lookup (p, Just a) m of Nothing -> Map.lookup (p, Nothing) m; found -> found)

-- Sending -----------------------------------------------------------------------------

-- | Answer a stranger at an address, unless too many were answered.
answering :: Stack -> Kind -> Address -> IO () -> IO ()
answering st kind to act = do
  Env t _ <- stackEnv st to
  allowed <- mayAnswer (answers st) kind t (addressHash (secret st) to)
  if allowed then act else count st AnswersLimited

-- | Send a segment of a flow, with the connection's choices. The device splits it into parts of the given
-- size if it is larger.
sendSegment :: Stack -> Choices -> Flow -> Int -> Segment -> IO ()
sendSegment st chosen f mss s
  | deviceOffloads (device st) =
    let tcp = Segment.putForOffload src dst (localPort f) (remotePort f) s
        headers = Packet.headerSize src + putLength tcp
     in packet tcp (Complete (Packet.headerSize src) headers (if size > mss then mss else 0))
  | otherwise = packet (Segment.putHeader src dst (localPort f) (remotePort f) s) NoOffload
  where
    src = localAddress f
    dst = remoteAddress f
    size = Segment.payloadLength s
    packet tcp how =
      let ip = Packet.putHeader (max 1 (sendHopLimit chosen)) (sendTrafficClass chosen .&. 0xfc) 6 src dst (putLength tcp + size)
       in transmitParts st f how (runPut (ip <> tcp) : payload s)

transmitParts :: Stack -> Flow -> Offload -> [ByteString] -> IO ()
transmitParts st f how parts = do
  count st PacketsOut
  forM_ (stackTap (settings st)) (\see -> see False parts)
  sendPacket (queueFor st f) how parts

-- | The queue of a flow. All packets of a flow use one queue, so that they stay in order.
queueFor :: Stack -> Flow -> Queue
queueFor st f = case deviceQueues (device st) of
  [q] -> q
  qs -> qs !! (fromIntegral (remotePort f `xor` localPort f) `mod` length qs)

-- | The identification of the next fragments between two addresses: no other recent packet between them has it, and
-- other hosts cannot predict it (RFC 7739, section 5.3). TCP segments are never fragmented, and need none (RFC 6864).
identification :: Stack -> Address -> Address -> IO Word32
identification st from to = (fromIntegral h +) . fromIntegral <$> addWord (fragmentCounts st) (fromIntegral (h `shiftR` 56)) 1
  where
    h = pairHash (secret st) from to

-- | Send a packet of another protocol, as fragments if it is larger than the device's MTU.
sendWhole :: Stack -> Packet.Packet -> IO ()
sendWhole st p = do
  n <- identification st (Packet.packetSource p) (Packet.packetDestination p)
  forM_ (Packet.fragment (deviceMtu (device st)) n p) $ \bytes -> do
    count st PacketsOut
    forM_ (stackTap (settings st)) (\see -> see False [bytes])
    sendPacket (head' (deviceQueues (device st))) NoOffload [bytes]
  where
    head' qs = case qs of
      q : _ -> q
      [] -> Queue (pure []) (\_ _ -> pure ())
