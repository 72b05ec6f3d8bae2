-- |
-- The stack's state: which connections there are, which ports are listened on, and the
-- tools that its loops and its users share. Internal; "Weft.Tcp" is what programs use.
--
-- A connection's state is in an 'MVar': whoever takes it runs one step of the core, sends
-- what the step gives, and puts it back. Nothing blocks in between. The tables are
-- changed by atomic operations, and never while holding one another.
--
-- @since 0.1.0
module Weft.Tcp.Stack
  ( -- * The stack
    Stack (..),
    StackSettings (..),
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
    deleteEntry,
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
    sendSegment,
    sendWhole,
  )
where

import Control.Concurrent (ThreadId)
import Control.Concurrent.MVar
import Control.Monad (forM_, when)
import Data.Array (Array, bounds, elems, (!))
import Data.Array.IO (IOUArray, readArray, writeArray)
import Data.Bits (xor, (.&.))
import Data.ByteString (ByteString)
import Data.IORef
import qualified Data.IntSet as IntSet
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isJust)
import Data.Sequence (Seq)
import Data.Word (Word16)
import Foreign.C.Types (CInt)
import qualified Weft.Core.Time as Clock
import Weft.Sys (now)
import Weft.Tcp.Core hiding (now)
import Weft.Tcp.Core.Listener
import Weft.Tcp.Core.Rest (Kept, keep)
import Weft.Tcp.Core.Secret
import Weft.Tcp.Core.TimeWait (Waiting)
import Weft.Tcp.Device
import Weft.Tcp.Stack.Waker (Waker, newWaker)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Bytes (putLength, runPut)
import Weft.Tcp.Wire.Fragments (Fragments)
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (..))
import qualified Weft.Tcp.Wire.Segment as Segment
import qualified Weft.Timer as Timer

-- | What a stack is made with.
data StackSettings = StackSettings
  { -- | Its own addresses, of either version.
    stackAddresses :: ![Address],
    -- | For all connections; MTU and offload are taken from the device.
    stackConfig :: !Config,
    stackPolicy :: !Policy,
    -- | Connections in TIME-WAIT, at most: the oldest are forgotten.
    maxTimeWait :: !Int,
    -- | Sees each packet that comes ('True') or goes, for a packet log. It runs on the stack's
    -- loops. When it throws it is not called again, and the stack goes on ('CallbackErrors').
    stackTap :: !(Maybe (Bool -> [ByteString] -> IO ())),
    -- | Is told of troubles of connections that go on (MUST-47). It runs on the stack's
    -- loops and must not block. What it throws is dropped ('CallbackErrors').
    stackSoftErrors :: !(Maybe (Flow -> SoftError -> IO ()))
  }

-- | A running stack.
data Stack = Stack
  { device :: !Device,
    settings :: !StackSettings,
    -- | The settings of connections over IPv4 and over IPv6, with the device's segment sizes.
    config4, config6 :: !Config,
    secret :: !Secret,
    -- | Connections and what is left of them, in shards by flow. Changed by atomic
    -- operations, from any thread.
    table :: !(Array Int (IORef (Map.Map Flow Entry))),
    -- | Flows in TIME-WAIT, the oldest first. A connection that begins on such a flow leaves its
    -- entry here. Changed by atomic operations, from any thread.
    timeWaits :: !(IORef (Seq (Instant, Flow, IORef Waiting))),
    -- | How many flows with a dynamic local port ('dynamicPorts') go to each remote port and address from
    -- each address of ours. Changed by atomic operations, from any thread.
    dynamicFlows :: !(IORef (Map.Map (Word16, Address, Address) Int)),
    listeners :: !(IORef Listeners),
    -- | Sockets whose timer fired; filled by dispatchers, emptied by the timer loop.
    fired :: !(IORef [Socket]),
    firedSignal :: !(MVar ()),
    fragments :: !(IORef Fragments),
    -- | The next port to try for a connection of ours.
    nextPort :: !(IORef Word16),
    -- | By 'fromEnum' of a 'Counter'.
    counters :: !(IOUArray Int Int),
    -- | Set before the stack ends its connections and listeners; those that are entered into the tables
    -- later are ended by the thread that entered them, which looks here afterwards.
    stopped :: !(IORef Bool),
    -- | The loops' threads; written once.
    workers :: !(IORef [ThreadId])
  }

-- | What is counted.
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
  | Accepted
  | Connects
  | -- | Exceptions of 'stackTap' and 'stackSoftErrors'.
    CallbackErrors
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | Add one to a counter. Approximate when several queues count at once: increments may be lost, never
-- invented.
count :: Stack -> Counter -> IO ()
count st = countIn (counters st)

-- | 'count' in an array of counters.
countIn :: IOUArray Int Int -> Counter -> IO ()
countIn ns c = readArray ns (fromEnum c) >>= \n -> writeArray ns (fromEnum c) (n + 1)

-- | The value of a counter since the stack was started.
readCounter :: Stack -> Counter -> IO Int
readCounter st c = readArray (counters st) (fromEnum c)

-- | What a flow is.
data Entry
  = Live !Socket
  | Lingering !(IORef Waiting)

-- | A connection as its users see it.
data Socket = Socket
  { -- | The addresses and ports of the connection.
    socketFlow :: !Flow,
    socketStack :: !Stack,
    -- | Taken for the time of a step.
    socketConn :: !(MVar Kept),
    -- | Told by steps when the thread that receives (sends) should look again.
    socketReader, socketWriter :: !Waker,
    -- | The timer that is set. Only touched while holding 'socketConn'.
    socketTimer :: !(IORef Armed),
    -- | Where it goes once it is open, if a listener made it.
    socketListener :: !(Maybe Listening),
    -- | Who has it. Changed by atomic operations only.
    socketHolder :: !(IORef Holder)
  }

-- | @Backlogged -> Held -> Released@, or without the first. Whoever takes it out of the
-- first takes it out of the listener's backlog too.
data Holder
  = -- | Counted in its listener's backlog: half open, or not yet accepted.
    Backlogged
  | -- | The user's.
    Held
  | -- | The user closed it: its operations throw.
    Released
  deriving (Eq, Show)

-- | When the timer fires, and the timer.
data Armed = Unarmed | Armed !Instant !Timer.Timer

-- | A port that is listened on.
data Listening = Listening
  { listeningPort :: !Word16,
    listeningAddress :: !(Maybe Address),
    backlog :: !(IORef Backlog),
    -- | Changed by atomic operations, from any thread.
    acceptQueue :: !(IORef AcceptQueue),
    -- | Told when there is a connection to accept, and when the listener is closed.
    acceptWaker :: !Waker,
    -- | Itself, shared by its connections.
    listeningSelf :: !(Maybe Listening)
  }

-- | The ports that are listened on.
data Listeners = Listeners
  { byPort :: !(Map.Map (Word16, Maybe Address) Listening),
    -- | The ports from 32768 on that are free, for each address that has had a listener there, and where the
    -- next search begins.
    freePorts :: !(Map.Map (Maybe Address) IntSet.IntSet),
    nextListenPort :: !Int
  }

-- | Connections that are open, and not yet accepted.
data AcceptQueue
  = Arrived !(Seq Socket)
  | -- | The listener is closed: the error of those who accept.
    NoMore !CInt

-- | The time of the monotonic clock, and the settings for a version of IP.
stackEnv :: Stack -> Address -> IO Env
stackEnv st a = do
  Clock.Instant ns <- now
  pure (Env (Instant (fromIntegral (ns `div` 1000))) (case a of V4 {} -> config4 st; V6 {} -> config6 st))

-- | Settings with the largest segments that a device takes, behind an IP header of that size.
configFor :: Device -> Int -> Config -> Config
configFor d headers cfg =
  cfg
    { announcedMss = room - 20,
      pathRoom = room,
      offloadBytes = if deviceOffloads d then 65535 - headers - 60 else 0
    }
  where
    room = deviceMtu d - headers

-- | What a new connection of that flow starts with: sequence number, timestamp offset
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

-- | A socket for a connection, in the backlog of a listener if one made it; it is not
-- put into the table.
newSocket :: Stack -> Flow -> Maybe Listening -> Conn -> IO Socket
newSocket st f l c = Socket f st <$> (newMVar $! keep c) <*> newWaker <*> newWaker <*> newIORef Unarmed <*> pure l <*> newIORef (if isJust l then Backlogged else Held)

-- | Take a socket out of its listener's backlog, if it is there.
unlist :: Socket -> IO ()
unlist sock = forM_ (socketListener sock) $ \l -> do
  listed <- atomicModifyIORef' (socketHolder sock) (\h -> (if h == Backlogged then Held else h, h == Backlogged))
  when listed (atomicModifyIORef' (backlog l) (\b -> (leave (remoteAddress (socketFlow sock)) b, ())))

-- The table -------------------------------------------------------------------------

shard :: Stack -> Flow -> IORef (Map.Map Flow Entry)
shard st f = table st ! (fromIntegral (remotePort f `xor` localPort f) .&. snd (bounds (table st)))

-- | What a flow is, if the table has it.
lookupEntry :: Stack -> Flow -> IO (Maybe Entry)
lookupEntry st f = Map.lookup f <$> readIORef (shard st f)

-- | Put an entry into the table, in place of one that the flow may have.
insertEntry :: Stack -> Flow -> Entry -> IO ()
insertEntry st f e = atomicModifyIORef' (shard st f) (\m -> (Map.insert f e m, ()))

-- | Insert unless something is there.
claimFlow :: Stack -> Flow -> Entry -> IO Bool
claimFlow st f e = do
  ours <- atomicModifyIORef' (shard st f) $ \m ->
    if Map.member f m then (m, False) else (Map.insert f e m, True)
  ours <$ when ours (countDynamic 1 st f)

-- | Take a flow out of the table, if it is there.
deleteEntry :: Stack -> Flow -> IO ()
deleteEntry st f = do
  there <- atomicModifyIORef' (shard st f) (\m -> if Map.member f m then (Map.delete f m, True) else (m, False))
  when there (countDynamic (-1) st f)

-- | Take what is left of a connection in TIME-WAIT out of the table, unless a later connection has its place.
-- Whether it was there.
deleteLingering :: Stack -> Flow -> IORef Waiting -> IO Bool
deleteLingering st f w = do
  there <- atomicModifyIORef' (shard st f) $ \m -> case Map.lookup f m of
    Just (Lingering w') | w' == w -> (Map.delete f m, True)
    _ -> (m, False)
  there <$ when there (countDynamic (-1) st f)

-- | The ports that 'Weft.Tcp.connect' takes from (RFC 6335, section 6).
dynamicPorts :: (Word16, Word16)
dynamicPorts = (49152, 65535)

-- | Add to the number of flows between the port's destination and the address of ours.
countDynamic :: Int -> Stack -> Flow -> IO ()
countDynamic n st f =
  when (localPort f >= fst dynamicPorts) $
    atomicModifyIORef' (dynamicFlows st) (\m -> (Map.alter change (remotePort f, remoteAddress f, localAddress f) m, ()))
  where
    change old = let new = fromMaybe 0 old + n in if new == 0 then Nothing else Just new

-- | Whether all dynamic ports of an address of ours are in use with that remote port and address.
noPortLeft :: Stack -> Address -> Word16 -> Address -> IO Bool
noPortLeft st to port own = do
  m <- readIORef (dynamicFlows st)
  pure (Map.findWithDefault 0 (port, to, own) m > fromIntegral (snd dynamicPorts - fst dynamicPorts))

-- | How many connections there are, those in TIME-WAIT among them. O(shards).
tableSize :: Stack -> IO Int
tableSize st = sum <$> mapM (fmap Map.size . readIORef) (elems (table st))

-- | Who listens on a port, at that address or at all.
lookupListening :: Stack -> Address -> Word16 -> IO (Maybe Listening)
lookupListening st a p = do
  m <- byPort <$> readIORef (listeners st)
  pure (case Map.lookup (p, Just a) m of Nothing -> Map.lookup (p, Nothing) m; found -> found)

-- Sending -----------------------------------------------------------------------------

-- | Send a segment of a flow with a connection's choices, cut up by the device into parts of
-- that size if it is larger.
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

-- | Flows keep to one queue, so that their packets stay in order.
queueFor :: Stack -> Flow -> Queue
queueFor st f = case deviceQueues (device st) of
  [q] -> q
  qs -> qs !! (fromIntegral (remotePort f `xor` localPort f) `mod` length qs)

-- | Send a packet of another protocol.
sendWhole :: Stack -> Packet.Packet -> IO ()
sendWhole st p = do
  count st PacketsOut
  let bytes = [Packet.encode p]
  forM_ (stackTap (settings st)) (\see -> see False bytes)
  sendPacket (head' (deviceQueues (device st))) NoOffload bytes
  where
    head' qs = case qs of
      q : _ -> q
      [] -> Queue (pure []) (\_ _ -> pure ())
