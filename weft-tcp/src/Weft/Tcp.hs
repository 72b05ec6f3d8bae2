-- |
-- TCP in the application: connections that are memory, not descriptors (2007, section
-- 4.8). A stack runs on a device ("Weft.Tcp.Device.Tun") and has addresses of its own; the
-- kernel only carries packets.
--
-- > import Weft.Tcp
-- > import Weft.Tcp.Device.Tun
-- >
-- > main :: IO ()
-- > main = do
-- >   device <- openTun (tunNamed "weft0")
-- >   withStack (defaultSettings [address]) device $ \stack -> do
-- >     listener <- transportListen (tcpTransport stack) (SockAddrInet 80 0)
-- >     ...
-- >   where Just address = parseAddress "10.9.0.2"
--
-- Anything that takes a "Weft.Transport" runs on it by that one line. The functions below
-- are what that is made of, for GHC's threads. All may be used by any thread; of one
-- connection at most one thread receives and one sends at a time. What waits is
-- interruptible, and takes a deadline ('Weft.Transport.noDeadline' if it has none).
--
-- @since 0.1.0
module Weft.Tcp
  ( -- * Stacks
    Stack,
    StackSettings (..),
    defaultSettings,
    newStack,
    closeStack,
    drainStack,
    withStack,
    tcpTransport,

    -- * Connections
    Socket,
    connect,
    recv,
    recvMany,
    send,
    sendMany,
    shutdownSend,
    close,
    abort,
    setChoices,
    socketFlow,

    -- * Listeners
    Listening,
    listen,
    accept,
    closeListening,

    -- * What is going on
    connections,
    Row (..),
    connectionTable,
    Summary (..),
    Counter (..),
    readCounter,
    tableSize,
    inspect,

    -- * Addresses and settings
    Address (..),
    parseAddress,
    showAddress,
    toSockAddr,
    Flow (..),
    Config (..),
    defaultConfig,
    Policy (..),
    Decision (..),
    boundedBacklog,
    Choices (..),
    SoftError (..),
  )
where

import Control.Concurrent (ThreadId, forkIO, forkOn, killThread, myThreadId)
import Control.Concurrent.MVar
import Control.Exception (AsyncException (..), SomeAsyncException (..), SomeException, bracket, catch, finally, fromException, throwIO)
import Control.Monad (forM, forM_, unless, when)
import Data.Array (elems, listArray)
import Data.Array.IO (newArray)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import qualified Data.Sequence as Seq
import GHC.Conc (labelThread)
import System.IO (IOMode (..), withBinaryFile)
import Weft.Duration (Duration, milliseconds)
import qualified Weft.Sys as Sys
import Weft.Tcp.Core
import Weft.Tcp.Core.Listener
import Weft.Tcp.Core.Secret
import Weft.Tcp.Device
import Weft.Tcp.Operation (endAll)
import Weft.Tcp.Socket
import Weft.Tcp.Stack
import Weft.Tcp.Stack.Input
import Weft.Tcp.Stack.Step
import Weft.Tcp.Transport
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Fragments (noFragments)
import qualified Weft.Timer as Timer
import Weft.Transport (deadlineIn)

-- | For those addresses: 1024 connections that wait to be accepted, 128 of a source, then
-- cookies; 32768 in TIME-WAIT.
defaultSettings :: [Address] -> StackSettings
defaultSettings addresses =
  StackSettings
    { stackAddresses = addresses,
      stackConfig = defaultConfig,
      stackPolicy = boundedBacklog 1024 128,
      maxTimeWait = 32768,
      stackTap = Nothing,
      stackSoftErrors = Nothing
    }

-- | Start a stack on a device: a thread for each queue and one for timers, on Weft's
-- dispatchers. The secret key comes from @\/dev\/urandom@.
newStack :: StackSettings -> Device -> IO Stack
newStack s d = do
  key <- withBinaryFile "/dev/urandom" ReadMode (`B.hGet` 18)
  shards <- mapM (const (newIORef Map.empty)) [0 .. shardCount - 1]
  counting <- newArray (0, fromEnum (maxBound :: Counter)) 0
  let onError = countIn counting CallbackErrors
      told = (\tell f e -> guarded onError (tell f e)) <$> stackSoftErrors s
  tap <- mapM (untilItThrows onError) (stackTap s)
  st <-
    Stack d s {stackTap = tap, stackSoftErrors = told} (configFor d 20 (stackConfig s)) (configFor d 40 (stackConfig s)) (secretFrom (B.take 16 key)) (listArray (0, shardCount - 1) shards)
      <$> newIORef Seq.empty
      <*> newIORef Map.empty
      <*> newIORef (Listeners Map.empty Map.empty 32768)
      <*> newIORef []
      <*> newEmptyMVar
      <*> newIORef noFragments
      -- RFC 6056: where the search for a port begins is nobody's guess.
      <*> newIORef (49152 + fromIntegral (B.foldl' (\n b -> n * 256 + fromIntegral b) (0 :: Int) (B.drop 16 key) `mod` 16384))
      <*> pure counting
      <*> newIORef False
      <*> newIORef []
  -- Of several queues each has a capability of its own.
  let forkInput i = if length (deviceQueues d) > 1 then forkOn i else forkIO
  inputs <- forM (zip [0 :: Int ..] (deviceQueues d)) $ \(i, q) ->
    worker st (forkInput i) ("weft-tcp input " ++ show i) (inputLoop st q)
  timers' <- worker st forkIO "weft-tcp timers" (timerLoop st)
  writeIORef (workers st) (timers' : inputs)
  pure st
  where
    -- A power of two.
    shardCount = 64 :: Int

-- | Run a function of the user's: what it throws is dropped, after an action. Exceptions from other threads pass.
guarded :: IO () -> IO () -> IO ()
guarded onError act =
  act `catch` \e -> case fromException e of
    Just (SomeAsyncException _) -> throwIO (e :: SomeException)
    Nothing -> onError

-- | The function until it throws for the first time; from then on nothing.
untilItThrows :: IO () -> (a -> b -> IO ()) -> IO (a -> b -> IO ())
untilItThrows onError act = do
  works <- newIORef True
  pure $ \a b -> do
    working <- readIORef works
    when working (guarded (writeIORef works False >> onError) (act a b))

-- | A loop ends when the stack is closed. If something else ends it, as an error of the
-- device, the stack's connections are aborted and its listeners closed: their users learn of it.
worker :: Stack -> (IO () -> IO ThreadId) -> String -> IO () -> IO ThreadId
worker st forked name loop = do
  t <- forked (loop `catch` failed)
  t <$ labelThread t name
  where
    failed :: SomeException -> IO ()
    failed e = case fromException e of
      Just ThreadKilled -> pure ()
      _ -> endAll st

-- | Stop: connections are aborted and listeners closed, then the device is closed. Threads that wait for one
-- of them get @EBADF@ or @ENETDOWN@, and so do those that come later.
closeStack :: Stack -> IO ()
closeStack st = stop `finally` deviceClose (device st)
  where
    stop = do
      writeIORef (stopped st) True
      me <- myThreadId
      loops <- readIORef (workers st)
      forM_ loops (\t -> unless (t == me) (killThread t))
      endAll st

-- | Wait until the connections that were closed are over, for so long at most: until the
-- peers have acknowledged what was sent and the ends of the streams. Whether nothing is
-- left but TIME-WAIT. Closing a stack at once answers what comes late by resets.
drainStack :: Duration -> Stack -> IO Bool
drainStack limit st = deadlineIn limit >>= go
  where
    go deadline = do
      left <- connections st
      t <- Sys.now
      if null left || t >= deadline then pure (null left) else Timer.sleep (milliseconds 5) >> go deadline

-- | For the time of an action.
withStack :: StackSettings -> Device -> (Stack -> IO a) -> IO a
withStack s d = bracket (newStack s d) closeStack

-- | Those that exist now, but those in TIME-WAIT.
connections :: Stack -> IO [Socket]
connections st = do
  shards <- mapM readIORef (elems (table st))
  pure [sock | m <- shards, Live sock <- Map.elems m]

-- | A connection of the table and how it is. Those in TIME-WAIT are few words only: no
-- figures are left of them.
data Row = Row !Flow !(Maybe Summary)
  deriving (Show)

-- | At most so many rows, and how many connections there are beyond them. Each row is of a
-- moment of its own. Connections whose step runs are waited for.
connectionTable :: Stack -> Int -> IO ([Row], Int)
connectionTable st most = do
  entries <- concat <$> mapM (fmap Map.toList . readIORef) (elems (table st))
  rows <- forM (take most entries) $ \(f, e) -> case e of
    Live sock -> Row f . Just <$> inspect sock summary
    Lingering _ -> pure (Row f Nothing)
  pure (rows, length (drop most entries))
