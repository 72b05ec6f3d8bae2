{-# LANGUAGE OverloadedStrings #-}

-- |
-- The memory of the sessions that a server keeps for resumption.
module Spec.Sessions
  ( tests,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import Control.Monad (replicateM_, unless, void)
import Data.Char (isDigit)
import Data.IORef (writeIORef)
import Data.List (isInfixOf)
import GHC.Stats (GCDetails (gcdetails_live_bytes), RTSStats (gc), getRTSStats)
import Support
import System.Mem (performMajorGC)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip
import Weft.Tls
import Weft.Transport

tests :: TestTree
tests = withFiles $ \get ->
  testGroup
    "kept sessions"
    [ testCase "take less than 3,000 bytes each with TLS 1.3" $ do
        files <- get
        server <- newTlsServer (settingsFor files ["one"])
        measured 500 (replicateM_ 50 (handshake files server)) (500 <$ replicateM_ 500 (handshake files server)),
      testCase "take less than 3,000 bytes each with TLS 1.2" $ do
        files <- get
        serving (settingsFor files ["one"]) $ \port seen _ -> do
          let handshakes :: String -> IO Int
              handshakes for = do
                (_, out, err) <- run "openssl" ["s_time", "-connect", at port, "-new", "-tls1_2", "-time", for] ""
                writeIORef seen []
                case [read n | l <- lines out, "connections in" `isInfixOf` l, (n@(_ : _), _) <- [span isDigit l]] of
                  n : _ -> pure n
                  [] -> assertFailure (out <> err)
          measured 50 (void (handshakes "1")) (handshakes "4")
    ]
  where
    -- A warm-up, and what makes sessions and returns their number, which has to be at least the first argument.
    measured :: Int -> IO () -> IO Int -> IO ()
    measured least warm act = do
      warm
      before <- liveBytes
      made <- act
      assertBool (show made <> " sessions") (made >= least)
      -- Tests that run at the same time hold memory too, for a while.
      let settled = do
            live <- liveBytes
            unless (live < before + 3000 * fromIntegral made) (threadDelay 200000 >> settled)
      timeout 60000000 settled >>= maybe (liveBytes >>= \live -> assertFailure (show (toInteger live - toInteger before) <> " bytes for " <> show made)) pure
    liveBytes = performMajorGC >> fmap (gcdetails_live_bytes . gc) getRTSStats
    handshake files server = do
      (ours, theirs) <- inMemory
      _ <- forkIO $ do
        accepted <- tlsAccept server theirs
        connSendMany accepted noDeadline ["x"]
        connClose accepted
      client <- tlsConnect (clientFor files) "one.test" ours
      received <- connReceive client noDeadline 1
      received @?= "x"
      connClose client
