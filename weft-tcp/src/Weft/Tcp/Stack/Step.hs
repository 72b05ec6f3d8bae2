{-# LANGUAGE LambdaCase #-}

-- |
-- Steps of connections, for the stack's loops and for its users: run the core, carry out the
-- actions that it returns, and set the timer.
--
-- @since 0.1.0
module Weft.Tcp.Stack.Step
  ( apply,
    inspect,
    begin,
    expire,
    timerLoop,
  )
where

import Control.Concurrent.MVar
import Control.Exception (mask_, onException)
import Control.Monad (forM_, forever, unless, void, when)
import Data.ByteString (ByteString)
import Data.IORef
import Data.Sequence (ViewL (..), viewl)
import qualified Data.Sequence as Seq
import Weft.Tcp.Core
import Weft.Tcp.Core.Rest
import Weft.Tcp.Core.Secret (Flow (..))
import Weft.Tcp.Core.State (choices)
import Weft.Tcp.Core.TimeWait (Waiting (endsAt), compact)
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Waker (wake)
import qualified Weft.Timer as Timer

-- | Process one event, and return the received data. Blocks only while another step of the
-- same connection runs.
apply :: Socket -> Event -> IO [ByteString]
apply sock event = mask_ (takeMVar (socketConn sock) >>= stepFrom sock event)

-- | Run a step of a connection whose state was taken. The state is always put back; if the step throws, it is
-- unchanged. Call with asynchronous exceptions masked.
stepFrom :: Socket -> Event -> Kept -> IO [ByteString]
stepFrom sock event kept = do
  (next, actions) <- changed `onException` putMVar (socketConn sock) kept
  putMVar (socketConn sock) next
  notify sock actions
  pure (concat [bytes | Received bytes <- actions])
  where
    c = awake kept
    changed = do
      env <- stackEnv (socketStack sock) (localAddress (socketFlow sock))
      let (c', actions) = step env event c
          next = keep c'
      perform sock c' actions
      arm sock env c'
      retire sock c' c
      next `seq` pure (next, actions)

-- | Start a new connection: send its first segments and set its timer, unless it has been ended meanwhile.
begin :: Socket -> [Action] -> IO ()
begin sock actions = mask_ $ do
  kept <- takeMVar (socketConn sock)
  let c = awake kept
      started = do
        env <- stackEnv (socketStack sock) (localAddress (socketFlow sock))
        perform sock c actions
        arm sock env c
  unless (isOver c) started `onException` putMVar (socketConn sock) kept
  putMVar (socketConn sock) kept

-- | Apply a function to the current state of a connection.
inspect :: Socket -> (Conn -> a) -> IO a
inspect sock f = f . awake <$> readMVar (socketConn sock)

perform :: Socket -> Conn -> [Action] -> IO ()
perform sock c actions = forM_ actions $ \case
  Transmit s -> sendSegment (socketStack sock) (choices c) (socketFlow sock) (sendMss c) s
  _ -> pure ()

notify :: Socket -> [Action] -> IO ()
notify sock actions = forM_ actions $ \case
  Notify s -> case s of
    Connected -> wake (socketWriter sock) >> opened
    Readable -> wake (socketReader sock)
    Urgent -> wake (socketReader sock)
    Writable -> wake (socketWriter sock)
    -- A connection leaves the backlog when it is accepted, or when it ends before.
    Soft e -> forM_ (stackSoftErrors (settings (socketStack sock))) (\tell -> tell (socketFlow sock) e)
    Ended _ -> wake (socketReader sock) >> wake (socketWriter sock) >> unlist sock
  _ -> pure ()
  where
    opened = forM_ (socketListener sock) $ \l -> do
      count (socketStack sock) Accepted
      taken <- atomicModifyIORef' (acceptQueue l) $ \q -> case q of
        Arrived socks -> (Arrived (socks Seq.|> sock), True)
        NoMore _ -> (q, False)
      if taken then wake (acceptWaker l) else discard
    -- The listener was closed while the connection was being opened.
    discard = do
      unlist sock
      atomicWriteIORef (socketHolder sock) Released
      void (apply sock Abort)

-- | Set the connection's only timer. If the deadline moves to a later time, the old timer stays. It then
-- finds nothing due and is set again.
arm :: Socket -> Env -> Conn -> IO ()
arm sock (Env t _) c = do
  armed <- readIORef (socketTimer sock)
  case armed of
    Armed at timer
      | due == never || isOver c || state c == TimeWait -> Timer.cancel timer >> writeIORef (socketTimer sock) Unarmed
      | at <= due -> pure ()
      | otherwise -> Timer.cancel timer >> set
    Unarmed
      | due == never || isOver c || state c == TimeWait -> pure ()
      | otherwise -> set
  where
    due = nextTimer c
    set = do
      timer <- Timer.schedule (Timer.microseconds (max 0 (fromIntegral (due `since` t)))) (fire sock)
      writeIORef (socketTimer sock) (Armed due timer)

-- | Timer callback. Runs on a dispatcher, so it must not block.
fire :: Socket -> IO ()
fire sock = do
  atomicModifyIORef' (fired st) (\l -> (sock : l, ()))
  void (tryPutMVar (firedSignal st) ())
  where
    st = socketStack sock

-- | The timer loop (2007, section 4.8: worker_tcp_timer).
timerLoop :: Stack -> IO ()
timerLoop st = forever $ do
  takeMVar (firedSignal st)
  socks <- atomicModifyIORef' (fired st) (\l -> ([], l))
  forM_ (reverse socks) $ \sock -> mask_ $ do
    kept <- takeMVar (socketConn sock)
    -- The timer has fired, so it must not be cancelled any more.
    writeIORef (socketTimer sock) Unarmed
    stepFrom sock Tick kept

-- | Remove a connection that has ended from the table. For TIME-WAIT, replace it by a record of a few words.
retire :: Socket -> Conn -> Conn -> IO ()
retire sock new old
  | isOver new && not (isOver old) = deleteEntry st f
  | state new == TimeWait && state old /= TimeWait = do
    waiting <- newIORef (compact new)
    insertEntry st f (Lingering waiting)
    forgotten <- atomicModifyIORef' (timeWaits st) $ \q ->
      let q' = q Seq.|> (nextTimer new, f, waiting)
       in case viewl q' of
            oldest :< rest | Seq.length q' > maxTimeWait (settings st) -> (rest, Just oldest)
            _ -> (q', Nothing)
    forM_ forgotten (\(_, g, w) -> deleteLingering st g w)
  | otherwise = pure ()
  where
    st = socketStack sock
    f = socketFlow sock

-- | Remove connections whose TIME-WAIT is over. If a FIN has restarted it, move the entry to the end of the queue.
expire :: Stack -> IO ()
expire st = do
  waiting <- readIORef (timeWaits st)
  case viewl waiting of
    (at, f, w) :< _ -> do
      Env t _ <- stackEnv st (localAddress f)
      when (t >= at) $ do
        ends <- endsAt <$> readIORef w
        ours <- atomicModifyIORef' (timeWaits st) $ \q -> case viewl q of
          (_, _, w') :< rest | w' == w -> (if ends > t then rest Seq.|> (ends, f, w) else rest, True)
          _ -> (q, False)
        when (ours && ends <= t) (void (deleteLingering st f w))
        expire st
    EmptyL -> pure ()
