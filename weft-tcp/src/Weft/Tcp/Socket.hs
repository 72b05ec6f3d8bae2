-- |
-- The operations of connections and listeners, for GHC's threads. Internal: see
-- "Weft.Tcp". Errors are those of the kernel's sockets.
--
-- @since 0.1.0
module Weft.Tcp.Socket
  ( -- * Connections
    connect,
    recv,
    send,
    sendMany,
    shutdownSend,
    close,
    abort,
    setChoices,

    -- * Listeners
    listen,
    accept,
    closeListening,
  )
where

import Control.Concurrent.MVar
import Control.Concurrent.STM
import Control.Exception (mask, mask_, onException)
import Control.Monad (unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Word (Word16)
import Foreign.C.Error
import qualified Weft.Core.Time as Clock
import Weft.FFI.Errno (errnoError)
import qualified Weft.Sys as Sys
import Weft.Tcp.Core
import Weft.Tcp.Core.Listener
import Weft.Tcp.Core.Secret
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Step
import Weft.Tcp.Wire.Address
import qualified Weft.Timer as Timer

failWith :: String -> Errno -> IO a
failWith loc (Errno e) = ioError (errnoError ("Weft.Tcp." ++ loc) e)

-- | Wait for a token until a deadline, then throw @ETIMEDOUT@.
wait :: String -> Clock.Instant -> MVar () -> IO ()
wait loc deadline token
  | deadline == Clock.never = takeMVar token
  | otherwise = do
    t <- Sys.now
    r <- Timer.within (Clock.until deadline t) (takeMVar token)
    maybe (failWith loc eTIMEDOUT) pure r

checkOpen :: String -> Socket -> IO ()
checkOpen loc sock = do
  holder <- readIORef (socketHolder sock)
  when (holder == Released) (failWith loc eBADF)

-- Connections --------------------------------------------------------------------------

-- | Connect to an address and port, from an address of the stack's own. @ECONNREFUSED@,
-- @ETIMEDOUT@, @EHOSTUNREACH@ as connect(2); @ENETUNREACH@ if the stack has no address of
-- that version; @EADDRNOTAVAIL@ if no port is left.
connect :: Stack -> Clock.Instant -> Address -> Word16 -> IO Socket
connect st deadline to port
  -- RFC 9293, MUST-46.
  | not (isUnicast to) = failWith "connect" eNETUNREACH
  | otherwise = case filter (sameFamily to) (stackAddresses (settings st)) of
    [] -> failWith "connect" eNETUNREACH
    own : _ -> mask $ \restore -> do
      sock <- claim own (16384 :: Int)
      count st Connects
      restore (opened sock) `onException` abort sock
      pure sock
  where
    claim _ 0 = failWith "connect" eADDRNOTAVAIL
    claim own n = do
      p <- atomicModifyIORef' (nextPort st) (\q -> (if q == 65535 then 49152 else q + 1, q))
      let flow = Flow port to p own
      env <- stackEnv st own
      let (c, actions) = open env (openingFor st env flow)
      sock <- newSocket st flow Nothing c
      ours <- claimFlow st flow (Live sock)
      if ours then sock <$ begin sock actions else claim own (n - 1)
    opened sock = do
      s <- inspect sock state
      case s of
        SynSent -> again sock
        SynReceived -> again sock
        Closed why -> failWith "connect" $ case why of
          Refused -> eCONNREFUSED
          Reset -> eCONNREFUSED
          TimedOut -> eTIMEDOUT
          _ -> eHOSTUNREACH
        _ -> pure ()
    again sock = wait "connect" deadline (socketWriter sock) >> opened sock

-- | Receive what there is, so many bytes at most, waiting until there is some; empty at
-- the end of the stream. @ECONNRESET@ and @ETIMEDOUT@ if that is how it ended, @EBADF@
-- once it is closed here.
recv :: Socket -> Clock.Instant -> Int -> IO ByteString
recv sock deadline n
  | n <= 0 = failWith "recv" eINVAL
  | otherwise = do
    checkOpen "recv" sock
    bytes <- apply sock (UserReceive n)
    case bytes of
      [] -> do
        (end, s) <- inspect sock (\c -> (atEndOfStream c, state c))
        case s of
          _ | not end -> wait "recv" deadline (socketReader sock) >> recv sock deadline n
          Closed why | why /= Finished -> checkOpen "recv" sock >> failWith "recv" (errnoOf why)
          _ -> pure B.empty
      [one] -> pure one
      many -> pure (B.concat many)

errnoOf :: CloseReason -> Errno
errnoOf why = case why of
  TimedOut -> eTIMEDOUT
  Unreachable -> eHOSTUNREACH
  Refused -> eCONNREFUSED
  _ -> eCONNRESET

-- | Send a string, waiting while the peer does not take it. The string is not copied.
send :: Socket -> Clock.Instant -> ByteString -> IO ()
send sock deadline bytes = sendMany sock deadline [bytes]

-- | Send strings one after the other.
sendMany :: Socket -> Clock.Instant -> [ByteString] -> IO ()
sendMany sock deadline strings = unless (all B.null strings) $ do
  checkOpen "send" sock
  (space, able, s) <- inspect sock (\c -> (sendSpace (stackConfig (settings (socketStack sock))) c, maySend c, state c))
  case s of
    _ | able && space > 0 -> do
      let (now', later) = splitStrings space strings
      -- Whatever was put into the token before tells of room that is used now.
      _ <- tryTakeMVar (socketWriter sock)
      _ <- apply sock (UserSend now')
      sendMany sock deadline later
    _ | able -> wait "send" deadline (socketWriter sock) >> sendMany sock deadline strings
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

-- | Close both directions; what was sent is still delivered, by the stack. Idempotent.
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
  void (tryPutMVar (socketReader sock) ())
  void (tryPutMVar (socketWriter sock) ())

-- | Nagle's algorithm, delayed acknowledgments, keep-alives.
setChoices :: Socket -> (Choices -> Choices) -> IO ()
setChoices sock f = void (apply sock (Choose f))

-- Listeners ------------------------------------------------------------------------------

-- | Listen on a port, at one of the stack's addresses or at all of them. Port 0 stands for
-- a free one. @EADDRINUSE@ if somebody does already.
listen :: Stack -> Maybe Address -> Word16 -> IO Listening
listen st a p = do
  made <- Listening p a <$> newIORef emptyBacklog <*> newTQueueIO <*> newTVarIO False <*> pure Nothing
  found <- atomicModifyIORef' (listeners st) $ \m ->
    let port = if p == 0 then head' [q | q <- [32768 ..], Map.notMember (q, a) m] else p
     in if Map.member (port, a) m then (m, Nothing) else let l = made {listeningPort = port, listeningSelf = Just l} in (Map.insert (port, a) l m, Just l)
  maybe (failWith "listen" eADDRINUSE) pure found
  where
    head' qs = case qs of
      q : _ -> q
      [] -> 0

-- | Wait for a connection. @EBADF@ once the listener is closed.
accept :: Listening -> IO Socket
accept l = mask_ $ do
  got <- atomically $ do
    over <- readTVar (listeningClosed l)
    if over then pure Nothing else Just <$> readTQueue (acceptQueue l)
  case got of
    Nothing -> failWith "accept" eBADF
    Just sock -> sock <$ unlist sock

-- | Take no more; connections that wait to be accepted are reset. Idempotent.
closeListening :: Stack -> Listening -> IO ()
closeListening st l = mask_ $ do
  first <- atomicModifyIORef' (listeners st) $ \m -> case Map.lookup key m of
    Just l' | acceptQueue l' == acceptQueue l -> (Map.delete key m, True)
    _ -> (m, False)
  when first $ do
    waiting <- atomically (writeTVar (listeningClosed l) True >> flushTQueue (acceptQueue l))
    mapM_ abort waiting
  where
    key = (listeningPort l, listeningAddress l)
