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
--   submitted   in the kernel; its handler is in a slot, whose number is the request's name
--   completed   the reader has run the handler, once, and freed the slot
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
import Control.Monad (unless, void, when)
import Data.Bits (bit, clearBit, complement, countTrailingZeros, finiteBitSize, popCount, setBit, (.|.))
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (plusPtr)
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
    -- | The handlers of requests, by slot. Written by the thread that has taken the slot.
    aioHandlers :: !(BoxedArray (CInt -> IO ())),
    -- | Word 'free': the slots that are free, a bit for each. Any thread takes one before it submits, by
    -- compare-and-swap; the reader frees it after the handler has run. Word 'suspect': how many of the next submissions
    -- are watched; any thread changes it. Word 'total': all requests that were submitted; any thread adds.
    aioWords :: !WordArray,
    aioEnded :: !(MVar ())
  }

-- | The largest number of requests of a context in the kernel: the bits of a word.
aioDepth :: Int
aioDepth = finiteBitSize (0 :: Int)

-- | A context for threads of that capability, or the errno if the kernel refuses it.
newAio :: Int -> IO (Either CInt Aio)
newAio cap = mask_ $ openContext aioDepth >>= either (pure . Left) (fmap Right . staffed)
  where
    staffed (context, signal) = do
      descriptor <- newDescriptor currentRegistry currentManager signal (\_ -> pure () <$ closeSignal signal)
      aio <- Aio context signal descriptor cap <$> EventLog.openEventLog <*> newBoxedArray aioDepth nothing <*> newWordArray 3 <*> newEmptyMVar
      writeWord (aioWords aio) free allFree
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

free, suspect, total :: Int
free = 0
suspect = 1
total = 2

-- | The word 'free' if no request is submitted.
allFree :: Int
allFree = complement 0

-- | The handler of a slot that is free.
nothing :: CInt -> IO ()
nothing _ = pure ()

-- | Take a slot, if one is free.
takeSlot :: Aio -> IO (Maybe Int)
takeSlot aio = go =<< readWord (aioWords aio) free
  where
    go 0 = pure Nothing
    go slots = do
      let slot = countTrailingZeros slots
      found <- casWord (aioWords aio) free slots (clearBit slots slot)
      if found == slots then pure (Just slot) else go found

-- | Free the slots whose bits are set.
freeSlots :: Aio -> Int -> IO ()
freeSlots aio ended = go =<< readWord (aioWords aio) free
  where
    go slots = do
      found <- casWord (aioWords aio) free slots (slots .|. ended)
      unless (found == slots) (go found)

-- | Submit a request. Its result goes to the handler, once, unless it is rejected; @-EAGAIN@ says that it has to go
-- another way. The handler must neither block nor throw. Until it has run, it refers to the request's memory.
--
-- It is 'AcceptedLate' if the call has blocked for longer than a millisecond, since the disk's queue was full. After a
-- slow call it is not known whether it has blocked, or whether another process had the core; so the next 64
-- submissions are watched.
submit :: Aio -> Op -> (CInt -> IO ()) -> IO Submission
submit aio op handler = mask_ (takeSlot aio >>= maybe (pure Rejected) submitAs)
  where
    submitAs slot = do
      writeBoxedArray (aioHandlers aio) slot handler
      watched <- (> 0) <$> readWord (aioWords aio) suspect
      when watched (void (addWord (aioWords aio) suspect (-1)))
      outcome <- submitTo (aioContext aio) watched op slot
      if outcome == Rejected
        then writeBoxedArray (aioHandlers aio) slot nothing >> freeSlots aio (bit slot)
        else addWord (aioWords aio) total 1 >> EventLog.mark (aioEventLog aio) (EventLog.Submitted (aioOf aio))
      if outcome == AcceptedLate && not watched
        then Accepted <$ writeWord (aioWords aio) suspect 64
        else pure outcome

-- | Runs handlers until the descriptor is closed, and then those of the remaining requests. If no manager can report
-- the descriptor's events, since there is no descriptor for a new one, it waits by a call that blocks.
reader :: Aio -> IO ()
reader aio = allocaBytes (aioDepth * completionSize) $ \list -> do
  let loop = do
        outcome <- try (perform (aioDescriptor aio) Reading never (collected <$> collectFrom context aioDepth list))
        case outcome of
          Right (Completed n) -> finish n >> loop
          Right _ -> rest
          Left unattached -> const block (unattached :: IOException) >> loop
      rest = do
        slots <- readWord (aioWords aio) free
        unless (slots == allFree) (block >> rest)
      block = waitFor context aioDepth list >>= finish . max 0
      finish n = do
        EventLog.mark (aioEventLog aio) (EventLog.Finished n)
        complete n 0 0
      complete n i !ended
        | i == n = freeSlots aio ended
        | otherwise = do
          let p = list `plusPtr` (i * completionSize)
          slot <- completionName p
          handler <- readBoxedArray (aioHandlers aio) slot
          writeBoxedArray (aioHandlers aio) slot nothing
          completionResult p >>= handler
          complete n (i + 1) (setBit ended slot)
  loop
  putMVar (aioEnded aio) ()
  where
    context = aioContext aio
    collected n
      | n <= 0 = NotYet
      | n < aioDepth = Drained n
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
directMetrics aio = DirectMetrics (aioOf aio) . popCount . complement <$> readWord (aioWords aio) free <*> readWord (aioWords aio) total

closeSignal :: Fd -> IO ()
closeSignal (Fd fd) = c_close fd 0

foreign import ccall unsafe "weft_wakeup_close" c_close :: CInt -> CInt -> IO ()
