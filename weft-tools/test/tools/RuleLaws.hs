{-# LANGUAGE OverloadedStrings #-}

-- | What is pure of the rules for paths ("Ruled"): which paths a pattern matches and which patterns it covers, and how
-- many requests a rate lets through.
module RuleLaws (tests) where

import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.Int (Int64)
import Data.List (isInfixOf, isPrefixOf)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Core.Time (Instant (..))
import Weft.Test.Skip (testCase)
import Weft.Tools.Serve.Paths
import Weft.Tools.Serve.Rate
import Weft.Tools.Serve.Rules

tests :: TestTree
tests = testGroup "laws" [testGroup "patterns" patterns, testGroup "rates" rateLaws]

patterns :: [TestTree]
patterns =
  [ testCase "a pattern that covers another one matches all that it matches (all of up to five characters)" $ do
      let texts n = if n == 0 then [""] else [c : t | c <- "a/*", t <- texts (n - 1 :: Int)]
          paths = concatMap decodedPaths (concatMap texts [0 .. 4])
          decodedPaths t = ['/' : t | '*' `notElem` t, not ("/" `isPrefixOf` t), not ("//" `isInfixOf` t)]
          known = [(t, p) | t <- map ('/' :) (concatMap texts [0 .. 4]), not ("//" `isInfixOf` t), Right p <- [pathPattern t]]
      assertBool "some patterns" (length known > 25)
      forM_ known $ \(s, a) -> forM_ known $ \(t, b) ->
        when (a `covers` b) $
          forM_ paths $ \path ->
            assertBool (unwords [s, "covers", t, "and not", path]) (not (b `matches` B.pack path) || a `matches` B.pack path),
    testCase "what they match" . forM_ rows $ \(text, yes, no) -> case pathPattern text of
      Left why -> assertFailure why
      Right p -> do
        forM_ yes $ \path -> assertBool (text <> " matches " <> path) (any (matches p) (readings (B.pack path)))
        forM_ no $ \path -> assertBool (text <> " does not match " <> path) (not (any (matches p) (readings (B.pack path)))),
    testCase "what they cover" . forM_ [("/*", "/a", True), ("/a/*", "/a", True), ("/a/*", "/a/b*c", True), ("/a*", "/a/*", True), ("/a/*", "/a*", False), ("/*.js", "/a/*.js", True), ("/a", "/a/", True), ("/a/*", "/*", False), ("/*a*", "/ba/*", True), ("/*.js", "/a/*", False), ("/%61", "/a", True)] $ \(a, b, expected) ->
      (a, b, covers <$> pathPattern a <*> pathPattern b) @?= (a, b, Right expected),
    testCase "an ordinary path has one reading, and is not copied" $
      map readings ["/", "/a/b.c-d_e~f", "*", ""] @?= [["/"], ["/a/b.c-d_e~f"], ["*"], [""]]
  ]
  where
    rows =
      [ ("/admin/*", ["/admin", "/admin/", "/admin/x/y", "//admin///x", "/%61dmin/x", "/%61%64min", "/admin;a=b/x", "/admin%3bx/y", "/admin%2Fx", "/admin\\x", "/admin;"], ["/administrator", "/", "/x/admin/", "/Admin/x"]),
        ("/*.js", ["/a.js", "/x/y.js", "/.js", "/a.j%73", "/a.js;v=1", "/a.js/"], ["/a.jsx", "/ajs"]),
        ("/about", ["/about", "/about/", "/ab%6Fut", "//about"], ["/about/x", "/about.html"]),
        ("/a*b*c", ["/abc", "/axxbyyc", "/abbcc"], ["/acb", "/ab"]),
        ("/*", ["/", "/x", "//"], []),
        ("/caf\233/*", ["/caf%C3%A9/x", "/caf%c3%a9"], ["/cafe/x"]),
        ("/a%2Ab", ["/a*b", "/a%2ab"], ["/axb"])
      ]

rateLaws :: [TestTree]
rateLaws =
  [ testCase "of requests at any times no more are let through than the burst and one in each interval, and one that asks in time always is" . forM_ [Rate 1000000000 1, Rate 100000000 10, Rate 700 3] $ \rate -> do
      let interval = rateInterval rate
          -- A generator of times, from far below the interval to far above it.
          gaps = [x * interval `quot` 500 | x <- map (\n -> (n * n * 7919 + n * 104729) `mod` 997) [1 .. 3000]]
          go _ _ [] = []
          go kept t (g : gs) = case charged rate (t + g) kept of
            Left wait -> assertBoolPure (wait >= 1) (go kept (t + g) gs)
            Right next -> (t + g) : go (Just next) (t + g) gs
          let' = go Nothing 0 gaps
          most a b = fromIntegral (rateBurst rate) + (b - a) `quot` interval
          windows = [(a, b, n) | (i, a) <- zip [0 :: Int ..] (take 300 let'), (j, b) <- take 60 (drop i (zip [0 ..] let')), n <- [fromIntegral (j - i + 1) :: Int64]]
      forM_ windows $ \(a, b, n) -> assertBool (show (a, b, n)) (n <= most a b)
      forM_ (zip (iterate (+ interval) 0) (scanKept rate (take 50 (iterate (+ interval) 0)))) $ \(t, ok) -> assertBool (show t) ok,
    testCase "the seconds to wait are enough" . forM_ ["3/h", "10/m burst 2", "7/s"] $ \text -> case rateOf text of
      Left why -> assertFailure why
      Right rate -> do
        let exhausted t kept = case charged rate t kept of
              Right next -> exhausted t (Just next)
              Left wait -> (wait, kept)
            (wait', kept') = exhausted 5 Nothing
        either (const (assertFailure "still too early")) (const (pure ())) (charged rate (5 + 1000000000 * fromIntegral wait') kept'),
    testCase "clients do not share a limit, and are not forgotten too soon" $ do
      buckets <- newBuckets
      let ask = charge (Rate 1000000000 2) buckets . Instant
      replicateM 3 (ask 0 Nothing) >>= (@?= [Nothing, Nothing, Just 1])
      forM_ [1 .. 2000 :: Int] $ \n -> ask 0 (Just (read ("10.0." <> show (n `div` 250) <> "." <> show (n `mod` 250)))) >>= (@?= Nothing)
      ask 0 Nothing >>= (@?= Just 1)
      ask 1000000000 Nothing >>= (@?= Nothing)
  ]
  where
    assertBoolPure ok rest = if ok then rest else error "a wait of less than a second"
    scanKept rate = snd . foldl step (Nothing, [])
      where
        step (kept, seen) t = case charged rate t kept of
          Left _ -> (kept, seen <> [False])
          Right next -> (Just next, seen <> [True])
