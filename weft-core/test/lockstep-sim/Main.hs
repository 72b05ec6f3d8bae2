-- | The core's production source on the simulated machine in lockstep with a model of it ("Lockstep"): the same
-- programs as on the real back ends (suite @lockstep@), on a kernel that may also report late, in another order and
-- what is not so.
module Main (main) where

import Control.Monad (when)
import Data.Bifunctor (bimap)
import Data.Either (isRight)
import Data.IORef
import Kernel
import Lockstep
import LockstepModel (Rules (..))
import SearchQueue (newSearchQueue)
import Simulation
import System.Environment (setEnv)
import System.Posix.Types (Fd)
import Test.Tasty (testGroup)
import qualified Weft.Backend.Epoll as Epoll
import qualified Weft.Backend.Poll as Poll
import qualified Weft.Backend.Uring as Uring
import Weft.Core.Backend
import Weft.Core.Time
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  -- One simulation at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  wanted <- wantedCommands 8000
  defaultMain . testGroup "lockstep" $
    [ inLockstep "simulated epoll" (simulated Epoll.new noFaults False) wanted,
      inLockstep "simulated poll" (simulated Poll.new noFaults True) wanted,
      inLockstep "simulated io_uring" (onRing 8 noFaults) wanted,
      inLockstep "simulated io_uring with two entries" (onRing 2 noFaults) wanted,
      inLockstep "simulated io_uring with two entries, and a kernel that misbehaves" (onRing 2 often {faultRefuse = 5}) wanted,
      inLockstep "simulated epoll, and a kernel that misbehaves" (simulated Epoll.new often False) wanted
    ]
  where
    onRing entries faults = late (simulated (preferRingEntries (Just entries) >> Uring.new) faults False)
    late m = m {machineRules = (machineRules m) {ruleLate = True}}
    -- No spurious reports here: the model takes them for faults.
    often = allFaults {faultReverse = 5, faultShort = 5, faultInterrupt = 5, faultSpurious = 0}

-- | The simulated machine with a back end.
simulated :: IO Backend -> Faults -> Bool -> Machine
simulated backend faults resumes =
  Machine
    { machineRun = inSimulation faults,
      machineBackend = backend,
      machineQueue = newSearchQueue,
      machineRules = Rules {ruleCapacity = 2, ruleLate = False, ruleResumes = resumes},
      machinePipe = bimap fromIntegral fromIntegral <$> newPipe,
      machineWrite = \fd -> (> 0) <$> writeBytes (number fd) [1],
      machineRead = \fd -> isRight <$> readBytes (number fd) 1,
      machineFill = \fd -> untilRefused ((> 0) <$> writeBytes (number fd) [1]),
      machineDrain = \fd -> untilRefused (either (const False) (not . null) <$> readBytes (number fd) 1),
      machineClose = \fd -> do
        r <- closeNumber (number fd)
        when (r < 0) (ioError (userError ("close gave " <> show r))),
      machinePause = \(Duration ns) -> do
        t <- virtualTime
        blockInKernel (pure False) (t + ns) (Writes kernelObject) "pauses"
    }
  where
    number :: Fd -> Int
    number = fromIntegral
    untilRefused act = act >>= \more -> when more (untilRefused act)

-- | The only thread of a simulation.
inSimulation :: Faults -> Int -> IO (Maybe String) -> IO (Maybe String)
inSimulation faults seed act = do
  result <- newIORef (Just "it did not end")
  outcome <- seeded seed $ do
    bootKernel faults
    pure (Scenario [act >>= writeIORef result] (const (readIORef result)))
  pure (outcomeFault outcome)
