-- |
-- Description : Sends the same bytes to several HTTP servers
--
-- Some 2,000 requests, each followed by a second one, go to Weft, nginx, Node, Go and hyper. Weft must not accept a
-- request that two of the others refuse, nor read two requests where two others read one. Intended differences have a
-- line in "Differences" and in @doc\/http.md@. If one of the four peers is missing, everything is skipped
-- (@make bench-peers@ builds two of them).
--
-- @WEFT_DIFFERENTIAL=seed,count@ draws other requests, or more of them.
module Main (main) where

import Control.Concurrent.Async (forConcurrently)
import Control.Concurrent.QSem (newQSem, signalQSem, waitQSem)
import Control.Exception (bracket_)
import Control.Monad (forM, unless)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy.Char8 as L
import Data.Either (partitionEithers)
import Data.List (intercalate, sort)
import qualified Data.Map.Strict as Map
import Differences
import Network.HTTP.Types (status200)
import Network.Wai (Application, getRequestBodyChunk, responseLBS)
import Requests
import Servers
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.HUnit (Assertion, assertBool, assertFailure)
import Weft.Http (withApplication)
import Weft.Test.Skip (skip, testCase)

main :: IO ()
main = do
  asked <- lookupEnv "WEFT_DIFFERENTIAL"
  let (seed, count) = maybe (1, 2000) (read . (\s -> "(" <> s <> ")")) asked
      all' = cases seed count
  weft <- withApplication (pure pong) (observeAll all')
  (missing, others) <-
    partitionEithers <$> forM peers (\p -> either (Left . why p) (\seen -> Right (peerName p, seen)) <$> withPeer p (observeAll all'))
  let table = Map.fromListWith (flip (++)) [(caseName c, [row c w others n]) | (n, c, w) <- zip3 [0 ..] all' weft]
  documented <- C.readFile "../doc/http.md"
  defaultMain . testGroup "differential" $
    [testCase ("compared with " <> peer) (skip reason) | (peer, reason) <- missing]
      ++ if not (null missing)
        then [testGroup "requests" [testCase name (skip "the differences are judged beside all four servers") | name <- Map.keys table]]
        else
          [ testGroup "requests" [testCase name (judge name rows) | (name, rows) <- Map.toList table],
            testGroup "documented" [testCase (differenceCase d) (isDocumented documented d) | d <- differences],
            testGroup "still needed" [testCase (differenceCase d) (isNeeded table d) | d <- differences]
          ]
  where
    why p reason = (peerName p, reason)
    row c w others n = Row c w [(peer, seen !! n) | (peer, seen) <- others]

-- | Responds like the peers, after the whole body was received.
pong :: Application
pong request respond = consume >> respond (responseLBS status200 [] (L.pack "Pong!"))
  where
    consume = getRequestBodyChunk request >>= \piece -> unless (C.null piece) consume

-- | One request, what Weft did, and the others.
data Row = Row Case Observed [(String, Observed)]

-- | In the order of the cases, sixteen at a time.
observeAll :: [Case] -> Int -> IO [Observed]
observeAll all' port = do
  places <- newQSem 16
  forConcurrently all' $ \c ->
    bracket_ (waitQSem places) (signalQSem places) (observe port 2 400000 (caseBytes c <> second))

-- | How a row differs: Weft took more than two others, or less than all.
direction :: Row -> Maybe Direction
direction (Row _ w others) = case sort (map (accepted . snd) others) of
  _ : next : _ | accepted w > next -> Just Laxer
  least : _ | accepted w < least -> Just Stricter
  _ -> Nothing

judge :: String -> [Row] -> Assertion
judge name rows = case [(d, r) | r <- rows, Just d <- [direction r], d `notElem` allowed] of
  [] -> pure ()
  (d, r) : more -> assertFailure (show d <> " than the others" <> counted (length more) <> ":\n" <> describe r)
  where
    allowed = [differenceDirection d | d <- differences, differenceCase d == name]
    counted n = if n == 0 then "" else " (and " <> show n <> " more like it)"

describe :: Row -> String
describe (Row c w others) =
  intercalate "\n" (show (C.take 300 (caseBytes c)) : [name <> ": " <> show seen | (name, seen) <- ("weft", w) : others])

isDocumented :: C.ByteString -> Difference -> Assertion
isDocumented text d =
  assertBool "doc/http.md does not name it" (C.pack ("`" <> differenceCase d <> "`") `C.isInfixOf` text)

isNeeded :: Map.Map String [Row] -> Difference -> Assertion
isNeeded table d =
  assertBool "no request shows this difference any more" $
    any ((== Just (differenceDirection d)) . direction) (Map.findWithDefault [] (differenceCase d) table)
