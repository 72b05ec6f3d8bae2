{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Warp.Guard": what it hands on, and what it refuses, however the bytes are cut.
module Spec.Guard (tests) where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Warp (Limits (..), Refusal (..), defaultLimits)
import Weft.Warp.Guard

tests :: TestTree
tests =
  testGroup
    "guard"
    [ testProperty "requests in order go through, each in pieces of its own" $
        forAll (resize 20 (listOf1 request)) $ \requests -> forAll (cuts (B.concat (map whole requests))) $ \pieces ->
          let (delivered, end) = run defaultLimits pieces
           in end === Nothing .&&. together requests delivered,
      testProperty "of a bad request nothing but what is before it goes through" $
        forAll (resize 20 (listOf request)) $ \good -> forAll (elements bad) $ \(_, refusal, bytes) ->
          forAll (cuts (B.concat (map whole good) <> bytes)) $ \pieces ->
            let (delivered, end) = run defaultLimits pieces
             in end === Just refusal .&&. B.isPrefixOf (B.concat delivered) (B.concat (map whole good) <> bytes) === True,
      testGroup "is refused" [testCase what (snd (run defaultLimits [bytes]) @?= Just refusal) | (what, refusal, bytes) <- bad],
      testGroup "is not" [testCase what (snd (run defaultLimits [bytes]) @?= Nothing) | (what, bytes) <- fine],
      testProperty "the limits, to the byte" $ \(Positive n) (NonNegative d) ->
        let limits = defaultLimits {limitTarget = 200 + n, limitHead = 300 + 2 * n, limitFields = 5}
            line len = "GET /" <> C.replicate (len - 16) 'x' <> " HTTP/1.1\r\n"
            ofHead len = "GET / HTTP/1.1\r\nHost: h\r\nA: " <> C.replicate (len - 32) 'x' <> "\r\n\r\n"
            fields k = "GET / HTTP/1.1\r\nHost: h\r\n" <> B.concat (replicate (k - 1) "A: b\r\n") <> "\r\n"
            ends bytes = snd (run limits [bytes])
         in conjoin
              [ ends (line (200 + n)) === Nothing,
                ends (line (201 + n + d)) === Just TargetTooLong,
                ends (ofHead (300 + 2 * n)) === Nothing,
                ends (ofHead (301 + 2 * n + d)) === Just HeadTooLarge,
                ends (C.replicate (201 + n + d) 'x') === Just TargetTooLong,
                ends (fields 5) === Nothing,
                ends (fields (6 + d)) === Just HeadTooLarge
              ],
      testProperty "a zero byte and half a line end are refused anywhere in a value, other bytes are not" $
        forAll (choose (0, 40)) $ \before -> forAll (choose (0, 20)) $ \behind byte ->
          let bytes = head' ("A: " <> C.replicate before 'x' <> B.singleton byte <> C.replicate behind 'y')
           in forAll (oneof [pure [bytes], cuts bytes]) $ \pieces ->
                snd (run defaultLimits pieces) === if byte `elem` [0, 10, 13] then Just BadRequest else Nothing,
      testProperty "methods and names are tokens" $ \byte ->
        let refused bytes = snd (run defaultLimits [bytes]) === if byte `B.elem` tokens then Nothing else Just BadRequest
         in conjoin
              [ refused ("G" <> B.singleton byte <> "T / HTTP/1.1\r\nHost: h\r\n\r\n"),
                byte == 58 .||. refused (head' ("A" <> B.singleton byte <> "B: c"))
              ],
      testCase "HTTP/2 is handed on" $
        run defaultLimits ["PRI * HT", "TP/2.0\r\n\r\nSM\r\n\r\n\0\0\0", "\4\0\0\n:"]
          @?= (["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0", "\4\0\0\n:"], Nothing)
    ]

-- | The bytes of a token (RFC 9110, 5.6.2).
tokens :: ByteString
tokens = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

-- | What is handed on of pieces that come one after the other, and the refusal that ended it.
run :: Limits -> [ByteString] -> ([ByteString], Maybe Refusal)
run limits = go newGuard
  where
    go guard pieces = case step limits guard of
      Deliver bytes later -> let (more, end) = go later pieces in (bytes : more, end)
      Refuse refusal -> ([], Just refusal)
      More later -> case pieces of
        [] -> ([], Nothing)
        p : ps -> go (feed p later) ps

-- | A request that is in order: its head, and its body as it travels.
data Good = Good ByteString ByteString
  deriving (Show)

whole :: Good -> ByteString
whole (Good h b) = h <> b

-- | Each head came in one piece, and no piece is of two requests.
together :: [Good] -> [ByteString] -> Property
together (Good h body : rest) (d : ds) = d === h .&&. bodyOf body ds
  where
    bodyOf "" more = together rest more
    bodyOf left (p : more)
      | Just behind <- B.stripPrefix p left, not (B.null p) = bodyOf behind more
    bodyOf left more = counterexample (show (left, take 1 more)) False
together [] [] = property True
together good delivered = counterexample (show (good, delivered)) False

request :: Gen Good
request = do
  method <- elements ["GET", "POST", "PUT", "HEAD", "M-SEARCH"]
  path <- elements ["/", "/a/b?c=d", "*", "http://example.org/%00", "/\xe9"]
  others <- resize 20 . listOf $ elements ["Accept: */*", "X-Empty:", "x~'a:\t b ", "Cookie: a=b; c=\"d:e\"", "Expect: 100-continue"]
  body <- B.pack <$> scale (* 3) arbitrary
  (field, bytes) <-
    elements
      =<< sequence
        [ pure ([], ""),
          pure (["Content-LENGTH:  " <> C.pack (show (B.length body)) <> "\t"], body),
          (,) ["transfer-encoding: Chunked"] <$> chunked body,
          pure (["Content-Length: 0"], "")
        ]
  fields <- shuffle (["hOsT: example.org"] <> field <> others)
  pure (Good (B.concat ([method, " ", path, " HTTP/1.1\r\n"] <> map (<> "\r\n") fields <> ["\r\n"])) bytes)

chunked :: ByteString -> Gen ByteString
chunked body = do
  pieces <- filter (not . B.null) <$> cuts body
  extension <- elements ["", ";name=value", " ; a=\"b\""]
  trailer <- elements ["", "Trailer: yes\r\n"]
  pure (B.concat [size (B.length p) <> extension <> "\r\n" <> p <> "\r\n" | p <- pieces] <> "0" <> extension <> "\r\n" <> trailer <> "\r\n")
  where
    size n = C.pack (hex n)
    hex n = (if n >= 16 then hex (n `div` 16) else "") <> [("0123456789aBcDeF" :: String) !! (n `mod` 16)]

-- | Bytes, cut into pieces, none of them empty.
cuts :: ByteString -> Gen [ByteString]
cuts bytes
  | B.null bytes = pure []
  | otherwise = do
    n <- frequency [(3, choose (1, 4)), (3, choose (1, 40)), (1, pure (B.length bytes))]
    (B.take n bytes :) <$> cuts (B.drop n bytes)

-- | What is refused, and why.
bad :: [(String, Refusal, ByteString)]
bad =
  [ ("a bare LF after the request line", BadRequest, "GET / HTTP/1.1\nHost: h\r\n\r\n"),
    ("a bare LF after a field", BadRequest, "GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n"),
    ("a bare LF at the end", BadRequest, "GET / HTTP/1.1\r\nHost: h\r\n\n"),
    ("a bare CR in a value", BadRequest, head' "A: b\rc: d"),
    ("a CR before the line's end", BadRequest, head' "A: b\r"),
    ("a zero byte in a value", BadRequest, head' "A: b\0c"),
    ("a zero byte in the target", BadRequest, "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a folded field", BadRequest, head' "A: b\r\n c"),
    ("a field folded with a tab", BadRequest, head' "A: b\r\n\tc"),
    ("a fold before the first field", BadRequest, "GET / HTTP/1.1\r\n Host: h\r\n\r\n"),
    ("a space before the colon", BadRequest, head' "Content-Length : 3"),
    ("a tab before the colon", BadRequest, head' "A\t: 3"),
    ("no colon", BadRequest, head' "A"),
    ("no name", BadRequest, head' ": b"),
    ("a name with a bracket", BadRequest, head' "A[1]: b"),
    ("no host", BadRequest, "GET / HTTP/1.1\r\nA: b\r\n\r\n"),
    ("two hosts", BadRequest, head' "host: i"),
    ("a length and a coding", BadRequest, head' "Content-Length: 3\r\nTransfer-Encoding: chunked"),
    ("a coding and a length", BadRequest, head' "Transfer-Encoding: chunked\r\nContent-Length: 3"),
    ("two lengths", BadRequest, head' "Content-Length: 3\r\nContent-Length: 3"),
    ("two lengths in one", BadRequest, head' "Content-Length: 3, 3"),
    ("a length with a sign", BadRequest, head' "Content-Length: +3"),
    ("a negative length", BadRequest, head' "Content-Length: -3"),
    ("an empty length", BadRequest, head' "Content-Length:"),
    ("a hexadecimal length", BadRequest, head' "Content-Length: 0x3"),
    ("a length beyond all", BadRequest, head' "Content-Length: 99999999999999999999"),
    ("two codings", BadRequest, head' "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
    ("an unknown coding", UnknownCoding, head' "Transfer-Encoding: gzip"),
    ("an unknown coding before the known", UnknownCoding, head' "Transfer-Encoding: gzip, chunked"),
    ("the coding misspelt", UnknownCoding, head' "Transfer-Encoding: xchunked"),
    ("a coding in HTTP/1.0", BadRequest, "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("two spaces", BadRequest, "GET  / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a space in the target", BadRequest, "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("no version", BadRequest, "GET /\r\n"),
    ("no method", BadRequest, " / HTTP/1.1\r\n"),
    ("a method that is none", BadRequest, "G(T / HTTP/1.1\r\n"),
    ("version 2 without its preface", UnknownVersion, "GET / HTTP/2.0\r\n"),
    ("version 1.2", UnknownVersion, "GET / HTTP/1.2\r\n"),
    ("a lower case version", BadRequest, "GET / http/1.1\r\n"),
    ("TLS", BadRequest, "\x16\x03\x01\x02\0\x01\0\n\r\n"),
    ("a chunk's size that is none", BadRequest, chunks "x\r\n"),
    ("a chunk's size with a sign", BadRequest, chunks "+3\r\n"),
    ("a chunk's size beyond all", BadRequest, chunks "ffffffffffffffffffff\r\n"),
    ("a chunk's size ended by LF", BadRequest, chunks "3\nabc\r\n"),
    ("a chunk's extension ended by LF", BadRequest, chunks "3;a\nabc\r\n"),
    ("a chunk that is longer than its size", BadRequest, chunks "3\r\nabcd\r\n"),
    ("a chunk ended by LF", BadRequest, chunks "3\r\nabc\n"),
    ("a trailer that is folded", BadRequest, chunks "0\r\n a: b\r\n\r\n"),
    ("a trailer with a bare LF", BadRequest, chunks "0\r\nA: b\n\r\n")
  ]
  where
    chunks rest = head' "Transfer-Encoding: chunked" <> rest

head' :: ByteString -> ByteString
head' fields = "POST / HTTP/1.1\r\nHost: h\r\n" <> fields <> "\r\n\r\n"

-- | What only looks bad.
fine :: [(String, ByteString)]
fine =
  [ ("an empty line before a request", "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("no host in HTTP/1.0", "GET / HTTP/1.0\r\n\r\n"),
    ("an empty host", "GET / HTTP/1.1\r\nHost:\r\n\r\n"),
    ("a byte that is no ASCII in a value", head' "A: \xff"),
    ("names like the known ones", head' "Hosx: a\r\nContent-Lengtj: b\r\nTransfer-Encodinh: c")
  ]
