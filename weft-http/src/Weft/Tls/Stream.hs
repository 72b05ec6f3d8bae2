-- |
-- A connection that runs a TLS session over another connection. The library calls back to receive bytes
-- ("Weft.Tls.Incoming") and to send them ("Weft.Tls.Outgoing").
module Weft.Tls.Stream
  ( Side (..),
    Learned (..),
    handshakeOver,
  )
where

import Control.Applicative ((<|>))
import Control.Concurrent (ThreadId, myThreadId)
import Control.Exception
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.Maybe (fromMaybe)
import Data.X509 (CertificateChain (..), encodeSignedObject)
import Foreign.C.Error (Errno, eBADF, eINVAL, ePIPE, errnoToIOError)
import Foreign.Ptr (castPtr)
import GHC.IO.Exception (IOErrorType (EOF, InvalidArgument, ProtocolError, TimeExpired), IOException (..))
import Network.TLS
import Weft.Core.Time (until)
import Weft.Sys (now)
import Weft.Timer (sleep)
import Weft.Tls.Incoming
import Weft.Tls.Outgoing
import Weft.Transport
import Prelude hiding (until)

-- | Which side of the handshake.
data Side = ServerSide | ClientSide
  deriving (Eq)

-- | What one side learns in a handshake, apart from what the library's context has. Each action runs when it is
-- complete.
data Learned = Learned
  { -- | The server name that the client asked for.
    learnedServerName :: IO (Maybe ByteString),
    -- | The peer's chain. The library's function for this returns the client's chain on both sides.
    learnedChain :: Context -> IO (Maybe CertificateChain),
    -- | Whether the session was resumed; with TLS 1.3 the library knows it.
    learnedResumed :: IO Bool
  }

-- | A session's state.
data Session = Session
  { sessionContext :: !Context,
    sessionBelow :: !Connection,
    sessionSecurity :: !Security,
    sessionSide :: !Side,
    sessionIncoming :: !Incoming,
    sessionOutgoing :: !Outgoing,
    -- | Decrypted bytes that have not been passed on yet. Written by the thread that receives.
    sessionClear :: !(IORef ByteString),
    -- | Whether the stream has ended. Written by the thread that receives.
    sessionEnded :: !(IORef Bool),
    -- | The first exception of the connection below in the current receive, since the library wraps or swallows it.
    -- Written by the thread that receives.
    sessionTrouble :: !(IORef (Maybe IOException)),
    -- | Written by the thread that sends.
    sessionEnding :: !(IORef Ending),
    -- | The thread that is in 'sendData'. Written by the thread that sends.
    sessionSending :: !(IORef (Maybe ThreadId)),
    -- | The thread that is in 'bye', and its deadline. Written by the thread that sends.
    sessionBye :: !(IORef (Maybe (ThreadId, Instant))),
    -- | Whether the connection was closed. Written by any thread.
    sessionClosed :: !(IORef Bool)
  }

-- | How far the end of the sending direction has come: @Open -> Begun -> Alerted -> Ended@.
data Ending
  = Open
  | -- | Nothing more can be sent. A close_notify alert is to be sent.
    Begun
  | -- | The alert is in the queue, or was sent.
    Alerted
  | -- | The sending direction below has ended too.
    Ended
  deriving (Eq)

-- | Perform the handshake before the deadline, with the library's parameters for that side. If the handshake fails,
-- this throws an 'IOException'; the connection below must then be closed.
handshakeOver :: TLSParams params => Side -> Instant -> params -> Learned -> Connection -> IO Connection
handshakeOver side deadline params learned below = do
  incoming <- newIncoming below deadline
  outgoing <- newOutgoing below
  trouble <- newIORef Nothing
  byeBy <- newIORef Nothing
  sending <- newIORef Nothing
  -- The version, after the handshake.
  established <- newIORef Nothing
  probing <- newIORef False
  let noting act = act `catch` \e -> modifyIORef trouble (<|> Just e) >> throwIO (e :: IOException)
      send bytes = do
        version <- readIORef established
        sender <- readIORef sending
        me <- myThreadId
        case version of
          Nothing -> noting (connSendBytes below deadline bytes)
          Just _ -> (if sender == Just me then putMessage else putAnswer) outgoing bytes
      receive n = do
        nothing <- readIORef probing
        when nothing (throwIO NothingPending)
        waitInBye byeBy
        version <- readIORef established
        -- The library may wait for an answer to what it sent: TLS 1.2 has renegotiation.
        when (version == Just TlsVersion12) (sendPromptly outgoing)
        noting (takeBytes protocolError incoming n)
  context <- contextNew (Backend (pure ()) (pure ()) send receive) params
  -- Masked like 'receiveClear': version 1.7 and later of the library end a client's handshake with a receive that has a
  -- time limit, if a certificate was sent.
  mask_ (translating trouble (handshake context))
  information <- contextGetInformation context
  alpn <- getNegotiatedProtocol context
  chain <- learnedChain learned context
  name <- learnedServerName learned
  again <- learnedResumed learned
  let mode = information >>= infoTLS13HandshakeMode
      version = if fmap infoVersion information == Just TLS13 then TlsVersion13 else TlsVersion12
      security =
        Security
          { securityVersion = version,
            securityCipher = maybe 0 (cipherID . infoCipher) information,
            securityAlpn = alpn,
            securityServerName = name,
            securityPeerCertificates = maybe [] (\(CertificateChain certificates) -> map encodeSignedObject certificates) chain,
            securityResumed = maybe again (`elem` [PreSharedKey, RTT0]) mode
          }
  writeIORef established (Just version)
  -- That receive may have returned data, which the library keeps. It returns it before it receives.
  writeIORef probing True
  pending <- if side == ClientSide && version == TlsVersion13 then fmap Just (translating trouble (recvData context)) `catch` \NothingPending -> pure Nothing else pure Nothing
  writeIORef probing False
  short <- (/= NotShort) <$> streamEnd incoming
  clear <- newIORef (fromMaybe B.empty pending)
  end <- newIORef (pending == Just B.empty && not short)
  ending <- newIORef Open
  closed <- newIORef False
  pure (Connection operations (Session context below security side incoming outgoing clear end trouble ending sending byeBy closed))

-- | The library has no data that it received during the handshake.
data NothingPending = NothingPending
  deriving (Show)

instance Exception NothingPending

-- | If this thread is in 'bye', wait until it is interrupted, or throw an error that satisfies 'isTimeout' at its
-- deadline.
waitInBye :: IORef (Maybe (ThreadId, Instant)) -> IO ()
waitInBye cell = do
  sending <- readIORef cell
  me <- myThreadId
  case sending of
    Just (thread, deadline) | thread == me -> do
      t <- now
      when (t >= deadline) (ioError (IOError Nothing TimeExpired "Weft.Tls.connShutdownSend" "the deadline has passed" Nothing Nothing))
      sleep (deadline `until` t)
      waitInBye cell
    _ -> pure ()

operations :: Operations Session
operations =
  Operations
    { opReceive = receiveClear,
      opSend = \s deadline (Region p n) -> do
        -- Copied, since the caller may reuse the memory afterwards. By then the bytes have been encrypted.
        bytes <- B.packCStringLen (castPtr p, n)
        sendClear s deadline [bytes],
      opSendMany = sendClear,
      opSendFile = sendFileClear,
      opShutdownSend = shutdownClear,
      opClose = \s -> writeIORef (sessionClosed s) True >> connClose (sessionBelow s),
      opAbort = \s -> writeIORef (sessionClosed s) True >> connAbort (sessionBelow s),
      opPeer = connPeer . sessionBelow,
      opLocal = connLocal . sessionBelow,
      opSendProgress = connSendProgress . sessionBelow,
      opSecurity = Just . sessionSecurity,
      -- They are encrypted during the call.
      opKeepsStrings = const False
    }

-- | The rest of the current record, or bytes of the next one. Masked: it is interruptible where it waits for bytes, and
-- an exception must not find the library in the middle of a record.
--
-- What the library answers meanwhile goes into the queue. An answer to a key update waits for the next send (RFC 8446,
-- 4.6.3); there are many only if the peer does not want to receive.
receiveClear :: Session -> Instant -> Int -> IO ByteString
receiveClear s deadline n
  | n <= 0 = failed "connReceive" eINVAL
  | otherwise = mask_ $ do
    checkOpen s "connReceive"
    have <- readIORef (sessionClear s)
    finished <- readIORef (sessionEnded s)
    if B.null have then (if finished then pure B.empty else next) else give have
  where
    give bytes = B.take n bytes <$ writeIORef (sessionClear s) (B.drop n bytes)
    next = do
      receiveUntil (sessionIncoming s) deadline
      (whole, awaited) <- awaitRecord (sessionIncoming s)
      allowUnfinished (sessionIncoming s)
      before <- streamEnd (sessionIncoming s)
      if whole then fromLibrary else truncated (if awaited > 0 then InRecord else before)
    fromLibrary = do
      bytes <- translating (sessionTrouble s) (uninterruptibleMask_ (recvData (sessionContext s))) `onException` sendPromptly (sessionOutgoing s)
      answers <- queuedAnswers (sessionOutgoing s)
      when (B.null bytes || answers > fewAnswers) (sendPromptly (sessionOutgoing s))
      left <- queuedAnswers (sessionOutgoing s)
      when (left > manyAnswers) (ioError (protocolError "the peer does not take the answers to its key updates"))
      end <- streamEnd (sessionIncoming s)
      if not (B.null bytes) then give bytes else if end == NotShort then ended else truncated end
    ended = B.empty <$ writeIORef (sessionEnded s) True
    -- The peer closed without a close_notify alert. For a server that is common and harmless, since a request says
    -- where it ends. A client must not mistake a truncated message for a complete one.
    truncated end
      | end == InRecord = ioError (protocolError "the peer ended the connection in the middle of a record")
      | sessionSide s == ServerSide = ended
      | otherwise = ioError (protocolError "the peer ended the connection without ending the session")

-- | Up to 1 KiB of answers wait for the next send. More than 64 KiB end the session.
fewAnswers, manyAnswers :: Int
fewAnswers = 1024
manyAnswers = 65536

-- | Send in records of up to 16 KiB, even if the pieces are small. If it throws, nothing more can be sent.
--
-- The library encrypts a message at once: it sends nothing any more when it has received the peer's close_notify alert,
-- which may be while the message is being sent. So the memory of a message is needed twice, up to 1 MiB.
sendClear :: Session -> Instant -> [ByteString] -> IO ()
sendClear s deadline strings = do
  checkOpen s "connSend"
  ending <- readIORef (sessionEnding s)
  unless (ending == Open) (failed "connSend" ePIPE)
  checkWhole outgoing
  mask_ (mapM_ sendPart (parts (records (filter (not . B.null) strings))))
  where
    outgoing = sessionOutgoing s
    sendPart part = (`onException` cutOff outgoing) . locked outgoing deadline $ do
      -- It refuses to send after the peer's end or a fatal alert, with an error that depends on its version.
      me <- myThreadId
      writeIORef (sessionSending s) (Just me)
      encrypted <- try (uninterruptibleMask_ (translated (pure Nothing) (sendData (sessionContext s) (L.fromChunks part))))
      writeIORef (sessionSending s) Nothing
      either (\e -> if ioe_type e `elem` [EOF, ProtocolError] then failed "connSend" ePIPE else ioError e) pure encrypted
      sendQueue outgoing deadline
    parts [] = []
    parts several = let (next, later) = splitAt (partSize `div` textSize) several in next : parts later

-- | The most bytes that are encrypted before they are sent: 1 MiB.
partSize :: Int
partSize = 1048576

-- | If the file ends early, more can be sent afterwards, as with the kernel's sockets.
sendFileClear :: Session -> Instant -> [ByteString] -> FileRange -> IO ()
sendFileClear s deadline strings range = mask_ $ do
  sendClear s deadline strings
  sendFileByReading (\piece -> sendClear s deadline [piece]) range `catch` \e -> do
    unless (tooShort e) (cutOff (sessionOutgoing s))
    throwIO e
  where
    -- Or an invalid part of the file, of which nothing was sent.
    tooShort :: SomeException -> Bool
    tooShort e = maybe False ((`elem` [EOF, InvalidArgument]) . ioe_type) (fromException e)

-- | The most bytes of text in a record (RFC 8446, 5.1).
textSize :: Int
textSize = 16384

-- | Join adjacent pieces that fit into one record, and split those that do not.
records :: [ByteString] -> [ByteString]
records = go [] 0
  where
    go acc _ [] = [B.concat (reverse acc) | not (null acc)]
    go acc size (x : xs)
      | size + B.length x <= textSize = go (x : acc) (size + B.length x) xs
      | null acc = let (one, rest) = B.splitAt textSize x in one : go [] 0 (rest : xs)
      | otherwise = B.concat (reverse acc) : go [] 0 (x : xs)

-- | Send a close_notify alert, and end the sending direction below. If it throws, it can be repeated. If sending was cut
-- off, the peer gets no alert, and so learns that what it received is not all.
--
-- Version 1.6 and later of the library may receive in 'bye': a client waits three round trips or 30 ms, the longer of
-- the two, for a session ticket. It does not take the lock of 'recvData', and drops the application data that comes
-- instead. The bytes belong to the thread that receives, which handles the ticket too. So 'bye' gets none: it waits
-- until the library's time limit interrupts it.
shutdownClear :: Session -> Instant -> IO ()
shutdownClear s deadline = do
  checkOpen s "connShutdownSend"
  ending <- readIORef (sessionEnding s)
  unless (ending == Ended) $ do
    locked outgoing deadline $ do
      cut <- isCutOff outgoing
      unless cut $ do
        when (ending /= Alerted) $ do
          writeIORef (sessionEnding s) Begun
          me <- myThreadId
          writeIORef (sessionBye s) (Just (me, deadline))
          translated (pure Nothing) (bye (sessionContext s)) `finally` writeIORef (sessionBye s) Nothing
          writeIORef (sessionEnding s) Alerted
        sendQueue outgoing deadline
    connShutdownSend (sessionBelow s) deadline
    writeIORef (sessionEnding s) Ended
  where
    outgoing = sessionOutgoing s

checkOpen :: Session -> String -> IO ()
checkOpen s loc = do
  closed <- readIORef (sessionClosed s)
  when closed (failed loc eBADF)

-- | Convert the library's exceptions to 'IOException's. An exception of the connection is the cause of what the library
-- reports without a reason of its own; that becomes the result. Otherwise it is a 'ProtocolError', which servers do not
-- report as errors of their own: then the connection may have failed afterwards, when the library sent an alert.
translating :: IORef (Maybe IOException) -> IO a -> IO a
translating trouble act = writeIORef trouble Nothing >> translated (readIORef trouble) act

-- | 'translating' with an action that returns the connection's exception.
translated :: IO (Maybe IOException) -> IO a -> IO a
translated trouble act = act `catch` translate
  where
    translate :: TLSException -> IO a
    translate e = do
      below <- if hasReason e then pure Nothing else trouble
      throwIO (fromMaybe (protocolError (takeWhile (/= '\n') (show e))) below)

-- | Whether the library found a fault in what the peer sent, or received an alert or the end of the stream. It does not
-- know the exceptions of a connection, and reports them as 'Error_Misc' or in ways that depend on its version.
hasReason :: TLSException -> Bool
hasReason e = case e of
  HandshakeFailed reason -> known reason
  Terminated _ _ reason -> known reason
  _ -> False
  where
    known reason = case reason of
      Error_Protocol {} -> True
      Error_Certificate {} -> True
      Error_HandshakePolicy {} -> True
      Error_Packet_unexpected {} -> True
      Error_Packet_Parsing {} -> True
      Error_EOF -> True
      _ -> False

protocolError :: String -> IOException
protocolError why = IOError Nothing ProtocolError "Weft.Tls" why Nothing Nothing

failed :: String -> Errno -> IO a
failed loc errno = ioError (errnoToIOError ("Weft.Tls." <> loc) errno Nothing Nothing)
