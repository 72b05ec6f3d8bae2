-- |
-- Reads and writes that bypass the page cache, by Linux's native asynchronous I\/O (io_submit(2)): for each capability
-- a context, and a thread, the reader, that waits like a reader of a socket until requests have completed, and runs
-- their handlers. No other OS thread takes part: the caller submits its request itself, and the capability's
-- dispatcher reports the completions.
--
-- A request's life:
--
-- @
--   rejected    io_submit(2) did not take it: the caller goes another way
--   submitted   in the kernel, counted in 'inFlight', its handler named by a stable pointer
--   completed   the reader has run the handler, once, and freed the stable pointer
-- @
--
-- A submitted request cannot be cancelled. It ends when the disk has answered.
module Weft.File.Aio
  ( Aio,
    newAio,
    aioDepth,
    stopAio,
    discardAio,
    submit,
    Submission (..),

    -- * Metrics
    DirectMetrics (..),
    directMetrics,
  )
where

import Control.Exception (IOException, try)
import Control.Monad (void, when)
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (plusPtr)
import Foreign.StablePtr (deRefStablePtr, freeStablePtr, newStablePtr)
import System.Posix.Types (Fd (..))
import Weft.Core.Descriptor
import qualified Weft.Core.EventLog as EventLog
import Weft.Core.Time (never)
import Weft.FFI.Aio
import Weft.FFI.File (Op)
import Weft.Runtime.Managers (currentManager, currentRegistry)
import Weft.Sys

-- | A context and its reader.
data Aio = Aio
  { aioContext :: !Context,
    aioSignal :: !Fd,
    -- | The eventfd, for the reader.
    aioDescriptor :: !Descriptor,
    -- | The capability whose threads it serves.
    aioOf :: !Int,
    aioEventLog :: !EventLog.EventLog,
    -- | Word 'inFlight': requests that were submitted, and whose handlers have not run. Any thread adds before it submits;
    -- the reader subtracts. Word 'suspect': how many of the next submissions are watched; any thread changes it. Word
    -- 'total': all requests that were submitted; any thread adds.
    aioWords :: !AtomicWords,
    aioEnded :: !(MVar ())
  }

-- | The largest number of requests of a context in the kernel.
aioDepth :: Int
aioDepth = 64

-- | A context for threads of that capability, or the errno if the kernel refuses it.
newAio :: Int -> IO (Either CInt Aio)
newAio cap = mask_ $ openContext aioDepth >>= either (pure . Left) (fmap Right . staffed)
  where
    staffed (context, signal) = do
      descriptor <- newDescriptor currentRegistry currentManager signal (\_ -> pure () <$ closeSignal signal)
      aio <- Aio context signal descriptor cap <$> EventLog.openEventLog <*> newAtomicWords 3 <*> newEmptyMVar
      _ <- forkPinned cap ("weft direct files " <> show cap) (\_ -> reader aio)
      pure aio

-- | Wait for all requests, run their handlers, and close the context. No request may be submitted any more.
stopAio :: Aio -> IO ()
stopAio aio = mask_ $ do
  _ <- closeDescriptor (aioDescriptor aio)
  takeMVar (aioEnded aio)
  closeContext (aioContext aio)

-- | In a forked child, which has the parent's eventfd, but not its context.
discardAio :: Aio -> IO ()
discardAio = closeSignal . aioSignal

inFlight, suspect, total :: Int
inFlight = 0
suspect = 1
total = 2

-- | Submit a request. Its result goes to the handler, once, unless it is rejected; @-EAGAIN@ says that it has to go
-- another way. The handler must neither block nor throw. Until it has run, it refers to the request's memory.
--
-- It is 'AcceptedLate' if the call has blocked for longer than a millisecond, since the disk's queue was full. After a
-- slow call it is not known whether it has blocked, or whether another process had the core; so the next 64
-- submissions are watched.
submit :: Aio -> Op -> (CInt -> IO ()) -> IO Submission
submit aio op handler = mask_ $ do
  name <- newStablePtr handler
  _ <- addWord (aioWords aio) inFlight 1
  watched <- (> 0) <$> readWord (aioWords aio) suspect
  when watched (void (addWord (aioWords aio) suspect (-1)))
  outcome <- submitTo (aioContext aio) watched op name
  if outcome == Rejected
    then addWord (aioWords aio) inFlight (-1) >> freeStablePtr name
    else addWord (aioWords aio) total 1 >> EventLog.mark (aioEventLog aio) (EventLog.Submitted (aioOf aio))
  if outcome == AcceptedLate && not watched
    then Accepted <$ writeWord (aioWords aio) suspect 64
    else pure outcome

-- | Runs handlers until the descriptor is closed, and then those of the remaining requests. If no manager can report the
-- descriptor's events, since there is no descriptor for a new one, it waits by a call that blocks.
reader :: Aio -> IO ()
reader aio = allocaBytes (batch * completionSize) $ \list -> do
  let loop = do
        outcome <- try (perform (aioDescriptor aio) Reading never (collected <$> collectFrom context batch list))
        case outcome of
          Right (Completed n) -> finish n >> loop
          Right _ -> rest
          Left unattached -> const block (unattached :: IOException) >> loop
      rest = do
        left <- readWord (aioWords aio) inFlight
        when (left > 0) (block >> rest)
      block = waitFor context batch list >>= finish . max 0
      finish n = do
        EventLog.mark (aioEventLog aio) (EventLog.Finished n)
        mapM_ (\i -> complete (list `plusPtr` (i * completionSize))) [0 .. n - 1]
        void (addWord (aioWords aio) inFlight (negate n))
      complete p = do
        name <- completionName p
        handler <- deRefStablePtr name
        freeStablePtr name
        completionResult p >>= handler
  loop
  putMVar (aioEnded aio) ()
  where
    context = aioContext aio
    batch = aioDepth
    collected n
      | n <= 0 = NotYet
      | n < batch = Drained n
      | otherwise = Done n

-- Metrics --------------------------------------------------------------------------

-- | Counters of a context.
data DirectMetrics = DirectMetrics
  { -- | The capability whose threads it serves.
    directCapability :: !Int,
    -- | Requests in the kernel now.
    directInFlight :: !Int,
    -- | All requests so far.
    directRequests :: !Int
  }
  deriving (Eq, Show)

-- | Read the counters.
directMetrics :: Aio -> IO DirectMetrics
directMetrics aio = DirectMetrics (aioOf aio) <$> readWord (aioWords aio) inFlight <*> readWord (aioWords aio) total

closeSignal :: Fd -> IO ()
closeSignal (Fd fd) = c_close fd 0

foreign import ccall unsafe "weft_wakeup_close" c_close :: CInt -> CInt -> IO ()
