{-# LANGUAGE OverloadedStrings #-}

-- |
-- A server under pipelines of mutated requests, split into random segments, from clients that close in various ways. A
-- correct client is served all the time, no client gets more responses than it sent requests, and afterwards no
-- connection or descriptor is left.
module Spec.Fuzz (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async
import Control.Exception (IOException, try)
import Control.Monad (unless, void, when)
import Data.Bits (shiftR)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Word (Word64)
import GHC.Clock (getMonotonicTime)
import Mutations
import Resident
import Spec.Parser (run)
import System.Environment (lookupEnv)
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http hiding (run)
import qualified Weft.Http.Limits as Parser (Limits (..), defaultLimits)

tests :: Configuration -> TestTree
tests on = localOption (mkTimeout 600000000) $ testGroup "fuzz" [testOn on "pipelines of mutated requests" pipelines]

-- | Runs for four seconds, or for @WEFT_FUZZ_SECONDS@.
pipelines :: Assertion
pipelines = do
  time <- maybe 4 read <$> lookupEnv "WEFT_FUZZ_SECONDS"
  let options = defaultOptions {optionLimits = Just limits}
      settings = quiet (setTimeout 3 (setHost "127.0.0.1" (setPort 0 defaultSettings)))
  withServerWith options settings application $ \server -> do
    let port = portOf (serverAddress server)
    -- Descriptors that the program opens once exist before they are counted.
    mapConcurrently_ (const (goodTurn port)) [1 .. 16 :: Int]
    noConnections server
    performMajorGC
    descriptors <- openDescriptors
    forgetPeak
    before <- resident "VmRSS"
    until' <- (+ time) <$> getMonotonicTime
    sent <- newIORef (0 :: Int)
    heard <- newIORef (0 :: Int)
    let going act = getMonotonicTime >>= \now -> when (now < until') (act >> going act)
        bad k = do
          seed <- newIORef (iterate next firstSeed !! (1000 * k))
          going $ do
            (requests, answers) <- readIORef seed >>= badTurn port (writeIORef seed)
            atomicModifyIORef' sent (\n -> (n + requests, ()))
            atomicModifyIORef' heard (\n -> (n + answers, ()))
    served <- newIORef (0 :: Int)
    mapConcurrently_ id (going (goodTurn port >> modifyIORef' served (+ 1)) : map bad [1 .. 12])
    noConnections server
    eventually "their descriptors are closed" ((<= descriptors) <$> openDescriptors)
    performMajorGC
    peak <- resident "VmHWM"
    assertBool ("KiB before and at most: " <> show (before, peak)) (peak - before < 131072)
    turns <- readIORef served
    assertBool ("the good client had " <> show turns <> " turns") (fromIntegral turns >= time)
    found <- (,) <$> readIORef sent <*> readIORef heard
    assertBool ("requests and answers: " <> show found) (fst found > 100 && snd found > 50)
    goodTurn port
  where
    limits = defaultLimits {limitTarget = 200, limitHead = 1000, limitFields = 12, limitHeadTime = seconds 3, limitIdle = seconds 3}
    -- The server's limits, for the parser that this suite compiles.
    parserLimits =
      Parser.defaultLimits
        { Parser.limitTarget = limitTarget limits,
          Parser.limitHead = limitHead limits,
          Parser.limitFields = limitFields limits
        }
    badTurn :: Int -> (Word64 -> IO ()) -> Word64 -> IO (Int, Int)
    badTurn port remember seed = do
      let pipeline k s
            | k <= (0 :: Int) = ([], s)
            | otherwise = let (part, s') = mutated corpus s; (more, s'') = pipeline (k - 1) s' in (part : more, s'')
          (parts, seed') = pipeline (1 + fromIntegral (seed `shiftR` 7) `mod` 8) (next seed)
          bytes = B.concat parts
          whole = length (fst (run parserLimits [bytes]))
      remember seed'
      got <- newIORef B.empty
      _ <- try (talk port seed' bytes got) :: IO (Either IOException ())
      answers <- statuses <$> readIORef got
      -- There may be one more: the refusal after the last valid request.
      unless (answers <= whole + 1) (readIORef got >>= \g -> assertFailure (show (answers, whole, bytes, g)))
      pure (whole, answers)

-- | Send bytes in segments that depend on the seed, and receive some or all of the responses.
talk :: Int -> Word64 -> ByteString -> IORef ByteString -> IO ()
talk port seed bytes got = do
  client <- connectTo port
  let pieces = case seed `shiftR` 3 `mod` 4 of
        0 -> [bytes]
        1 -> [B.take half bytes, B.drop half bytes]
        2 -> segments seed bytes
        _ -> [bytes]
      half = fromIntegral (seed `shiftR` 17) `mod` (B.length bytes + 1)
      listen = do
        r <- try (hear client) :: IO (Either IOException ByteString)
        case r of
          Right more | not (B.null more) -> modifyIORef' got (<> more) >> listen
          _ -> pure ()
  sent <- try (mapM_ (\piece -> say client piece >> when (seed `shiftR` 5 `mod` 8 == 0) (threadDelay 300)) pieces) :: IO (Either IOException ())
  case seed `shiftR` 40 `mod` 8 of
    0 -> reset client
    1 -> hangUp client
    2 -> void (try (hear client >>= modifyIORef' got . flip (<>)) :: IO (Either IOException ())) >> reset client
    _ -> do
      _ <- try (finishSaying client) :: IO (Either IOException ())
      listen
      hangUp client
  either (const (pure ())) pure sent

-- | The number of responses, without interim ones.
statuses :: ByteString -> Int
statuses bytes = case B.breakSubstring "HTTP/1.1 " bytes of
  (_, "") -> 0
  (_, rest) -> (if "HTTP/1.1 100" `B.isPrefixOf` rest then 0 else 1) + statuses (B.drop 9 rest)

-- | A correct client: some requests on one connection, with their responses.
goodTurn :: Int -> Assertion
goodTurn port = within 60 "a good client" . withClient port $ \client -> do
  answer <- get client "/hello"
  answerBody answer @?= "hello"
  say client ("POST /count HTTP/1.1\r\nHost: test\r\nContent-Length: 3000\r\n\r\n" <> C.replicate 3000 'x')
  counted <- hearAnswer client
  answerBody counted @?= "3000"
  again <- get client "/large?n=40000"
  answerBody again @?= filler 40000

corpus :: [ByteString]
corpus =
  [ "GET /hello HTTP/1.1\r\nHost: h\r\n\r\n",
    "HEAD /hello?a=b HTTP/1.1\r\nHost: h\r\nUser-Agent: fuzz\r\nAccept: */*\r\n\r\n",
    "POST /count HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
    "POST /count HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nA: b\r\n\r\n",
    "POST /ignored HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\nhello",
    "GET /chunks HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /large?n=9999 HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /fail HTTP/1.1\r\nHost: h\r\n\r\n",
    "GET /hello HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    "GET /hello HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n",
    "POST /count HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\nhello"
  ]
