-- |
-- Description : A switch that only asks
--
-- One fake switch of OpenFlow 1.0: it answers what a controller asks, sends PACKET_INs, and counts the answers to them.
-- A probe is a PACKET_IN of 82 bytes with a buffer id of its own; its first FLOW_MOD or PACKET_OUT is its answer.
module Weft.Tools.Cbench.FakeSwitch
  ( FakeSwitch,
    Shape (..),
    Tally (..),
    newFakeSwitch,
    handshake,
    ask,
    answerOnly,
    tally,
    restart,
    latencies,
  )
where

import Control.Concurrent (yield)
import Control.Exception (Exception, throwIO)
import Control.Monad (unless, when)
import Control.Monad.Primitive (RealWorld)
import Data.Bits (unsafeShiftL, (.&.), (.|.))
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
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Socket (Socket)
import Weft.Socket.ByteString (recv, sendAll, sendBuf)
import Weft.Tools.Cbench.Histogram

-- | What all switches have in common.
data Shape = Shape
  { -- | Hosts of a switch.
    shapeHosts :: !Int,
    -- | Probes without an answer, at the most; a power of two.
    shapeOutstanding :: !Int
  }

-- | What a switch has counted. Written by its thread.
data Tally = Tally
  { -- | First answers to a probe.
    tallyUnique :: !Int,
    -- | FLOW_MODs among them.
    tallyFlows :: !Int,
    -- | Answers to a probe that had one, or to none.
    tallyOthers :: !Int,
    -- | Probes sent.
    tallyProbes :: !Int,
    -- | ECHO_REQUESTs answered.
    tallyEchoes :: !Int,
    -- | ERRORs received.
    tallyErrors :: !Int
  }

-- | A switch. Of one thread, but for 'tally' and 'restart', which may read a moment too early or lose one batch.
data FakeSwitch = FakeSwitch
  { fakeNumber :: !Int,
    fakeShape :: !Shape,
    fakeSocket :: !Socket,
    fakeTally :: !(IORef Tally),
    fakeTimes :: !Histogram,
    -- | By slot: the probe without an answer, or 0; and when it was sent.
    fakeSlots :: !(MutableByteArray RealWorld),
    fakeSent :: !(MutableByteArray RealWorld),
    -- | Probes are made here.
    fakeRoom :: !(ForeignPtr Word8)
  }

-- | The connection ended, or was no OpenFlow.
newtype Unanswered = Unanswered String
  deriving (Show)

instance Exception Unanswered

-- | Of that number, from 1 on, on a connection.
newFakeSwitch :: Shape -> Int -> Socket -> IO FakeSwitch
newFakeSwitch shape n sock = do
  slots <- newByteArray (4 * shapeOutstanding shape)
  setByteArray slots 0 (shapeOutstanding shape) (0 :: Word32)
  sent <- newByteArray (8 * shapeOutstanding shape)
  FakeSwitch n shape sock <$> newIORef (Tally 0 0 0 0 0 0) <*> newHistogram <*> pure slots <*> pure sent
    <*> mallocForeignPtrBytes (probeSize * shapeOutstanding shape)

-- | What was counted since the start.
tally :: FakeSwitch -> IO Tally
tally = readIORef . fakeTally

-- | Forget the times so far.
restart :: FakeSwitch -> IO ()
restart = clear . fakeTimes

-- | Nanoseconds from a probe to its answer.
latencies :: FakeSwitch -> Histogram
latencies = fakeTimes

-- Messages --------------------------------------------------------------------------------

-- | HELLO, and answers until the controller knows what this is; what was received behind that.
handshake :: FakeSwitch -> IO ByteString
handshake f = do
  sendAll (fakeSocket f) (bytesOf 1 (Hello []))
  known <- newIORef False
  let go s = do
        rest <- messages f (onMessage f known) s
        done <- readIORef known
        if done then pure rest else receive f rest >>= go
  go B.empty

-- | Behind what is left, what comes.
receive :: FakeSwitch -> ByteString -> IO ByteString
receive f rest = do
  s <- recv (fakeSocket f) 65536
  when (B.null s) (throwIO (Unanswered "the controller closed the connection"))
  pure (if B.null rest then s else rest <> s)

-- | Each whole message; what is left.
messages :: FakeSwitch -> (Header -> ByteString -> IO ()) -> ByteString -> IO ByteString
messages _ act = go
  where
    go s = case nextMessage s of
      Whole h message rest -> act h message >> go rest
      Missing _ -> pure s
      Unframed _ -> throwIO (Unanswered "a length below that of a header")
{-# INLINE messages #-}

bytesOf :: Xid -> Message -> ByteString
bytesOf xid = fromMaybe B.empty . encode V10 xid

-- | Everything but answers to probes.
onMessage :: FakeSwitch -> IORef Bool -> Header -> ByteString -> IO ()
onMessage f known h s = case decode s of
  Right (_, message) -> case message of
    FeaturesRequest -> reply (FeaturesReply features) >> writeIORef known True
    GetConfigRequest -> reply (GetConfigReply (SwitchConfig 0 128))
    EchoRequest payload -> reply (EchoReply payload) >> modifyIORef' (fakeTally f) (\t -> t {tallyEchoes = tallyEchoes t + 1})
    BarrierRequest -> reply BarrierReply
    StatsRequestMessage DescRequest -> reply (StatsReplyMessage False (DescReply description))
    StatsRequestMessage _ -> reply (StatsReplyMessage False (PortStatsReply []))
    Experimenter _ _ -> reply (Error 1 3 (B.take 64 s))
    Error {} -> modifyIORef' (fakeTally f) (\t -> t {tallyErrors = tallyErrors t + 1})
    _ -> pure ()
  -- A HELLO of a later version, and what is not known.
  Left _ -> pure ()
  where
    reply = sendAll (fakeSocket f) . bytesOf (headerXid h)
    features = Features (DatapathId (fromIntegral (fakeNumber f))) 256 2 0 0xc7 0xfff [port n | n <- [1 .. 4]]
    port :: Word32 -> Port
    port n = Port (PortNo n) (MacAddress (0x020000000000 + fromIntegral (fakeNumber f) * 16 + fromIntegral n)) (toShort (BC.pack ("port" <> show n))) 0 0 (0xc0, 0, 0, 0) (0, 0)
    description = Description (BC.pack "weft") (BC.pack "cbench") (BC.pack "cbench") B.empty B.empty

-- | Answer what the controller asks, for ever.
answerOnly :: FakeSwitch -> ByteString -> IO ()
answerOnly f s = do
  known <- newIORef True
  let go rest = messages f (onMessage f known) rest >>= receive f >>= go
  go s

-- Probes ----------------------------------------------------------------------------------

probeSize :: Int
probeSize = 82

-- | A PACKET_IN with a frame of 64 bytes: an IPv4 packet in port 1.
template :: ByteString
template = bytesOf 0 (PacketInMessage (PacketIn noBuffer 64 (PortNo 1) reasonNoMatch 0 0 [] frame))
  where
    frame = B.take 64 (B.replicate 12 0 <> B.pack ([8, 0, 0x45, 0, 0, 50, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2] ++ replicate 64 0))

-- | Keep as many probes without an answer as there may be, for ever.
ask :: FakeSwitch -> ByteString -> IO ()
ask f s0 = do
  known <- newIORef True
  open <- newIORef (0 :: Int)
  next <- newIORef (1 :: Int)
  let refill = do
        n <- readIORef open
        first <- readIORef next
        taken <- probes f first (shapeOutstanding (fakeShape f) - n)
        writeIORef open (n + snd taken)
        writeIORef next (fst taken)
      go rest = do
        now <- fromIntegral <$> getMonotonicTimeNSec
        left <- messages f (answerOr known open now) rest
        refill
        -- All switches have the same share of this program.
        yield
        receive f left >>= go
  refill
  go s0
  where
    answerOr known open now h s
      | headerType h == 14 && B.length s >= 72 = answered open now True (word32 64 s)
      | headerType h == 13 && B.length s >= 16 = answered open now False (word32 8 s)
      | otherwise = onMessage f known h s
    answered open now isFlow number = do
      let slot = fromIntegral number .&. (shapeOutstanding (fakeShape f) - 1)
      waiting <- readByteArray (fakeSlots f) slot
      if waiting == number && number /= 0
        then do
          writeByteArray (fakeSlots f) slot (0 :: Word32)
          sent <- readByteArray (fakeSent f) slot
          record (fakeTimes f) (now - sent) 1
          modifyIORef' open (subtract 1)
          modifyIORef' (fakeTally f) (\t -> t {tallyUnique = tallyUnique t + 1, tallyFlows = tallyFlows t + (if isFlow then 1 else 0)})
        else unless (number == 0xffffffff) (modifyIORef' (fakeTally f) (\t -> t {tallyOthers = tallyOthers t + 1}))

-- | Send up to that many probes from a number on, each whose slot is free; the next number, and how many were sent.
probes :: FakeSwitch -> Int -> Int -> IO (Int, Int)
probes f first most
  | most <= 0 = pure (first, 0)
  | otherwise = withForeignPtr (fakeRoom f) $ \room -> B.unsafeUseAsCString template $ \from -> do
    now <- fromIntegral <$> getMonotonicTimeNSec
    let go number n
          | n >= most = pure (number, n)
          | otherwise = do
            let slot = number .&. (shapeOutstanding (fakeShape f) - 1)
            waiting <- readByteArray (fakeSlots f) slot
            if waiting /= (0 :: Word32)
              then -- An answer out of order left gaps: pass over what still waits.
                if number - first >= 4 * shapeOutstanding (fakeShape f) then pure (number, n) else go (following number) n
              else do
                let at = room `plusPtr` (n * probeSize)
                copyBytes at (castPtr from) probeSize
                probe f at number
                writeByteArray (fakeSlots f) slot (fromIntegral number :: Word32)
                writeByteArray (fakeSent f) slot (now :: Int)
                go (following number) (n + 1)
    (number, n) <- go first 0
    sendWhole (fakeSocket f) room (n * probeSize)
    modifyIORef' (fakeTally f) (\t -> t {tallyProbes = tallyProbes t + n})
    pure (number, n)
  where
    -- Buffer ids have 32 bits; the last one means none.
    following number = if number >= 0xfffffff0 then 1 else number + 1

-- | The buffer, the source and the destination of a probe; both are hosts of this switch.
probe :: FakeSwitch -> Ptr Word8 -> Int -> IO ()
probe f at number = do
  poke32 4 (fromIntegral number)
  poke32 8 (fromIntegral number)
  mac 18 (number * 7 + 1 + number `div` hosts)
  mac 24 number
  where
    hosts = shapeHosts (fakeShape f)
    poke32 i n = pokeByteOff at i (byteSwap32 n)
    mac i n = do
      pokeByteOff at i (byteSwap16 (0x0200 :: Word16))
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
