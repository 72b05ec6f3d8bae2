-- |
-- The queue of ready threads against a list, over many chunks.
module Queues
  ( tests,
  )
where

import Control.Monad (forM, forM_, replicateM, replicateM_)
import Data.IORef
import System.Mem (getAllocationCounter, performMajorGC, performMinorGC)
import Test.QuickCheck.Monadic
import Test.Tasty
import Test.Tasty.HUnit (assertBool, testCase)
import Test.Tasty.QuickCheck
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace

-- | Operations on a queue. Collections move tasks, and scan only the chunks that they have to.
data Command = Push Int | Pop Int | Exchange Int | Tidy | Minor | Major
  deriving (Show)

instance Arbitrary Command where
  arbitrary =
    frequency
      [(4, Push <$> amount), (4, Pop <$> amount), (3, Exchange <$> amount), (1, pure Tidy), (2, pure Minor), (1, pure Major)]
    where
      amount = oneof [choose (1, 5), choose (500, 3000), elements [509, 510, 511, 1019, 1020, 1021]]
  shrink command = case command of
    Push n -> Push <$> shrink n
    Pop n -> Pop <$> shrink n
    Exchange n -> Exchange <$> shrink n
    _ -> []

tests :: TestTree
tests =
  testGroup
    "the ready queue"
    [ testProperty "is first in, first out" $ \commands -> monadicIO $ do
        (got, expected) <- run (execute commands)
        assert (got == expected),
      testCase "a turn of a long queue costs as much as a turn of a short one" $ do
        q <- newFifo
        replicateM_ 300000 (pushFifo q (const Ret))
        [_, spent] <- replicateM 2 $ do
          before <- getAllocationCounter
          forM_ [1 .. 300000 :: Int] $ \_ -> popFifo q >>= pushFifo q
          left <- getAllocationCounter
          pure (before - left)
        -- A cell of a list for each chunk. (The counter goes down.)
        assertBool (show spent <> " bytes") (spent < 600000)
    ]

-- | The actual and the expected output.
execute :: [Command] -> IO ([Maybe Int], [Maybe Int])
execute commands = do
  q <- newFifo
  out <- newIORef Nothing
  counter <- newIORef (0 :: Int, 0 :: Int)
  results <- mapM (perform q out counter) commands
  pure (unzip (concat results))

-- | Numbers of tasks; the second reference has the next to go in and the next to come out.
perform :: Fifo -> IORef (Maybe Int) -> IORef (Int, Int) -> Command -> IO [(Maybe Int, Maybe Int)]
perform q out counter command = case command of
  Tidy -> [] <$ tidyFifo q
  Minor -> [] <$ performMinorGC
  Major -> [] <$ performMajorGC
  Push n -> [] <$ replicateM_ n (given >>= pushFifo q)
  Pop n -> forM [1 .. n] $ \_ -> do
    wanted <- due
    popFifo q >>= compareTo wanted
  Exchange n -> forM [1 .. n] $ \_ -> do
    task <- given
    wanted <- due
    exchangeFifoIn q Plain task >>= compareTo wanted
  where
    given = do
      (next, taken) <- readIORef counter
      writeIORef counter (next + 1, taken)
      pure (\() -> NonBlocking (Ret <$ writeIORef out (Just next)))
    due = do
      (next, taken) <- readIORef counter
      size <- sizeFifo q
      let before = case command of
            Exchange _ -> next - 1 - taken
            _ -> next - taken
      writeIORef counter (next, if taken < next then taken + 1 else taken)
      pure (if taken < next && size == before then Just taken else Nothing)
    compareTo wanted task = do
      writeIORef out Nothing
      case task () of
        NonBlocking act -> () <$ act
        _ -> pure ()
      got <- readIORef out
      pure (got, wanted)
