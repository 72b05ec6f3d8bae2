-- |
-- Limits on a stack's answers to strangers, which it gives without a connection: anybody can provoke them, in the name
-- of any address, and each costs several times what the packet costs that provokes it. For each kind there is a limit
-- for the address that the answer goes to, and one in all.
--
-- The first limit keeps a flood, or one that is sent in the name of a victim, from using up the answers of everybody.
-- Addresses share a fixed number of counters by a keyed hash. The second one bounds the work. It is so high, compared
-- with the first one, that nobody can tell from the answers to his own packets how many others were given: a limit that
-- all share tells a stranger which connections exist (CVE-2016-5696). Where connections answer, they have limits of
-- their own ("Weft.Tcp.Core.Emit").
--
-- @since 0.1.0
module Weft.Tcp.Stack.Answers
  ( Answers,
    newAnswers,
    Kind (..),
    mayAnswer,
  )
where

import Data.Word (Word64)
import Weft.Sys (WordArray, newWordArray, peekWord, pokeWord)
import Weft.Tcp.Core.Rate
import Weft.Tcp.Core.Time

-- | The state of the limits. Used by all threads without a lock: a race between them gives one answer more or less.
newtype Answers = Answers WordArray

-- | The kinds of answers, each with limits of its own.
data Kind
  = -- | Resets, in answer to segments of no connection.
    Resets
  | EchoReplies
  | -- | ICMP errors.
    Errors
  | -- | Link-layer addresses of the stack, in answer to ARP and neighbour discovery.
    LinkAnswers
  deriving (Eq, Show, Enum, Bounded)

-- | The limit for an address, and the one in all. A client that is refused a thousand times a second, or a @ping@ that
-- does not wait, is answered in full. Errors: RFC 4443, section 2.4 (f); RFC 1812, section 4.3.2.8.
rates :: Kind -> (Rate, Rate)
rates k = case k of
  Resets -> (perSecond 100 1000, perSecond 2000 20000)
  EchoReplies -> (perSecond 100 1000, perSecond 2000 20000)
  Errors -> (perSecond 10 10, perSecond 100 100)
  LinkAnswers -> (perSecond 10 10, perSecond 1000 10000)

-- | The counters of a kind: one for all, then those that addresses share. 4 KiB.
slots :: Int
slots = 512

-- | Nothing was answered yet. 16 KiB.
newAnswers :: IO Answers
newAnswers = Answers <$> newWordArray (slots * (1 + fromEnum (maxBound :: Kind)))

-- | Whether to answer now. The answer counts then. Takes a hash of the address that it goes to.
mayAnswer :: Answers -> Kind -> Instant -> Word64 -> IO Bool
mayAnswer (Answers ws) kind t h = do
  his <- state own
  total <- state base
  case (,) <$> spend each t his <*> spend all' t total of
    Nothing -> pure False
    Just (Instant his', Instant total') -> True <$ (pokeWord ws own his' >> pokeWord ws base total')
  where
    (each, all') = rates kind
    base = slots * fromEnum kind
    own = base + 1 + fromIntegral (h `mod` fromIntegral (slots - 1))
    state i = Instant <$> peekWord ws i
