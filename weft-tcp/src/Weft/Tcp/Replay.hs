-- |
-- Replays a packet log through the core. "Weft.Tcp.Core" takes the role of one side of each connection. It receives
-- the other side's segments at the times of the log, and its user makes the calls that the log implies. For each
-- packet, the result contains the state of the core, and whether the core would have sent that packet too. All
-- functions are pure.
--
-- The log may come from this stack or from any other. Another stack may behave differently (delay acknowledgments, or
-- send more at once), so differences are counted and are not errors. If the log sends data before the core would, the
-- core is made to send it then, so that it recognises the acknowledgments. The log does not contain the times of user
-- calls. The replay assumes that the user receives all data at once, and passes all data that was sent within two
-- round trips to the core together, because the congestion window counts as limiting only while data waits for it.
-- Data that is acknowledged but missing from the log is filled in. A number that is more than 64 MiB ahead of the log
-- is taken to be wrong, as after a changed byte: nothing is filled in for it, and it is counted.
--
-- @since 0.1.0
module Weft.Tcp.Replay
  ( -- * Packets
    Seen (..),
    seenIn,

    -- * Replay
    Replayed (..),
    Step (..),
    Direction (..),
    Totals (..),
    replay,
  )
where

import Data.Bits (shiftL)
import qualified Data.ByteString as B
import Data.List (foldl')
import qualified Data.Map.Strict as Map
import Data.Maybe (isJust, listToMaybe, mapMaybe)
import Data.Word (Word32)
import Weft.Tcp.Core
import Weft.Tcp.Core.Invariants (invariants)
import Weft.Tcp.Core.Output (transmit)
import Weft.Tcp.Core.Secret (Flow (..))
import Weft.Tcp.Core.State
import Weft.Tcp.Wire.Address
import qualified Weft.Tcp.Wire.Ethernet as Ethernet
import Weft.Tcp.Wire.Malformed (Malformed (BadOptions))
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Pcap
import Weft.Tcp.Wire.Segment (Segment (..), ack, fin, has, payloadLength, rst, sequenceLength, syn)
import qualified Weft.Tcp.Wire.Segment as Segment

-- | A segment of a log, with its time, source and destination.
data Seen = Seen
  { seenAt :: !Instant,
    seenFrom, seenTo :: !(Address, Int),
    seenSegment :: !Segment
  }
  deriving (Eq, Show)

-- | The TCP segments of a log, in its order. 'Left' stands for a TCP packet that cannot be decoded,
-- such as a fragment or a truncated packet. Other protocols are left out.
seenIn :: LinkType -> [Record] -> [Either Malformed Seen]
seenIn link = mapMaybe seen
  where
    seen (Record at bytes) = case link of
      RawIp -> packet at bytes
      EthernetFrames -> case Ethernet.decodeFrame bytes of
        Right f | Ethernet.frameType f `elem` [Ethernet.typeIPv4, Ethernet.typeIPv6] -> packet at (Ethernet.frameBody f)
        _ -> Nothing
    packet at bytes = case Packet.decode bytes of
      Left e -> Just (Left e)
      Right (Packet.Fragment _ _) -> Just (Left BadOptions)
      Right (Packet.Whole p)
        | Packet.packetProtocol p /= 6 -> Nothing
        | otherwise -> Just $ case Segment.view (Packet.packetBody p) of
          Left e -> Left e
          Right v ->
            Right
              Seen
                { seenAt = Instant (fromIntegral at),
                  seenFrom = (Packet.packetSource p, fromIntegral (Segment.sourcePort v)),
                  seenTo = (Packet.packetDestination p, fromIntegral (Segment.destinationPort v)),
                  seenSegment = Segment.segment v
                }

-- | The direction of a packet: to or from the replayed side.
data Direction = In | Out
  deriving (Eq, Show)

-- | A packet of the log, and the replay's state after it.
data Step = Step
  { stepAt :: !Instant,
    stepDirection :: !Direction,
    stepSegment :: !Segment,
    -- | Sequence and acknowledgment numbers, relative to the beginning of each stream (the SYN
    -- has number 0).
    stepNumbers :: !(Int, Int),
    -- | The segments that the core has sent since the previous packet, including retransmissions by timeouts.
    stepSent :: ![Segment],
    -- | The state after the packet.
    stepState :: !Summary,
    -- | Whether the core has sent all of the packet too. Only for packets from the replayed side.
    stepAgrees :: !Bool,
    -- | Violated conditions of "Weft.Tcp.Core.Invariants", each a bug in the core.
    stepBroken :: ![String]
  }

-- | A connection of the log.
data Replayed = Replayed
  { -- | The flow, as seen by the replayed side.
    replayedFlow :: !Flow,
    -- | The steps and totals, or 'Nothing' if the connection's beginning is not in the log.
    replayedSteps :: !(Maybe ([Step], Totals))
  }

-- | Numbers of segments with data or FIN that the replayed side sent, and of those that were
-- retransmissions: in the log, and by the core.
data Totals = Totals
  { loggedSegments, loggedAgain, coreSegments, coreAgain :: !Int,
    -- | The number of packets in the log that the core had not sent yet.
    disagreements :: !Int,
    -- | The number of acknowledgments for data that is not in the log.
    holes :: !Int,
    -- | The number of packets whose sequence or acknowledgment number is too far ahead of the log to be right.
    implausible :: !Int
  }
  deriving (Eq, Show)

-- | Replay each connection of a log, in the order of their beginnings. The first argument selects
-- the replayed side by its address. Without it the server, to which the SYN was sent, is
-- replayed.
replay :: Maybe Address -> [Seen] -> [Replayed]
replay chosen seen = map played (connectionsIn seen)
  where
    played (first, segments) = case handshake chosen segments of
      Just h -> Replayed (flowOf (heldLocal h) (heldRemote h)) (Just (run h segments))
      Nothing -> let (local, remote) = sides chosen first in Replayed (flowOf local remote) Nothing
    flowOf (la, lp) (ra, rp) = Flow (fromIntegral rp) ra (fromIntegral lp) la

-- | The local and the remote side, given the first segment of a connection. Without a given address, the local side
-- is the server: the side to which a SYN is sent.
sides :: Maybe Address -> Seen -> ((Address, Int), (Address, Int))
sides chosen s
  | chosen == Just (fst (seenTo s)) = toUs
  | chosen == Just (fst (seenFrom s)) = fromUs
  | has syn f && has ack f = fromUs
  | otherwise = toUs
  where
    f = flags (seenSegment s)
    toUs = (seenTo s, seenFrom s)
    fromUs = (seenFrom s, seenTo s)

-- | The segments of each connection. After the end of a connection, a SYN with another sequence
-- number begins a new one between the same ports.
connectionsIn :: [Seen] -> [(Seen, [Seen])]
connectionsIn seen = [(s, reverse ss) | ss <- Map.elems grouped, s : _ <- [reverse ss]]
  where
    grouped = fst (foldl' add (Map.empty, Map.empty) (zip [0 :: Int ..] seen))
    add (done, current) (n, s) = case Map.lookup key current of
      Just (k, began)
        | not (isOpening s) || began `elem` [Nothing, Just (seqNumber (seenSegment s))] -> (Map.insertWith (++) k [s] done, Map.insert key (k, began `orElse` opening) current)
      _ -> (Map.insert n [s] done, Map.insert key (n, opening) current)
      where
        key = (min (seenFrom s) (seenTo s), max (seenFrom s) (seenTo s))
        opening = if isOpening s then Just (seqNumber (seenSegment s)) else Nothing
    orElse (Just a) _ = Just a
    orElse Nothing b = b

isOpening :: Seen -> Bool
isOpening s = has syn (flags (seenSegment s)) && not (has ack (flags (seenSegment s)))

-- | The contents of the two SYNs.
data Handshake = Handshake
  { heldLocal, heldRemote :: !(Address, Int),
    -- | The SYN of the replayed side, and that of the other side.
    ourSyn, theirSyn :: !Seen
  }

handshake :: Maybe Address -> [Seen] -> Maybe Handshake
handshake chosen segments = do
  first <- listToMaybe [s | s <- segments, has syn (flags (seenSegment s))]
  let (local, remote) = sides chosen first
      synFrom side = listToMaybe [s | s <- segments, has syn (flags (seenSegment s)), seenFrom s == side]
  Handshake local remote <$> synFrom local <*> synFrom remote

-- | Settings with which the core announces the values of the log's SYN.
configOf :: Handshake -> [Seen] -> Config
configOf h segments =
  defaultConfig
    { announcedMss = mss,
      pathRoom = mss + 20,
      offloadBytes = largest,
      receiveBuffer = 65535 `shiftL` maybe 0 (min 14 . fromIntegral) (windowScale o),
      offerSack = sackPermitted o,
      offerTimestamps = isJust (timestamps o),
      offerScale = isJust (windowScale o),
      -- The log shows what was sent, so Nagle's algorithm must not hold data back.
      firstChoices = (firstChoices defaultConfig) {useNagle = False}
    }
  where
    o = options (seenSegment (ourSyn h))
    mss = maybe 536 fromIntegral (maximumSegmentSize o)
    largest = maximum (0 : [payloadLength (seenSegment s) | s <- segments, seenFrom s == heldLocal h])

-- | The progress of a replay.
data Playing = Playing
  { conn :: !(Maybe Conn),
    -- | The position up to which the user has passed data.
    given :: !Int,
    -- | The position up to which the core has sent, the number of segments that it has sent, and the number of
    -- retransmissions among them. The next three fields are the same values for the log.
    coreTo, coreCount, coreRepeats :: !Int,
    logTo, logCount, logRepeats :: !Int,
    unlike, unseen, wrong :: !Int,
    -- | The last segment to the replayed side.
    lastIn :: !(Maybe Segment)
  }

-- | Before the first packet: the SYNs have the number 0.
beginning :: Playing
beginning =
  Playing
    { conn = Nothing,
      given = 1,
      coreTo = 1,
      coreCount = 0,
      coreRepeats = 0,
      logTo = 1,
      logCount = 0,
      logRepeats = 0,
      unlike = 0,
      unseen = 0,
      wrong = 0,
      lastIn = Nothing
    }

run :: Handshake -> [Seen] -> ([Step], Totals)
run h segments = (steps, totals)
  where
    (end, steps) = go beginning segments
    cfg = configOf h segments
    totals =
      Totals
        { loggedSegments = logCount end,
          loggedAgain = logRepeats end,
          coreSegments = coreCount end,
          coreAgain = coreRepeats end,
          disagreements = unlike end,
          holes = unseen end,
          implausible = wrong end
        }
    go p [] = (p, [])
    go p (s : ss) =
      let (p', made) = playOne cfg h ss s p
          (p'', rest) = go p' ss
       in (p'', maybe rest (: rest) made)

-- | How our side opens the connection: as the log's SYN says.
openingOf :: Config -> Handshake -> Opening
openingOf cfg h =
  Opening
    { initialSequence = seqNumber ours,
      timestampOffset = case timestamps (options ours) of
        Just (Timestamps v _) -> let Instant t = seenAt (ourSyn h) in v - fromIntegral (t `div` 1000)
        Nothing -> 0,
      pathKnown = pathRoom cfg,
      mssDefault = case fst (heldRemote h) of V4 _ -> 536; V6 _ _ -> 1220
    }
  where
    ours = seenSegment (ourSyn h)

-- What happens to the core ------------------------------------------------------------------

-- | Its timers expire, up to an instant.
ticks :: Config -> Instant -> Conn -> (Conn, [Segment])
ticks cfg until' c
  | due < until' && due /= never = (c'', transmitted actions ++ more)
  | otherwise = (c, [])
  where
    due = nextTimer c
    (c', actions) = step (Env due cfg) Tick c
    (c'', more) = if nextTimer c' == due then (c', []) else ticks cfg until' c'

-- | A segment arrives, and the user receives all data that is available.
arrives :: Env -> Segment -> Conn -> (Conn, [Segment])
arrives env s c0
  | readable c > 0 = let (c', more) = step env (UserReceive (readable c)) c in (c', transmitted (actions ++ more))
  | otherwise = (c, transmitted actions)
  where
    (c, actions) = step env (Arrive [s]) c0

-- | The user passes this much data, if it is more than none.
passes :: Env -> Int -> Conn -> (Conn, [Segment])
passes env n c
  | n > 0 = transmitted <$> step env (UserSend (zeros n)) c
  | otherwise = (c, [])

-- | The core sends this much, regardless of windows.
force :: Env -> Int -> Conn -> (Conn, [Segment])
force env n c
  | n <= 0 || not (isSynchronized (state c)) = (c, [])
  | whole == 0 && not withFin = (c, [])
  | otherwise = (c'', x : transmitted actions)
  where
    whole = max 0 (min n (dataEnd c - sndNxt (sendSide c)))
    withFin = whole < n && finQueued (sendSide c) && sndNxt (sendSide c) + whole == dataEnd c
    (c', x) = transmit env whole withFin c
    (c'', actions) = step env Tick c'

-- A packet of the log -----------------------------------------------------------------------

-- | Play a packet, before those that come later in the log. The user's calls are derived from the log: of new data, a
-- FIN or a RST in a segment of the replayed side.
playOne :: Config -> Handshake -> [Seen] -> Seen -> Playing -> (Playing, Maybe Step)
playOne cfg h later s p0 = case conn p0 of
  Nothing
    | direction == Out && seenSegment s == seenSegment (ourSyn h) && not (has ack (flags (seenSegment s))) -> begun (open env opening)
    | direction == In && has syn (flags (seenSegment s)) -> begun (fmap (map Transmit) (passiveOpen env opening (seenSegment s)))
    | otherwise -> (p0, Nothing)
  Just c0 ->
    let (c1, late) = ticks cfg (seenAt s) c0
        (c2, guessed) = madeUp c1
        (c3, sent) = happens c2
        p1 = noteLogged (foldl' (noteCore us) p0 (late ++ guessed ++ sent))
        p2 = p1 {given = max (given p0) target, lastIn = if direction == In then Just (seenSegment s) else lastIn p0, unseen = unseen p1 + missing, wrong = wrong p1 + (if tooFar then 1 else 0)}
        behind = direction == Out && counts (seenSegment s) && logTo p2 > coreTo p2
        (c4, forced) = if behind then force env (logTo p2 - coreTo p2) c3 else (c3, [])
        p3 = (foldl' (noteCore us) p2 forced) {conn = Just c4, unlike = unlike p2 + (if behind then 1 else 0)}
     in finished p3 (not behind) c4 (late ++ guessed ++ sent ++ forced)
  where
    direction = if seenFrom s == heldLocal h then Out else In
    env = Env (seenAt s) cfg
    us = seqNumber (seenSegment (ourSyn h))
    them = seqNumber (seenSegment (theirSyn h))
    opening = openingOf cfg h
    begun (c, actions) = let sent = transmitted actions in finished (foldl' (noteCore us) p0 {conn = Just c} sent) True c sent
    relative from n = fromIntegral (n - from :: Word32) :: Int
    start' = relative (if direction == Out then us else them) (seqNumber (seenSegment s))
    acked = if has ack (flags (seenSegment s)) then relative (if direction == Out then them else us) (ackNumber (seenSegment s)) else 0
    happens c
      | direction == In = arrives env (seenSegment s) c
      | has rst (flags (seenSegment s)) = transmitted <$> step env Abort c
      | otherwise =
        let (c1, sent) = passes env (target - given p0) c
            (c2, more) = if has fin (flags (seenSegment s)) && not (finQueued (sendSide c1)) then transmitted <$> step env Shutdown c1 else (c1, [])
         in (c2, sent ++ more)
    -- The position up to which the user has passed data. The contents make no difference to the core.
    target
      | direction == In = if hole then acked - (if ended then 1 else 0) else given p0
      | has syn (flags (seenSegment s)) = given p0
      | otherwise = maximum (given p0 : [relative us (seqNumber x) + payloadLength x | y <- s : takeWhile together later, seenFrom y == heldLocal h, let x = seenSegment y, counts x, plausible x])
    together x = seenAt x `since` seenAt s <= soon && (seenFrom x == heldLocal h || payloadLength (seenSegment x) == 0)
    soon = maybe 0 (\c -> max (millis 10) (2 * srtt (rtt c))) (conn p0)
    -- The other side acknowledges data that is not in the log.
    ended = maybe False (finQueued . sendSide) (conn p0)
    hole = direction == In && acked > max (logTo p0) (coreTo p0) && not tooFar
    -- Nothing in a log can be so far behind what comes before it.
    reached = maximum [logTo p0, coreTo p0, given p0]
    plausible x = relative us (seqNumber x) + payloadLength x <= reached + mostMissing
    tooFar
      | direction == In = acked > reached + mostMissing
      | otherwise = counts (seenSegment s) && not (plausible (seenSegment s)) || maybe False (\c -> acked > heard c + mostMissing) (conn p0)
    (missing, missed) = case conn p0 of
      Just c | direction == Out, not tooFar, isSynchronized (state c), acked > heard c, rcvFin (receiveSide c) == Nothing -> (1, acked - heard c)
      _ -> (if hole then 1 else 0, 0) :: (Int, Int)
    heard c = relative them (wrap (rcvNxt (receiveSide c)))
    madeUp c
      | hole =
        let (c1, sent) = passes env (target - given p0) c
            (c2, more) = force env (acked - max (coreTo p0) (coreTo (foldl' (noteCore us) p0 sent))) c1
         in (c2, sent ++ more)
      | missed > 0, Just l <- lastIn p0 = arrives env l {seqNumber = wrap (rcvNxt (receiveSide c)), payload = zeros missed} c
      | otherwise = (c, [])
    noteLogged p
      | direction == In || not (counts (seenSegment s)) || not (plausible (seenSegment s)) = p
      | otherwise = p {logCount = logCount p + 1, logRepeats = logRepeats p + (if start' < logTo p then 1 else 0), logTo = max (logTo p) (start' + sequenceLength (seenSegment s))}
    finished p agrees c sent =
      ( p,
        Just
          Step
            { stepAt = seenAt s,
              stepDirection = direction,
              stepSegment = seenSegment s,
              stepNumbers = (start', acked),
              stepSent = sent,
              stepState = summary c,
              stepAgrees = agrees,
              stepBroken = invariants cfg c
            }
      )

-- | How far ahead of a log a number may be.
mostMissing :: Int
mostMissing = 67108864

-- | Data whose contents make no difference. Its strings share their memory.
zeros :: Int -> [B.ByteString]
zeros n = replicate whole piece ++ [B.take rest piece | rest > 0]
  where
    (whole, rest) = n `divMod` B.length piece

-- | A string of zeros.
piece :: B.ByteString
piece = B.replicate 65536 0

-- | Whether a segment counts in the totals: it has data or FIN.
counts :: Segment -> Bool
counts x = not (has syn (flags x)) && sequenceLength x > 0

noteCore :: Word32 -> Playing -> Segment -> Playing
noteCore us p x
  | not (counts x) = p
  | otherwise = p {coreCount = coreCount p + 1, coreRepeats = coreRepeats p + (if at < coreTo p then 1 else 0), coreTo = max (coreTo p) (at + sequenceLength x)}
  where
    at = fromIntegral (seqNumber x - us) :: Int

transmitted :: [Action] -> [Segment]
transmitted actions = [x | Transmit x <- actions]
