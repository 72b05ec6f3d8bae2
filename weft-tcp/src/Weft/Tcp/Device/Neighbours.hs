-- |
-- The neighbours of an Ethernet link and how long what is known of them holds, for IPv6 (RFC 4861, section 7.3) and for
-- ARP (RFC 826; RFC 1122, section 2.3.2.1). Pure: the time is passed in, and 'expire' is called once a second while
-- somebody is asked.
--
-- @
--   unknown    -> sought       a packet is to be sent: everybody is asked, the packet waits
--   sought     -> unknown      three questions, a second apart, got no answer: its packets are dropped
--   any        -> confirmed    the neighbour answered a question
--   any        -> heard        the neighbour said where it is without being asked
--   confirmed  -> heard        after the time given, usually 30 seconds
--   heard      -> probed       a packet is to be sent: it goes there, and the neighbour is asked
--   probed     -> unknown      three questions got no answer; the last one was to everybody
-- @
--
-- RFC 4861 waits for five seconds before it asks, as the layers above may know that the neighbour is there. Nothing
-- here tells, and a question for each half a minute is cheap; so that who has moved is found within three seconds.
module Weft.Tcp.Device.Neighbours
  ( Neighbours,
    noNeighbours,
    neighbourCount,
    maxNeighbours,
    hardwareOf,

    -- * Sending
    Decision (..),
    Question (..),
    forPacket,
    expire,

    -- * What neighbours say
    answered,
    announced,
  )
where

import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Weft.Core.Time
import Weft.Tcp.Wire.Address

-- | Neighbours by address, and by the end of their states, with packets of any form.
data Neighbours p = Neighbours !(Map.Map Address (Entry p)) !(Set.Set (Instant, Address))

entries :: Neighbours p -> Map.Map Address (Entry p)
entries (Neighbours m _) = m

-- | When the state ends, and the state.
data Entry p = Entry !Instant !(State p)

-- | Where questions come from, how many there were, and the packets that wait, the last one first.
data State p
  = Sought !Address !Int ![p]
  | Confirmed !HardwareAddress
  | Heard !HardwareAddress
  | Probed !Address !HardwareAddress !Int

-- | What becomes of a packet.
data Decision
  = -- | It goes there; with the question, if there is one.
    SendTo !HardwareAddress !(Maybe Question)
  | -- | It waits, or was dropped as too many wait.
    Waits !(Maybe Question)
  deriving (Eq, Show)

-- | Where is the neighbour?
data Question = AskEverybody | AskOnly !HardwareAddress
  deriving (Eq, Show)

-- | None known.
noNeighbours :: Neighbours p
noNeighbours = Neighbours Map.empty Set.empty

-- | How many are known or sought.
neighbourCount :: Neighbours p -> Int
neighbourCount = Map.size . entries

-- | More are never held: of those there are, the one whose state ends first gives way. Those that do not answer are
-- the first ones.
maxNeighbours :: Int
maxNeighbours = 1024

-- | Packets that wait for a neighbour, at most (RFC 1122, section 2.3.2.2, wants one at least).
maxWaiting :: Int
maxWaiting = 4

-- | Where it is, as far as it is known.
hardwareOf :: Address -> Neighbours p -> Maybe HardwareAddress
hardwareOf a ns = case Map.lookup a (entries ns) of
  Just (Entry _ s) -> known s
  Nothing -> Nothing

known :: State p -> Maybe HardwareAddress
known s = case s of
  Sought {} -> Nothing
  Confirmed hw -> Just hw
  Heard hw -> Just hw
  Probed _ hw _ -> Just hw

-- | A packet is to be sent from an address of ours to one of the link.
forPacket :: Instant -> Address -> Address -> p -> Neighbours p -> (Neighbours p, Decision)
forPacket t own a p ns = case Map.lookup a (entries ns) of
  Nothing -> (put patience (Sought own 1 [p]), Waits (Just AskEverybody))
  Just (Entry end s) -> case s of
    Sought from n ps -> (insert a (Entry end (Sought from n (take maxWaiting (p : ps)))) ns, Waits Nothing)
    Confirmed hw
      | t < end -> (ns, SendTo hw Nothing)
      | otherwise -> probe hw
    Heard hw -> probe hw
    Probed _ hw _ -> (ns, SendTo hw Nothing)
  where
    put d s = insert a (Entry (after d t) s) ns
    probe hw = (put patience (Probed own hw 1), SendTo hw (Just (AskOnly hw)))

-- | Time has passed: the questions that are due, with the address of ours that they come from and the one they are about,
-- and whether there will be others.
expire :: Instant -> Neighbours p -> (Neighbours p, ([(Address, Address, Question)], Bool))
expire t ns0 = go ns0 []
  where
    go ns@(Neighbours m q) out = case Set.minView q of
      Just ((end, a), rest)
        | end <= t,
          Just (Entry _ s) <- Map.lookup a m -> case s of
          Sought own n ps | n < maxQuestions -> go (insert a (Entry (after patience t) (Sought own (n + 1) ps)) ns) ((own, a, AskEverybody) : out)
          Probed own hw n
            | n < maxQuestions -> go (insert a (Entry (after patience t) (Probed own hw (n + 1))) ns) ((own, a, if n + 1 < maxQuestions then AskOnly hw else AskEverybody) : out)
          Confirmed hw -> go (insert a (Entry (after unusedTime t) (Heard hw)) ns) out
          -- Nobody answered, or nobody used it.
          _ -> go (Neighbours (Map.delete a m) rest) out
      _ -> (ns, (reverse out, any asking (Map.elems m)))
    asking (Entry _ s) = case s of
      Sought {} -> True
      Probed {} -> True
      _ -> False

-- | A neighbour has answered a question of ours, which holds for so long: the packets that waited for it, in order. An
-- answer about an address that nobody asked for changes nothing.
answered :: Duration -> Instant -> Address -> HardwareAddress -> Neighbours p -> (Neighbours p, [p])
answered holds t a hw ns = case Map.lookup a (entries ns) of
  Nothing -> (ns, [])
  Just (Entry _ s) -> (insert a (Entry (after holds t) (Confirmed hw)) ns, waiting s)

-- | A neighbour has said where it is, in a question of its own ('True': to us, so that it is worth knowing)
-- or to everybody. What was confirmed and is said again stays confirmed.
announced :: Bool -> Instant -> Address -> HardwareAddress -> Neighbours p -> (Neighbours p, [p])
announced toUs t a hw ns = case Map.lookup a (entries ns) of
  Nothing
    | toUs -> (heard, [])
    | otherwise -> (ns, [])
  Just (Entry _ s)
    | known s == Just hw -> (ns, [])
    | otherwise -> (heard, waiting s)
  where
    heard = insert a (Entry (after unusedTime t) (Heard hw)) ns

waiting :: State p -> [p]
waiting s = case s of
  Sought _ _ ps -> reverse ps
  _ -> []

-- | Put an entry in place of the address's own; if it is a new one too many, in place of the one that ends first.
insert :: Address -> Entry p -> Neighbours p -> Neighbours p
insert a e@(Entry end _) (Neighbours m q) = case Map.lookup a m of
  Just (Entry old _) -> Neighbours (Map.insert a e m) (Set.insert (end, a) (Set.delete (old, a) q))
  Nothing -> case Set.minView q of
    Just ((_, first), rest) | Map.size m >= maxNeighbours -> Neighbours (Map.insert a e (Map.delete first m)) (Set.insert (end, a) rest)
    _ -> Neighbours (Map.insert a e m) (Set.insert (end, a) q)

-- | Between questions (RFC 4861, section 10: RETRANS_TIMER), and until what is not used is forgotten.
patience, unusedTime :: Duration
patience = seconds 1
unusedTime = seconds 600

-- | MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT.
maxQuestions :: Int
maxQuestions = 3
