-- |
-- Description : A fake switch that sends PACKET_INs
--
-- A fake switch of OpenFlow 1.0 or 1.3: it answers the controller's requests, sends PACKET_INs, and counts the
-- answers to them. A probe is a PACKET_IN (82 bytes in 1.0, 106 in 1.3) with its own buffer id. Its answer is the
-- first FLOW_MOD or PACKET_OUT with that id.
module Weft.Bench.Cbench.FakeSwitch
  ( FakeSwitch,
    Shape (..),
    Tally (..),
    newFakeSwitch,
    handshake,
    ask,
    answerOnly,
    answerUntil,
    paced,
    tally,
    restart,
    latencies,
  )
where

import Control.Concurrent (yield)
import Control.Concurrent.MVar (MVar, isEmptyMVar, newMVar, withMVar)
import Control.Exception (Exception (..), throwIO, try)
import Control.Monad (unless, when)
import Control.Monad.Primitive (RealWorld)
import Data.Bits (unsafeShiftL, unsafeShiftR, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import Data.ByteString.Short (toShort)
import qualified Data.ByteString.Unsafe as B
import Data.IORef
import Data.Maybe (fromMaybe)
import Data.Primitive.ByteArray
import Data.Word (Word16, Word32, Word8, byteSwap16, byteSwap32)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes, withForeignPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (pokeByteOff)
import GHC.Clock (getMonotonicTimeNSec)
import Weft.Bench.Cbench.Histogram
import Weft.Duration (Duration, nanoseconds, seconds)
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket (Instant, Socket, deadlineIn, isTimeout, noDeadline, withDeadline)
import Weft.Socket.ByteString (recv, sendAll, sendBuf)

-- | The settings that all switches share.
data Shape = Shape
  { -- | The version of OpenFlow.
    shapeVersion :: !Version,
    -- | The number of hosts of a switch.
    shapeHosts :: !Int,
    -- | The largest number of unanswered probes; a power of two.
    shapeOutstanding :: !Int,
    -- | Nanoseconds after which an unanswered probe is given up, and another one is sent; 0 means never.
    shapeGiveUp :: !Int
  }

-- | The counters of a switch. Written by its thread.
data Tally = Tally
  { -- | First answers to a probe.
    tallyUnique :: !Int,
    -- | The FLOW_MODs among the first answers.
    tallyFlows :: !Int,
    -- | Further answers to a probe, and answers that belong to no probe.
    tallyOthers :: !Int,
    -- | Probes sent.
    tallyProbes :: !Int,
    -- | Probes given up.
    tallyLost :: !Int,
    -- | Probes that were due and not sent, since the largest number of probes was unanswered.
    tallyUnsent :: !Int,
    -- | ECHO_REQUESTs answered.
    tallyEchoes :: !Int,
    -- | ERRORs received.
    tallyErrors :: !Int
  }

-- | A switch. It belongs to one thread, except that others may call 'tally', which may be a little late, and
-- 'restart', which may lose one batch.
data FakeSwitch = FakeSwitch
  { fakeNumber :: !Int,
    fakeShape :: !Shape,
    -- | Of the shape's version.
    fakeLayout :: !Layout,
    fakeSocket :: !Socket,
    -- | Held while whole messages are sent: with 'paced' two threads send.
    fakeSending :: !(MVar ()),
    fakeTally :: !(IORef Tally),
    -- | Written by the thread that sends probes; with 'paced' it is not the switch's thread.
    fakeProbes :: !(IORef Sent),
    fakeTimes :: !Histogram,
    -- | For each slot, the unanswered probe, or 0, and the time at which it was sent.
    fakeSlots :: !(MutableByteArray RealWorld),
    fakeSent :: !(MutableByteArray RealWorld),
    -- | The buffer in which probes are composed.
    fakeRoom :: !(ForeignPtr Word8)
  }

-- | The numbers of probes that were sent and that were due and could not be sent, and the number of the next probe.
data Sent = Sent !Int !Int !Int

-- | The connection ended, or the peer does not speak OpenFlow.
newtype Unanswered = Unanswered String
  deriving (Show)

instance Exception Unanswered where
  displayException (Unanswered why) = why

-- | The switch with the given number, from 1 on, on a connection.
newFakeSwitch :: Shape -> Int -> Socket -> IO FakeSwitch
newFakeSwitch shape n sock = do
  slots <- newByteArray (4 * shapeOutstanding shape)
  setByteArray slots 0 (shapeOutstanding shape) (0 :: Word32)
  sent <- newByteArray (8 * shapeOutstanding shape)
  FakeSwitch n shape layout sock <$> newMVar () <*> newIORef (Tally 0 0 0 0 0 0 0 0) <*> newIORef (Sent 0 0 1) <*> newHistogram <*> pure slots <*> pure sent
    <*> mallocForeignPtrBytes (probeSize layout * shapeOutstanding shape)
  where
    layout = layoutOf (shapeVersion shape)

-- | The counters since the start.
tally :: FakeSwitch -> IO Tally
tally f = do
  Sent sent unsent _ <- readIORef (fakeProbes f)
  (\t -> t {tallyProbes = sent, tallyUnsent = unsent}) <$> readIORef (fakeTally f)

-- | Clear the recorded latencies.
restart :: FakeSwitch -> IO ()
restart = clear . fakeTimes

-- | Nanoseconds from a probe to its answer.
latencies :: FakeSwitch -> Histogram
latencies = fakeTimes

-- Messages --------------------------------------------------------------------------------

-- | Send HELLO, and answer until the controller knows the switch, for ten seconds at most. The result is the bytes that
-- were received after that. Throws 'Unanswered' if the controller refuses the version, or the time is over.
handshake :: FakeSwitch -> IO ByteString
handshake f = do
  sendAll (fakeSocket f) (bytesOf f 1 (Hello []))
  known <- newIORef False
  deadline <- deadlineIn (seconds 10)
  let go s = do
        rest <- messages f (\h message -> when (refuses message) (throwIO refused) >> onMessage f known h message) s
        done <- readIORef known
        if done then pure rest else receiveBefore f deadline rest >>= maybe (throwIO late) go
  go B.empty
  where
    -- ERROR of the type OFPET_HELLO_FAILED, in any version (OpenFlow 1.3.5, 6.3.1).
    refuses message = B.length message >= 10 && B.index message 1 == 1 && B.take 2 (B.drop 8 message) == B.pack [0, 0]
    refused = Unanswered "the controller refused the version of OpenFlow (HELLO_FAILED)"
    late = Unanswered "the controller did not ask for the switch's features within ten seconds"

-- | Append received bytes to the ones that are left; 'Nothing' if the deadline has passed before.
receiveBefore :: FakeSwitch -> Instant -> ByteString -> IO (Maybe ByteString)
receiveBefore f deadline rest = do
  r <- try (recv (if deadline == noDeadline then fakeSocket f else withDeadline deadline (fakeSocket f)) 65536)
  case r of
    Right s
      | B.null s -> throwIO (Unanswered "the controller closed the connection")
      | otherwise -> pure (Just (if B.null rest then s else rest <> s))
    Left e
      | isTimeout e -> pure Nothing
      | otherwise -> throwIO e

-- | Receive without a deadline.
receive :: FakeSwitch -> ByteString -> IO ByteString
receive f rest = receiveBefore f noDeadline rest >>= maybe (receive f rest) pure

-- | The complete messages, and the remaining bytes.
messages :: FakeSwitch -> (Header -> ByteString -> IO ()) -> ByteString -> IO ByteString
messages _ act = go
  where
    go s = case nextMessage s of
      Whole h message rest -> act h message >> go rest
      -- A copy, so that a waiting switch does not retain the whole buffer.
      Missing _ -> pure $! if B.null s then B.empty else B.copy s
      Unframed _ -> throwIO (Unanswered "a length below that of a header")
{-# INLINE messages #-}

bytesOf :: FakeSwitch -> Xid -> Message -> ByteString
bytesOf = encoded . shapeVersion . fakeShape

encoded :: Version -> Xid -> Message -> ByteString
encoded version xid = fromMaybe B.empty . encode version xid

-- | Handle a message that is not an answer to a probe.
onMessage :: FakeSwitch -> IORef Bool -> Header -> ByteString -> IO ()
onMessage f known h s = case decode s of
  Right (_, message) -> case message of
    FeaturesRequest -> reply (FeaturesReply features) >> writeIORef known True
    GetConfigRequest -> reply (GetConfigReply (SwitchConfig 0 128))
    EchoRequest payload -> reply (EchoReply payload) >> modifyIORef' (fakeTally f) (\t -> t {tallyEchoes = tallyEchoes t + 1})
    BarrierRequest -> reply BarrierReply
    StatsRequestMessage False DescRequest -> reply (StatsReplyMessage False (DescReply description))
    StatsRequestMessage False PortDescRequest -> reply (StatsReplyMessage False (PortDescReply ports))
    StatsRequestMessage False (FlowStatsRequest _) -> reply (StatsReplyMessage False (FlowStatsReply []))
    StatsRequestMessage False (PortStatsRequest _) -> reply (StatsReplyMessage False (PortStatsReply []))
    StatsRequestMessage False TableStatsRequest -> reply (StatsReplyMessage False (TableStatsReply []))
    StatsRequestMessage False (OtherStatsRequest kind _) -> reply (StatsReplyMessage False (OtherStatsReply kind B.empty))
    RoleRequest role generation -> reply (RoleReply role generation)
    Experimenter _ _ -> reply (Error 1 3 (B.take 64 s))
    Error {} -> modifyIORef' (fakeTally f) (\t -> t {tallyErrors = tallyErrors t + 1})
    _ -> pure ()
  -- A HELLO of a later version, and unknown messages.
  Left _ -> pure ()
  where
    reply message = withMVar (fakeSending f) (\_ -> sendAll (fakeSocket f) (bytesOf f (headerXid h) message))
    features = case shapeVersion (fakeShape f) of
      V10 -> Features (DatapathId (fromIntegral (fakeNumber f))) 256 2 0 0xc7 0xfff ports
      V13 -> Features (DatapathId (fromIntegral (fakeNumber f))) 256 2 0 0x47 0 []
    ports = [port n | n <- [1 .. 4]]
    port :: Word32 -> Port
    port n = Port (PortNo n) (MacAddress (0x020000000000 + fromIntegral (fakeNumber f) * 16 + fromIntegral n)) (toShort (BC.pack ("port" <> show n))) 0 0 (0xc0, 0, 0, 0) (0, 0)
    description = Description (BC.pack "weft") (BC.pack "cbench") (BC.pack "cbench") B.empty B.empty

-- | Answer the controller's requests, for ever.
answerOnly :: FakeSwitch -> ByteString -> IO ()
answerOnly f s = do
  known <- newIORef True
  let go rest = messages f (onMessage f known) rest >>= receive f >>= go
  go s

-- | Answer the controller's requests until the variable is full. It is looked at after each message, and whenever none
-- has arrived for the given time. Returns the bytes that are left.
answerUntil :: FakeSwitch -> Duration -> MVar () -> ByteString -> IO ByteString
answerUntil f interval begun s = do
  known <- newIORef True
  let go rest = do
        left <- messages f (onMessage f known) rest
        waiting <- isEmptyMVar begun
        if waiting
          then deadlineIn interval >>= \deadline -> receiveBefore f deadline left >>= go . fromMaybe left
          else pure left
  go s

-- Probes ----------------------------------------------------------------------------------

-- | Offsets in messages of a version, in bytes from the message's beginning.
data Layout = Layout
  { -- | A PACKET_IN with a frame of 64 bytes: an IPv4 packet in port 1.
    probeTemplate :: !ByteString,
    -- | The offset of the frame in the PACKET_IN.
    probeFrame :: !Int,
    -- | The smallest size of a FLOW_MOD, and the offset of the buffer id.
    flowSize :: !Int,
    flowBufferAt :: !Int,
    -- | The smallest size of a PACKET_OUT. The buffer id follows the header.
    outSize :: !Int
  }

layoutOf :: Version -> Layout
layoutOf version = case version of
  V10 -> Layout (template V10) 18 72 64 16
  V13 -> Layout (template V13) 42 56 32 24

probeSize :: Layout -> Int
probeSize = B.length . probeTemplate

template :: Version -> ByteString
template version = encoded version 0 (PacketInMessage (PacketIn noBuffer 64 (PortNo 1) reasonNoMatch 0 0 [] frame))
  where
    frame = B.take 64 (B.replicate 12 0 <> B.pack ([8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2] ++ replicate 64 0))

-- | Keep the largest allowed number of probes unanswered, for ever.
ask :: FakeSwitch -> ByteString -> IO ()
ask f s0 = do
  known <- newIORef True
  open <- newIORef (0 :: Int)
  let refill = do
        n <- readIORef open
        now <- fromIntegral <$> getMonotonicTimeNSec
        taken <- probes f now (shapeOutstanding (fakeShape f) - n)
        writeIORef open (n + taken)
      go looked rest = do
        now <- fromIntegral <$> getMonotonicTimeNSec
        left <- messages f (answerOr f known now (modifyIORef' open (subtract 1))) rest
        looked' <- forsake now looked
        refill
        -- Yield, so that all switches get the same share of this program's time.
        yield
        await looked' left
      -- Without a time limit this is 'receive'.
      await looked left = do
        deadline <- if givingUp then deadlineIn (nanoseconds (fromIntegral giveUp)) else pure noDeadline
        receiveBefore f deadline left >>= go looked . fromMaybe left
      forsake now looked
        | givingUp && now - looked >= giveUp `div` 8 = do
          n <- giveUpBefore f (now - giveUp)
          modifyIORef' open (subtract n)
          pure now
        | otherwise = pure looked
  refill
  go 0 s0
  where
    giveUp = shapeGiveUp (fakeShape f)
    givingUp = giveUp > 0

-- | Two actions. The first sends probes, given the instant at which they are due, from which their latency counts, and
-- their number. The second answers the controller and counts, for ever.
paced :: FakeSwitch -> ByteString -> (Int -> Int -> IO (), IO ())
paced f s0 = (send, newIORef True >>= \known -> go known s0)
  where
    send due n = do
      t <- tally f
      -- No probe is sent if no slot is free.
      taken <- if tallyProbes t - tallyUnique t >= shapeOutstanding (fakeShape f) then pure 0 else probes f due n
      modifyIORef' (fakeProbes f) (\(Sent sent unsent next) -> Sent sent (unsent + n - taken) next)
    go known rest = do
      now <- fromIntegral <$> getMonotonicTimeNSec
      left <- messages f (answerOr f known now (pure ())) rest
      receive f left >>= go known

-- | Handle a message that arrived at the given time. The action runs for the first answer to a probe.
answerOr :: FakeSwitch -> IORef Bool -> Int -> IO () -> Header -> ByteString -> IO ()
answerOr f known now counted h s
  | headerType h == 14 && B.length s >= flowSize layout = answered True (word32 (flowBufferAt layout) s)
  | headerType h == 13 && B.length s >= outSize layout = answered False (word32 8 s)
  | otherwise = onMessage f known h s
  where
    layout = fakeLayout f
    answered isFlow number = do
      let slot = fromIntegral number .&. (shapeOutstanding (fakeShape f) - 1)
      waiting <- readByteArray (fakeSlots f) slot
      if waiting == number && number /= 0
        then do
          sent <- readByteArray (fakeSent f) slot
          writeByteArray (fakeSlots f) slot (0 :: Word32)
          record (fakeTimes f) (now - sent) 1
          counted
          modifyIORef' (fakeTally f) (\t -> t {tallyUnique = tallyUnique t + 1, tallyFlows = tallyFlows t + (if isFlow then 1 else 0)})
        else unless (number == 0xffffffff) (modifyIORef' (fakeTally f) (\t -> t {tallyOthers = tallyOthers t + 1}))
{-# INLINE answerOr #-}

-- | Free the slots of the probes that were sent before the given time. Returns their number.
giveUpBefore :: FakeSwitch -> Int -> IO Int
giveUpBefore f limit = do
  n <- length . filter id <$> mapM look [0 .. shapeOutstanding (fakeShape f) - 1]
  n <$ modifyIORef' (fakeTally f) (\t -> t {tallyLost = tallyLost t + n})
  where
    look :: Int -> IO Bool
    look slot = do
      waiting <- readByteArray (fakeSlots f) slot
      sent <- readByteArray (fakeSent f) slot
      let late = waiting /= (0 :: Word32) && sent <= limit
      late <$ when late (writeByteArray (fakeSlots f) slot (0 :: Word32))

-- | Send at most the given number of probes, as far as slots are free. Their latency counts from the given instant.
-- Returns their number.
probes :: FakeSwitch -> Int -> Int -> IO Int
probes f now most
  | most <= 0 = pure 0
  | otherwise = withForeignPtr (fakeRoom f) $ \room -> B.unsafeUseAsCString (probeTemplate layout) $ \from -> do
    Sent _ _ first <- readIORef (fakeProbes f)
    let go number n
          | n >= min most (shapeOutstanding (fakeShape f)) = pure (number, n)
          | otherwise = do
            let slot = number .&. (shapeOutstanding (fakeShape f) - 1)
            waiting <- readByteArray (fakeSlots f) slot
            if waiting /= (0 :: Word32)
              then -- Answers out of order leave gaps: skip slots that are in use.
                if number - first >= 4 * shapeOutstanding (fakeShape f) then pure (number, n) else go (following number) n
              else do
                let at = room `plusPtr` (n * size)
                copyBytes at (castPtr from) size
                probe f (probeFrame layout) at number
                writeByteArray (fakeSent f) slot (now :: Int)
                writeByteArray (fakeSlots f) slot (fromIntegral number :: Word32)
                go (following number) (n + 1)
    (number, n) <- go first 0
    modifyIORef' (fakeProbes f) (\(Sent sent unsent _) -> Sent (sent + n) unsent number)
    n <$ withMVar (fakeSending f) (\_ -> sendWhole (fakeSocket f) room (n * size))
  where
    layout = fakeLayout f
    size = probeSize layout
    -- Buffer ids have 32 bits; the last one means none.
    following number = if number >= 0xfffffff0 then 1 else number + 1

-- | Write the buffer id, the destination and the source of a probe; both are hosts of this switch. An address consists
-- of a byte 2, the number of the switch in three bytes, and that of the host in two.
probe :: FakeSwitch -> Int -> Ptr Word8 -> Int -> IO ()
probe f frame at number = do
  poke32 4 (fromIntegral number)
  poke32 8 (fromIntegral number)
  -- A host does not send to itself, unless it is the only one.
  mac frame (if other == source then other + 1 else other)
  mac (frame + 6) source
  where
    hosts = shapeHosts (fakeShape f)
    source = number `mod` hosts
    other = (number * 7 + 1 + number `div` hosts) `mod` hosts
    poke32 i n = pokeByteOff at i (byteSwap32 n)
    mac i n = do
      pokeByteOff at i (byteSwap16 (0x0200 + fromIntegral (fakeNumber f `unsafeShiftR` 16) :: Word16))
      pokeByteOff at (i + 2) (byteSwap32 (fromIntegral (fakeNumber f * 0x10000 + n `mod` hosts) :: Word32))

sendWhole :: Socket -> Ptr Word8 -> Int -> IO ()
sendWhole sock p n = unless (n == 0) $ do
  sent <- sendBuf sock p n
  sendWhole sock (p `plusPtr` sent) (n - sent)

word32 :: Int -> ByteString -> Word32
word32 i s = (byte 0 `unsafeShiftL` 24) .|. (byte 1 `unsafeShiftL` 16) .|. (byte 2 `unsafeShiftL` 8) .|. byte 3
  where
    byte k = fromIntegral (B.unsafeIndex s (i + k))
{-# INLINE word32 #-}
