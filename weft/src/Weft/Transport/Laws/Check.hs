-- |
-- Tools of "Weft.Transport.Laws": threads with a time limit, bytes to send, expectations.
module Weft.Transport.Laws.Check
  ( -- * Laws
    Law (..),
    Implementation (..),
    Violation (..),

    -- * Within limits
    bounded,
    within,
    Task (..),
    task,
    taskMasked,
    finished,
    untilBlocked,
    isDone,
    Interrupted (..),
    soon,

    -- * Bytes
    receiveAll,
    receiveExactly,
    sample,
    numbers,

    -- * Expecting
    same,
    fails,
    failsWith,
    expectErrno,
    violated,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Foreign.C.Error (Errno (..))
import GHC.Conc (ThreadStatus (..), threadStatus)
import GHC.IO.Exception (IOException (ioe_errno))
import System.Posix.Types (Fd)
import System.Timeout (timeout)
import Weft.Core.Time (Duration, after)
import Weft.Sys (now)
import Weft.Transport

-- | A law: its name, and an action that throws a 'Violation' if it does not hold.
data Law s = Law
  { lawName :: String,
    lawHolds :: s -> IO ()
  }

-- | An implementation of connections that is tested.
data Implementation = Implementation
  { -- | Make both ends of a new connection.
    implementationPair :: IO (Connection, Connection),
    -- | The largest number of bytes that one end can send while the other does not receive; at least 100.
    implementationBound :: Int,
    -- | An open file of at least 200,000 bytes, and its contents.
    implementationFile :: (Fd, ByteString)
  }

-- | How a law was broken.
newtype Violation = Violation String
  deriving (Show)

instance Exception Violation

-- | Run a law on a new connection, for at most 30 seconds, and close it.
bounded :: Implementation -> (Connection -> Connection -> IO ()) -> IO ()
bounded implementation act =
  bracket (implementationPair implementation) (\(a, b) -> connAbort a >> connAbort b) $ \(a, b) ->
    within "the law" (act a b)

within :: String -> IO a -> IO a
within what act = timeout 30000000 act >>= maybe (violated (what <> ": not done after 30 s")) pure

data Task a = Task {taskThread :: !ThreadId, taskResult :: !(MVar (Either SomeException a))}

task, taskMasked :: IO a -> IO (Task a)
task act = do
  done <- newEmptyMVar
  t <- mask_ (forkIOWithUnmask (\unmask -> try (unmask act) >>= putMVar done))
  pure (Task t done)
taskMasked act = do
  done <- newEmptyMVar
  t <- mask_ (forkIO (try act >>= putMVar done))
  pure (Task t done)

finished :: Task a -> IO a
finished t = within "a thread" (readMVar (taskResult t)) >>= either throwIO pure

-- | Wait until the thread waits for something.
untilBlocked :: Task a -> IO ()
untilBlocked t = within "until the thread waits" go
  where
    go =
      threadStatus (taskThread t) >>= \status -> case status of
        ThreadBlocked _ -> pure ()
        ThreadRunning -> yield >> go
        _ -> violated "the thread ended and did not wait"

isDone :: Task a -> IO Bool
isDone t = not <$> isEmptyMVar (taskResult t)

data Interrupted = Interrupted
  deriving (Show)

instance Exception Interrupted

soon :: Duration -> IO Instant
soon d = after d <$> now

receiveAll :: [Int] -> Connection -> IO ByteString
receiveAll = go []
  where
    go acc (n : ns) c = do
      bytes <- connReceive c noDeadline n
      if B.null bytes then pure (B.concat (reverse acc)) else go (bytes : acc) ns c
    go acc [] _ = pure (B.concat (reverse acc))

receiveExactly :: Connection -> Int -> IO ByteString
receiveExactly c = go []
  where
    go acc 0 = pure (B.concat (reverse acc))
    go acc n = do
      bytes <- connReceive c noDeadline n
      if B.null bytes then violated "the stream ended early" else go (bytes : acc) (n - B.length bytes)

-- | That number of bytes. Neighbouring parts differ.
sample :: Int -> ByteString
sample n = B.take n (B.concat (replicate (n `div` B.length block + 1) block))

-- | Its length is not a multiple of any size that the laws send or receive.
block :: ByteString
block = B.concat [B8.pack (show i <> ",") | i <- [0 .. 3000 :: Int]]
{-# NOINLINE block #-}

-- | Numbers that look random (Knuth's MMIX generator).
numbers :: Int -> [Int]
numbers = map (\x -> (x `div` 65536) `mod` 1000000) . drop 1 . iterate (\x -> (x * 6364136223846793005 + 1442695040888963407) `mod` 9223372036854775807)

same :: String -> ByteString -> ByteString -> IO ()
same what wanted got
  | wanted == got = pure ()
  | otherwise =
    violated (what <> ": " <> shown got <> " instead of " <> shown wanted)
  where
    shown bytes = show (B.length bytes) <> " bytes " <> show (B.take 40 bytes)

fails :: String -> IO a -> IO ()
fails what act = do
  r <- try act
  case r of
    Left e -> const (pure ()) (e :: IOException)
    Right _ -> violated (what <> " did not fail")

failsWith :: Errno -> String -> IO a -> IO ()
failsWith errno what act = try act >>= expectErrno errno what . void

expectErrno :: Errno -> String -> Either IOException a -> IO ()
expectErrno errno what r = case r of
  Left e
    | fmap Errno (ioe_errno e) == Just errno -> pure ()
    | otherwise -> violated (what <> " failed otherwise: " <> show e)
  Right _ -> violated (what <> " did not fail")

violated :: String -> IO a
violated = throwIO . Violation
