{-# LANGUAGE MultiWayIf #-}

-- |
-- The operations of connections and listeners as non-blocking attempts. The blocking operations
-- for GHC's threads ("Weft.Tcp.Socket") and for hybrid threads ("Weft.Tcp.Hybrid") use them.
-- Internal. Errors are those of the kernel's sockets; each contains the given location.
--
-- @since 0.1.0
module Weft.Tcp.Operation
  ( Attempt (..),
    failWith,

    -- * Connections
    beginConnect,
    tryConnected,
    tryReceive,
    tryReceiveMany,
    trySend,
    cutOff,
    shutdownSend,
    close,
    abort,
    setChoices,

    -- * Listeners
    listen,
    tryAccept,
    closeListening,

    -- * Shutdown of a stack
    endAll,
  )
where

import Control.Exception (mask_, uninterruptibleMask_)
import Control.Monad (forM_, void, when)
import Data.Array (elems)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.IntSet as IntSet
import qualified Data.Map.Strict as Map
import Data.Sequence (ViewL (..), viewl)
import qualified Data.Sequence as Seq
import Data.Word (Word16)
import Foreign.C.Error
import Foreign.C.Types (CInt)
import System.IO.Error (ioeSetErrorString)
import Weft.FFI.Errno (errnoError)
import Weft.Tcp.Core
import Weft.Tcp.Core.Listener
import Weft.Tcp.Core.Secret
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Expiry (expireTimeWaits)
import Weft.Tcp.Stack.Step
import Weft.Tcp.Stack.Waker
import Weft.Tcp.Wire.Address

-- | The result of an attempt that did not fail.
data Attempt a
  = Done !a
  | -- | Try again after the next wake-up by the direction's waker.
    NotYet

-- | Throw an 'IOError' with the location and the errno.
failWith :: String -> Errno -> IO a
failWith loc (Errno e) = ioError (errnoError ("Weft.Tcp." ++ loc) e)

-- | Throw if the socket was closed, or the stack has ended. Closing a socket wakes one waiting thread, and each thread
-- that fails here wakes the next one.
checkOpen :: String -> Socket -> IO ()
checkOpen loc sock = do
  holder <- readIORef (socketHolder sock)
  forM_ (lookup holder [(Released, eBADF), (Severed, eNETDOWN)]) $ \errno -> do
    wake (socketReader sock)
    wake (socketWriter sock)
    failWith loc errno

-- Connections --------------------------------------------------------------------------

-- | Send a SYN to an address and port, from one of the stack's addresses. Call with exceptions masked.
-- @ENETUNREACH@ if the stack has no address of that IP version; @EADDRNOTAVAIL@ if no port is free;
-- @ENETDOWN@ once the stack is closed.
beginConnect :: Stack -> Address -> Word16 -> IO Socket
beginConnect st to port
  -- RFC 9293, MUST-46; RFC 1122, section 3.2.1.3: loopback addresses do not leave a host. No answer would be accepted
  -- from there ('Weft.Tcp.Stack.Input.isFromElsewhere').
  | not (isSource to) || to `elem` stackAddresses (settings st) = failWith "connect" eNETUNREACH
  | otherwise = case filter (sameFamily to) (stackAddresses (settings st)) of
    [] -> failWith "connect" eNETUNREACH
    own : _ -> do
      -- A port whose TIME-WAIT is over is free, also if nobody has looked since.
      Env t _ <- stackEnv st own
      expireTimeWaits st t
      none <- noPortLeft st to port own
      when none (failWith "connect" eADDRNOTAVAIL)
      claim own (snd dynamicPorts - fst dynamicPorts)
  where
    claim own n = do
      p <- atomicModifyIORef' (nextPort st) (\q -> (if q == snd dynamicPorts then fst dynamicPorts else q + 1, q))
      let flow = Flow port to p own
      taken <- lookupEntry st flow
      claimed <- maybe (begun flow) (const (pure Nothing)) taken
      case claimed of
        Just sock -> pure sock
        Nothing | n == 0 -> failWith "connect" eADDRNOTAVAIL
        Nothing -> claim own (n - 1)
    -- 'Nothing' if another thread took the port meanwhile.
    begun flow = do
      env <- stackEnv st (localAddress flow)
      let (c, actions) = open env (openingFor st env flow)
      sock <- newSocket st flow Nothing c
      ours <- claimFlow st (socketFlow sock) (Live sock)
      over <- readIORef (stopped st)
      if
          | not ours -> pure Nothing
          | over -> abort sock >> failWith "connect" eNETDOWN
          | otherwise -> Just sock <$ (count st Connects >> begin sock actions)

-- | 'Done' once the peer has answered. @ECONNREFUSED@, @ETIMEDOUT@ or @EHOSTUNREACH@ as connect(2);
-- @EBADF@ if the connection was closed locally.
tryConnected :: Socket -> IO (Attempt ())
tryConnected sock = do
  checkOpen "connect" sock
  s <- inspect sock state
  case s of
    SynSent -> pure NotYet
    SynReceived -> pure NotYet
    Closed why -> failWith "connect" $ case why of
      Refused -> eCONNREFUSED
      Reset -> eCONNREFUSED
      TimedOut -> eTIMEDOUT
      _ -> eHOSTUNREACH
    _ -> pure (Done ())

-- | Receive available data, at most the given number of bytes; empty at the end of the stream. If data
-- is left, the waker is notified.
tryReceive :: Socket -> Int -> IO (Attempt ByteString)
tryReceive sock n = joined <$> tryReceiveMany sock n
  where
    joined NotYet = NotYet
    joined (Done [one]) = Done one
    joined (Done many) = Done (B.concat many)

-- | Like 'tryReceive', but returns the strings as they arrived, without copying; none at the end of the stream.
tryReceiveMany :: Socket -> Int -> IO (Attempt [ByteString])
tryReceiveMany sock n
  | n <= 0 = failWith "recv" eINVAL
  | otherwise = do
    checkOpen "recv" sock
    (there, end, s) <- inspect sock (\c -> (readable c, atEndOfStream c, state c))
    case s of
      _ | there > 0 -> do
        bytes <- apply sock (UserReceive n)
        case bytes of
          -- Another thread has taken the data.
          [] -> tryReceiveMany sock n
          _ -> Done bytes <$ when (there > n) (wake (socketReader sock))
      _ | not end -> pure NotYet
      Closed why | why /= Finished -> checkOpen "recv" sock >> failWith "recv" (errnoOf why)
      _ -> Done [] <$ wake (socketReader sock)

errnoOf :: CloseReason -> Errno
errnoOf why = case why of
  TimedOut -> eTIMEDOUT
  Unreachable -> eHOSTUNREACH
  Refused -> eCONNREFUSED
  _ -> eCONNRESET

-- | Send as much of the strings as there is room for, without copying them. The result is the unsent rest.
trySend :: Socket -> [ByteString] -> IO (Attempt [ByteString])
trySend sock strings = do
  checkOpen "send" sock
  holder <- readIORef (socketHolder sock)
  when (holder == CutOff) (ioError (ioeSetErrorString (errnoError "Weft.Tcp.send" broken) "an earlier send was cut off after a part: this connection can send nothing more"))
  -- The room and the data are one step's: another thread may shut the connection down, and data behind the FIN is lost.
  outcome <- applyWhen sock $ \c ->
    let space = sendSpace (stackConfig (settings (socketStack sock))) c
        (now', later) = splitStrings space strings
     in if
            | not (maySend c) -> (Nothing, Left (state c))
            | space > 0 -> (Just (UserSend now'), Right (Done later))
            | otherwise -> (Nothing, Right NotYet)
  case outcome of
    Right r -> pure r
    Left s -> do
      checkOpen "send" sock
      failWith "send" $ case s of
        Closed why | why /= Finished && why /= Aborted -> errnoOf why
        _ -> ePIPE
  where
    Errno broken = ePIPE

-- | Make all further sends fail with @EPIPE@: a part of a message was sent, and the rest never will be.
cutOff :: Socket -> IO ()
cutOff sock = atomicModifyIORef' (socketHolder sock) (\h -> (if h == Held then CutOff else h, ()))

splitStrings :: Int -> [ByteString] -> ([ByteString], [ByteString])
splitStrings _ [] = ([], [])
splitStrings n (b : bs)
  | n <= 0 = ([], b : bs)
  | B.length b <= n = let (xs, ys) = splitStrings (n - B.length b) bs in (b : xs, ys)
  | otherwise = let (x, y) = B.splitAt n b in ([x], y : bs)

-- | Close the sending direction. Idempotent.
shutdownSend :: Socket -> IO ()
shutdownSend sock = checkOpen "shutdownSend" sock >> void (apply sock Shutdown)

-- | Close both directions. The stack still delivers data that was sent before. Waiting threads get
-- @EBADF@. Idempotent.
close :: Socket -> IO ()
close sock = ending (const Released) sock Close

-- | Close the connection and drop undelivered data: the peer gets a reset. Idempotent.
abort :: Socket -> IO ()
abort sock = ending (const Released) sock Abort

-- | End a connection for its user, whose state changes as given. Not interruptible, although a step of the connection
-- that runs has to end first: a connection that was released and not ended would stay for ever. Steps do not block.
ending :: (Holder -> Holder) -> Socket -> Event -> IO ()
ending change sock event = uninterruptibleMask_ $ do
  unlist sock
  atomicModifyIORef' (socketHolder sock) (\h -> (change h, ()))
  _ <- apply sock event
  wake (socketReader sock)
  wake (socketWriter sock)

-- | Change Nagle's algorithm, delayed acknowledgments and keep-alives.
setChoices :: Socket -> (Choices -> Choices) -> IO ()
setChoices sock f = void (apply sock (Choose f))

-- Listeners ------------------------------------------------------------------------------

-- | Listen on a port, at one of the stack's addresses or at all of them. Port 0 chooses a free port
-- from 32768 on. @EADDRINUSE@ if the port is in use, or none is free; @ENETDOWN@ once the stack is
-- closed.
listen :: Stack -> Maybe Address -> Word16 -> IO Listening
listen st a p = mask_ $ do
  made <- Listening p a <$> newIORef emptyBacklog <*> newIORef (Arrived Seq.empty) <*> newIORef Nothing <*> newWaker <*> pure Nothing
  entered <- atomicModifyIORef' (listeners st) $ \ls -> case freePort ls of
    Just port | Map.notMember (port, a) (byPort ls) -> let l = made {listeningPort = port, listeningSelf = Just l} in (addListener l ls, Just l)
    _ -> (ls, Nothing)
  l <- maybe (failWith "listen" eADDRINUSE) pure entered
  over <- readIORef (stopped st)
  when over (closeWith eNETDOWN st l >> failWith "listen" eNETDOWN)
  pure l
  where
    freePort ls
      | p /= 0 = Just p
      | otherwise =
        let free = freePortsAt a ls
         in fromIntegral <$> maybe (fst <$> IntSet.minView free) Just (IntSet.lookupGE (nextListenPort ls) free)

-- | The free ports from 32768 on, at an address.
freePortsAt :: Maybe Address -> Listeners -> IntSet.IntSet
freePortsAt a ls = Map.findWithDefault (IntSet.fromDistinctAscList [32768 .. 65535]) a (freePorts ls)

addListener, removeListener :: Listening -> Listeners -> Listeners
addListener l ls = (changeFree IntSet.delete l ls) {byPort = Map.insert (listeningPort l, listeningAddress l) l (byPort ls), nextListenPort = fromIntegral (listeningPort l) + 1}
removeListener l ls = (changeFree IntSet.insert l ls) {byPort = Map.delete (listeningPort l, listeningAddress l) (byPort ls)}

changeFree :: (Int -> IntSet.IntSet -> IntSet.IntSet) -> Listening -> Listeners -> Listeners
changeFree f l ls
  | listeningPort l < 32768 = ls
  | otherwise = ls {freePorts = Map.insert a (f (fromIntegral (listeningPort l)) (freePortsAt a ls)) (freePorts ls)}
  where
    a = listeningAddress l

-- | Take a connection out of the accept queue. Call with exceptions masked. @EBADF@ once the listener is closed,
-- @ENETDOWN@ if the stack closed it. If more connections are queued, the waker is notified.
tryAccept :: Listening -> IO (Attempt Socket)
tryAccept l = do
  got <- atomicModifyIORef' (acceptQueue l) $ \q -> case q of
    NoMore e -> (q, Left e)
    Arrived socks -> case viewl socks of
      sock :< rest -> (Arrived rest, Right (Just (sock, not (Seq.null rest))))
      EmptyL -> (q, Right Nothing)
  case got of
    Left e -> wake (acceptWaker l) >> failWith "accept" (Errno e)
    Right Nothing -> pure NotYet
    Right (Just (sock, more)) -> do
      when more (wake (acceptWaker l))
      Done sock <$ unlist sock

-- | Stop listening. Connections that were not accepted are reset. Idempotent.
closeListening :: Stack -> Listening -> IO ()
closeListening = closeWith eBADF

-- | Like 'closeListening', with the error that accepting threads get.
closeWith :: Errno -> Stack -> Listening -> IO ()
closeWith (Errno e) st l = uninterruptibleMask_ $ do
  first <- atomicModifyIORef' (listeners st) $ \ls -> case Map.lookup (listeningPort l, listeningAddress l) (byPort ls) of
    Just l' | acceptQueue l' == acceptQueue l -> (removeListener l ls, True)
    _ -> (ls, False)
  when first $ do
    waiting <- atomicModifyIORef' (acceptQueue l) $ \q -> case q of
      Arrived socks -> (NoMore (e :: CInt), socks)
      NoMore _ -> (q, Seq.empty)
    mapM_ abort waiting
    wake (acceptWaker l)

-- Shutdown of a stack ------------------------------------------------------------------

-- | Close all listeners and abort all connections; their users get @ENETDOWN@. A thread that enters a connection or
-- listener later ends it itself.
endAll :: Stack -> IO ()
endAll st = do
  atomicModifyIORef' (stopped st) (const (True, ()))
  ls <- byPort <$> readIORef (listeners st)
  mapM_ (closeWith eNETDOWN st) ls
  shards <- mapM readIORef (elems (table st))
  forM_ shards $ \m -> sequence_ [ending severed sock Abort | Live sock <- Map.elems m]
  where
    severed h = if h == Released then Released else Severed
