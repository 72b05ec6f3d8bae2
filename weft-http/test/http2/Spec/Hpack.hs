{-# LANGUAGE OverloadedStrings #-}

-- |
-- Header compression: the examples of RFC 7541, appendix C; generated connections, also against the Python package
-- @hpack@ in both directions; blocks that are cut off, changed or made to be expensive.
module Spec.Hpack
  ( tests,
  )
where

import Control.Exception
import Control.Monad
import Data.Bits
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Char (digitToInt, intToDigit, isHexDigit)
import Data.Either (isLeft)
import Data.List (intercalate, mapAccumL)
import Data.Word
import System.Exit
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Test.Tasty.QuickCheck hiding ((.&.))
import Weft.Http2.Hpack.Decoder
import Weft.Http2.Hpack.Encoder
import Weft.Http2.Hpack.Huffman
import Weft.Http2.Hpack.Table (Field, fieldSize)
import Weft.Test.Skip

tests :: TestTree
tests = testGroup "HPACK" [appendixC, strings, integers, sizes, choices, connections, hostile]

-- | A limit that no block of these tests reaches.
unlimited :: Int
unlimited = maxBound

-- | The fields of blocks that come one after the other.
decodeAll :: Int -> [B.ByteString] -> Either Fault [[Field]]
decodeAll size = go (newDecoder size)
  where
    go _ [] = Right []
    go d (block : rest) = do
      (found, d') <- decodeBlock unlimited block d
      (decodedFields found :) <$> go d' rest

decodeOne :: B.ByteString -> Either Fault [Field]
decodeOne block = concat <$> decodeAll 4096 [block]

encodeAll :: Int -> [[Field]] -> [B.ByteString]
encodeAll size = snd . mapAccumL (\e fields -> let (block, e') = encodeBlock fields e in (e', block)) (newEncoder size)

-- | Hexadecimal digits, with anything between them.
hex :: String -> B.ByteString
hex = B.pack . go . filter isHexDigit
  where
    go (a : b : rest) = fromIntegral (digitToInt a * 16 + digitToInt b) : go rest
    go _ = []

-- Appendix C -------------------------------------------------------------------------

appendixC :: TestTree
appendixC =
  testGroup
    "appendix C of RFC 7541"
    [ testCase "C.1: integers" $ do
        -- 10 and 1,337 in five bits are sizes of a table; 42 in eight bits would be a string's length.
        decodeBlock unlimited (hex "2a") (newDecoder 9) `faults` SizeUpdateTooLarge 10
        decodeBlock unlimited (hex "3f9a0a") (newDecoder 1336) `faults` SizeUpdateTooLarge 1337
        decodeOne (hex "002a" <> B.replicate 42 97 <> hex "00") @?= Right [(B.replicate 42 97, "")],
      testCase "C.2: one field each" $ do
        decodeOne (hex "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572") @?= Right [("custom-key", "custom-header")]
        decodeOne (hex "040c 2f73 616d 706c 652f 7061 7468") @?= Right [(":path", "/sample/path")]
        decodeOne (hex "1008 7061 7373 776f 7264 0673 6563 7265 74") @?= Right [("password", "secret")]
        decodeOne (hex "82") @?= Right [(":method", "GET")],
      testCase "C.3: requests without Huffman coding" $
        decodeAll
          4096
          [ hex "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            hex "8286 84be 5808 6e6f 2d63 6163 6865",
            hex "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65"
          ]
          @?= Right requests,
      testCase "C.4: requests with Huffman coding, decoded and encoded" $ do
        decodeAll 4096 codedRequests @?= Right requests
        encodeAll 4096 requests @?= codedRequests,
      testCase "C.5: responses without Huffman coding, with evictions" $
        decodeAll
          256
          [ hex
              "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3120 \
              \474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            hex "4803 3330 37c1 c0bf",
            hex
              "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 7738 \
              \666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 6765 3d33 \
              \3630 303b 2076 6572 7369 6f6e 3d31"
          ]
          @?= Right responses,
      testCase "C.6: responses with Huffman coding, with evictions" $ do
        decodeAll 256 codedResponses @?= Right responses
        -- In the second, the RFC codes a string that does not become shorter; in the third, it adds a cookie to the
        -- table.
        take 1 (encodeAll 256 responses) @?= take 1 codedResponses
    ]
  where
    faults found fault = either (@?= fault) (const (assertFailure "it was decoded")) found
    request scheme path more = [(":method", "GET"), (":scheme", scheme), (":path", path), (":authority", "www.example.com")] <> more
    requests =
      [ request "http" "/" [],
        request "http" "/" [("cache-control", "no-cache")],
        request "https" "/index.html" [("custom-key", "custom-value")]
      ]
    codedRequests =
      [ hex "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        hex "8286 84be 5886 a8eb 1064 9cbf",
        hex "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf"
      ]
    response status date more =
      [(":status", status), ("cache-control", "private"), ("date", date), ("location", "https://www.example.com")] <> more
    responses =
      [ response "302" "Mon, 21 Oct 2013 20:13:21 GMT" [],
        response "307" "Mon, 21 Oct 2013 20:13:21 GMT" [],
        response
          "200"
          "Mon, 21 Oct 2013 20:13:22 GMT"
          [("content-encoding", "gzip"), ("set-cookie", "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1")]
      ]
    codedResponses =
      [ hex
          "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad 1718 63c7 \
          \8f0b 97c8 e9ae 82ae 43d3",
        hex "4883 640e ffc1 c0bf",
        hex
          "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7 b335 \
          \dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07"
      ]

-- Strings and integers ---------------------------------------------------------------

-- | A field x with a Huffman-coded value that is not added to the table.
coded :: [Word8] -> B.ByteString
coded bytes = B.pack ([0x10, 1, 0x78, 0x80 .|. fromIntegral (length bytes)] <> bytes)

strings :: TestTree
strings =
  testGroup
    "Huffman-coded strings"
    [ testCase "each byte" . forM_ [0 .. 255] $ \c -> do
        let value = B.pack [c, c, 97, c]
            block = B.concat (encodeAll 4096 [[("x", value)]])
        decodeOne block @?= Right [("x", value)],
      testCase "padding is fewer than eight ones" $ do
        decodeOne (coded []) @?= Right [("x", "")]
        -- The letter a has the code 00011.
        decodeOne (coded [0x1f]) @?= Right [("x", "a")]
        decodeOne (coded [0x1e]) @?= Left (NotHuffman HuffmanPadding)
        decodeOne (coded [0x18]) @?= Left (NotHuffman HuffmanPadding)
        decodeOne (coded [0x1f, 0xff]) @?= Left (NotHuffman HuffmanPadding)
        decodeOne (coded [0xff]) @?= Left (NotHuffman HuffmanPadding),
      testCase "the code of the end is an error" $ do
        decodeOne (coded [0xff, 0xff, 0xff, 0xff]) @?= Left (NotHuffman HuffmanEnd)
        decodeOne (coded [0x1f, 0xff, 0xff, 0xff, 0xff]) @?= Left (NotHuffman HuffmanEnd),
      testProperty "a string is coded where that is shorter" $ \bytes ->
        let value = B.pack bytes
            block = B.concat (encodeAll 4096 [[("x", value)]])
         in -- The field, the name, and the value with its length.
            B.length value < 100 ==> B.length block === 4 + min (B.length value) (codedLength value)
    ]

integers :: TestTree
integers =
  testGroup
    "integers"
    [ testCase "more than 32 bits, or bytes that add nothing without end" $ do
        decodeOne (hex "ff ff ff ff ff 7f") @?= Left IntegerTooLarge
        decodeOne (hex "ff ff ff ff ff ff ff ff ff ff 7f") @?= Left IntegerTooLarge
        decodeOne (hex "ff 80 80 80 80 80 80 80 00") @?= Left IntegerTooLarge
        decodeOne (hex "00 7f ff ff ff ff ff 7f") @?= Left IntegerTooLarge
        decodeOne (hex "3f ff ff ff ff ff ff 7f") @?= Left IntegerTooLarge,
      testCase "a length that is larger than the block" $ decodeOne (hex "00 7f ff ff ff ff 07") @?= Left Truncated,
      testCase "an index of nothing" $ do
        decodeOne (hex "80") @?= Left (NoSuchIndex 0)
        decodeOne (hex "be") @?= Left (NoSuchIndex 62)
        decodeOne (hex "7e 00") @?= Left (NoSuchIndex 62)
    ]

-- The table's size -------------------------------------------------------------------

sizes :: TestTree
sizes =
  testGroup
    "the table's size"
    [ testCase "may be changed only before the first field, and not beyond the limit" $ do
        decodeOne (hex "20 3f e1 1f 82") @?= Right [(":method", "GET")]
        decodeOne (hex "82 20") @?= Left LateSizeUpdate
        decodeOne (hex "3f e2 1f 82") @?= Left (SizeUpdateTooLarge 4097),
      testCase "is announced as the smallest, then the last" $ do
        announced [] @?= ""
        announced [4096] @?= ""
        announced [8192] @?= ""
        announced [100] @?= hex "3f45"
        announced [0, 4096] @?= hex "20 3fe11f"
        announced [0, 100] @?= hex "20 3f45"
        announced [100, 0, 8192] @?= hex "20 3fe11f",
      testCase "one that does not last empties both tables" $ do
        let (first, e) = encodeBlock [("x", "y")] (newEncoder 4096)
            (second, _) = encodeBlock [("x", "y")] (limitEncoder 4096 (limitEncoder 0 e))
        decodeAll 4096 [first, second] @?= Right [[("x", "y")], [("x", "y")]]
        B.drop 4 second @?= first,
      testCase "is announced once" $ do
        let (_, e) = encodeBlock [(":method", "GET")] (limitEncoder 100 (newEncoder 4096))
        fst (encodeBlock [(":method", "GET")] e) @?= hex "82"
    ]
  where
    announced limits = B.init (fst (encodeBlock [(":method", "GET")] (foldl (flip limitEncoder) (newEncoder 4096) limits)))

-- What the encoder chooses -----------------------------------------------------------

choices :: TestTree
choices =
  testGroup
    "the encoder"
    [ testCase "never adds secrets to the table, and says so" . forM_ ["authorization", "proxy-authorization", "cookie", "set-cookie"] $ \name -> do
        let blocks = encodeAll 4096 [[(name, "secret")], [(name, "secret")], [("x", "y")], [("x", "y")]]
        map (\block -> B.head block .&. 0xf0) (take 2 blocks) @?= [0x10, 0x10]
        -- The first field of the table is another.
        last blocks @?= hex "be",
      testCase "sends what repeats as an index" $ do
        let fields = [(":status", "200"), ("server", "weft"), ("date", "Mon, 21 Oct 2013 20:13:21 GMT"), ("content-type", "text/plain")]
        B.length (last (encodeAll 4096 [fields, fields])) @?= length fields,
      testCase "does not add what is too large" $ do
        let large = [("x", B.replicate 4000 97)]
        last (encodeAll 4096 [[("a", "b")], large, [("a", "b")]]) @?= hex "be"
    ]

-- Connections ------------------------------------------------------------------------

newtype Name = Name B.ByteString deriving (Show)

newtype Value = Value B.ByteString deriving (Show)

instance Arbitrary Name where
  arbitrary = Name <$> oneof [elements names, B8.pack <$> listOf1 (elements (['a' .. 'z'] <> ['0' .. '9'] <> "-"))]
    where
      names =
        [":status", ":path", "date", "server", "content-type", "content-length", "cookie", "set-cookie", "x-a", "x-b"]
          <> ["authorization", "etag", "accept-encoding", "vary"]

instance Arbitrary Value where
  arbitrary =
    Value
      <$> frequency
        [ (5, elements ["", "200", "404", "gzip, deflate", "text/html; charset=utf-8", "a", "b"]),
          (2, B8.pack <$> listOf (elements [' ' .. '~'])),
          (1, B.pack <$> arbitrary),
          (1, (`B.replicate` 120) <$> choose (0, 5000))
        ]

-- | Values of SETTINGS_HEADER_TABLE_SIZE that came before a block, and its fields.
data Turn = Turn [Int] [Field] deriving (Show)

instance Arbitrary Turn where
  arbitrary = Turn <$> frequency [(4, pure []), (1, resize 3 (listOf size))] <*> (map (\(Name n, Value v) -> (n, v)) <$> arbitrary)
    where
      size = oneof [elements [0, 32, 64, 100, 4096, 8192], choose (0, 5000)]
  shrink (Turn limits fields) = [Turn l fields | l <- shrinkList (const []) limits] <> [Turn limits f | f <- shrinkList (const []) fields]

-- | The blocks of a connection.
blocksOf :: [Turn] -> [B.ByteString]
blocksOf = snd . mapAccumL turn (newEncoder 4096)
  where
    turn e (Turn limits fields) = let (block, e') = encodeBlock fields (foldl (flip limitEncoder) e limits) in (e', block)

connections :: TestTree
connections =
  testGroup
    "connections"
    [ testProperty "are decoded as they were encoded, while the table's size changes" . mapSize (`div` 3) $ \turns ->
        decodeAll 4096 (blocksOf turns) === Right [fields | Turn _ fields <- turns],
      testProperty "are decoded as they were encoded, if few lists of fields come again and again" . mapSize (`div` 10) $ \(a, b, c) ->
        forAll (listOf ((,) <$> frequency [(9, pure []), (1, (: []) <$> choose (0, 4096))] <*> frequency [(6, pure a), (2, pure b), (1, pure c)])) $ \chosen ->
          let turns = [Turn limits fields | (limits, Turn _ fields) <- chosen]
           in decodeAll 4096 (blocksOf turns) === Right [fields | Turn _ fields <- turns],
      testCase "of the Python package hpack, in both directions" $ do
        (found, _, _) <- readProcessWithExitCode python ["-c", "import hpack"] "" `catch` \e -> const (pure (ExitFailure 1, "", "")) (e :: IOException)
        skipUnless "python3-hpack is not installed" (found == ExitSuccess)
        stories <- generate (vectorOf 60 (resize 12 (listOf1 arbitrary))) :: IO [[Turn]]
        let ours = map blocksOf stories
            commands = concat [("new" : map (("d " <>) . toHex) blocks) <> ("new" : concatMap encodings story) | (story, blocks) <- zip stories ours]
        (code, out, err) <- readProcessWithExitCode "timeout" ["120", python, "-c", peer] (unlines commands)
        when (code /= ExitSuccess) (assertFailure err)
        let answers = splitBy (map length ours) (lines out)
        forM_ (zip stories answers) $ \(story, (theirs, blocks)) -> do
          theirs @?= [written fields | Turn _ fields <- story]
          decodeAll 4096 (map hex blocks) @?= Right [fields | Turn _ fields <- story]
    ]
  where
    python = "/usr/bin/python3"
    -- Its encoder announces the last size alone, so that it gets one in a turn.
    encodings (Turn limits fields) = ["s " <> show (min 4096 l) | l <- take 1 limits] <> ["e " <> written fields]
    written fields = intercalate "," [toHex name <> ":" <> toHex value | (name, value) <- fields]
    splitBy [] _ = []
    splitBy (n : rest) answers = let (a, (b, more)) = splitAt n <$> splitAt n answers in (a, b) : splitBy rest more
    peer =
      unlines
        [ "import sys, hpack",
          "for line in sys.stdin:",
          "    command, _, rest = line.rstrip('\\n').partition(' ')",
          "    if command == 'new':",
          "        d, e = hpack.Decoder(max_header_list_size=1 << 30), hpack.Encoder()",
          "    elif command == 's':",
          "        e.header_table_size = int(rest)",
          "    elif command == 'd':",
          "        print(','.join(n.hex() + ':' + v.hex() for n, v in d.decode(bytes.fromhex(rest), raw=True)))",
          "    else:",
          "        print(e.encode([tuple(map(bytes.fromhex, f.split(':'))) for f in rest.split(',') if f]).hex())"
        ]

toHex :: B.ByteString -> String
toHex = concatMap (\c -> [intToDigit (fromIntegral (c `shiftR` 4)), intToDigit (fromIntegral (c .&. 15))]) . B.unpack

-- Hostile blocks ---------------------------------------------------------------------

hostile :: TestTree
hostile =
  testGroup
    "hostile blocks"
    [ testProperty "a block that is cut off has a part of the fields, or is an error" . mapSize (`div` 8) $ \turns (NonNegative seed) -> forAll (listOf arbitrary) $ \more ->
        let fields = [(n, v) | (Name n, Value v) <- more]
            blocks = blocksOf (turns <> [Turn [] fields])
         in conjoin
              [ case decodeAll 4096 (init blocks <> [B.take n (last blocks)]) of
                  Left fault -> fault === Truncated
                  Right found -> last found === take (length (last found)) fields
                | n <- spread 40 seed (B.length (last blocks))
              ],
      testProperty "a block with one bit changed stays within the limits" . mapSize (`div` 8) $ \turns (NonNegative seed) ->
        let block = B.concat (blocksOf turns)
         in conjoin [bounded 4096 (flipped n block) | n <- spread 60 seed (B.length block * 8)],
      testProperty "any bytes stay within the limits" $ \bytes -> bounded 200 (B.pack bytes),
      testCase "references to a large field are not kept beyond the limit" $ do
        let block = hex "40 01 78 7f a1 1e" <> B.replicate 4000 97 <> B.replicate 60000 0xbe
        case decodeBlock 65536 block (newDecoder 4096) of
          Left fault -> assertFailure (describe fault)
          Right (found, d) -> do
            length (decodedFields found) @?= 65536 `div` 4033
            decodedSize found @?= 60001 * 4033
            tableSize d @?= 4033,
      testCase "fields that are larger than the table empty it" $ do
        let block = hex "40 01 78 01 79 40 01 78 7f 81 1f" <> B.replicate 4096 97
        fmap (tableSize . snd) (either (const Nothing) Just (decodeBlock unlimited block (newDecoder 4096))) @?= Just 0
        assertBool "an index of the empty table" (isLeft (decodeOne (block <> hex "be"))),
      testCase "a table of 2^31 bytes is refused" $ decodeOne (hex "3f e1 ff ff ff 07") @?= Left (SizeUpdateTooLarge 2147483648)
    ]
  where
    -- At most so many numbers below another one, at equal distances.
    spread :: Int -> Int -> Int -> [Int]
    spread most seed end = let step = end `div` most + 1 in [seed `mod` step, seed `mod` step + step .. end - 1]
    flipped n block = let (front, back) = B.splitAt (n `div` 8) block in front <> B.cons (B.head back `xor` bit (n `mod` 8)) (B.tail back)
    bounded limit block = case decodeBlock limit block (newDecoder 4096) of
      Left fault -> counterexample (describe fault) (not (null (describe fault)))
      Right (found, d) ->
        let size = sum (map fieldSize (decodedFields found))
         in counterexample (show found) (size <= limit && (size == decodedSize found || decodedSize found > limit) && tableSize d <= 4096)
