-- | Managers in lockstep with a model of them ("Lockstep"), on every back end of this build; and back ends and queues
-- of timers that are wrong, which it has to catch.
module Main (main) where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket_)
import Control.Monad (unless)
import Data.IORef
import Data.Word (Word8)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Ptr (Ptr)
import Lockstep
import LockstepModel (Rules (..))
import System.Environment (setEnv)
import System.Posix.IO (FdOption (NonBlockingRead), closeFd, createPipe, setFdOption)
import System.Posix.Types (CSsize (..), Fd (..))
import Test.Tasty (TestTree, testGroup)
import Weft.Backend.Choice
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Time
import Weft.Core.Timer (Queue (..))
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Test.Configurations (configurations)
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)
import Weft.TimerQueue (newQueue)

main :: IO ()
main = do
  -- Nothing else may take the numbers of descriptors.
  setEnv "TASTY_NUM_THREADS" "1"
  wanted <- wantedCommands 8000
  groups <- configurations (const True) backendNames >>= mapM (\name -> group wanted name name (newBackend name))
  tiny <- group wanted "io_uring" "io_uring, rings of 2" (bracket_ (preferRingEntries (Just 2)) (preferRingEntries Nothing) (newBackend "io_uring"))
  defaultMain (testGroup "lockstep" (groups <> [tiny, planted]))

group :: Int -> String -> String -> IO Backend -> IO TestTree
group wanted name title make = do
  reason <- whyUnavailable name
  pure (maybe id (skipAll title) reason (testGroup title [inLockstep "random programs" (machineOn name make) wanted]))

-- | This machine, with that back end.
machineOn :: String -> IO Backend -> Machine
machineOn name backend =
  Machine
    { machineRun = const id,
      machineBackend = backend,
      machineQueue = newQueue,
      machineRules = Rules {ruleCapacity = 65536, ruleLate = name == "io_uring", ruleResumes = name == "poll"},
      machinePipe = do
        (r, w) <- createPipe
        mapM_ (\fd -> setFdOption fd NonBlockingRead True) [r, w]
        pure (r, w),
      machineWrite = transfer c_write 1,
      machineRead = transfer c_read 1,
      machineFill = untilRefused (transfer c_write 65536),
      machineDrain = untilRefused (transfer c_read 65536),
      machineClose = closeFd,
      machinePause = \d -> threadDelay (fromIntegral (durationNs d `div` 1000))
    }
  where
    transfer call n (Fd fd) = allocaBytes n (\p -> (> 0) <$> call fd p (fromIntegral n))
    untilRefused act fd = act fd >>= \more -> if more then untilRefused act fd else pure ()

foreign import ccall unsafe "write" c_write :: CInt -> Ptr Word8 -> CSize -> IO CSsize

foreign import ccall unsafe "read" c_read :: CInt -> Ptr Word8 -> CSize -> IO CSsize

-- Planted faults ----------------------------------------------------------------------------

-- | Each is caught, by a program that could be understood.
planted :: TestTree
planted =
  testGroup
    "planted"
    [ wrongBackend "every seventh report is lost" $ \b -> do
        count <- newIORef (0 :: Int)
        pure
          b
            { backendPoll = \wait report -> backendPoll b wait $ \tok evs -> do
                n <- readIORef count
                writeIORef count (n + 1)
                unless (n `mod` 7 == 6) (report tok evs)
            },
      wrongBackend "reading and writing are mixed up" $ \b ->
        pure b {backendPoll = \wait report -> backendPoll b wait (\tok evs -> report tok (mixed evs))},
      wrongBackend "level-triggered is one-shot" (pure . triggering (\t -> if t == Level then Once else t)),
      wrongBackend "edge-triggered is one-shot" (pure . triggering (\t -> if t == Edge then Once else t)),
      wrongBackend "hang-ups are not told" $ \b ->
        pure b {backendPoll = \wait report -> backendPoll b wait (\tok evs -> report tok (evs `without` evtHangup))},
      wrongBackend "a descriptor is armed once" $ \b -> do
        known <- newIORef []
        pure
          b
            { backendArm = \fd tok trigger evs -> do
                before <- readIORef known
                if fd `elem` before then pure Armed else writeIORef known (fd : before) >> backendArm b fd tok trigger evs,
              backendForget = \fd -> modifyIORef known (filter (/= fd)) >> backendForget b fd
            },
      wrongBackend "the generation is forgotten" $ \b ->
        pure b {backendPoll = \wait report -> backendPoll b wait (\tok evs -> report (if isReadinessToken tok then tok else tableToken (tokenFd tok) 1) evs)},
      wrongQueue "timers fire an hour early" $ \q -> pure q {queueExpire = queueExpire q . after (seconds 3600)},
      wrongQueue "every fifth timer is lost" $ \q -> do
        count <- newIORef (0 :: Int)
        pure
          q
            { queueInsert = \t -> do
                n <- readIORef count
                writeIORef count (n + 1)
                unless (n `mod` 5 == 4) (queueInsert q t)
            }
    ]
  where
    sound = machineOn "epoll" (newBackend "epoll")
    wrongBackend name change = caughtInLockstep name 20 sound {machineBackend = machineBackend sound >>= change}
    wrongQueue name change = caughtInLockstep name 20 sound {machineQueue = machineQueue sound >>= change}
    triggering f b = b {backendArm = \fd tok trigger -> backendArm b fd tok (f trigger)}
    mixed evs = (if evs `includes` evtRead then evtWrite else mempty) <> (if evs `includes` evtWrite then evtRead else mempty) <> (evs `without` (evtRead <> evtWrite))
