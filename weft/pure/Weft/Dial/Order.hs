-- |
-- The order in which addresses are tried: that of RFC 6724, with the families taking turns (RFC 8305, section 4). Pure.
--
-- Of the rules in RFC 6724, section 6, those that need no more than the source address are here: 1, 2, 5, 6, 8, 9
-- and 10. Rule 9 compares IPv6 addresses only, and their first 64 bits: with IPv4 it would undo the order in which a
-- name server hands out the addresses of equal servers.
module Weft.Dial.Order
  ( sortAddresses,
    takeTurns,
  )
where

import Data.Bits (countLeadingZeros, shiftL, shiftR, xor, (.&.), (.|.))
import Data.List (sortBy)
import Data.Ord (Down (..), comparing)
import Data.Word (Word32, Word64, Word8)
import Network.Socket (SockAddr (..), hostAddressToTuple)

-- | Destinations, the best one first, each with the address that the system would send from, if it can send at all.
-- Those that are equally good stay in their order. O(n log n).
sortAddresses :: [(SockAddr, Maybe SockAddr)] -> [SockAddr]
sortAddresses = map fst . sortBy better

better :: (SockAddr, Maybe SockAddr) -> (SockAddr, Maybe SockAddr) -> Ordering
better (a, Nothing) (b, Nothing) = compareAlone a b
better (_, Just _) (_, Nothing) = LT -- rule 1
better (_, Nothing) (_, Just _) = GT
better (a, Just sa) (b, Just sb) =
  firstOf
    [ prefer (scope a == scope sa) (scope b == scope sb), -- rule 2
      prefer (label a == label sa) (label b == label sb), -- rule 5
      compareAlone a b, -- rules 6 and 8
      if isIPv6 a && isIPv6 b then comparing Down (common a sa) (common b sb) else EQ -- rule 9
    ]
  where
    prefer x y = comparing Down x (y :: Bool)

-- | By precedence, then by scope.
compareAlone :: SockAddr -> SockAddr -> Ordering
compareAlone a b = firstOf [comparing (Down . precedence) a b, comparing scope a b]

firstOf :: [Ordering] -> Ordering
firstOf = mconcat

isIPv6 :: SockAddr -> Bool
isIPv6 address = case address of
  SockAddrInet6 {} -> True
  _ -> False

-- | The halves of an address; IPv4 mapped into IPv6.
halves :: SockAddr -> (Word64, Word64)
halves address = case address of
  SockAddrInet6 _ _ (a, b, c, d) _ -> (pair a b, pair c d)
  SockAddrInet _ host ->
    let (a, b, c, d) = hostAddressToTuple host
     in (0, foldl (\w o -> w `shiftL` 8 .|. fromIntegral o) 0xffff [a, b, c, d])
  _ -> (0, 0)
  where
    pair :: Word32 -> Word32 -> Word64
    pair x y = fromIntegral x `shiftL` 32 .|. fromIntegral y

-- | RFC 6724, section 3.1: link-local 2, site-local 5, global 14; that of a multicast address is in it.
scope :: SockAddr -> Word8
scope address = case address of
  SockAddrInet _ host -> case hostAddressToTuple host of
    (127, _, _, _) -> 2
    (169, 254, _, _) -> 2
    _ -> 14
  _
    | top 8 == 0xff -> fromIntegral (high `shiftR` 48 .&. 15)
    | (high, low) == (0, 1) || top 10 == 0x3fa -> 2
    | top 10 == 0x3fb -> 5
    | otherwise -> 14
  where
    (high, low) = halves address
    top n = high `shiftR` (64 - n)

-- | A line of the policy table: what the address begins with, how many bits that is, precedence and label.
data Policy = Policy !Word64 !Word64 !Int !Int !Int

precedence, label :: SockAddr -> Int
precedence address = let Policy _ _ _ p _ = policy address in p
label address = let Policy _ _ _ _ l = policy address in l

-- | The line of RFC 6724, section 2.1, with the longest prefix.
policy :: SockAddr -> Policy
policy address = case filter matches table of
  found : _ -> found
  [] -> Policy 0 0 0 40 1
  where
    (high, low) = halves address
    matches (Policy h l bits _ _)
      | bits <= 64 = begins bits high h
      | otherwise = high == h && begins (bits - 64) low l
    begins bits x y = bits == 0 || (x `xor` y) `shiftR` (64 - bits) == 0
    table =
      [ Policy 0 1 128 50 0,
        Policy 0 0xffff00000000 96 35 4,
        Policy 0 0 96 1 3,
        Policy 0x2001000000000000 0 32 5 5,
        Policy 0x2002000000000000 0 16 30 2,
        Policy 0x3ffe000000000000 0 16 1 12,
        Policy 0xfec0000000000000 0 10 1 11,
        Policy 0xfc00000000000000 0 7 3 13
      ]

-- | The number of first bits that two addresses share, at most 64.
common :: SockAddr -> SockAddr -> Int
common a b = countLeadingZeros (fst (halves a) `xor` fst (halves b))

-- | One address of the first one's family, one of the other families, and so on; each in order.
takeTurns :: [SockAddr] -> [SockAddr]
takeTurns addresses = case addresses of
  [] -> []
  first : _ ->
    let like = (== isIPv6 first) . isIPv6
     in turns (filter like addresses) (filter (not . like) addresses)
  where
    turns (x : xs) ys = x : turns ys xs
    turns [] ys = ys
