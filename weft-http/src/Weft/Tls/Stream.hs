-- |
-- A TLS session over a connection as a connection. The library asks for bytes and sends bytes; deadlines reach it by two
-- cells that hold the deadline of the operation that is under way in each direction.
module Weft.Tls.Stream
  ( Side (..),
    handshakeOver,
  )
where

import Control.Exception
import Control.Monad (unless, when)
import Data.Bits (shiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.X509 (CertificateChain (..), encodeSignedObject)
import Foreign.C.Error (Errno, eBADF, eINVAL, ePIPE, errnoToIOError)
import Foreign.Ptr (castPtr)
import Network.TLS
import Weft.Transport

-- | Which side of the handshake.
data Side = ServerSide | ClientSide
  deriving (Eq)

-- | A session's state.
data Session = Session
  { sessionContext :: !Context,
    sessionBelow :: !Connection,
    sessionSecurity :: !Security,
    sessionSide :: !Side,
    -- | Bytes that came and were not asked for by the library yet. Written by the thread that receives.
    sessionCome :: !(IORef ByteString),
    -- | Decrypted bytes that have not been received yet. Written by the thread that receives.
    sessionClear :: !(IORef ByteString),
    -- | The deadlines of the operations under way. Each written by the thread of its direction.
    sessionReceiveBy :: !(IORef Instant),
    sessionSendBy :: !(IORef Instant),
    -- | What the connection below threw, which the library wraps up or swallows. Written by either direction.
    sessionTrouble :: !(IORef (Maybe IOException)),
    -- | Has the sending direction been ended? Written by the thread that sends.
    sessionShut :: !(IORef Bool),
    -- | Closed by any thread.
    sessionClosed :: !(IORef Bool)
  }

-- | Shake hands before the deadline, with parameters that may depend on nothing but the side, and an action that says whether
-- the session was resumed. Throws an 'IOError' when that fails; the connection below is then only good for closing.
handshakeOver :: TLSParams params => Side -> Instant -> params -> IO (Maybe ByteString) -> IO Bool -> Connection -> IO Connection
handshakeOver side deadline params askedName resumed below = do
  come <- newIORef B.empty
  receiveBy <- newIORef deadline
  sendBy <- newIORef deadline
  trouble <- newIORef Nothing
  let noting act = act `catch` \e -> writeIORef trouble (Just e) >> throwIO (e :: IOException)
      send bytes = noting (readIORef sendBy >>= \by -> connSendBytes below by bytes)
      receive n = noting (readIORef receiveBy >>= \by -> exactly below come by n)
  context <- contextNew (Backend (pure ()) (pure ()) send receive) params
  translating trouble (handshake context)
  information <- contextGetInformation context
  alpn <- getNegotiatedProtocol context
  -- Ours, if we are the client; then it is not of interest here.
  chain <- if side == ServerSide then getClientCertificateChain context else pure Nothing
  name <- askedName
  again <- resumed
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
  shut <- newIORef False
  closed <- newIORef False
  pure (Connection operations (Session context below security side come clear receiveBy sendBy trouble shut closed))

-- | So many bytes, fewer only at the end of the stream. What has come stays in the cell when it throws. The
-- header of a record is not given before all of the record is there, so that a deadline or an interruption finds the
-- library between two records.
exactly :: Connection -> IORef ByteString -> Instant -> Int -> IO ByteString
exactly below come deadline n = do
  have <- if n == headerSize then snd <$> awaitRecord below come deadline else awaitBytes below come deadline n
  B.take n have <$ writeIORef come (B.drop n have)

-- | Receive until so many bytes are there, or the stream ends: all that is there, which stays there.
awaitBytes :: Connection -> IORef ByteString -> Instant -> Int -> IO ByteString
awaitBytes below come deadline n = do
  have <- readIORef come
  if B.length have >= n
    then pure have
    else do
      -- Masked, so that what was received is kept; waiting is interruptible.
      more <- mask_ $ do
        more <- connReceive below deadline 32768
        more <$ writeIORef come (have <> more)
      if B.null more then pure have else awaitBytes below come deadline n

-- | Receive until a whole record is there, or the stream ends: was it whole, and all that is there.
awaitRecord :: Connection -> IORef ByteString -> Instant -> IO (Bool, ByteString)
awaitRecord below come deadline = do
  start <- awaitBytes below come deadline headerSize
  if B.length start < headerSize
    then pure (False, start)
    else do
      let size = headerSize + (fromIntegral (B.index start 3) `shiftL` 8 .|. fromIntegral (B.index start 4))
      record <- awaitBytes below come deadline size
      pure (B.length record >= size, record)

-- | Bytes of a record's header: RFC 8446, 5.1.
headerSize :: Int
headerSize = 5

operations :: Operations Session
operations =
  Operations
    { opReceive = receiveClear,
      opSend = \s deadline (Region p n) -> do
        -- The memory is the caller's again afterwards; it has been encrypted by then.
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

-- | What is there of the record that came last, or of the next.
receiveClear :: Session -> Instant -> Int -> IO ByteString
receiveClear s deadline n
  | n <= 0 = failed "connReceive" eINVAL
  | otherwise = do
    checkOpen s "connReceive"
    have <- readIORef (sessionClear s)
    if B.null have then next else give have
  where
    give bytes = B.take n bytes <$ writeIORef (sessionClear s) (B.drop n bytes)
    next = do
      writeIORef (sessionReceiveBy s) deadline
      (whole, _) <- awaitRecord (sessionBelow s) (sessionCome s) deadline
      bytes <- ended whole (translating (sessionTrouble s) (recvData (sessionContext s)))
      if B.null bytes then pure B.empty else give bytes
    -- A peer that goes without a word has ended its stream: for a server that is common and harmless, since HTTP says how
    -- long a message is; a client must not take a part for the whole.
    ended whole act
      | whole = act
      | sessionSide s == ServerSide = pure B.empty
      | otherwise = ioError (userError "Weft.Tls: the peer ended the connection without ending the session")

-- | In records of 16 KiB, however small the pieces are.
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

-- | Join neighbours that fit into a record together.
records :: [ByteString] -> [ByteString]
records = go [] 0
  where
    go acc _ [] = [B.concat (reverse acc) | not (null acc)]
    go acc size (x : xs)
      | size + B.length x <= recordSize = go (x : acc) (size + B.length x) xs
      | null acc = x : go [] 0 xs
      | otherwise = B.concat (reverse acc) : go [] 0 (x : xs)

shutdownClear :: Session -> Instant -> IO ()
shutdownClear s deadline = do
  checkOpen s "connShutdownSend"
  before <- readIORef (sessionShut s)
  unless before $ do
    writeIORef (sessionShut s) True
    writeIORef (sessionSendBy s) deadline
    writeIORef (sessionReceiveBy s) deadline
    translating (sessionTrouble s) (bye (sessionContext s))
    connShutdownSend (sessionBelow s) deadline

checkOpen :: Session -> String -> IO ()
checkOpen s loc = do
  closed <- readIORef (sessionClosed s)
  when closed (failed loc eBADF)

-- | The library's exceptions as 'IOError's: what the connection below threw, if that was the cause.
translating :: IORef (Maybe IOException) -> IO a -> IO a
translating trouble act = do
  writeIORef trouble Nothing
  act `catch` translate
  where
    translate :: TLSException -> IO a
    translate e = readIORef trouble >>= maybe (ioError (userError ("TLS: " <> takeWhile (/= '\n') (show e)))) throwIO

failed :: String -> Errno -> IO a
failed loc errno = ioError (errnoToIOError ("Weft.Tls." <> loc) errno Nothing Nothing)
