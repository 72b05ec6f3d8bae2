-- |
-- Bindings for epoll(7). The policy is in "Weft.Backend.Epoll".
module Weft.FFI.Epoll
  ( -- * Calls
    epollCreate,
    epollAdd,
    epollModify,
    epollDelete,
    epollLook,
    epollWait,
    closeEpoll,

    -- * The kernel's event record
    EpollEvent,
    epollEventSize,
    peekEvents,
    peekData,

    -- * Event bits
    epollIn,
    epollOut,
    epollPri,
    epollRdHup,
    epollErr,
    epollHup,
    epollEt,
    epollOneShot,
  )
where

import Data.Int (Int64)
import Data.Word (Word32, Word64)
import Foreign.C.Types (CInt (..))
import Foreign.Ptr (Ptr)
import Foreign.Storable (peekByteOff)

#include <sys/epoll.h>

-- | @struct epoll_event@.
data EpollEvent

epollEventSize :: Int
epollEventSize = #{size struct epoll_event}

-- | The event bits of the record at a position of an array.
peekEvents :: Ptr EpollEvent -> Int -> IO Word32
peekEvents p i = peekByteOff p (i * epollEventSize + #{offset struct epoll_event, events})
{-# INLINE peekEvents #-}

-- | The user data of the record at a position of an array.
peekData :: Ptr EpollEvent -> Int -> IO Int
peekData p i = peekByteOff p (i * epollEventSize + #{offset struct epoll_event, data})
{-# INLINE peekData #-}

epollIn, epollOut, epollPri, epollRdHup, epollErr, epollHup, epollEt, epollOneShot :: Word32
epollIn = #{const EPOLLIN}
epollOut = #{const EPOLLOUT}
epollPri = #{const EPOLLPRI}
epollRdHup = #{const EPOLLRDHUP}
epollErr = #{const EPOLLERR}
epollHup = #{const EPOLLHUP}
epollEt = #{const (unsigned) EPOLLET}
epollOneShot = #{const EPOLLONESHOT}

-- | All calls return a result, or @-errno@.
epollAdd, epollModify, epollDelete :: CInt -> CInt -> Word32 -> Word64 -> IO CInt
epollAdd ep = c_epoll_ctl ep #{const EPOLL_CTL_ADD}
epollModify ep = c_epoll_ctl ep #{const EPOLL_CTL_MOD}
epollDelete ep = c_epoll_ctl ep #{const EPOLL_CTL_DEL}
{-# INLINE epollAdd #-}
{-# INLINE epollModify #-}
{-# INLINE epollDelete #-}

foreign import ccall unsafe "weft_epoll_create" epollCreate :: IO CInt

foreign import ccall unsafe "weft_epoll_ctl"
  c_epoll_ctl :: CInt -> CInt -> CInt -> Word32 -> Word64 -> IO CInt

-- | Collect events without blocking.
foreign import ccall unsafe "weft_epoll_look"
  epollLook :: CInt -> Ptr EpollEvent -> CInt -> IO CInt

-- | Block for at most this many nanoseconds; a negative number is for ever.
foreign import ccall safe "weft_epoll_wait"
  epollWait :: CInt -> Ptr EpollEvent -> CInt -> Int64 -> IO CInt

foreign import ccall unsafe "weft_epoll_close" closeEpoll :: CInt -> IO ()
