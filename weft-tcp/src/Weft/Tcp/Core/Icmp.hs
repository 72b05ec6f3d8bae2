-- |
-- What ICMP may do to a connection: less than it asks for (RFC 5927). A message counts
-- only if the segment that it quotes is outstanding; it never aborts a connection
-- that is established, and makes no segment smaller than the floor.
--
-- @since 0.1.0
module Weft.Tcp.Core.Icmp
  ( pathMtu,
    unreached,
    quotesOutstanding,
  )
where

import Data.List (foldl')
import Data.Word (Word32)
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Scoreboard
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time

-- | Whether a segment with that number is on its way: what else is quoted is not believed.
quotesOutstanding :: Word32 -> Conn -> Bool
quotesOutstanding w c = at >= sndUna s && at < sndNxt s
  where
    s = sendSide c
    at = unwrap (sndUna s) w

-- | Fragmentation needed, or packet too big: segments become smaller (RFC 1191, RFC
-- 8201), and what was too big is sent again. The window is not reduced: nothing was
-- congested.
pathMtu :: Env -> Word32 -> Int -> Conn -> Conn
pathMtu env w room c
  | not (quotesOutstanding w c) || room >= pathLimit (agreed c) = c
  | otherwise = modifyLoss (\l -> l {board = resendBig (board l)}) smaller
  where
    smaller = c {agreed = (agreed c) {pathLimit = max (mssFloor (config env) + 20) room}}
    resendBig b = foldl' (flip markLost) b [k | (k, s) <- inOrderSent b, sentEnd s - k > sendMss smaller]

-- | Destination unreachable: ends a connection that is being opened, and is advice to
-- any other (RFC 5927, section 5.2).
unreached :: Word32 -> Conn -> Conn
unreached w c
  | state c `elem` [SynSent, SynReceived] && quotesOutstanding w c = c {state = Closed Unreachable, timers = noTimers}
  | otherwise = c
