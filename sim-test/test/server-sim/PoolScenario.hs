-- |
-- "Weft.Blocking.Pool" while its calls make further calls, and their callers are killed: every call ends, no result is
-- lost, and no thread stays.
module PoolScenario
  ( poolTests,
  )
where

import Control.Concurrent
import Control.Exception
import Data.IORef
import Kernel
import Search
import Simulation (Scenario (..))
import Test.Tasty
import Weft.Blocking.Pool

-- | Callers, each with a call that makes another one, on a pool of some threads. The first of them may be killed
-- meanwhile.
calling :: Int -> Int -> Bool -> IO Scenario
calling threads callers killing = do
  bootKernel noFaults
  pool <- newPool threads
  [made, kept, disposed] <- mapM newIORef [0, 0, 0 :: Int]
  victim <- newEmptyMVar
  let count ref = atomicModifyIORef' ref (\n -> (n + 1, ()))
      call = yield >> runIn pool yield >> count made
      -- Masked, so that it is killed as it waits for its result, and not with it.
      caller = mask_ (runInOr pool (\() -> count disposed) call >> count kept)
      first = (myThreadId >>= putMVar victim >> caller) `catch` killed
      killer = takeMVar victim >>= killThread
  pure . Scenario (first : [killer | killing] <> replicate (callers - 1) caller) $ \stuck -> do
    [m, k, d] <- mapM readIORef [made, kept, disposed]
    status <- statusOf pool
    pure $ case () of
      _
        | not (null stuck) -> Just ("never woken: threads " <> show stuck)
        | m /= k + d -> Just (show m <> " results, of which " <> show k <> " came and " <> show d <> " were disposed of")
        | k < callers - 1 || not killing && k < callers -> Just ("results of " <> show k <> " calls only")
        | poolRunning status /= 0 || poolQueued status /= 0 -> Just ("left behind: " <> show status)
        | otherwise -> Nothing
  where
    killed :: AsyncException -> IO ()
    killed _ = pure ()

poolTests :: TestTree
poolTests =
  testGroup
    "a pool of threads"
    [ holdsWithin 2 "a call inside a call, with one thread" (calling 1 1 False),
      holdsWithin 1 "as many callers as threads" (calling 2 2 False),
      holdsWithin 1 "more callers than threads" (calling 1 3 False),
      holdsWithin 3 "the caller is killed" (calling 1 1 True),
      holdsAtRandom "one of more callers than threads is killed" (calling 2 4 True)
    ]
