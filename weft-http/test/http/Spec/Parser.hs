{-# LANGUAGE OverloadedStrings #-}

-- |
-- The parser of requests: its results and refusals do not depend on how the bytes are split into segments. The suite
-- compiles the parser, since the library hides it.
module Spec.Parser
  ( tests,
    run,
    End (..),
  )
where

import Control.Monad (forM_, unless, when)
import Data.Bits (shiftR)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.CaseInsensitive as CI
import Mutations (firstSeed, mutated, segments)
import Network.HTTP.Types (Header)
import Numeric (showHex)
import Resident
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck
import Weft.Http.Limits (Limits (..), Refusal (..), defaultLimits)
import qualified Weft.Http.Parser.Chunked as Chunked
import Weft.Http.Parser.Head
import Weft.Http.Parser.Host (validHost)

tests :: TestTree
tests =
  testGroup
    "parser"
    [ testProperty "valid requests are parsed, however they are split" $
        forAll (resize 20 (listOf1 request)) $ \requests -> forAll (cuts (B.concat (map goodBytes requests))) $ \pieces ->
          run defaultLimits pieces === (map goodParsed requests, Waiting),
      testProperty "a malformed request is refused, and the requests before it are not" $
        forAll (resize 20 (listOf request)) $ \good -> forAll (elements bad) $ \(_, refusal, bytes) ->
          forAll (cuts (B.concat (map goodBytes good) <> bytes)) $ \pieces ->
            let (parsed, end) = run defaultLimits pieces
             in end === RefusedBy refusal .&&. take (length good) parsed === map goodParsed good,
      testGroup "refused" [testCase what (snd (run defaultLimits [bytes]) @?= RefusedBy refusal) | (what, refusal, bytes) <- bad],
      testGroup "not refused" [testCase what (snd (run defaultLimits [bytes]) @?= Waiting) | (what, bytes) <- fine],
      testProperty "the limits are exact to the byte" limitsToTheByte,
      testProperty "a control character is refused anywhere in a value, other bytes are not" $
        forAll (choose (0, 40)) $ \before -> forAll (choose (0, 20)) $ \behind byte ->
          let bytes = withFields ("A: " <> C.replicate before 'x' <> B.singleton byte <> C.replicate behind 'y')
           in forAll (oneof [pure [bytes], cuts bytes]) $ \pieces ->
                snd (run defaultLimits pieces) === if (byte < 32 && byte /= 9) || byte == 127 then RefusedBy BadRequest else Waiting,
      testProperty "methods and field names are tokens" $ \byte ->
        let refused bytes = snd (run defaultLimits [bytes]) === if byte `B.elem` tokens then Waiting else RefusedBy BadRequest
         in conjoin
              [ refused ("G" <> B.singleton byte <> "T / HTTP/1.1\r\nHost: h\r\n\r\n"),
                byte == 58 .||. refused (withFields ("A" <> B.singleton byte <> "B: c"))
              ],
      testGroup "hosts" [testCase (show host) (validHost host @?= ok) | (ok, hosts) <- [(True, goodHosts), (False, badHosts)], host <- hosts],
      testCase "fields that the server interprets" whatFieldsSay,
      testCase "names of fields are case-insensitive" $
        forM_ ["Host", "hOST", "host", "USER-agent", "X-Unknown", "x-unknown", "Sec-Fetch-Mode", "sec-fetch-mode"] $ \name ->
          case run defaultLimits ["GET / HTTP/1.1\r\nHost: h\r\n" <> (if CI.mk name == "host" then "" else name <> ": v\r\n") <> "\r\n"] of
            ([(h, _)], Waiting) -> unless (CI.mk name == "host") (map (CI.original . fst) (drop 1 (headFields h)) @?= [name])
            other -> assertFailure (show other),
      extensionBudget,
      localOption (mkTimeout 3600000000) (testCase "mutated requests: the same result however they are split" fuzz)
    ]

-- | A body may have 16 KiB of extensions, and as many bytes more as a quarter of its data.
extensionBudget :: TestTree
extensionBudget = testGroup "extensions of all chunks together" (map budget bodies <> [testCase "a body without end" endless])
  where
    budget (name, chunks, expected) = testCase name . forM_ [1000000, 4097, 13, 1] $ \size ->
      (size, snd (run defaultLimits (cut size (withFields "Transfer-Encoding: chunked" <> B.concat (map chunk chunks) <> "0\r\n\r\n")))) @?= (size, expected)
    -- The bytes of its extension, and of its data.
    chunk :: (Int, Int) -> ByteString
    chunk (extension, n) = C.pack (hex n) <> (if extension > 0 then ";" <> C.replicate (extension - 1) 'x' else "") <> "\r\n" <> C.replicate n 'd' <> "\r\n"
    hex n = showHex n ""
    cut n s = if B.null s then [] else B.take n s : cut n (B.drop n s)
    refused = RefusedBy BadRequest
    bodies =
      [ ("four of nearly 4 KiB, and one", replicate 4 (4095, 1) <> [(4, 1)], Waiting),
        ("a byte more", replicate 4 (4095, 1) <> [(5, 1)], refused),
        ("many small ones", replicate 8192 (2, 1), Waiting),
        ("one more small one", replicate 8193 (2, 1), refused),
        ("data that allow two bytes more", replicate 4 (4095, 1) <> [(4, 8), (2, 1)], Waiting),
        ("and no others", replicate 4 (4095, 1) <> [(4, 8), (2, 1), (2, 1)], refused),
        ("data that come too late for them", replicate 4 (4095, 1) <> [(4, 1), (2, 8)], refused),
        ("signatures of 85 bytes, of chunks of 8 KiB", replicate 300 (85, 8192), Waiting)
      ]
    -- The last chunk has extensions, too, and they need not end for the refusal.
    endless = case run defaultLimits (withFields "Transfer-Encoding: chunked" : replicate 1000 (chunk (4000, 1))) of
      ([(_, body)], end) -> (B.length body, end) @?= (4, refused)
      other -> assertFailure (show other)

-- Running it -----------------------------------------------------------------------------

-- | How the parsing of a sequence of requests ends.
data End = Waiting | RefusedBy Refusal | PrefaceOfHttp2
  deriving (Eq, Show)

-- | Parse requests from segments. Returns the parsed requests with their bodies.
run :: Limits -> [ByteString] -> ([(Head, ByteString)], End)
run limits = heads start B.empty
  where
    heads resume have pieces = case resumeHead limits resume have of
      Complete h -> body h (B.drop (headEnd h) have) pieces
      Refused refusal -> ([], RefusedBy refusal)
      Preface -> ([], PrefaceOfHttp2)
      Incomplete resume' -> case pieces of
        [] -> ([], Waiting)
        p : ps -> heads resume' (have <> p) ps
    body h have pieces = case headFraming h of
      NoBody -> done h "" have pieces
      Sized n -> counted h n [] have pieces
      Chunked -> chunks h Chunked.newDecoder [] have pieces
    done h bytes have pieces = let (more, end) = heads start have pieces in ((h {headEnd = 0}, bytes) : more, end)
    counted h n got have pieces
      | B.length have >= n = done h (B.concat (reverse (B.take n have : got))) (B.drop n have) pieces
      | otherwise = case pieces of
        [] -> ([(h {headEnd = 0}, B.concat (reverse (have : got)))], Waiting)
        p : ps -> counted h (n - B.length have) (have : got) p ps
    chunks h decoder got have pieces = case Chunked.decode limits decoder have of
      Chunked.Bytes part rest next -> chunks h next (part : got) rest pieces
      Chunked.End rest -> done h (B.concat (reverse got)) rest pieces
      Chunked.Invalid refusal -> ([(h {headEnd = 0}, B.concat (reverse got))], RefusedBy refusal)
      Chunked.More next -> case pieces of
        [] -> ([(h {headEnd = 0}, B.concat (reverse got))], Waiting)
        p : ps -> chunks h next got p ps

limitsToTheByte :: Positive Int -> NonNegative Int -> Property
limitsToTheByte (Positive n) (NonNegative d) =
  conjoin
    [ ends (line (200 + n)) === Waiting,
      ends (line (201 + n + d)) === RefusedBy TargetTooLong,
      ends (ofHead (300 + 2 * n)) === Waiting,
      ends (ofHead (301 + 2 * n + d)) === RefusedBy HeadTooLarge,
      ends (C.replicate (201 + n + d) 'x') === RefusedBy TargetTooLong,
      ends (fields 5) === Waiting,
      ends (fields (6 + d)) === RefusedBy HeadTooLarge,
      ends (trailers 5) === Waiting,
      ends (trailers (6 + d)) === RefusedBy HeadTooLarge
    ]
  where
    limits = defaultLimits {limitTarget = 200 + n, limitHead = 300 + 2 * n, limitFields = 5}
    line len = "GET /" <> C.replicate (len - 16) 'x' <> " HTTP/1.1\r\n"
    ofHead len = "GET / HTTP/1.1\r\nHost: h\r\nA: " <> C.replicate (len - 32) 'x' <> "\r\n\r\n"
    fields k = "GET / HTTP/1.1\r\nHost: h\r\n" <> B.concat (replicate (k - 1) "A: b\r\n") <> "\r\n"
    trailers k = withFields "Transfer-Encoding: chunked" <> "0\r\n" <> B.concat (replicate k "A: b\r\n") <> "\r\n"
    ends bytes = snd (run limits [bytes])

whatFieldsSay :: Assertion
whatFieldsSay = do
  flagsOf "Connection: close, TE" @?= flagClose
  flagsOf "Connection: TE ,\tClose" @?= flagClose
  flagsOf "Connection: Keep-Alive" @?= flagKeepAlive
  flagsOf "Connection: keep-alive\r\nConnection: close" @?= flagKeepAlive + flagClose
  flagsOf "Expect: 100-Continue\r\nContent-Length: 1" @?= flagExpect
  flagsOf "Expect: 100-continue,, 100-Continue\r\nContent-Length: 1" @?= flagExpect
  flagsOf "Expect: 100-continue" @?= 0
  hostOf "GET http://a.example:80/x?y HTTP/1.1\r\nHost: b\r\n\r\n" @?= Just (Just "a.example:80", "/x", "?y", [("Host", "a.example:80")])
  hostOf "GET HTTP://a?y HTTP/1.1\r\nHost: b\r\n\r\n" @?= Just (Just "a", "/", "?y", [("Host", "a")])
  hostOf "OPTIONS * HTTP/1.1\r\nHost: b\r\n\r\n" @?= Just (Just "b", "*", "", [("Host", "b")])
  hostOf "CONNECT a:1 HTTP/1.1\r\nHost: b\r\n\r\n" @?= Just (Just "a:1", "a:1", "", [("Host", "a:1")])
  run defaultLimits ["PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] @?= ([], PrefaceOfHttp2)
  where
    flagsOf field = case run defaultLimits ["GET / HTTP/1.1\r\nHost: h\r\n" <> field <> "\r\n\r\nx"] of
      ((h, _) : _, _) -> sum [flag | flag <- [flagOld, flagClose, flagKeepAlive, flagExpect], isSet flag (headFlags h)]
      _ -> -1
    hostOf :: ByteString -> Maybe (Maybe ByteString, ByteString, ByteString, [Header])
    hostOf bytes = case run defaultLimits [bytes] of
      ([(h, _)], Waiting) -> Just (headHost h, headPath h, headQuery h, headFields h)
      _ -> Nothing

-- Mutations ------------------------------------------------------------------------------

-- | 100,000 mutations, or the number in @WEFT_FUZZ@. Each has the same result in one piece and in two, every fourth
-- one also in many pieces, and every eighth one byte by byte. The parsed requests are dropped, so memory must not grow.
fuzz :: Assertion
fuzz = do
  count <- maybe 100000 read <$> lookupEnv "WEFT_FUZZ"
  forgetPeak
  before <- resident "VmRSS"
  go (count :: Int) firstSeed
  peak <- resident "VmHWM"
  assertBool ("KiB before and at most: " <> show (before, peak)) (peak - before < 65536)
  where
    go 0 _ = pure ()
    go n seed = do
      let (bytes, seed') = mutated corpus seed
          whole = run limits [bytes]
          cut = fromIntegral (seed' `shiftR` 20) `mod` (B.length bytes + 1)
          same what pieces = let found = run limits pieces in unless (found == whole) (assertFailure (show (what :: String, n, bytes, pieces, whole, found)))
      same "in two" [B.take cut bytes, B.drop cut bytes]
      when (n `mod` 4 == 0) (same "in pieces" (segments seed' bytes))
      when (n `mod` 8 == 0) (same "byte by byte" (map B.singleton (B.unpack bytes)))
      go (n - 1 :: Int) seed'
    limits = defaultLimits {limitTarget = 60, limitHead = 300, limitFields = 6}

corpus :: [ByteString]
corpus =
  [ "GET / HTTP/1.1\r\nHost: h\r\n\r\n",
    "POST /a?b HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: h\r\ntransfer-encoding: chunked\r\n\r\n3;a=\"b\\\"c\" ; d=e\r\nabc\r\n0\r\nA: b\r\n\r\n",
    "GET http://h/x HTTP/1.1\r\nHost: [::1]:80\r\nConnection: close, te\r\n\r\n",
    "OPTIONS * HTTP/1.0\r\n\r\n",
    "\r\nHEAD /%00 HTTP/1.1\r\nHost: 1.2.3.4\r\nRange: bytes=0-9, -10\r\nExpect: 100-continue\r\n\r\n"
  ]

-- Requests -------------------------------------------------------------------------------

-- | A valid request: its bytes, and the result of parsing it.
data Good = Good {goodBytes :: ByteString, goodParsed :: (Head, ByteString)}
  deriving (Show)

request :: Gen Good
request = do
  method <- elements ["GET", "POST", "PUT", "HEAD", "M-SEARCH"]
  (target, path, query) <- elements [("/", "/", ""), ("/a/b?c=d", "/a/b", "?c=d"), ("/\xe9?", "/\xe9", "?"), ("http://example.org/%00", "/%00", "")]
  others <- resize 20 . listOf $ elements [("Accept", "*/*"), ("X-Empty", ""), ("x~'a", "b "), ("Cookie", "a=b; c=\"d:e\""), ("ACCEPT-encoding", "gzip")]
  body <- B.pack <$> scale (* 3) arbitrary
  (field, bytes, framing) <-
    elements
      =<< sequence
        [ pure ([], "", NoBody),
          pure ([("Content-LENGTH", number body)], body, if B.null body then NoBody else Sized (B.length body)),
          (\b -> ([("transfer-encoding", "Chunked")], b, Chunked)) <$> chunkedBody body,
          pure ([("Content-Length", "0")], "", NoBody)
        ]
  fields <- shuffle ([("hOsT", "example.org")] <> field <> others)
  blank <- elements ["", " ", "\t ", "  "]
  let written (name, value) = name <> ":" <> blank <> value <> blank <> "\r\n"
      parsed =
        Head
          { headMethod = method,
            headPath = path,
            headQuery = query,
            headFlags = 16 + (if framing == Chunked then 32 else 0) + (if method == "HEAD" then flagHead else 0),
            headFraming = framing,
            headFields = [(CI.mk name, trim value) | (name, value) <- fields],
            headHost = Just "example.org",
            headRange = Nothing,
            headReferer = Nothing,
            headUserAgent = Nothing,
            headEnd = 0
          }
  pure (Good (B.concat ([method, " ", target, " HTTP/1.1\r\n"] <> map written fields <> ["\r\n", bytes])) (parsed, if framing == NoBody then "" else body))
  where
    number = C.pack . show . B.length
    trim = C.dropWhileEnd (== ' ')

chunkedBody :: ByteString -> Gen ByteString
chunkedBody body = do
  pieces <- filter (not . B.null) <$> cuts body
  extension <- elements ["", ";name=value", " ; a=\"b\"", ";a;b = \"\\\"\t\";c=d"]
  trailer <- elements ["", "Trailer: yes\r\n"]
  pure (B.concat [C.pack (hex (B.length p)) <> extension <> "\r\n" <> p <> "\r\n" | p <- pieces] <> "0" <> extension <> "\r\n" <> trailer <> "\r\n")
  where
    hex n = (if n >= 16 then hex (n `div` 16) else "") <> [("0123456789aBcDeF" :: String) !! (n `mod` 16)]

-- | Bytes, split into non-empty pieces.
cuts :: ByteString -> Gen [ByteString]
cuts bytes
  | B.null bytes = pure []
  | otherwise = do
    n <- frequency [(3, choose (1, 4)), (3, choose (1, 40)), (1, pure (B.length bytes))]
    (B.take n bytes :) <$> cuts (B.drop n bytes)

-- | The bytes of a token (RFC 9110, 5.6.2).
tokens :: ByteString
tokens = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

goodHosts, badHosts :: [ByteString]
goodHosts = ["h", "a.b-c.d", "a_b", "1.2.3.4", "h:80", "h:", "[::1]", "[::1]:8080", "[2001:db8::1.2.3.4]", "[1:2:3:4:5:6:7:8]", "[v1.a:b]", "a%20b", "xn--mnchen-3ya.de"]
badHosts = ["", " ", "a b", "x,y", "[::1", "::1", "a:b:c", "h:65536", "h:8 0", "h:x", ":80", "a%2", "a%zz", "a/b", "a@b", "a?b", "a#b", "[::1]x", "[1:2:3]", "[1::2::3]", "[12345::]", "[::1.2.3.256]", "[fe80::1%25eth0]", "\xe9.de", "a\\b"]

-- | Bytes that are refused, and the reason.
bad :: [(String, Refusal, ByteString)]
bad =
  [ ("a bare LF after the request line", BadRequest, "GET / HTTP/1.1\nHost: h\r\n\r\n"),
    ("a bare LF after a field", BadRequest, "GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n"),
    ("a bare LF at the end", BadRequest, "GET / HTTP/1.1\r\nHost: h\r\n\n"),
    ("a bare LF before the request", BadRequest, "\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("many empty lines before the request", BadRequest, B.concat (replicate 5 "\r\n") <> "GET / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a bare CR in a value", BadRequest, withFields "A: b\rc: d"),
    ("a CR before the line's end", BadRequest, withFields "A: b\r"),
    ("a zero byte in a value", BadRequest, withFields "A: b\0c"),
    ("a zero byte in the target", BadRequest, "GET /\0 HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a fragment in the target", BadRequest, "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a target that is not a path", BadRequest, "GET a HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("an authority where none may be", BadRequest, "GET h:80 HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a star where none may be", BadRequest, "GET * HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("the preface's method in HTTP/1.1", BadRequest, "PRI * HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a path for CONNECT", BadRequest, "CONNECT / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("an authority without a port for CONNECT", BadRequest, "CONNECT h HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("another scheme", BadRequest, "GET ftp://h/ HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a bad host in the target", BadRequest, "GET http://x,y/ HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("no host in the target", BadRequest, "GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a user in the target", BadRequest, "GET http://u@h/ HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a folded field", BadRequest, withFields "A: b\r\n c"),
    ("a field folded with a tab", BadRequest, withFields "A: b\r\n\tc"),
    ("a fold before the first field", BadRequest, "GET / HTTP/1.1\r\n Host: h\r\n\r\n"),
    ("a space before the colon", BadRequest, withFields "Content-Length : 3"),
    ("a tab before the colon", BadRequest, withFields "A\t: 3"),
    ("no colon", BadRequest, withFields "A"),
    ("no name", BadRequest, withFields ": b"),
    ("a name with a bracket", BadRequest, withFields "A[1]: b"),
    ("no host", BadRequest, "GET / HTTP/1.1\r\nA: b\r\n\r\n"),
    ("two hosts", BadRequest, withFields "host: i"),
    ("an empty host", BadRequest, "GET / HTTP/1.1\r\nHost:\r\n\r\n"),
    ("a host with a blank", BadRequest, "GET / HTTP/1.1\r\nHost: a b\r\n\r\n"),
    ("a host with a comma", BadRequest, "GET / HTTP/1.1\r\nHost: x,y\r\n\r\n"),
    ("a bad host in HTTP/1.0", BadRequest, "GET / HTTP/1.0\r\nHost: [::1\r\n\r\n"),
    ("a length and a coding", BadRequest, withFields "Content-Length: 3\r\nTransfer-Encoding: chunked"),
    ("a coding and a length", BadRequest, withFields "Transfer-Encoding: chunked\r\nContent-Length: 3"),
    ("two lengths", BadRequest, withFields "Content-Length: 3\r\nContent-Length: 3"),
    ("two lengths in one", BadRequest, withFields "Content-Length: 3, 3"),
    ("a length and a comma", BadRequest, withFields "Content-Length: 3,"),
    ("a length with a sign", BadRequest, withFields "Content-Length: +3"),
    ("a negative length", BadRequest, withFields "Content-Length: -3"),
    ("an empty length", BadRequest, withFields "Content-Length:"),
    ("a hexadecimal length", BadRequest, withFields "Content-Length: 0x3"),
    ("a length with a blank inside", BadRequest, withFields "Content-Length: 1 2"),
    ("a length of 2^63", BadRequest, withFields "Content-Length: 9223372036854775808"),
    ("a length of 2^64 + 3", BadRequest, withFields "Content-Length: 18446744073709551619"),
    ("two codings", BadRequest, withFields "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
    ("an unknown coding", UnknownCoding, withFields "Transfer-Encoding: gzip"),
    ("an unknown coding before the known one", UnknownCoding, withFields "Transfer-Encoding: gzip, chunked"),
    ("a misspelt coding", UnknownCoding, withFields "Transfer-Encoding: xchunked"),
    ("an empty coding", UnknownCoding, withFields "Transfer-Encoding:"),
    ("a coding in HTTP/1.0", BadRequest, "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("an unknown expectation", UnknownExpectation, withFields "Expect: 200-ok"),
    ("an unknown expectation after the known one", UnknownExpectation, withFields "Expect: 100-continue, 200-ok"),
    ("two spaces", BadRequest, "GET  / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a tab for a space", BadRequest, "GET\t/ HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a space in the target", BadRequest, "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("a space after the version", BadRequest, "GET / HTTP/1.1 \r\nHost: h\r\n\r\n"),
    ("no version", BadRequest, "GET /\r\n"),
    ("no method", BadRequest, " / HTTP/1.1\r\n"),
    ("a method that is not a token", BadRequest, "G(T / HTTP/1.1\r\n"),
    ("version 2 without its preface", UnknownVersion, "GET / HTTP/2.0\r\n"),
    ("version 1.2 without a host", BadRequest, "GET / HTTP/1.2\r\n\r\n"),
    ("version 3.0", UnknownVersion, "GET / HTTP/3.0\r\n"),
    ("a version of three digits", BadRequest, "GET / HTTP/1.10\r\n"),
    ("a lower case version", BadRequest, "GET / http/1.1\r\n"),
    ("TLS", BadRequest, "\x16\x03\x01\x02\0\x01\0"),
    ("a chunk's size that is not a number", BadRequest, chunks "x\r\n"),
    ("a chunk's size with a sign", BadRequest, chunks "+3\r\n"),
    ("a chunk's size with a prefix", BadRequest, chunks "0x3\r\n"),
    ("an empty size", BadRequest, chunks "\r\n"),
    ("a blank before the size", BadRequest, chunks " 3\r\n"),
    ("a blank after the size", BadRequest, chunks "3 \r\nabc\r\n"),
    ("a chunk's size that does not fit a word", BadRequest, chunks "ffffffffffffffffffff\r\n"),
    ("a chunk's size ended by LF", BadRequest, chunks "3\nabc\r\n"),
    ("a chunk's size ended by CR", BadRequest, chunks "3\rabc\r\n"),
    ("an extension without a semicolon", BadRequest, chunks "3 foo\r\nabc\r\n"),
    ("an extension without a name", BadRequest, chunks "3;\r\nabc\r\n"),
    ("an extension without a value", BadRequest, chunks "3;a=\r\nabc\r\n"),
    ("an extension's open quotes", BadRequest, chunks "3;a=\"b\r\nabc\r\n"),
    ("text after an extension's quotes", BadRequest, chunks "3;a=\"b\"c\r\nabc\r\n"),
    ("a chunk's extension ended by LF", BadRequest, chunks "3;a\nabc\r\n"),
    ("an endless extension", BadRequest, chunks ("3;" <> C.replicate 5000 'a')),
    ("a chunk that is longer than its size", BadRequest, chunks "3\r\nabcd\r\n"),
    ("a chunk ended by LF", BadRequest, chunks "3\r\nabc\n"),
    ("a trailer that is folded", BadRequest, chunks "0\r\n a: b\r\n\r\n"),
    ("a trailer with a bare LF", BadRequest, chunks "0\r\nA: b\n\r\n"),
    ("a trailer that is a request", BadRequest, chunks "0\r\nGET / HTTP/1.1\r\n\r\n"),
    ("a trailer without a name", BadRequest, chunks "0\r\n: b\r\n\r\n")
  ]
  where
    chunks rest = withFields "Transfer-Encoding: chunked" <> rest

withFields :: ByteString -> ByteString
withFields fields = "POST / HTTP/1.1\r\nHost: h\r\n" <> fields <> "\r\n\r\n"

-- | Valid bytes that look malformed.
fine :: [(String, ByteString)]
fine =
  [ ("an empty line before a request", "\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n"),
    ("no host in HTTP/1.0", "GET / HTTP/1.0\r\n\r\n"),
    ("a byte outside ASCII in a value", withFields "A: \xff"),
    ("a tab in a value", withFields "A: b\tc"),
    ("blanks and tabs around a length", withFields "Content-Length:\t 3 \t" <> "abc"),
    ("leading zeros of a length", withFields "Content-Length: 003" <> "abc"),
    ("leading zeros of a size", withFields "Transfer-Encoding: chunked" <> "0003\r\nabc\r\n0\r\n\r\n"),
    ("names that differ in one letter from known ones", withFields "Hosx: a\r\nContent-Lengtj: b\r\nTransfer-Encodinh: c")
  ]
