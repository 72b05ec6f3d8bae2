-- |
-- Carrying out requests to files. There are five ways, tried in this
-- order:
--
-- 1. At once, if the kernel has the data or the path in its caches: no thread waits.
--
-- 2. By io_submit(2) on the caller's own OS thread ("Weft.File.Aio"): reads and writes that bypass the page cache,
--    up to 64 of them.
--
-- 3. By a call that blocks, while few others are running ('fewEnough'): the ring's two switches of
--    OS threads take longer than such a call.
--
-- 4. By the ring of the caller's capability ("Weft.File.Ring"): all requests of
--    the capability's threads go to an io_uring in batches.
--
-- 5. By the pool of "Weft.Blocking", if the kernel refuses io_uring or has no such operation in it.
--
-- In a program that is linked without @-threaded@ only the fifth is used, and a call stops all threads of the
-- program.
--
-- The environment variable @WEFT_FILES@ (@io_uring@, @threads@) or 'preferFiles'
-- forces the fourth or the fifth.
module Weft.File.Engine
  ( -- * Carrying out
    RequestPolicy (..),
    runRequest,
    begin,

    -- * Choosing
    FileEngine (..),
    preferFiles,
    filesChoice,

    -- * Metrics
    readRingMetrics,
    readDirectMetrics,
    stopRings,
  )
where

import Control.Concurrent (forkIO, killThread, rtsSupportsBoundThreads, throwTo)
import Control.Exception (Exception, SomeException, catch, fromException, throwIO)
import Control.Monad (join, unless, void, when)
import Data.Maybe (fromMaybe, isJust)
import Foreign.C.Types (CInt)
import GHC.Conc (labelThread)
import GHC.IO.Exception (IOException (ioe_errno))
import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..))
import Weft.Blocking.Pool (programPool)
import qualified Weft.Blocking.Pool as Blocking
import Weft.Core.Time (Instant (..), after, seconds)
import Weft.FFI.File
import Weft.FFI.RingUnavailable (ringUnavailable)
import Weft.File.Aio
import Weft.File.PerCapability
import Weft.File.Ring
import Weft.Sys
import Weft.Thread.Wait (threadWaitRead, threadWaitWrite)

-- Choosing -------------------------------------------------------------------------

-- | How requests that have to wait are carried out.
data FileEngine
  = -- | Blocking calls while few are running, otherwise rings; or the pool if there are no rings.
    Adaptive
  | -- | Rings only.
    Rings
  | -- | The pool of "Weft.Blocking" only.
    Threads
  deriving (Eq, Show)

-- | Use this engine from now on, instead of the one of @WEFT_FILES@.
preferFiles :: FileEngine -> IO ()
preferFiles = writeRef preference . Just

preference :: Ref (Maybe FileEngine)
preference = unsafePerformIO (newRef Nothing)
{-# NOINLINE preference #-}

-- | The engine that is used, and the reason if it has no rings.
filesChoice :: IO (FileEngine, Maybe String)
filesChoice = do
  wanted <- wantedEngine
  if wanted == Threads
    then pure (Threads, if rtsSupportsBoundThreads then Nothing else Just "this program is linked without -threaded")
    else do
      refused <- engineRefusal =<< theEngine
      pure (maybe (wanted, Nothing) (\why -> (Threads, Just why)) refused)

wantedEngine :: IO FileEngine
wantedEngine
  -- A ring wakes its reader from an OS thread of its own; the non-threaded run-time system has no locks for that.
  | rtsSupportsBoundThreads = readRef preference >>= maybe (pure fromEnvironment) pure
  | otherwise = pure Threads

fromEnvironment :: FileEngine
fromEnvironment = unsafePerformIO $ do
  name <- lookupEnv "WEFT_FILES"
  case name of
    Nothing -> pure Adaptive
    Just "" -> pure Adaptive
    Just "auto" -> pure Adaptive
    Just "io_uring" -> pure Rings
    Just "threads" -> pure Threads
    Just other -> ioError (userError ("weft: WEFT_FILES is " <> show other <> "; there are auto, io_uring, threads"))
{-# NOINLINE fromEnvironment #-}

-- The engine -----------------------------------------------------------------------

-- | The state of a process.
data Engine = Engine
  { engineGeneration :: !Int,
    engineAios :: !(PerCapability Aio),
    engineRings :: !(PerCapability Ring),
    -- | Word 'busy': requests that wait for a disk now. Word 'streams': requests to streams that are in rings now.
    -- Word 'late': the time in nanoseconds until which no request is submitted by 'Weft.File.Aio'; changed by a thread
    -- whose submission took long.
    engineWords :: !WordArray
  }

busy, streams, late :: Int
busy = 0
streams = 1
late = 2

newEngine :: IO Engine
newEngine = do
  e <- Engine <$> forkGeneration <*> newPerCapability newAio <*> newPerCapability newRing <*> newWordArray 3
  -- Evaluated: 'theEngine' compares references.
  pure $! e

engineRef :: Ref Engine
engineRef = unsafePerformIO (newEngine >>= newRef)
{-# NOINLINE engineRef #-}

-- | The engine of this process. A forked child makes its own: in the parent's no
-- owner runs here.
theEngine :: IO Engine
theEngine = do
  e <- readRef engineRef
  generation <- forkGeneration
  if engineGeneration e == generation
    then pure e
    else do
      !fresh <- newEngine
      ours <- casRef engineRef e fresh
      when ours $ do
        mapM_ discardAio =<< members (engineAios e)
        mapM_ discardRing =<< members (engineRings e)
      theEngine

-- | Why there are no rings; makes one if that was not tried yet.
engineRefusal :: Engine -> IO (Maybe String)
engineRefusal e = do
  ring <- memberFor (engineRings e)
  if isJust ring then pure Nothing else fmap ringUnavailable <$> refusal (engineRings e)

-- Carrying out ---------------------------------------------------------------------

-- | Who owns a request's result and its buffer, and until when; and how it may be carried out.
data RequestPolicy = RequestPolicy
  { -- | Whether it may be tried at once: not if it bypasses the page cache.
    policyTry :: !Bool,
    -- | Whether it reads or writes past the page cache.
    policyDirect :: !Bool,
    -- | Whether a call that blocks may be used: not if it may wait for ever.
    policyBlock :: !Bool,
    -- | 'Just' if an interrupted caller has to wait for the end, because the memory is the
    -- caller's, or because the result is used nevertheless: the function gets it.
    policyOnInterrupt :: !(Maybe (CInt -> IO ())),
    -- | Called with an action that ends the request early, when it waits; returns the action that revokes that.
    policyOnWait :: !(IO () -> IO (IO ())),
    -- | Run when the request's memory is no longer used.
    policyOnDone :: !(IO ()),
    -- | Run before the descriptor is used; the action that it returns, after that. Throws if the file is
    -- closed.
    policyAcquire :: !(IO (IO ())),
    -- | Run with a result for which no thread waits any more.
    policyDispose :: !(CInt -> IO ())
  }

-- | Carry an operation out, and wait for its result. Interruptible while it waits; in the third way above only where
-- the system call is, which is not so for a disk.
runRequest :: RequestPolicy -> Op -> IO CInt
runRequest policy op = do
  r <- if policyTry policy then tryOp op else pure errAgain
  -- A large transfer is many calls; other threads run between them.
  when (fromIntegral r >= mostAtOnce) yield
  result <- r `orElse` slow
  if result == errInterrupted
    then allowInterrupt >> runRequest policy op
    else result <$ policyOnDone policy
  where
    slow = do
      e <- theEngine
      wanted <- wantedEngine
      mask_ (if policyBlock policy then counted e wanted else awaitOp e wanted)
    counted e wanted = do
      others <- addWord (engineWords e) busy 1
      r <- waiting e wanted others `onException` leave e
      r <$ leave e
    waiting e wanted others = do
      r <- if policyDirect policy && mayBeDirect wanted others then awaitWith policy (direct e) else pure errAgain
      r `orElse` if wanted == Adaptive && others < fewEnough then runOp op else awaitOp e wanted
    direct e handler = do
      taken <- beginDirect e op handler
      pure () <$ unless taken (handler errAgain)
    awaitOp e wanted = awaitWith policy (beginWith e wanted op)
    leave e = addWord (engineWords e) busy (-1)
    orElse r next = if r == errAgain then next else pure r

-- | Begin an operation by the given function, which returns an action that ends it early, and wait for its end. Masked.
awaitWith :: RequestPolicy -> ((CInt -> IO ()) -> IO (IO ())) -> IO CInt
awaitWith policy beginning = do
  box <- newEmptyMVar
  -- 0: undecided; 1: the result has been put into the box; 2: the caller no longer waits
  -- for it.
  fate <- newWordArray 1
  release <- policyAcquire policy
  cancelIt <- (`onException` release) . beginning $ \r -> do
    policyOnDone policy
    release
    found <- casWord fate 0 0 1
    if found == 0 then putMVar box r else when (r >= 0) (policyDispose policy r)
  let given = do
        unwatch <- policyOnWait policy cancelIt
        (takeMVar box `onException` unwatch) <* unwatch
  given `catch` \x -> do
    cancelIt
    found <- if isJust (policyOnInterrupt policy) then pure 1 else casWord fate 0 0 2
    when (found == 1) $ do
      r <- uninterruptibleMask_ (takeMVar box)
      when (r >= 0) (fromMaybe (policyDispose policy) (policyOnInterrupt policy) r)
    throwIO (x :: SomeException)

-- | With fewer operations than that under way, one more is a blocking call, otherwise all use rings. Why so few, with
-- figures: @doc\/rationale\/files.md@.
fewEnough :: Int
fewEnough = 3

-- | Start an operation that may have to wait. 'True' if it reads or writes past the page cache. Its result goes once to
-- the handler, which must neither block nor throw. Returns an action that ends the operation early, with 'errCancelled'
-- unless its own result comes first. Memory and descriptor are used until the handler runs.
begin :: Bool -> Op -> (CInt -> IO ()) -> IO (IO ())
begin direct op handler = do
  e <- theEngine
  wanted <- wantedEngine
  others <- addWord (engineWords e) busy 1
  let leave = void (addWord (engineWords e) busy (-1))
      -- By a thread of its own: the way may be a ring that has to be opened, for which others wait, and the handler
      -- runs on the thread that runs those of all direct requests.
      anotherWay = do
        cap <- myCapability
        void (forkPinned cap "weft file, another way" (\_ -> void slow `catchAll` \_ -> leave >> handler errAgain))
      slow = beginWith e wanted op (\r -> leave >> handler r)
  (`onException` leave) $ do
    taken <-
      if direct && mayBeDirect wanted others
        then beginDirect e op (\r -> if r == errAgain then anotherWay else leave >> handler r)
        else pure False
    if taken then pure (pure ()) else slow

-- | Whether "Weft.File.Aio" may be used beside this number of other requests. A submission waits if the disk's queue is
-- full, and the capability with it. So only a few requests are in the disk's queue that way; rings take more of them.
mayBeDirect :: FileEngine -> Int -> Bool
mayBeDirect wanted others = wanted == Adaptive && others < aioDepth

-- | Submit a read or write past the page cache; 'False' if it has to go another way. The handler may get 'errAgain',
-- with the same meaning. If the submission took long, because others have filled the disk's queue, the next ones are
-- not tried for a second.
beginDirect :: Engine -> Op -> (CInt -> IO ()) -> IO Bool
beginDirect e op handler = do
  lateUntil <- readWord (engineWords e) late
  wait <- if lateUntil == 0 then pure False else (< Instant (fromIntegral lateUntil)) <$> now
  aio <- if wait then pure Nothing else memberFor (engineAios e)
  case aio of
    Nothing -> pure False
    Just a -> do
      outcome <- submit a op handler
      when (outcome == AcceptedLate) $ do
        Instant t <- after (seconds 1) <$> now
        writeWord (engineWords e) late (fromIntegral t)
      pure (outcome /= Rejected)

beginWith :: Engine -> FileEngine -> Op -> (CInt -> IO ()) -> IO (IO ())
beginWith e wanted op handler = do
  waiting <- waitingOf op
  -- In a ring it would keep one of the few kernel threads that the reads of disks need. Without -threaded a call would
  -- stop the program.
  let apart = waiting == MayWait && rtsSupportsBoundThreads
  ring <- if apart || wanted == Threads || isCall op then pure Nothing else memberFor (engineRings e)
  case ring of
    Nothing | apart -> beginApart op handler
    Just r
      | not stream -> cancel r <$> start r (if waiting == WaitsForNobody then op else withoutTry op) handler
      | otherwise -> do
        others <- addWord (engineWords e) streams 1
        if others < mostStreams
          then beginStream r `onException` leave
          else leave >> beginReady op handler
    Nothing
      | stream -> beginReady op handler
      | otherwise -> beginPooled op handler
  where
    stream = opOff op == maxBound
    leave = void (addWord (engineWords e) streams (-1))
    -- If the descriptor does not block (O_NONBLOCK), and the kernel cannot wait for such a file in a ring, the request
    -- ends with 'errAgain'. It then begins once more, in the other way. Whoever ends it early either finds that one, or
    -- has written the word before it is looked at.
    beginStream r = do
      cancelled <- newWordArray 1
      second <- newRef (pure ())
      first <- start r op $ \result -> do
        leave
        if result /= errAgain
          then handler result
          else do
            again <- beginReady op handler
            _ <- swapRef second again
            found <- readWord cancelled 0
            when (found == 1) again
      pure $ do
        _ <- swapWord cancelled 0 1
        cancel r first
        join (readRef second)

-- | The largest number of requests to streams in rings: half of the slots of one ring. A stream may never become ready,
-- and must not keep requests to disks waiting for a slot.
mostStreams :: Int
mostStreams = ringDepth `div` 2

-- | Run a call on the pool. If its caller is interrupted, the call is too, as far as the kernel allows.
-- States, in one word:
--
-- @
--   0 queued  -> 1 (the runner), 3 (canceller)
--   1 running -> 2 (canceller, which then throws), 3 (the runner)
--   2 running and to be interrupted: the runner takes the exception
--   3 ended
-- @
beginPooled :: Op -> (CInt -> IO ()) -> IO (IO ())
beginPooled op handler = do
  state <- newWordArray 1
  runner <- newEmptyMVar
  withdraw <- Blocking.enqueue programPool . mask_ $ do
    putMVar runner =<< myThreadId
    found <- casWord state 0 0 1
    when (found == 0) $ do
      r <- persist state
      end <- casWord state 0 1 3
      when (end == 2) ((newEmptyMVar >>= takeMVar) `catch` \Cancelled -> pure ())
      handler r
  pure . mask_ $ do
    queued <- casWord state 0 0 3
    if queued == 0
      then withdraw >> handler errCancelled
      else do
        found <- casWord state 0 1 2
        when (found == 1) (void (forkIO (readMVar runner >>= (`throwTo` Cancelled))))
  where
    persist state = do
      r <- runOp op
      wanted <- readWord state 0
      if r /= errInterrupted
        then pure r
        else if wanted == 1 then persist state else pure errCancelled

-- | Run a call that may wait for another process on an OS thread of its own: it must not keep the pool's. States, in
-- one word: 0 runs, 1 is to be ended early, 2 has ended.
beginApart :: Op -> (CInt -> IO ()) -> IO (IO ())
beginApart op handler = do
  state <- newWordArray 1
  runner <- mask_ (forkIO (persist state >>= \r -> writeWord state 0 2 >> handler r))
  labelThread runner "weft file open"
  pure $ do
    found <- casWord state 0 0 1
    when (found == 0) (void (forkIO (interrupt state runner 1000)))
  where
    persist state = do
      r <- runOp op
      if r /= errInterrupted
        then pure r
        else readWord state 0 >>= \found -> if found == 1 then pure errCancelled else persist state
    -- An exception that comes just before the call does not interrupt it, so it is thrown until the call has ended.
    interrupt state runner pause = do
      found <- readWord state 0
      when (found == 1) $ do
        _ <- forkIO (throwTo runner Cancelled)
        threadDelay pause
        interrupt state runner (min 100000 (2 * pause))

data Cancelled = Cancelled
  deriving (Show)

instance Exception Cancelled

-- | 'begin' for a stream without offsets: wait until the descriptor is ready, and then make the call, with at most
-- 4,096 bytes to write, since so many do not block then (pipe(7); whatever the size of a page is). If another reader
-- was faster, a descriptor that does not block answers 'errAgain', and this waits again, a millisecond later: some
-- descriptors cannot be waited for.
beginReady :: Op -> (CInt -> IO ()) -> IO (IO ())
beginReady op handler = do
  thread <- mask_ (forkIO (untilReady `catch` ended >>= handler))
  labelThread thread "weft stream"
  pure (() <$ forkIO (killThread thread))
  where
    untilReady = do
      r <- ready >> runOp op {opLen = size}
      if r == errAgain then threadDelay 1000 >> untilReady else pure r
    writes = isWrite op
    ready = (if writes then threadWaitWrite else threadWaitRead) (Fd (opFd op))
    size = if writes then min 4096 (opLen op) else opLen op
    ended x = pure (maybe errCancelled negate (errnoOf (x :: SomeException)))
    errnoOf x = fromException x >>= ioe_errno

-- Metrics and shutdown --------------------------------------------------------------

-- | Counters of all rings.
readRingMetrics :: IO [RingMetrics]
readRingMetrics = theEngine >>= members . engineRings >>= mapM ringMetrics

-- | Counters of all requests that were submitted by io_submit(2).
readDirectMetrics :: IO [DirectMetrics]
readDirectMetrics = theEngine >>= members . engineAios >>= mapM directMetrics

-- | Close all rings and contexts. Running requests in rings are cancelled, others are waited for; no request may be
-- made meanwhile. For tests, and for programs that release everything before they end.
stopRings :: IO ()
stopRings = do
  e <- theEngine
  removeAll (engineAios e) stopAio
  removeAll (engineRings e) stopRingOf
