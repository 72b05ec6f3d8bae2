-- |
-- The queue of ready threads against a list, over many chunks.
module Queues
  ( tests,
  )
where

import Control.Monad (forM)
import Data.IORef
import Test.QuickCheck.Monadic
import Test.Tasty
import Test.Tasty.QuickCheck
import Weft.Hybrid.Ready
import Weft.Hybrid.Trace

data Command = Push Int | Pop Int | Tidy
  deriving (Show)

instance Arbitrary Command where
  arbitrary = frequency [(4, Push <$> amount), (4, Pop <$> amount), (1, pure Tidy)]
    where
      amount = oneof [choose (1, 5), choose (500, 3000), elements [1023, 1024, 1025]]
  shrink (Push n) = Push <$> shrink n
  shrink (Pop n) = Pop <$> shrink n
  shrink Tidy = []

tests :: TestTree
tests = testProperty "the ready queue is first in, first out" $ \commands -> monadicIO $ do
  (got, expected) <- run (execute commands)
  assert (got == expected)

-- | What comes out, and what should.
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
  Push n -> fmap (const []) . forM [1 .. n] $ \_ -> do
    (next, taken) <- readIORef counter
    writeIORef counter (next + 1, taken)
    pushFifo q (\() -> NonBlocking (Ret <$ writeIORef out (Just next)))
  Pop n -> forM [1 .. n] $ \_ -> do
    (next, taken) <- readIORef counter
    size <- sizeFifo q
    let wanted = if taken < next && size == next - taken then Just taken else Nothing
    writeIORef counter (next, if taken < next then taken + 1 else taken)
    task <- popFifo q
    writeIORef out Nothing
    case task () of
      NonBlocking act -> () <$ act
      _ -> pure ()
    got <- readIORef out
    pure (got, wanted)
