{-# LANGUAGE BangPatterns #-}

-- |
-- Description : A TCP/IP stack in the program
--
-- @DEVICE ADDRESS offload|plain@: on a TUN device, echo on port 7, a sink on 9 and a source on 19 (@N@ and a newline
-- are answered by N bytes). @idle N@: what each of N established connections that do nothing takes, from a peer in
-- the program, as JSON. @receive N@: N segments of 1,448 bytes from a peer in the program, 32 at a time; @send N@: N
-- segments to it; @rr CONNECTIONS N@: N rounds of 64 bytes that are echoed on each connection. These print the bytes
-- allocated for each; instructions are counted by callgrind. @tails N@: how many of N bursts whose last segments were
-- lost had to wait for a timeout, in simulated time, as JSON.
module Main (main) where

import Control.Concurrent
import Control.Exception (SomeException, finally, try)
import Control.Monad
import Data.Bits (shiftR)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.Map.Strict as Map
import Data.Word (Word16, Word32, Word64)
import GHC.Stats
import System.CPUTime (getCPUTime)
import System.Environment (getArgs)
import System.Mem (performMajorGC)
import Weft.Tcp
import Weft.Tcp.Core (Action (..), Conn, Env (..), Event (..), Instant (..), Opening (..), Phase (AfterTimeout), never, nextTimer, open, passiveOpen, step, summary)
import Weft.Tcp.Device
import Weft.Tcp.Device.Tun
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (..))
import qualified Weft.Tcp.Wire.Segment as Segment
import Weft.Transport (noDeadline)

main :: IO ()
main = do
  args <- getArgs
  case args of
    ["idle", n] -> idle (read n)
    ["tails", n] -> tails (read n)
    ["receive", n] -> receive (read n)
    ["send", n] -> sendAway (read n)
    ["rr", m, n] -> requests (read m) (read n)
    [name, text, offload] | Just address <- parseAddress text -> serve name address (offload == "offload")
    _ -> fail "DEVICE ADDRESS offload|plain, or: idle N, tails N, receive N, send N, rr CONNECTIONS N"

-- Serving ----------------------------------------------------------------------------------

serve :: String -> Address -> Bool -> IO ()
serve name address offload = do
  device <- openTun (TunSettings name offload 1)
  withStack (defaultSettings [address]) device $ \st -> do
    forM_ [(9, sink), (19, source), (7, echo), (11, live)] $ \(port, answer) -> do
      l <- listen st Nothing port
      forkIO . forever $ do
        c <- accept l
        forkIO (void (try (answer c) :: IO (Either SomeException ())) `finally` close c)
    forever (threadDelay 1000000000)

sink, source, echo, live :: Socket -> IO ()
sink c = go (0 :: Int)
  where
    go n = do
      b <- recvMany c noDeadline 1048576
      -- Evaluated, so that the strings are not kept for their lengths.
      let !m = n + sum (map B.length b)
      if null b then send c noDeadline (C.pack (show n)) else go m
source c = do
  line <- recv c noDeadline 100
  forM_ (C.readInt line) $ \(n, _) -> go n
  where
    block = B.replicate 262144 65
    go n = when (n > 0) $ send c noDeadline (B.take n block) >> go (n - B.length block)
echo c = do
  setChoices c (\o -> o {useNagle = False})
  let go = recv c noDeadline 65536 >>= \b -> unless (B.null b) (send c noDeadline b >> go)
  go
-- The bytes that are alive, after a major collection.
live c = liveBytes >>= send c noDeadline . C.pack . (++ "\n") . show

-- Idle connections -------------------------------------------------------------------------

-- | A device whose other end is a peer that opens connections, 500 at a time.
idle :: Int -> IO ()
idle n = do
  inbox <- newEmptyMVar
  outbox <- newChan
  let device = Device "simulated" 1500 False [Queue (takeMVar inbox) (\_ parts -> writeChan outbox (B.concat parts))] (pure ())
      everything = Policy "all" (\_ _ -> Remember) Nothing
  withStack (defaultSettings [ours]) {stackPolicy = everything} device $ \st -> do
    l <- listen st Nothing 80
    before <- liveBytes
    socks <- forM [s : takeWhile (<= n) [s + 1 .. s + 499] | s <- [1, 501 .. n]] $ \numbers -> do
      putMVar inbox [packet i (Segment 1000 0 Segment.syn 65535 0 (stamped (Options (Just 1460) (Just 7) True Nothing [])) []) | i <- numbers]
      answers <- answersOf outbox (Map.fromList [(i, ()) | i <- numbers])
      putMVar inbox [packet i (Segment 1001 (isn + 1) Segment.ack 500 0 (stamped noOptions) []) | (i, isn) <- answers]
      replicateM (length numbers) (accept l)
    after' <- liveBytes
    size <- tableSize st
    -- What timers cost while nothing happens.
    cpu <- getCPUTime
    threadDelay 3000000
    cpu' <- getCPUTime
    stats <- getRTSStats
    putStrLn . concat $
      [ "{\"connections\": " ++ show size,
        ", \"live_bytes_per_idle\": " ++ show ((after' - before) `div` n),
        ", \"idle_core_ratio\": " ++ show (fromIntegral (cpu' - cpu) / 3e12 :: Double),
        ", \"max_rss_mb\": " ++ show (fromIntegral (max_mem_in_use_bytes stats) / 1e6 :: Double),
        "}"
      ]
    -- They are held until here.
    forM_ (concat socks) (`seq` pure ())
  where
    ours = V4 0x0a000002
    -- One for each number: what is sent twice, as the machine was busy for a second, counts once.
    answersOf outbox missing
      | Map.null missing = pure []
      | otherwise = do
        answer <- numberOf <$> readChan outbox
        case answer of
          Just (i, isn) | Map.member i missing -> ((i, isn) :) <$> answersOf outbox (Map.delete i missing)
          _ -> answersOf outbox missing
    stamped o = o {timestamps = Just (Timestamps 7 0)}
    packet i s = Incoming (Packet.encode (Packet.Packet (sourceOf i) ours 6 (Segment.encode (sourceOf i) ours (portOf i) 80 s))) True True
    sourceOf i = V4 (0x0b000000 + fromIntegral (i `div` 50000))
    portOf i = fromIntegral (1024 + i `mod` 50000)
    numberOf :: B.ByteString -> Maybe (Int, Word32)
    numberOf bytes = case Packet.decode bytes of
      Right (Packet.Whole p)
        | Right v <- Segment.view (Packet.packetBody p),
          V4 a <- Packet.packetDestination p ->
          Just ((fromIntegral a - 0x0b000000) * 50000 + fromIntegral (Segment.destinationPort v) - 1024, seqNumber (Segment.segment v))
      _ -> Nothing

-- What a packet costs ------------------------------------------------------------------------

-- | Connections of a peer in the program to a stack, with what is to be put in, how many bytes came out since it was
-- asked last, a wait for more, and the stack's initial numbers. What is put in is copied, as by a device that reads
-- into a buffer of its own.
withPeer :: Int -> (([Incoming] -> IO ()) -> IO Int -> IO () -> [(Socket, Word16, Word32)] -> IO a) -> IO a
withPeer n use = do
  inbox <- newEmptyMVar
  sent <- newMVar []
  -- Full if something was sent since the last wait.
  more <- newEmptyMVar
  let copied p = p {incomingPacket = B.copy (incomingPacket p)}
      receiveAll = takeMVar inbox >>= mapM (\p -> let !c = copied p in pure c)
      device = Device "simulated" 1500 False [Queue receiveAll (\_ parts -> modifyMVar_ sent (\old -> let !b = B.concat parts in pure (b : old)) >> void (tryPutMVar more ()))] (pure ())
  withStack (defaultSettings [serverAddress]) device $ \st -> do
    l <- listen st Nothing 80
    socks <- forM [1 .. n] $ \i -> do
      let port = fromIntegral (1024 + i)
      putMVar inbox [fromPeer port 1000 0 Segment.syn B.empty]
      isn <- answer sent more
      putMVar inbox [fromPeer port 1001 (isn + 1) Segment.ack B.empty]
      c <- accept l
      pure (c, port, isn + 1)
    use (putMVar inbox) (sum . map dataOf <$> swapMVar sent []) (takeMVar more) socks
  where
    -- Behind the headers and the timestamps.
    dataOf bytes = B.length bytes - 52
    answer sent more = do
      out <- swapMVar sent []
      case [seqNumber (Segment.segment v) | bytes <- out, Right (Packet.Whole p) <- [Packet.decode bytes], Right v <- [Segment.view (Packet.packetBody p)]] of
        isn : _ -> pure isn
        [] -> takeMVar more >> answer sent more

serverAddress, peerAddress :: Address
serverAddress = V4 0x0a000002
peerAddress = V4 0x0a000001

fromPeer :: Word16 -> Word32 -> Word32 -> Segment.Flags -> B.ByteString -> Incoming
fromPeer port at acked f body = Incoming bytes False True
  where
    !bytes = Packet.encode (Packet.Packet peerAddress serverAddress 6 (Segment.encode peerAddress serverAddress port 80 s))
    s = Segment at acked f 65535 0 (if Segment.has Segment.syn f then Options (Just 1460) (Just 7) True echoed [] else noOptions {timestamps = echoed}) [body | not (B.null body)]
    echoed = Just (Timestamps 7 0)

-- | Print the bytes that an action allocates, divided by the given number of operations.
allocatedBy :: String -> Int -> IO () -> IO ()
allocatedBy what n load = do
  before <- allocated_bytes <$> getRTSStats
  load
  after' <- allocated_bytes <$> getRTSStats
  putStrLn ("{\"" ++ what ++ "\": " ++ show n ++ ", \"alloc_bytes_per_op\": " ++ show (fromIntegral (after' - before) / fromIntegral n :: Double) ++ "}")

receive :: Int -> IO ()
receive n = withPeer 1 $ \put outcome _ socks -> forM_ socks $ \(c, port, isn) -> do
  let body = B.replicate 1448 65
      batches = [[fromPeer port (1001 + 1448 * i) isn Segment.ack body | i <- [at .. at + 31]] | at <- [0, 32 .. fromIntegral n - 32]]
      take' left = when (left > 0) $ recvMany c noDeadline left >>= \b -> take' (left - sum (map B.length b))
  mapM_ (mapM_ (`seq` pure ())) batches
  performMajorGC
  allocatedBy "segments" (32 * length batches) (forM_ batches (\b -> put b >> take' (32 * 1448) >> outcome))

-- | The peer acknowledges whatever has come since it looked last.
sendAway :: Int -> IO ()
sendAway n = withPeer 1 $ \put outcome more socks -> forM_ socks $ \(c, port, isn) -> do
  let total = 1448 * n
      block = B.replicate 262144 65
      push left = when (left > 0) $ send c noDeadline (B.take left block) >> push (left - B.length block)
      acknowledged got = when (got < total) $ do
        more
        got' <- (got +) <$> outcome
        put [fromPeer port 1001 (isn + fromIntegral got') Segment.ack B.empty]
        acknowledged got'
  performMajorGC
  allocatedBy "segments" n (forkIO (push total) >> acknowledged 0)

requests :: Int -> Int -> IO ()
requests m n = withPeer m $ \put outcome more socks -> do
  forM_ socks (\(c, _, _) -> forkIO (void (try (echo c) :: IO (Either SomeException ()))))
  let body = B.replicate 64 65
      rounds = [[fromPeer port (1001 + 64 * k) (isn + 64 * k) (Segment.ack <> Segment.psh) body | (_, port, isn) <- socks] | k <- [0 .. fromIntegral n - 1]]
      answered left = when (left > 0) $ more >> outcome >>= \got -> answered (left - got)
  mapM_ (mapM_ (`seq` pure ())) rounds
  performMajorGC
  allocatedBy "round_trips" (m * n) (forM_ rounds (\r -> put r >> answered (64 * m)))

-- Lost tails -------------------------------------------------------------------------------

-- | Bursts of ten segments, the initial window, each on a connection of its own, over 25 ms each way: of each the
-- last one to three segments are lost, and of everything else one packet in a hundred, in both directions. Everything
-- follows from the number of bursts.
tails :: Int -> IO ()
tails n = putStrLn ("{\"tails\": " ++ show n ++ ", \"tail_timeout_ratio\": " ++ show (fromIntegral (length (filter id late)) / fromIntegral n :: Double) ++ "}")
  where
    late = map burst [1 .. n]
    burst k = hadTimeout (settle (act True (UserSend [B.replicate 14480 65]) (begin (fromIntegral k)) {dataSent = 0, arriving = 9 - k `mod` 3}))
    begin seed =
      let (a, out) = open (Env (Instant 0) conf) (Opening 1 1 1480 536)
          w0 = World 0 0 Map.empty a Nothing seed False 0 10
       in settle (emit True out w0)

-- | Two connections, the sender's first, and what is to happen, by time and number.
data World = World
  { time, stamp :: !Int,
    agenda :: !(Map.Map (Int, Int) (Bool, Maybe Segment)),
    sender :: !Conn,
    receiver :: !(Maybe Conn),
    random :: !Word64,
    hadTimeout :: !Bool,
    -- | Segments with data since the burst began, and of those the first so many arrive.
    dataSent, arriving :: !Int
  }

conf :: Config
conf = defaultConfig

-- | Run until everything is acknowledged and no packet is on the way.
settle :: World -> World
settle w0 = case Map.minViewWithKey (agenda w0) of
  Nothing -> w0
  Just (((t, _), (toReceiver, what)), rest) -> settle (happen toReceiver what w0 {time = t, agenda = rest})
  where
    happen toReceiver what w = case what of
      Nothing -> act (not toReceiver) Tick w
      Just s
        | toReceiver, Nothing <- receiver w -> let (c, out) = passiveOpen (Env (Instant (time w)) conf) (Opening 9 9 1480 536) s in emit False (map Transmit out) w {receiver = Just c}
        | otherwise -> act (not toReceiver) (Arrive [s]) w

-- | An event at the sender ('True') or the receiver.
act :: Bool -> Event -> World -> World
act bySender event w
  | bySender = let (c, out) = step env event (sender w) in note (emit True out w {sender = c})
  | Just r <- receiver w =
    let (c, out) = step env event r
        (c', out') = step env (UserReceive 1000000) c
     in emit False (out ++ out') w {receiver = Just c'}
  | otherwise = w
  where
    env = Env (Instant (time w)) conf
    note x = case summaryPhase (summary (sender x)) of
      AfterTimeout _ -> x {hadTimeout = True}
      _ -> x

-- | Put what is sent on the way, and the next timer.
emit :: Bool -> [Action] -> World -> World
emit bySender out w0 = timer (foldl one w0 [s | Transmit s <- out])
  where
    one w s
      | isData && dataSent w >= arriving w && dataSent w < 10 = counted
      | Segment.has Segment.syn (flags s) || draw `mod` 100 /= 0 = at (time w + 25000) (bySender, Just s) counted
      | otherwise = counted
      where
        isData = bySender && Segment.payloadLength s > 0
        draw = x `shiftR` 33
        x = random w * 6364136223846793005 + 1442695040888963407
        counted = w {random = x, dataSent = dataSent w + (if isData then 1 else 0)}
    timer w = case nextTimer <$> (if bySender then Just (sender w) else receiver w) of
      Just due@(Instant t) | due /= never -> at (max (time w) t) (not bySender, Nothing) w
      _ -> w
    at t what w = w {agenda = Map.insert (t, stamp w) what (agenda w), stamp = stamp w + 1}

liveBytes :: IO Int
liveBytes = performMajorGC >> performMajorGC >> fromIntegral . gcdetails_live_bytes . gc <$> getRTSStats
