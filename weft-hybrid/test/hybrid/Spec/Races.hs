-- |
-- Two loops do two things to one thread, or one descriptor, at the same moment, over and over.
module Spec.Races
  ( tests,
  )
where

import Control.Concurrent (forkOn)
import Control.Concurrent.MVar (newEmptyMVar, putMVar, takeMVar)
import qualified Control.Exception as E
import Control.Monad (forM_, replicateM_, void)
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Support
import System.Posix.IO (createPipe)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid hiding (newEmptyMVar, putMVar, takeMVar)
import qualified Weft.Hybrid as H
import qualified Weft.Hybrid.STM as STM
import qualified Weft.Socket as Weft

-- | The operations of both loops, and a check of the state afterwards.
type Round = Hybrid (Hybrid (), Hybrid (), Hybrid Bool)

tests :: Int -> IO Scheduler -> TestTree
tests loops scheduler =
  testGroup "races" [testCase name (finishes name (scheduler >>= \s -> race s loops r)) | (name, r) <- rounds]

-- | The first side, on the first loop, prepares each round; the second is on the next loop.
race :: Scheduler -> Int -> (Int -> Round) -> Assertion
race s loops prepare = do
  published <- newIORef (0, pure ())
  finished <- newIORef 0
  ends <- newEmptyMVar
  forM_ (zip [0 ..] [first published finished, second published finished]) $ \(cap, side) ->
    forkOn (cap `mod` loops) (E.try (runIn s side) >>= putMVar ends)
  -- Should the first to end have failed, the other never ends.
  replicateM_ 2 (takeMVar ends >>= either (\e -> assertFailure (show (e :: E.SomeException))) pure)
  where
    n = times 300
    first published finished = forM_ [1 .. n] $ \i -> do
      (a, b, check) <- prepare i
      nonBlocking (atomicWriteIORef published (i, b))
      replicateM_ (i `mod` 4) (nonBlocking (pure ()))
      a
      until' (\k -> k >= i) finished
      ok <- check
      nonBlocking (ok @? ("round " <> show i))
    second published finished = forM_ [1 .. n] $ \i -> do
      until' ((>= i) . fst) published
      (_, b) <- nonBlocking (readIORef published)
      () <- b
      nonBlocking (atomicWriteIORef finished i)
    until' ok ref = nonBlocking (readIORef ref) >>= \x -> if ok x then pure () else yield >> until' ok ref

rounds :: [(String, Int -> Round)]
rounds =
  [ ( "both wait for one pipe, which moves from loop to loop",
      \i -> do
        (r, w) <- nonBlocking (createPipe >>= \(r, w) -> (,) <$> adopt r <*> adopt w)
        fork (sleep (microseconds (i `mod` 60)) >> writeBytes w (C.pack "x") >> yield >> writeBytes w (C.pack "y"))
        let one = void (readBytes r 1)
        pure (one, one, nonBlocking (and <$> mapM closeDescriptor [r, w]))
    ),
    ( "a value comes, and a kill",
      \i -> do
        box <- H.newEmptyMVar
        taken <- nonBlocking (newIORef False)
        t <- mask_ (forkThread (H.takeMVar box >>= \() -> nonBlocking (writeIORef taken True)))
        replicateM_ (i `mod` 3) yield
        pure (killThread t, H.putMVar box (), consistent t taken (tryTakeMVar box))
    ),
    ( "a transaction can commit, and a kill",
      \i -> do
        var <- nonBlocking (STM.newTVarIO True)
        taken <- nonBlocking (newIORef False)
        go <- nonBlocking (STM.newTVarIO False)
        t <- mask_ . forkThread $ do
          STM.atomically (STM.readTVar go >>= STM.check >> STM.writeTVar var False)
          nonBlocking (writeIORef taken True)
        replicateM_ (i `mod` 3) yield
        let left = (\there -> if there then Just () else Nothing) <$> STM.atomically (STM.readTVar var)
        pure (killThread t, STM.atomically (STM.writeTVar go True), consistent t taken left)
    ),
    ( "units are released, and a kill",
      \i -> do
        sem <- newSemaphore 0
        taken <- nonBlocking (newIORef False)
        t <- mask_ (forkThread (acquire sem 2 >> nonBlocking (writeIORef taken True)))
        replicateM_ (i `mod` 3) yield
        let left = (\there -> if there then Just () else Nothing) <$> tryAcquire sem 2
        pure (killThread t, release sem 2, consistent t taken left)
    ),
    ( "data come, and a kill",
      \i -> do
        (a, b) <- pair
        taken <- nonBlocking (newIORef False)
        t <- mask_ (forkThread (recv a 1 >> nonBlocking (writeIORef taken True)))
        replicateM_ (i `mod` 5) yield
        let left = within (seconds 10) (void (recv a 1))
        pure (killThread t, sendAll b (C.pack "x"), consistent t taken left <* close a <* close b)
    ),
    ( "a wait begins, and the socket is closed",
      \i -> do
        (a, b) <- pair
        t <- forkThread (void (recv a 1))
        replicateM_ (i `mod` 3) (nonBlocking (pure ()))
        pure (yield, close a, either (const True) (const False) <$> waitCatch t <* close b)
    ),
    ( "a wait begins, and data come",
      \_ -> do
        (a, b) <- pair
        t <- forkThread (void (recv a 1))
        pure (yield, sendAll b (C.pack "x"), either (const False) (const True) <$> waitCatch t <* close a <* close b)
    ),
    ( "a deadline passes, and data come",
      \_ -> do
        (a, b) <- pair
        soon <- deadlineIn (microseconds 60)
        taken <- nonBlocking (newIORef False)
        t <- forkThread (recv (withDeadline soon a) 1 >> nonBlocking (writeIORef taken True))
        let left = within (seconds 10) (void (recv a 1))
        pure (yield, sleep (microseconds 50) >> sendAll b (C.pack "x"), consistent t taken left <* close a <* close b)
    ),
    ( "two kills, and an end",
      \i -> do
        t <- forkThread (replicateM_ (i `mod` 6) yield)
        pure (killThread t, killThread t, True <$ waitCatch t)
    )
  ]

-- | Either the thread has taken the value, and has ended without an exception, or the value is still there.
consistent :: Thread -> IORef Bool -> Hybrid (Maybe ()) -> Hybrid Bool
consistent t taken left = do
  end <- waitCatch t
  got <- nonBlocking (readIORef taken)
  -- What the thread has got is not looked for: nothing would tell when to give up.
  there <- if got then pure Nothing else left
  pure (got == either (const False) (const True) end && got == (there == Nothing))

pair :: Hybrid (Socket, Socket)
pair = do
  (a, b) <- nonBlocking (Weft.socketPair Weft.AF_UNIX Weft.Stream 0)
  (,) <$> fromSocket a <*> fromSocket b
