-- |
-- Sockets of "Weft.Socket" when memory is short: those that could not be made leave no number open.
module SocketScenario
  ( socketTests,
  )
where

import Control.Exception
import Control.Monad
import Data.IORef
import Kernel
import Search
import Simulation (Scenario (..))
import Test.Tasty
import qualified Weft.Socket as W

-- | Making sockets fails at each step for which memory is needed, the last time not at all.
shortOfMemory :: Int -> IO [W.Socket] -> IO Scenario
shortOfMemory steps make = do
  bootKernel noFaults
  left <- newIORef []
  made <- newIORef (0 :: Int)
  let program = forM_ [0 .. steps] $ \k -> do
        r <- roomForReferences k (try make)
        case r of
          Left e -> (e :: AsyncException) `seq` pure ()
          Right sockets -> modifyIORef' made (+ 1) >> mapM_ W.close sockets
        openNumbers >>= \numbers -> modifyIORef' left (numbers :)
  pure . Scenario [program] $ \stuck -> do
    numbers <- readIORef left
    n <- readIORef made
    pure $ if null stuck && n == 1 && all null numbers then Nothing else Just (show n <> " were made; left open: " <> show (reverse numbers))

socketTests :: TestTree
socketTests =
  testGroup
    "sockets without memory"
    [ holds "one" 1 (shortOfMemory 1 ((: []) <$> W.socket W.AF_INET W.Stream W.defaultProtocol)),
      holds "a pair" 1 (shortOfMemory 2 ((\(a, b) -> [a, b]) <$> W.socketPair W.AF_INET W.Stream W.defaultProtocol))
    ]
