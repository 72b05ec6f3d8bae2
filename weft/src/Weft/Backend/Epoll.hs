-- |
-- The epoll back end (Linux): the default for sockets. Registrations are
-- standing; a one-shot registration is re-armed by modifying it (2013, 3.4).
-- One system call to arm, none to be disarmed, one to collect a batch.
module Weft.Backend.Epoll
  ( new,
    available,
    fromEpoll,
    toEpoll,
  )
where

import Control.Monad (unless, void, when)
import Data.Bits (complement, (.&.), (.|.))
import Data.IORef
import Data.Int (Int64)
import Data.Word (Word32)
import Foreign.C.Error (Errno (..), eEXIST, eINTR, eNOENT, ePERM)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (free, mallocBytes)
import Foreign.Ptr (Ptr)
import System.Posix.Types (Fd (..))
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (Duration (..))
import Weft.FFI.Epoll
import Weft.FFI.Errno
import Weft.FFI.Wakeup

-- | Why it cannot be used here, or 'Nothing' when it can.
available :: IO (Maybe String)
available = pure Nothing

-- | A new epoll instance. Throws when the process or the system is out of
-- descriptors.
new :: IO Backend
new = do
  ep <- throwIfNegative "epoll_create" epollCreate
  wk <- newWakeup
  throwIfNegative_ "epoll_ctl" $
    epollAdd ep (fdNumber (wakeupFd wk)) (epollIn .|. epollEt) (tokenWord wakeToken)
  buffer <- newIORef . Buffer firstCapacity =<< mallocBytes (firstCapacity * epollEventSize)
  pure
    Backend
      { backendName = "epoll",
        backendPoll = poll ep wk buffer,
        backendArm = arm ep,
        backendForget = \fd -> void (epollDelete ep (fdNumber fd) 0 0),
        backendDeferred = False,
        backendResume = Nothing,
        backendWake = signalWakeup wk,
        backendClose = do
          void (closeEpoll ep)
          closeWakeup wk
          Buffer _ p <- readIORef buffer
          free p
      }

-- | Room for the kernel's answers, doubled when a poll fills it. Owned by the
-- thread that polls.
data Buffer = Buffer !Int !(Ptr EpollEvent)

firstCapacity, lastCapacity :: Int
firstCapacity = 64
lastCapacity = 4096

-- | Stands for the wake-up descriptor; no real token looks like it.
wakeToken :: Token
wakeToken = Token (-1)

poll :: CInt -> Wakeup -> IORef Buffer -> Wait -> (Token -> Events -> IO ()) -> IO Int
poll ep wk ref wait report = do
  Buffer cap p <- readIORef ref
  r <- case wait of
    NoWait -> epollLook ep p (fromIntegral cap)
    WaitFor (Duration ns) -> epollWait ep p (fromIntegral cap) (max 0 ns)
    Forever -> epollWait ep p (fromIntegral cap) (-1 :: Int64)
  let n = fromIntegral r
  if n < 0
    then 0 <$ unless (Errno (negate r) == eINTR) (throwErrnoCode "epoll_wait" (negate r))
    else do
      woken <- handOut p n 0 0
      when (n == cap && cap < lastCapacity) (grow ref)
      pure (n - woken)
  where
    handOut :: Ptr EpollEvent -> Int -> Int -> Int -> IO Int
    handOut p n i woken
      | i == n = pure woken
      | otherwise = do
        tok <- Token <$> peekData p i
        if tok == wakeToken
          then do
            -- A further write to an eventfd is a new edge whether or not it was
            -- read; a pipe must be emptied or it fills up.
            when (wakeupIsPipe wk) (drainWakeup wk)
            handOut p n (i + 1) (woken + 1)
          else do
            evs <- peekEvents p i
            report tok (fromEpoll evs)
            handOut p n (i + 1) woken

grow :: IORef Buffer -> IO ()
grow ref = do
  Buffer cap p <- readIORef ref
  p' <- mallocBytes (2 * cap * epollEventSize)
  writeIORef ref (Buffer (2 * cap) p')
  free p

-- | A one-shot or level registration usually stands already, an edge-triggered
-- one usually is the first of its descriptor; each tries the likely call first.
arm :: CInt -> Fd -> Token -> Trigger -> Events -> IO Armed
arm ep fd tok trigger evs = case trigger of
  Edge -> attempt epollAdd eEXIST epollModify
  _ -> attempt epollModify eNOENT epollAdd
  where
    attempt likely mistaken other = do
      r <- likely ep (fdNumber fd) bits (tokenWord tok)
      if r < 0 && Errno (negate r) == mistaken
        then judge =<< other ep (fdNumber fd) bits (tokenWord tok)
        else judge r
    judge r
      | r >= 0 = pure Armed
      | Errno (negate r) == ePERM = pure AlwaysReady
      | otherwise = throwErrnoCode "epoll_ctl" (negate r)
    bits = toEpoll evs .|. flag
    flag = case trigger of
      Once -> epollOneShot
      Level -> 0
      Edge -> epollEt

-- | The kernel's bits for what is asked. Errors and hang-ups come unasked.
toEpoll :: Events -> Word32
toEpoll evs =
  bit evtRead epollIn .|. bit evtWrite epollOut .|. bit evtPeerClosed epollRdHup
    .|. bit evtUrgent epollPri
  where
    bit e b = if evs `includes` e then b else 0

-- | What the kernel's bits mean.
fromEpoll :: Word32 -> Events
fromEpoll w
  | w .&. complement (epollIn .|. epollOut) == 0 = bit epollIn evtRead <> bit epollOut evtWrite
  | otherwise =
    bit epollIn evtRead <> bit epollOut evtWrite <> bit epollRdHup evtPeerClosed
      <> bit epollPri (evtUrgent <> evtRead)
      <> bit (epollErr .|. epollHup) (evtHangup <> evtRead <> evtWrite)
  where
    bit b e = if w .&. b /= 0 then e else mempty
{-# INLINE fromEpoll #-}

tokenWord :: (Num a) => Token -> a
tokenWord (Token t) = fromIntegral t

fdNumber :: Fd -> CInt
fdNumber (Fd n) = n
