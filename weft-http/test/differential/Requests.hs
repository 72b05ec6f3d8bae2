{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Requests that servers may interpret differently
--
-- A case is the bytes of one request, with the name of its kind. The sender appends a second, plain request, so that
-- the number of responses shows where a server believes that the first one ends. Everything is derived from a seed.
module Requests
  ( Case (..),
    cases,
    second,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as C
import System.Random (StdGen, mkStdGen, randomR, split)

-- | A request, and what it is about.
data Case = Case
  { -- | The group and the variant, as @host/empty@: what 'Differences' and @doc\/http.md@ name.
    caseName :: !String,
    caseBytes :: !ByteString
  }

-- | The plain request that follows each case.
second :: ByteString
second = "GET /second HTTP/1.1\r\nHost: localhost\r\n\r\n"

-- | A part of a request: its first line, its fields, and what follows them.
data Parts = Parts ByteString [ByteString] ByteString

-- | The given number of cases: every variant in turn, each time among other harmless fields.
cases :: Int -> Int -> [Case]
cases seed count = take count (concat (zipWith round' [0 :: Int ..] (generators (mkStdGen seed))))
  where
    round' n g = zipWith (dress n) (generators g) variants
    generators g = let (a, b) = split g in a : generators b

-- | The first time as it is; later among fields, and with a path, drawn at random.
dress :: Int -> StdGen -> (String, Parts) -> Case
dress n g (name, Parts first fields body) = Case name (C.intercalate "\r\n" (line : around) <> "\r\n\r\n" <> body)
  where
    line = if n == 0 then first else C.intercalate path (splitOn "/p" first)
    (path, g') = drawPath g
    around = if n == 0 then fields else before ++ fields ++ after
    (before, g'') = drawFields g'
    (after, _) = drawFields g''

splitOn :: ByteString -> ByteString -> [ByteString]
splitOn mark bytes = case C.breakSubstring mark bytes of
  (a, b)
    | C.null b -> [a]
    | otherwise -> [a, C.drop (C.length mark) b]

drawPath :: StdGen -> (ByteString, StdGen)
drawPath g = let (i, g') = randomR (0, length paths - 1) g in (paths !! i, g')
  where
    paths = ["/p", "/p/q", "/p?x=1", "/p%20q", "/p/./q", "/p;v=1", "/p?a=b&c=%2F"]

drawFields :: StdGen -> ([ByteString], StdGen)
drawFields g = go count g1
  where
    (count, g1) = randomR (0, 3 :: Int) g
    go 0 h = ([], h)
    go k h =
      let (i, h') = randomR (0, length harmless - 1) h
          (rest, h'') = go (k - 1) h'
       in (harmless !! i : rest, h'')
    harmless =
      [ "Accept: */*",
        "User-Agent: differential/1.0",
        "Accept-Encoding: gzip, br",
        "X-Empty:",
        "X-Padded:   padded\t ",
        "Cookie: a=b; c=\"d\"",
        "Cache-Control: no-cache",
        "X-Symbols: !#$%&'*+-.^_`|~ (x) <y>"
      ]

-- | Every variant, with the group's name before it.
variants :: [(String, Parts)]
variants =
  concat
    [ group "plain" plainRequests,
      group "request-line" (map (\(n, l) -> (n, Parts l [host] "")) requestLines),
      group "line-end" lineEnds,
      group "field-name" (map (\(n, f) -> (n, get [host, f])) fieldNames),
      group "field-value" (map (\(n, v) -> (n, get [host, "X-Value: " <> v])) fieldValues),
      group "host" hosts,
      group "content-length" (map (\(n, fs, b) -> (n, post fs b)) contentLengths),
      group "transfer-encoding" (map (\(n, fs, b) -> (n, post fs b)) transferEncodings),
      group "chunk" (map (fmap (post [chunked])) chunks),
      group "connection" connections,
      group "expect" expectations
    ]
  where
    group prefix = map (\(n, p) -> (prefix <> "/" <> n, p))

host, chunked :: ByteString
host = "Host: localhost"
chunked = "Transfer-Encoding: chunked"

get :: [ByteString] -> Parts
get fields = Parts "GET /p HTTP/1.1" fields ""

post :: [ByteString] -> ByteString -> Parts
post fields = Parts "POST /echo HTTP/1.1" (host : fields)

plainRequests :: [(String, Parts)]
plainRequests =
  [ ("get", get [host]),
    ("get-many-fields", get (host : ["X-" <> C.pack (show n) <> ": v" | n <- [1 .. 40 :: Int]])),
    ("delete", Parts "DELETE /p HTTP/1.1" [host] ""),
    ("options-asterisk", Parts "OPTIONS * HTTP/1.1" [host] ""),
    ("absolute-form", Parts "GET http://localhost/p HTTP/1.1" [host] ""),
    ("post-length", post ["Content-Length: 5"] "hello"),
    ("post-empty", post ["Content-Length: 0"] ""),
    ("post-chunked", post [chunked] "5\r\nhello\r\n0\r\n\r\n"),
    ("post-chunked-twice", post [chunked] "5\r\nhello\r\n7;a=b\r\n, world\r\n0\r\n\r\n"),
    ("post-trailers", post [chunked, "Trailer: X-Sum"] "5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n"),
    ("get-with-length", get [host, "Content-Length: 0"])
  ]

requestLines :: [(String, ByteString)]
requestLines =
  [ ("two-blanks", "GET  /p HTTP/1.1"),
    ("two-blanks-before-version", "GET /p  HTTP/1.1"),
    ("tab", "GET\t/p HTTP/1.1"),
    ("blank-first", " GET /p HTTP/1.1"),
    ("blank-last", "GET /p HTTP/1.1 "),
    ("no-version", "GET /p"),
    ("no-target", "GET HTTP/1.1"),
    ("version-0.9", "GET /p HTTP/0.9"),
    ("version-1.2", "GET /p HTTP/1.2"),
    ("version-2.0", "GET /p HTTP/2.0"),
    ("version-11.1", "GET /p HTTP/11.1"),
    ("version-1.10", "GET /p HTTP/1.10"),
    ("version-lower-case", "GET /p http/1.1"),
    ("version-misspelled", "GET /p HTTQ/1.1"),
    ("method-lower-case", "get /p HTTP/1.1"),
    ("method-with-colon", "GE:T /p HTTP/1.1"),
    ("method-with-brackets", "GE(T) /p HTTP/1.1"),
    ("method-long", C.replicate 40 'M' <> " /p HTTP/1.1"),
    ("target-without-slash", "GET p HTTP/1.1"),
    ("target-fragment", "GET /p#f HTTP/1.1"),
    ("target-control", "GET /p\x01q HTTP/1.1"),
    ("target-delete", "GET /p\x7fq HTTP/1.1"),
    ("target-nul", "GET /p\0q HTTP/1.1"),
    ("target-high", "GET /p\xc3\xa9 HTTP/1.1"),
    ("target-backslash", "GET /p\\q HTTP/1.1"),
    ("target-quotes", "GET /p\"q\" HTTP/1.1"),
    ("target-bad-percent", "GET /p%zz HTTP/1.1"),
    ("target-asterisk", "GET * HTTP/1.1"),
    ("authority-form", "GET localhost:80 HTTP/1.1"),
    ("preface-of-http2", "PRI * HTTP/1.1"),
    ("method-empty", " /p HTTP/1.1")
  ]

lineEnds :: [(String, Parts)]
lineEnds =
  [ ("lf-after-request-line", Parts "GET /p HTTP/1.1\nHost: localhost" [] ""),
    ("lf-after-field", get ["Host: localhost\nX-A: b"]),
    ("cr-in-field", get [host, "X-A: b\rX-B: c"]),
    ("cr-cr-lf", get [host, "X-A: b\r"]),
    ("cr-in-request-line", Parts "GET /p HTTP/1.1\r" [host] ""),
    ("empty-line-first", Parts "\r\nGET /p HTTP/1.1" [host] ""),
    ("two-empty-lines-first", Parts "\r\n\r\nGET /p HTTP/1.1" [host] ""),
    ("lf-first", Parts "\nGET /p HTTP/1.1" [host] ""),
    ("cr-first", Parts "\rGET /p HTTP/1.1" [host] "")
  ]

fieldNames :: [(String, ByteString)]
fieldNames =
  [ ("blank-before-colon", "X-A : b"),
    ("tab-before-colon", "X-A\t: b"),
    ("blank-inside", "X A: b"),
    ("empty", ": b"),
    ("no-colon", "X-A"),
    ("fold", "X-A: b\r\n c"),
    ("fold-tab", "X-A: b\r\n\tc"),
    ("blank-first", " X-A: b"),
    ("control", "X\x01: b"),
    ("nul", "X\0: b"),
    ("high", "X\xe9: b"),
    ("brackets", "X(A): b"),
    ("slash", "X/A: b"),
    ("at", "X@A: b"),
    ("quote", "\"X\": b"),
    ("underscore", "X_A: b"),
    ("symbols", "!#$%&'*+-.^_`|~: b")
  ]

fieldValues :: [(String, ByteString)]
fieldValues =
  [ ("nul", "a\0b"),
    ("control", "a\x01\&b"),
    ("delete", "a\x7f\&b"),
    ("escape", "a\x1b[0mb"),
    ("vertical-tab", "a\x0b\&b"),
    ("form-feed", "a\x0c\&b"),
    ("tab", "a\tb"),
    ("high", "a\xe9\&b"),
    ("utf-8", "\xe2\x82\xac"),
    ("colon", "a:b:c")
  ]

hosts :: [(String, Parts)]
hosts =
  [ ("missing", get ["X-A: b"]),
    ("twice-same", get [host, host]),
    ("twice-different", get [host, "Host: other"]),
    ("missing-1.0", Parts "GET /p HTTP/1.0" ["X-A: b"] "")
  ]
    ++ [(name, get ["Host:" <> value]) | (name, value) <- values]
    ++ [("absolute-" <> name, Parts ("GET http://" <> C.dropWhile (== ' ') value <> "/p HTTP/1.1") [host] "") | (name, value) <- values, not (C.any (== '\t') value)]
  where
    values =
      [ ("empty", ""),
        ("blank-inside", " a b"),
        ("comma", " x,y"),
        ("bracket-open", " [::1"),
        ("bracket-close", " ::1]"),
        ("colons", " a:b:c"),
        ("port-letters", " a:http"),
        ("port-empty", " a:"),
        ("port-large", " a:99999"),
        ("port-negative", " a:-1"),
        ("ipv6", " [::1]:80"),
        ("ipv6-bad", " [::g]:80"),
        ("slash", " a/b"),
        ("at", " user@a"),
        ("fragment", " a#b"),
        ("query", " a?b"),
        ("backslash", " a\\b"),
        ("underscore", " a_b"),
        ("percent", " a%20b"),
        ("high", " \xc3\xa9.example"),
        ("control", " a\x01"),
        ("quote", " \"a\""),
        ("bracket-angle", " <a>"),
        ("tab-before", "\ta")
      ]

contentLengths :: [(String, [ByteString], ByteString)]
contentLengths =
  [ ("twice-same", ["Content-Length: 5", "Content-Length: 5"], "hello"),
    ("twice-different", ["Content-Length: 5", "Content-Length: 6"], "hello"),
    ("list-same", ["Content-Length: 5, 5"], "hello"),
    ("list-different", ["Content-Length: 5, 6"], "hello"),
    ("plus", ["Content-Length: +5"], "hello"),
    ("minus", ["Content-Length: -5"], "hello"),
    ("hexadecimal", ["Content-Length: 0x5"], "hello"),
    ("two-numbers", ["Content-Length: 5 5"], "hello"),
    ("leading-zeros", ["Content-Length: 0005"], "hello"),
    ("fraction", ["Content-Length: 5.0"], "hello"),
    ("exponent", ["Content-Length: 5e0"], "hello"),
    ("quoted", ["Content-Length: \"5\""], "hello"),
    ("empty", ["Content-Length:"], ""),
    ("letters", ["Content-Length: five"], "hello"),
    ("overflow", ["Content-Length: 18446744073709551621"], "hello"),
    ("padded", ["Content-Length: \t5 \t"], "hello"),
    ("vertical-tab", ["Content-Length: \x0b\&5"], "hello"),
    ("with-blank-before-colon", ["Content-Length : 5"], "hello"),
    ("with-coding", ["Content-Length: 5", chunked], "5\r\nhello\r\n0\r\n\r\n"),
    ("with-coding-first", [chunked, "Content-Length: 5"], "5\r\nhello\r\n0\r\n\r\n"),
    ("underscore", ["Content_Length: 5"], "")
  ]

transferEncodings :: [(String, [ByteString], ByteString)]
transferEncodings =
  [ (name, ["Transfer-Encoding:" <> value], body)
    | (name, value) <-
        [ ("upper-case", " CHUNKED"),
          ("tab", "\tchunked"),
          ("padded", "  chunked \t"),
          ("vertical-tab", " \x0b\&chunked"),
          ("twice-in-list", " chunked, chunked"),
          ("identity", " identity"),
          ("identity-last", " chunked, identity"),
          ("identity-first", " identity, chunked"),
          ("gzip-first", " gzip, chunked"),
          ("gzip", " gzip"),
          ("misspelled", " xchunked"),
          ("longer", " chunkedx"),
          ("quoted", " \"chunked\""),
          ("parameter", " chunked;q=1"),
          ("comma-first", " , chunked"),
          ("comma-last", " chunked,"),
          ("empty", "")
        ]
  ]
    ++ [ ("two-fields", [chunked, chunked], body),
         ("two-fields-identity", ["Transfer-Encoding: identity", chunked], body),
         ("blank-before-colon", ["Transfer-Encoding : chunked"], body),
         ("folded", ["Transfer-Encoding:\r\n chunked"], body)
       ]
  where
    body = "5\r\nhello\r\n0\r\n\r\n"

chunks :: [(String, ByteString)]
chunks =
  [ ("size-upper-case", "A\r\n0123456789\r\n0\r\n\r\n"),
    ("size-leading-zeros", "0005\r\nhello\r\n000\r\n\r\n"),
    ("size-hexadecimal-mark", "0x5\r\nhello\r\n0\r\n\r\n"),
    ("size-plus", "+5\r\nhello\r\n0\r\n\r\n"),
    ("size-minus", "-5\r\nhello\r\n0\r\n\r\n"),
    ("size-underscore", "0_5\r\nhello\r\n0\r\n\r\n"),
    ("size-blank-before", " 5\r\nhello\r\n0\r\n\r\n"),
    ("size-blank-after", "5 \r\nhello\r\n0\r\n\r\n"),
    ("size-tab-after", "5\t\r\nhello\r\n0\r\n\r\n"),
    ("size-empty", "\r\nhello\r\n0\r\n\r\n"),
    ("size-letters", "g\r\nhello\r\n0\r\n\r\n"),
    ("size-overflow", "10000000000000005\r\nhello\r\n0\r\n\r\n"),
    ("size-large", "7fffffffffffffff\r\nhello\r\n0\r\n\r\n"),
    ("size-lf", "5\nhello\r\n0\r\n\r\n"),
    ("size-cr", "5\rhello\r\n0\r\n\r\n"),
    ("size-cr-cr-lf", "5\r\r\nhello\r\n0\r\n\r\n"),
    ("extension-name", "5;a\r\nhello\r\n0\r\n\r\n"),
    ("extension-value", "5;a=b;c=\"d e\"\r\nhello\r\n0\r\n\r\n"),
    ("extension-blanks", "5 ; a = b\r\nhello\r\n0\r\n\r\n"),
    ("extension-without-semicolon", "5 foo\r\nhello\r\n0\r\n\r\n"),
    ("extension-empty", "5;\r\nhello\r\n0\r\n\r\n"),
    ("extension-open-quote", "5;a=\"b\r\nhello\r\n0\r\n\r\n"),
    ("extension-lf", "5;a\nhello\r\n0\r\n\r\n"),
    ("extension-cr", "5;a\rb\r\nhello\r\n0\r\n\r\n"),
    ("extension-nul", "5;a\0\r\nhello\r\n0\r\n\r\n"),
    ("extension-long", "5;" <> C.replicate 20000 'a' <> "\r\nhello\r\n0\r\n\r\n"),
    ("data-longer", "5\r\nhello!\r\n0\r\n\r\n"),
    ("data-lf", "5\r\nhello\n0\r\n\r\n"),
    ("data-no-end", "5\r\nhello0\r\n\r\n"),
    ("last-lf", "5\r\nhello\r\n0\n\n"),
    ("last-extension", "5\r\nhello\r\n0;a=b\r\n\r\n"),
    ("trailer-request", "5\r\nhello\r\n0\r\nGET /index.html HTTP/1.1\r\n\r\n"),
    ("trailer-no-colon", "5\r\nhello\r\n0\r\nX-Sum\r\n\r\n"),
    ("trailer-blank-before-colon", "5\r\nhello\r\n0\r\nX-Sum : 1\r\n\r\n"),
    ("trailer-fold", "5\r\nhello\r\n0\r\nX-Sum: 1\r\n 2\r\n\r\n"),
    ("trailer-nul", "5\r\nhello\r\n0\r\nX-Sum: \0\r\n\r\n"),
    ("trailer-lf", "5\r\nhello\r\n0\r\nX-Sum: 1\n\r\n"),
    ("trailer-length", "5\r\nhello\r\n0\r\nContent-Length: 7\r\n\r\n"),
    ("trailer-coding", "5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n"),
    ("trailer-host", "5\r\nhello\r\n0\r\nHost: other\r\n\r\n")
  ]

connections :: [(String, Parts)]
connections =
  [ (name, Parts line (host : fields) "")
    | (name, line, fields) <-
        [ ("close", now, ["Connection: close"]),
          ("close-upper-case", now, ["Connection: CLOSE"]),
          ("close-in-list", now, ["Connection: close, TE"]),
          ("close-last-in-list", now, ["Connection: TE,close"]),
          ("close-in-second-field", now, ["Connection: TE", "Connection: close"]),
          ("keep-alive", now, ["Connection: keep-alive"]),
          ("both", now, ["Connection: keep-alive, close"]),
          ("other", now, ["Connection: x-other"]),
          ("empty", now, ["Connection:"]),
          ("upgrade-h2c", now, ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"]),
          ("upgrade-unknown", now, ["Connection: Upgrade", "Upgrade: unknown"]),
          ("old", old, []),
          ("old-keep-alive", old, ["Connection: keep-alive"]),
          ("old-close", old, ["Connection: close"])
        ]
  ]
  where
    now = "GET /p HTTP/1.1"
    old = "GET /p HTTP/1.0"

expectations :: [(String, Parts)]
expectations =
  [ ("continue", post ["Expect: 100-continue", "Content-Length: 5"] "hello"),
    ("continue-upper-case", post ["Expect: 100-CONTINUE", "Content-Length: 5"] "hello"),
    ("unknown", post ["Expect: something", "Content-Length: 5"] "hello"),
    ("old-with-coding", Parts "POST /echo HTTP/1.0" [host, chunked] "5\r\nhello\r\n0\r\n\r\n"),
    ("old-with-length", Parts "POST /echo HTTP/1.0" [host, "Content-Length: 5"] "hello")
  ]
