-- |
-- A connection that runs a TLS session over another connection: it receives what the library needs, and sends what the
-- library has encrypted.
--
-- = Who uses the endpoint
--
-- One thread receives, another may send, and any may close; the library allows one at a time. So there are two roles.
--
-- * /The turn/ ('sessionTurn'): to use the endpoint. It is taken for one call of the library, and never kept while its
--   holder waits. @Free -> Held -> Free@; after 'sessionClosed' is set, whoever releases it or finds it free also frees
--   the endpoint, once, and no one uses it afterwards.
-- * /The sender/ ('sessionSender'): to send below what the library has encrypted, in its order. It may be held while
--   its holder waits for the peer. A thread that holds it takes the turn, but not the other way round.
--
-- The thread that receives may have to answer (a key update, an alert). The answer waits in the endpoint for the next
-- send, or if it is urgent, is sent by the thread that receives if there is no sender, else by the sender as it ends.
module Weft.Tls.Stream
  ( Side (..),
    Handshaking (..),
    handshakeOver,
    protocolError,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (unless, void, when, (<$!>))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (toForeignPtr)
import Data.Foldable (fold)
import Data.IORef
import Data.Maybe (isJust, isNothing)
import Foreign (free, mallocBytes, nullPtr, plusPtr, touchForeignPtr)
import Foreign.C.Error (Errno, eBADF, eINVAL, ePIPE, errnoToIOError)
import GHC.ForeignPtr (unsafeForeignPtrToPtr)
import GHC.IO.Exception (IOErrorType (EOF, PermissionDenied, ProtocolError, TimeExpired), IOException (..))
import System.IO.Error (mkIOError)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.Types (Fd (..))
import Weft.Core.Each (Each, newEach, own)
import Weft.Core.PerProcess
import Weft.Core.Time (until)
import Weft.Http.ReadFile (readFileAt)
import Weft.Sys (now)
import Weft.Timer (within)
import Weft.Tls.Library
import Weft.Transport
import Prelude hiding (until)

-- | Which side of the handshake.
data Side = ServerSide | ClientSide
  deriving (Eq)

-- | A session's state.
data Session = Session
  { sessionEndpoint :: !Endpoint,
    sessionBelow :: !Connection,
    sessionSecurity :: !Security,
    sessionSide :: !Side,
    sessionTurn :: !(MVar ()),
    sessionSender :: !(MVar ()),
    -- | Whether there is output that is to be sent as soon as there is no sender, or, from the handshake, with the first
    -- bytes that are sent, and before more is received. Set by the thread that receives, cleared by a sender.
    sessionUrgent :: !(IORef Bool),
    -- | Written by the thread that receives.
    sessionInput :: !(IORef Input),
    -- | Written by the thread that receives.
    sessionEnd :: !(IORef End),
    -- | Written by the thread that sends.
    sessionEnding :: !(IORef Ending),
    -- | Whether a send was interrupted or failed: the peer cannot decrypt what would follow, so nothing more is sent.
    -- Written by senders, and only set.
    sessionCut :: !(IORef Bool),
    -- | Whether the connection was closed. Written by any thread, and only set.
    sessionClosed :: !(IORef Bool)
  }

-- | Received bytes that the library has not taken yet, and whether it can read something without more.
data Input = Input !ByteString !Bool

-- | How far the receiving direction has come: @Going -> Ended@, or @Going -> Broken@.
data End
  = Going
  | -- | By the peer.
    Ended
  | Broken !IOException

-- | How far the end of the sending direction has come: @Open -> Alerted -> Shut@.
data Ending
  = Open
  | -- | The alert close_notify is in the output, or was sent. Nothing more can be sent.
    Alerted
  | -- | The sending direction below has ended too.
    Shut
  deriving (Eq)

-- Handshakes -----------------------------------------------------------------------------

-- | A handshake that begins.
data Handshaking = Handshaking
  { handshakeSide :: !Side,
    handshakeEndpoint :: !Endpoint,
    -- | Whether its steps may take long: they sign with a slow key, or verify certificates.
    handshakeSlow :: !Bool,
    -- | Keeps what the endpoint refers to; run at the end.
    handshakeKeeps :: IO (),
    -- | A string that is equal and lives anyway, if there is one: a short string of its own holds a block of memory.
    handshakeShared :: ByteString -> ByteString,
    -- | Gets the lines of the session's keys, if there are any.
    handshakeKeys :: ByteString -> IO ()
  }

-- | Perform the handshake before the deadline, with bytes that were received already. If the handshake fails, this
-- throws an 'IOException', and the endpoint is freed; the connection below must then be closed.
handshakeOver :: Handshaking -> Instant -> ByteString -> Connection -> IO Connection
handshakeOver (Handshaking side endpoint slowly keeps shared keys) deadline first below = (`onException` release endpoint) $ do
  rest <- if side == ServerSide && B.null first then receive 0 B.empty else step (B.length first) first
  keeps
  keyLines endpoint >>= \told -> unless (B.null told) (keys told)
  security <- securityOf endpoint shared
  -- A server's tickets (TLS 1.3) go with its first bytes if the client's have come already, else at once: they
  -- acknowledge what the client has sent, and so let it send more (RFC 896).
  let together = side == ServerSide && not (B.null rest)
  unless together flush
  turn <- newMVar ()
  sender <- newMVar ()
  urgent <- newIORef together
  input <- newIORef (Input rest False)
  end <- newIORef Going
  ending <- newIORef Open
  cut <- newIORef False
  closed <- newIORef False
  pure (Connection operations (Session endpoint below security side turn sender urgent input end ending cut closed))
  where
    step :: Int -> ByteString -> IO ByteString
    step before bytes = do
      (outcome, left) <- inTurn ((if slowly then handshakeSlowly else handshake) endpoint bytes)
      case outcome of
        HandshakeDone -> pure left
        HandshakeWaits -> flush >> receive before left
        HandshakeFailed failure -> do
          -- Its alert.
          void (try flush :: IO (Either IOException ()))
          ioError (errorOf failure)
    receive before left = do
      more <- connReceive below deadline 16384
      when (B.null more) (ioError (protocolError "the peer ended the connection during the handshake"))
      let sofar = before + B.length more
      when (sofar > largestHandshake) (ioError (protocolError ("a handshake of more than " <> show largestHandshake <> " bytes")))
      step sofar (left <> more)
    flush = bracket (takeOutput endpoint) (\(Region at _) -> dropOutput at) $ \(Region at n) -> unless (n == 0) (connSend below deadline at n)

-- | The most bytes of a handshake from one side: 128 KiB. A certificate chain fits.
largestHandshake :: Int
largestHandshake = 131072

-- | Run a step: one at a time for each capability, in the order in which they come. So of many handshakes that begin at
-- once only one is among the threads that can run, and established connections wait for one step in each round. A step
-- that takes long runs on a thread of the operating system of its own, so that the capability goes on; several would
-- take the time of established connections.
inTurn :: IO a -> IO a
inTurn act = ofThisProcess turns >>= own >>= \turn -> withMVar turn (const act)

-- | Of each process: a thread of the parent may have the turn at a fork.
turns :: PerProcess (Each (MVar ()))
turns = unsafePerformIO (newPerProcess (newEach (newMVar ())))
{-# NOINLINE turns #-}

securityOf :: Endpoint -> (ByteString -> ByteString) -> IO Security
securityOf endpoint shared = do
  version13 <- isVersion13 endpoint
  cipher <- cipherNumber endpoint
  protocol <- held <$!> chosenProtocol endpoint
  name <- held <$!> askedName endpoint
  chain <- peerChain endpoint
  again <- isResumed endpoint
  pure
    Security
      { securityVersion = if version13 then TlsVersion13 else TlsVersion12,
        securityCipher = cipher,
        securityAlpn = protocol,
        securityServerName = name,
        securityPeerCertificates = chain,
        securityResumed = again
      }
  where
    held found = case found of
      Just own' -> let !string = shared own' in Just string
      Nothing -> Nothing

-- Roles ----------------------------------------------------------------------------------

-- | Masked: use the endpoint. The action calls the library, and neither waits nor takes long. @EBADF@ if the connection
-- is closed.
withEndpoint :: Session -> String -> (Endpoint -> IO a) -> IO a
withEndpoint s loc act = do
  takeMVar (sessionTurn s)
  closed <- readIORef (sessionClosed s)
  if closed
    then giveBack s >> failed loc eBADF
    else do
      r <- act (sessionEndpoint s) `onException` giveBack s
      r <$ giveBack s
{-# INLINE withEndpoint #-}

-- | Give the turn back.
giveBack :: Session -> IO ()
giveBack s = do
  putMVar (sessionTurn s) ()
  closed <- readIORef (sessionClosed s)
  when closed (reap s)

-- | Free the endpoint of a closed connection, unless it is in use: then its user does.
reap :: Session -> IO ()
reap s = mask_ $ do
  idle <- tryTakeMVar (sessionTurn s)
  case idle of
    Nothing -> pure ()
    Just () -> release (sessionEndpoint s) >> putMVar (sessionTurn s) ()

-- | Masked: run an action as the sender. Throws an error that satisfies 'isTimeout' if another thread is the sender
-- until the deadline.
asSender :: Session -> Instant -> IO () -> IO ()
asSender s deadline act = do
  idle <- tryTakeMVar (sessionSender s)
  when (isNothing idle) acquire
  act `onException` (putMVar (sessionSender s) () >> now >>= afterwards s)
  putMVar (sessionSender s) ()
  afterwards s deadline
  where
    acquire
      | deadline == noDeadline = takeMVar (sessionSender s)
      | otherwise = do
        t <- now
        got <- within (deadline `until` t) (takeMVar (sessionSender s))
        when (isNothing got) (ioError (IOError Nothing TimeExpired "Weft.Tls" "another thread is sending" Nothing Nothing))

-- | As the sender, masked: send the output. If it throws, sending is cut off; if it was before, it throws @EPIPE@.
flushOutput :: Session -> Instant -> IO ()
flushOutput s deadline = checkWhole s >> withEndpoint s "connSend" takeOutput >>= sendOutput s deadline

-- | As the sender, masked: send output that was taken.
sendOutput :: Session -> Instant -> Region -> IO ()
sendOutput s deadline (Region at n)
  | at == nullPtr = pure ()
  | otherwise = do
    connSend (sessionBelow s) deadline at n `onException` (writeIORef (sessionCut s) True >> dropOutput at)
    dropOutput at

-- | Send the output that waits, as far as the connection takes it without waiting. If it does not take all, sending is
-- cut off. If there is a sender, that one sends it. Throws no 'IOException'.
sendPromptly :: Session -> IO ()
sendPromptly s = writeIORef (sessionUrgent s) True >> now >>= afterwards s

-- | Send what is urgent, unless there is a sender: that one does it when it has ended.
afterwards :: Session -> Instant -> IO ()
afterwards s deadline = do
  wanted <- readIORef (sessionUrgent s)
  when wanted $ do
    sent <- mask_ $ do
      idle <- tryTakeMVar (sessionSender s)
      case idle of
        Nothing -> pure False
        Just () -> do
          writeIORef (sessionUrgent s) False
          True <$ (void (try (flushOutput s deadline) :: IO (Either IOException ())) `finally` putMVar (sessionSender s) ())
    when sent (afterwards s deadline)

-- Operations -----------------------------------------------------------------------------

operations :: Operations Session
operations =
  Operations
    { opReceive = receiveClear,
      opSend = \s deadline region -> sendPieces s deadline [region] (pure ()),
      opSendMany = sendStrings,
      opSendFile = sendFileClear,
      opShutdownSend = shutdownClear,
      opClose = \s -> closeBy connClose s,
      opAbort = \s -> closeBy connAbort s,
      opPeer = connPeer . sessionBelow,
      opLocal = connLocal . sessionBelow,
      opSendProgress = connSendProgress . sessionBelow,
      opAwaitPeer = Just (connAwaitPeer . sessionBelow),
      -- The session may hold something.
      opIsQuiet = const (pure False),
      opSecurity = Just . sessionSecurity,
      -- They are encrypted during the call.
      opKeepsStrings = const False
    }

-- | No alert is sent: a forked process must not, and 'connShutdownSend' has done it if the stream was to end.
closeBy :: (Connection -> IO ()) -> Session -> IO ()
closeBy end s = writeIORef (sessionClosed s) True >> end (sessionBelow s) >> reap s

-- | What is left of the current record, or the next ones. Masked: it is interruptible where it waits for bytes.
--
-- What the library answers meanwhile stays in its output. An answer to a key update waits for the next send (RFC 8446,
-- 4.6.3); there are many only if the peer does not want to receive.
receiveClear :: Session -> Instant -> Int -> IO ByteString
receiveClear s deadline n
  | n <= 0 = failed "connReceive" eINVAL
  | otherwise = mask_ (receiveMasked s deadline n)

receiveMasked :: Session -> Instant -> Int -> IO ByteString
receiveMasked s deadline n = do
  checkOpen s "connReceive"
  end <- readIORef (sessionEnd s)
  case end of
    Going -> go
    Ended -> pure B.empty
    Broken e -> ioError e
  where
    go = do
      Input bytes more <- readIORef (sessionInput s)
      if B.null bytes && not more
        then receiveBelow
        else do
          (reading, AfterReading left more' output) <- withEndpoint s "connReceive" (\endpoint -> readClear endpoint bytes n)
          writeIORef (sessionInput s) $! Input left more'
          when (output > fewAnswers) (sendPromptly s)
          when (output > manyAnswers) $ do
            waiting <- withEndpoint s "connReceive" outputSize
            when (waiting > manyAnswers) (broken (protocolError "the peer does not take the answers to its key updates"))
          case reading of
            Clear clear -> pure clear
            NeedsMore -> if B.null left then receiveBelow else go
            StreamEnded -> B.empty <$ writeIORef (sessionEnd s) Ended
            ReadingFailed failure -> sendPromptly s >> broken (errorOf failure)
    receiveBelow = do
      -- What is left of the handshake: the client may wait for it before it sends more.
      afterwards s deadline
      more <- connReceive (sessionBelow s) deadline 32768
      if B.null more then withEndpoint s "connReceive" recordBegun >>= truncated else (writeIORef (sessionInput s) $! Input more False) >> go
    -- The peer closed without a close_notify alert. For a server that is common and harmless, since a request says
    -- where it ends. A client must not mistake a truncated message for a complete one.
    truncated begun
      | begun > 0 = broken (protocolError "the peer ended the connection in the middle of a record")
      | sessionSide s == ServerSide = B.empty <$ writeIORef (sessionEnd s) Ended
      | otherwise = broken (protocolError "the peer ended the connection without ending the session")
    broken e = writeIORef (sessionEnd s) (Broken e) >> ioError e

-- | Up to 1 KiB of answers wait for the next send. More than 64 KiB end the session.
fewAnswers, manyAnswers :: Int
fewAnswers = 1024
manyAnswers = 65536

-- | The size of a group of bytes that are encrypted before they are sent: three records. What is not much more is one
-- group too: three full frames of HTTP\/2 with their heads. 64 KiB of encrypted bytes are never reached.
groupSize, largestGroup :: Int
groupSize = 49152
largestGroup = 53248

-- | Encrypt and send strings.
sendStrings :: Session -> Instant -> [ByteString] -> IO ()
sendStrings s deadline strings = sendPieces s deadline (places strings) (keepStrings strings)

-- | Where strings lie that are not empty. They have to be kept.
places :: [ByteString] -> [Region]
places [] = []
places (string : rest)
  | n == 0 = places rest
  | otherwise = let !others = places rest in Region (unsafeForeignPtrToPtr fp `plusPtr` off) n : others
  where
    (fp, off, n) = B.toForeignPtr string

-- | Strings stay where they are until this is run.
keepStrings :: [ByteString] -> IO ()
keepStrings = mapM_ ((\(fp, _, _) -> touchForeignPtr fp) . B.toForeignPtr)

-- | Encrypt and send pieces of memory. Each group of 'groupSize' bytes is sent by one call. When all is
-- encrypted, the action is run, which keeps the memory until then: a peer that does not receive holds only what is
-- encrypted. If it throws, nothing more can be sent.
sendPieces :: Session -> Instant -> [Region] -> IO () -> IO ()
sendPieces s deadline pieces keep = do
  checkOpen s "connSend"
  ending <- readIORef (sessionEnding s)
  unless (ending == Open) (failed "connSend" ePIPE)
  checkWhole s
  -- An exception between two groups leaves a part sent.
  mask_ (sendGroups s deadline pieces keep `onException` writeIORef (sessionCut s) True)

-- | Masked: send pieces, a group at a time.
sendGroups :: Session -> Instant -> [Region] -> IO () -> IO ()
sendGroups s deadline pieces keep
  | size == 0 = pure ()
  | size <= largestGroup = sendGroup s deadline pieces keep
  | otherwise = do
    let (group, rest) = splitPieces groupSize pieces
    sendGroup s deadline group (pure ())
    sendGroups s deadline rest keep
  where
    size = sizeOf pieces

sizeOf :: [Region] -> Int
sizeOf = go 0
  where
    go :: Int -> [Region] -> Int
    go sum' [] = sum'
    go sum' (Region _ n : rest) = go (sum' + n) rest

-- | Masked: encrypt pieces, run the action, and send.
sendGroup :: Session -> Instant -> [Region] -> IO () -> IO ()
sendGroup s deadline group encrypted = asSender s deadline $ do
  checkWhole s
  taken <- withEndpoint s "connSend" $ \endpoint -> do
    written <- writeClear endpoint group
    unless written (failed "connSend" ePIPE)
    encrypted
    takeOutput endpoint
  sendOutput s deadline taken

-- | The first bytes of pieces, at most that many, and the others.
splitPieces :: Int -> [Region] -> ([Region], [Region])
splitPieces _ [] = ([], [])
splitPieces room pieces@(Region at n : rest)
  | room == 0 = ([], pieces)
  | n <= room = let (first, others) = splitPieces (room - n) rest in (Region at n : first, others)
  | otherwise = ([Region at room], Region (at `plusPtr` room) (n - room) : rest)

-- | The strings go with the first bytes of the file. If the file ends early, more can be sent afterwards, as with the
-- kernel's sockets. What is read is freed as soon as it is encrypted, and leaves nothing to collect.
sendFileClear :: Session -> Instant -> [ByteString] -> FileRange -> IO ()
sendFileClear s deadline strings (FileRange (Fd fd) from size)
  | from < 0 || size < 0 = sendStrings s deadline strings >> failed loc eINVAL
  | size == 0 = sendStrings s deadline strings
  | otherwise = mask_ (parts (Just strings) from size)
  where
    loc = "connSendFile"
    parts before offset left = when (isJust before || left > 0) $ do
      -- With the strings it makes one group.
      let room = max 1 (groupSize - maybe 0 (sum . map B.length) before)
          most = fromIntegral (min left (fromIntegral room)) :: Int
      n <- part (fold before) offset most
      parts Nothing (offset + fromIntegral n) (left - fromIntegral n)
    part before offset most = do
      memory <- mallocBytes most
      held <- newIORef True
      let drop' = readIORef held >>= \here -> when here (writeIORef held False >> free memory)
      (`finally` drop') $ do
        n <- readFileAt ("Weft.Tls." <> loc) fd memory most offset `onException` cut
        when (n == 0) $ do
          sendStrings s deadline before
          ioError (mkIOError EOF ("Weft.Tls." <> loc) Nothing Nothing)
        sendPieces s deadline (places before <> [Region memory n]) (keepStrings before >> drop')
        pure n
    -- A part of what was announced may have been sent.
    cut = writeIORef (sessionCut s) True

-- | Send a close_notify alert, and end the sending direction below. If it throws, it can be repeated. If sending was
-- cut off, the peer gets no alert, and so learns that what it received is not all.
shutdownClear :: Session -> Instant -> IO ()
shutdownClear s deadline = do
  checkOpen s "connShutdownSend"
  ending <- readIORef (sessionEnding s)
  unless (ending == Shut) $ do
    mask_ . asSender s deadline $ do
      cut <- readIORef (sessionCut s)
      unless cut $ do
        when (ending == Open) (writeIORef (sessionEnding s) Alerted >> withEndpoint s "connShutdownSend" endClear)
        flushOutput s deadline
    connShutdownSend (sessionBelow s) deadline
    writeIORef (sessionEnding s) Shut

checkOpen :: Session -> String -> IO ()
checkOpen s loc = do
  closed <- readIORef (sessionClosed s)
  when closed (failed loc eBADF)

-- | Throw @EPIPE@ if sending was cut off.
checkWhole :: Session -> IO ()
checkWhole s = do
  cut <- readIORef (sessionCut s)
  when cut (ioError broken {ioe_description = "an earlier send was cut off after a part: this connection can send nothing more"})
  where
    broken = errnoToIOError "Weft.Tls.connSend" ePIPE Nothing Nothing

-- Errors ---------------------------------------------------------------------------------

errorOf :: Failure -> IOException
errorOf failure = case failure of
  Fault why -> protocolError why
  Distrust why -> (protocolError why) {ioe_type = PermissionDenied}

-- | An error of the protocol, which servers do not report as an error of their own.
protocolError :: String -> IOException
protocolError why = IOError Nothing ProtocolError "Weft.Tls" why Nothing Nothing

failed :: String -> Errno -> IO a
failed loc errno = ioError (errnoToIOError ("Weft.Tls." <> loc) errno Nothing Nothing)
