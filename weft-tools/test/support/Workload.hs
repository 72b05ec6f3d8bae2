{-# LANGUAGE BangPatterns #-}

-- |
-- Everything at once in one process: echo, web, disk, timers, hybrid threads, pipes whose readers are killed, and forks, while
-- peers reset, half-close and vanish. Every result is checked. It runs in rounds; after each, the load stops, and what the
-- process still holds is measured.
--
-- The suites run it in processes of their own, of the same program ('asProgram').
module Workload
  ( asProgram,
    arguments,
  )
where

import Control.Concurrent
import Control.Concurrent.Async (mapConcurrently_)
import Control.Exception
import Control.Monad
import Data.Bits (shiftR, xor, (.&.))
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (intercalate, isInfixOf)
import Data.Maybe (catMaybes, fromMaybe, isJust, isNothing, listToMaybe)
import GHC.Clock (getMonotonicTime)
import GHC.Stats (GCDetails (..), RTSStats (..), getRTSStats)
import Network.Wai (Application, responseLBS)
import System.Directory
import System.Environment (getExecutablePath)
import System.Exit (ExitCode (..), exitWith)
import System.FilePath ((</>))
import System.IO (BufferMode (..), hFlush, hSetBuffering, stdout)
import System.Mem (performMajorGC)
import System.Posix.IO (closeFd, createPipe, fdRead, fdWrite)
import System.Posix.Process (exitImmediately, forkProcess, getProcessID, getProcessStatus)
import System.Posix.Signals (Handler (Catch), installHandler, sigALRM, sigKILL, signalProcess)
import qualified System.Process as P
import Weft.File
import qualified Weft.Http as Http
import qualified Weft.Hybrid as H
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)
import qualified Weft.Thread as T
import Weft.Timer (cancel, schedule, sleep, within)

-- | How long, in how many rounds, from which seed, with what.
data Plan = Plan
  { planSeconds :: Double,
    planRounds :: Int,
    planSeed :: Int,
    planParts :: Parts,
    -- | How many processes of peers there are, which are killed and replaced.
    planPeers :: Int,
    -- | Are errors of system calls to be expected, so that operations may fail? Results that are wrong, and operations that never
    -- end, are faults all the same.
    planErrors :: Bool,
    -- | Change the number of capabilities all the time.
    planCycle :: Bool
  }

-- | Is the program to be one of these processes?
asProgram :: [String] -> Maybe (IO ())
asProgram ["run", time, rounds, seed, number, flags] = Just (workload plan)
  where
    has flag = (',' : flag <> ",") `isInfixOf` (',' : flags <> ",")
    parts = Parts (not (has "noecho")) (not (has "noweb")) (not (has "nodisk")) (not (has "notimers")) (not (has "nohybrid")) (not (has "nopipes")) (not (has "noforks"))
    plan = Plan (read time) (read rounds) (read seed) parts (read number) (has "errors") (has "cycle")
asProgram ["peer", echo, web, seed] = Just (peer (read echo) (read web) (read seed))
asProgram _ = Nothing

-- | Arguments with which the program runs the workload: how many seconds, in how many rounds, from which seed; how many processes
-- of peers; and flags: @errors@ (operations may fail), @cycle@ (capabilities come and go), @noforks@ and so on for each part.
arguments :: Double -> Int -> Int -> Int -> [String] -> [String]
arguments time rounds seed number flags = ["run", show time, show rounds, show seed, show number, intercalate "," flags, "+RTS", "-N2", "-T", "-RTS"]

-- | What runs.
data Parts = Parts {withEcho, withWeb, withDisk, withTimers, withHybrid, withPipes, withForks :: Bool}

-- | What is known of the run.
data Run = Run
  { runPlan :: Plan,
    runFaults :: IORef [String],
    -- | Operations done, by part, and those that failed where that was to be expected.
    runDone :: MVar [(String, (Int, Int))],
    -- | When each worker last finished an operation.
    runBeats :: MVar [(String, Double)],
    -- | Round trips by length: powers of two of microseconds.
    runTrips :: IORef [Int],
    runOpen :: MVar Int
  }

-- Random numbers -------------------------------------------------------------------------

type Dice = IORef Int

dice :: Int -> IO Dice
dice seed = newIORef (seed * 2862933555777941757 + 3037000493)

roll :: Dice -> Int -> IO Int
roll d n = do
  x <- readIORef d
  let x' = x * 6364136223846793005 + 1442695040888963407
  writeIORef d x'
  pure (((x' `shiftR` 33) `xor` (x' `shiftR` 17)) .&. 0x3fffffff `mod` n)

-- The run -------------------------------------------------------------------------------------

-- | Run a plan and report. Ends the program: 0 if all was well.
workload :: Plan -> IO ()
workload plan = do
  hSetBuffering stdout LineBuffering
  _ <- installHandler sigALRM (Catch (pure ())) Nothing
  say ("seed " <> show (planSeed plan) <> ", " <> show (planSeconds plan) <> " s in " <> show (planRounds plan) <> " rounds")
  run <- Run plan <$> newIORef [] <*> newMVar [] <*> newMVar [] <*> newIORef (replicate 32 0) <*> newMVar 0
  place <- (\t n -> t </> ("weft-soak-" <> show n)) <$> getTemporaryDirectory <*> getProcessID
  createDirectoryIfMissing True place
  (echoing, echoPort) <- retrying run (listening 256)
  (webbing, webPort) <- retrying run (listening 256)
  when (withEcho (planParts plan)) (void (forkIO (echoServer run echoing)))
  when (withWeb (planParts plan)) (void (forkIO (Http.runSettingsSocket Http.defaultSettings webbing site)))
  stopCycling <- if planCycle plan then cycling else pure (pure ())
  watch <- forkIO (watchdog run)
  samples <- forM [1 .. planRounds plan] $ \r -> do
    writeIORef (runTrips run) (replicate 32 0)
    round' run r place echoPort webPort
    s <- sampled run
    trips <- readIORef (runTrips run)
    say ("round " <> show r <> ": " <> shown s <> "; echo " <> percentiles trips)
    pure s
  stopCycling
  killThread watch
  done <- readMVar (runDone run)
  forM_ done (\(part, (ok, failed)) -> say (part <> ": " <> show ok <> " done, " <> show failed <> " failed as expected"))
  judgeGrowth run samples
  removePathForcibly place
  faults <- readIORef (runFaults run)
  mapM_ (say . ("FAULT: " <>)) (reverse faults)
  say (if null faults then "clean" else show (length faults) <> " faults")
  hFlush stdout
  exitWith (if null faults then ExitSuccess else ExitFailure 1)

say :: String -> IO ()
say = putStrLn

-- | Errors at the start are tried again, where they are to be expected.
retrying :: Run -> IO a -> IO a
retrying run act
  | planErrors (runPlan run) = go (100 :: Int)
  | otherwise = act
  where
    go 0 = act
    go n = act `catch` \e -> const (threadDelay 10000 >> go (n - 1)) (e :: IOException)

listening :: Int -> IO (Socket, Int)
listening backlog = do
  s <- socket AF_INET Stream defaultProtocol
  setSocketOption s ReuseAddr 1
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen s backlog
  port <- socketPort s
  pure (s, fromIntegral port)

-- | All parts for one round.
round' :: Run -> Int -> FilePath -> Int -> Int -> IO ()
round' run r place echoPort webPort = do
  end <- (+ planSeconds plan / fromIntegral (planRounds plan)) <$> getMonotonicTime
  mapConcurrently_ id $
    [worker run end "echo" i (echoClient run echoPort) | withEcho parts, i <- [1 .. 8]]
      <> [worker run end "web" i (webClient webPort) | withWeb parts, i <- [1 .. 4]]
      <> [worker run end "disk" i (diskUser place i) | withDisk parts, i <- [1 .. 3]]
      <> [worker run end "timers" i timerUser | withTimers parts, i <- [1 .. 4]]
      <> [worker run end "hybrid" i (hybridUser echoPort (withEcho parts)) | withHybrid parts, i <- [1 .. 2]]
      <> [worker run end "pipes" i pipeUser | withPipes parts, i <- [1 .. 3]]
      <> [worker run end "forks" 1 forker | withForks parts]
      <> [peers run end r echoPort webPort i | i <- [1 .. planPeers plan]]
  where
    plan = runPlan run
    parts = planParts plan

-- | Do something over and over until the time comes. The action returns what is wrong.
worker :: Run -> Double -> String -> Int -> (Dice -> IO (Maybe String)) -> IO ()
worker run end part i act = do
  d <- dice (planSeed (runPlan run) * 1000 + i + sum (map fromEnum part) * 31)
  go d (0 :: Int) (0 :: Int)
  where
    name = part <> " " <> show i
    -- Evaluated: millions of them would be a chain of additions else, which looks like a leak of what is tested.
    go d !ok !failed = do
      t <- getMonotonicTime
      modifyMVar_ (runBeats run) (pure . ((name, t) :) . filter ((/= name) . fst))
      if t >= end
        then do
          modifyMVar_ (runBeats run) (pure . filter ((/= name) . fst))
          modifyMVar_ (runDone run) (evaluate . add ok failed)
        else do
          r <- try (act d)
          case r of
            Right Nothing -> go d (ok + 1) failed
            Right (Just why) -> blame run (name <> ": " <> why) >> go d ok failed
            Left e
              | Just (SomeAsyncException _) <- fromException e -> throwIO e
              | planErrors (runPlan run),
                isJust (fromException e :: Maybe IOException) -> do
                threadDelay 1000
                go d ok (failed + 1)
              | otherwise -> blame run (name <> ": " <> show e) >> threadDelay 10000 >> go d ok failed
    add ok failed done =
      let (!a, !b) = maybe (ok, failed) (\(x, y) -> (x + ok, y + failed)) (lookup part done)
       in (part, (a, b)) : filter ((/= part) . fst) done

blame :: Run -> String -> IO ()
blame run why = do
  n <- atomicModifyIORef' (runFaults run) (\fs -> (if length fs < 50 then why : fs else fs, length fs))
  when (n < 50) (say ("fault: " <> why))

-- | A worker that has not finished an operation for a minute of this process's own time stands still. (A process that is
-- stopped has no time meanwhile.)
watchdog :: Run -> IO ()
watchdog run = do
  stale <- newIORef []
  forever $ do
    threadDelay 1000000
    beats <- readMVar (runBeats run)
    old <- readIORef stale
    let new = [(b, maybe (0 :: Int) (+ 1) (lookup b old)) | b <- beats]
        stuck = [name | ((name, _), n) <- new, n >= 60]
    writeIORef stale new
    unless (null stuck) $ do
      say ("FAULT: no operation was finished for a minute: " <> intercalate ", " stuck)
      hFlush stdout
      exitImmediately (ExitFailure 2)

-- What is held -----------------------------------------------------------------------------------

data Sample = Sample {sampleLive, sampleDescriptors, sampleTasks, sampleResident :: Int}

-- | Once connections are over.
sampled :: Run -> IO Sample
sampled run = do
  settle (200 :: Int)
  performMajorGC
  threadDelay 50000
  performMajorGC
  stats <- getRTSStats
  fds <- length <$> listDirectory "/proc/self/fd"
  tasks <- length <$> listDirectory "/proc/self/task"
  status <- readFile "/proc/self/status"
  let resident = case [w | l <- lines status, ("VmRSS:" : w : _) <- [words l]] of
        w : _ -> read w
        [] -> 0
  pure (Sample (fromIntegral (gcdetails_live_bytes (gc stats))) fds tasks resident)
  where
    settle 0 = pure ()
    settle n = do
      open <- readMVar (runOpen run)
      unless (open == 0) (threadDelay 20000 >> settle (n - 1))

shown :: Sample -> String
shown s =
  show (sampleLive s `div` 1024) <> " KB live, " <> show (sampleDescriptors s) <> " descriptors, " <> show (sampleTasks s)
    <> " OS threads, "
    <> show (sampleResident s)
    <> " KB resident"

-- | The first round starts what is needed; the last one must hold no more than the second. With six rounds and more, live memory must have come to
-- rest: what the last third always holds is no more than what the first one holds, after that round, and a tenth. (Cancelled timers stay in their
-- queues until there are four thousand of them, so it goes up and down by half a megabyte.)
judgeGrowth :: Run -> [Sample] -> IO ()
judgeGrowth run samples = case samples of
  _ : second : rest@(_ : _) -> do
    let final = last rest
        third = length samples `div` 3
        early = maximum (map sampleLive (take (third - 1) (second : rest)))
        late = minimum (map sampleLive (drop (length samples - third) samples))
    when (sampleDescriptors final > sampleDescriptors second + 2) (blame run ("descriptors grew: " <> shown second <> ", then " <> shown final))
    when (sampleLive final > sampleLive second * 3 `div` 2 + 1000000) (blame run ("memory grew: " <> shown second <> ", then " <> shown final))
    when (third >= 2 && late > early + early `div` 10 + 250000) (blame run ("memory keeps growing: " <> show early <> " bytes, then " <> show late))
    when (sampleTasks final > sampleTasks second + 8) (blame run ("OS threads grew: " <> shown second <> ", then " <> shown final))
  _ -> pure ()

trip :: Run -> Double -> IO ()
trip run s = atomicModifyIORef' (runTrips run) (\ts -> let ts' = bump ts in sum ts' `seq` (ts', ()))
  where
    bucket = min 31 (length (takeWhile (< s * 1e6) (iterate (* 2) 1)))
    bump ts = [if i == bucket then n + 1 else n | (i, n) <- zip [0 ..] ts]

-- | Upper bounds.
percentiles :: [Int] -> String
percentiles ts
  | total == 0 = "none"
  | otherwise = show total <> " round trips, half below " <> at 0.5 <> ", 99 % below " <> at 0.99 <> ", all below " <> at 1
  where
    total = sum ts
    at :: Double -> String
    at q = show (2 ^ length (takeWhile (< ceiling (q * fromIntegral total)) (scanl1 (+) ts)) `div` (1 :: Int)) <> " us"

-- Servers ------------------------------------------------------------------------------------

echoServer :: Run -> Socket -> IO ()
echoServer run l = forever $ do
  r <- try (accept l) :: IO (Either IOException (Socket, SockAddr))
  case r of
    Left _ -> threadDelay 1000
    Right (s, _) -> void . forkIO $ do
      modifyMVar_ (runOpen run) (pure . (+ 1))
      _ <- try (setSocketOption s NoDelay 1) :: IO (Either IOException ())
      _ <- try (serveOne s) :: IO (Either IOException ())
      close s
      modifyMVar_ (runOpen run) (pure . subtract 1)
  where
    serveOne s = do
      deadline <- deadlineIn (milliseconds 20000)
      bytes <- recv (withDeadline deadline s) 65536
      unless (B.null bytes) (sendAll (withDeadline deadline s) bytes >> serveOne s)

site :: Application
site _ respond = respond (responseLBS (toEnum 200) [] (L.fromStrict (BC.replicate 3000 'w')))

-- Clients -------------------------------------------------------------------------------------

connected :: Int -> (Socket -> IO a) -> IO a
connected port = bracket open close
  where
    open = bracketOnError (socket AF_INET Stream defaultProtocol) close $ \s -> do
      setSocketOption s NoDelay 1
      connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
      pure s

-- | So many bytes, which the second argument determines.
content :: Int -> Int -> B.ByteString
content n k = B.take n (B.drop (k `mod` 65521) pool)

pool :: B.ByteString
pool = fst (B.unfoldrN 400000 (\x -> Just (fromIntegral (x `shiftR` 8), (x * 1103515245 + 12345) .&. 0x7fffffff)) (7 :: Int))

-- | Some round trips, and an end of some kind.
echoClient :: Run -> Int -> Dice -> IO (Maybe String)
echoClient run port d = connected port $ \s -> do
  trips <- roll d 6
  wrong <- go s trips
  way <- roll d 5
  case way of
    0 -> setSockOpt s Linger (StructLinger 1 0)
    1 -> shutdown s ShutdownSend
    2 -> do
      -- Cut off in the middle, by time.
      _ <- within (milliseconds 1) (sendAll s (B.replicate 300000 1))
      pure ()
    _ -> pure ()
  pure wrong
  where
    go _ 0 = pure Nothing
    go s n = do
      size <- (+ 1) <$> roll d 20000
      sort' <- roll d 1000000
      let bytes = content size sort'
      begin <- getMonotonicTime
      deadline <- deadlineIn (milliseconds 30000)
      sendAll (withDeadline deadline s) bytes
      back <- receiveAll (withDeadline deadline s) size
      getMonotonicTime >>= trip run . subtract begin
      if back == bytes then go s (n - 1 :: Int) else pure (Just ("an echo of " <> show size <> " bytes came back as " <> show (B.length back)))

-- | The other side has given up, as it does when a system call of its own failed.
endedEarly :: IO a
endedEarly = ioError (userError "the stream ended early")

receiveAll :: Socket -> Int -> IO B.ByteString
receiveAll s size = B.concat <$> go size
  where
    go 0 = pure []
    go n = do
      b <- recv s n
      if B.null b then endedEarly else (b :) <$> go (n - B.length b)

webClient :: Int -> Dice -> IO (Maybe String)
webClient port d = connected port $ \s -> do
  n <- (+ 1) <$> roll d 4
  abandon <- roll d 4
  wrong <- forM [1 .. n] $ \_ -> do
    deadline <- deadlineIn (milliseconds 30000)
    sendAll (withDeadline deadline s) (BC.pack "GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
    answer (withDeadline deadline s) B.empty
  when (abandon == 0) (sendAll s (BC.pack "GET /y HTTP/1.1\r\nHo") >> setSockOpt s Linger (StructLinger 1 0))
  pure (listToMaybe (catMaybes wrong))
  where
    answer s got
      | (_, rest) <- BC.breakSubstring (BC.pack "\r\n\r\n") got,
        B.length rest >= 3004 =
        pure $
          if BC.pack "HTTP/1.1 200" `B.isPrefixOf` got && B.length rest == 3004 && BC.all (== 'w') (B.drop 4 rest)
            then Nothing
            else Just ("a wrong answer: " <> show (B.take 40 got))
      | otherwise = do
        b <- recv s 8192
        if B.null b then endedEarly else answer s (got <> b)

-- Disk, timers, threads ---------------------------------------------------------------------------

diskUser :: FilePath -> Int -> Dice -> IO (Maybe String)
diskUser place i d = do
  let path = place </> ("file" <> show i)
  size <- (+ 1) <$> roll d 100000
  at <- roll d 1000000
  k <- roll d 1000000
  interrupted <- roll d 8
  let bytes = content size k
  withFile reading {openAccess = ReadWrite, openCreation = CreateIfMissing 0o600} path $ \f -> do
    writeAt f (Offset (fromIntegral at)) bytes
    when (interrupted == 0) (void (within (milliseconds 1) (replicateM_ 50 (readAt f (Offset (fromIntegral at)) (Count size)))))
    back <- readAt f (Offset (fromIntegral at)) (Count size)
    pure (if back == bytes then Nothing else Just ("a file gave back " <> show (B.length back) <> " other bytes of " <> show size))

timerUser :: Dice -> IO (Maybe String)
timerUser d = do
  us <- roll d 20000
  begin <- getMonotonicTime
  T.threadDelay us
  end <- getMonotonicTime
  fired <- newIORef (0 :: Int)
  set <- replicateM 50 (roll d 60000000 >>= \n -> schedule (milliseconds (1000 + n `div` 1000)) (atomicModifyIORef' fired (\x -> (x + 1, ()))))
  gone <- mapM cancel set
  late <- readIORef fired
  over <- within (milliseconds 1) (sleep (milliseconds 1000000))
  pure $ case () of
    _
      | end - begin < fromIntegral us / 1e6 -> Just ("a delay of " <> show us <> " us took " <> show (end - begin) <> " s")
      | length (filter not gone) /= late -> Just "a timer was neither cancelled nor fired, or both"
      | isJust over -> Just "an endless delay ended"
      | otherwise -> Nothing

hybridUser :: Int -> Bool -> Dice -> IO (Maybe String)
hybridUser port echoes d = do
  n <- (+ 2) <$> roll d 40
  size <- (+ 1) <$> roll d 5000
  doomed <- roll d 3
  sum' <- H.run $ do
    first <- H.newEmptyMVar
    final <- chain n first
    when (doomed == 0) $ do
      t <- H.forkThread (H.sleep (milliseconds 1000000))
      H.sleep (milliseconds 1)
      H.killThread t
    H.putMVar first (1 :: Int)
    H.takeMVar final
  back <-
    if not echoes
      then pure (Just (content size n))
      else H.run . H.timeout (milliseconds 30000) $
        H.bracket (H.nonBlocking opened >>= H.fromSocket) H.close $ \s -> do
          H.connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
          H.sendAll s (content size n)
          B.concat <$> receive s size
  pure $ case () of
    _
      | sum' /= n + 1 -> Just ("a chain of " <> show n <> " hybrid threads gave " <> show sum')
      | isNothing back -> Just "a hybrid echo took half a minute"
      | back /= Just (content size n) -> Just "a hybrid echo came back wrong"
      | otherwise -> Nothing
  where
    opened = socket AF_INET Stream defaultProtocol
    chain 0 v = pure v
    chain n v = do
      w <- H.newEmptyMVar
      H.fork (H.takeMVar v >>= \x -> H.yield >> H.putMVar w (x + 1))
      chain (n - 1 :: Int) w
    receive _ 0 = pure []
    receive s n = do
      b <- H.recv s n
      if B.null b then H.nonBlocking endedEarly else (b :) <$> receive s (n - B.length b)

-- | Readers of a pipe, some of which are killed; the others get what is written.
pipeUser :: Dice -> IO (Maybe String)
pipeUser d = bracket createPipe (\(r, w) -> mapM_ (T.closeFdWith closeFd) [r, w]) $ \(r, w) -> do
  n <- (+ 1) <$> roll d 3
  doomed <- replicateM n (forkIO (T.threadWaitRead r))
  pause <- roll d 300
  threadDelay pause
  got <- newEmptyMVar
  survivor <- forkIO ((try (T.threadWaitRead r >> fst <$> fdRead r 1) :: IO (Either IOException String)) >>= putMVar got)
  mapM_ killThread doomed
  _ <- fdWrite w "x"
  answer <- T.timeout 30000000 (takeMVar got >>= either ioError pure)
  killThread survivor
  pure (if answer == Just "x" then Nothing else Just ("a reader of a pipe got " <> show answer))

-- | A child that waits in every way, and ends.
forker :: Dice -> IO (Maybe String)
forker d = do
  pause <- roll d 1000000
  T.threadDelay pause
  child <- forkProcess $ do
    ok <- try body :: IO (Either SomeException Bool)
    exitImmediately (either (const (ExitFailure 4)) (\fine -> if fine then ExitSuccess else ExitFailure 3) ok)
  ended <- await child (3000 :: Int)
  case ended of
    Just status -> pure (if status == "Just (Exited ExitSuccess)" then Nothing else Just ("a child ended with " <> status))
    Nothing -> do
      signalProcess sigKILL child
      _ <- getProcessStatus True False child
      pure (Just "a child was still running after half a minute")
  where
    await _ 0 = pure Nothing
    await child n = do
      status <- getProcessStatus False False child
      if isJust status then pure (Just (show status)) else threadDelay 10000 >> await child (n - 1)
    body = do
      (r, w) <- createPipe
      T.threadDelay 1000
      got <- newEmptyMVar
      _ <- forkIO (T.threadWaitRead r >> putMVar got ())
      _ <- fdWrite w "x"
      came <- T.timeout 20000000 (takeMVar got)
      sum' <- H.run (H.sleep (milliseconds 1) >> pure (7 :: Int))
      pure (came == Just () && sum' == 7)

-- | The number of capabilities goes up and down; the result stops that.
cycling :: IO (IO ())
cycling = do
  before <- getNumCapabilities
  t <- forkIO . forever $ forM_ [1, 2, 4, 3] (\n -> setNumCapabilities n >> threadDelay 20000)
  pure (killThread t >> setNumCapabilities before)

-- Peers -------------------------------------------------------------------------------------------

-- | A process of peers, killed and replaced over and over.
peers :: Run -> Double -> Int -> Int -> Int -> Int -> IO ()
peers run end r echoPort webPort i = do
  d <- dice (planSeed (runPlan run) * 77 + r * 13 + i)
  self <- getExecutablePath
  let go k = do
        t <- getMonotonicTime
        when (t < end) $ do
          life <- roll d 1500000
          bracket (P.spawnProcess self ["peer", show echoPort, show webPort, show (planSeed (runPlan run) + k * 100 + i)]) finish (const (threadDelay (200000 + life)))
          go (k + 1)
      finish p = do
        pid <- P.getPid p
        forM_ pid (signalProcess sigKILL)
        void (P.waitForProcess p)
  go (r * 1000 :: Int)

-- | What such a process does: connections that are never read from, cut off, reset, closed by half, left alone.
peer :: Int -> Int -> Int -> IO ()
peer echoPort webPort seed = mapConcurrently_ id [client i | i <- [1 .. 6]]
  where
    client i = do
      d <- dice (seed + i)
      forever $ do
        port <- (\x -> if x == 0 then echoPort else webPort) <$> roll d 2
        _ <- try (connected port (rude d)) :: IO (Either IOException ())
        threadDelay 1000
    rude d s = do
      what <- roll d 5
      k <- roll d 100000
      case what of
        0 -> sendAll s (content 50000 k)
        1 -> sendAll s (content 1000 k) >> setSockOpt s Linger (StructLinger 1 0)
        2 -> sendAll s (content 100 k) >> shutdown s ShutdownSend >> void (recv s 10)
        3 -> threadDelay k
        _ -> fromMaybe () <$> within (milliseconds 20) (forever (sendAll s (content 30000 k)))
