-- | Managers on the simulated machine, for the scenarios of "ManagerScenario" and "ClosingScenario": production source
-- of the manager, the registry, readiness, descriptors, timers and the back ends, over the model kernel.
module ManagerMachine
  ( -- * Machines
    Machine (..),
    machine,
    Setting (..),
    onEpoll,
    onPoll,
    onUring,

    -- * Its threads
    firstManager,
    dispatcher,
    owned,
    ownedBy,
    reading,
    fd,

    -- * Verdicts
    blame,
    finally',
    holdsThat,
  )
where

import Control.Monad
import Data.IORef
import Data.List ((\\))
import Foreign.C.Types (CUInt)
import Kernel
import SearchQueue (newSearchQueue)
import Simulation (Scenario (..))
import System.Posix.Types (Fd)
import qualified Weft.Backend.Epoll as Epoll
import qualified Weft.Backend.Poll as Poll
import qualified Weft.Backend.Uring as Uring
import Weft.Core.Backend
import Weft.Core.Descriptor
import Weft.Core.Manager
import Weft.Core.Registry
import Weft.Core.Time (Instant)
import Weft.Core.Timer (fireTimer)
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Sys

-- | The machine of one run.
data Machine = Machine
  { theRegistry :: Registry Manager,
    -- | The first that is alive serves.
    theManagers :: [Manager],
    -- | An error that was observed during the run.
    blamed :: IORef (Maybe String)
  }

-- | A back end by name, and how often the kernel misbehaves.
data Setting = Setting {settingBackend :: IO Backend, settingFaults :: Faults}

onEpoll, onPoll :: Setting
onEpoll = Setting Epoll.new noFaults
onPoll = Setting Poll.new noFaults

-- | Rings with this many entries, and a completion queue of as many.
onUring :: CUInt -> Setting
onUring entries = Setting (preferRingEntries (Just entries) >> Uring.new) noFaults

-- | This many managers that share a registry. Timers of one that is stopped move to another one; the last one fires its
-- timers when it is stopped.
machine :: Setting -> Int -> IO Machine
machine setting n = do
  bootKernel (settingFaults setting)
  registry <- newManagerRegistry
  made <- newIORef []
  ms <- forM [0 .. n - 1] $ \i -> do
    queue <- newSearchQueue
    newManager i registry queue (orphaned made) (settingBackend setting)
  writeIORef made ms
  Machine registry ms <$> newIORef Nothing
  where
    orphaned made t = do
      others <- readIORef made >>= filterM isAlive
      case others of
        m : _ -> moveTimer m t
        [] -> void (fireTimer t)

blame :: Machine -> String -> IO ()
blame x = writeIORef (blamed x) . Just

firstManager :: Machine -> Manager
firstManager = foldr const (error "ManagerScenario: no manager") . theManagers

-- | The dispatcher of that manager.
dispatcher :: Machine -> Int -> IO ()
dispatcher x i = mask_ $ do
  ok <- initialize m
  when ok (loop m)
  where
    m = theManagers x !! i

alive :: Machine -> IO Manager
alive x = go (theManagers x)
  where
    go [m] = pure m
    go (m : ms) = isAlive m >>= \ok -> if ok then pure m else go ms
    go [] = ioError (userError "no manager")

-- | Take charge of a number.
owned :: Machine -> Int -> IO Descriptor
owned x n = ownedBy x n $ \_ -> do
  r <- closeNumber n
  when (r < 0) (blame x ("closed twice: " <> show n))
  pure (pure ())

-- | Take charge of a number, with the action that closes it, which is given to 'newDescriptor'.
ownedBy :: Machine -> Int -> (IO () -> IO (IO ())) -> IO Descriptor
ownedBy x n = newDescriptor (pure (theRegistry x)) (alive x) (fromIntegral n)

-- | Read at most this many bytes, as sockets do.
reading :: Machine -> Descriptor -> Instant -> Int -> IO (Outcome [Int])
reading x d deadline most = perform d Reading deadline (operation x most (readBytes (number d) most))

number :: Descriptor -> Int
number = fromIntegral . descriptorFd

operation :: Machine -> Int -> IO (Either Int [Int]) -> IO (Attempt [Int])
operation x most call = do
  r <- call
  case r of
    Right bytes
      | length bytes < most -> pure (Drained bytes)
      | otherwise -> pure (Done bytes)
    Left (-11) -> pure NotYet
    Left e -> do
      when (e == -9) (blame x "a system call on a closed descriptor")
      pure (Failed (fromIntegral (negate e)))

-- | The threads, and which of them may be stuck at the end; what must hold then.
finally' :: Machine -> [Int] -> [IO ()] -> IO (Maybe String) -> Scenario
finally' x mayBeStuck threads check =
  Scenario threads $ \stuck -> do
    wrong <- readIORef (blamed x)
    case (wrong, stuck \\ mayBeStuck) of
      (Just why, _) -> pure (Just why)
      (_, lost@(_ : _)) -> pure (Just ("never woken: threads " <> show lost))
      _ -> check

holdsThat :: [(Bool, String)] -> Maybe String
holdsThat claims = case [why | (False, why) <- claims] of
  why : _ -> Just why
  [] -> Nothing

fd :: Int -> Fd
fd = fromIntegral
