-- |
-- "Weft.Event": several registrations of one descriptor whose callbacks are due together, and that end each other.
module Spec.EventTogether
  ( tests,
  )
where

import Control.Concurrent
import Control.Monad (forM, forM_, replicateM_, unless, void, when)
import Data.IORef
import Harness
import Spec.Event (caughtUp, withManager)
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Event
import Weft.Test.Descriptors

tests :: TestTree
tests =
  testGroup
    "callbacks that are due together"
    [ test "the first ends the other's registration: it does not run" $ \m fds lifetime -> do
        (_, calls) <- pair m fds lifetime $ \other -> unregisterFd m other >>= assertBool "it was there"
        caughtUp m fds
        calls >>= (@?= 1) . length,
      test "so does another thread, while the first runs" $ \m fds lifetime -> do
        running <- newEmptyMVar
        go <- newEmptyMVar
        (_, calls) <- pair m fds lifetime $ \other -> putMVar running other >> readMVar go
        other <- finishes "callback" (takeMVar running)
        unregisterFd m other >>= assertBool "it was there"
        unregisterFd m other >>= assertBool "it was there twice" . not
        putMVar go ()
        caughtUp m fds
        calls >>= (@?= 1) . length,
      test "the first closes the descriptor: the other is told, and runs no more" $ \m fds lifetime -> do
        (_, calls) <- pair m fds lifetime $ \other -> do
          closeFd m (shut fds) (keyFd other)
          -- It gets the same number.
          void (pipe fds)
        caughtUp m fds
        found <- calls
        -- The first one's registration lives on if it is a MultiShot, and is told, too.
        found @?= evtRead : replicate (if lifetime == OneShot then 1 else 2) evtClose,
      test "another thread closes it, while the first runs" $ \m fds lifetime -> do
        running <- newEmptyMVar
        go <- newEmptyMVar
        (r, calls) <- pair m fds lifetime $ \other -> putMVar running other >> readMVar go
        void (finishes "callback" (takeMVar running))
        closeFd m (shut fds) r
        putMVar go ()
        caughtUp m fds
        found <- calls
        found @?= evtRead : replicate (if lifetime == OneShot then 1 else 2) evtClose,
      testCase "a registration that the first adds does not replace those that are due" . finishes "adding" . withManager $ \m -> withFds $ \fds -> do
        (r, w) <- pipe fds
        calls <- newIORef ""
        let note name = atomicModifyIORef' calls (\names -> (names <> name, ()))
        forM_ [1 .. 3 :: Int] . const $
          registerFd_ m (\_ _ -> note "a" >> registerFd_ m (\_ _ -> note "b") r evtRead OneShot) r evtRead OneShot
        say w 1
        eventually "all run" ((== 6) . length <$> readIORef calls)
        caughtUp m fds
        names <- readIORef calls
        (length (filter (== 'a') names), length (filter (== 'b') names)) @?= (3, 3),
      testCase "of a OneShot that another thread ends, either the callback runs or unregisterFd returns True" . finishes "race" . withManager $ \m -> withFds $ \fds ->
        forM_ [1 .. times 500] $ \i -> do
          (r, w) <- pipe fds
          runs <- newIORef (0 :: Int)
          keys <- forM [1 .. 1 + i `mod` 3] $ \_ -> registerFd m (\_ _ -> atomicModifyIORef' runs (\n -> (n + 1, ()))) r evtRead OneShot
          say w 1
          replicateM_ (i `mod` 5) yield
          ended <- length . filter id <$> mapM (unregisterFd m) keys
          eventually "the others run" ((== length keys - ended) <$> readIORef runs)
          when (i `mod` 50 == 0) $ caughtUp m fds
          n <- readIORef runs
          unless (n + ended == length keys) (assertFailure (show (n, ended, length keys)))
          closeFd m (shut fds) r
          shut fds w
    ]

test :: String -> (EventManager -> Fds -> Lifetime -> IO ()) -> TestTree
test name act = testGroup name [testCase (show lifetime) (finishes name (withManager (\m -> withFds (\fds -> act m fds lifetime)))) | lifetime <- [OneShot, MultiShot]]

-- | Two registrations of a descriptor that becomes readable. The callback that runs first gets the other one's key, and
-- then takes back its own registration. Returns the descriptor, and the events of all calls.
pair :: EventManager -> Fds -> Lifetime -> (FdKey -> IO ()) -> IO (Fd, IO [Events])
pair m fds lifetime first = do
  (r, w) <- pipe fds
  calls <- newIORef []
  keys <- newEmptyMVar
  done <- newEmptyMVar
  let callback mine key events = do
        earlier <- atomicModifyIORef' calls (\es -> (es <> [events], es))
        when (null earlier) $ do
          both <- readMVar keys
          first (both !! (1 - mine))
          unregisterFd_ m key
          putMVar done ()
  registered <- forM [0, 1] $ \i -> registerFd m (callback i) r evtRead lifetime
  putMVar keys registered
  say w 1
  ended <- pure (readMVar done)
  pure (r, eventually' ended >> readIORef calls)
  where
    eventually' = finishes "the first callback"
