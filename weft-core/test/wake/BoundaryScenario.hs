-- |
-- Scenarios of the boundary around callbacks ("Weft.Core.Boundary"), on the simulated machine. Thread 0 is a dispatcher
-- in each.
module BoundaryScenario
  ( throwing,
    throwingAtOnce,
    thrownAt,
    closedBehind,
    closedBehindRemover,
    Handler (..),
  )
where

import Control.Exception (AsyncException (..), ErrorCall (..), SomeException (..), evaluate, throw)
import Control.Monad
import Data.IORef
import Data.List (sort)
import Kernel
import ManagerMachine
import Simulation (Scenario, blockUntil)
import Weft.Core.Boundary
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Registry
import Weft.Core.Time (Instant (..))
import Weft.Sys

-- | What the program's handler for uncaught exceptions does.
data Handler = Throws | Blocks
  deriving (Eq)

-- | Install a handler that counts its calls, and does that.
handler :: Handler -> IO (IORef Int)
handler kind = do
  calls <- newIORef 0
  setUncaughtHandler $ \e -> do
    modifyIORef' calls (+ 1)
    case kind of
      -- It throws another exception if this one cannot be shown.
      Throws -> throwing' (ErrorCall (show e))
      Blocks -> newEmptyMVar >>= takeMVar
  pure calls

throwing' :: ErrorCall -> IO a
throwing' e = evaluate (throw e)

-- | Actions that throw: an exception, an exception that cannot be shown, an undefined exception, a stack overflow.
failures :: [IO ()]
failures =
  [ throwing' (ErrorCall "a callback failed"),
    throwing' (error "an exception that cannot be shown"),
    evaluate (throw (error "an undefined exception" :: SomeException)),
    evaluate (throw StackOverflow)
  ]

-- | Timers and callbacks, some of which throw, and a handler. All others run, and the manager goes on. Each exception
-- is reported, unless the handler blocks.
throwing :: Handler -> Setting -> IO Scenario
throwing kind setting = do
  x <- machine setting 1
  reported <- handler kind
  (r, w) <- newPipe
  ran <- newIORef (0 :: Int)
  let m = firstManager x
      ok = modifyIORef' ran (+ 1)
      later t act = void (addTimer m (Instant t) act)
      registrar = do
        forM_ failures $ \failing -> later 20 failing >> later 20 ok
        forM_ (take 1 failures <> [ok]) $ \act -> register (theRegistry x) m (fd r) evtRead OneShot (\_ _ -> act)
        void (writeBytes w [1])
        later 40 ok
  pure . finally' x (0 : [2 | kind == Blocks]) [dispatcher x 0, registrar] $ do
    n <- readIORef ran
    calls <- readIORef reported
    stillRuns <- isAlive m
    pure . holdsThat $
      [ (n == length failures + 2, "of the others ran " <> show n),
        (stillRuns, "the manager has ended"),
        (kind == Blocks || calls == length failures + 1, "reported were " <> show calls)
      ]

-- | Exceptions of two threads, at any moment of the reporter: each is reported.
throwingAtOnce :: Setting -> IO Scenario
throwingAtOnce setting = do
  x <- machine setting 1
  reported <- handler Throws
  let fails = contained (throwing' (ErrorCall "a handler failed"))
  pure . finally' x [0] [dispatcher x 0, fails, fails] $ do
    calls <- readIORef reported
    pure (holdsThat [(calls == 2, "reported were " <> show calls)])

-- | The runner is thrown at while a timer's callback can be interrupted. The exception ends the loop after the turn,
-- and not in it; it is not reported. Both timers fire.
thrownAt :: Setting -> IO Scenario
thrownAt setting = do
  x <- machine setting 2
  reported <- handler Throws
  runner <- newIORef Nothing
  ended <- newIORef False
  fired <- newIORef (0 :: Int)
  let m = firstManager x
      doomed = mask_ $ do
        me <- myThreadId
        writeIORef runner (Just me)
        void (tryAll (dispatcher x 0))
        writeIORef ended True
      setter = replicateM_ 2 (addTimer m (Instant 20) (modifyIORef' fired (+ 1) >> interruptiblyMasked allowInterrupt))
      killer = do
        blockUntil (maybe False (const True) <$> readIORef runner)
        readIORef runner >>= mapM_ (`throwAside` ThreadKilled)
        wakeManager m
  pure . finally' x [1] [doomed, dispatcher x 1, setter, killer] $ do
    n <- readIORef fired
    calls <- readIORef reported
    over <- readIORef ended
    pure (holdsThat [(n == 2, "fired were " <> show n), (calls == 0, "reported were " <> show calls), (over, "the loop goes on")])

-- | A descriptor with two callbacks is closed by its number alone, and its duplicate has an event. Arming it again for
-- the other callback fails. That one is told, and another descriptor goes on.
closedBehind :: Setting -> IO Scenario
closedBehind setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  (r', w') <- newPipe
  _ <- duplicate r
  told <- newIORef []
  let m = firstManager x
      registers name n evs = void (register (theRegistry x) m (fd n) evs OneShot (\_ found -> modifyIORef told ((name, found) :)))
      owner = do
        registers 'a' r evtRead
        registers 'b' r evtUrgent
        registers 'c' r' evtRead
        _ <- closeNumber r
        _ <- writeBytes w [1]
        void (writeBytes w' [1])
  pure . finally' x [0] [dispatcher x 0, owner] $ do
    found <- readIORef told
    endedAs x found ["abc"] [e | ('b', e) <- found]

-- | As 'closedBehind', and the other callback is unregistered, which makes the kernel refuse the first one.
closedBehindRemover :: Setting -> IO Scenario
closedBehindRemover setting = do
  x <- machine setting 1
  (r, _) <- newPipe
  (r', w') <- newPipe
  _ <- duplicate r
  told <- newIORef []
  let m = firstManager x
      registers name n evs lifetime = register (theRegistry x) m (fd n) evs lifetime (\_ found -> modifyIORef told ((name, found) :))
      owner = do
        _ <- registers 'a' r evtRead OneShot
        other <- registers 'b' r evtUrgent MultiShot
        _ <- registers 'c' r' evtRead OneShot
        _ <- closeNumber r
        case other of
          Placed key -> void (unregister (theRegistry x) (fd r) key)
          _ -> blame x "it was not placed"
        void (writeBytes w' [1])
  pure . finally' x [0] [dispatcher x 0, owner] $ do
    found <- readIORef told
    -- The back end poll may have noticed the close before.
    endedAs x found ["ac", "abc"] [e | ('a', e) <- found]

-- | The callbacks that were called, and the events of those that the kernel has refused.
endedAs :: Machine -> [(Char, Events)] -> [String] -> [Events] -> IO (Maybe String)
endedAs x found wanted refused = do
  stillRuns <- isAlive (firstManager x)
  known <- registeredCount (theRegistry x)
  pure . holdsThat $
    [ (stillRuns, "the manager has ended"),
      (sort (map fst found) `elem` wanted, "called were " <> show (map fst found)),
      ([e | ('c', e) <- found] == [evtRead], "another descriptor's callback got " <> show [e | ('c', e) <- found]),
      (all (`includes` evtClose) refused, "the refused callback got " <> show refused),
      (known == 0, "descriptors known: " <> show known)
    ]
