-- |
-- A simulation of two connections and a link between them, in simulated time. The seed determines everything.
-- Segments cross the link as bytes; the link may lose, delay, duplicate, reorder and corrupt them, and has a rate and
-- a queue. After each step the invariants are checked.
module Sim
  ( Link (..),
    perfect,
    Side (..),
    Host (..),
    plainHost,
    Scenario (..),
    scenario,
    Outcome (..),
    Result (..),
    run,
    runLogged,
    dataOf,
  )
where

import Data.Bits (shiftR, xor)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.Map.Strict as Map
import Data.Word (Word32, Word64)
import Weft.Tcp.Core
import Weft.Tcp.Core.Emit (resetFor)
import Weft.Tcp.Core.Invariants
import Weft.Tcp.Core.Packed
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Options (sackBlocks)
import Weft.Tcp.Wire.Segment (Segment (..), ack, decode, encode, has, payloadLength, rst, syn)
import Wires (Seed, nextSeed)

-- | The properties of a link. Times are in microseconds, and probabilities in 1/1000.
data Link = Link
  { delay :: !Int,
    jitter :: !Int,
    lossRate, duplication, reordering, corruption :: !Int,
    -- | Bytes per millisecond, 0 for no limit.
    rate :: !Int,
    -- | The maximum number of packets that wait for the link.
    queueLimit :: !Int
  }
  deriving (Show)

perfect :: Link
perfect = Link 10000 0 0 0 0 0 0 1000

data Side = A | B deriving (Eq, Ord, Show)

other :: Side -> Side
other A = B
other B = A

-- | The settings and the program of a side.
data Host = Host
  { hostConfig :: !Config,
    -- | The data that the program sends.
    hostData :: !ByteString,
    -- | The maximum number of bytes that the program sends or receives at once, and the pause in microseconds after
    -- each receive (0 for none).
    hostPiece :: !Int,
    hostPause :: !Int,
    hostIsn :: !Word32,
    -- | Whether the program opens the connection actively. Both may.
    hostOpens :: !Bool,
    -- | The loss of what the host sends, in 1/1000, besides the link's.
    hostLoss :: !Int,
    -- | The interval in microseconds at which the host reads the packets that have arrived, all of them at once; 0 if
    -- it reads each one as it arrives.
    hostReads :: !Int
  }

plainHost :: Host
plainHost = Host defaultConfig {timeWaitTime = secs 2, finWaitTime = secs 20} B.empty 65536 0 1000 False 0 0

data Scenario = Scenario
  { link :: !Link,
    hostA, hostB :: !Host,
    seed :: !Seed,
    -- | The time in microseconds after which the run counts as hanging.
    limit :: !Int,
    -- | The time in microseconds at which the link is cut.
    cutAfter :: !Int
  }

scenario :: Seed -> Link -> Host -> Host -> Scenario
scenario s l a b = Scenario l a {hostOpens = True} b s 30000000000 maxBound

data Outcome = Delivered | Gave CloseReason CloseReason | Hung [State] | Broken [String]
  deriving (Eq, Show)

data Result = Result
  { outcome :: !Outcome,
    gotA, gotB :: !ByteString,
    endedAt :: !Int,
    -- | When a program received data last.
    receivedAt :: !Int,
    -- | A digest of all packets and the times at which they were sent.
    digest :: !Word64,
    packets :: !Int
  }
  deriving (Eq, Show)

data Happening = Packet !Side !ByteString | Reads !Side | Timer !Side !Int | App !Side

data Peer = Peer
  { conn :: !(Maybe Conn),
    unsent :: !ByteString,
    -- | The packets that the host has not read, latest first.
    unread :: ![ByteString],
    taken :: ![ByteString],
    shut :: !Bool,
    resumesAt :: !Int,
    timerAt :: !Int
  }

data World = World
  { time :: !Int,
    stamp :: !Int,
    agenda :: !(Map.Map (Int, Int) Happening),
    peers :: !(Map.Map Side Peer),
    random :: !Seed,
    freeAt :: !(Map.Map Side Int),
    broken :: ![String],
    digestSoFar :: !Word64,
    sentPackets :: !Int,
    receivedLast :: !Int,
    history :: [String]
  }

hostOf :: Scenario -> Side -> Host
hostOf sc A = hostA sc
hostOf sc B = hostB sc

opening :: Host -> Opening
opening h = Opening (hostIsn h) (hostIsn h * 3) (pathRoom (hostConfig h)) 536

run :: Scenario -> Result
run = fst . runLogged

-- | Run a scenario. Returns also a line for each segment that was sent, the latest first.
runLogged :: Scenario -> (Result, [String])
runLogged sc = finishRun (go (0 :: Int) (foldl start w0 [A, B]))
  where
    w0 = World 0 0 Map.empty (Map.fromList [(s, Peer Nothing (hostData (hostOf sc s)) [] [] False 0 maxBound) | s <- [A, B]]) (nextSeed (seed sc + 77)) (Map.fromList [(A, 0), (B, 0)]) [] 14695981039346656037 0 0 []
    start w s
      | hostOpens (hostOf sc s) = let (c, acts) = open (envOf sc w s) (opening (hostOf sc s)) in perform sc s acts (put s (\p -> p {conn = Just c}) w)
      | otherwise = w
    go n w
      | not (null (broken w)) || n > 3000000 = w
      | done w = w
      | otherwise = case Map.minViewWithKey (agenda w) of
        Just (((t, _), h), rest) | t <= limit sc -> go (n + 1) (happen sc h w {time = t, agenda = rest})
        _ -> w {time = limit sc + 1}
    done w = all over (Map.elems (peers w))
    over p = maybe False (\c -> isOver c && readable c == 0) (conn p)
    finishRun w =
      let got s = B.concat (reverse (taken (peers w Map.! s)))
          endings = [e | s <- [A, B], Just c <- [conn (peers w Map.! s)], Closed e <- [state c]]
          result
            | not (null (broken w)) = Broken (broken w)
            | [a, b] <- endings = if a == Finished && b == Finished then Delivered else Gave a b
            -- One side gave up. The other cannot detect that, because it has nothing to send.
            | [a] <- endings, a /= Finished = Gave a a
            | otherwise = Hung [state c | Just c <- conn <$> Map.elems (peers w)]
       in (Result result (got A) (got B) (time w) (receivedLast w) (digestSoFar w) (sentPackets w), history w)

envOf :: Scenario -> World -> Side -> Env
envOf sc w s = Env (Instant (time w)) (hostConfig (hostOf sc s))

put :: Side -> (Peer -> Peer) -> World -> World
put s f w = w {peers = Map.adjust f s (peers w)}

at :: Int -> Happening -> World -> World
at t h w = w {agenda = Map.insert (t, stamp w) h (agenda w), stamp = stamp w + 1}

happen :: Scenario -> Happening -> World -> World
happen sc h w = case h of
  Timer s t
    | timerAt p == t -> onConn s (put s (\x -> x {timerAt = maxBound}) w) Tick
    | otherwise -> w
    where
      p = peers w Map.! s
  App s -> useIt sc s w
  Packet s bytes
    | hostReads (hostOf sc s) == 0 -> arrive s [bytes] w
    | otherwise -> (if null (unread (peers w Map.! s)) then at (next (hostReads (hostOf sc s))) (Reads s) else id) (put s (\p -> p {unread = bytes : unread p}) w)
  Reads s -> arrive s (reverse (unread (peers w Map.! s))) (put s (\p -> p {unread = []}) w)
  where
    onConn s x e = useIt sc s (stepAt sc s e x)
    next interval = (time w `div` interval + 1) * interval
    arrive s packed x = case [seg | Right (_, _, seg) <- map (decode (addressOf (other s)) (addressOf s)) packed] of
      [] -> x
      segs@(seg : others) -> case conn (peers x Map.! s) of
        Just _ -> onConn s x (Arrive segs)
        Nothing
          | has syn (flags seg) && not (has ack (flags seg)) && not (has rst (flags seg)) ->
            let (c, out) = passiveOpen (envOf sc x s) (opening (hostOf sc s)) seg
                opened = perform sc s (map Transmit out) (put s (\p -> p {conn = Just c}) x)
             in if null others then opened else onConn s opened (Arrive others)
          | otherwise -> maybe x (\r -> perform sc s [Transmit r] x) (resetFor seg)

stepAt :: Scenario -> Side -> Event -> World -> World
stepAt sc s e w = case conn (peers w Map.! s) of
  Nothing -> w
  Just c ->
    let env = envOf sc w s
        (stepped, acts) = step env e c
        -- Between two events, the stack keeps the connection in this form.
        c' = unpack (pack stepped)
        wrong = [show s ++ " at " ++ show (time w) ++ " in " ++ show (state c) ++ ": " ++ r | r <- invariants (config env) c' ++ invariantsBetween c c' ++ ["resting changes what is known" | summary c' /= summary stepped]]
        w' = put s (\p -> p {conn = Just c'}) w {broken = broken w ++ wrong}
     in perform sc s acts w'

-- | The actions of the program on a side, after each event.
useIt :: Scenario -> Side -> World -> World
useIt sc s w = maybe w use (conn (peers w Map.! s))
  where
    h = hostOf sc s
    use c
      | not (B.null (unsent p)) && space > 0 && maySend c && opened c =
        let (now', later) = B.splitAt (min space (hostPiece h)) (unsent p) in useIt sc s (stepAt sc s (UserSend [now']) (put s (\x -> x {unsent = later}) w))
      | B.null (unsent p) && not (shut p) && opened c = useIt sc s (stepAt sc s Shutdown (put s (\x -> x {shut = True}) w))
      | readable c > 0 && time w >= resumesAt p = (if hostPause h > 0 then at (time w + hostPause h) (App s) else useIt sc s) (stepAt sc s (UserReceive (hostPiece h)) (put s (\x -> x {resumesAt = time w + hostPause h}) w))
      | otherwise = w
      where
        p = peers w Map.! s
        space = sendSpace (hostConfig h) c
    opened c = state c `notElem` [SynSent, SynReceived]

perform :: Scenario -> Side -> [Action] -> World -> World
perform sc s acts w = rearm (foldl one w acts)
  where
    one x (Transmit seg) = transmitOn sc s seg x
    one x (Received bytes) = put s (\p -> p {taken = reverse bytes ++ taken p}) x {receivedLast = if null bytes then receivedLast x else time x}
    one x (Notify _) = x
    rearm x = case conn (peers x Map.! s) of
      Just c
        | next /= never && t /= timerAt (peers x Map.! s) -> at (max (time x) t) (Timer s t') (put s (\p -> p {timerAt = t'}) x)
        | next == never -> put s (\p -> p {timerAt = maxBound}) x
        where
          next = nextTimer c
          Instant t = next
          t' = max (time x) t
      _ -> x

addressOf :: Side -> Address
addressOf A = V4 0x0a000001
addressOf B = V4 0x0a000002

transmitOn :: Scenario -> Side -> Segment -> World -> World
transmitOn sc s seg w0
  | time w0 >= cutAfter sc = w
  | backlog > queueLimit l = w
  | chance 1 (lossRate l) || chance 10 (hostLoss (hostOf sc s)) = w
  | otherwise = duplicate (deliver first bytes' w)
  where
    l = link sc
    bytes = encode (addressOf s) (addressOf (other s)) 1 2 seg
    size = B.length bytes + 20
    w =
      w0
        { random = iterate nextSeed (random w0) !! 12,
          digestSoFar = B.foldl' mix (mix' (mix' (digestSoFar w0) (fromIntegral (time w0))) (fromIntegral (B.length bytes))) (B.take 40 bytes),
          sentPackets = sentPackets w0 + 1,
          history = line : history w0,
          freeAt = Map.insert s leaves (freeAt w0)
        }
    line =
      unwords
        [show (time w0), show s, maybe "" (show . state) (conn (peers w0 Map.! s)), show (flags seg), show (seqNumber seg), "+" ++ show (payloadLength seg), "ack", show (ackNumber seg), "win", show (window seg), show (sackBlocks (options seg))]
    mix a b = mix' a (fromIntegral b)
    mix' a b = (a `xor` b) * 1099511628211
    draws = iterate nextSeed (random w0)
    draw i n = fromIntegral ((draws !! i) `shiftR` 33) `mod` n :: Int
    chance i per = per > 0 && draw i 1000 < per
    begins = max (time w0) (freeAt w0 Map.! s)
    serial = if rate l == 0 then 0 else size * 1000 `div` rate l
    leaves = if time w0 >= cutAfter sc || backlog > queueLimit l then freeAt w0 Map.! s else begins + serial
    backlog = if serial == 0 then 0 else (begins - time w0) `div` serial
    first = leaves + delay l + (if jitter l > 0 then draw 2 (jitter l) else 0) + (if chance 3 (reordering l) then delay l + draw 4 (1 + delay l) else 0)
    bytes'
      | chance 5 (corruption l) = let i = draw 6 (B.length bytes) in B.take i bytes <> B.cons (B.index bytes i `xor` fromIntegral (1 + draw 7 255)) (B.drop (i + 1) bytes)
      | otherwise = bytes
    duplicate x
      | chance 8 (duplication l) = deliver (first + draw 9 (1 + 2 * delay l)) bytes' x
      | otherwise = x
    deliver t b = at t (Packet (other s) b)

-- | Data to send, different for each seed.
dataOf :: Seed -> Int -> ByteString
dataOf s n = B.take n (fst (B.unfoldrN (n + 8) (\x -> Just (fromIntegral (x `shiftR` 40), nextSeed x)) (nextSeed (s + 3))))
