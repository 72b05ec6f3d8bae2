-- |
-- The epoll back end (Linux): the default for sockets. A registration stays in the kernel; a one-shot registration is
-- re-armed by modifying it (Voellmy and others 2013, 3.4). Arming is one system call, disarming none, and collecting
-- a batch one.
module Weft.Backend.Epoll
  ( new,
    available,
  )
where

import Control.Exception (bracket, onException, try)
import Control.Monad (unless, when)
import Data.Bits (complement, (.&.), (.|.))
import Data.Int (Int64)
import Data.Word (Word32)
import Foreign.C.Error (Errno (..), eACCES, eEXIST, eINTR, eNOENT, eNOSYS, ePERM)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (free)
import Foreign.Ptr (Ptr)
import GHC.IO.Exception (IOException (ioe_errno))
import System.Posix.Types (Fd (..))
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (Duration (..))
import Weft.FFI.Epoll
import Weft.FFI.Errno
import Weft.FFI.Wakeup
import Weft.Sys.OffHeap (mallocOwnBytes)

-- | Why it cannot be used here, or 'Nothing' when it can. It tests that with an instance of its own. A lack of
-- descriptors or memory may pass, so 'new' reports that.
available :: IO (Maybe String)
available = either refused (const Nothing) <$> try (bracket new backendClose look)
  where
    look backend = backendPoll backend NoWait (\_ _ -> pure ())
    refused e
      | (Errno <$> ioe_errno e) `elem` map Just [ePERM, eACCES, eNOSYS] =
        Just ("the kernel forbids epoll to this process, as by a container's seccomp profile: " <> show e)
      | otherwise = Nothing

-- | A new epoll instance. Throws when the process or the system is out of
-- descriptors.
new :: IO Backend
new = do
  ep <- throwIfNegative "epoll_create" epollCreate
  wk <- newWakeup `onException` closeEpoll ep
  (`onException` (closeEpoll ep >> closeWakeup wk)) . throwIfNegative_ "epoll_ctl" $
    epollAdd ep (fdNumber (wakeupFd wk)) (epollIn .|. epollEt) (tokenWord wakeToken)
  -- For the thread that polls.
  buffer <- mallocOwnBytes (batch * epollEventSize)
  pure
    Backend
      { backendName = "epoll",
        backendPoll = poll ep wk buffer,
        backendArm = arm ep,
        backendForget = \fd -> pure () <$ epollDelete ep (fdNumber fd) 0 0,
        backendDeferred = False,
        backendResume = Nothing,
        backendDescriptors = Fd ep : wakeupFds wk,
        backendWake = signalWakeup wk,
        backendClose = do
          closeEpoll ep
          closeWakeup wk
          free buffer
      }

-- Note [Small batches]. The dispatcher lets the threads that it woke run after each poll. What they allocate is live
-- until they have run. A thread that yields in the middle of its work (Warp's do, after each response) runs again
-- only after all others of its batch, and all data of its request is live until then. With large batches the collector
-- copies it. Figures: @doc\/rationale\/web.md@.

-- | The most events of one poll; those left over come with the next.
batch :: Int
batch = 32

-- | The token of the wake-up descriptor. No other token has this value.
wakeToken :: Token
wakeToken = Token (-1)

poll :: CInt -> Wakeup -> Ptr EpollEvent -> Wait -> (Token -> Events -> IO ()) -> IO Int
poll ep wk p wait report = do
  r <- case wait of
    NoWait -> epollLook ep p (fromIntegral batch)
    WaitFor (Duration ns) -> epollWait ep p (fromIntegral batch) (max 0 ns)
    Forever -> epollWait ep p (fromIntegral batch) (-1 :: Int64)
  let n = fromIntegral r
  if n < 0
    then 0 <$ unless (Errno (negate r) == eINTR) (throwErrnoCode "epoll_wait" (negate r))
    else do
      woken <- dispatch n 0 0
      pure (n - woken)
  where
    dispatch :: Int -> Int -> Int -> IO Int
    dispatch n i woken
      | i == n = pure woken
      | otherwise = do
        tok <- Token <$> peekData p i
        if tok == wakeToken
          then do
            -- A further write to an eventfd is a new edge whether or not it was
            -- read; a pipe must be emptied or it fills up.
            when (wakeupIsPipe wk) (drainWakeup wk)
            dispatch n (i + 1) (woken + 1)
          else do
            evs <- peekEvents p i
            report tok (fromEpoll evs)
            dispatch n (i + 1) woken

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

-- | The kernel's bits for the requested events. The kernel always reports errors and hang-ups.
toEpoll :: Events -> Word32
toEpoll evs =
  bit evtRead epollIn .|. bit evtWrite epollOut .|. bit evtPeerClosed epollRdHup
    .|. bit evtUrgent epollPri
  where
    bit e b = if evs `includes` e then b else 0

-- | The events for the kernel's bits.
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
