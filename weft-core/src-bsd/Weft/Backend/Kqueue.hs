-- |
-- The kqueue back end (macOS and the BSDs; elsewhere over libkqueue). Arming is one system call and takes effect at
-- once. The registered filters of each descriptor are also kept here: a wait for both directions is two filters, and
-- when one of them ends the wait, the other has to be removed.
--
-- A forked child does not inherit a kqueue: there 'backendClose' leaves its number
-- alone. Throws 'IOError's only. Any thread may arm and forget, one at a time polls.
module Weft.Backend.Kqueue
  ( new,
    available,
  )
where

import Control.Concurrent.MVar
import Control.Exception (mask_, onException)
import Control.Monad (unless, void, when)
import Data.Bits ((.&.), (.|.))
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Foreign.C.Error (Errno (..), eINTR)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (allocaBytes, free)
import Foreign.Ptr (Ptr)
import GHC.Clock (getMonotonicTimeNSec)
import System.Posix.Internals (c_getpid)
import System.Posix.Types (CPid, Fd (..))
import Weft.Backend.KqueueEvents
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time (Duration (..), Instant (..), after, never, until)
import Weft.FFI.Errno
import Weft.FFI.Kqueue
import Weft.FFI.Poll (alwaysReady, peekRevents, pokePollFd, pollErr, pollFdSize, pollHup, pollLook)
import Weft.FFI.Wakeup
import Weft.Sys.OffHeap (mallocOwnBytes)
import Prelude hiding (until)

-- | Why it cannot be used here, or 'Nothing' when it can.
available :: IO (Maybe String)
available = pure Nothing

data Kqueue = Kqueue
  { kqueueFd :: !CInt,
    kqueueWakeup :: !Wakeup,
    -- | Whether the system has a filter for urgent data.
    kqueueExcept :: !Bool,
    -- | By descriptor. Changed by any thread; the system calls that change what is
    -- registered are made under this lock, so that both agree.
    kqueueEntries :: !(MVar (IntMap.IntMap Entry)),
    -- | Used by the owner: whether a wake-up was seen, which ends a blocking poll.
    kqueueWoken :: !(IORef Bool),
    -- | Used by the owner: memory into which the kernel writes events.
    kqueueBuffer :: !(Ptr NativeEvent),
    kqueueMaker :: !CPid
  }

data Entry = Entry
  { entryToken :: !Token,
    entryTrigger :: !Trigger,
    entryAsked :: !Events,
    -- | Which filters are registered: none after a report of 'Once'.
    entryFilters :: ![Filter]
  }

-- | The most events that one system call collects.
batchSize :: (Num a) => a
batchSize = 256

-- | A new kernel queue. Throws when the process or the system is out of descriptors.
new :: IO Backend
new = do
  kq <- throwIfNegative "kqueue" kqueueOpen
  wk <- newWakeup `onException` kqueueClose kq
  except <- kqueueHasExcept
  q <-
    Kqueue kq wk (except /= 0)
      <$> newMVar IntMap.empty
      <*> newIORef False
      <*> mallocOwnBytes (batchSize * eventSize)
      <*> c_getpid
  (`onException` close q) $ throwIfNegative_ "kevent" (change q (wakeupNumber wk) wakeToken [Change ReadFilter Clear])
  pure
    Backend
      { backendName = "kqueue",
        backendPoll = poll q,
        backendArm = arm q,
        backendForget = \fd -> pure () <$ forget q fd,
        backendDeferred = False,
        backendResume = Nothing,
        backendDescriptors = Fd kq : wakeupFds wk,
        backendWake = signalWakeup wk,
        backendClose = close q
      }

close :: Kqueue -> IO ()
close q = do
  here <- c_getpid
  when (here == kqueueMaker q) (void (kqueueClose (kqueueFd q)))
  closeWakeup (kqueueWakeup q)
  free (kqueueBuffer q)

-- | The token of the wake-up descriptor. No other token has this value.
wakeToken :: Token
wakeToken = Token (-1)

wakeupNumber :: Wakeup -> CInt
wakeupNumber wk = let Fd fd = wakeupFd wk in fd

-- Arming and forgetting ------------------------------------------------------------

arm :: Kqueue -> Fd -> Token -> Trigger -> Events -> IO Armed
arm q (Fd fd) tok trigger evs = mask_ . modifyMVar (kqueueEntries q) $ \entries -> do
  -- kqueue would watch a file's size.
  idle <- throwIfNegative "kevent" (alwaysReady fd)
  let registered = maybe [] entryFilters (IntMap.lookup key entries)
      wanted = watch (kqueueExcept q) trigger evs
      entry = Entry tok trigger evs [f | Change f _ <- wanted]
  if idle /= 0
    then do
      void (change q fd tok (unwatch registered))
      pure (IntMap.delete key entries, AlwaysReady)
    else do
      r <- change q fd tok (replace registered wanted)
      when (r < 0) $ do
        void (change q fd tok (unwatch (entryFilters entry)))
        throwErrnoCode "kevent" (negate r)
      pure (IntMap.insert key entry entries, Armed)
  where
    key = fromIntegral fd

forget :: Kqueue -> Fd -> IO ()
forget q (Fd fd) = mask_ . modifyMVar_ (kqueueEntries q) $ \entries -> do
  let registered = maybe [] entryFilters (IntMap.lookup (fromIntegral fd) entries)
  void (change q fd wakeToken (unwatch registered))
  pure (IntMap.delete (fromIntegral fd) entries)

-- | Apply changes. Without changes there is no system call.
change :: Kqueue -> CInt -> Token -> [Change] -> IO CInt
change _ _ _ [] = pure 0
change q fd (Token tok) changes = allocaBytes (n * changeSize) $ \p -> do
  sequence_ [pokeChange p i (small f) (small m) | (i, Change f m) <- zip [0 ..] changes]
  kqueueChange (kqueueFd q) fd (fromIntegral tok) p (fromIntegral n)
  where
    n = length changes
    small :: (Enum a, Num b) => a -> b
    small = fromIntegral . fromEnum

-- Polling --------------------------------------------------------------------------

poll :: Kqueue -> Wait -> (Token -> Events -> IO ()) -> IO Int
poll q wait report =
  case wait of
    NoWait -> look
    WaitFor d | d <= mempty -> look
    WaitFor d -> block d . after d =<< clock
    Forever -> block (Duration (-1)) never
  where
    look = collect q report =<< kqueueLook (kqueueFd q) (kqueueBuffer q) batchSize
    block left deadline = do
      writeIORef (kqueueWoken q) False
      n <- collect q report =<< kqueueWait (kqueueFd q) (kqueueBuffer q) batchSize (durationNs left)
      woken <- readIORef (kqueueWoken q)
      if n > 0 || woken then pure n else resume deadline
    -- A signal interrupted the wait: wait for the remaining time.
    resume deadline
      | deadline == never = block (Duration (-1)) never
      | otherwise = do
        left <- until deadline <$> clock
        if left <= mempty then pure 0 else block left deadline

clock :: IO Instant
clock = Instant . fromIntegral <$> getMonotonicTimeNSec

-- | Report the events in the buffer, in one report for each descriptor, even if several of its filters have events.
-- The callback runs without the lock.
collect :: Kqueue -> (Token -> Events -> IO ()) -> CInt -> IO Int
collect q report r
  | r < 0 = 0 <$ unless (Errno (negate r) == eINTR) (throwErrnoCode "kevent" (negate r))
  | r == 0 = pure 0
  | otherwise = mask_ $ do
    delivered <- IntMap.fromListWith (flip (<>)) . concat <$> traverse read1 [0 .. fromIntegral r - 1]
    reports <- modifyMVar (kqueueEntries q) (reportsOf q (IntMap.toAscList delivered))
    mapM_ (uncurry report) reports
    pure (length reports)
  where
    read1 i = do
      tok <- Token . fromIntegral <$> peekToken (kqueueBuffer q) i
      fd <- peekFd (kqueueBuffer q) i
      what <- peekWhat (kqueueBuffer q) i
      if tok == wakeToken
        then do
          when (wakeupIsPipe (kqueueWakeup q)) (drainWakeup (kqueueWakeup q))
          [] <$ writeIORef (kqueueWoken q) True
        else pure [(fromIntegral fd, [(tok, FilterEvent (toEnum (fromIntegral (what .&. 3))) (what .&. 4 /= 0) (what .&. 8 /= 0))])]

-- | Turn the kernel's events into reports, and change the registrations.
-- An event with a token that is not the descriptor's latest is stale.
reportsOf ::
  Kqueue ->
  [(Int, [(Token, FilterEvent)])] ->
  IntMap.IntMap Entry ->
  IO (IntMap.IntMap Entry, [(Token, Events)])
reportsOf _ [] entries = pure (entries, [])
reportsOf q ((fd, delivered) : rest) entries = case IntMap.lookup fd entries of
  Just e | current@(_ : _) <- [t | (tok, t@(FilterEvent f _ _)) <- delivered, tok == entryToken e, f `elem` entryFilters e] -> do
    gone <- if or [end || failed | FilterEvent _ end failed <- current] then isGone (fromIntegral fd) else pure False
    let asked = entryAsked e
        evs = (if gone then endsAll asked else id) (foldMap (meaning asked) current)
    if isNoEvent evs
      then reportsOf q rest entries
      else do
        void (change q (fromIntegral fd) (entryToken e) (afterwards (entryTrigger e) asked (entryFilters e) current))
        let e' = if entryTrigger e == Once then e {entryFilters = []} else e
        (entries', reports) <- reportsOf q rest (IntMap.insert fd e' entries)
        pure (entries', (entryToken e, evs) : reports)
  _ -> reportsOf q rest entries

-- | Whether a descriptor whose stream has ended cannot be written to either. The read filter does not report that.
isGone :: CInt -> IO Bool
isGone fd = allocaBytes pollFdSize $ \p -> do
  pokePollFd p 0 fd 0
  _ <- pollLook p 1
  revents <- peekRevents p 0
  pure (revents .&. (pollHup .|. pollErr) /= 0)
