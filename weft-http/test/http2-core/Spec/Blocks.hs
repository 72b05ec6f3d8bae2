{-# LANGUAGE OverloadedStrings #-}

-- |
-- Header blocks as the core has them decoded: a block that comes again is not decoded again, and nobody sees it.
module Spec.Blocks
  ( tests,
  )
where

import qualified Data.ByteString as B
import Data.Word (Word8)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Http2.Core
import Weft.Http2.Decoding
import Weft.Http2.Frame (ErrorCode (..))
import Weft.Http2.Hpack.Decoder
import Weft.Http2.Request (readHead)

tests :: TestTree
tests =
  testGroup
    "header blocks"
    [ testCase "a block that adds to the table does so each time" $
        given [adds, adds, [0xbe, 0xbf], [0xc0]] @?= [Right [("x", "a")], Right [("x", "a")], Right [("x", "a"), ("x", "a")], Left CompressionError],
      testCase "the same reference means another field when the table has changed" $
        given [adds, [0xbe], [0xbe], addsOther, [0xbe], [0xbe]]
          @?= map Right [[("x", "a")], [("x", "a")], [("x", "a")], [("y", "b")], [("y", "b")], [("y", "b")]],
      testCase "a table that was emptied is empty when the block comes again" $
        given [adds, [0xbe], [0x20, 0x82], [0x20, 0x82], [0xbe]]
          @?= [Right [("x", "a")], Right [("x", "a")], Right [(":method", "GET")], Right [(":method", "GET")], Left CompressionError],
      testProperty "any blocks, as often as they come: as without what is kept" . forAll (listOf (oneof (map pure blocks))) $ \sent ->
        given sent === plainly (newDecoder 4096) sent
    ]
  where
    adds = [0x40, 1, 0x78, 1, 0x61]
    addsOther = [0x40, 1, 0x79, 1, 0x62]
    blocks =
      [adds, addsOther, [0xbe], [0xbf], [0x82, 0x87, 0x84, 0x41, 1, 0x61], [0x82, 0x87, 0x84, 0x01, 1, 0x61], [], [0x20, 0x3f, 0xe1, 0x1f]]
        <> [0x82 : 0x0f : 0x1f : 127 : 0x81 : 0x01 : replicate 256 0x61]

-- | The fields of blocks up to the first error, of which the rest is nothing; each head is that of its fields.
given :: [[Word8]] -> [Either ErrorCode [Field]]
given = go (decoding 65536)
  where
    go _ [] = []
    go (Decode decode) (bytes : rest) = case decode (B.pack bytes) of
      Left (code, _) -> [Left code]
      Right (found, next)
        | fieldsHead found == readHead (fieldsList found) -> Right (fieldsList found) : go next rest
        | otherwise -> error "another head"

plainly :: Decoder -> [[Word8]] -> [Either ErrorCode [Field]]
plainly _ [] = []
plainly decoder (bytes : rest) = case decodeBlock 65536 (B.pack bytes) decoder of
  Left _ -> [Left CompressionError]
  Right (found, next) -> Right (decodedFields found) : plainly next rest
