-- |
-- Processing of received packets (Li and Zdancewic 2007, section 4.8: worker_tcp_input). The packets of a batch are
-- sorted by connection, and each connection processes its segments in one step, so that many of them cost only a few
-- acknowledgments.
--
-- @since 0.1.0
module Weft.Tcp.Stack.Input
  ( inputLoop,
    arriveBatch,
  )
where

import Control.Exception (evaluate)
import Control.Monad (forM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import qualified Data.Sequence as Seq
import Data.Word (Word32)
import Weft.Tcp.Core
import Weft.Tcp.Core.Emit (resetFor)
import Weft.Tcp.Core.Listener
import Weft.Tcp.Core.Secret
import Weft.Tcp.Core.State (isSynchronized)
import qualified Weft.Tcp.Core.TimeWait as TimeWait
import Weft.Tcp.Device
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Answers (Kind (..))
import Weft.Tcp.Stack.Expiry (expireLater)
import Weft.Tcp.Stack.Step
import Weft.Tcp.Stack.SynFilter (admits)
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Fragments (Key (..), Piece (..), addFragment, defaultLimits)
import qualified Weft.Tcp.Wire.Icmp as Icmp
import qualified Weft.Tcp.Wire.Icmp6 as Icmp6
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (..), ack, has, rst, syn)
import qualified Weft.Tcp.Wire.Segment as Segment
import Weft.Wire.Peek (word16At, word32At)

-- | The loop of a queue. It runs until the stack or the device is closed.
inputLoop :: Stack -> Queue -> IO ()
inputLoop st queue = do
  over <- readIORef (stopped st)
  unless over $ do
    batch <- receiveBatch queue
    arriveBatch st batch
    inputLoop st queue

-- | Process the packets of a batch.
arriveBatch :: Stack -> [Incoming] -> IO ()
arriveBatch st batch = do
  segments <- concat <$> mapM (arrivePacket st) batch
  case segments of
    (f, _) : others | all ((== f) . fst) others -> arriveFor st f (map snd segments)
    -- fromListWith puts each new segment before the earlier ones of its flow.
    _ -> forM_ (Map.toList (Map.fromListWith (++) [(f, [s]) | (f, s) <- segments])) (\(f, latestFirst) -> arriveFor st f (reverse latestFirst))

-- | Process a packet. If it is a TCP segment, return it for its connection.
arrivePacket :: Stack -> Incoming -> IO [(Flow, Segment)]
arrivePacket st p = do
  count st PacketsIn
  forM_ (stackTap (settings st)) (\see -> see True [incomingPacket p])
  case Packet.decode (incomingPacket p) of
    Left _ -> [] <$ arriveRefused st (incomingPacket p)
    Right (Packet.Whole packet) -> arriveWhole st p packet
    Right (Packet.Fragment key@(Key src dst _ _) piece)
      | not (isFromElsewhere st src) || dst `notElem` stackAddresses (settings st) -> [] <$ count st NotForUs
      | otherwise -> do
        Env (Instant t) _ <- stackEnv st dst
        whole <- atomicModifyIORef' (fragments st) $ \fs ->
          let (r, fs') = addFragment defaultLimits (fromIntegral t) key piece {pieceBytes = B.copy (pieceBytes piece)} fs in (fs', r)
        maybe ([] <$ expireLater st) (arriveJoined . Packet.reassembled key) whole
  where
    arriveJoined (Right packet) = arriveWhole st (Incoming (Packet.packetBody packet) False True) packet
    arriveJoined (Left bytes) = case Packet.decode bytes of
      Right (Packet.Whole packet) -> arriveWhole st (Incoming bytes False True) packet
      -- Fragments of fragments are refused too.
      _ -> [] <$ arriveRefused st bytes

-- | Count a packet that cannot be decoded, and tell its sender what is wrong if it is to be told.
arriveRefused :: Stack -> ByteString -> IO ()
arriveRefused st bytes = count st Malformed' >> forM_ (Packet.parameterProblem bytes) (tell st bytes)

-- | Whether a packet's source is another host. Packets from addresses that do not belong to a single host, or to none
-- on a link, are dropped (RFC 9293, MUST-57; RFC 1122, section 3.2.1.3), and so are those from an address of the stack:
-- no packet that it sends comes back, and a connection with itself would be one that somebody else has opened.
isFromElsewhere :: Stack -> Address -> Bool
isFromElsewhere st src = isSource src && src `notElem` stackAddresses (settings st)

-- | Process a whole packet, given the packet that was received: its memory may be reused.
arriveWhole :: Stack -> Incoming -> Packet.Packet -> IO [(Flow, Segment)]
arriveWhole st memory packet
  | not (isFromElsewhere st src) = [] <$ count st NotForUs
  | own : _ <- filter (== dst) (stackAddresses (settings st)) = deliver packet {Packet.packetDestination = own}
  | otherwise = [] <$ count st NotForUs
  where
    src = Packet.packetSource packet
    dst = Packet.packetDestination packet
    -- Connections share the stack's own copy of its address.
    deliver p = case Packet.packetProtocol p of
      6 -> arriveTcp st memory p
      1 -> [] <$ arriveIcmp st p
      58 -> [] <$ arriveIcmp6 st p
      _ -> [] <$ count st NotForUs

arriveTcp :: Stack -> Incoming -> Packet.Packet -> IO [(Flow, Segment)]
arriveTcp st memory (Packet.Packet src dst _ body) = case Segment.view body of
  Left _ -> [] <$ count st Malformed'
  Right v
    | not (checksumTrusted memory) && not (Segment.checksumHolds src dst v) -> [] <$ count st BadChecksums
    | otherwise -> do
      s <- evaluate (owned memory (Segment.segment v))
      mapM_ evaluate (payload s)
      pure [(Flow (Segment.sourcePort v) src (Segment.destinationPort v) dst, s)]

-- | The segment, with data that may be kept. The data is copied if the device reuses the packet's memory, or if it
-- would keep alive much more memory than its size, like a few bytes in a large packet.
owned :: Incoming -> Segment -> Segment
owned memory s
  | null (payload s) || ownsMemory memory && (size <= 512 || 2 * Segment.payloadLength s >= size) = s
  | otherwise = s {payload = map B.copy (payload s)}
  where
    size = B.length (incomingPacket memory)

-- Segments ----------------------------------------------------------------------------

-- | Process segments of a flow, in order.
arriveFor :: Stack -> Flow -> [Segment] -> IO ()
arriveFor _ _ [] = pure ()
arriveFor st f (s : rest) = do
  entry <- lookupEntry st f
  case entry of
    -- The segments before a SYN may end the connection, and then the SYN opens another one.
    Just (Live sock) -> let (these, others) = break (has syn . flags) rest in apply sock (Arrive (s : these)) >> arriveFor st f others
    Just (Lingering w) -> do
      over <- arriveLingering st f w s
      case over of
        Nothing -> arriveFor st f rest
        Just above -> deleteLingering st f w >> arriveNew st f above s >> arriveFor st f rest
    Nothing -> arriveNew st f Nothing s >> arriveFor st f rest

-- | Process a segment for a connection in TIME-WAIT. Returns 'Nothing' if TIME-WAIT goes on, and 'Just' if it ends.
-- If it ends because the segment opens a new connection, the result contains an initial sequence number above all
-- those used (RFC 6191; RFC 9293, section 3.6.1).
arriveLingering :: Stack -> Flow -> IORef TimeWait.Waiting -> Segment -> IO (Maybe (Maybe Word32))
arriveLingering st f ref s = do
  env <- stackEnv st (localAddress f)
  w <- readIORef ref
  case TimeWait.respond env s w of
    TimeWait.Stay w' out -> Nothing <$ (writeIORef ref w' >> mapM_ (sendSegment st (usualChoices st) f 65535) out)
    TimeWait.Over -> pure (Just Nothing)
    TimeWait.Reusable -> do
      listening <- lookupListening st (localAddress f) (localPort f)
      case listening of
        Just _ -> pure (Just (Just (wrap (TimeWait.waitSnd w) + 65537)))
        -- A SYN that opens nothing does not end TIME-WAIT.
        Nothing -> Nothing <$ refuse st f s

-- | Process a segment that belongs to no connection but may be for a listener. A connection that it opens has the
-- given initial sequence number, if there is one.
arriveNew :: Stack -> Flow -> Maybe Word32 -> Segment -> IO ()
arriveNew st f isn s = do
  listening <- lookupListening st (localAddress f) (localPort f)
  env <- stackEnv st (localAddress f)
  case listening of
    Just l
      | has rst (flags s) -> pure ()
      | has ack (flags s) -> arriveCookie st env l f s
      | has syn (flags s) -> arriveSyn st env l f isn s
      | otherwise -> pure ()
    Nothing -> refuse st f s

refuse :: Stack -> Flow -> Segment -> IO ()
refuse st f s = forM_ (resetFor s) $ \r ->
  answering st Resets (remoteAddress f) (count st ResetsOut >> sendSegment st (usualChoices st) f 65535 r)

-- | Choices for segments that are sent without a connection.
usualChoices :: Stack -> Choices
usualChoices = firstChoices . stackConfig . settings

arriveSyn :: Stack -> Env -> Listening -> Flow -> Maybe Word32 -> Segment -> IO ()
arriveSyn st env l f isn s = do
  waiting <- readIORef (backlog l)
  case decide (stackPolicy (settings st)) (remoteAddress f) waiting of
    Remember -> remember
    Evict -> case oldestHalfOpen waiting of
      Just oldest -> evict st oldest >> remember
      Nothing -> count st SynsIgnored
    AnswerWithCookie -> do
      answered <- admits (synFilter st) (now env) (synHash (secret st) f (seqNumber s))
      if answered
        then do
          count st CookiesSent
          writeIORef (lastCookie l) (Just (now env))
          sendSegment st (usualChoices st) f 65535 (cookieAnswer env (secret st) f s)
        else count st SynsIgnored
    Ignore -> count st SynsIgnored
  where
    remember = do
      let (c, out) = passiveOpen env begun s
      sock <- newSocket st f (listeningSelf l) c
      ours <- enterBacklog st l sock
      when ours (begin sock (map Transmit out))
    usual = openingFor st env f
    begun = usual {initialSequence = fromMaybe (initialSequence usual) isn}

-- | Abort a half-open connection. If another thread has opened it meanwhile, it stays, and the backlog exceeds its
-- limit by one.
evict :: Stack -> Flow -> IO ()
evict st f = do
  entry <- lookupEntry st f
  case entry of
    Just (Live sock) -> do
      synchronized <- inspect sock (isSynchronized . state)
      unless synchronized (count st HalfOpenEvicted >> void (apply sock Abort))
    _ -> pure ()

-- | Process an ACK that belongs to no connection. If it contains a valid SYN cookie, it opens a connection, unless too
-- many connections wait to be accepted: then it is dropped, and the client's next segment contains the cookie again.
-- Without a cookie that was sent lately none is valid: a cookie has so few bits that some forged ones would be.
arriveCookie :: Stack -> Env -> Listening -> Flow -> Segment -> IO ()
arriveCookie st env l f s = do
  sent <- readIORef (lastCookie l)
  case cookieLimit (stackPolicy (settings st)) of
    Just limit
      | maybe False (\t -> now env `since` t <= cookieLifetime) sent,
        Just c <- fromCookie env (secret st) f (openingFor st env f) s ->
        openFromCookie limit c
    _ -> refuse st f s
  where
    openFromCookie limit c = do
      queue <- readIORef (acceptQueue l)
      when (waiting queue < limit) $ do
        sock <- newSocket st f (listeningSelf l) c
        ours <- enterBacklog st l sock
        when ours (count st CookiesTaken >> void (apply sock (Arrive [s])))
    waiting (Arrived socks) = Seq.length socks
    waiting (NoMore _) = 0

-- | Enter a new connection into its listener's backlog and into the table, unless the flow is there already. The
-- backlog comes first, because a thread that finds the connection in the table may remove it from the backlog.
enterBacklog :: Stack -> Listening -> Socket -> IO Bool
enterBacklog st l sock = do
  atomicModifyIORef' (backlog l) (\b -> (enter (socketFlow sock) b, ()))
  ours <- claimFlow st (socketFlow sock) (Live sock)
  ours <$ unless ours (atomicModifyIORef' (backlog l) (\b -> (leave (socketFlow sock) b, ())))

-- ICMP ---------------------------------------------------------------------------------

arriveIcmp :: Stack -> Packet.Packet -> IO ()
arriveIcmp st (Packet.Packet src dst _ body) = case Icmp.decode body of
  Left _ -> count st Malformed'
  Right m -> case m of
    Icmp.EchoRequest i n d -> answering st EchoReplies src $ sendWhole st (Packet.Packet dst src 1 (Icmp.encode (Icmp.EchoReply i n d)))
    -- Old routers do not report the MTU. Every host accepts 576 bytes (RFC 1191, section 5).
    Icmp.FragmentationNeeded mtu quoted -> quotes4 quoted (\w -> PathMtu w ((if mtu == 0 then 576 else max 552 (fromIntegral mtu)) - 20))
    -- RFC 1122, section 4.2.3.9. Of the codes that are newer (section 3.2.2.1; RFC 1812, section 5.2.7.1) those that a
    -- filter sends are meant to stay.
    Icmp.Unreachable code quoted
      | code `elem` [2, 3] -> quotes4 quoted Declined
      | code `elem` [9, 10, 13] -> quotes4 quoted Unreached
      | otherwise -> quotes4 quoted Advised
    Icmp.TimeExceeded _ quoted -> quotes4 quoted Advised
    Icmp.ParameterProblem _ _ quoted -> quotes4 quoted Advised
    _ -> pure ()
  where
    -- The quoted packet must be one of ours. Eight bytes of its TCP header are enough.
    quotes4 :: ByteString -> (Word32 -> Event) -> IO ()
    quotes4 q event
      | B.length q >= ihl + 8 && B.length q >= 28 && B.index q 9 == 6 && ihl >= 20 =
        about st (Flow (word16At q (ihl + 2)) (v4At q 16) (word16At q ihl) (v4At q 12)) (event (word32At q (ihl + 4)))
      | otherwise = pure ()
      where
        ihl = if B.null q then 0 else fromIntegral (B.index q 0 `mod` 16) * 4

arriveIcmp6 :: Stack -> Packet.Packet -> IO ()
arriveIcmp6 st (Packet.Packet src dst _ body) = case Icmp6.decode src dst body of
  Left _ -> count st Malformed'
  Right m -> case m of
    Icmp6.EchoRequest i n d -> answering st EchoReplies src $ sendWhole st (Packet.Packet dst src 58 (Icmp6.encode dst src (Icmp6.EchoReply i n d)))
    -- RFC 8201, 4: a smaller MTU than that of any IPv6 link is not believed.
    Icmp6.PacketTooBig mtu quoted | mtu >= 1280 -> quotes6 quoted (\w -> PathMtu w (fromIntegral (min 65575 mtu) - 40))
    -- RFC 4443, section 3.1: no port; prohibited, by a filter or a route; others.
    Icmp6.Unreachable code quoted
      | code == 4 -> quotes6 quoted Declined
      | code `elem` [1, 5, 6] -> quotes6 quoted Unreached
      | otherwise -> quotes6 quoted Advised
    Icmp6.TimeExceeded _ quoted -> quotes6 quoted Advised
    Icmp6.ParameterProblem _ _ quoted -> quotes6 quoted Advised
    _ -> pure ()
  where
    quotes6 :: ByteString -> (Word32 -> Event) -> IO ()
    quotes6 q event
      | B.length q >= 48 && B.index q 6 == 6 =
        about st (Flow (word16At q 42) (v6At q 24) (word16At q 40) (v6At q 8)) (event (word32At q 44))
      | otherwise = pure ()

-- | Tell the source of an IPv6 packet what is wrong with it (RFC 4443, section 3.4). A packet to a multicast address is
-- answered from an address of the stack.
tell :: Stack -> ByteString -> Packet.Problem -> IO ()
tell st packet (Packet.Problem src dst code at) = forM_ (take 1 own) $ \from ->
  when (isFromElsewhere st src) . answering st Errors src $
    sendWhole st (Packet.Packet from src 58 (Icmp6.encode from src (Icmp6.ParameterProblem code at (B.take 1232 packet))))
  where
    own
      | isUnicast dst = filter (== dst) (stackAddresses (settings st))
      | otherwise = filter (sameFamily dst) (stackAddresses (settings st))

-- | Pass an event to the connection that an ICMP error message quotes.
about :: Stack -> Flow -> Event -> IO ()
about st f event = do
  entry <- lookupEntry st f
  case entry of
    Just (Live sock) -> void (apply sock event)
    _ -> pure ()
