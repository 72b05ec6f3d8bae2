-- |
-- A connection that runs a TLS session over another connection. The library calls back to receive and send bytes. The
-- callbacks take their deadlines from two cells, which hold the deadline of the current operation in each direction.
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
import Data.Bits (shiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.Maybe (fromMaybe)
import Data.X509 (CertificateChain (..), encodeSignedObject)
import Foreign.C.Error (Errno, eBADF, eINVAL, ePIPE, errnoToIOError)
import Foreign.Ptr (castPtr)
import GHC.IO.Exception (IOErrorType (ProtocolError, TimeExpired), IOException (..))
import Network.TLS
import Weft.Core.Time (until)
import Weft.Sys (now)
import Weft.Timer (sleep)
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
    -- | Received bytes that the library has not consumed yet. Written by the thread that receives.
    sessionCome :: !(IORef ByteString),
    -- | Decrypted bytes that have not been passed on yet. Written by the thread that receives.
    sessionClear :: !(IORef ByteString),
    -- | Whether the stream has ended. Written by the thread that receives.
    sessionEnded :: !(IORef Bool),
    -- | The deadlines of the current operations, each written by the thread of its direction.
    sessionReceiveBy :: !(IORef Instant),
    sessionSendBy :: !(IORef Instant),
    -- | How many bytes the library may still take before it has to complete the handshake or return application data.
    -- Written by the thread that receives.
    sessionLeft :: !(IORef Int),
    -- | The first exception of the connection below in the current operation, since the library wraps or swallows it.
    -- Written by either direction.
    sessionTrouble :: !(IORef (Maybe IOException)),
    -- | Whether the sending direction has been closed. Written by the thread that sends.
    sessionShut :: !(IORef Bool),
    -- | The thread that is sending the close_notify alert. Written by the thread that sends.
    sessionShutBy :: !(IORef (Maybe ThreadId)),
    -- | Whether the connection was closed. Written by any thread.
    sessionClosed :: !(IORef Bool)
  }

-- | Perform the handshake before the deadline, with the library's parameters for that side. If the handshake fails,
-- this throws an 'IOException'; the connection below must then be closed.
handshakeOver :: TLSParams params => Side -> Instant -> params -> Learned -> Connection -> IO Connection
handshakeOver side deadline params learned below = do
  come <- newIORef B.empty
  receiveBy <- newIORef deadline
  sendBy <- newIORef deadline
  left <- newIORef unfinishedSize
  trouble <- newIORef Nothing
  shutBy <- newIORef Nothing
  let noting act = act `catch` \e -> modifyIORef trouble (<|> Just e) >> throwIO (e :: IOException)
      send bytes = noting (readIORef sendBy >>= \by -> connSendBytes below by bytes)
      receive n = noting $ do
        receiving <- (/=) <$> readIORef shutBy <*> (Just <$> myThreadId)
        unless receiving (readIORef sendBy >>= waitUntil)
        bytes <- readIORef receiveBy >>= \by -> exactly below come by n
        rest <- subtract (B.length bytes) <$> readIORef left
        when (rest < 0) (ioError (protocolError ("a handshake of more than " <> show unfinishedSize <> " bytes")))
        bytes <$ writeIORef left rest
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
      security =
        Security
          { securityVersion = if fmap infoVersion information == Just TLS13 then TlsVersion13 else TlsVersion12,
            securityCipher = maybe 0 (cipherID . infoCipher) information,
            securityAlpn = alpn,
            securityServerName = name,
            securityPeerCertificates = maybe [] (\(CertificateChain certificates) -> map encodeSignedObject certificates) chain,
            securityResumed = maybe again (`elem` [PreSharedKey, RTT0]) mode
          }
  clear <- newIORef B.empty
  end <- newIORef False
  shut <- newIORef False
  closed <- newIORef False
  pure (Connection operations (Session context below security side come clear end receiveBy sendBy left trouble shut shutBy closed))

-- | Take the given number of bytes, fewer only at the end of the stream. If it throws, the received bytes stay in the
-- cell. A record's header is not returned before the whole record has arrived, so that a deadline or an interruption
-- finds the library between two records.
exactly :: Connection -> IORef ByteString -> Instant -> Int -> IO ByteString
exactly below come deadline n = do
  have <- if n == headerSize then snd <$> awaitRecord below come deadline else awaitBytes below come deadline n
  B.take n have <$ writeIORef come (B.drop n have)

-- | Receive until the cell has the given number of bytes, or the stream ends. Returns the cell's contents, which stay
-- there.
awaitBytes :: Connection -> IORef ByteString -> Instant -> Int -> IO ByteString
awaitBytes below come deadline n = do
  have <- readIORef come
  if B.length have >= n
    then pure have
    else do
      -- Masked, also during the handshake, so that received bytes are not lost; waiting is interruptible.
      more <- mask_ $ do
        more <- connReceive below deadline 32768
        more <$ writeIORef come (have <> more)
      if B.null more then pure have else awaitBytes below come deadline n

-- | Receive until the cell has a whole record, or the stream ends. Returns whether the record is whole, and the cell's
-- contents.
awaitRecord :: Connection -> IORef ByteString -> Instant -> IO (Bool, ByteString)
awaitRecord below come deadline = do
  start <- awaitBytes below come deadline headerSize
  if B.length start < headerSize
    then pure (False, start)
    else do
      let size = headerSize + (fromIntegral (B.index start 3) `shiftL` 8 .|. fromIntegral (B.index start 4))
      record <- awaitBytes below come deadline size
      pure (B.length record >= size, record)

-- | The size of a record's header: RFC 8446, 5.1.
headerSize :: Int
headerSize = 5

-- | The most bytes of a handshake from one side, and of records after it that contain no application data: 128 KiB. The
-- length in a handshake message allows 16 MiB, which the library would keep in memory. A certificate chain fits.
unfinishedSize :: Int
unfinishedSize = 131072

operations :: Operations Session
operations =
  Operations
    { opReceive = receiveClear,
      opSend = \s deadline (Region p n) -> do
        -- Copied, since the caller may reuse the memory afterwards. By then the bytes have been encrypted.
        bytes <- B.packCStringLen (castPtr p, n)
        sendClear s deadline [bytes],
      opSendMany = sendClear,
      opSendFile = \s deadline strings range -> do
        sendClear s deadline strings
        sendFileByReading (\piece -> sendClear s deadline [piece]) range,
      opShutdownSend = shutdownClear,
      opClose = \s -> writeIORef (sessionClosed s) True >> connClose (sessionBelow s),
      opAbort = \s -> writeIORef (sessionClosed s) True >> connAbort (sessionBelow s),
      opPeer = connPeer . sessionBelow,
      opLocal = connLocal . sessionBelow,
      opSendProgress = connSendProgress . sessionBelow,
      opSecurity = Just . sessionSecurity
    }

-- | The rest of the current record, or bytes of the next one. Masked: it is interruptible where it waits, and an
-- exception must not find the library in the middle of a record.
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
      writeIORef (sessionReceiveBy s) deadline
      (whole, _) <- awaitRecord (sessionBelow s) (sessionCome s) deadline
      writeIORef (sessionLeft s) unfinishedSize
      bytes <- ended whole (translating (sessionTrouble s) (recvData (sessionContext s)))
      if B.null bytes then B.empty <$ writeIORef (sessionEnded s) True else give bytes
    -- The peer closed without a close_notify alert. For a server that is common and harmless, since HTTP has its own
    -- message lengths. A client must not mistake a truncated message for a complete one.
    ended whole act
      | whole = act
      | sessionSide s == ServerSide = pure B.empty
      | otherwise = ioError (userError "Weft.Tls: the peer ended the connection without ending the session")

-- | Send in records of up to 16 KiB, even if the pieces are small.
sendClear :: Session -> Instant -> [ByteString] -> IO ()
sendClear s deadline strings = do
  checkOpen s "connSend"
  shut <- readIORef (sessionShut s)
  when shut (failed "connSend" ePIPE)
  writeIORef (sessionSendBy s) deadline
  mapM_ (translating (sessionTrouble s) . sendData (sessionContext s) . L.fromStrict) (records (filter (not . B.null) strings))

-- | The most bytes of a record (RFC 8446, 5.1).
recordSize :: Int
recordSize = 16384

-- | Join adjacent pieces that fit into one record.
records :: [ByteString] -> [ByteString]
records = go [] 0
  where
    go acc _ [] = [B.concat (reverse acc) | not (null acc)]
    go acc size (x : xs)
      | size + B.length x <= recordSize = go (x : acc) (size + B.length x) xs
      | null acc = x : go [] 0 xs
      | otherwise = B.concat (reverse acc) : go [] 0 (x : xs)

-- | Send a close_notify alert, and end the sending direction below.
--
-- Version 1.6 and later of the library may receive in 'bye': a client waits three round trips or 30 ms, the longer of
-- the two, for a session ticket. It does not take the lock of 'recvData', and drops the application data that comes
-- instead. The bytes belong to the thread that receives, which handles the ticket too. So the callback gives 'bye' no
-- bytes: it waits until the library's time limit interrupts it.
shutdownClear :: Session -> Instant -> IO ()
shutdownClear s deadline = do
  checkOpen s "connShutdownSend"
  before <- readIORef (sessionShut s)
  unless before $ do
    writeIORef (sessionShut s) True
    writeIORef (sessionSendBy s) deadline
    shutBy <- myThreadId
    writeIORef (sessionShutBy s) (Just shutBy)
    translating (sessionTrouble s) (bye (sessionContext s)) `finally` writeIORef (sessionShutBy s) Nothing
    connShutdownSend (sessionBelow s) deadline

-- | Wait, and throw an 'IOException' that satisfies 'isTimeout' at the deadline.
waitUntil :: Instant -> IO ()
waitUntil deadline = do
  t <- now
  when (t >= deadline) (ioError (IOError Nothing TimeExpired "Weft.Tls.connShutdownSend" "the deadline has passed" Nothing Nothing))
  sleep (deadline `until` t)
  waitUntil deadline

checkOpen :: Session -> String -> IO ()
checkOpen s loc = do
  closed <- readIORef (sessionClosed s)
  when closed (failed loc eBADF)

-- | Convert the library's exceptions to 'IOException's. An exception of the connection is the cause of what the library
-- reports without a reason of its own; that becomes the result. Otherwise it is a 'ProtocolError', which servers do not
-- report as errors of their own: then the connection may have failed afterwards, when the library sent an alert.
translating :: IORef (Maybe IOException) -> IO a -> IO a
translating trouble act = do
  writeIORef trouble Nothing
  act `catch` translate
  where
    translate :: TLSException -> IO a
    translate e = do
      below <- if hasReason e then pure Nothing else readIORef trouble
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
