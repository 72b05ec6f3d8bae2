{-# LANGUAGE LambdaCase #-}

-- |
-- Steps of connections, for the stack's loops and for its users: run the core, do what
-- it says, set the timer.
--
-- @since 0.1.0
module Weft.Tcp.Stack.Step
  ( apply,
    inspect,
    begin,
    timerLoop,
  )
where

import Control.Concurrent.MVar
import Control.Exception (mask_, onException)
import Control.Monad (forM_, forever, void)
import Data.ByteString (ByteString)
import Data.IORef
import qualified Data.Sequence as Seq
import Weft.Tcp.Core
import Weft.Tcp.Core.Rest
import Weft.Tcp.Core.Secret (Flow (..))
import Weft.Tcp.Core.State (choices)
import Weft.Tcp.Core.TimeWait (compact)
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Waker (wake)
import qualified Weft.Timer as Timer

-- | One event. What was received is returned. Never blocks but for another step of the
-- same connection.
apply :: Socket -> Event -> IO [ByteString]
apply sock event = mask_ $ do
  kept <- takeMVar (socketConn sock)
  env <- stackEnv (socketStack sock) (localAddress (socketFlow sock)) `onException` putMVar (socketConn sock) kept
  let c = awake kept
      (c', actions) = step env event c
  -- What the step throws leaves the connection as it was.
  (perform sock c' actions >> arm sock env c' >> retire sock c' c) `onException` putMVar (socketConn sock) kept
  putMVar (socketConn sock) $! keep c'
  notify sock actions
  pure (concat [bytes | Received bytes <- actions])

-- | A new connection: send its first segments and set its timer.
begin :: Socket -> [Action] -> IO ()
begin sock actions = mask_ $ do
  kept <- takeMVar (socketConn sock)
  env <- stackEnv (socketStack sock) (localAddress (socketFlow sock))
  let c = awake kept
  perform sock c actions
  arm sock env c
  putMVar (socketConn sock) kept

-- | A question about a connection.
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
    -- A connection leaves the backlog when it is accepted, or ends before.
    Soft e -> forM_ (stackSoftErrors (settings (socketStack sock))) (\tell -> tell (socketFlow sock) e)
    Ended _ -> wake (socketReader sock) >> wake (socketWriter sock) >> unlist sock
  _ -> pure ()
  where
    opened = forM_ (socketListener sock) $ \l -> do
      count (socketStack sock) Accepted
      taken <- atomicModifyIORef' (acceptQueue l) $ \q -> case q of
        Arrived socks -> (Arrived (socks Seq.|> sock), True)
        NoMore -> (q, False)
      if taken then wake (acceptWaker l) else discard
    -- The listener was closed while the connection was opened.
    discard = do
      unlist sock
      atomicWriteIORef (socketHolder sock) Released
      void (apply sock Abort)

-- | One timer a connection. A deadline that moved later keeps the old timer, which then
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

-- | Runs on a dispatcher: must not block.
fire :: Socket -> IO ()
fire sock = do
  atomicModifyIORef' (fired st) (\l -> (sock : l, ()))
  void (tryPutMVar (firedSignal st) ())
  where
    st = socketStack sock

-- | The loop of timers (2007, section 4.8: worker_tcp_timer).
timerLoop :: Stack -> IO ()
timerLoop st = forever $ do
  takeMVar (firedSignal st)
  socks <- atomicModifyIORef' (fired st) (\l -> ([], l))
  forM_ (reverse socks) $ \sock -> do
    -- The timer has fired: it is not there to be cancelled.
    c <- takeMVar (socketConn sock)
    writeIORef (socketTimer sock) Unarmed
    putMVar (socketConn sock) c
    apply sock Tick

-- | Connections that are over leave the table; of one in TIME-WAIT a few words stay.
retire :: Socket -> Conn -> Conn -> IO ()
retire sock new old
  | isOver new && not (isOver old) = deleteEntry st f
  | state new == TimeWait && state old /= TimeWait = do
    waiting <- newIORef (compact new)
    insertEntry st f (Lingering waiting)
    forgotten <- atomicModifyIORef' (timeWaits st) $ \q ->
      let q' = q Seq.|> (nextTimer new, f)
       in if Seq.length q' > maxTimeWait (settings st) then (Seq.drop 1 q', map snd (take 1 (foldr (:) [] q'))) else (q', [])
    mapM_ (deleteEntry st) forgotten
  | otherwise = pure ()
  where
    st = socketStack sock
    f = socketFlow sock
