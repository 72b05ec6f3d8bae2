-- | Settings of @weft serve@ that depend on each other: redirects and the spelling of paths, hosts and what they inherit,
-- settings without an effect.
module Sites (tests) where

import Answering (serving)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Operating (has, inFolder)
import Program
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "sites"
    [ redirects program
    ]

redirects :: FilePath -> TestTree
redirects program = testCase "--redirect: paths are compared decoded, and the target is encoded" . inFolder $ \folder ->
  serving program folder (concatMap (\rule -> ["--redirect", rule]) ["/caf\233=/x", "/%7Eme=/me", "/sub/*=/moved/*", "/to=/\233.txt"]) $ \port -> do
    let leads path target = do
          answer <- get port path
          status answer @?= 302
          has ("Location: " <> target <> "\r\n") answer
    leads "/caf%C3%A9" "/x"
    leads "/c%61f%c3%a9?q" "/x?q"
    forM_ ["/~me", "/%7eme", "//~me"] (`leads` "/me")
    forM_ ["/s%75b/a%20b", "//sub/a%20b", "/sub//a%20b"] (`leads` "/moved/a%20b")
    leads "/to" "/%C3%A9.txt"
    forM_ ["/caf", "/sub%2Fpage", "/caf%C3%A9/"] $ \path -> get port path >>= (@?= 404) . status
