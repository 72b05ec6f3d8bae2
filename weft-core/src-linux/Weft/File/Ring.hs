-- |
-- A ring for requests to files: an io_uring with the OS thread that owns it (@cbits\/linux\/file_ring.c@), the
-- slots of requests, a queue of requests that wait for a slot, and the reader, a
-- pinned thread that handles completions.
--
-- A request's states, in one word that the canceller, the launcher and the
-- reader change by compare-and-swap:
--
-- @
--   Queued     waits for a slot          -> Launching (launcher), Ended (canceller)
--   Launching  on its way to the ring    -> Submitted (launcher), Wanted (canceller)
--   Wanted     on its way, to be cancelled -> Submitted (launcher, which then cancels)
--   Submitted  its slot and generation   -> Ended (reader)
--   Ended      its handler has run or is about to
-- @
--
-- The handler runs once: on the reader's thread, or on the canceller's if the request is cancelled while it
-- is queued. Until then the request's memory must stay valid, so
-- the handler refers to it. Handlers must neither block nor throw.
module Weft.File.Ring
  ( Ring,
    newRing,
    ringDepth,
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
    -- | Where markers of submissions and completions are written.
    ringEventLog :: !EventLog,
    -- | The request of each slot. Written by the thread that takes the
    -- slot; the reader reads it and puts 'ringIdle' back, since a request keeps its memory alive.
    ringHandlers :: !(BoxedArray Request),
    -- | A request that has ended, for free slots.
    ringIdle :: !Request,
    -- | Held for some nanoseconds by a thread that takes or frees a slot.
    ringSlots :: !(MVar SlotTable),
    -- | Not 0 when the reader has to end.
    ringStop :: !WordArray,
    -- | Filled when requests have completed, or to end the reader.
    ringSignal :: !(MVar ()),
    ringEnded :: !(MVar ())
  }

-- | The free slots, the number of slots in use, and the waiting requests: the first ones, and the last
-- ones in reverse. Invariant: requests wait only while no slot is free.
data SlotTable = SlotTable ![Int] !Int ![Request] ![Request]

-- | A request.
data Request = Request !WordArray !Op !(CInt -> IO ())

-- | The largest number of requests of a ring in the kernel.
ringDepth :: Int
ringDepth = 512

-- | A ring for threads of that capability, or the errno if the kernel refuses it.
newRing :: Int -> IO (Either CInt Ring)
newRing cap = mask_ $ openRing ringDepth cap >>= either (pure . Left) (fmap Right . staffed)
  where
    staffed p = do
      over <- newWordArray 1
      writeWord over 0 stateEnded
      let idle = Request over (opSync 0) (const (pure ()))
      handlers <- newBoxedArray ringDepth idle
      table <- newMVar (SlotTable [0 .. ringDepth - 1] 0 [] [])
      stop <- newWordArray 1
      eventLog <- openEventLog
      ring <- Ring p cap eventLog handlers idle table stop <$> newEmptyMVar <*> newEmptyMVar
      _ <- forkPinned cap ("weft files " <> show cap) (\_ -> reader ring)
      pure ring

-- | Cancel all requests, run their handlers, and close the ring. No request may be started
-- any more.
stopRingOf :: Ring -> IO ()
stopRingOf ring = mask_ $ do
  -- The waiting requests are taken out, so that none gets the slot of a request that ends now.
  SlotTable free busy front back <- takeMVar (ringSlots ring)
  putMVar (ringSlots ring) (SlotTable free busy [] [])
  mapM_ (cancel ring) (front <> reverse back)
  stopRing (ringPtr ring)
  -- All requests have completed now. If this were set earlier, the reader could end before it has handled all of them.
  writeWord (ringStop ring) 0 1
  void (tryPutMVar (ringSignal ring) ())
  takeMVar (ringEnded ring)
  freeRing (ringPtr ring)

-- | In a forked child: release what belongs to the child.
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
  state <- newWordArray 1
  let request = Request state op handler
  slot <- enlist request
  unless (slot < 0) $ do
    pokeWord state 0 stateLaunching
    launch ring slot request
  pure request
  where
    -- A free slot, or -1 if the request was queued. If this is interrupted, nothing has happened.
    enlist request = do
      table <- takeMVar (ringSlots ring)
      case table of
        SlotTable (slot : free) busy front back -> slot <$ putMVar (ringSlots ring) (SlotTable free (busy + 1) front back)
        SlotTable [] busy front back -> (-1) <$ putMVar (ringSlots ring) (SlotTable [] busy front (request : back))

-- | Submit a request to the ring, in its slot.
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

-- | Make a request end soon, with 'errCancelled', or with its result if that comes
-- first. No effect on a request that has ended.
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

-- | The reader's loop, until it has to end.
reader :: Ring -> IO ()
reader ring = allocaBytes (4 + 8 * batch) $ \list -> do
  poke list 0
  let pairs = list `plusPtr` 4
      loop = do
        n <- collectRing (ringPtr ring) list pairs (fromIntegral batch)
        if n > 0
          then do
            mark (ringEventLog ring) (Finished (fromIntegral n))
            dispatch pairs (fromIntegral n)
            -- The threads that were waiting run first, so that their next requests go to the
            -- kernel in one batch.
            yield
            wakeRing (ringPtr ring)
            loop
          else do
            stop <- readWord (ringStop ring) 0
            if stop == 0 then rest >> loop else putMVar (ringEnded ring) ()
  loop
  where
    batch = 64 :: Int
    dispatch :: Ptr Int32 -> Int -> IO ()
    dispatch pairs n = each 0
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

-- | Run a request's handler with its result, and give the slot to the next request.
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

-- | Counters of a ring.
data RingMetrics = RingMetrics
  { -- | The capability whose threads it serves.
    ringCapability :: !Int,
    -- | Requests in the kernel now.
    ringInFlight :: !Int,
    -- | Requests that wait for a slot.
    ringWaiting :: !Int,
    -- | All requests so far.
    ringRequests :: !Int,
    -- | System calls by which its owner submitted and waited.
    ringEntered :: !Int,
    -- | System calls to wake its owner.
    ringSignalled :: !Int,
    -- | Times its reader was woken.
    ringRung :: !Int,
    -- | Requests for which cancellation was requested.
    ringCancels :: !Int
  }
  deriving (Eq, Show)

-- | Read the counters.
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
