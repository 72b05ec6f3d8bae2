-- |
-- TCP in the application: a connection is a value in memory, not a file descriptor (Li and Zdancewic 2007,
-- section 4.8). A stack runs on a device ("Weft.Tcp.Device.Tun") and has its own IP
-- addresses; the kernel only carries packets.
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
-- Code that takes a "Weft.Transport" runs on the stack with that one line. The functions below
-- are the underlying operations, for GHC's threads. Any thread may call them, but at most one
-- thread may receive and one may send on a connection at a time. Blocking operations are
-- interruptible and take a deadline ('Weft.Transport.noDeadline' for none).
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

    -- * Inspection
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
    evictingBacklog,
    Choices (..),
    KeepAlive (..),
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
import Foreign.C.Error (eINVAL, errnoToIOError)
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
import Weft.Tcp.Stack.Answers (newAnswers)
import Weft.Tcp.Stack.Input
import Weft.Tcp.Stack.Orphans (noOrphans)
import Weft.Tcp.Stack.Step
import Weft.Tcp.Stack.SynFilter (newSynFilter)
import Weft.Tcp.Transport
import Weft.Tcp.Wire.Address
import Weft.Tcp.Wire.Fragments (noFragments)
import qualified Weft.Timer as Timer
import Weft.Transport (deadlineIn)

-- | Settings for a stack with these addresses: a backlog of 1024 connections, of which at most 128
-- from one source address, and SYN cookies above that, 20,000 a second; at most 32768 connections in TIME-WAIT,
-- and 4096 closed ones whose peer has not closed.
defaultSettings :: [Address] -> StackSettings
defaultSettings addresses =
  StackSettings
    { stackAddresses = addresses,
      stackConfig = defaultConfig,
      stackPolicy = boundedBacklog 1024 128,
      maxTimeWait = 32768,
      maxOrphans = 4096,
      stackCookieRate = 20000,
      stackTap = Nothing,
      stackSoftErrors = Nothing
    }

-- | Start a stack on a device. It has a thread for each queue of the device and one for timers,
-- which wait on Weft's dispatchers. The secret key comes from @\/dev\/urandom@. Throws an 'IOError' (@EINVAL@) for a
-- buffer, an initial window or a timeout below 1.
newStack :: StackSettings -> Device -> IO Stack
newStack s d = do
  forM_ [("receiveBuffer", receiveBuffer), ("sendBuffer", sendBuffer), ("initialSegments", initialSegments), ("minRto", fromEnum . minRto)] $ \(field, value) ->
    when (value (stackConfig s) < 1) $ ioError (errnoToIOError ("Weft.Tcp.newStack: " <> field) eINVAL Nothing Nothing)
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
      <*> newIORef NothingExpires
      -- RFC 6056: the search for a free port begins at an unpredictable port.
      <*> newIORef (49152 + fromIntegral (B.foldl' (\n b -> n * 256 + fromIntegral b) (0 :: Int) (B.drop 16 key) `mod` 16384))
      <*> pure counting
      <*> newIORef False
      <*> newIORef []
      <*> newSynFilter (stackCookieRate s)
      <*> newAnswers
      <*> Sys.newWordArray 256
      <*> newIORef noOrphans
  -- With several queues each queue's thread is pinned to a capability.
  let forkInput i = if length (deviceQueues d) > 1 then forkOn i else forkIO
  inputs <- forM (zip [0 :: Int ..] (deviceQueues d)) $ \(i, q) ->
    worker st (forkInput i) ("weft-tcp input " ++ show i) (inputLoop st q)
  timers' <- worker st forkIO "weft-tcp timers" (timerLoop st)
  writeIORef (workers st) (timers' : inputs)
  pure st
  where
    -- Must be a power of two.
    shardCount = 64 :: Int

-- | Run a user's function. If it throws, run the action and drop the exception. Asynchronous exceptions propagate.
guarded :: IO () -> IO () -> IO ()
guarded onError act =
  act `catch` \e -> case fromException e of
    Just (SomeAsyncException _) -> throwIO (e :: SomeException)
    Nothing -> onError

-- | The function until it first throws; afterwards, a function that does nothing.
untilItThrows :: IO () -> (a -> b -> IO ()) -> IO (a -> b -> IO ())
untilItThrows onError act = do
  works <- newIORef True
  pure $ \a b -> do
    working <- readIORef works
    when working (guarded (writeIORef works False >> onError) (act a b))

-- | Run a loop that ends when the stack is closed. If it ends for another reason, such as an error of
-- the device, the stack's connections are aborted and its listeners closed, so that their users notice: they get
-- @ENETDOWN@.
worker :: Stack -> (IO () -> IO ThreadId) -> String -> IO () -> IO ThreadId
worker st forked name loop = do
  t <- forked (loop `catch` failed)
  t <$ labelThread t name
  where
    failed :: SomeException -> IO ()
    failed e = case fromException e of
      Just ThreadKilled -> pure ()
      _ -> endAll st

-- | Abort all connections, close all listeners, then close the device. Threads that wait on one of them get
-- @ENETDOWN@, and so do later calls.
closeStack :: Stack -> IO ()
closeStack st = stop `finally` deviceClose (device st)
  where
    stop = do
      writeIORef (stopped st) True
      me <- myThreadId
      loops <- readIORef (workers st)
      forM_ loops (\t -> unless (t == me) (killThread t))
      endAll st

-- | Wait until no connections are left except those in TIME-WAIT, at most for the given time. The result is 'False'
-- if others are left. A closed connection ends when its peer has acknowledged all data and the FINs have been
-- exchanged. 'closeStack' resets the connections that are left.
drainStack :: Duration -> Stack -> IO Bool
drainStack limit st = deadlineIn limit >>= go
  where
    go deadline = do
      left <- connections st
      t <- Sys.now
      if null left || t >= deadline then pure (null left) else Timer.sleep (milliseconds 5) >> go deadline

-- | Run an action with a stack, which is closed afterwards.
withStack :: StackSettings -> Device -> (Stack -> IO a) -> IO a
withStack s d = bracket (newStack s d) closeStack

-- | The current connections, except those in TIME-WAIT.
connections :: Stack -> IO [Socket]
connections st = do
  shards <- mapM readIORef (elems (table st))
  pure [sock | m <- shards, Live sock <- Map.elems m]

-- | An entry of the connection table, with the state of the connection. A connection in TIME-WAIT has none, since the
-- stack keeps only a few words for it.
data Row = Row !Flow !(Maybe Summary)
  deriving (Show)

-- | Up to the given number of rows, and the number of connections beyond it. Each row is a snapshot taken at its own
-- time. The call waits for a step of a connection that is running.
connectionTable :: Stack -> Int -> IO ([Row], Int)
connectionTable st most = do
  entries <- concat <$> mapM (fmap Map.toList . readIORef) (elems (table st))
  rows <- forM (take most entries) $ \(f, e) -> case e of
    Live sock -> Row f . Just <$> inspect sock summary
    Lingering _ -> pure (Row f Nothing)
  pure (rows, length (drop most entries))
