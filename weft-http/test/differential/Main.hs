-- |
-- Description : Sends the same bytes to several HTTP servers
--
-- 2,000 requests, each followed by a second one, go to Weft, nginx, HAProxy, h2o and Node, and to Go and hyper where
-- @make bench-peers@ has built them. Weft must not accept a request that two of the others refuse, nor read two
-- requests where two others read one, nor accept fewer than all of them. Intended differences have a line in
-- "Differences" and in @doc\/http.md@. If one of the first four is missing, nothing is compared.
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
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit (Assertion, assertBool, assertFailure)
import Weft.Http (withApplication)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skip, testCase)

main :: IO ()
main = do
  asked <- lookupEnv "WEFT_DIFFERENTIAL"
  let (seed, count) = maybe (1, 2000) (read . (\s -> "(" <> s <> ")")) asked
      all' = cases seed count
  (missing, quickly) <- look 400000 all'
  -- On a busy machine a server may take longer than that. So what would fail is looked at again, with more time.
  let doubtful = [c | r@(Row c _ _) <- quickly, surprising r]
      enough = not (any (peerNeeded . fst) missing)
  (missingThen, slowly) <- if enough && not (null doubtful) then look 5000000 doubtful else pure ([], [])
  let table = Map.fromListWith (flip (++)) [(caseName c, [r]) | r@(Row c _ _) <- if null missingThen then merged quickly slowly else quickly]
  documented <- C.readFile "../doc/http.md"
  defaultMain . testGroup "differential" $
    [testCase ("compared with " <> peerName peer) (skip reason) | (peer, reason) <- missing]
      ++ [ testGroup "requests" [compared enough name (judge name rows) | (name, rows) <- Map.toList table],
           testGroup "documented" [testCase (differenceCase d) (isDocumented documented d) | d <- differences],
           testGroup "still needed" [compared enough (differenceCase d) (isNeeded (null missing) table d) | d <- differences]
         ]
  where
    compared enough name judged = testCase name (if enough then judged else skip "the servers are compared only if nginx, HAProxy, h2o and Node are here")
    why p reason = (p, reason)
    row c w others n = Row c w [(peer, seen !! n) | (peer, seen) <- others]
    -- What all servers do, and the servers that are missing. The time for a response is in microseconds.
    look quiet some = do
      weft <- withApplication (pure pong) (observeAll quiet some)
      (missing, others) <-
        partitionEithers <$> forM peers (\p -> either (Left . why p) (\seen -> Right (peerName p, seen)) <$> withPeer p (observeAll quiet some))
      pure (missing, [row c w others n | (n, c, w) <- zip3 [0 ..] some weft])
    merged (r : rs) later | surprising r = take 1 later ++ merged rs (drop 1 later)
    merged (r : rs) later = r : merged rs later
    merged [] _ = []

-- | Responds like the peers, after the whole body was received.
pong :: Application
pong request respond = consume >> respond (responseLBS status200 [] (L.pack "Pong!"))
  where
    consume = getRequestBodyChunk request >>= \piece -> unless (C.null piece) consume

-- | One request, what Weft did, and the others.
data Row = Row Case Observed [(String, Observed)]

-- | Send all cases, sixteen at a time, with the given number of microseconds for a response. The results are in the
-- order of the cases.
observeAll :: Int -> [Case] -> Int -> IO [Observed]
observeAll quiet all' port = do
  places <- newQSem 16
  forConcurrently all' $ \c ->
    bracket_ (waitQSem places) (signalQSem places) (observe port 2 quiet (caseBytes c <> second))

-- | How a row differs: Weft accepted more requests than two of the others did, or fewer than any of them.
direction :: Row -> Maybe Direction
direction (Row _ w others) = case sort (map (accepted . snd) others) of
  _ : next : _ | accepted w > next -> Just Laxer
  least : _ | accepted w < least -> Just Stricter
  _ -> Nothing

-- | The row differs in a direction that is not intended.
surprising :: Row -> Bool
surprising r@(Row c _ _) = maybe False (`notElem` allowed (caseName c)) (direction r)

-- | The intended differences of a kind of case.
allowed :: String -> [Direction]
allowed name = [differenceDirection d | d <- differences, differenceCase d == name]

judge :: String -> [Row] -> Assertion
judge name rows = case [(d, r) | r <- rows, Just d <- [direction r], d `notElem` allowed name] of
  [] -> pure ()
  (d, r) : more -> assertFailure (show d <> " than the others" <> counted (length more) <> ":\n" <> describe r)
  where
    counted n = if n == 0 then "" else " (and " <> show n <> " more like it)"

describe :: Row -> String
describe (Row c w others) =
  intercalate "\n" (show (C.take 300 (caseBytes c)) : [name <> ": " <> show seen | (name, seen) <- ("weft", w) : others])

isDocumented :: C.ByteString -> Difference -> Assertion
isDocumented text d =
  assertBool "doc/http.md does not name it" (C.pack ("`" <> differenceCase d <> "`") `C.isInfixOf` text)

-- | The difference shows beside the peers that are always there, or beside all of them, if all of them are here.
isNeeded :: Bool -> Map.Map String [Row] -> Difference -> Assertion
isNeeded allHere table d
  | any differs (rows >>= \r -> [always r, r]) = pure ()
  | allHere = assertFailure "no request shows this difference any more"
  | otherwise = skip "this difference shows only beside Go's and hyper's servers (make bench-peers)"
  where
    rows = Map.findWithDefault [] (differenceCase d) table
    differs = (== Just (differenceDirection d)) . direction
    always (Row c w others) = Row c w [(name, seen) | (name, seen) <- others, name `elem` map peerName (filter peerNeeded peers)]
