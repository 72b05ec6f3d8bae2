-- |
-- What a stack keeps for a limited time beside its connections: connections in TIME-WAIT, and packets of which
-- fragments are missing. They are looked through once a second as long as there are any, in the timer loop, so that
-- they go also if nothing arrives any more.
--
-- @since 0.1.0
module Weft.Tcp.Stack.Expiry
  ( expireLater,
    expireDue,
    expireAt,
    expireTimeWaits,
  )
where

import Control.Concurrent.MVar (tryPutMVar)
import Control.Monad (forM_, unless, void, when)
import Data.IORef
import Data.Sequence (ViewL (..), viewl)
import qualified Data.Sequence as Seq
import Weft.Duration (seconds)
import Weft.Tcp.Core
import Weft.Tcp.Core.TimeWait (Waiting (endsAt))
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Answers (Kind (Errors))
import qualified Weft.Tcp.Wire.Fragments as Fragments
import qualified Weft.Tcp.Wire.Packet as Packet
import qualified Weft.Timer as Timer

-- | Call after adding an entry that expires. Sets a timer unless one is set. Does not block.
expireLater :: Stack -> IO ()
expireLater st = do
  -- In the other states the timer loop has not looked yet, so it will see the entry, which was added before.
  seen <- readIORef (expiry st)
  when (seen == NothingExpires) $ do
    before <- atomicModifyIORef' (expiry st) (\s -> (if s == NothingExpires then TimerSet else s, s))
    when (before == NothingExpires) (void (Timer.schedule (seconds 1) due))
  where
    -- Runs on a dispatcher, so it must not block.
    due = atomicWriteIORef (expiry st) ExpiryDue >> void (tryPutMVar (firedSignal st) ())

-- | Remove what has expired, if it is time to look. Called by the timer loop alone.
expireDue :: Stack -> IO ()
expireDue st = do
  s <- readIORef (expiry st)
  when (s == ExpiryDue) $ do
    atomicWriteIORef (expiry st) NothingExpires
    forM_ (take 1 (stackAddresses (settings st))) $ \a -> stackEnv st a >>= \(Env t _) -> expireAt st t
    done <- (&&) . Seq.null <$> readIORef (timeWaits st) <*> (Fragments.noneIncomplete <$> readIORef (fragments st))
    unless done (expireLater st)

-- | Remove what has expired at the given time.
expireAt :: Stack -> Instant -> IO ()
expireAt st t = expireTimeWaits st t >> expireFragments st t

-- | Remove connections whose TIME-WAIT is over. If a FIN has restarted it, move the entry to the end of the queue.
expireTimeWaits :: Stack -> Instant -> IO ()
expireTimeWaits st t = do
  waiting <- readIORef (timeWaits st)
  case viewl waiting of
    (at, f, w) :< _ | t >= at -> do
      ends <- endsAt <$> readIORef w
      ours <- atomicModifyIORef' (timeWaits st) $ \q -> case viewl q of
        (_, _, w') :< rest | w' == w -> (if ends > t then rest Seq.|> (ends, f, w) else rest, True)
        _ -> (q, False)
      when (ours && ends <= t) (void (deleteLingering st f w))
      expireTimeWaits st t
    _ -> pure ()

-- | Give up packets of which fragments have not come, and tell their senders.
expireFragments :: Stack -> Instant -> IO ()
expireFragments st (Instant t) = do
  late <- atomicModifyIORef' (fragments st) (\fs -> let (l, fs') = Fragments.expireFragments (fromIntegral t) fs in (fs', l))
  forM_ late $ \l -> forM_ (Packet.timeExceeded l) $ \p -> answering st Errors (Packet.packetDestination p) (sendWhole st p)
