{-# LANGUAGE RankNTypes #-}

-- |
-- 'Weft.Thread.timeout', beside 'System.Timeout.timeout'.
module Spec.Timeout
  ( Api (..),
    weft,
    ghc,
    tests,
    ownTests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (forM_, forever, replicateM, replicateM_, void)
import Data.IORef
import Harness
import qualified System.Timeout as G
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Metrics
import qualified Weft.Thread as W

-- | One way to bound an action in time.
data Api = Api
  { apiName :: String,
    timeout :: forall a. Int -> IO a -> IO (Maybe a)
  }

weft, ghc :: Api
weft = Api "Weft" W.timeout
ghc = Api "GHC" G.timeout

-- | Tests of both implementations.
tests :: Api -> TestTree
tests api = testGroup ("timeout, " <> apiName api) (results api <> nesting api <> exceptions api)

-- | Much more, and less, than a test takes.
long, short :: Int
long = 30000000
short = 3000

forever' :: IO a
forever' = forever (threadDelay 1000000)

results :: Api -> [TestTree]
results api =
  [ testCase "in time" $ timeout api long (pure 'x') >>= (@?= Just 'x'),
    testCase "too late, and not early" $ do
      (r, s) <- timed (timeout api short forever')
      r @?= (Nothing :: Maybe ())
      s * 1e6 @>= fromIntegral short,
    testCase "negative: no limit" $
      forM_ [-1, minBound] $ \n -> timeout api n (threadDelay 2000) >>= (@?= Just ()),
    testCase "zero: the action does not run" $ do
      ran <- newIORef False
      r <- timeout api 0 (writeIORef ran True)
      r @?= Nothing
      readIORef ran >>= (@?= False),
    testCase "timers: the longest" $
      forM_ [2 ^ (31 :: Int) * 1000, maxBound - 1, maxBound] $ \n ->
        timeout api n (threadDelay 2000) >>= (@?= Just ()),
    testCase "an action that computes is interrupted" $ do
      r <- timeout api short (evaluate (length (filter odd [1 :: Int ..])))
      r @?= Nothing,
    testCase "the action runs in the calling thread" $ do
      t <- myThreadId
      r <- timeout api long myThreadId
      r @?= Just t
  ]

nesting :: Api -> [TestTree]
nesting api =
  [ testCase "nested: the inner one is first" $ do
      r <- timeout api long (timeout api short forever')
      r @?= (Just Nothing :: Maybe (Maybe ())),
    testCase "nested: the outer one is first" $ do
      r <- timeout api short (timeout api long forever')
      r @?= (Nothing :: Maybe (Maybe ())),
    testCase "nested: both at the same time: one of them, not early, and nothing afterwards" . replicateM_ 20 $ do
      ((), s) <- timed (void (timeout api short (timeout api short forever')))
      s * 1e6 @>= fromIntegral short
      -- A late exception of the other timeout would arrive here.
      threadDelay 2000,
    testCase "nested: ten deep, any order" . replicateM_ 10 $ do
      let deep :: [Int] -> IO ()
          deep [] = forever'
          deep (us : more) = void (timeout api us (deep more))
      finishes "nest" (deep [3000, 9000, 1000, 5000, 2000, 8000, 500, 7000, 4000, 6000])
  ]

exceptions :: Api -> [TestTree]
exceptions api =
  [ testCase "the action's own exception" $ do
      r <- try (timeout api long (throwIO (userError "own")))
      r @?= (Left (userError "own") :: Either IOException (Maybe ())),
    testCase "an exception of another thread" $ do
      t <- start (timeout api long forever')
      blocked t >>= assertBool "does not block"
      stop t
      r <- outcome "thread" (t :: Task (Maybe ()))
      assertBool "ended otherwise" (either ((== Just ThreadKilled) . fromException) (const False) r),
    testCase "handlers run, and an action that ignores the exception goes on" $ do
      seen <- newIORef False
      r <- timeout api short (forever' `onException` writeIORef seen True)
      r @?= (Nothing :: Maybe ())
      readIORef seen >>= (@?= True)
      stubborn <- timeout api short (forever' `catch` \e -> const (pure 'x') (e :: SomeException))
      stubborn @?= Just 'x',
    testCase "masked: interruptible operations are interrupted" $ do
      r <- mask_ (timeout api short (newEmptyMVar >>= \v -> takeMVar v `finally` void (tryPutMVar v ())))
      r @?= (Nothing :: Maybe ()),
    testCase "masked: an uninterruptible action runs to its end" $ do
      (r, s) <- timed (uninterruptibleMask_ (timeout api short (threadDelay 20000)))
      r @?= Just ()
      s @>= 0.02
      -- And nothing is left to be thrown.
      threadDelay 10000,
    testCase "cancellation: no exception is left behind (storm)" (strays api)
  ]

-- | Actions that end at about the time that their limit ends: whatever happens,
-- nothing is thrown after 'timeout' has returned.
strays :: Api -> Assertion
strays api =
  parallel 4 $ \k -> do
    r <- try . forM_ [1 .. times 1500] $ \i -> do
      _ <- timeout api (1 + (i * 7 + k) `mod` 60) (spin (i `mod` 40))
      -- A late exception would arrive here.
      spin 2
    either (\e -> assertFailure ("thrown afterwards: " <> show (e :: SomeException))) pure r
  where
    spin :: Int -> IO ()
    spin n = forM_ [1 .. n] (const yield)

-- | Tests that need Weft's counters.
ownTests :: TestTree
ownTests =
  testGroup
    "timeout, beyond GHC"
    [ testCase "in time: the timer is cancelled" $ do
        before <- readMetrics
        replicateM_ 100 (W.timeout long (pure ()))
        later <- readMetrics
        let moved f = total f later - total f before
        (moved metricsTimersSet, moved metricsTimersCancelled) @?= (100, 100),
      testCase "killed in all places: every thread ends" $ do
        ts <- replicateM (times 200) . start $ W.timeout 2000 (W.timeout 1000 forever' >> forever' :: IO ())
        forM_ (zip [0 ..] ts) $ \(i, t) -> threadDelay (i `mod` 50) >> stop t
    ]
