{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : HTTP/2 clients
--
-- Runs @h2load@ of nghttp2 and reads its summary.
module Weft.Bench.H2load
  ( h2loadTool,
    H2load (..),
    Until (..),
    runH2load,
    runCleartext,
    answering,

    -- * Its summary
    Summary (..),
    parseSummary,
  )
where

import Data.Char (isDigit)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Text.Read (readMaybe)
import Weft.Bench.Child
import Weft.Bench.Server
import Weft.Bench.Types
import Weft.Tools.Proc (cpuSeconds, peakResidentBytes)

h2loadTool :: FilePath
h2loadTool = "h2load"

-- | A load over HTTP/2. Each connection has that many requests in flight.
data H2load = H2load
  { h2Connections :: !Int,
    h2Streams :: !Int,
    h2Path :: !String,
    h2Until :: !Until
  }

-- | For a time in seconds, after which the answers in progress are abandoned; until so many are complete; or a single
-- upload of a file.
data Until = Seconds !Double | Requests !Int | Upload !FilePath

-- | What came of it.
data Summary = Summary
  { -- | Wall-clock time in seconds.
    summarySeconds :: !Double,
    -- | Complete answers.
    summaryAnswers :: !Double
  }
  deriving (Eq, Show)

-- | Put a port under load from these cores, over TLS. Fails if no answer is complete, or one is an error or has not the
-- status 2xx.
runH2load :: Env -> [Int] -> Int -> H2load -> IO Summary
runH2load env cores port = running env cores "https" port []

-- | The same without TLS; the file is the message of a call by gRPC, if there is one.
runCleartext :: Env -> [Int] -> Int -> Maybe FilePath -> H2load -> IO Summary
runCleartext env cores port call = running env cores "http" port (concat [["-d", file, "-H", "content-type: application/grpc", "-H", "te: trailers"] | Just file <- [call]])

-- | What an answer of a server costs, by a function that puts it under load. So many requests are in flight.
answering :: Plan -> Server -> Int -> (Until -> IO Summary) -> IO Metrics
answering plan server inFlight asked = do
  warm <- asked (Seconds (planWarmup plan))
  before <- cpuSeconds (serverPid server)
  -- Abandoned answers would cost CPU time too, so a number of them is asked for.
  result <- asked (Requests (max (2 * inFlight) (ceiling (planDuration plan * summaryAnswers warm / summarySeconds warm))))
  after <- cpuSeconds (serverPid server)
  peak <- peakResidentBytes (serverPid server)
  pure $
    M.fromList
      [ ("cpu_us_per_op", 1e6 * (after - before) / summaryAnswers result),
        ("ops_per_s", summaryAnswers result / summarySeconds result),
        ("max_rss_mb", peak / 1e6)
      ]

running :: Env -> [Int] -> String -> Int -> [String] -> H2load -> IO Summary
running env cores scheme port more load = do
  path <- locate env h2loadTool >>= maybe (failWith "missing: h2load (Debian's package nghttp2-client)") pure
  withChild env (Program path arguments [] cores) (summary [])
  where
    arguments =
      ["-t", "1", "-c", show (h2Connections load), "-m", show (h2Streams load)]
        <> ( case h2Until load of
               Seconds seconds -> ["-D", show (ceiling (1000 * seconds) :: Int) <> "ms"]
               Requests n -> ["-n", show n]
               Upload file -> ["-n", "1", "-d", file]
           )
        <> more
        <> [scheme <> "://127.0.0.1:" <> show port <> h2Path load]
    patience = case h2Until load of
      Seconds seconds -> seconds + 60
      _ -> 300
    summary heard child = do
      line <- hearLine patience child
      let said = heard <> [line]
      if "status codes:" `T.isPrefixOf` line then either failWith pure (parseSummary said) else summary said child

-- | From the lines up to @status codes:@. 'Left' tells of answers that are no good.
parseSummary :: [Text] -> Either Text Summary
parseSummary said = case (found "finished in ", found "requests: ", found "status codes: ") of
  (Just finished, Just requests, Just codes)
    | Just seconds <- parseTime (T.takeWhile (/= ',') finished),
      Just done <- count "done" requests ->
      if done > 0 && all ((== Just 0) . (`count` requests)) ["failed", "errored", "timeout"] && all ((== Just 0) . (`count` codes)) ["3xx", "4xx", "5xx"]
        then Right (Summary seconds done)
        else Left ("h2load: " <> requests <> "; " <> codes)
  _ -> Left ("h2load printed no summary: " <> T.intercalate "; " (take 2 (reverse said)))
  where
    found label = case [rest | line <- said, Just rest <- [T.stripPrefix label line]] of
      first : _ -> Just (T.strip first)
      [] -> Nothing
    count :: Text -> Text -> Maybe Double
    count word text = case [n | part <- T.splitOn "," text, [digits, w] <- [T.words part], w == word, Just n <- [readMaybe (T.unpack digits)]] of
      n : _ -> Just (fromIntegral (n :: Int))
      [] -> Nothing

-- | A time with its unit, as @707.20ms@, in seconds.
parseTime :: Text -> Maybe Double
parseTime text = (*) <$> readMaybe (T.unpack digits) <*> lookup unit [("us", 1e-6), ("ms", 1e-3), ("s", 1)]
  where
    (digits, unit) = T.span (\c -> isDigit c || c == '.') text
