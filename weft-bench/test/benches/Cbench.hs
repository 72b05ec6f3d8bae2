-- | @weft-bench cbench@ against fake controllers of known behaviour: some answer twice, some lose answers, one hangs
-- up. The counts of the command are compared with what the controllers did. The controllers handle bytes, without
-- Weft's codec.
module Cbench (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.Aeson (Value (..), decodeStrict)
import qualified Data.Aeson.Key as Key
import qualified Data.Aeson.KeyMap as KeyMap
import Data.Bits (shiftL, shiftR)
import qualified Data.ByteString as B
import Data.IORef
import Data.List (isInfixOf)
import Data.Word (Word8)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Directory (getTemporaryDirectory, removeFile)
import System.Exit (ExitCode (..))
import System.IO (hClose, hGetLine, openTempFile)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Test.Program

tests :: FilePath -> TestTree
tests program =
  testGroup "cbench" $
    concat [map ($ version) [onlyOnce program, unbuffered program, loses program, givesUp program, oneAtATime program, atARate program, inTurn program, echoes program, connecting program, realController program] | version <- [V10, V13]]
      <> [hangsUp program, unfinished program, nobody program, arguments program]

-- Fake controllers --------------------------------------------------------------------------

data Version = V10 | V13
  deriving (Eq)

named :: Version -> String
named v = case v of V10 -> "1.0"; V13 -> "1.3"

byte :: Version -> Word8
byte v = case v of V10 -> 1; V13 -> 4

-- | The bytes with which a controller answers the nth packet of a connection, from 1 on, given its buffer id.
type Behaviour = Int -> B.ByteString -> IO B.ByteString

number :: Int -> B.ByteString -> Int -> Int
number n s at = B.foldl' (\a b -> a * 256 + fromIntegral b) 0 (B.take n (B.drop at s))

word :: Int -> Int -> B.ByteString
word n x = B.pack [fromIntegral (x `shiftR` (8 * i)) | i <- [n - 1, n - 2 .. 0]]

header :: Version -> Word8 -> Int -> B.ByteString -> B.ByteString
header v kind xid body' = B.concat [B.pack [byte v, kind], word 2 (8 + B.length body'), word 4 xid, body']

-- | A FLOW_MOD that matches everything, without actions, for the buffer (1.0.1, 5.3.3; 1.3.5, 7.3.4.1).
flowMod :: Version -> B.ByteString -> B.ByteString
flowMod V10 buffer = header V10 14 9 (B.concat [word 4 0x3fffff, B.replicate 36 0, B.replicate 8 0, word 2 0, word 2 0, word 2 0, word 2 1, buffer, word 2 0xffff, word 2 0])
flowMod V13 buffer = header V13 14 9 (B.concat [B.replicate 16 0, B.pack [0, 0], word 2 0, word 2 0, word 2 1, buffer, word 4 0xffffffff, word 4 0xffffffff, word 2 0, word 2 0, word 2 1, word 2 4, word 4 0])

-- | A PACKET_OUT without actions, for the buffer.
packetOut :: Version -> B.ByteString -> B.ByteString
packetOut V10 buffer = header V10 13 9 (B.concat [buffer, word 2 1, word 2 0])
packetOut V13 buffer = header V13 13 9 (B.concat [buffer, word 4 1, word 2 0, B.replicate 6 0])

-- | A controller that requests the features (and, in 1.3, the ports) and then answers packets with the given function,
-- which gets the packets of a connection that were received together. Returns errors that it found.
withFake :: Version -> B.ByteString -> Behaviour -> (String -> IO a) -> IO (a, [String])
withFake v greeting behaviour act = do
  complaints <- newIORef []
  let complain why = atomicModifyIORef' complaints (\cs -> (why : cs, ()))
  a <- bracket listener close $ \l -> do
    port <- socketPort l
    withThread (forever (accept l >>= \(s, _) -> forkFinally (serve complain s) (const (close s)))) (act ("127.0.0.1:" <> show port))
  (,) a <$> readIORef complaints
  where
    withThread thread = bracket (forkIO thread) killThread . const
    listener = do
      l <- socket AF_INET Stream defaultProtocol
      bind l (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
      l <$ listen l 128
    serve complain s = do
      setSocketOption s NoDelay 1
      sendAll s (header v 0 1 B.empty <> header v 5 2 B.empty <> (if v == V13 then header v 18 3 (word 2 13 <> B.replicate 6 0) else B.empty) <> greeting)
      count' <- newIORef (0 :: Int)
      let go rest = do
            more <- recv s 65536
            unless (B.null more) $ do
              let (whole, left) = messages (rest <> more)
              replies <- mapM (one complain count') whole
              -- In the mode latency, only one packet may be unanswered.
              when (length (filter ((== 10) . (`B.index` 1)) whole) > 1) (complain "more than one packet at a time")
              let reply = B.concat replies
              unless (B.null reply) (sendAll s reply)
              go left
      go B.empty
    messages s
      | B.length s >= 8, n <- number 2 s 2, B.length s >= n = let (ms, rest) = messages (B.drop n s) in (B.take n s : ms, rest)
      | otherwise = ([], s)
    one complain count' m = case B.index m 1 of
      0 -> B.empty <$ unless (B.index m 0 == byte v) (complain "HELLO of another version")
      6 -> B.empty <$ unless (B.length m == (if v == V10 then 32 + 4 * 48 else 32)) (complain "FEATURES_REPLY has another size")
      kind
        | kind == (if v == V10 then 17 else 19) ->
          B.empty <$ unless ((number 2 m 8, B.length m) `elem` (if v == V10 then [(3, 12)] else [(3, 16), (13, 16 + 4 * 64)])) (complain "statistics are of another type or size than those asked for")
      3 -> B.empty <$ unless (B.drop 8 m == B.pack [1, 2, 3, 4, 5]) (complain "ECHO_REPLY has other bytes")
      10 -> do
        n <- atomicModifyIORef' count' (\n -> (n + 1, n + 1))
        let size = if v == V10 then 82 else 106
            frame = B.drop (size - 64) m
        unless (B.length m == size && number 2 m 12 == 64 && number 2 frame 12 == 0x800 && B.take 2 frame == B.pack [2, 0] && B.take 6 frame /= B.take 6 (B.drop 6 frame)) (complain ("a packet of " <> show (B.length m) <> " bytes is not as it should be"))
        when (v == V13 && number 8 m 24 /= (1 `shiftL` 48 + 12 `shiftL` 32 + 0x80000004)) (complain "in 1.3 a packet says where it came in")
        behaviour n (B.take 4 (B.drop 8 m))
      other -> B.empty <$ complain ("a message of type " <> show other)

-- The program -------------------------------------------------------------------------------

-- | Run the command with arguments. Returns its exit status, its output, and its metrics from the JSON.
cbench :: FilePath -> [String] -> IO (ExitCode, String, String -> Double)
cbench program given = bracket temporary removeFile $ \file -> do
  (code, said) <- outcome program [] (["cbench", "--json", file] <> given)
  written <- B.readFile file
  let metrics = decodeStrict written >>= member "runs" >>= first >>= member "metrics"
      metric name = case metrics >>= member name of
        Just (Number x) -> realToFrac x
        Just Null -> 0 / 0
        _ -> error ("no " <> name <> " in " <> show written <> said)
  pure (code, said, metric)
  where
    temporary = do
      folder <- getTemporaryDirectory
      (file, h) <- openTempFile folder "cbench.json"
      file <$ hClose h
    member name v = case v of
      Object o -> KeyMap.lookup (Key.fromString name) o
      _ -> Nothing
    first v = case v of
      Array a -> foldr (\x _ -> Just x) Nothing a
      _ -> Nothing

-- | Arguments for a second of measuring without a warm-up.
run :: FilePath -> Version -> String -> [String] -> IO (ExitCode, String, String -> Double)
run = runFor 1

runFor :: Int -> FilePath -> Version -> String -> [String] -> IO (ExitCode, String, String -> Double)
runFor seconds program v address more = cbench program (["--openflow", named v, "--controller", address, "--warmup", "0", "--seconds", show seconds] <> more)

case' :: Version -> String -> Assertion -> TestTree
case' v name = testCase (named v <> ": " <> name)

-- | The errors without the one that only 'oneAtATime' is about.
besides :: [String] -> [String]
besides = filter (/= "more than one packet at a time")

-- | The controller answers without naming the packet's buffer. No latency is not one of zero.
unbuffered :: FilePath -> Version -> TestTree
unbuffered program v = case' v "no packet is answered" $ do
  ((code, said, metric), _) <- withFake v B.empty (\_ _ -> pure (packetOut v (word 4 0xffffffff))) $ \address -> run program v address ["--switches", "3"]
  assertEqual said ExitSuccess code
  metric "total_unique_count" @?= 0
  metric "other_answers_count" @?= 0
  assertBool said (all (isNaN . metric) ["p50_us", "p95_us", "p99_us", "max_us"] && "no packet was answered" `isInfixOf` said && not ("NaN" `isInfixOf` said))

-- | The first 500 packets of each switch are answered three times and once for a buffer that was not asked about. The
-- rest are not answered. FLOW_MOD and PACKET_OUT take turns.
onlyOnce :: FilePath -> Version -> TestTree
onlyOnce program v = case' v "an answer counts once" $ do
  ((code, said, metric), complaints) <- withFake v B.empty behaviour $ \address -> runFor 3 program v address ["--switches", "3", "--outstanding", "32"]
  besides complaints @?= []
  assertEqual said ExitSuccess code
  metric "total_unique_count" @?= 1500
  metric "other_answers_count" @?= 3 * 3 * 500
  metric "open_count" @?= 3 * 32
  metric "lost_count" @?= 0
  metric "errors_count" @?= 0
  where
    behaviour n buffer
      | n > 500 = pure B.empty
      | odd n = pure (B.concat [packetOut v buffer, packetOut v buffer, flowMod v buffer, packetOut v (word 4 0x70000000)])
      | otherwise = pure (B.concat [flowMod v buffer, flowMod v buffer, packetOut v buffer, flowMod v (word 4 0x70000000)])

-- | Every fourth packet is not answered. The 64th packet is the sixteenth unanswered one, and no more may be sent.
loses :: FilePath -> Version -> TestTree
loses program v = case' v "packets that are never answered stay open" $ do
  ((code, said, metric), complaints) <- withFake v B.empty behaviour $ \address -> run program v address ["--switches", "2", "--outstanding", "16"]
  besides complaints @?= []
  assertEqual said ExitSuccess code
  metric "total_unique_count" @?= 2 * 48
  metric "open_count" @?= 2 * 16
  metric "lost_count" @?= 0
  where
    behaviour n buffer = pure (if n `mod` 4 == 0 then B.empty else packetOut v buffer)

-- | With @--give-up@ further packets are sent all the same. After 400 packets no packet is answered.
givesUp :: FilePath -> Version -> TestTree
givesUp program v = case' v "--give-up: others take the places of lost packets" $ do
  answered' <- newIORef (0 :: Int)
  let behaviour n buffer
        | n `mod` 4 == 0 || n > 400 = pure B.empty
        | otherwise = packetOut v buffer <$ atomicModifyIORef' answered' (\k -> (k + 1, ()))
  ((code, said, metric), complaints) <- withFake v B.empty behaviour $ \address -> runFor 3 program v address ["--switches", "2", "--outstanding", "16", "--give-up", "0.02"]
  besides complaints @?= []
  assertEqual said ExitSuccess code
  sent <- readIORef answered'
  -- More than without giving up. A late answer counts among the other answers.
  assertBool (show (sent, said)) (sent > 2 * 48)
  metric "total_unique_count" + metric "other_answers_count" @?= fromIntegral sent
  assertBool said (metric "lost_count" > 32)

-- | Answers take 2 ms, so the median is at least that.
oneAtATime :: FilePath -> Version -> TestTree
oneAtATime program v = case' v "--mode latency: one packet at a time" $ do
  ((code, said, metric), complaints) <- withFake v B.empty behaviour $ \address -> run program v address ["--switches", "2", "--mode", "latency"]
  complaints @?= []
  assertEqual said ExitSuccess code
  -- A bucket of the histogram is an eighth of a power of two.
  assertBool said (metric "p50_us" >= 2000 * 0.87 && metric "p50_us" <= metric "p95_us" && metric "p95_us" <= metric "p99_us")
  assertBool said (metric "unique_count" > 1 && metric "unique_count" <= 2 * 1000 * metric "wall_s" / 2 + 2)
  where
    behaviour _ buffer = flowMod v buffer <$ threadDelay 2000

-- | The rate of 1,000 packets a second is not exceeded. If a controller answers nothing, packets are sent until the
-- largest number of unanswered packets is reached, and the rest counts as unsent.
atARate :: FilePath -> Version -> TestTree
atARate program v = case' v "--rate bounds the packets a second" $ do
  count' <- newIORef (0 :: Int)
  let behaviour n buffer = packetOut v buffer <$ (n `seq` atomicModifyIORef' count' (\k -> (k + 1, ())))
  ((code, said, metric), complaints) <- withFake v B.empty behaviour $ \address -> runFor 2 program v address ["--switches", "4", "--rate", "1000"]
  besides complaints @?= []
  assertEqual said ExitSuccess code
  sent <- readIORef count'
  assertBool (show sent <> said) (sent > 0 && fromIntegral sent >= metric "total_unique_count" && metric "unique_count" <= 1000 * metric "wall_s" + 40)
  metric "unsent_count" @?= 0
  ((_, said', metric'), _) <- withFake v B.empty (\_ _ -> pure B.empty) $ \address -> run program v address ["--switches", "2", "--rate", "2000", "--outstanding", "8"]
  (metric' "total_unique_count", metric' "open_count") @?= (0, 16)
  assertBool said' (metric' "unsent_count" > 0)

-- | At five packets a second each of 100 switches sends its first one before any sends its second one, and the first of
-- all is sent at the beginning.
inTurn :: FilePath -> Version -> TestTree
inTurn program v = case' v "--rate: the switches take turns" $ do
  most <- newIORef (0 :: Int)
  count' <- newIORef (0 :: Int)
  let behaviour n buffer = packetOut v buffer <$ (atomicModifyIORef' most (\k -> (max k n, ())) >> atomicModifyIORef' count' (\k -> (k + 1, ())))
  ((code, said, _), complaints) <- withFake v B.empty behaviour $ \address -> runFor 3 program v address ["--switches", "100", "--rate", "5"]
  complaints @?= []
  assertEqual said ExitSuccess code
  sent <- readIORef count'
  assertBool (show sent <> said) (sent > 0 && sent < 100)
  readIORef most >>= (@?= 1)

-- | Twenty echo requests with data, which are sent together with the handshake.
echoes :: FilePath -> Version -> TestTree
echoes program v = case' v "--mode idle: echoes are answered, no packets are sent" $ do
  let echo = header v 2 77 (B.pack [1, 2, 3, 4, 5])
      -- Requests for the tables, of which the switch has nothing to say.
      tables = if v == V10 then header v 16 4 (word 2 3 <> word 2 0) else header v 18 4 (word 2 3 <> B.replicate 6 0)
  ((code, said, metric), complaints) <- withFake v (B.concat (tables : replicate 20 echo)) (\_ _ -> fail "a packet") $ \address -> run program v address ["--switches", "5", "--mode", "idle"]
  complaints @?= []
  assertEqual said ExitSuccess code
  metric "echoes_count" @?= 100
  metric "lost_switches_count" @?= 0

-- | A controller that greets the second switch only when the first one has answered an echo request. Real ones
-- disconnect a switch that does not answer for some seconds, and many switches take longer to connect.
connecting :: FilePath -> Version -> TestTree
connecting program v = case' v "a connected switch answers echoes while others connect" $ do
  answered' <- newEmptyMVar
  (code, said, metric) <- bracket listener close $ \l -> do
    port <- socketPort l
    bracket (forkIO (controls answered' l)) killThread . const $ run program v ("127.0.0.1:" <> show port) ["--switches", "2", "--outstanding", "1"]
  tryTakeMVar answered' >>= (@?= Just True)
  assertEqual said ExitSuccess code
  metric "lost_switches_count" @?= 0
  where
    listener = do
      l <- socket AF_INET Stream defaultProtocol
      bind l (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
      l <$ listen l 128
    controls answered' l = do
      (one, _) <- accept l
      greet one
      until' 6 one
      sendAll one (header v 2 77 (B.pack [1, 2, 3, 4, 5]))
      -- Without the limit a command that does not answer would hang.
      found <- timeout 20000000 (until' 3 one)
      putMVar answered' (found == Just ())
      (two, _) <- accept l
      greet two
      -- A socket that is not used any more would be closed by the garbage collector.
      forever (threadDelay 100000 >> mapM_ getPeerName [one, two])
    greet s = sendAll s (header v 0 1 B.empty <> header v 5 2 B.empty)
    -- Receive until a message of that type comes. The messages before it are complete, and small.
    until' :: Word8 -> Socket -> IO ()
    until' kind s = recv s 65536 >>= \bytes -> unless (kind `elem` kinds bytes || B.null bytes) (until' kind s)
    kinds s
      | B.length s >= 8, n <- number 2 s 2, n >= 8 = B.index s 1 : kinds (B.drop n s)
      | otherwise = []

-- | @weft-bench cbench@ against @weft controller@.
realController :: FilePath -> Version -> TestTree
realController program v = case' v "weft controller answers without an error" $
  weft (program `beside` "weft") [] ["controller", "--listen", "127.0.0.1:0", "--quiet"] $ \p -> do
    line <- hGetLine (output p)
    (code, said, metric) <- run program v (last (words line)) ["--switches", "5", "--outstanding", "64"]
    assertEqual said ExitSuccess code
    assertBool said (metric "total_unique_count" > 1000)
    (metric "errors_count", metric "other_answers_count", metric "lost_switches_count") @?= (0, 0, 0)
    assertBool said (metric "open_count" <= 5 * 64)

-- Failing -----------------------------------------------------------------------------------

hangsUp :: FilePath -> TestTree
hangsUp program = testCase "a controller that hangs up" $ do
  ((code, said, metric), _) <- withFake V10 B.empty (\n buffer -> if n > 20 then fail "enough" else pure (packetOut V10 buffer)) $ \address -> run program V10 address ["--switches", "2", "--outstanding", "1"]
  assertEqual said (ExitFailure 1) code
  (metric "lost_switches_count", metric "total_unique_count") @?= (2, 40)

-- | ERROR, HELLO_FAILED, of version 1.4; and a controller that says nothing.
unfinished :: FilePath -> TestTree
unfinished program =
  testGroup "a controller that does not finish the handshake" $
    [ testCase name . answering reply $ \address -> do
        (code, said) <- outcome program [] ["cbench", "--controller", address, "--switches", "1", "--seconds", "1"]
        (code, why `isInfixOf` said) @?= (ExitFailure 1, True)
      | (name, reply, why) <-
          [ ("it refuses the version", B.pack [5, 1, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0], "HELLO_FAILED"),
            ("it is silent", B.empty, "within ten seconds")
          ]
    ]
  where
    answering reply act = bracket (socket AF_INET Stream defaultProtocol) close $ \l -> do
      bind l (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
      listen l 1
      port <- socketPort l
      bracket (forkIO (accept l >>= \(s, _) -> sendAll s reply >> threadDelay 60000000 >> close s)) killThread (\_ -> act ("127.0.0.1:" <> show port))

nobody :: FilePath -> TestTree
nobody program = testCase "a port without a controller" $ do
  port <- bracket (socket AF_INET Stream defaultProtocol) close $ \s -> bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))) >> socketPort s
  (code, said) <- outcome program [] ["cbench", "--controller", "127.0.0.1:" <> show port]
  (code, "refused" `isInfixOf` said) @?= (ExitFailure 1, True)

arguments :: FilePath -> TestTree
arguments program = testCase "arguments: the help lists them, and wrong values are refused" $ do
  (code, help) <- outcome program [] ["cbench", "--help"]
  code @?= ExitSuccess
  forM_ ["--openflow", "--rate", "--give-up", "--outstanding", "--mode"] $ \name -> assertBool (name <> " is not in the help") (name `isInfixOf` help)
  forM_ [["--openflow", "1.1"], ["--outstanding", "100"], ["--mode", "fast"], ["--switches", "0"], ["--rate", "0"], ["--seconds", "-1"], ["--seconds", "0"], ["--controller", "6653"], ["--controller", "127.0.0.1:92187"], ["--controller", "127.0.0.1:0"], ["--mode", "latency", "--rate", "5"], ["--mode", "idle", "--rate", "5"], ["--json", "/nonexistent/x"]] $ \bad -> do
    (refused, _) <- outcome program [] ("cbench" : bad)
    assertEqual (unwords bad) (ExitFailure 2) refused
