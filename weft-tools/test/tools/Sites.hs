-- | Settings of @weft serve@ that depend on each other: redirects and the spelling of paths, hosts and what they inherit,
-- settings without an effect.
module Sites (tests) where

import Answering (serving)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Operating (config, has, inFolder)
import Program
import System.FilePath ((</>))
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "sites"
    [ redirects program,
      none program
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
