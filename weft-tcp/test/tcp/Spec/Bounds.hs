-- |
-- What peers can make a stack keep, and for how long: memory of packets, TIME-WAIT, parts of out-of-order data,
-- ports.
module Spec.Bounds (tests) where

import Control.Concurrent (threadDelay)
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as BI
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eADDRINUSE, eADDRNOTAVAIL)
import Foreign.ForeignPtr (withForeignPtr)
import Foreign.Marshal.Utils (copyBytes, fillBytes)
import Foreign.Ptr (castPtr)
import GHC.IO.Exception (ioe_errno)
import GHC.Stats
import Lone
import System.IO.Error (tryIOError)
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Tcp
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Device
import Weft.Tcp.Operation (beginConnect)
import Weft.Tcp.Stack.Input (arriveBatch)
import Weft.Tcp.Wire.Segment (ack, fin, psh)
import Weft.Transport (noDeadline)

tests :: TestTree
tests =
  testGroup
    "bounds"
    [ testCase "a device that uses its memory again: what was received stays" reusedMemory,
      testCase "1,000 bytes out of order in packets of 60,000 keep less than 4 MB" padded,
      testCase "one byte of use in segments of 60,000, a thousand times, keeps less than 4 MB" trimmed,
      testCase "200,000 segments out of order leave no trace once the gap is filled" noTrace,
      testProperty "out-of-order data: never more parts than the limit, and what is held is right" partsBounded,
      testCase "TIME-WAIT begun again by a FIN lasts its whole time" finAgain,
      testCase "the TIME-WAIT of a port used again lasts its whole time" usedAgain,
      testCase "forgetting the oldest TIME-WAIT spares a connection on the same ports" spared,
      testCase "port 0 when every port is listened on: EADDRINUSE, and one that is closed is found" noPortToListen,
      testCase "connecting when every port is in use: EADDRNOTAVAIL, and one that is closed is found" noPortToConnect
    ]

-- Memory ---------------------------------------------------------------------------------

-- | The packet in memory that is overwritten after the stack has had it.
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
  -- Out of order, in order, and what closes the gap.
  inReusedMemory st (bytesAt p 1000 (ack <> psh) (body 2))
  inReusedMemory st (bytesAt p 0 (ack <> psh) (body 1))
  inReusedMemory st (bytesAt p 2000 (ack <> psh) (body 3))
  got <- recv sock noDeadline 10000
  assertBool "other bytes" (got == B.concat (map body [1, 2, 3]))

liveBytes :: IO Int
liveBytes = performMajorGC >> fromIntegral . gcdetails_live_bytes . gc <$> getRTSStats

-- | How much more is kept after an action, which is given a connection.
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
    -- Everything but one byte of each segment is there already.
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

-- | Close it from here, and let the peer close too: TIME-WAIT. What the peer then says next is behind its FIN.
closedFirst :: Stack -> Listening -> IO [B.ByteString] -> Peer -> IO Peer
closedFirst st l sent p = do
  sock <- accept l
  close sock
  out <- mapM (either assertFailure pure . decoded) =<< sent
  assertBool "a FIN" (not (null out))
  let q = p {ourNext = ourNext p + 1}
  says st q 0 (ack <> fin) B.empty
  pure q

finAgain :: Assertion
finAgain = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  p <- established st sent 4000 1000 >>= closedFirst st l sent
  tableSize st >>= (@?= 1)
  threadDelay 700000
  says st p 0 (ack <> fin) B.empty
  -- 1.1 s after the beginning, 0.4 s after it began again.
  threadDelay 400000
  says st p 500000 ack B.empty
  tableSize st >>= (@?= 1)
  threadDelay 800000
  arriveBatch st []
  tableSize st >>= (@?= 0)

usedAgain :: Assertion
usedAgain = withLone id $ \st sent -> do
  l <- listen st Nothing 80
  _ <- established st sent 4000 1000 >>= closedFirst st l sent
  threadDelay 600000
  _ <- established st sent 4000 900000 >>= closedFirst st l sent
  tableSize st >>= (@?= 1)
  threadDelay 600000
  arriveBatch st []
  tableSize st >>= (@?= 1)
  threadDelay 600000
  arriveBatch st []
  tableSize st >>= (@?= 0)

spared :: Assertion
spared = withLone (\s -> s {maxTimeWait = 1}) $ \st sent -> do
  l <- listen st Nothing 80
  _ <- established st sent 4000 1000 >>= closedFirst st l sent
  -- The port is used again, and the second connection closed: the oldest entry, the first one's, goes.
  p <- established st sent 4000 900000
  sock <- accept l
  _ <- established st sent 4001 1000 >>= closedFirst st l sent
  _ <- sent
  says st p 0 (ack <> psh) (B.pack [1, 2, 3])
  connections st >>= (@?= 1) . length
  recv sock noDeadline 10 >>= (@?= B.pack [1, 2, 3])

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
  -- Another port of the peer is another matter.
  _ <- beginConnect st addressA 81
  forM_ (take 1 (drop 12345 socks)) abort
  _ <- beginConnect st addressA 80
  tryIOError (beginConnect st addressA 80) >>= isErrno eADDRNOTAVAIL
  void sent
