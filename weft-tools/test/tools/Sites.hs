-- | Settings of @weft serve@ that depend on each other: redirects and the spelling of paths, hosts and what they
-- inherit, settings without an effect.
module Sites (tests) where

import Answering (serving)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf)
import Operating (config, has, inFolder)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hGetLine)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "sites"
    [ redirects program,
      redirectRules program,
      none program,
      withoutEffect program,
      everyError program,
      twice program,
      onlyRedirects program,
      exceptions program
    ]

redirects :: FilePath -> TestTree
redirects program = testCase "--redirect: paths are compared decoded, and the target is encoded" . inFolder $ \folder ->
  serving program folder (concatMap (\rule -> ["--redirect", rule]) ["/caf\233=/x", "/%7Eme=/me", "/sub/*=/moved/*", "/to=/\233.txt"]) $ \port -> do
    let leads path target = do
          answer <- get port path
          status answer @?= 302
          has ("Location: " <> target) answer
    leads "/caf%C3%A9" "/x"
    leads "/c%61f%c3%a9?q" "/x?q"
    forM_ ["/~me", "/%7eme", "//~me"] (`leads` "/me")
    forM_ ["/s%75b/a%20b", "//sub/a%20b", "/sub//a%20b"] (`leads` "/moved/a%20b")
    leads "/to" "/%C3%A9.txt"
    leads "/to?\x80<>%41%zz|" "/%C3%A9.txt?%80%3C%3E%41%25zz%7C"
    forM_ ["/caf", "/sub%2Fpage", "/caf%C3%A9/"] $ \path -> get port path >>= (@?= 404) . status

none :: FilePath -> TestTree
none program = testCase "a host turns off the password and the fallback of the whole file" . inFolder $ \folder -> do
  let users = folder </> ".users"
  writeFile users "alice:$2y$05$q/CF38ZqM8E6v69QnSYuqe/rYpY7dj7v2fRI6mkfUOKLZO5CqhA4u\n"
  config folder ["basic-auth: " <> users, "fallback: /index.html", "hosts:", "  a.example: {basic-auth: none, fallback: none}"]
  serving program folder ["--config", folder </> "weft.yaml"] $ \port -> do
    let ask name = exchange port (B.pack ("GET /nothing HTTP/1.1\r\nHost: " <> name <> "\r\nConnection: close\r\n\r\n"))
    ask "a.example" >>= (@?= 404) . status
    ask "c.example" >>= (@?= 401) . status
  serving program folder ["--config", folder </> "weft.yaml", "--basic-auth", "none"] $ \port ->
    get port "/nothing" >>= answered 200 "<p>home</p>"

withoutEffect :: FilePath -> TestTree
withoutEffect program =
  testGroup
    "--check refuses settings without an effect"
    [ testCase name . inFolder $ \folder -> do
        config folder content
        (code, out) <- outcome program [] (["serve", "--config", folder </> "weft.yaml", "--check"] <> options)
        (code, part `isInfixOf` out) @?= (ExitFailure 2, True)
      | (name, content, options, part) <-
          [ ("a host without folder and redirect", ["hosts:", "  a.example: {}"], [], "hosts.a.example: no folder, no redirect, and no proxy"),
            ("listen and port", ["folder: /tmp", "port: 1", "listen: ':0'"], [], "so --port cannot be given as well"),
            ("--listen and --host", ["folder: /tmp"], ["--listen", ":0", "--host", "127.0.0.1"], "so --host cannot be given as well"),
            ("listen in the file and --port", ["folder: /tmp", "listen: ':0'"], ["--port", "1"], "so --port cannot be given as well"),
            ("https-redirect on an address of listen", ["folder: /tmp", "certificate: /a", "key: /a", "listen: ':81'", "https-redirect: '127.0.0.1:81'"], [], "--https-redirect has an address of --listen"),
            ("a host's certificate with the key of the whole file", ["folder: /tmp", "certificate: /a", "key: /a", "hosts:", "  a.example: {certificate: /b}"], [], "hosts.a.example: a certificate needs its key")
          ]
    ]

redirectRules :: FilePath -> TestTree
redirectRules program =
  testGroup
    "a redirect that could not work is refused, with the reason"
    [ testCase rule . inFolder $ \folder -> do
        let refused (code, out) = (code, part `isInfixOf` unwords (words out), out) @?= (ExitFailure 2, True, out)
        outcome program [] ["serve", folder, "--port", "0", "--redirect", rule] >>= refused
        config folder ["folder: /tmp", "redirect: " <> show rule]
        outcome program [] ["serve", "--config", folder </> "weft.yaml", "--check"] >>= refused
      | (rule, part) <-
          [ ("/b/*=https://x/*?z", "expected a * only at the end of the target"),
            ("/*x=/y", "expected a * only at the end of the path"),
            ("/a*b=/c*d", "expected a * only at the end of the path"),
            ("/a/**=/b", "expected a * only at the end of the path"),
            ("/a=/b/*", "so the path has to"),
            ("/a b=/c", "expected a path without blanks"),
            ("/a?x=1=/c", "expected a path without a query"),
            ("a=/c", "expected a path that begins with /")
          ]
    ]

everyError :: FilePath -> TestTree
everyError program = testCase "--check reports every error of a file" . inFolder $ \folder -> do
  let check content expected = do
        config folder content
        (code, out) <- outcome program [] ["serve", "--config", folder </> "weft.yaml", "--check"]
        mapM_ (contains out) expected
        (code, length (lines out)) @?= (ExitFailure 2, length expected)
  check
    ["folder: /tmp", "port: x", "timeout: y", "timeout: z", "redirect: [a, /b=/c, d]", "prot: 1", "index:", "hosts:", "  a.example: {trust: w, cache: v}", "  'b:1': {port: 1}", "  c: 1"]
    [ "yaml:2: port: expected",
      "timeout is given twice",
      "yaml:3: timeout: expected",
      "yaml:5: redirect: expected '/old=/new' or '/old=/new STATUS', not \"a\"; expected '/old=/new' or '/old=/new STATUS', not \"d\"",
      "yaml:6: prot: unknown setting",
      "yaml:7: index: it has no value",
      "hosts.a.example.trust: expected",
      "hosts.a.example.cache: expected",
      "hosts.b:1: expected a host name without a port",
      "hosts.b:1.port: this setting is for the whole server",
      "hosts.c: expected a mapping"
    ]
  check
    ["folder: /tmp", "key: /a", "stack: 'tun:x,10.0.0.1'", "host: 127.0.0.2", "hosts:", "  a.example: {certificate: /b, redirect: /c=/d}"]
    ["a key needs its certificate", "hosts.a.example: a certificate needs its key", "--stack has an address, so --host cannot be given as well"]

twice :: FilePath -> TestTree
twice program =
  testGroup
    "--check refuses what is given twice"
    [ testCase (name <> ": " <> show values) . inFolder $ \folder -> do
        let answers (code, out) = (code, part `isInfixOf` out) @?= (if null part then ExitSuccess else ExitFailure 2, True)
            check content options = config folder content >> outcome program [] (["serve", folder, "--config", folder </> "weft.yaml", "--check"] <> options)
        check [name <> ": " <> show values] [] >>= answers
        check [] (concat [["--" <> name, value] | value <- values]) >>= answers
      | (name, part, values) <-
          [ ("listen", "\":80\" and \"*:80\" cannot both be listened on", ["127.0.0.1:81", ":80", "*:80"]),
            ("listen", "cannot both be listened on", ["127.0.0.1:80", ":80"]),
            ("listen", "cannot both be listened on", ["unix:/tmp/a", "unix:/tmp/a"]),
            ("listen", "", [":0", ":0", "127.0.0.1:80", "127.0.0.1:81", "127.0.0.2:80", "unix:/tmp/a", "unix:/tmp/b"]),
            ("redirect", "\"/a=/b\" and \"/a=/c 301\" are for the same path", ["/a=/b", "/a=/c 301"]),
            ("redirect", "", ["/a/=/b", "/a/*=/b"]),
            ("error-page", "\"404=/a\" and \"404=/index.html\" are for the same status", ["404=/a", "404=/index.html"]),
            ("error-page", "", ["404=/index.html", "403=/index.html"])
          ]
    ]

onlyRedirects :: FilePath -> TestTree
onlyRedirects program = testCase "a host without a folder only redirects; --listen overrides the port of the file" . inFolder $ \folder -> do
  config folder ["port: 1", "hosts:", "  localhost: {redirect: /old=/new}"]
  weft program [] ["serve", "--config", folder </> "weft.yaml", "--listen", "127.0.0.1:0"] $ \p -> do
    line <- hGetLine (output p)
    contains line "weft: serving redirects at http://127.0.0.1:"
    port <- portIn line
    get port "/old" >>= has "Location: /new"
    -- Nor are these files of the folder in which the server was started.
    get port "/weft-tools.cabal" >>= (@?= 404) . status

exceptions :: FilePath -> TestTree
exceptions program = testCase "what needs no password, and what gets no error page, as the help says" . inFolder $ \folder -> do
  writeFile (folder </> "error.html") "page"
  writeFile (folder </> ".users") ""
  (_, out) <- outcome program [] ["serve", "--help"]
  mapM_ (contains (unwords (words out))) ["get the built-in text: 400, 414, 417, 431, 501 and 505", "redirects (--redirect), preflight requests (--cors-origin), /healthz, and /metrics"]
  serving program folder ["--metrics", "loopback", "--basic-auth", folder </> ".users", "--redirect", "/old=/new", "--error-page", "400=/error.html", "--error-page", "401=/error.html"] $ \port -> do
    forM_ [("/old", 302), ("/healthz", 200), ("/metrics", 200)] $ \(path, code) -> get port path >>= (@?= code) . status
    get port "/" >>= answered 401 "page"
    refused <- exchange port (B.pack "GET / HTTP/1.1\r\nHost: a:b:c\r\n\r\n")
    (status refused, body refused == B.pack "page") @?= (400, False)
