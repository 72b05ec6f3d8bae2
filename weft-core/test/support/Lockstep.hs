-- |
-- Lockstep tests: programs of commands run on managers and on a model of them ("LockstepModel"), one command at a time.
-- After each command, the calls of callbacks and timers, the results, and the counts of the registry and of the timers
-- have to equal the model's. A failing program is shortened for as long as it fails.
--
-- The thread that gives the commands also runs the managers' turns, so that it knows when each turn is done. A
-- 'Machine' has the operations that depend on the machine, real or simulated.
module Lockstep
  ( Machine (..),
    inLockstep,
    caughtInLockstep,
    wantedCommands,
  )
where

import Control.Exception (SomeException, try)
import Control.Monad
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (fromMaybe, isJust)
import LockstepModel
import System.Environment (lookupEnv)
import System.Posix.Types (Fd)
import Test.QuickCheck (Gen, arbitraryBoundedEnum, choose, elements, frequency, shrinkList, vectorOf)
import Test.QuickCheck.Gen (unGen)
import Test.QuickCheck.Random (mkQCGen)
import Test.Tasty (TestName, TestTree)
import Test.Tasty.HUnit (assertFailure, testCaseSteps)
import Text.Read (readMaybe)
import Weft.Core.Backend
import Weft.Core.Descriptor
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Readiness (token)
import Weft.Core.Registry
import Weft.Core.Time
import Weft.Core.Timer (Queue, Timer, cancelTimer, fireTimer)
import Weft.Sys (now, tryTakeMVar)

-- | A machine on which programs run.
data Machine = Machine
  { -- | Run a program, given a seed for the machine's own choices; returns the error.
    machineRun :: Int -> IO (Maybe String) -> IO (Maybe String),
    machineBackend :: IO Backend,
    machineQueue :: IO Queue,
    machineRules :: Rules,
    -- | A pipe; the reading end first.
    machinePipe :: IO (Fd, Fd),
    -- | Write or read a byte; whether that was possible.
    machineWrite :: Fd -> IO Bool,
    machineRead :: Fd -> IO Bool,
    -- | Write until the pipe is full; read until it is empty.
    machineFill :: Fd -> IO (),
    machineDrain :: Fd -> IO (),
    machineClose :: Fd -> IO (),
    -- | Let the given time pass.
    machinePause :: Duration -> IO ()
  }

-- | The number of commands for each machine: @WEFT_LOCKSTEP@, or this many.
wantedCommands :: Int -> IO Int
wantedCommands usual = maybe usual (fromMaybe usual . readMaybe) <$> lookupEnv "WEFT_LOCKSTEP"

-- Programs ------------------------------------------------------------------------------

newtype Program = Program [Command]

instance Show Program where
  show (Program cs) = show (length cs) <> " commands\n" <> unlines (map (("  " <>) . show) cs)

-- | Programs that mostly begin by opening the pipes.
program :: Gen Program
program = do
  n <- choose (10, 90)
  Program <$> ((map Open [0 .. pipeCount - 1] <>) <$> vectorOf n command)

command :: Gen Command
command =
  frequency
    [ (3, Open <$> pipe),
      (6, Write <$> pipe),
      (2, Fill <$> pipe),
      (3, ReadOne <$> pipe),
      (4, Drain <$> pipe),
      (8, Register <$> end <*> manager <*> events <*> elements [OneShot, MultiShot]),
      (5, Unregister <$> old),
      (3, Close <$> end),
      (3, Track <$> end),
      (5, Attach <$> old <*> manager),
      (6, Take <$> old <*> elements [Reading, Writing]),
      (2, CloseTracked <$> old),
      (5, Set <$> manager <*> arbitraryBoundedEnum),
      (3, Cancel <$> old),
      (1, Restart <$> manager),
      (14, pure Look),
      (3, Step <$> manager),
      (1, pure Pause)
    ]
  where
    pipe = choose (0, pipeCount - 1)
    end = choose (0, 2 * pipeCount - 1)
    manager = choose (0, managerCount - 1)
    events = elements [evtRead, evtWrite, evtRead <> evtWrite]
    -- Counted from the newest.
    old = frequency [(3, choose (0, 2)), (1, choose (0, 30))]

shorter :: Program -> [Program]
shorter (Program cs) = map Program (shrinkList simpler cs)
  where
    simpler c = case c of
      Register e i evs MultiShot -> [Register e i evs OneShot]
      _ -> []

-- | Test that random programs with this many commands in total agree with the model.
inLockstep :: TestName -> Machine -> Int -> TestTree
inLockstep name machine wanted = testCaseSteps name $ \say -> do
  seed <- maybe 1 (fromMaybe 1 . readMaybe) <$> lookupEnv "WEFT_LOCKSTEP_SEED"
  (n, found) <- searching machine seed wanted
  say (show n <> " commands, from seed " <> show seed)
  forM_ found (\(s, p, why) -> assertFailure (unlines ["by WEFT_LOCKSTEP_SEED=" <> show s <> ", " <> show p <> why]))

-- | Test that a program of at most this many commands shows the machine's bug.
caughtInLockstep :: TestName -> Int -> Machine -> TestTree
caughtInLockstep name most machine = testCaseSteps name $ \say -> do
  (n, found) <- searching machine 1 20000
  case found of
    Nothing -> assertFailure ("not caught by " <> show n <> " commands")
    Just (_, p@(Program cs), why) -> do
      say ("after " <> show n <> " commands; " <> show p <> why)
      when (length cs > most) (assertFailure ("the shortest program that was found has " <> show (length cs) <> " commands"))

-- | Run random programs, from a seed on, until this many commands have run. Returns how many have, and the failure: the
-- seed, the shortest failing program that was found, and the error.
searching :: Machine -> Int -> Int -> IO (Int, Maybe (Int, Program, String))
searching machine = go 0
  where
    go n seed wanted
      | n >= wanted = pure (n, Nothing)
      | otherwise = do
        let p@(Program cs) = unGen program (mkQCGen seed) 30
            n' = n + length cs
        outcome <- attemptOf seed p
        case outcome of
          Nothing -> go n' (seed + 1) wanted
          Just why -> (\(p', why') -> (n', Just (seed, p', why'))) <$> shrunk seed p why (2000 :: Int)
    attemptOf seed p = machineRun machine seed (runProgram machine p)
    -- Continue with the first shorter program that fails too.
    shrunk seed p why = try' (shorter p)
      where
        try' [] _ = pure (p, why)
        try' (q : qs) left
          | left <= 0 = pure (p, why)
          | otherwise = attemptOf seed q >>= maybe (try' qs (left - 1)) (\why' -> shrunk seed q why' (left - 1))

-- Running ----------------------------------------------------------------------------------

-- | The objects that a program has created.
data Made = Made
  { theRegistry :: Registry Manager,
    theManagers :: IORef (IntMap.IntMap Manager),
    -- | The descriptors by end: the open ones, and the closed ones.
    theNumbers :: IORef (IntMap.IntMap Fd),
    theKeys :: IORef (IntMap.IntMap (Fd, Int)),
    theTracked :: IORef (IntMap.IntMap Descriptor),
    theTimers :: IORef (IntMap.IntMap (IO Bool)),
    -- | The observations since the last command, newest first.
    theSeen :: IORef [Seen]
  }

-- | Run a program from an empty state, and clean up. Returns the error.
runProgram :: Machine -> Program -> IO (Maybe String)
runProgram machine (Program cs) = do
  seen <- newIORef []
  registry <- newManagerRegistry
  made <- Made registry <$> newIORef IntMap.empty <*> newIORef IntMap.empty <*> newIORef IntMap.empty <*> newIORef IntMap.empty <*> newIORef IntMap.empty <*> pure seen
  forM_ [0 .. managerCount - 1] (newManagerAt machine made)
  outcome <- try (go made (initial (machineRules machine)) (zip [0 :: Int ..] cs))
  managers <- readIORef (theManagers made)
  mapM_ shutdown managers
  numbers <- readIORef (theNumbers made)
  mapM_ (machineClose machine) numbers
  pure (either (\e -> Just ("it threw " <> show (e :: SomeException))) id outcome)
  where
    go made model [] = finished made model
    go made model ((n, c) : rest) = do
      r <- runCommand machine made n model c
      checked <- either (pure . Left) (agree made) r
      case checked of
        Left why -> pure (Just ("command " <> show n <> ", " <> show c <> ": " <> why))
        Right model' -> go made model' rest
    finished made model = either (Just . ("at the end: " <>)) (const Nothing) <$> runTurn machine made (pollAll made) model

-- | Compare the counts.
agree :: Made -> Model -> IO (Either String Model)
agree made model = do
  known <- registeredCount (theRegistry made)
  managers <- readIORef (theManagers made)
  pending <- forM (IntMap.toList managers) (\(i, m) -> (,) i <$> managerPending m)
  pure $ case [(i, n) | (i, n) <- pending, n /= pendingTimers i model] of
    _ | known /= knownCount model -> Left ("the registry knows " <> show known <> " descriptors, and should " <> show (knownCount model))
    (i, n) : _ -> Left ("manager " <> show i <> " has " <> show n <> " timers, and should have " <> show (pendingTimers i model))
    [] -> Right model

newManagerAt :: Machine -> Made -> Int -> IO ()
newManagerAt machine made i = do
  queue <- machineQueue machine
  m <- newManager i (theRegistry made) queue toNext (machineBackend machine)
  ok <- initialize m
  unless ok (ioError (userError "a new manager cannot be run"))
  modifyIORef' (theManagers made) (IntMap.insert i m)
  where
    toNext :: Timer -> IO ()
    toNext t = do
      m <- managerAt made (nextOf i)
      alive <- isAlive m
      if alive then moveTimer m t else void (fireTimer t)

-- | The manager that gets the timers of that one when it is stopped.
nextOf :: Int -> Int
nextOf i = (i + 1) `mod` managerCount

managerAt :: Made -> Int -> IO Manager
managerAt made i = (IntMap.! i) <$> readIORef (theManagers made)

-- | Pass the observations to the model.
observed :: Made -> When -> Model -> IO (Either String Model)
observed made moment model = do
  seen <- reverse <$> readIORef (theSeen made)
  writeIORef (theSeen made) []
  let after' = foldM (flip (saw moment)) model seen
  pure $ case after' of
    Right m | left@(_ : _) <- leftOf moment m -> Left ("not told, while " <> show moment <> ": " <> unwords left)
    _ -> after'

-- | Run a command, given its number. Returns the error, or the model after the command.
runCommand :: Machine -> Made -> Int -> Model -> Command -> IO (Either String Model)
runCommand machine made n model c = case c of
  Open p
    | endOpen model (2 * p) || endOpen model (2 * p + 1) -> unchanged
    | otherwise -> do
      (r, w) <- machinePipe machine
      modifyIORef' (theNumbers made) (IntMap.insert (2 * p) r . IntMap.insert (2 * p + 1) w)
      quietly (opened p model)
  Write p
    | room model p > 0 -> do
      ok <- machineWrite machine =<< numberOf (2 * p + 1)
      result "the write" True ok (written p model)
    | otherwise -> unchanged
  Fill p
    | room model p > 0 -> do
      numberOf (2 * p + 1) >>= machineFill machine
      quietly (filled p model)
    | otherwise -> unchanged
  ReadOne p
    | endOpen model (2 * p) && holds model p > 0 && holds model p < ruleCapacity (machineRules machine) -> do
      ok <- machineRead machine =<< numberOf (2 * p)
      result "the read" True ok (readFrom p (holds model p - 1) model)
    | otherwise -> unchanged
  Drain p
    | endOpen model (2 * p) && holds model p > 0 -> do
      numberOf (2 * p) >>= machineDrain machine
      quietly (readFrom p 0 model)
    | otherwise -> unchanged
  Register e i evs lifetime
    | not (endOpen model e) -> unchanged
    | otherwise -> do
      m <- managerAt made i
      fd <- numberOf e
      placed <- register (theRegistry made) m fd evs lifetime (\_ -> tell . Called n)
      case placed of
        Placed key -> do
          modifyIORef' (theKeys made) (IntMap.insert n (fd, key))
          quietly (registered n e i evs lifetime model)
        ManagerGone -> pure (Left "the manager is said to be gone")
        Ready -> pure (Left "a pipe is said to be always ready")
  Unregister back -> withOld theKeys back $ \k (fd, key) -> do
    was <- unregister (theRegistry made) fd key
    result "unregister" (isLive model k) was (unregistered k model)
  Close e
    -- The registry does not know a descriptor that was never waited for; closing that by its number would be an error
    -- of the program.
    | not (endOpen model e) || trackedAlone model e -> unchanged
    | otherwise -> do
      fd <- numberOf e
      closeRegistered (theRegistry made) fd (const (machineClose machine fd))
      modifyIORef' (theNumbers made) (IntMap.delete e)
      fmap (closed e) <$> observed made (Closing e) model
  Track e
    | endOpen model e && not (isJust (trackedOf model e)) -> do
      fd <- numberOf e
      d <- newDescriptor (pure (theRegistry made)) (managerAt made 0) fd (\_ -> pure () <$ machineClose machine fd)
      modifyIORef' (theTracked made) (IntMap.insert n d)
      quietly (tracks n e model)
    | otherwise -> unchanged
  Attach back i -> withOld theTracked back $ \k d -> do
    m <- managerAt made i
    found <- useDescriptor d (attach (theRegistry made) m (descriptorReadiness d)) >>= sequence
    case found of
      Nothing -> result "whether it is open" (trackedOpen model k) False model
      Just ManagerStopped -> pure (Left "the manager is said to be gone")
      Just (BeingClosed _) -> pure (Left "the number is said to be closing")
      Just (Serving serving)
        | not (trackedOpen model k) -> pure (Left "it is closed, and was attached")
        | otherwise -> do
          let (j, model') = attached k i model
          expected <- managerAt made j
          result "the manager that serves it" True (sameManager serving expected) model'
  Take back direction -> withOld theTracked back $ \k d -> do
    got <- isJust <$> tryTakeMVar (token (descriptorReadiness d) direction)
    if trackedOpen model k
      then do
        unless got (resumed d direction)
        let after' = tokenTaken k direction got model
        if tokenMust model k direction && not got then pure (Left "the token is not there") else quietly after'
      else unchanged
  CloseTracked back -> withOld theTracked back $ \k d -> do
    was <- closeDescriptor d
    case trackedEnd model k of
      Just e -> do
        modifyIORef' (theNumbers made) (IntMap.delete e)
        r <- observed made (Closing e) model
        pure (if was then closed e <$> r else Left "it is said to have been closed")
      Nothing -> result "the close" False was model
  Set i delay -> do
    m <- managerAt made i
    t <- now
    let due = after (span' delay) t
        act = now >>= tell . Fired n
    timer <- addTimer m due act
    modifyIORef' (theTimers made) (IntMap.insert n (cancelTimer timer))
    quietly (timerSet n i due model)
  Cancel back -> withOld theTimers back $ \k cancelIt -> do
    was <- cancelIt
    result "the cancel" (timerIsLive model k) was (timerCancelled k model)
  Restart i -> do
    managerAt made i >>= shutdown
    r <- observed made (Stopping i) model
    newManagerAt machine made i
    pure (stopped i (nextOf i) <$> r)
  Look -> runTurn machine made (pollAll made) model
  Step i -> do
    t <- now
    let soon = after (milliseconds 5) t
    if owedBy soon i model
      then do
        m <- managerAt made i
        -- If it slept through the coming events, it would sleep until then.
        slept <- newIORef False
        guard' <- addTimer m (after (seconds 20) t) (writeIORef slept True)
        r <- runTurn machine made (void (step m)) model
        over <- readIORef slept
        _ <- cancelTimer guard'
        pure (if over then Left "it slept, and there was something to do" else r)
      else runTurn machine made (pollAll made) model
  Pause -> machinePause machine (milliseconds 2) >> quietly model
  where
    unchanged = quietly model
    quietly = observed made Otherwise
    tell s = modifyIORef' (theSeen made) (s :)
    numberOf e = (IntMap.! e) <$> readIORef (theNumbers made)
    result what expected got model'
      | expected == got = quietly model'
      | otherwise = pure (Left (what <> " gave " <> show got))
    withOld :: (Made -> IORef (IntMap.IntMap a)) -> Int -> (Int -> a -> IO (Either String Model)) -> IO (Either String Model)
    withOld field back act = do
      all' <- IntMap.toDescList <$> readIORef (field made)
      case all' of
        [] -> unchanged
        _ -> let (k, x) = all' !! (back `mod` length all') in act k x
    span' delay = case delay of
      Past -> milliseconds (-3)
      Now -> mempty
      Soon -> milliseconds 1
      Later -> seconds 3600
    -- As before a wait ("Weft.Core.Descriptor").
    resumed d direction = do
      managers <- readIORef (theManagers made)
      forM_ managers $ \m -> forM_ (backendResume (managerBackend m)) $ \resume ->
        void (useDescriptor d (resume (descriptorFd d) (case direction of Reading -> evtRead <> evtPeerClosed; Writing -> evtWrite)))

pollAll :: Made -> IO ()
pollAll made = readIORef (theManagers made) >>= mapM_ poll

-- | Run turns, beginning with this one, until everything expected has been observed.
runTurn :: Machine -> Made -> IO () -> Model -> IO (Either String Model)
runTurn machine made first model0 = do
  start <- now
  let go :: Int -> IO () -> Model -> IO (Either String Model)
      go tries turn model = do
        turn
        r <- observed made Turn model
        case r of
          Left why -> pure (Left why)
          Right model'
            | null (owed start model') -> pure (Right model')
            | tries > 0 -> do
              when (tries < 40) (machinePause machine (milliseconds 1))
              go (tries - 1) (pollAll made) model'
            | otherwise -> pure (Left ("it did not come: " <> unwords (owed start model')))
  -- The last turn is for all managers, since a step runs only one: before it, the others may still report what has
  -- been since their last turn. A kernel that refuses requests makes a poll late, several times in a row.
  r <- go 1000 first model0
  case r of
    Right model -> fmap turnOver <$> go 1000 (replicateM_ 8 (pollAll made)) model
    Left why -> pure (Left why)
