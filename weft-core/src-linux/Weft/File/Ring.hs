-- |
-- One ring of requests to files: a ring with its owner (@cbits/ring.c@), the
-- slots that requests take, a queue of those that found no slot, and the reader, a
-- pinned thread that hands completions out.
--
-- A request's states, in one word that its canceller, who launches it and the
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
module Weft.File.Ring
  ( Ring,
    newRing,
    stopRingOf,
    discardRing,

    -- * Requests
    Request,
    start,
    cancel,

    -- * Metrics
    RingMetrics (..),
    ringMetrics,
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
import Weft.Core.EventLog
import Weft.FFI.File
import Weft.Sys

-- | A ring.
data Ring = Ring
  { ringPtr :: !(Ptr CRing),
    -- | The capability whose threads it serves.
    ringOf :: !Int,
    -- | Where it is written down what is submitted and what is done.
    ringEventLog :: !EventLog,
    -- | By slot: what became of its request is told to this. Written by who has the
    -- slot, read by the reader, who puts 'ringIdle' back: a request keeps its memory alive.
    ringHandlers :: !(BoxedArray Request),
    -- | A request that ended long ago, for the slots that are free.
    ringIdle :: !Request,
    -- | Held for some nanoseconds by who takes or gives a slot.
    ringSlots :: !(MVar SlotTable),
    -- | Not 0 when the reader is to end.
    ringStop :: !AtomicWords,
    -- | Fills when something is done, or to end the reader.
    ringSignal :: !(MVar ()),
    ringEnded :: !(MVar ())
  }

-- | Free slots, how many are not, and waiting requests: the next ones, and the last
-- ones in reverse. Invariant: requests wait only while no slot is free.
data SlotTable = SlotTable ![Int] !Int ![Request] ![Request]

-- | A request.
data Request = Request !AtomicWords !Op !(CInt -> IO ())

-- | Requests that a ring has in the kernel at most.
ringDepth :: Int
ringDepth = 512

-- | A ring for threads of that capability; the errno when the kernel refuses.
newRing :: Int -> IO (Either CInt Ring)
newRing cap = mask_ $ openRing ringDepth cap >>= either (pure . Left) (fmap Right . staffed)
  where
    staffed p = do
      over <- newAtomicWords 1
      writeWord over 0 stateEnded
      let idle = Request over (opSync 0) (const (pure ()))
      handlers <- newBoxedArray ringDepth idle
      table <- newMVar (SlotTable [0 .. ringDepth - 1] 0 [] [])
      stop <- newAtomicWords 1
      eventLog <- openEventLog
      ring <- Ring p cap eventLog handlers idle table stop <$> newEmptyMVar <*> newEmptyMVar
      _ <- forkPinned cap ("weft files " <> show cap) (\_ -> reader ring)
      pure ring

-- | Cancel everything, have it told, and give the ring back. Nothing may be started
-- any more.
stopRingOf :: Ring -> IO ()
stopRingOf ring = mask_ $ do
  -- What waits for a slot: none of it may get one from a request that ends now.
  SlotTable free busy front back <- takeMVar (ringSlots ring)
  putMVar (ringSlots ring) (SlotTable free busy [] [])
  mapM_ (cancel ring) (front <> reverse back)
  stopRing (ringPtr ring)
  -- Everything is completed now. Told earlier, the reader could end before it has seen all of it.
  writeWord (ringStop ring) 0 1
  void (tryPutMVar (ringSignal ring) ())
  takeMVar (ringEnded ring)
  freeRing (ringPtr ring)

-- | In a forked child: give back what is the child's own.
discardRing :: Ring -> IO ()
discardRing = freeRing . ringPtr

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
start :: Ring -> Op -> (CInt -> IO ()) -> IO Request
start ring op handler = mask_ $ do
  state <- newAtomicWords 1
  let request = Request state op handler
  slot <- enlist request
  unless (slot < 0) $ do
    pokeWord state 0 stateLaunching
    launch ring slot request
  pure request
  where
    -- A free slot, or -1 and the queue. Interrupted here, nothing has happened.
    enlist request = do
      table <- takeMVar (ringSlots ring)
      case table of
        SlotTable (slot : free) busy front back -> slot <$ putMVar (ringSlots ring) (SlotTable free (busy + 1) front back)
        SlotTable [] busy front back -> (-1) <$ putMVar (ringSlots ring) (SlotTable [] busy front (request : back))

-- | Into the ring, by who has the slot.
launch :: Ring -> Int -> Request -> IO ()
launch ring slot request@(Request state op _) = do
  writeBoxedArray (ringHandlers ring) slot request
  generation <- ringGeneration (ringPtr ring) (fromIntegral slot)
  mark (ringEventLog ring) (Submitted (ringOf ring))
  submitRing (ringPtr ring) (fromIntegral slot) op
  found <- casWord state 0 stateLaunching (submitted slot generation)
  when (found == stateWanted) $ do
    writeWord state 0 (submitted slot generation)
    cancelRing (ringPtr ring) (fromIntegral slot) generation

-- | Have a request end soon: with 'errCancelled', or with a result if that was
-- quicker. A request that has ended is left alone.
cancel :: Ring -> Request -> IO ()
cancel ring request@(Request state _ handler) = mask_ $ do
  found <- readWord state 0
  if found == stateQueued
    then do
      was <- casWord state 0 stateQueued stateEnded
      if was == stateQueued then handler errCancelled else cancel ring request
    else
      if found == stateLaunching
        then do
          was <- casWord state 0 stateLaunching stateWanted
          unless (was == stateLaunching) (cancel ring request)
        else
          when (found .&. 7 == tagSubmitted) $
            cancelRing (ringPtr ring) (fromIntegral ((found `shiftR` 3) .&. 0x1fffff)) (fromIntegral (found `shiftR` 24))

-- The reader -----------------------------------------------------------------------

-- | Until it is told to stop.
reader :: Ring -> IO ()
reader ring = allocaBytes (4 + 8 * batch) $ \list -> do
  poke list 0
  let pairs = list `plusPtr` 4
      loop = do
        n <- collectRing (ringPtr ring) list pairs (fromIntegral batch)
        if n > 0
          then do
            mark (ringEventLog ring) (Finished (fromIntegral n))
            handOut pairs (fromIntegral n)
            -- Those who were waiting run first; what they ask for next goes to the
            -- kernel in one batch.
            yield
            rouseRing (ringPtr ring)
            loop
          else do
            stop <- readWord (ringStop ring) 0
            if stop == 0 then rest >> loop else putMVar (ringEnded ring) ()
  loop
  where
    batch = 64 :: Int
    handOut :: Ptr Int32 -> Int -> IO ()
    handOut pairs n = each 0
      where
        each i = when (i < n) $ do
          slot <- fromIntegral <$> peekElemOff pairs (2 * i)
          result <- fromIntegral <$> peekElemOff pairs (2 * i + 1)
          complete ring slot result
          each (i + 1)
    rest = do
      signal <- newStablePtrPrimMVar (ringSignal ring)
      back <- awaitRing (ringPtr ring) signal
      if castStablePtrToPtr back == nullPtr
        then takeMVar (ringSignal ring)
        else freeStablePtr back

-- | Tell a result, and give the slot to the next.
complete :: Ring -> Int -> CInt -> IO ()
complete ring slot result = do
  Request state _ handler <- readBoxedArray (ringHandlers ring) slot
  writeBoxedArray (ringHandlers ring) slot (ringIdle ring)
  writeWord state 0 stateEnded
  handler result
  passOn
  where
    passOn = do
      table <- takeMVar (ringSlots ring)
      case table of
        SlotTable free busy [] [] -> putMVar (ringSlots ring) (SlotTable (slot : free) (busy - 1) [] [])
        SlotTable free busy [] back -> putMVar (ringSlots ring) (SlotTable free busy (reverse back) []) >> passOn
        SlotTable free busy (next@(Request waiting _ _) : front) back -> do
          putMVar (ringSlots ring) (SlotTable free busy front back)
          found <- casWord waiting 0 stateQueued stateLaunching
          if found == stateQueued then launch ring slot next else passOn

-- Metrics --------------------------------------------------------------------------

-- | What a ring has done and has to do.
data RingMetrics = RingMetrics
  { -- | The capability whose threads it serves.
    ringCapability :: !Int,
    -- | Requests in the kernel now.
    ringInFlight :: !Int,
    -- | Requests that wait for a slot.
    ringWaiting :: !Int,
    -- | Requests since the beginning.
    ringRequests :: !Int,
    -- | System calls in which its owner submitted and waited.
    ringEntered :: !Int,
    -- | System calls to wake its owner.
    ringSignalled :: !Int,
    -- | Times its reader was woken.
    ringRung :: !Int,
    -- | Requests that were to be cancelled.
    ringCancels :: !Int
  }
  deriving (Eq, Show)

-- | At this moment.
ringMetrics :: Ring -> IO RingMetrics
ringMetrics ring = do
  SlotTable _ busy front back <- readMVar (ringSlots ring)
  RingMetrics (ringOf ring) busy (length front + length back)
    <$> get counterSubmitted
    <*> get counterEntered
    <*> get counterSignalled
    <*> get counterRung
    <*> get counterCancels
  where
    get = fmap fromIntegral . ringCounter (ringPtr ring)
