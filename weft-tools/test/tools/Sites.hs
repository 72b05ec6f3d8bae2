-- | Settings of @weft serve@ that depend on each other: redirects and the spelling of paths, hosts and what they inherit,
-- settings without an effect.
module Sites (tests) where

import Answering (serving)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf)
import Operating (config, has, inFolder)
import Program
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hGetLine)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "sites"
    [ redirects program,
      none program,
      withoutEffect program,
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
          [ ("a host without folder and redirect", ["hosts:", "  a.example: {}"], [], "hosts.a.example: no folder, and no redirect"),
            ("listen and port", ["folder: /tmp", "port: 1", "listen: ':0'"], [], "so --port cannot be given as well"),
            ("--listen and --host", ["folder: /tmp"], ["--listen", ":0", "--host", "127.0.0.1"], "so --host cannot be given as well"),
            ("listen in the file and --port", ["folder: /tmp", "listen: ':0'"], ["--port", "1"], "so --port cannot be given as well"),
            ("a host's certificate with the key of the whole file", ["folder: /tmp", "certificate: /a", "key: /a", "hosts:", "  a.example: {certificate: /b}"], [], "hosts.a.example: a certificate needs its key")
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
  serving program folder ["--basic-auth", folder </> ".users", "--redirect", "/old=/new", "--error-page", "400=/error.html", "--error-page", "401=/error.html"] $ \port -> do
    forM_ [("/old", 302), ("/healthz", 200), ("/metrics", 200)] $ \(path, code) -> get port path >>= (@?= code) . status
    get port "/" >>= answered 401 "page"
    refused <- exchange port (B.pack "GET / HTTP/1.1\r\nHost: a:b:c\r\n\r\n")
    (status refused, body refused == B.pack "page") @?= (400, False)
