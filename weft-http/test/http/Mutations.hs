{-# LANGUAGE OverloadedStrings #-}

-- |
-- Requests with small random changes. The same seed gives the same requests. Pure.
module Mutations
  ( firstSeed,
    next,
    mutated,
    segments,
  )
where

import Data.Bits (shiftL, shiftR, xor)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word64)

-- | The seed that a sequence begins with.
firstSeed :: Word64
firstSeed = 88172645463325252

-- | The next word of a pseudorandom sequence (xorshift64).
next :: Word64 -> Word64
next x0 = let x1 = x0 `xor` (x0 `shiftL` 13); x2 = x1 `xor` (x1 `shiftR` 7) in x2 `xor` (x2 `shiftL` 17)

-- | One or two requests from a list, with up to four changes, and the next seed.
mutated :: [ByteString] -> Word64 -> (ByteString, Word64)
mutated requests s0 = change (fromIntegral (s1 `shiftR` 32) `mod` 5 :: Int) base (next s1)
  where
    s1 = next s0
    base = pick requests s1 <> (if s1 `shiftR` 50 `mod` 2 == 0 then "" else pick requests (next s1))
    pick list s = list !! (fromIntegral (s `shiftR` 13) `mod` length list)
    change 0 bytes s = (bytes, s)
    change k bytes s =
      let at = fromIntegral (s `shiftR` 8) `mod` (B.length bytes + 1)
          (before, behind) = B.splitAt at bytes
          piece = pick pieces (next s)
       in change (k - 1) (if s `mod` 3 == 0 then before <> B.drop 1 behind else if s `mod` 3 == 1 then before <> piece <> behind else before <> piece <> B.drop (B.length piece) behind) (next (next s))
    pieces = ["\r", "\n", "\r\n", " ", "\t", ":", ";", ",", "0", "f", "\0", "\x7f", "\xff", "\"", "\\", "=", "Host: a\r\n", "Content-Length: 3\r\n", "Transfer-Encoding: chunked\r\n", "HTTP/1.0", "/", "#"]

-- | Split bytes into pieces of up to 40 bytes.
segments :: Word64 -> ByteString -> [ByteString]
segments seed bytes
  | B.null bytes = []
  | otherwise = let n = 1 + fromIntegral (seed `shiftR` 24) `mod` 40 in B.take n bytes : segments (next seed) (B.drop n bytes)
