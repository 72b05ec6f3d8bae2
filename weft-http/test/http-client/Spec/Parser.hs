{-# LANGUAGE OverloadedStrings #-}

-- |
-- Tests of the pure parsers of responses, written from RFC 9112 and RFC 9110.
module Spec.Parser (tests) where

import Control.Monad (forM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Network.HTTP.Types (Header)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Http.Limits
import Weft.Http.Parser.Head (start)
import Weft.Http.Parser.Response
import Weft.Http.Parser.ResponseBody

tests :: TestTree
tests =
  testGroup
    "responses"
    [ testCase "framings (RFC 9112, 6.3)" $ do
        whole False "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi" @?= Whole 200 True "hi" [] ""
        whole False "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi!" @?= Whole 200 True "hi" [] "!"
        whole False "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\nhi\r\n1;a=\"b\"\r\n!\r\n0\r\nA: 1\r\nContent-Length: 3\r\nB: 2\r\n\r\nx" @?= Whole 200 True "hi!" [("A", "1"), ("B", "2")] "x"
        whole False "HTTP/1.1 200 OK\r\n\r\nto the end" @?= Whole 200 False "to the end" [] ""
        whole False "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n" @?= Whole 204 True "" [] ""
        whole False "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n" @?= Whole 304 True "" [] ""
        whole True "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" @?= Whole 200 True "" [] ""
        whole True "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" @?= Whole 200 True "" [] ""
        whole False "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200" @?= Whole 100 True "" [] "HTTP/1.1 200",
      testCase "persistence (RFC 9112, 9.3)" $ do
        let persists h = case whole False (h <> "Content-Length: 0\r\n\r\n") of
              Whole _ p _ _ _ -> Just p
              _ -> Nothing
        map persists ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nConnection: te, Close\r\n", "HTTP/1.0 200 OK\r\n", "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\n", "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: close\r\n"]
          @?= [Just True, Just False, Just False, Just True, Just False],
      testCase "a status line may lack its reason, and have any that is text" $
        forM_ ["HTTP/1.1 200\r\n", "HTTP/1.1 200 \r\n", "HTTP/1.1 200 a b\tc\xe9\r\n", "HTTP/1.7 200 OK\r\n"] $ \line ->
          whole False (line <> "Content-Length: 0\r\n\r\n") @?= Whole 200 True "" [] "",
      testCase "a length may have blanks around it, and zeros in front, which are not passed on" $
        forM_ ["Content-Length: \t 2 \t\r\n", "Content-Length: 002\r\n"] $ \fields -> do
          whole False (ok <> fields <> "\r\nhi") @?= Whole 200 True "hi" [] ""
          fieldsOf (ok <> fields <> "\r\n") @?= Just [("Content-Length", "2")],
      testGroup
        "refused"
        [ testCase (show bytes) (whole False bytes @?= Refused why)
          | (why, shapes) <- malformed,
            bytes <- shapes
        ],
      testCase "limits on bytes and on fields, of heads and of trailer sections" $ do
        let fields n = B.concat (replicate n "A: b\r\n")
            chunkedThen rest = ok <> "Transfer-Encoding: chunked\r\n\r\n0\r\n" <> rest
        whole False (ok <> fields 19 <> "Content-Length: 0\r\n\r\n") @?= Whole 200 True "" [] ""
        whole False (ok <> fields 20 <> "Content-Length: 0\r\n\r\n") @?= Refused TooManyFields
        whole False (ok <> "A: " <> C.replicate 1024 'x') @?= Refused TooManyFields
        whole False ("HTTP/1.1 200 " <> C.replicate 1024 'x') @?= Refused TooManyFields
        whole False (chunkedThen (fields 20 <> "\r\n")) @?= Whole 200 True "" (replicate 20 ("A", "b")) ""
        whole False (chunkedThen (fields 21 <> "\r\n")) @?= Refused TooManyFields
        whole False (chunkedThen ("A: " <> C.replicate 1024 'x')) @?= Refused TooManyFields
        whole False (ok <> "Transfer-Encoding: chunked\r\n\r\n" <> B.concat (replicate 40 ("1;" <> C.replicate 1000 'x' <> "\r\nx\r\n"))) @?= Refused BadChunk,
      testCase "every beginning of a response is incomplete, unless the end of the connection ends it" $
        forM_ [ok <> "Content-Length: 2\r\n\r\nhi", ok <> "Transfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\nA: b\r\n\r\n", "HTTP/1.1 204 \r\n\r\n"] $ \bytes ->
          forM_ [0 .. B.length bytes - 1] $ \n -> whole False (B.take n bytes) @?= Unfinished,
      testProperty "the segments in which a response comes change nothing" $
        forAll responses $ \bytes -> forAll (cutsOf bytes) $ \pieces ->
          counterexample (show pieces) $ \toHead -> run toHead pieces === run toHead [bytes],
      testProperty "a response in single bytes is the same response" $
        forAll responses $ \bytes toHead -> run toHead (map B.singleton (B.unpack bytes)) === run toHead [bytes],
      testProperty "any bytes give a result" $ \bytes toHead -> let r = run toHead [B.pack bytes] in r === r
    ]

ok :: ByteString
ok = "HTTP/1.1 200 OK\r\n"

-- | What two recipients could interpret differently, and what is not HTTP.
malformed :: [(Violation, [ByteString])]
malformed =
  [ ( NoStatusLine,
      [ "\r\nHTTP/1.1 200 OK\r\n\r\n",
        "HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1  200 OK\r\n\r\n",
        "HTTP/1.1 20 OK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 099 OK\r\n\r\n",
        "HTTP/1.1 +20 OK\r\n\r\n",
        "HTTP/1.1 200-OK\r\n\r\n",
        "HTTP/1.1 200 O\0K\r\n\r\n",
        "HTTP/1.1 200 O\rK\r\n\r\n",
        "http/1.1 200 OK\r\n\r\n",
        "HTTP/1.10 200 OK\r\n\r\n",
        "HTTP/1,1 200 OK\r\n\r\n",
        "SSH-2.0-OpenSSH_9.2\r\n",
        "SSH-2.0-OpenSSH_9.2",
        "HTTQ",
        "\0",
        "HTTP 200 OK\r\n\r\n",
        "\r\n\r\n"
      ]
    ),
    (OtherVersion, ["HTTP/2.0 200 OK\r\n\r\n", "HTTP/0.9 200 OK\r\n\r\n"]),
    ( BadField,
      map
        (ok <>)
        [ " Folded: no\r\n\r\n",
          "A: b\r\n folded\r\n\r\n",
          "A: b\r\n\tfolded\r\n\r\n",
          "Content-Length : 2\r\n\r\nhi",
          "Transfer-Encoding\t: chunked\r\n\r\n",
          ": empty\r\n\r\n",
          "no colon\r\n\r\n",
          "A\0: b\r\n\r\n",
          "A: b\0\r\n\r\n",
          "A: b\rContent-Length: 2\r\n\r\n",
          "A: b\nContent-Length: 2\r\n\r\n",
          "A: b\r\n\n",
          "A: b\r\r\n\r\n",
          "A(): b\r\n\r\n"
        ]
    ),
    ( BadFraming,
      map
        (ok <>)
        [ "Content-Length: 2\r\nContent-Length: 3\r\n\r\nhi!",
          "Content-Length: 2\r\ncontent-length: 2\r\n\r\nhi",
          "Content-Length: 2, 2\r\n\r\nhi",
          "Content-Length: 2, 3\r\n\r\nhi!",
          "Content-Length: 2,\r\n\r\nhi",
          "Content-Length: +2\r\n\r\nhi",
          "Content-Length: -2\r\n\r\nhi",
          "Content-Length: 0x2\r\n\r\nhi",
          "Content-Length: 2 2\r\n\r\nhi",
          "Content-Length: \r\n\r\nhi",
          "Content-Length: 9223372036854775808\r\n\r\nhi",
          "Content-Length: 18446744073709551618\r\n\r\nhi",
          "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
          "Transfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
          "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        ]
        <> ["HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"]
    ),
    (OtherCoding, map (\coding -> ok <> "Transfer-Encoding: " <> coding <> "\r\n\r\n") ["gzip", "gzip, chunked", "chunked, gzip", "identity", "chunked;a=b", "xchunked", ""]),
    ( BadChunk,
      map
        ((ok <> "Transfer-Encoding: chunked\r\n\r\n") <>)
        [ "2\nhi\r\n0\r\n\r\n",
          "2\r\nhi0\r\n\r\n",
          "2\r\nhi\n0\r\n\r\n",
          "2 x\r\nhi\r\n0\r\n\r\n",
          "0x2\r\nhi\r\n0\r\n\r\n",
          "+2\r\nhi\r\n0\r\n\r\n",
          "-2\r\nhi\r\n0\r\n\r\n",
          "\r\n",
          "g\r\n",
          "10000000000000002\r\nhi\r\n0\r\n\r\n",
          "2\rX\nhi\r\n0\r\n\r\n"
        ]
    ),
    (BadField, map ((ok <> "Transfer-Encoding: chunked\r\n\r\n0\r\n") <>) ["A : b\r\n\r\n", " folded\r\n\r\n", "A: b\n\n", "no colon\r\n\r\n"])
  ]

-- | What came of a string, at whose end the connection ends.
data Result
  = -- | Status, persistence, body, trailer fields, and what is behind.
    Whole Int Bool ByteString [Header] ByteString
  | Refused Violation
  | Unfinished
  deriving (Eq, Show)

-- | The result for a string.
whole :: Bool -> ByteString -> Result
whole toHead bytes = run toHead [bytes]

limits :: Limits
limits = defaultLimits {limitHead = 1024, limitFields = 20}

-- | Receive segments one after the other.
run :: Bool -> [ByteString] -> Result
run toHead = heads start B.empty
  where
    heads resume held pieces = case resumeResponse limits toHead resume held of
      ResponseInvalid why -> Refused why
      ResponseIncomplete next -> case pieces of
        [] -> Unfinished
        piece : others -> heads next (held <> piece) others
      ResponseComplete h -> bodies h (placeFor (headResponseFraming h)) [] (B.drop (headResponseEnd h) held) pieces
    bodies h place got held pieces = case advance limits place held of
      Broken why -> Refused why
      Piece piece rest next -> bodies h next (piece : got) rest pieces
      Complete fields rest -> finished h got fields (B.concat (rest : pieces))
      Needs rest next -> case pieces of
        [] | endsWithConnection next -> finished h got [] B.empty
        [] -> Unfinished
        piece : others -> bodies h next got (rest <> piece) others
    finished h got = Whole (headStatus h) (headPersists h) (B.concat (reverse got))

fieldsOf :: ByteString -> Maybe [Header]
fieldsOf bytes = case resumeResponse limits False start bytes of
  ResponseComplete h -> Just (headResponseFields h)
  _ -> Nothing

-- | Responses, most of them nearly right.
responses :: Gen ByteString
responses = do
  status <- elements ["HTTP/1.1 200 OK\r\n", "HTTP/1.1 204\r\n", "HTTP/1.0 200 OK\r\n", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"]
  fields <- B.concat <$> resize 6 (listOf (elements ["Content-Length: 7\r\n", "Transfer-Encoding: chunked\r\n", "Connection: close\r\n", "A: b\r\n", "B:  c d \r\n", "Set-Cookie: x=y; z\r\n", "C\r\n"]))
  body <- elements ["", "content", "7\r\ncontent\r\n0\r\n\r\n", "3;a=b\r\ncon\r\n4\r\ntent\r\n0\r\nT: u\r\nV: w\r\n\r\nmore", "7\r\ncontentX"]
  let bytes = status <> fields <> "\r\n" <> body
  mutation <- frequency [(3, pure id), (1, changed bytes), (1, dropped bytes), (1, flooded)]
  pure (mutation bytes)
  where
    changed bytes = do
      i <- choose (0, B.length bytes - 1)
      c <- elements "\r\n \t:;,0aA\0"
      pure (\b -> B.take i b <> C.singleton c <> B.drop (i + 1) b)
    dropped bytes = do
      i <- choose (0, B.length bytes - 1)
      pure (\b -> B.take i b <> B.drop (i + 1) b)
    flooded = (\n b -> "HTTP/1.1 200 OK\r\n" <> B.concat (replicate n "Long: field with a value\r\n") <> b) <$> choose (0, 60)

-- | A string in segments.
cutsOf :: ByteString -> Gen [ByteString]
cutsOf bytes
  | B.null bytes = pure []
  | otherwise = do
    n <- frequency [(3, choose (1, 8)), (1, choose (1, B.length bytes))]
    (B.take n bytes :) <$> cutsOf (B.drop n bytes)
