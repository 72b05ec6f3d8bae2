-- |
-- A connection to which a test passes handmade segments and events one by one. After each step the invariants are
-- checked.
module Handmade
  ( -- * A connection and its time
    T (..),
    cfg,
    env',
    opening,
    base,
    baseWith,

    -- * Segments
    blankOptions,
    synSegment,
    plain,
    short,

    -- * Steps
    on,
    got,
    hears,
    does,
    sleepFor,

    -- * Findings
    content,
    is,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Word (Word32)
import Test.Tasty.HUnit
import Weft.Tcp.Core
import Weft.Tcp.Core.Invariants
import Weft.Tcp.Wire.Options
import Weft.Tcp.Wire.Segment

-- The connection is in ESTABLISHED. The peer's next sequence number is 1001, ours is 501, and the peer's window is
-- 10000. Times are in microseconds.

data T = T {at :: Int, c :: Conn}

cfg :: Config
cfg = defaultConfig {offerTimestamps = False, offerScale = False}

env' :: Config -> Int -> Env
env' cf t = Env (Instant t) cf

opening :: Opening
opening = Opening 500 0 1480 536

blankOptions :: Options
blankOptions = noOptions {maximumSegmentSize = Just 1460, sackPermitted = True}

synSegment :: Segment
synSegment = Segment 1000 0 syn 10000 0 blankOptions []

base :: T
base = baseWith cfg

baseWith :: Config -> T
baseWith cf = fst (got cf (T 1000000 (fst (passiveOpen (env' cf 1000000) opening synSegment))) (plain 1001 501 ""))

plain :: Word32 -> Word32 -> String -> Segment
plain s a body = Segment s a ack 10000 0 noOptions [C.pack body | not (null body)]

-- | Process an event, 10 ms after the previous one, and check all invariants. Returns the segments that were sent.
on :: Config -> T -> Event -> (T, [Segment])
on cf (T t x) e = case invariants cf x' ++ invariantsBetween x x' of
  [] -> (T (t + 10000) x', [s | Transmit s <- actions])
  broken -> error (show broken)
  where
    (x', actions) = step (env' cf (t + 10000)) e x

got :: Config -> T -> Segment -> (T, [Segment])
got cf t s = on cf t (Arrive [s])

hears :: T -> Segment -> (T, [Segment])
hears = got cfg

does :: T -> Event -> (T, [Segment])
does = on cfg

-- | Let time pass, and process each timer when it expires.
sleepFor :: Config -> Int -> T -> (T, [Segment])
sleepFor cf d t0 = go (at t0 + d) t0 []
  where
    go end (T t x) out
      | nextTimer x <= Instant end =
        let Instant due = nextTimer x
            (t', s) = on cf (T (max t due - 10000) x) Tick
         in go end t' (out ++ s)
      | otherwise = (T end x, out)

short :: Segment -> (String, Word32, Word32, Int)
short s = (show (flags s), seqNumber s, ackNumber s, payloadLength s)

content :: T -> ByteString
content t = B.concat [b | Received bs <- snd (step (env' cfg (at t)) (UserReceive 100000) (c t)), b <- bs]

is :: T -> State -> Assertion
is t s = state (c t) @?= s
