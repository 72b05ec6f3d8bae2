-- |
-- One lane of requests to files: a ring with its owner (@cbits/lane.c@), the
-- slots that requests take, a queue of those that found no slot, and the reader, a
-- pinned thread that hands completions out.
--
-- A request's states, in one cell that its canceller, who launches it and the
-- reader move by compare-and-swap:
--
-- @
--   Queued     waits for a slot          -> Launching (launcher), Ended (canceller)
--   Launching  on its way to the ring    -> Submitted (launcher), Wanted (canceller)
--   Wanted     the same, to be cancelled -> Submitted (launcher, who then cancels)
--   Submitted  slot and generation       -> Ended (reader)
--   Ended      its handler has run or is about to
-- @
--
-- The handler runs once, on the reader's thread or, if it is cancelled while it
-- is queued, on the canceller's; until then the request's memory must stay, for
-- which the handler holds on to it. Handlers neither block nor throw.
module Weft.File.Lane
  ( Lane,
    newLane,
    stopLaneOf,
    discardLane,
    laneDepth,

    -- * Requests
    Request,
    start,
    cancel,

    -- * Figures
    LaneFigures (..),
    laneFigures,
  )
where

import Control.Monad (unless, void, when)
import Data.Bits (shiftL, shiftR, (.&.), (.|.))
import Data.Int (Int32)
import Data.Word (Word32)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr, nullPtr, plusPtr)
import Foreign.StablePtr (castStablePtrToPtr, freeStablePtr)
import Foreign.Storable (peekElemOff, poke)
import GHC.Conc (newStablePtrPrimMVar)
import Weft.FFI.File
import Weft.Sys

-- | A lane.
data Lane = Lane
  { lanePtr :: !(Ptr CLane),
    -- | By slot: what became of its request is told to this. Written by who has the
    -- slot, read by the reader.
    laneHandlers :: !(Slots Request),
    -- | Held for some nanoseconds by who takes or gives a slot.
    laneBooks :: !(MVar Books),
    -- | Not 0 when the reader is to end.
    laneStop :: !Cells,
    -- | Fills when something is done, or to end the reader.
    laneBell :: !(MVar ()),
    laneEnded :: !(MVar ())
  }

-- | Free slots, how many are not, and waiting requests: the next ones, and the last
-- ones in reverse. Invariant: requests wait only while no slot is free.
data Books = Books ![Int] !Int ![Request] ![Request]

-- | A request.
data Request = Request !Cells !Op !(CInt -> IO ())

-- | Requests that a lane has in the kernel at most.
laneDepth :: Int
laneDepth = 512

-- | A lane for threads of that capability; the errno when the kernel refuses.
newLane :: Int -> IO (Either CInt Lane)
newLane cap = mask_ $ openLane laneDepth cap >>= either (pure . Left) (fmap Right . staffed)
  where
    staffed p = do
      idle <- newCells 1
      handlers <- newSlots laneDepth (Request idle (opSync 0) (const (pure ())))
      books <- newMVar (Books [0 .. laneDepth - 1] 0 [] [])
      stop <- newCells 1
      lane <- Lane p handlers books stop <$> newEmptyMVar <*> newEmptyMVar
      _ <- forkPinned cap ("weft files " <> show cap) (\_ -> reader lane)
      pure lane

-- | Cancel everything, have it told, and give the lane back. Nothing may be started
-- any more.
stopLaneOf :: Lane -> IO ()
stopLaneOf lane = mask_ $ do
  writeCell (laneStop lane) 0 1
  stopLane (lanePtr lane)
  void (tryPutMVar (laneBell lane) ())
  takeMVar (laneEnded lane)
  freeLane (lanePtr lane)

-- | In a forked child: give back what is the child's own.
discardLane :: Lane -> IO ()
discardLane = freeLane . lanePtr

-- Requests -------------------------------------------------------------------------

stateQueued, stateLaunching, stateWanted, stateEnded, tagSubmitted :: Int
stateQueued = 0
stateLaunching = 1
stateWanted = 2
stateEnded = 3
tagSubmitted = 4

submitted :: Int -> Word32 -> Int
submitted slot generation = tagSubmitted .|. (slot `shiftL` 3) .|. (fromIntegral generation `shiftL` 24)

-- | Start an operation. Its result goes to the handler, once.
start :: Lane -> Op -> (CInt -> IO ()) -> IO Request
start lane op handler = mask_ $ do
  state <- newCells 1
  let request = Request state op handler
  slot <- enlist request
  unless (slot < 0) $ do
    pokeCell state 0 stateLaunching
    launch lane slot request
  pure request
  where
    -- A free slot, or -1 and the queue. Interrupted here, nothing has happened.
    enlist request = do
      books <- takeMVar (laneBooks lane)
      case books of
        Books (slot : free) busy front back -> slot <$ putMVar (laneBooks lane) (Books free (busy + 1) front back)
        Books [] busy front back -> (-1) <$ putMVar (laneBooks lane) (Books [] busy front (request : back))

-- | Into the ring, by who has the slot.
launch :: Lane -> Int -> Request -> IO ()
launch lane slot request@(Request state op _) = do
  writeSlot (laneHandlers lane) slot request
  generation <- laneGeneration (lanePtr lane) (fromIntegral slot)
  submitLane (lanePtr lane) (fromIntegral slot) op
  found <- casCell state 0 stateLaunching (submitted slot generation)
  when (found == stateWanted) $ do
    writeCell state 0 (submitted slot generation)
    cancelLane (lanePtr lane) (fromIntegral slot) generation

-- | Have a request end soon: with 'errCancelled', or with a result if that was
-- quicker. A request that has ended is left alone.
cancel :: Lane -> Request -> IO ()
cancel lane request@(Request state _ handler) = mask_ $ do
  found <- readCell state 0
  if found == stateQueued
    then do
      was <- casCell state 0 stateQueued stateEnded
      if was == stateQueued then handler errCancelled else cancel lane request
    else
      if found == stateLaunching
        then do
          was <- casCell state 0 stateLaunching stateWanted
          unless (was == stateLaunching) (cancel lane request)
        else
          when (found .&. 7 == tagSubmitted) $
            cancelLane (lanePtr lane) (fromIntegral ((found `shiftR` 3) .&. 0x1fffff)) (fromIntegral (found `shiftR` 24))

-- The reader -----------------------------------------------------------------------

-- | Until it is told to stop.
reader :: Lane -> IO ()
reader lane = allocaBytes (4 + 8 * batch) $ \list -> do
  poke list 0
  let pairs = list `plusPtr` 4
      loop = do
        n <- collectLane (lanePtr lane) list pairs (fromIntegral batch)
        if n > 0
          then do
            handOut pairs (fromIntegral n)
            -- Those who were waiting run first; what they ask for next goes to the
            -- kernel in one batch.
            yield
            rouseLane (lanePtr lane)
            loop
          else do
            stop <- readCell (laneStop lane) 0
            if stop == 0 then rest >> loop else putMVar (laneEnded lane) ()
  loop
  where
    batch = 64 :: Int
    handOut :: Ptr Int32 -> Int -> IO ()
    handOut pairs n = each 0
      where
        each i = when (i < n) $ do
          slot <- fromIntegral <$> peekElemOff pairs (2 * i)
          result <- fromIntegral <$> peekElemOff pairs (2 * i + 1)
          complete lane slot result
          each (i + 1)
    rest = do
      bell <- newStablePtrPrimMVar (laneBell lane)
      back <- awaitLane (lanePtr lane) bell
      if castStablePtrToPtr back == nullPtr
        then takeMVar (laneBell lane)
        else freeStablePtr back

-- | Tell a result, and give the slot to the next.
complete :: Lane -> Int -> CInt -> IO ()
complete lane slot result = do
  Request state _ handler <- readSlot (laneHandlers lane) slot
  writeCell state 0 stateEnded
  handler result
  passOn
  where
    passOn = do
      books <- takeMVar (laneBooks lane)
      case books of
        Books free busy [] [] -> putMVar (laneBooks lane) (Books (slot : free) (busy - 1) [] [])
        Books free busy [] back -> putMVar (laneBooks lane) (Books free busy (reverse back) []) >> passOn
        Books free busy (next@(Request waiting _ _) : front) back -> do
          putMVar (laneBooks lane) (Books free busy front back)
          found <- casCell waiting 0 stateQueued stateLaunching
          if found == stateQueued then launch lane slot next else passOn

-- Figures --------------------------------------------------------------------------

-- | What a lane has done and has to do.
data LaneFigures = LaneFigures
  { -- | Requests in the kernel now.
    laneInFlight :: !Int,
    -- | Requests that wait for a slot.
    laneWaiting :: !Int,
    -- | Requests since the beginning.
    laneRequests :: !Int,
    -- | System calls in which its owner submitted and waited.
    laneEntered :: !Int,
    -- | System calls to wake its owner.
    laneSignalled :: !Int,
    -- | Times its reader was woken.
    laneRung :: !Int,
    -- | Requests that were to be cancelled.
    laneCancels :: !Int
  }
  deriving (Eq, Show)

-- | At this moment.
laneFigures :: Lane -> IO LaneFigures
laneFigures lane = do
  Books _ busy front back <- readMVar (laneBooks lane)
  LaneFigures busy (length front + length back)
    <$> get counterSubmitted
    <*> get counterEntered
    <*> get counterSignalled
    <*> get counterRung
    <*> get counterCancels
  where
    get = fmap fromIntegral . laneCounter (lanePtr lane)
