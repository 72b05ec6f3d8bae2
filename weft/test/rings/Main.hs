-- | The suite @rings@: io_uring with rings of two to eight entries (@WEFT_RING_ENTRIES@), under load, on 1, 2 and 4
-- capabilities. The queue of submissions is full nearly always then, and hundreds of completions come at once where
-- there is room for two: nothing may be lost, be it a byte, a wake-up or a close.
module Main
  ( main,
  )
where

import Control.Concurrent hiding (threadDelay, threadWaitRead)
import Control.Exception
import Control.Monad
import Data.Bits (shiftR, xor)
import qualified Data.ByteString as B
import Data.IORef
import Data.List (isInfixOf, isPrefixOf)
import Data.Word (Word64)
import Foreign.C.Error (eAGAIN, eBADF, ePIPE)
import Harness
import Numeric (readHex)
import System.Directory (listDirectory, removeFile)
import System.Environment (setEnv)
import System.IO (hClose)
import System.Mem (performMajorGC)
import System.Posix.Files (readSymbolicLink)
import System.Posix.IO (FdOption (NonBlockingRead), closeFd, createPipe, dup, fdRead, fdWrite, setFdOption)
import System.Posix.Resource
import System.Posix.Temp (mkstemp)
import System.Posix.Types (Fd)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Weft.Backend
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.File
import Weft.Metrics
import Weft.Runtime (stopManagers)
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Test.Configurations (configurations)
import Weft.Test.Descriptors (finishWriting, streamPair, withFds)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skip, skipAll)
import qualified Weft.Test.Skip as Skip
import Weft.Thread (closeFdWith, threadDelay, threadWaitRead)
import qualified Weft.Thread as T
import qualified Weft.Timer as Timer

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  refused <- whyUnavailable "io_uring"
  preferFiles Rings
  chosen <- configurations (== (2, 2)) [(entries, n) | entries <- [2, 4, 8], n <- [1, 2, 4]]
  crowds <- configurations (const True) [(32, 2)]
  defaultMain . localOption (mkTimeout 400000000) . testGroup "rings" $
    map (maybe id (skipAll "no io_uring") refused) (map (group small) chosen <> map (group crowd) crowds)

-- | Tests with rings of so many entries, on so many capabilities.
group :: (Int -> [TestTree]) -> (Int, Int) -> TestTree
group tests (entries, n) =
  withResource enter (const leave) (const (testGroup (show entries <> " entries -N" <> show n) (tests entries)))
  where
    enter = do
      preferRingEntries (Just (fromIntegral entries))
      preferBackend "io_uring"
      leave
      setNumCapabilities n
    leave = stopRings >> stopManagers

small, crowd :: Int -> [TestTree]
small entries =
  [ testCase "the rings are so small" (sizes entries),
    testCase "streams arrive whole" streams,
    testCase "hundreds of descriptors ready at once" allAtOnce,
    testCase "hundreds of waits cut short at once" cutShort,
    testCase "hundreds closed under their waiters" closedUnder,
    testCase "files are read whole, and reads cut short" files
  ]
crowd entries =
  [ testCase "the rings are so small" (sizes entries),
    Skip.testCase "9,000 waiters woken at once, by a few events each" thousands
  ]

-- | The sizes of the two queues of each ring of this process, as the kernel reports them.
sizes :: Int -> Assertion
sizes entries = do
  withPipe $ \(r, w) -> fdWrite w "x" >> threadWaitRead r
  withMarked 100 $ \file -> void (readAt file 0 (Count 100))
  fds <- listDirectory "/proc/self/fd"
  rings <- filterM (fmap (either (const False :: IOException -> Bool) ("io_uring" `isInfixOf`)) . try . readSymbolicLink . ("/proc/self/fd/" <>)) fds
  found <- forM rings $ \fd -> do
    info <- lines <$> readFile ("/proc/self/fdinfo/" <> fd)
    pure [last' + 1 :: Int | l <- info, name <- ["SqMask:", "CqMask:"], name `isPrefixOf` l, '0' : 'x' : digits <- drop 1 (words l), (last', _) <- readHex digits]
  -- One for a dispatcher, one for files.
  length rings @>= 2
  assertBool ("sizes of queues: " <> show found) (all (all (<= entries)) found && not (all null found))

-- | Both directions of twenty connections at once; each piece is longer than there is room for.
streams :: Assertion
streams = finishes' "streams" . parallel 20 $ \i ->
  bracket (socketPair AF_UNIX Stream defaultProtocol) (\(a, b) -> close a >> close b) $ \(a, b) -> do
    -- Room for a part of a piece.
    forM_ [a, b] (\s -> setSocketOption s SendBuffer 4096)
    ends <- forM [(a, b, 2 * i), (b, a, 2 * i + 1)] $ \(from, to, k) -> do
      sent <- start (sending from k)
      got <- start (receiving to 0 hash0)
      pure (sent, got)
    forM_ ends $ \(sent, got) -> do
      (n, h) <- result "a writer" sent
      (n', h') <- result "a reader" got
      (n', h') @?= (n, h)
  where
    pieces = 12
    sending s k = do
      hashes <- newIORef (0, hash0)
      forM_ [1 .. pieces] $ \p -> do
        let bytes = content (1 + (k * 7919 + p * 104729) `mod` 20000) (k * 1000 + p)
        modifyIORef' hashes (\(n, h) -> (n + B.length bytes, hashed h bytes))
        sendAll s bytes
        when (p `mod` 4 == 0) (threadDelay 100)
      shutdown s ShutdownSend
      readIORef hashes
    receiving s n h = do
      bytes <- recv s 5000
      if B.null bytes then pure (n, h) else receiving s (n + B.length bytes) $! hashed h bytes

-- | Many pipes are waited for, one thread each, and written to in one go, over and over.
allAtOnce :: Assertion
allAtOnce = withPipes 300 $ \pipes -> forM_ [1 .. 10 :: Int] $ \_ -> do
  readers <- forM pipes $ \(r, _) -> start (threadWaitRead r >> fdRead r 10)
  forM_ readers blocked
  forM_ pipes (\(_, w) -> fdWrite w "x")
  forM_ readers $ \task -> do
    (text, _) <- result "a reader" task
    text @?= "x"

-- | Each of 9,000 threads receives on a copy of one socket, which then ends. Requests whose completions overflow are
-- made again; if all were made at once, they would end each other, and report their descriptors ten times on average.
thousands :: Assertion
thousands = room (fromIntegral waiters + 500) >> forM_ [1, 2 :: Int] (const oneRound)
  where
    waiters = 9000
    oneRound = withFds $ \fds -> do
      (end, peer) <- streamPair fds
      -- With io_uring each close may take a time slice of others, unless the ring is gone.
      bracket (replicateM waiters (dup end >>= mkSocket . fromIntegral)) (\copies -> stopManagers >> mapM_ close copies) $ \copies -> do
        (ended, allEnded) <- (,) <$> newIORef (0 :: Int) <*> newEmptyMVar
        idle <- totalOf metricsDescriptors
        forM_ copies $ \s -> forkIO $ do
          got <- recv s 10
          n <- atomicModifyIORef' ended (\n -> (n + 1, n + 1))
          when (n == waiters || not (B.null got)) (putMVar allEnded n)
        within 100 "9,000 waits" (untilIt ((>= idle + waiters) <$> totalOf metricsDescriptors))
        before <- totalOf metricsDispatched
        finishWriting peer
        within 100 "the end of 9,000 waits" (takeMVar allEnded) >>= (@?= waiters)
        events <- subtract before <$> totalOf metricsDispatched
        assertBool (show events <> " events for " <> show waiters <> " waiters") (events >= waiters && events <= 4 * waiters)
    totalOf counter = total counter <$> readMetrics
    untilIt cond = cond >>= \ok -> unless ok (threadDelay 5000 >> untilIt cond)

-- | Raise the limit on open descriptors to this number, or skip the test where that is not allowed.
room :: Integer -> IO ()
room wanted = do
  limits <- getResourceLimit ResourceOpenFiles
  let atLeast limit = case limit of
        ResourceLimit n -> n >= wanted
        _ -> True
  unless (atLeast (hardLimit limits)) (skip ("fewer than " <> show wanted <> " descriptors (ulimit -n)"))
  unless (atLeast (softLimit limits)) (setResourceLimit ResourceOpenFiles limits {softLimit = ResourceLimit wanted})

-- | Half of the waiting threads are killed, and half of the others time out; the pipes can be waited for as before.
cutShort :: Assertion
cutShort = withPipes 200 $ \pipes -> do
  forM_ [1 .. 5 :: Int] $ \_ -> do
    killed <- forM pipes $ \(r, _) -> start (threadWaitRead r)
    late <- forM pipes $ \(r, _) -> start (T.timeout 2000 (threadWaitRead r))
    forM_ killed blocked
    mapM_ stop killed
    forM_ late $ \task -> result "a wait with a limit" task >>= (@?= Nothing)
  readers <- forM pipes $ \(r, _) -> start (threadWaitRead r >> fdRead r 10)
  forM_ pipes (\(_, w) -> fdWrite w "y")
  forM_ readers $ \task -> result "a reader" task >>= ((@?= "y") . fst)

-- | The waiting threads and the peers are notified: no request holds a file open.
closedUnder :: Assertion
closedUnder = bracket (replicateM 3 (start computing)) (mapM_ stop) . const . forM_ [1 .. 3 :: Int] $ \_ -> do
  pipes <- replicateM 100 newPipe
  waiters <- forM pipes $ \(r, _) -> start (threadWaitRead r)
  forM_ waiters blocked
  -- From several threads at once, as the queue fills.
  parallel 4 $ \k -> forM_ [p | (i, p) <- zip [0 ..] pipes, i `mod` 4 == k] $ \(r, w) -> do
    closeFdWith closeFd r
    finishes "a write to a pipe that nobody reads" (refused w)
  forM_ waiters $ \task -> do
    r <- outcome "a waiter" task
    case r of
      Left e | Just io <- fromException e, isErrno eBADF io -> pure ()
      Left e -> assertFailure ("a waiter got " <> show e)
      Right () -> assertFailure "a waiter was told that there is something to read"
  forM_ pipes (closeFdWith closeFd . snd)
  where
    -- The file is closed when that OS thread has left the kernel: at once, unless something else runs in its place.
    refused w = do
      r <- try (fdWrite w "z")
      case r of
        Left e | isErrno ePIPE e -> pure ()
        Left e | not (isErrno eAGAIN e) -> throwIO e
        _ -> threadDelay 100 >> refused w
    -- A request ends on the OS thread that submitted it, which may be computing.
    computing = forM_ [1 ..] (\i -> evaluate (hashed hash0 (content 5000 i))) :: IO ()

-- | More reads at once than there is room for, and reads of a pipe in which nothing comes, which are cut short.
files :: Assertion
files = withMarked size $ \file -> withSilent $ \silent -> do
  begun <- newIORef (0 :: Int)
  finishes' "reading" . parallel 150 $ \i -> forM_ [1 .. 10 :: Int] $ \k ->
    if i `mod` 3 == 0
      then do
        atomicModifyIORef' begun (\n -> (n + 1, ()))
        got <- Timer.within (Timer.microseconds (200 * k)) (readNext silent (Count 10))
        got @?= Nothing
      else do
        let at = (i * 7919 + k * 104729) `mod` (size - 5000)
        bytes <- readAt file (Offset (fromIntegral at)) (Count 5000)
        when (bytes /= marked at 5000) (assertFailure ("other bytes at " <> show at))
  readIORef begun >>= (@?= 500)
  performMajorGC
  where
    size = 2000000

-- Helpers ---------------------------------------------------------------------------------

finishes' :: String -> IO a -> IO a
finishes' = within 60

newPipe :: IO (Fd, Fd)
newPipe = do
  (r, w) <- createPipe
  forM_ [r, w] (\fd -> setFdOption fd NonBlockingRead True)
  pure (r, w)

withPipe :: ((Fd, Fd) -> IO a) -> IO a
withPipe = bracket newPipe (\(r, w) -> mapM_ (closeFdWith closeFd) [r, w])

-- | A pipe in which nothing comes.
withSilent :: (File -> IO a) -> IO a
withSilent act = bracket newPipe (closeFdWith closeFd . snd) $ \(r, _) -> bracket (fromDescriptor "a pipe" r) closeFile act

withPipes :: Int -> ([(Fd, Fd)] -> IO a) -> IO a
withPipes n = bracket (replicateM n newPipe) (mapM_ (\(r, w) -> mapM_ (closeFdWith closeFd) [r, w]))

-- | A file with this many bytes that tell where they stand. Every read of it waits for the disk.
withMarked :: Int -> (File -> IO a) -> IO a
withMarked n act = do
  (path, h) <- mkstemp "/var/tmp/weft-rings-"
  B.hPut h (marked 0 n)
  hClose h
  withFile reading path act `finally` removeFile path

marked :: Int -> Int -> B.ByteString
marked from n = fst (B.unfoldrN n (\i -> Just (fromIntegral (i * 7 + i `div` 251), i + 1)) from)

content :: Int -> Int -> B.ByteString
content n seed = fst (B.unfoldrN n (\x -> Just (fromIntegral (x `shiftR` 33), x * 6364136223846793005 + 1442695040888963407)) (fromIntegral seed :: Word64))

hash0 :: Word64
hash0 = 14695981039346656037

-- | FNV-1a.
hashed :: Word64 -> B.ByteString -> Word64
hashed = B.foldl' (\h b -> (h `xor` fromIntegral b) * 1099511628211)
