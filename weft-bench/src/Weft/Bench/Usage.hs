{-# LANGUAGE CApiFFI #-}

-- |
-- Description : Resources that a program has used
--
-- Runs a program to completion and returns what the kernel counted for it and for the children that it waited for
-- (wait4(2), getrusage(2)). Peak memory is that of the program alone. A child's @ru_maxrss@ begins at the
-- value of its parent at the time of the fork, so @/proc@ is read every few milliseconds instead. The kernel records
-- the peak, so only growth in the last moments of the program can be missed.
module Weft.Bench.Usage
  ( Usage (..),
    Ended (..),
    runMeasured,
  )
where

import Control.Concurrent (forkIO, killThread, newEmptyMVar, putMVar, readMVar, threadDelay)
import Control.Exception (IOException, bracket, mask, onException, throwIO, try, uninterruptibleMask_)
import Control.Monad (forever, void)
import Data.Bits (shiftR, (.&.))
import Data.IORef
import Foreign (Ptr, alloca, allocaBytes, peek, peekByteOff)
import Foreign.C (CInt (..), CLong, throwErrnoIfMinus1Retry)
import GHC.Clock (getMonotonicTime)
import System.IO (IOMode (ReadMode, WriteMode), withFile)
import System.Posix.Signals (sigKILL, signalProcessGroup)
import System.Posix.Types (CPid (..), ProcessID)
import System.Process hiding (env)
import qualified System.Process as P
import Weft.Tools.Proc (peakResidentBytes)

foreign import capi safe "sys/wait.h wait4"
  c_wait4 :: CPid -> Ptr CInt -> CInt -> Ptr () -> IO CPid

-- | Wall-clock seconds, seconds of user and system time, and peak resident bytes.
data Usage = Usage
  { usageWall :: !Double,
    usageCpu :: !Double,
    usagePeak :: !Double
  }
  deriving (Eq, Show)

-- | How a program ended.
data Ended = Exited !Int | Signalled !Int | OutOfTime
  deriving (Eq, Show)

-- | Run a program to completion in this environment, for at most this many seconds. Its input is empty, its output is
-- discarded, and its standard error goes to a file. An exception (Ctrl-C) ends the program and its children first.
runMeasured :: Double -> [(String, String)] -> FilePath -> FilePath -> [String] -> IO (Ended, Usage)
runMeasured limit environment errors path arguments =
  withFile "/dev/null" ReadMode $ \input -> withFile "/dev/null" WriteMode $ \output -> withFile errors WriteMode $ \said -> mask $ \restore -> do
    begun <- getMonotonicTime
    (_, _, _, handle) <-
      createProcess
        (proc path arguments)
          { std_in = UseHandle input,
            std_out = UseHandle output,
            std_err = UseHandle said,
            -- So that its children end with it: if strace is killed, the traced program would go on.
            create_group = True,
            P.env = Just environment
          }
    pid <- getPid handle >>= maybe (ioError (userError (path ++ " ended at once"))) pure
    peak <- newIORef 0
    late <- newIORef False
    -- The wait is a call that no exception interrupts, so that it has a thread of its own.
    result <- newEmptyMVar
    _ <- forkIO (try (timed pid) >>= putMVar result)
    let ends = readMVar result >>= either (throwIO :: IOException -> IO a) pure
    (status, cpu, ended) <-
      restore (bracket (forkIO (watch begun pid peak late)) killThread (const ends))
        -- A second Ctrl-C waits until the program is gone.
        `onException` uninterruptibleMask_ (ignoring (signalProcessGroup sigKILL pid) >> readMVar result)
    overdue <- readIORef late
    most <- readIORef peak
    pure (if overdue then OutOfTime else status, Usage (ended - begun) cpu most)
  where
    timed pid = do
      (status, cpu) <- await pid
      (,,) status cpu <$> getMonotonicTime
    -- The only writer of both references.
    watch begun pid peak late = forever $ do
      now <- getMonotonicTime
      ignoring (peakResidentBytes pid >>= writeIORef peak)
      if now - begun > limit then writeIORef late True >> ignoring (signalProcessGroup sigKILL pid) else pure ()
      threadDelay 4000

-- | Wait for a child to end; returns how it ended, and its seconds of CPU time.
await :: ProcessID -> IO (Ended, Double)
await pid = alloca $ \status -> allocaBytes rusageSize $ \usage -> do
  _ <- throwErrnoIfMinus1Retry "wait4" (c_wait4 pid status 0 usage)
  code <- fromIntegral <$> peek status :: IO Int
  times <- mapM (peekByteOff usage) [0, 8, 16, 24] :: IO [CLong]
  let cpu = case map fromIntegral times of
        [userS, userUs, systemS, systemUs] -> userS + systemS + (userUs + systemUs) / 1e6
        _ -> 0
  pure (if code .&. 0x7f == 0 then Exited (code `shiftR` 8 .&. 0xff) else Signalled (code .&. 0x7f), cpu)
  where
    -- Linux's struct rusage has 144 bytes and begins with two struct timeval.
    rusageSize = 256

ignoring :: IO () -> IO ()
ignoring action = void (try action :: IO (Either IOException ()))
