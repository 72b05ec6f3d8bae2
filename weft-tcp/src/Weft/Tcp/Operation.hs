-- |
-- The operations of connections and listeners, as attempts that do not wait; what waits, for
-- GHC's threads or for others, is built on them ("Weft.Tcp.Socket", "Weft.Tcp.Hybrid").
-- Internal. Errors are those of the kernel's sockets; each names the place that is given.
--
-- @since 0.1.0
module Weft.Tcp.Operation
  ( Attempt (..),
    failWith,

    -- * Connections
    beginConnect,
    tryConnected,
    tryReceive,
    trySend,
    shutdownSend,
    close,
    abort,
    setChoices,

    -- * Listeners
    listen,
    tryAccept,
    closeListening,
  )
where

import Control.Exception (mask_)
import Control.Monad (void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Sequence (ViewL (..), viewl)
import qualified Data.Sequence as Seq
import Data.Word (Word16)
import Foreign.C.Error
import Weft.FFI.Errno (errnoError)
import Weft.Tcp.Core
import Weft.Tcp.Core.Listener
import Weft.Tcp.Core.Secret
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Step
import Weft.Tcp.Stack.Waker
import Weft.Tcp.Wire.Address

-- | What became of an attempt that did not fail.
data Attempt a
  = Done !a
  | -- | Again, once the waker of the direction has told.
    NotYet

-- | Throw an 'IOError' with the place and the number.
failWith :: String -> Errno -> IO a
failWith loc (Errno e) = ioError (errnoError ("Weft.Tcp." ++ loc) e)

-- | Threads that wait are told of the end, and those that come later tell the next one.
checkOpen :: String -> Socket -> IO ()
checkOpen loc sock = do
  holder <- readIORef (socketHolder sock)
  when (holder == Released) $ do
    wake (socketReader sock)
    wake (socketWriter sock)
    failWith loc eBADF

-- Connections --------------------------------------------------------------------------

-- | Send a SYN to an address and port, from an address of the stack's own; exceptions masked.
-- @ENETUNREACH@ if the stack has no address of that version; @EADDRNOTAVAIL@ if no port is left.
beginConnect :: Stack -> Address -> Word16 -> IO Socket
beginConnect st to port
  -- RFC 9293, MUST-46.
  | not (isUnicast to) = failWith "connect" eNETUNREACH
  | otherwise = case filter (sameFamily to) (stackAddresses (settings st)) of
    [] -> failWith "connect" eNETUNREACH
    own : _ -> claim own (16384 :: Int) <* count st Connects
  where
    claim _ 0 = failWith "connect" eADDRNOTAVAIL
    claim own n = do
      p <- atomicModifyIORef' (nextPort st) (\q -> (if q == 65535 then 49152 else q + 1, q))
      let flow = Flow port to p own
      env <- stackEnv st own
      let (c, actions) = open env (openingFor st env flow)
      sock <- newSocket st flow Nothing c
      ours <- claimFlow st (socketFlow sock) (Live sock)
      if ours then sock <$ begin sock actions else claim own (n - 1)

-- | Whether the peer has answered. @ECONNREFUSED@, @ETIMEDOUT@, @EHOSTUNREACH@ as connect(2).
tryConnected :: Socket -> IO (Attempt ())
tryConnected sock = do
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

-- | Receive what there is, so many bytes at most; empty at the end of the stream. What is left
-- is told of.
tryReceive :: Socket -> Int -> IO (Attempt ByteString)
tryReceive sock n
  | n <= 0 = failWith "recv" eINVAL
  | otherwise = do
    checkOpen "recv" sock
    (there, end, s) <- inspect sock (\c -> (readable c, atEndOfStream c, state c))
    case s of
      _ | there > 0 -> do
        bytes <- apply sock (UserReceive n)
        case bytes of
          -- Another thread was faster.
          [] -> tryReceive sock n
          _ -> Done (joined bytes) <$ when (there > n) (wake (socketReader sock))
      _ | not end -> pure NotYet
      Closed why | why /= Finished -> checkOpen "recv" sock >> failWith "recv" (errnoOf why)
      _ -> Done B.empty <$ wake (socketReader sock)
  where
    joined [one] = one
    joined many = B.concat many

errnoOf :: CloseReason -> Errno
errnoOf why = case why of
  TimedOut -> eTIMEDOUT
  Unreachable -> eHOSTUNREACH
  Refused -> eCONNREFUSED
  _ -> eCONNRESET

-- | Send as much of the strings as there is room for: what is left of them. They are not copied.
trySend :: Socket -> [ByteString] -> IO (Attempt [ByteString])
trySend sock strings = do
  checkOpen "send" sock
  (space, able, s) <- inspect sock (\c -> (sendSpace (stackConfig (settings (socketStack sock))) c, maySend c, state c))
  case s of
    _ | able && space > 0 -> do
      let (now', later) = splitStrings space strings
      _ <- apply sock (UserSend now')
      pure (Done later)
    _ | able -> pure NotYet
    Closed why | why /= Finished -> failWith "send" (if why == Aborted then ePIPE else errnoOf why)
    _ -> failWith "send" ePIPE

splitStrings :: Int -> [ByteString] -> ([ByteString], [ByteString])
splitStrings _ [] = ([], [])
splitStrings n (b : bs)
  | n <= 0 = ([], b : bs)
  | B.length b <= n = let (xs, ys) = splitStrings (n - B.length b) bs in (b : xs, ys)
  | otherwise = let (x, y) = B.splitAt n b in ([x], y : bs)

-- | End the sending direction. No effect the second time.
shutdownSend :: Socket -> IO ()
shutdownSend sock = checkOpen "shutdownSend" sock >> void (apply sock Shutdown)

-- | Close both directions; what was sent is still delivered, by the stack. Idempotent. Threads
-- that wait get @EBADF@.
close :: Socket -> IO ()
close sock = mask_ (ending sock Close)

-- | Close, and drop what was not delivered: the peer gets a reset. Idempotent.
abort :: Socket -> IO ()
abort sock = mask_ (ending sock Abort)

ending :: Socket -> Event -> IO ()
ending sock event = do
  unlist sock
  atomicWriteIORef (socketHolder sock) Released
  _ <- apply sock event
  wake (socketReader sock)
  wake (socketWriter sock)

-- | Nagle's algorithm, delayed acknowledgments, keep-alives.
setChoices :: Socket -> (Choices -> Choices) -> IO ()
setChoices sock f = void (apply sock (Choose f))

-- Listeners ------------------------------------------------------------------------------

-- | Listen on a port, at one of the stack's addresses or at all of them. Port 0 stands for
-- a free one. @EADDRINUSE@ if somebody does already.
listen :: Stack -> Maybe Address -> Word16 -> IO Listening
listen st a p = do
  made <- Listening p a <$> newIORef emptyBacklog <*> newIORef (Arrived Seq.empty) <*> newWaker <*> pure Nothing
  found <- atomicModifyIORef' (listeners st) $ \m ->
    let port = if p == 0 then head' [q | q <- [32768 ..], Map.notMember (q, a) m] else p
     in if Map.member (port, a) m then (m, Nothing) else let l = made {listeningPort = port, listeningSelf = Just l} in (Map.insert (port, a) l m, Just l)
  maybe (failWith "listen" eADDRINUSE) pure found
  where
    head' qs = case qs of
      q : _ -> q
      [] -> 0

-- | Take a connection out of the queue; exceptions masked. @EBADF@ once the listener is closed.
-- If it was not the last one, that is told.
tryAccept :: Listening -> IO (Attempt Socket)
tryAccept l = do
  got <- atomicModifyIORef' (acceptQueue l) $ \q -> case q of
    NoMore -> (q, Nothing)
    Arrived socks -> case viewl socks of
      sock :< rest -> (Arrived rest, Just (Just sock, not (Seq.null rest)))
      EmptyL -> (q, Just (Nothing, False))
  case got of
    Nothing -> wake (acceptWaker l) >> failWith "accept" eBADF
    Just (Nothing, _) -> pure NotYet
    Just (Just sock, more) -> do
      when more (wake (acceptWaker l))
      Done sock <$ unlist sock

-- | Take no more; connections that wait to be accepted are reset. Idempotent.
closeListening :: Stack -> Listening -> IO ()
closeListening st l = mask_ $ do
  first <- atomicModifyIORef' (listeners st) $ \m -> case Map.lookup key m of
    Just l' | acceptQueue l' == acceptQueue l -> (Map.delete key m, True)
    _ -> (m, False)
  when first $ do
    waiting <- atomicModifyIORef' (acceptQueue l) $ \q -> case q of
      Arrived socks -> (NoMore, socks)
      NoMore -> (q, Seq.empty)
    mapM_ abort waiting
    wake (acceptWaker l)
  where
    key = (listeningPort l, listeningAddress l)
