-- |
-- Closing against beginning to wait. A number that was just closed may be given to a descriptor of
-- Weft's own; a thread that still means the old one gets @EBADF@ all the same (GHC 21969: closing while a
-- wait registers).
module Spec.Closing
  ( tests,

    -- * In a process of its own
    ofAborts,
    aborting,
    abortConnections,
  )
where

import Control.Concurrent hiding (threadDelay, threadWaitRead, threadWaitWrite)
import Control.Exception (bracket, onException, throwIO, try)
import Control.Monad (forM, forM_, unless, when)
import Foreign.C.Error (eBADF)
import GHC.IO.Exception (IOException)
import Harness
import qualified Network.Socket as N
import System.Environment (getExecutablePath)
import System.Exit (ExitCode (..))
import System.Posix.IO (closeFd)
import System.Posix.Types (Fd (..))
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.FFI.Socket (cExpectsLingering)
import Weft.Runtime (stopManagers)
import qualified Weft.Socket as S
import Weft.Test.Descriptors
import Weft.Thread

tests :: TestTree
tests =
  testGroup
    "closing"
    [ testCase "a closed number is not waited for when a manager got it" taken,
      testCase "a closed number is not waited for while managers start" (meanwhile (times 500)),
      testCase "a second close does not close a manager's own descriptor" twice,
      testCase "closing while a wait registers, as managers start (GHC 21969)" (racing (times 300) stopManagers),
      testCase "closing while a wait registers (GHC 21969)" (racing (times 2000) (pure ()))
    ]

-- | The numbers of two pipes are free when the manager starts, and its descriptors get some of them.
taken :: Assertion
taken = forM_ [0 .. 3] $ \which -> forM_ waits $ \(name, wait) -> do
  fds <- freed
  failsWith (name <> " for number " <> show which) eBADF (wait (fds !! which))
  mapM_ (failsWith name eBADF . wait) fds
  finishes "a delay afterwards" (threadDelay 1000)
  where
    waits = [("reading", threadWaitRead), ("writing", threadWaitWrite)]

-- | Threads of all capabilities wait for the numbers while the managers start, whose descriptors get some of them.
meanwhile :: Int -> Assertion
meanwhile rounds = do
  n <- getNumCapabilities
  forM_ [1 .. rounds] $ \i -> do
    fds <- freed
    begin <- newEmptyMVar
    ends <- forM [(cap, fd) | fd <- fds, cap <- [0 .. n - 1]] $ \(cap, fd) -> do
      end <- newEmptyMVar
      _ <- forkOn cap $ readMVar begin >> try (threadWaitRead fd) >>= putMVar end
      pure (fd, end)
    putMVar begin ()
    forM_ ends $ \(fd, end) -> do
      let name = "round " <> show i <> ": reading " <> show fd
      ended <- within 20 (name <> ": its end") (takeMVar end)
      failsWith name eBADF (either throwIO pure (ended :: Either IOException ()))

twice :: Assertion
twice = do
  fds <- freed
  finishes "a delay, which starts the manager" (threadDelay 1000)
  forM_ fds $ \fd -> failsWith ("closing " <> show fd <> " again") eBADF (closeFdWith closeFd fd)
  finishes "a delay afterwards" (threadDelay 1000)

-- | Without managers: numbers that have just been closed.
freed :: IO [Fd]
freed = withFds $ \fds -> do
  stopManagers
  (a, b) <- pipe fds
  (c, d) <- pipe fds
  pure [a, b, c, d]

-- | In each round a thread waits for a pipe that is always readable, over and over, and another closes it.
racing :: Int -> IO () -> Assertion
racing rounds before = withFds $ \fds -> forM_ [1 .. rounds] $ \i -> do
  before
  (r, w) <- pipe fds
  when (i `mod` 3 /= 0) (say w 1)
  begun <- newEmptyMVar
  done <- newEmptyMVar
  let waiting = threadWaitRead r >> waiting
  _ <- forkIO $ do
    putMVar begun ()
    _ <- try waiting :: IO (Either IOException ())
    putMVar done ()
  takeMVar begun
  when (even i) yield
  when (i `mod` 5 == 0) (threadDelay (i `mod` 70))
  closeFdWith (shut fds) r
  within 20 ("round " <> show i <> ": the end of the wait") (takeMVar done) `onException` shut fds w
  shut fds w

-- | A socket that lingers makes all later closes ask the kernel, for as long as the process lives: this program, with
-- an argument.
ofAborts :: TestTree
ofAborts = testCase "after an abort, a close does not ask whether the socket lingers" $ do
  program <- getExecutablePath
  within 100 "a process that aborts" (readProcessWithExitCode program [aborting] "") >>= (@?= (ExitSuccess, "", ""))

-- | The argument.
aborting :: String
aborting = "aborting"

-- | What it does then.
abortConnections :: IO ()
abortConnections = do
  expects 0 "at first"
  forM_ [N.StructLinger 1 0, N.StructLinger 0 0, N.StructLinger 0 5] $ \l -> withTcpSocket $ \s -> S.setSockOpt s S.Linger l
  expects 0 "after aborts"
  withTcpSocket $ \s -> S.setSockOpt s S.Linger (N.StructLinger 1 1)
  expects 1 "after a socket that lingers"
  where
    withTcpSocket = bracket (S.socket S.AF_INET S.Stream S.defaultProtocol) S.close
    expects n what = cExpectsLingering >>= \found -> unless (found == n) (error (what <> ": " <> show found))
