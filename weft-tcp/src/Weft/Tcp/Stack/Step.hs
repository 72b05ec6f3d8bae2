{-# LANGUAGE LambdaCase #-}

-- |
-- Steps of connections, for the stack's loops and for its users: run the core, carry out the
-- actions that it returns, and set the timer.
--
-- @since 0.1.0
module Weft.Tcp.Stack.Step
  ( apply,
    applyWhen,
    inspect,
    begin,
    timerLoop,
  )
where

import Control.Concurrent.MVar
import Control.Exception (evaluate, mask_, onException, uninterruptibleMask_)
import Control.Monad (forM_, forever, unless, void)
import Data.ByteString (ByteString)
import Data.IORef
import Data.Sequence (ViewL (..), viewl)
import qualified Data.Sequence as Seq
import Weft.Tcp.Core
import qualified Weft.Tcp.Core.Listener as Listener
import Weft.Tcp.Core.Packed
import Weft.Tcp.Core.Secret (Flow (..))
import Weft.Tcp.Core.State (choices, isOrphan, isSynchronized)
import Weft.Tcp.Core.TimeWait (compact)
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Expiry (expireDue, expireLater)
import Weft.Tcp.Stack.Orphans (adopt, forget)
import Weft.Tcp.Stack.Waker (wake)
import qualified Weft.Timer as Timer

-- | Process one event, and return the received data. Blocks only while another step of the
-- same connection runs.
apply :: Socket -> Event -> IO [ByteString]
apply sock event = mask_ (takeMVar (socketConn sock) >>= stepFrom sock event)

-- | Process the event that the function chooses for the present state, if it chooses one. No other step comes between
-- the choice and the event. Returns the function's second result. The event must not ask for data.
applyWhen :: Socket -> (Conn -> (Maybe Event, a)) -> IO a
applyWhen sock choose = mask_ $ do
  packed <- takeMVar (socketConn sock)
  (event, answer) <- evaluate (choose (unpack packed)) `onException` putMVar (socketConn sock) packed
  case event of
    Nothing -> answer <$ putMVar (socketConn sock) packed
    Just e -> answer <$ stepFrom sock e packed

-- | Run a step of a connection whose state was taken. The state is always put back; if the step throws, it is
-- unchanged. Call with asynchronous exceptions masked.
stepFrom :: Socket -> Event -> Packed -> IO [ByteString]
stepFrom sock event packed = do
  -- A tap may block. An exception then would put the state back that was before segments left.
  (next, actions, excess) <- uninterruptibleMask_ changed `onException` putMVar (socketConn sock) packed
  putMVar (socketConn sock) next
  notify sock c actions
  -- A step does not block.
  forM_ excess (\oldest -> uninterruptibleMask_ (apply oldest Abort))
  pure (concat [bytes | Received bytes <- actions])
  where
    c = unpack packed
    changed = do
      env <- stackEnv (socketStack sock) (localAddress (socketFlow sock))
      let (c', actions) = step env event c
          next = pack c'
      transmitAll sock c' actions
      arm sock env c'
      -- While its flow is in the table, no other connection has it.
      excess <- countOrphan sock c' c
      retire sock c' c
      next `seq` pure (next, actions, excess)

-- | Start a new connection: send its first segments and set its timer, unless it has been ended meanwhile.
begin :: Socket -> [Action] -> IO ()
begin sock actions = mask_ $ do
  packed <- takeMVar (socketConn sock)
  let c = unpack packed
      started = do
        env <- stackEnv (socketStack sock) (localAddress (socketFlow sock))
        transmitAll sock c actions
        arm sock env c
  unless (isOver c) (uninterruptibleMask_ started) `onException` putMVar (socketConn sock) packed
  putMVar (socketConn sock) packed

-- | Apply a function to the current state of a connection.
inspect :: Socket -> (Conn -> a) -> IO a
inspect sock f = f . unpack <$> readMVar (socketConn sock)

-- | Send the segments among the actions of a step.
transmitAll :: Socket -> Conn -> [Action] -> IO ()
transmitAll sock c actions = forM_ actions $ \case
  Transmit s -> sendSegment (socketStack sock) (choices c) (socketFlow sock) (sendMss c) s
  _ -> pure ()

-- | Notify users of the signals among the actions of a step, given the connection before it.
notify :: Socket -> Conn -> [Action] -> IO ()
notify sock old actions = forM_ actions $ \case
  Notify s -> case s of
    Connected -> wake (socketWriter sock) >> opened
    Readable -> wake (socketReader sock)
    Urgent -> wake (socketReader sock)
    Writable -> wake (socketWriter sock)
    Soft e -> forM_ (stackSoftErrors (settings (socketStack sock))) (\tell -> tell (socketFlow sock) e)
    -- A half-open connection leaves the backlog here. An open one is in the accept queue and counts until it is
    -- accepted, so that peers that connect and reset do not fill the queue.
    Ended _ -> wake (socketReader sock) >> wake (socketWriter sock) >> unless (isSynchronized (state old)) (unlist sock)
  _ -> pure ()
  where
    opened = forM_ (socketListener sock) $ \l -> do
      count (socketStack sock) Accepted
      atomicModifyIORef' (backlog l) (\b -> (Listener.opened (socketFlow sock) b, ()))
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

-- | The timer loop (Li and Zdancewic 2007, section 4.8: worker_tcp_timer).
timerLoop :: Stack -> IO ()
timerLoop st = forever $ do
  takeMVar (firedSignal st)
  expireDue st
  socks <- atomicModifyIORef' (fired st) (\l -> ([], l))
  forM_ (reverse socks) $ \sock -> mask_ $ do
    packed <- takeMVar (socketConn sock)
    -- The timer has fired, so it must not be cancelled any more.
    writeIORef (socketTimer sock) Unarmed
    stepFrom sock Tick packed

-- | Enter a connection that has become an orphan, or remove one that is none any more. Returns the oldest orphan, which
-- is to be aborted, if there are too many.
countOrphan :: Socket -> Conn -> Conn -> IO (Maybe Socket)
countOrphan sock new old
  | isOrphan new == isOrphan old = pure Nothing
  | isOrphan new = atomicModifyIORef' (orphans st) (adopt (maxOrphans (settings st)) socketFlow sock)
  | otherwise = Nothing <$ atomicModifyIORef' (orphans st) (\o -> (forget (socketFlow sock) o, ()))
  where
    st = socketStack sock

-- | Remove a connection that has ended from the table. For TIME-WAIT, replace it by a record of a few words.
retire :: Socket -> Conn -> Conn -> IO ()
retire sock new old
  | isOver new && not (isOver old) = deleteLive sock
  | state new == TimeWait && state old /= TimeWait = do
    waiting <- newIORef (compact new)
    insertEntry st f (Lingering waiting)
    forgotten <- atomicModifyIORef' (timeWaits st) $ \q ->
      let q' = q Seq.|> (nextTimer new, f, waiting)
       in case viewl q' of
            oldest :< rest | Seq.length q' > maxTimeWait (settings st) -> (rest, Just oldest)
            _ -> (q', Nothing)
    forM_ forgotten (\(_, g, w) -> deleteLingering st g w)
    expireLater st
  | otherwise = pure ()
  where
    st = socketStack sock
    f = socketFlow sock
