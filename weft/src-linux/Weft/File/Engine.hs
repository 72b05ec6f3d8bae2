-- |
-- How a request to a file is carried out. There are four ways, tried in this
-- order:
--
-- 1. At once, where the kernel can say that it has what is asked for (the page
--    cache, known paths): no thread waits.
--
-- 2. By a call that blocks, while hardly any others are under way: two changes of
--    OS threads cost more than a disk with nothing else to do.
--
-- 3. By the lane of the caller's capability ("Weft.File.Lane"): all requests of
--    the capability's threads go to an io_uring in batches.
--
-- 4. Where the kernel refuses io_uring, or has no such operation in it, by the pool of
--    "Weft.Blocking".
--
-- The environment variable @WEFT_FILES@ (@io_uring@, @threads@) or 'preferFiles'
-- forces the third or the fourth.
module Weft.File.Engine
  ( -- * Carrying out
    Manner (..),
    perform,
    begin,

    -- * Choosing
    FileEngine (..),
    preferFiles,
    filesChoice,

    -- * Figures
    laneReports,
    stopLanes,
  )
where

import Control.Concurrent (forkIO, killThread, throwTo)
import Control.Exception (Exception, SomeException, allowInterrupt, catch, fromException, throwIO)
import Control.Monad (forM_, void, when)
import Data.Maybe (catMaybes, fromMaybe, isJust)
import Foreign.C.Types (CInt)
import GHC.Conc (labelThread)
import GHC.IO.Exception (IOException (ioe_errno))
import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..))
import Weft.Blocking (programPool)
import qualified Weft.Blocking as Blocking
import Weft.FFI.File
import Weft.FFI.RingExcuse (ringExcuse)
import Weft.File.Lane
import Weft.Sys
import Weft.Thread (threadWaitRead, threadWaitWrite)

-- Choosing -------------------------------------------------------------------------

-- | What carries requests out that have to wait.
data FileEngine
  = -- | Rings, with blocking calls while little is under way; or the pool.
    Adaptive
  | -- | Rings only.
    Rings
  | -- | The pool of "Weft.Blocking" only.
    Threads
  deriving (Eq, Show)

-- | Use this engine from now on, instead of what @WEFT_FILES@ says.
preferFiles :: FileEngine -> IO ()
preferFiles = writeRef preference . Just

preference :: Ref (Maybe FileEngine)
preference = unsafePerformIO (newRef Nothing)
{-# NOINLINE preference #-}

-- | What is used, and why there are no rings if there are none.
filesChoice :: IO (FileEngine, Maybe String)
filesChoice = do
  wanted <- wantedEngine
  if wanted == Threads
    then pure (Threads, Nothing)
    else do
      refused <- engineRefusal =<< theEngine
      pure (maybe (wanted, Nothing) (\why -> (Threads, Just why)) refused)

wantedEngine :: IO FileEngine
wantedEngine = readRef preference >>= maybe (pure fromEnvironment) pure

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

-- | What one process has.
data Engine = Engine
  { engineGeneration :: !Int,
    -- | By capability. Written under the lock, read by anyone.
    engineLanes :: !(Ref (Slots (Maybe Lane))),
    -- | The errno with which the kernel refused a ring. Written under the lock.
    engineRefused :: !(Ref (Maybe CInt)),
    -- | Requests that wait for a disk now.
    engineBusy :: !Cells,
    engineLock :: !(MVar ())
  }

newEngine :: IO Engine
newEngine = do
  none <- newSlots 0 Nothing
  e <- Engine <$> forkGeneration <*> newRef none <*> newRef Nothing <*> newCells 1 <*> newMVar ()
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
      when ours (mapM_ discardLane =<< lanesOf e)
      theEngine

lanesOf :: Engine -> IO [Lane]
lanesOf e = do
  arr <- readRef (engineLanes e)
  catMaybes <$> mapM (readSlot arr) [0 .. sizeSlots arr - 1]

-- | The lane for the caller's capability, if there can be any.
laneFor :: Engine -> IO (Maybe Lane)
laneFor e = do
  cap <- myCapability
  arr <- readRef (engineLanes e)
  found <- if cap < sizeSlots arr then readSlot arr cap else pure Nothing
  case found of
    Just _ -> pure found
    Nothing -> do
      refused <- readRef (engineRefused e)
      maybe (withMVar (engineLock e) (const (openFor e cap))) (const (pure Nothing)) refused
{-# INLINE laneFor #-}

-- | With the lock.
openFor :: Engine -> Int -> IO (Maybe Lane)
openFor e cap = do
  arr <- readRef (engineLanes e)
  found <- if cap < sizeSlots arr then readSlot arr cap else pure Nothing
  refused <- readRef (engineRefused e)
  case (found, refused) of
    (Nothing, Nothing) -> newLane cap >>= either refuse (keep arr)
    _ -> pure found
  where
    refuse code = Nothing <$ writeRef (engineRefused e) (Just code)
    keep arr lane = do
      bigger <- newSlots (max (cap + 1) (sizeSlots arr)) Nothing
      copySlots arr bigger
      writeSlot bigger cap (Just lane)
      writeRef (engineLanes e) bigger
      pure (Just lane)

-- | Why there are no rings; makes one if that was not tried yet.
engineRefusal :: Engine -> IO (Maybe String)
engineRefusal e = do
  _ <- laneFor e
  fmap ringExcuse <$> readRef (engineRefused e)

-- Carrying out ---------------------------------------------------------------------

-- | What a request's result and memory are to whom.
data Manner = Manner
  { -- | May it be tried at once (it is not read past the page cache)?
    mannerTry :: !Bool,
    -- | May it be done by a call that blocks? Not what may wait for ever.
    mannerBlock :: !Bool,
    -- | Must its caller, when interrupted, wait for its end: because the memory is
    -- lent, or because the result is wanted all the same, which this is told.
    mannerStay :: !(Maybe (CInt -> IO ())),
    -- | Told the way to end it early when it waits; returns how to take that back.
    mannerWatch :: !(IO () -> IO (IO ())),
    -- | The request's memory is used until now.
    mannerKeep :: !(IO ()),
    -- | Its descriptor is used from now on, until what this returns is run. Throws when the file is
    -- closed.
    mannerHold :: !(IO (IO ())),
    -- | What to do with a result for which nobody waits any more.
    mannerDispose :: !(CInt -> IO ())
  }

-- | Carry an operation out, and wait for its result. Interruptible where it waits;
-- in the second way above where the kernel is, which it is not for a disk.
perform :: Manner -> Op -> IO CInt
perform manner op = do
  r <- if mannerTry manner then tryOp op else pure errAgain
  result <- if r /= errAgain then pure r else slow
  if result == errInterrupted
    then allowInterrupt >> perform manner op
    else result <$ mannerKeep manner
  where
    slow = do
      e <- theEngine
      wanted <- wantedEngine
      mask_ (if mannerBlock manner then counted e wanted else awaitOp e wanted manner op)
    counted e wanted = do
      others <- addCell (engineBusy e) 0 1
      let blocks = wanted == Adaptive && others < fewEnough
      r <- (if blocks then runOp op else awaitOp e wanted manner op) `onException` leave e
      r <$ leave e
    leave e = addCell (engineBusy e) 0 (-1)

-- | Begin an operation and wait for its end. Masked.
awaitOp :: Engine -> FileEngine -> Manner -> Op -> IO CInt
awaitOp e wanted manner op = do
  box <- newEmptyMVar
  -- 0 while it is open who gets the result, 1 when it was put into the box, 2 when
  -- nobody waits for it any more.
  fate <- newCells 1
  release <- mannerHold manner
  cancelIt <- (`onException` release) . beginWith e wanted op $ \r -> do
    mannerKeep manner
    release
    found <- casCell fate 0 0 1
    if found == 0 then putMVar box r else when (r >= 0) (mannerDispose manner r)
  let given = do
        unwatch <- mannerWatch manner cancelIt
        takeMVar box <* unwatch `onException` unwatch
  given `catch` \x -> do
    cancelIt
    found <- if isJust (mannerStay manner) then pure 1 else casCell fate 0 0 2
    when (found == 1) $ do
      r <- uninterruptibleMask_ (takeMVar box)
      when (r >= 0) (fromMaybe (mannerDispose manner) (mannerStay manner) r)
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

-- | Start an operation that may have to wait; its result goes to the handler, which
-- must neither block nor throw, once. Returns the way to have it end soon, by
-- 'errCancelled' if nothing else is quicker; memory and descriptor are used until
-- the handler runs.
begin :: Op -> (CInt -> IO ()) -> IO (IO ())
begin op handler = do
  e <- theEngine
  wanted <- wantedEngine
  let leave = void (addCell (engineBusy e) 0 (-1))
  _ <- addCell (engineBusy e) 0 1
  beginWith e wanted op (\r -> leave >> handler r) `onException` leave

beginWith :: Engine -> FileEngine -> Op -> (CInt -> IO ()) -> IO (IO ())
beginWith e wanted op handler = do
  lane <- if wanted == Threads || isCall op then pure Nothing else laneFor e
  case lane of
    Just l -> cancel l <$> start l op handler
    Nothing
      | opOff op == maxBound -> beginReady op handler
      | otherwise -> beginPooled op handler

-- | On the pool. A call that has begun is interrupted, where the kernel lets it be.
-- States, in one cell:
--
-- @
--   0 queued  -> 1 (who runs it), 3 (canceller)
--   1 running -> 2 (canceller, who then throws), 3 (who runs it)
--   2 running and to be interrupted: who runs it takes the exception
--   3 ended
-- @
beginPooled :: Op -> (CInt -> IO ()) -> IO (IO ())
beginPooled op handler = do
  state <- newCells 1
  runner <- newEmptyMVar
  Blocking.submit programPool . mask_ $ do
    putMVar runner =<< myThreadId
    found <- casCell state 0 0 1
    when (found == 0) $ do
      r <- persist state
      end <- casCell state 0 1 3
      when (end == 2) ((newEmptyMVar >>= takeMVar) `catch` \Cancelled -> pure ())
      handler r
  pure . mask_ $ do
    queued <- casCell state 0 0 3
    if queued == 0
      then handler errCancelled
      else do
        found <- casCell state 0 1 2
        when (found == 1) (void (forkIO (readMVar runner >>= (`throwTo` Cancelled))))
  where
    persist state = do
      r <- runOp op
      wanted <- readCell state 0
      if r /= errInterrupted
        then pure r
        else if wanted == 1 then persist state else pure errCancelled

data Cancelled = Cancelled
  deriving (Show)

instance Exception Cancelled

-- | At a stream's own position: when the descriptor is ready. So much can be written
-- then without blocking (pipe(7)).
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

-- Figures and the end ----------------------------------------------------------------

-- | Of all lanes.
laneReports :: IO [LaneFigures]
laneReports = theEngine >>= lanesOf >>= mapM laneFigures

-- | Give all lanes back. What is under way is cancelled; nothing may be asked for
-- while this runs. For tests, and for programs that want to leave nothing behind.
stopLanes :: IO ()
stopLanes = do
  e <- theEngine
  withMVar (engineLock e) $ \() -> do
    lanes <- lanesOf e
    none <- newSlots 0 Nothing
    writeRef (engineLanes e) none
    forM_ lanes stopLaneOf
