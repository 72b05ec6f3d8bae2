-- |
-- What callbacks, timers and the program's handler for uncaught exceptions may do, and what goes on all the same:
-- managers, and the other callbacks and timers of the same turn.
module Spec.Boundary
  ( tests,
  )
where

import Control.Concurrent hiding (threadDelay)
import Control.Exception
import Control.Monad (forM_, void)
import Data.IORef
import Foreign.C.Types (CInt (..))
import GHC.Conc (getUncaughtExceptionHandler, setUncaughtExceptionHandler)
import Harness
import Spec.Event (counter, withManager)
import System.Mem (performMajorGC)
import System.Posix.Types (Fd (..))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Event
import Weft.Test.Descriptors
import Weft.Thread (threadDelay)
import Weft.Timer (schedule)

tests :: TestTree
tests = testGroup "what ends no turn" [testGroup "exceptions" exceptions, testGroup "arming again" rearming]

-- Exceptions ---------------------------------------------------------------------------

-- | Run a test with a handler for uncaught exceptions. When it has passed, wait until all exceptions have been
-- reported, so that no other test hears of them: they are reported in order, so an exception that is thrown last is the
-- last.
handledBy :: (SomeException -> IO ()) -> IO () -> IO ()
handledBy handler act = bracket getUncaughtExceptionHandler setUncaughtExceptionHandler $ \_ -> do
  setUncaughtExceptionHandler handler
  act
  lastOne <- newEmptyMVar
  setUncaughtExceptionHandler (\e -> maybe (pure ()) (\Final -> putMVar lastOne ()) (fromException e))
  _ <- schedule mempty (throwIO Final)
  -- A collection ends a handler that is blocked for ever.
  eventually "all exceptions are reported" (performMajorGC >> (maybe False (const True) <$> tryReadMVar lastOne))

data Final = Final deriving (Show)

instance Exception Final

-- | An exception that cannot be shown.
data Unspeakable = Unspeakable

instance Show Unspeakable where
  show _ = error "this exception cannot be shown"

instance Exception Unspeakable

-- | What a callback may throw.
thrown :: [IO ()]
thrown =
  [ throwIO (userError "a callback's exception"),
    throwIO Unspeakable,
    throwIO (SomeException (throw Unspeakable :: ErrorCall)),
    throwIO (throw Unspeakable :: SomeException),
    throwIO StackOverflow
  ]

-- | Handlers that fail in some way.
handlers :: [(String, SomeException -> IO ())]
handlers =
  [ ("throws", \_ -> throwIO (userError "the log's disk is full")),
    ("shows the exception", \e -> void (evaluate (length (show e)))),
    ("is slow", \_ -> threadDelay 20000),
    ("blocks", \_ -> newEmptyMVar >>= takeMVar),
    ("throws an asynchronous exception", \_ -> throwIO ThreadKilled)
  ]

exceptions :: [TestTree]
exceptions =
  concat
    [ [ testCase ("a handler that " <> how <> ": delays and timers of a dispatcher") . handledBy handler $ do
          (delayed, delays) <- counter
          (fired, timers) <- counter
          forM_ (concat (replicate 20 thrown)) $ \throws -> do
            _ <- schedule (milliseconds 10) throws
            _ <- schedule (milliseconds 10) fired
            forkIO (threadDelay 10000 >> delayed)
          eventually "all delays" ((== 100) <$> delays)
          eventually "all timers" ((== 100) <$> timers),
        testCase ("a handler that " <> how <> ": timers and callbacks of a manager") . handledBy handler . withManager $ \m -> withFds $ \fds -> do
          (r, w) <- pipe fds
          (hit, count) <- counter
          forM_ thrown $ \throws -> do
            _ <- registerTimeout m (milliseconds 1) throws
            _ <- registerTimeout m (milliseconds 1) hit
            registerFd_ m (\_ _ -> throws) r evtRead OneShot
            registerFd_ m (\_ _ -> hit) r evtRead OneShot
          say w 1
          eventually "the others" ((== 10) <$> count)
      ]
      | (how, handler) <- handlers
    ]
    <> [ testCase "a handler hears of every exception, in order" $ do
           heard <- newIORef []
           let note e = atomicModifyIORef' heard (\es -> (show e : es, ()))
               expected = [show (userError (show i)) | i <- [1 .. 100 :: Int]]
           handledBy note . withManager $ \m -> do
             forM_ [1 .. 100 :: Int] $ \i -> registerTimeout m (milliseconds i) (throwIO (userError (show i)))
             eventually "all are reported" ((== 100) . length <$> readIORef heard)
           readIORef heard >>= (@?= expected) . reverse
       ]

-- Arming again -------------------------------------------------------------------------

rearming :: [TestTree]
rearming =
  [ testCase "a number that was closed by close(2) ends its own registrations only" . withManager $ \m -> withFds $ \fds -> do
      (r, w) <- pipe fds
      (a, b) <- streamPair fds
      fill a
      copy <- c_dup (fromIntegral a)
      _ <- own fds (Fd copy)
      [other, waiting, reading] <- mapM (const newEmptyMVar) "123"
      registerFd_ m (\_ e -> putMVar other e) r evtRead OneShot
      registerFd_ m (\_ e -> putMVar waiting e) a evtWrite OneShot
      registerFd_ m (\_ e -> putMVar reading e) a evtRead OneShot
      pause 20
      shut fds a
      -- The duplicate reports it, and the number is armed again for what is left.
      say b 1
      e <- finishes "the callback of the event" (takeMVar reading)
      assertBool ("it got " <> show e) (e == evtRead || e == evtClose)
      finishes "the descriptor's other callback" (takeMVar waiting) >>= (@?= evtClose)
      say w 1
      finishes "another descriptor" (takeMVar other) >>= (@?= evtRead),
    testCase "unregistering one of two callbacks of such a number" . withManager $ \m -> withFds $ \fds -> do
      (r, w) <- pipe fds
      (a, _) <- streamPair fds
      copy <- c_dup (fromIntegral a)
      _ <- own fds (Fd copy)
      [other, waiting] <- mapM (const newEmptyMVar) "12"
      registerFd_ m (\_ e -> putMVar other e) r evtRead OneShot
      registerFd_ m (\_ e -> putMVar waiting e) a evtRead OneShot
      key <- registerFd m (\_ _ -> pure ()) a evtUrgent MultiShot
      shut fds a
      _ <- unregisterFd m key
      finishes "the descriptor's other callback" (takeMVar waiting) >>= (@?= evtClose)
      say w 1
      finishes "another descriptor" (takeMVar other) >>= (@?= evtRead)
  ]

foreign import ccall unsafe "dup" c_dup :: CInt -> IO CInt
