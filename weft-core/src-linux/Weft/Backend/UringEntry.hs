-- |
-- The state of a descriptor number in the io_uring back end, and how a completion
-- changes it. For "Weft.Backend.Uring", which keeps these records in an array.
-- Pure, except for reading and writing a record.
module Weft.Backend.UringEntry
  ( -- * Records
    Entry (..),
    EntryState (..),
    vacant,
    isLive,

    -- * Requests
    usual,
    userData,
    userDataFd,
    eventBits,
    pollBits,

    -- * Completions
    Next (..),
    decide,
    doubtful,
  )
where

import Data.Bits (unsafeShiftL, (.&.), (.|.))
import Data.Int (Int32)
import Data.Word (Word16, Word32, Word64, Word8)
import Foreign.C.Types (CInt, CShort)
import Foreign.Storable
import Weft.Backend.Poll (fromPoll, toPoll)
import Weft.Core.Events
import Weft.FFI.Poll (pollErr, pollHup, pollNval, pollPri)
import Weft.FFI.Uring (pollBand, resultBadFd, resultCancelled)

-- | The states of an entry, and the moves that "Weft.Backend.Uring" makes.
--
-- @
--   Vacant            nothing                      -> Single, Standing (@arm@)
--   Single, Standing  a request that completes     -> Resting (a 'Once' was reported)
--                     once, or again and again     -> Vacant (@forget@, not open)
--                                                  -> Single, Standing (@arm@, made again)
--   Resting           reported, no request         -> Single, Standing (@arm@), Vacant (@forget@)
-- @
data EntryState = Vacant | Resting | Single | Standing
  deriving (Eq, Ord, Enum, Bounded, Show)

-- | The state of a descriptor number. The sequence number counts the requests made for this descriptor number. A
-- completion whose sequence number is not the latest is stale.
data Entry = Entry
  { entryToken :: !Token,
    entrySequence :: !Word32,
    entryEvents :: !Events,
    entryTrigger :: !Trigger,
    entryState :: !EntryState
  }

instance Storable Entry where
  sizeOf _ = 16
  alignment _ = 8
  peek p = do
    tok <- peekByteOff p 0
    number <- peekByteOff p 8
    evs <- peekByteOff p 12 :: IO Word16
    trigger <- peekByteOff p 14 :: IO Word8
    state <- peekByteOff p 15 :: IO Word8
    pure (Entry (Token tok) number (Events (fromIntegral evs)) (triggerAt trigger) (stateAt state))
  poke p (Entry (Token tok) number (Events evs) trigger state) = do
    pokeByteOff p 0 tok
    pokeByteOff p 8 number
    pokeByteOff p 12 (fromIntegral evs :: Word16)
    pokeByteOff p 14 (case trigger of Once -> 0; Level -> 1; Edge -> 2 :: Word8)
    pokeByteOff p 15 (case state of Vacant -> 0; Resting -> 1; Single -> 2; Standing -> 3 :: Word8)

triggerAt :: Word8 -> Trigger
triggerAt 0 = Once
triggerAt 1 = Level
triggerAt _ = Edge

stateAt :: Word8 -> EntryState
stateAt 0 = Vacant
stateAt 1 = Resting
stateAt 2 = Single
stateAt _ = Standing

-- | The state of a number that was never armed. Memory full of zeros reads as this.
vacant :: Entry
vacant = Entry (Token 0) 0 mempty Once Vacant

-- | Whether it has a request.
isLive :: Entry -> Bool
isLive e = entryState e == Single || entryState e == Standing

-- | The kind of request that serves a trigger. A one-shot request reports the present state whenever it is made,
-- which 'Level' needs of the next poll. (@IORING_POLL_ADD_LEVEL@ does the opposite: it ignores the present state.)
usual :: Trigger -> EntryState
usual Edge = Standing
usual _ = Single

-- | The identification of a request: the descriptor in the low half, the sequence number
-- in the high half.
userData :: CInt -> Word32 -> Word64
userData fd number = (fromIntegral number `unsafeShiftL` 32) .|. (fromIntegral fd .&. 0xffffffff)
{-# INLINE userData #-}

-- | The descriptor; -1 in the kernel's answers to cancellations.
userDataFd :: Word64 -> CInt
userDataFd u = fromIntegral (u .&. 0xffffffff)
{-# INLINE userDataFd #-}

-- | The kernel's bits for the requested events. Those for urgent data include the band bit: the kernel announces
-- urgent data with it, and newer kernels drop that event if the bit was not requested.
eventBits :: Events -> Word32
eventBits evs = pollBits (toPoll evs) .|. (if evs `includes` evtUrgent then pollBand else 0)

-- | The bits of poll(2) as io_uring has them.
pollBits :: CShort -> Word32
pollBits b = fromIntegral b .&. 0xffff

-- | Bits that have to be checked by poll(2) before 'decide' gets them. The kernel passes on the bits of the wake-up,
-- not the present state: ordinary data is always announced as possibly urgent, and an error without the hang-up that
-- follows.
doubtful :: Int32
doubtful = fromIntegral (pollBits (pollPri .|. pollErr .|. pollHup) .|. pollBand)

-- | What to do with an entry after a completion.
data Next
  = -- | It stays as it is.
    Stay
  | -- | No request any more.
    Drop !EntryState
  | -- | A new request, at once or with the next poll.
    Now !EntryState
  | Next !EntryState
  deriving (Eq, Show)

-- | The effect of a completion: @decide entry more result@ is the events to report and the change of the entry.
-- @more@ is whether the request goes on.
decide :: Entry -> Bool -> Int32 -> (Events, Next)
decide e more result
  | result == resultCancelled = (mempty, Now (usual trigger))
  | result == resultBadFd || evs `includes` evtClose = (evtClose, Drop Vacant)
  | result < 0 = (evtHangup <> evtRead <> evtWrite, if trigger == Level then Next Single else Drop Resting)
  | isNoEvent evs = (mempty, unasked)
  | otherwise = (evs, reported)
  where
    trigger = entryTrigger e
    evs = fromPoll (fromIntegral (fromIntegral result .&. wanted))
    wanted = eventBits (entryEvents e) .|. pollBits (pollErr .|. pollHup .|. pollNval)
    reported = case trigger of
      Once -> Drop Resting
      Level -> Next Single
      Edge -> if more then Stay else Next Standing
    -- A half-closed peer completes every request, asked for or not. A one-shot
    -- request would complete for ever; a multishot one then waits for changes.
    unasked
      | more = Stay
      | entryState e == Single = Now Standing
      | otherwise = Next Standing
