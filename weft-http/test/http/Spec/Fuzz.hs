{-# LANGUAGE OverloadedStrings #-}

-- |
-- A server that gets pipelines of mutated requests, in any segments, from clients that end in any way. A good client beside them is
-- served all the time, no client gets more answers than it sent requests, and nothing is left afterwards.
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

-- | For four seconds, or as many as @WEFT_FUZZ_SECONDS@ says.
pipelines :: Assertion
pipelines = do
  time <- maybe 4 read <$> lookupEnv "WEFT_FUZZ_SECONDS"
  let options = defaultOptions {optionLimits = Just limits}
      settings = quiet (setTimeout 3 (setHost "127.0.0.1" (setPort 0 defaultSettings)))
  withServerWith options settings application $ \server -> do
    let port = portOf (serverAddress server)
    -- Everything that is made once is there before the descriptors are counted.
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
      -- One more: the refusal behind the last good one.
      unless (answers <= whole + 1) (readIORef got >>= \g -> assertFailure (show (answers, whole, bytes, g)))
      pure (whole, answers)

-- | Send bytes as the seed says, and take some or all of what comes.
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

-- | How many answers there are, but for those that only say to go on.
statuses :: ByteString -> Int
statuses bytes = case B.breakSubstring "HTTP/1.1 " bytes of
  (_, "") -> 0
  (_, rest) -> (if "HTTP/1.1 100" `B.isPrefixOf` rest then 0 else 1) + statuses (B.drop 9 rest)

-- | What an honest client gets, on one connection.
goodTurn :: Int -> Assertion
goodTurn port = within 10 "a good client" . withClient port $ \client -> do
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
