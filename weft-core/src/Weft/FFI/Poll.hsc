-- |
-- Bindings for poll(2) and ppoll(2). The policy is in "Weft.Backend.Poll".
module Weft.FFI.Poll
  ( -- * Calls
    pollLook,
    pollWait,
    alwaysReady,

    -- * The kernel's record
    PollFd,
    pollFdSize,
    pokePollFd,
    peekRevents,

    -- * Event bits
    pollIn,
    pollOut,
    pollPri,
    pollRdHup,
    pollErr,
    pollHup,
    pollNval,
  )
where

import Data.Int (Int64)
import Foreign.C.Types (CInt (..), CShort, CULong (..))
import Foreign.Ptr (Ptr)
import Foreign.Storable (peekByteOff, pokeByteOff)

#define _GNU_SOURCE
#include <poll.h>
#ifndef POLLRDHUP
#define POLLRDHUP 0
#endif

-- | @struct pollfd@.
data PollFd

pollFdSize :: Int
pollFdSize = #{size struct pollfd}

-- | Fill the record at a position of an array.
pokePollFd :: Ptr PollFd -> Int -> CInt -> CShort -> IO ()
pokePollFd p i fd evs = do
  pokeByteOff p (at + #{offset struct pollfd, fd}) fd
  pokeByteOff p (at + #{offset struct pollfd, events}) evs
  pokeByteOff p (at + #{offset struct pollfd, revents}) (0 :: CShort)
  where
    at = i * pollFdSize

-- | The returned events of the record at a position.
peekRevents :: Ptr PollFd -> Int -> IO CShort
peekRevents p i = peekByteOff p (i * pollFdSize + #{offset struct pollfd, revents})

-- | Zero for a bit that the system does not have.
pollIn, pollOut, pollPri, pollRdHup, pollErr, pollHup, pollNval :: CShort
pollIn = #{const POLLIN}
pollOut = #{const POLLOUT}
pollPri = #{const POLLPRI}
pollRdHup = #{const POLLRDHUP}
pollErr = #{const POLLERR}
pollHup = #{const POLLHUP}
pollNval = #{const POLLNVAL}

-- | poll(2) without blocking. Returns the number of ready entries, or @-errno@.
foreign import ccall unsafe "weft_poll_look" pollLook :: Ptr PollFd -> CULong -> IO CInt

-- | Block for at most this many nanoseconds; a negative number is for ever.
foreign import ccall safe "weft_poll" pollWait :: Ptr PollFd -> CULong -> Int64 -> IO CInt

-- | 1 for a descriptor on which no operation blocks (a regular file), 0 for others, @-errno@ if it is not open. On
-- Linux that is what epoll answers; system calls: one for sockets and pipes, four for others.
foreign import ccall unsafe "weft_always_ready" alwaysReady :: CInt -> IO CInt
