-- |
-- Bindings for kqueue(2). The policy is in "Weft.Backend.Kqueue". All calls return a result or @-errno@.
module Weft.FFI.Kqueue
  ( -- * Calls
    kqueueOpen,
    kqueueClose,
    kqueueChange,
    kqueueLook,
    kqueueWait,
    kqueueHasExcept,

    -- * Changes: a filter and a mode, as small numbers
    NativeChange,
    changeSize,
    pokeChange,

    -- * Events
    NativeEvent,
    eventSize,
    peekToken,
    peekFd,
    peekWhat,
  )
where

import Data.Int (Int32, Int64)
import Foreign.C.Types (CInt (..))
import Foreign.Ptr (Ptr)
import Foreign.Storable (peekByteOff, pokeByteOff)

-- | @struct weft_change@ of @cbits\/bsd\/kqueue.c@.
data NativeChange

changeSize :: Int
changeSize = 8

-- | Fill the change at a position: filter 0 read, 1 write, 2 except; mode 0 plain,
-- 1 one-shot, 2 clear, 3 remove.
pokeChange :: Ptr NativeChange -> Int -> Int32 -> Int32 -> IO ()
pokeChange p i f mode = do
  pokeByteOff p (i * changeSize) f
  pokeByteOff p (i * changeSize + 4) mode

-- | @struct weft_event@ of @cbits\/bsd\/kqueue.c@.
data NativeEvent

eventSize :: Int
eventSize = 16

-- | The token that was registered with the filter.
peekToken :: Ptr NativeEvent -> Int -> IO Int64
peekToken p i = peekByteOff p (i * eventSize)
{-# INLINE peekToken #-}

-- | The descriptor.
peekFd :: Ptr NativeEvent -> Int -> IO Int32
peekFd p i = peekByteOff p (i * eventSize + 8)
{-# INLINE peekFd #-}

-- | The filter in the low two bits, 4 for the end of the stream, 8 for an error with
-- it.
peekWhat :: Ptr NativeEvent -> Int -> IO Int32
peekWhat p i = peekByteOff p (i * eventSize + 12)
{-# INLINE peekWhat #-}

foreign import ccall unsafe "weft_kqueue_open" kqueueOpen :: IO CInt

foreign import ccall unsafe "close" kqueueClose :: CInt -> IO CInt

-- | Apply at most eight changes to one descriptor. To remove a filter that is not registered is no error.
foreign import ccall unsafe "weft_kqueue_change"
  kqueueChange :: CInt -> CInt -> Int64 -> Ptr NativeChange -> CInt -> IO CInt

-- | Collect at most this many events (256 at a time), without blocking.
foreign import ccall unsafe "weft_kqueue_look"
  kqueueLook :: CInt -> Ptr NativeEvent -> CInt -> IO CInt

-- | Collect events, blocking for at most this many nanoseconds; a negative number is for ever.
foreign import ccall safe "weft_kqueue_wait"
  kqueueWait :: CInt -> Ptr NativeEvent -> CInt -> Int64 -> IO CInt

-- | 1 where urgent data can be asked for.
foreign import ccall unsafe "weft_kqueue_has_except" kqueueHasExcept :: IO CInt
