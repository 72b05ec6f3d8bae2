-- |
-- Carrying out requests to files. There are four ways, tried in this
-- order:
--
-- 1. At once, if the kernel has the data or the path in its caches: no thread waits.
--
-- 2. By a call that blocks, while few others are running ('fewEnough'): the ring's two switches of
--    OS threads take longer than such a call.
--
-- 3. By the ring of the caller's capability ("Weft.File.Ring"): all requests of
--    the capability's threads go to an io_uring in batches.
--
-- 4. By the pool of "Weft.Blocking", if the kernel refuses io_uring or has no such operation in it.
--
-- In a program that is linked without @-threaded@ only the fourth is used, and a call stops all threads of the
-- program.
--
-- The environment variable @WEFT_FILES@ (@io_uring@, @threads@) or 'preferFiles'
-- forces the third or the fourth.
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
    stopRings,
  )
where

import Control.Concurrent (forkIO, killThread, rtsSupportsBoundThreads, throwTo)
import Control.Exception (Exception, SomeException, allowInterrupt, catch, fromException, throwIO)
import Control.Monad (forM_, void, when)
import Data.Maybe (catMaybes, fromMaybe, isJust)
import Foreign.C.Error (Errno (..), eINVAL, eNOSYS, ePERM)
import Foreign.C.Types (CInt)
import GHC.Conc (labelThread)
import GHC.IO.Exception (IOException (ioe_errno))
import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..))
import Weft.Blocking.Pool (programPool)
import qualified Weft.Blocking.Pool as Blocking
import Weft.Core.Time (Instant, after, never, seconds)
import Weft.FFI.File
import Weft.FFI.RingUnavailable (ringUnavailable)
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
    -- | The rings by capability. Written under the lock, read by any thread.
    engineRings :: !(Ref (BoxedArray (Maybe Ring))),
    -- | How the kernel refused a ring the last time. Written under the lock.
    engineRefused :: !(Ref (Maybe RingRefusal)),
    -- | Requests that wait for a disk now, and requests to streams that are in rings now.
    engineBusy :: !AtomicWords,
    engineLock :: !(MVar ())
  }

-- | The errno, and until when no ring is asked for again.
data RingRefusal = RingRefusal !CInt !Instant

-- | @EPERM@, @ENOSYS@ and @EINVAL@ are permanent for this kernel and process. A shortage of descriptors or memory
-- may end: it is tried again a second later.
ringRefusal :: CInt -> IO RingRefusal
ringRefusal code
  | Errno code `elem` [ePERM, eNOSYS, eINVAL] = pure (RingRefusal code never)
  | otherwise = RingRefusal code . after (seconds 1) <$> now

-- | The refusal that is still in force, if any.
currentRefusal :: Engine -> IO (Maybe CInt)
currentRefusal e = do
  refused <- readRef (engineRefused e)
  case refused of
    Nothing -> pure Nothing
    Just (RingRefusal code until')
      | until' == never -> pure (Just code)
      | otherwise -> (\t -> if t < until' then Just code else Nothing) <$> now

newEngine :: IO Engine
newEngine = do
  none <- newBoxedArray 0 Nothing
  e <- Engine <$> forkGeneration <*> newRef none <*> newRef Nothing <*> newAtomicWords 2 <*> newMVar ()
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
      when ours (mapM_ discardRing =<< ringsOf e)
      theEngine

ringsOf :: Engine -> IO [Ring]
ringsOf e = do
  arr <- readRef (engineRings e)
  catMaybes <$> mapM (readBoxedArray arr) [0 .. sizeBoxedArray arr - 1]

-- | The ring for the caller's capability; 'Nothing' if the kernel refuses rings.
ringFor :: Engine -> IO (Maybe Ring)
ringFor e = do
  cap <- myCapability
  arr <- readRef (engineRings e)
  found <- if cap < sizeBoxedArray arr then readBoxedArray arr cap else pure Nothing
  case found of
    Just _ -> pure found
    Nothing -> do
      refused <- currentRefusal e
      maybe (withMVar (engineLock e) (const (openFor e cap))) (const (pure Nothing)) refused
{-# INLINE ringFor #-}

-- | A capability's ring, made if there is none. The caller holds the lock.
openFor :: Engine -> Int -> IO (Maybe Ring)
openFor e cap = do
  arr <- readRef (engineRings e)
  found <- if cap < sizeBoxedArray arr then readBoxedArray arr cap else pure Nothing
  refused <- currentRefusal e
  case (found, refused) of
    (Nothing, Nothing) -> newRing cap >>= either refuse (keep arr)
    _ -> pure found
  where
    refuse code = Nothing <$ (ringRefusal code >>= writeRef (engineRefused e) . Just)
    keep arr ring = do
      writeRef (engineRefused e) Nothing
      bigger <- newBoxedArray (max (cap + 1) (sizeBoxedArray arr)) Nothing
      copyBoxedArray arr bigger
      writeBoxedArray bigger cap (Just ring)
      writeRef (engineRings e) bigger
      pure (Just ring)

-- | Why there are no rings; makes one if that was not tried yet.
engineRefusal :: Engine -> IO (Maybe String)
engineRefusal e = do
  ring <- ringFor e
  if isJust ring then pure Nothing else fmap ringUnavailable <$> currentRefusal e

-- Carrying out ---------------------------------------------------------------------

-- | Who owns a request's result and its buffer, and until when; and how it may be carried out.
data RequestPolicy = RequestPolicy
  { -- | Whether it may be tried at once: not if it bypasses the page cache.
    policyTry :: !Bool,
    -- | Whether a call that blocks may be used: not if it may wait for ever.
    policyBlock :: !Bool,
    -- | 'Just' if an interrupted caller has to wait for the end, because the memory is the
    -- caller's, or because the result is used nevertheless: the function gets it.
    policyStay :: !(Maybe (CInt -> IO ())),
    -- | Called with an action that ends the request early, when it waits; returns the action that revokes that.
    policyWatch :: !(IO () -> IO (IO ())),
    -- | Run when the request's memory is no longer used.
    policyKeep :: !(IO ()),
    -- | Run before the descriptor is used; the action that it returns, after that. Throws if the file is
    -- closed.
    policyHold :: !(IO (IO ())),
    -- | Run with a result for which no thread waits any more.
    policyDispose :: !(CInt -> IO ())
  }

-- | Carry an operation out, and wait for its result. Interruptible while it waits; in the second way above only where
-- the system call is, which is not so for a disk.
runRequest :: RequestPolicy -> Op -> IO CInt
runRequest policy op = do
  r <- if policyTry policy then tryOp op else pure errAgain
  -- A large transfer is many calls; other threads run between them.
  when (fromIntegral r >= mostAtOnce) yield
  result <- if r /= errAgain then pure r else slow
  if result == errInterrupted
    then allowInterrupt >> runRequest policy op
    else result <$ policyKeep policy
  where
    slow = do
      e <- theEngine
      wanted <- wantedEngine
      mask_ (if policyBlock policy then counted e wanted else awaitOp e wanted policy op)
    counted e wanted = do
      others <- addWord (engineBusy e) 0 1
      let blocks = wanted == Adaptive && others < fewEnough
      r <- (if blocks then runOp op else awaitOp e wanted policy op) `onException` leave e
      r <$ leave e
    leave e = addWord (engineBusy e) 0 (-1)

-- | Begin an operation and wait for its end. Masked.
awaitOp :: Engine -> FileEngine -> RequestPolicy -> Op -> IO CInt
awaitOp e wanted policy op = do
  box <- newEmptyMVar
  -- 0: undecided; 1: the result has been put into the box; 2: the caller no longer waits
  -- for it.
  fate <- newAtomicWords 1
  release <- policyHold policy
  cancelIt <- (`onException` release) . beginWith e wanted op $ \r -> do
    policyKeep policy
    release
    found <- casWord fate 0 0 1
    if found == 0 then putMVar box r else when (r >= 0) (policyDispose policy r)
  let given = do
        unwatch <- policyWatch policy cancelIt
        (takeMVar box `onException` unwatch) <* unwatch
  given `catch` \x -> do
    cancelIt
    found <- if isJust (policyStay policy) then pure 1 else casWord fate 0 0 2
    when (found == 1) $ do
      r <- uninterruptibleMask_ (takeMVar box)
      when (r >= 0) (fromMaybe (policyDispose policy) (policyStay policy) r)
    throwIO (x :: SomeException)

-- | Note (Linux 6.18, two cores, random reads of 4 KiB, thousands a second): with
-- one under way a blocking call and a ring do 17, with four 50 and 25, with six 60
-- and 40. With eight and more GHC's run-time system, which keeps six spare OS
-- threads, begins to end and make them all the time: 30 from sixteen on, where the
-- ring does 70, 150 with 64, 230 with 1,024. Blocking calls beside a busy ring
-- halve its rate, so it is all or nothing. Three and not six, because each takes an
-- OS thread, and GHC keeps those: 13 with a thousand reads in flight, 17 with four.
fewEnough :: Int
fewEnough = 3

-- | Start an operation that may have to wait. Its result goes once to the handler, which must neither block nor
-- throw. Returns an action that ends the operation early, with 'errCancelled' unless its own result comes first.
-- Memory and descriptor are used until the handler runs.
begin :: Op -> (CInt -> IO ()) -> IO (IO ())
begin op handler = do
  e <- theEngine
  wanted <- wantedEngine
  let leave = void (addWord (engineBusy e) 0 (-1))
  _ <- addWord (engineBusy e) 0 1
  beginWith e wanted op (\r -> leave >> handler r) `onException` leave

beginWith :: Engine -> FileEngine -> Op -> (CInt -> IO ()) -> IO (IO ())
beginWith e wanted op handler = do
  ring <- if wanted == Threads || isCall op then pure Nothing else ringFor e
  case ring of
    Just l
      | not stream -> cancel l <$> start l op handler
      | otherwise -> do
        others <- addWord (engineBusy e) 1 1
        if others < mostStreams
          then cancel l <$> start l op (\r -> leave >> handler r) `onException` leave
          else leave >> beginReady op handler
    Nothing
      | stream -> beginReady op handler
      | otherwise -> beginPooled op handler
  where
    stream = opOff op == maxBound
    leave = void (addWord (engineBusy e) 1 (-1))

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
  state <- newAtomicWords 1
  runner <- newEmptyMVar
  Blocking.submit programPool . mask_ $ do
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
      then handler errCancelled
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

data Cancelled = Cancelled
  deriving (Show)

instance Exception Cancelled

-- | 'begin' for a stream without offsets: wait until the descriptor is ready, and then make the call, with at most
-- 4,096 bytes to write, since so many do not block then (pipe(7)).
beginReady :: Op -> (CInt -> IO ()) -> IO (IO ())
beginReady op handler = do
  thread <- mask_ (forkIO ((ready >> runOp op {opLen = size}) `catch` ended >>= handler))
  labelThread thread "weft stream"
  pure (() <$ forkIO (killThread thread))
  where
    writes = isWrite op
    ready = (if writes then threadWaitWrite else threadWaitRead) (Fd (opFd op))
    size = if writes then min 4096 (opLen op) else opLen op
    ended x = pure (maybe errCancelled negate (errnoOf (x :: SomeException)))
    errnoOf x = fromException x >>= ioe_errno

-- Metrics and shutdown --------------------------------------------------------------

-- | Counters of all rings.
readRingMetrics :: IO [RingMetrics]
readRingMetrics = theEngine >>= ringsOf >>= mapM ringMetrics

-- | Close all rings. Running requests are cancelled; no request may be made
-- meanwhile. For tests, and for programs that release everything before they end.
stopRings :: IO ()
stopRings = do
  e <- theEngine
  -- Uninterruptible, as a ring that has left the table can no longer be found.
  withMVar (engineLock e) $ \() -> uninterruptibleMask_ $ do
    rings <- ringsOf e
    none <- newBoxedArray 0 Nothing
    writeRef (engineRings e) none
    forM_ rings stopRingOf
