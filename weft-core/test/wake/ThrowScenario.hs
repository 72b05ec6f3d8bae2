{-# LANGUAGE RankNTypes #-}

-- |
-- @throwTo@ in the simulator and in GHC's run-time system: small programs run on both. The outcomes of the
-- simulator's schedules with up to three departures are exactly the expected ones, and each outcome in the run-time
-- system is one of them.
module ThrowScenario
  ( throwTests,
  )
where

import qualified Control.Concurrent as Ghc
import qualified Control.Exception as Ghc
import Control.Monad
import Data.IORef
import Data.List (nub, sort, (\\))
import GHC.Conc (ThreadStatus (..), threadStatus)
import GHC.IO (unsafeUnmask)
import Simulation
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Sys (ThreadId, threadNumbered)
import qualified Weft.Sys as Sys

-- Machines -----------------------------------------------------------------------------

-- | An exception that the threads of a program throw at each other.
newtype Signal = Signal String
  deriving (Show)

instance Ghc.Exception Signal where
  toException = Ghc.asyncExceptionToException
  fromException = Ghc.asyncExceptionFromException

-- | The operations of a program, named as in "Control.Concurrent" and "Control.Exception".
data Machine var thread = Machine
  { forkIO :: IO () -> IO thread,
    myThreadId :: IO thread,
    throwTo :: thread -> Signal -> IO (),
    newEmptyMVar :: IO var,
    takeMVar :: var -> IO (),
    putMVar :: var -> IO (),
    mask_ :: IO () -> IO (),
    uninterruptibleMask_ :: IO () -> IO (),
    unmask :: IO () -> IO (),
    handle :: (Signal -> IO ()) -> IO () -> IO (),
    -- | Return after the thread has ended. (A run of the simulator ends when no thread can continue.)
    awaitEnd :: thread -> IO ()
  }

simulated :: Machine (Sys.MVar ()) ThreadId
simulated =
  Machine
    { forkIO = fmap threadNumbered . spawn,
      myThreadId = Sys.myThreadId,
      throwTo = Sys.throwToThread,
      newEmptyMVar = Sys.newEmptyMVar,
      takeMVar = Sys.takeMVar,
      putMVar = (`Sys.putMVar` ()),
      mask_ = withMasking WhereItBlocks,
      uninterruptibleMask_ = withMasking NoneIn,
      unmask = withMasking AllIn,
      handle = \handler act -> act `catching` \e -> maybe (Ghc.throwIO e) handler (Ghc.fromException e),
      awaitEnd = const (pure ())
    }

real :: Machine (Ghc.MVar ()) Ghc.ThreadId
real =
  Machine
    { -- The default handler would report the exception.
      forkIO = \act -> Ghc.forkIO (act `Ghc.catch` \(Signal _) -> pure ()),
      myThreadId = Ghc.myThreadId,
      throwTo = Ghc.throwTo,
      newEmptyMVar = Ghc.newEmptyMVar,
      takeMVar = Ghc.takeMVar,
      putMVar = (`Ghc.putMVar` ()),
      mask_ = Ghc.mask_,
      uninterruptibleMask_ = Ghc.uninterruptibleMask_,
      unmask = unsafeUnmask,
      handle = Ghc.handle,
      awaitEnd = ended
    }
  where
    ended t = do
      status <- threadStatus t
      unless (status `elem` [ThreadFinished, ThreadDied]) (Ghc.yield >> ended t)

-- Programs -----------------------------------------------------------------------------

-- | A program logs what happens. When it returns, its threads have logged everything.
newtype Program = Program (forall var thread. Machine var thread -> (String -> IO ()) -> IO ())

-- | Log the exception that ends the action.
logged :: Machine var thread -> (String -> IO ()) -> String -> IO () -> IO ()
logged m say name = handle m (\(Signal s) -> say (name <> " gets " <> s))

-- | The thread that throws is interrupted while it waits for its target. Later the target unmasks exceptions.
withdrawn :: Program
withdrawn = Program $ \m say -> do
  [ready, go, done] <- replicateM 3 (newEmptyMVar m)
  target <- forkIO m . uninterruptibleMask_ m $ do
    putMVar m ready
    takeMVar m go
    logged m say "target" (unmask m (pure ()))
    putMVar m done
  takeMVar m ready
  thrower <- forkIO m . mask_ m $ do
    putMVar m ready
    logged m say "thrower" (throwTo m target (Signal "x") >> say "thrower goes on")
    putMVar m done
  takeMVar m ready
  throwTo m thrower (Signal "y")
  takeMVar m done
  putMVar m go
  takeMVar m done

-- | Two masked threads throw at each other.
mutual :: Program
mutual = Program $ \m say -> do
  [ready, done] <- replicateM 2 (newEmptyMVar m)
  one <- myThreadId m
  mask_ m $ do
    two <- forkIO m . mask_ m $ do
      putMVar m ready
      logged m say "two" (throwTo m one (Signal "x") >> say "two goes on")
      logged m say "two" (unmask m (pure ()))
      putMVar m done
    takeMVar m ready
    logged m say "one" (throwTo m two (Signal "y") >> say "one goes on")
    logged m say "one" (unmask m (pure ()))
    takeMVar m done

-- | A thread throws at itself, in each masking state.
atItself :: Program
atItself = Program $ \m say -> do
  self <- myThreadId m
  let throwing name = logged m say name (throwTo m self (Signal "x") >> say (name <> " goes on"))
  throwing "unmasked"
  mask_ m (throwing "masked")
  uninterruptibleMask_ m (throwing "uninterruptible")

-- | The target may have ended.
atEnded :: Program
atEnded = Program $ \m say -> do
  done <- newEmptyMVar m
  target <- forkIO m (putMVar m done)
  takeMVar m done
  throwTo m target (Signal "x")
  say "thrower goes on"

-- | The target has masked exceptions and waits for an MVar, which another thread fills.
atBlocked :: Program
atBlocked = Program $ \m say -> do
  [ready, var, done] <- replicateM 3 (newEmptyMVar m)
  target <- forkIO m . mask_ m $ do
    putMVar m ready
    logged m say "target" (takeMVar m var >> say "target takes")
    logged m say "target" (unmask m (pure ()))
    putMVar m done
  takeMVar m ready
  filler <- forkIO m (putMVar m var)
  throwTo m target (Signal "x")
  say "thrower goes on"
  takeMVar m done
  awaitEnd m filler

-- | Two threads throw at one target, which after each exception waits until the thread that threw it goes on.
twoAtOne :: Program
twoAtOne = Program $ \m say -> do
  [ready, never, one, two, done] <- replicateM 5 (newEmptyMVar m)
  target <- forkIO m . uninterruptibleMask_ m $ do
    putMVar m ready
    replicateM_ 2 . (`handle'` unmask m (takeMVar m never)) m $ \(Signal s) -> do
      say ("target gets " <> s)
      takeMVar m (if s == "x" then one else two)
    putMVar m done
  takeMVar m ready
  throwers <- forM [("x", one), ("y", two)] $ \(s, back) -> forkIO m $ do
    throwTo m target (Signal s)
    putMVar m back
  takeMVar m done
  mapM_ (awaitEnd m) throwers
  putMVar m never
  where
    handle' m = flip (handle m)

-- | The target may not have begun, and then has no handler.
atNew :: Program
atNew = Program $ \m say -> do
  never <- newEmptyMVar m
  target <- forkIO m (logged m say "target" (takeMVar m never))
  throwTo m target (Signal "x")
  say "thrower goes on"
  awaitEnd m target
  putMVar m never

-- Running them -------------------------------------------------------------------------

throwTests :: TestTree
throwTests =
  testGroup
    "throwTo as in GHC"
    [ behaves "the thrower is interrupted" withdrawn [["thrower gets y"]],
      behaves "two threads throw at each other" mutual [["one gets x", "two goes on"], ["one goes on", "two gets y"]],
      behaves "a thread throws at itself" atItself [["masked gets x", "uninterruptible gets x", "unmasked gets x"]],
      behaves "the target has ended" atEnded [["thrower goes on"]],
      behaves
        "a masked target waits for an MVar"
        atBlocked
        [ ["target gets x", "target takes", "thrower goes on"],
          ["target gets x", "thrower goes on"],
          -- The exception arrives after the target has looked for it.
          ["target takes", "thrower goes on"]
        ],
      behaves "two threads throw at one" twoAtOne [["target gets x", "target gets y"]],
      behaves "the target has not begun" atNew [["target gets x", "thrower goes on"], ["thrower goes on"]]
    ]

-- | The outcomes of a program, which are its logged lines in alphabetical order.
behaves :: TestName -> Program -> [[String]] -> TestTree
behaves name (Program program) expected = testCase name $ do
  outcomes <- newIORef []
  let record outcome = modifyIORef outcomes (nub . (outcome :))
      scenario = do
        logs <- newIORef []
        let check stuck = do
              said <- readIORef logs
              record (sort (["thread " <> show t <> " is stuck" | t <- stuck] <> said))
              pure Nothing
        pure (Scenario [program simulated (\s -> modifyIORef logs (s :))] check)
  result <- exploreWithin 3 scenario
  case result of
    AllHold _ -> pure ()
    Broken _ why _ -> assertFailure why
  readIORef outcomes >>= (@?= sort expected) . sort
  capabilities <- Ghc.getNumCapabilities
  forM_ [1, 2] $ \n -> do
    Ghc.setNumCapabilities n
    seen <- replicateM 200 (observed (Program program)) `Ghc.finally` Ghc.setNumCapabilities capabilities
    nub seen \\ expected @?= []

-- | The outcome of one run in GHC's run-time system.
observed :: Program -> IO [String]
observed (Program program) = do
  logs <- newIORef []
  done <- Ghc.newEmptyMVar
  _ <- Ghc.forkIO $ do
    program real (\s -> atomicModifyIORef logs (\said -> (s : said, ())))
    Ghc.putMVar done ()
  ended <- timeout 60000000 (Ghc.takeMVar done)
  ended @?= Just ()
  sort <$> readIORef logs
