-- |
-- Limits on what peers can make a stack keep, and for how long: memory of packets, TIME-WAIT, parts of out-of-order
-- data, and ports.
module Spec.Bounds (tests) where

import Control.Concurrent (threadDelay)
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as BI
import Data.List (sort)
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eADDRINUSE, eADDRNOTAVAIL, eINVAL)
import Foreign.ForeignPtr (withForeignPtr)
import Foreign.Marshal.Utils (copyBytes, fillBytes)
import Foreign.Ptr (castPtr)
import GHC.Clock (getMonotonicTime)
import GHC.IO.Exception (ioe_errno)
import GHC.Stats
import Lone
import System.IO.Error (tryIOError)
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Test.Tasty.QuickCheck
import Weft.Tcp
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Time (Instant (..))
import Weft.Tcp.Device
import Weft.Tcp.Operation (beginConnect)
import Weft.Tcp.Stack.Input (arriveBatch)
import Weft.Tcp.Stack.SynFilter (admits, newSynFilter)
import Weft.Tcp.Wire.Options (noOptions)
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (Segment, flags), ack, fin, psh, rst, syn)
import qualified Weft.Tcp.Wire.Segment as Segment
import Weft.Test.Skip (skip, testCase)
import Weft.Transport (noDeadline)

tests :: TestTree
tests =
  testGroup
    "bounds"
    [ testCase "a device that reuses its memory does not change received data" reusedMemory,
      testCase "1,000 bytes out of order, each in a packet of 60,000 bytes, keep less than 4 MB" padded,
      testCase "1,000 overlapping segments of 60,000 bytes keep less than 4 MB" trimmed,
      testCase "200,000 segments out of order keep less than 400 kB once the gap is filled" noTrace,
      testProperty "out-of-order data: the number of parts stays within the limit, and the bytes are right" partsBounded,
      testCase "a stack without a buffer is refused" noBuffer,
      testCase "the filter of SYNs takes its 8 MiB, also when a generation ends" filterBounded,
      testCase "TIME-WAIT ends also if nothing arrives any more" silent,
      testCase "TIME-WAIT restarted by a FIN lasts its whole time" finAgain,
      testCase "the TIME-WAIT of a reused port lasts its whole time" usedAgain,
      testCase "removing the oldest TIME-WAIT entry spares a later connection on the same ports" spared,
      testCase "a SYN to a port on which nobody listens is refused and does not end TIME-WAIT" refusedInWait,
      testCase "aborting a connection in TIME-WAIT spares a later connection on the same ports" sparedByAbort,
      testCase "closed connections with unacknowledged data are limited: the oldest is reset" orphansBounded,
      testCase "listening on port 0 when no port is free: EADDRINUSE; a port that becomes free is found" noPortToListen,
      testCase "connecting when no port is free: EADDRNOTAVAIL; a port that becomes free is found" noPortToConnect
    ]

-- Memory ---------------------------------------------------------------------------------

-- | Pass a packet to the stack, in memory that is overwritten afterwards.
inReusedMemory :: Stack -> Incoming -> IO ()
inReusedMemory st p = do
  let packet = incomingPacket p
  memory <- BI.mallocByteString 2000
  withForeignPtr memory $ \to -> B.useAsCStringLen packet (\(from, n) -> copyBytes to (castPtr from) n)
  arriveBatch st [p {incomingPacket = BI.PS memory 0 (B.length packet), ownsMemory = False}]
  withForeignPtr memory (\to -> fillBytes to 0xee 2000)

reusedMemory :: Assertion
reusedMemory = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  sock <- accept l
  let body n = B.pack (take 1000 (cycle [n .. n + 90]))
  -- A segment out of order, one that fills the gap, and one in order.
  inReusedMemory st (bytesAt p 1000 (ack <> psh) (body 2))
  inReusedMemory st (bytesAt p 0 (ack <> psh) (body 1))
  inReusedMemory st (bytesAt p 2000 (ack <> psh) (body 3))
  got <- recv sock noDeadline 10000
  assertBool "other bytes" (got == B.concat (map body [1, 2, 3]))

noBuffer :: Assertion
noBuffer = forM_ [\x -> x {receiveBuffer = 0}, \x -> x {sendBuffer = -1}, \x -> x {initialSegments = 0}] $ \f -> do
  refused <- tryIOError (withLone (\s -> s {stackConfig = f (stackConfig s)}) (\_ _ -> pure ()))
  either ioe_errno (const Nothing) refused @?= Just (let Errno n = eINVAL in n)

-- | A minute with ten SYNs a second, where one is answered in any case.
filterBounded :: Assertion
filterBounded = do
  f <- newSynFilter 1
  before <- liveBytes
  answered <- length . filter id <$> mapM (\n -> admits f (Instant (n * 100000)) (fromIntegral n * 0x9e3779b97f4a7c15)) [0 .. 600]
  kept <- subtract before <$> liveBytes
  assertBool (show (answered, kept)) (answered >= 60 && answered < 80 && kept > 8000000 && kept < 9500000)
  void (admits f (Instant 60100000) 1)

liveBytes :: IO Int
liveBytes = performMajorGC >> fromIntegral . gcdetails_live_bytes . gc <$> getRTSStats

-- | The number of additional live bytes after an action on a connection.
keeping :: (Stack -> Peer -> IO ()) -> IO Int
keeping act = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  sock <- accept l
  _ <- sent
  before <- liveBytes
  act st p
  _ <- sent
  kept <- subtract before <$> liveBytes
  kept <$ abort sock

padded :: Assertion
padded = do
  kept <- keeping $ \st p -> forM_ [1 .. 1000] $ \i -> do
    let one = bytesAt p (2 * i) (ack <> psh) (B.singleton 7)
    arriveBatch st [one {incomingPacket = incomingPacket one <> B.replicate 60000 0}]
  assertBool (show kept) (kept < 4000000)

trimmed :: Assertion
trimmed = do
  kept <- keeping $ \st p -> do
    -- Nearly all bytes of the 1,000 segments have arrived before.
    says st p 1 (ack <> psh) (B.replicate 60000 1)
    forM_ [1 .. 500] $ \i -> says st p (60000 + i) (ack <> psh) (B.replicate 1 2)
    forM_ [1 .. 1000] $ \i -> says st p (1000 + i) (ack <> psh) (B.replicate 60000 3)
  assertBool (show kept) (kept < 4000000)

noTrace :: Assertion
noTrace = do
  kept <- keeping $ \st p -> do
    let go i = when (i < 200000) $ do
          says st p (1 + 7 * (i * 31 `mod` 1999)) (ack <> psh) (B.replicate (1 + fromIntegral (i `mod` 5)) 1)
          go (i + 1)
    go 0
    says st p 0 (ack <> psh) (B.replicate 14100 1)
  assertBool (show kept) (kept < 400000)

partsBounded :: [(Word8, Word8)] -> Property
partsBounded inserts = conjoin (map check states)
  where
    states = scanl (\h (at, n) -> fromMaybe h (hold 5 at (bytes at n) h)) noHeld (map valid inserts)
    valid (at, n) = (fromIntegral at :: Int, 1 + fromIntegral n `mod` 60 :: Int)
    bytes at n = B.pack [fromIntegral i | i <- [at .. at + n - 1]]
    check h = counterexample (show h) (heldParts h <= 5 && heldConsistent h && contentsRight h)
    contentsRight h = and [B.concat (fst (releaseFrom a h)) `startsWith` bytes a (b - a) | Just (a, b) <- map (`heldRange` h) [0 .. 330]]
    startsWith got expected = B.take (B.length expected) got == expected

-- TIME-WAIT --------------------------------------------------------------------------------

-- | Close the connection on the stack's side and then on the peer's, so that it is in TIME-WAIT. The result's
-- sequence number of the stack is that after its FIN.
closedFirst :: Stack -> Listening -> IO [B.ByteString] -> Peer -> IO Peer
closedFirst st l sent p = accept l >>= closeFirst st sent p

closeFirst :: Stack -> IO [B.ByteString] -> Peer -> Socket -> IO Peer
closeFirst st sent p sock = do
  close sock
  out <- mapM (either assertFailure pure . decoded) =<< sent
  assertBool "a FIN" (not (null out))
  let q = p {ourNext = ourNext p + 1}
  says st q 0 (ack <> fin) B.empty
  pure q

-- | Repeat a test until it can be judged: it returns whether its steps followed one another within TIME-WAIT, which
-- lasts a second, and asserts nothing if they did not. On a busy machine they may not.
timely :: IO Bool -> Assertion
timely act = go (30 :: Int)
  where
    go 0 = skip "the machine is too busy"
    go n = act >>= \judged -> unless judged (go (n - 1))

-- | Whether less than a second has passed since that time.
stillWaits :: Double -> IO Bool
stillWaits since = (< since + 0.95) <$> getMonotonicTime

-- | Wait until no connection is left, in a stack to which nothing arrives. They are looked through once a second.
emptied :: Stack -> Assertion
emptied st = go (600 :: Int)
  where
    go n = do
      size <- tableSize st
      if n == 0 then size @?= 0 else unless (size == 0) (threadDelay 100000 >> go (n - 1))

silent :: Assertion
silent = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  _ <- established st sent 4000 1000 >>= closedFirst st l sent
  emptied st

finAgain :: Assertion
finAgain = timely . withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  begun <- getMonotonicTime
  q <- closedFirst st l sent p
  entries <- tableSize st
  threadDelay 700000
  restarted <- getMonotonicTime
  says st q 0 (ack <> fin) B.empty
  inTime <- stillWaits begun
  -- Now TIME-WAIT began 1.1 s ago, and was restarted 0.4 s ago.
  threadDelay 400000
  says st q 500000 ack B.empty
  kept <- tableSize st
  inTime' <- stillWaits restarted
  when (inTime && inTime') $ do
    (entries, kept) @?= (1, 1)
    emptied st
  pure (inTime && inTime')

usedAgain :: Assertion
usedAgain = timely . withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  begun <- getMonotonicTime
  _ <- closedFirst st l sent p
  threadDelay 600000
  q <- established st sent 4000 900000
  inTime <- stillWaits begun
  begunLater <- getMonotonicTime
  _ <- closedFirst st l sent q
  entries <- tableSize st
  threadDelay 600000
  arriveBatch st []
  kept <- tableSize st
  inTime' <- stillWaits begunLater
  when (inTime && inTime') $ do
    (entries, kept) @?= (1, 1)
    emptied st
  pure (inTime && inTime')

spared :: Assertion
spared = withLone (\s -> s {maxTimeWait = 1}) $ \st sent -> do
  l <- listen st Nothing 80
  _ <- established st sent 4000 1000 >>= closedFirst st l sent
  -- The same ports are used again. Another connection is closed too, so the oldest TIME-WAIT entry, that of the first
  -- connection, is removed.
  p <- established st sent 4000 900000
  sock <- accept l
  _ <- established st sent 4001 1000 >>= closedFirst st l sent
  _ <- sent
  says st p 0 (ack <> psh) (B.pack [1, 2, 3])
  connections st >>= (@?= 1) . length
  recv sock noDeadline 10 >>= (@?= B.pack [1, 2, 3])

sparedByAbort :: Assertion
sparedByAbort = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000
  old <- accept l
  _ <- closeFirst st sent p old
  -- The same ports are used again.
  q <- established st sent 4000 900000
  sock <- accept l
  abort old
  connections st >>= (@?= 1) . length
  says st q 0 (ack <> psh) (B.pack [1, 2, 3])
  recv sock noDeadline 10 >>= (@?= B.pack [1, 2, 3])

refusedInWait :: Assertion
refusedInWait = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000 >>= closedFirst st l sent
  closeListening st l
  _ <- sent
  says st p 900000 syn B.empty
  answers <- mapM (either assertFailure pure . decoded) =<< sent
  map flags answers @?= [rst <> ack]
  tableSize st >>= (@?= 1)

-- Orphans ------------------------------------------------------------------------------------

orphansBounded :: Assertion
orphansBounded = withLone (\s -> s {maxOrphans = 2}) $ \st sent -> do
  l <- listen st Nothing 80
  let acknowledging p n w = arriveBatch st [packetFrom addressA (peerPort p) (Segment (peerNext p) (ourNext p + n) ack w 0 noOptions [])]
      -- Send data to a peer with a zero window, and close.
      orphan port = do
        p <- established st sent port 1000
        acknowledging p 0 0
        sock <- accept l
        send sock noDeadline (B.replicate 100 7)
        p <$ close sock
      left = sort . map (remotePort . socketFlow) <$> connections st
      resetPorts = do
        out <- sent
        pure [Segment.destinationPort v | bytes <- out, Right (Packet.Whole w) <- [Packet.decode bytes], Right v <- [Segment.view (Packet.packetBody w)], Segment.has rst (flags (Segment.segment v))]
  peers <- mapM orphan [4000, 4001]
  left >>= (@?= [4000, 4001])
  _ <- orphan 4002
  left >>= (@?= [4001, 4002])
  resetPorts >>= (@?= [4000])
  -- One of them takes all data and the FIN, and may still send: it counts.
  -- A probe of one byte may have been sent before.
  let takesAll p = forM_ [0, 1, 101] (\n -> acknowledging p n 500)
  mapM_ takesAll (drop 1 peers)
  next <- orphan 4003
  left >>= (@?= [4002, 4003])
  resetPorts >>= (@?= [4001])
  -- Another one ends its side, too, and counts no more.
  takesAll next
  arriveBatch st [packetFrom addressA (peerPort next) (Segment (peerNext next) (ourNext next + 101) (fin <> ack) 500 0 noOptions [])]
  _ <- orphan 4004
  left >>= (@?= [4002, 4004])
  resetPorts >>= (@?= [])

-- Ports ------------------------------------------------------------------------------------

isErrno :: Errno -> Either IOError a -> Assertion
isErrno (Errno e) r = either ioe_errno (const Nothing) r @?= Just e

noPortToListen :: Assertion
noPortToListen = withLone id $ \st _ -> do
  ls <- replicateM 32768 (listen st Nothing 0)
  replicateM_ 1000 (tryIOError (listen st Nothing 0) >>= isErrno eADDRINUSE)
  forM_ (take 1 (drop 12345 ls)) (closeListening st)
  _ <- listen st Nothing 0
  tryIOError (listen st Nothing 0) >>= isErrno eADDRINUSE

noPortToConnect :: Assertion
noPortToConnect = withLone id $ \st sent -> do
  socks <- replicateM 16384 (beginConnect st addressA 80)
  replicateM_ 10000 (tryIOError (beginConnect st addressA 80) >>= isErrno eADDRNOTAVAIL)
  -- Ports are counted for each remote port, so another remote port still works.
  _ <- beginConnect st addressA 81
  forM_ (take 1 (drop 12345 socks)) abort
  _ <- beginConnect st addressA 80
  tryIOError (beginConnect st addressA 80) >>= isErrno eADDRNOTAVAIL
  void sent
