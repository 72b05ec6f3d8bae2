{-# LANGUAGE OverloadedStrings #-}

-- |
-- A web server's program on the simulated machine, applications for it, and clients that use the model kernel's
-- sockets.
module ServerMachine
  ( -- * The server
    Setting (..),
    onEpoll,
    onPoll,
    onUring,
    Plan (..),
    plain,
    serving,

    -- * Applications
    echoing,
    returning,
    large,

    -- * Clients
    End (..),
    Seen,
    unseen,
    connecting,
    sending,
    receivingUntil,
    receivingBy,
    toTheEnd,
    get,
    lastGet,
    answers,
    expecting,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Kernel
import KernelSocket
import Network.HTTP.Types (status200)
import Network.Wai (Application, getRequestBodyChunk, rawPathInfo, responseLBS)
import Simulation (Scenario (..), blockUntil, patientClock)
import qualified Weft.Backend.Choice as Choice
import qualified Weft.Backend.Epoll as Epoll
import qualified Weft.Backend.Poll as Poll
import qualified Weft.Backend.Uring as Uring
import Weft.Duration (seconds)
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Http.Limits
import Weft.Http.Server
import Weft.Http.Settings
import Weft.Runtime.Managers (stopManagers)
import qualified Weft.Socket as W

-- | The back end, and how often the kernel may misbehave.
data Setting = Setting (IO ()) Faults

onEpoll, onPoll, onUring :: Setting
onEpoll = Setting (Choice.useBackend Epoll.new) noFaults
onPoll = Setting (Choice.useBackend Poll.new) noFaults
onUring = Setting (Choice.useBackend (preferRingEntries (Just 8) >> Uring.new)) noFaults

-- | A server, an action that runs beside it, and the clients.
data Plan = Plan
  { planLimits :: Limits,
    planTimeout :: Int,
    planApplication :: Application,
    -- | Runs while the clients run.
    planBeside :: Server -> IO (),
    -- | Whether the server runs until the clients have ended.
    planWaits :: Bool,
    -- | Whether another process may accept from the server's socket.
    planShared :: Bool,
    -- | Runs when the server has ended.
    planAfter :: IO (),
    planClients :: [Server -> IO ()],
    -- | Conditions that must hold at the end, each with its error message.
    planCheck :: IO [(Bool, String)]
  }

-- | A plan with time limits that pass only when no thread can continue.
plain :: Application -> [Server -> IO ()] -> IO [(Bool, String)] -> Plan
plain app = Plan defaultLimits {limitHeadTime = seconds 100000000, limitIdle = seconds 100000000} 100000000 app (const (pure ())) True True (pure ())

serving :: Setting -> Plan -> IO Scenario
serving (Setting backend faults) plan = do
  bootKernel faults
  backend
  patientClock
  up <- newEmptyMVar
  ended <- mapM (const newEmptyMVar) (planClients plan)
  left <- newIORef (-1)
  let program = do
        l <- W.socket W.AF_INET W.Stream W.defaultProtocol
        W.bind l (W.SockAddrInet 8000 (W.tupleToHostAddress (127, 0, 0, 1)))
        W.listen l 8
        withServerWith (options l) settings (planApplication plan) $ \server -> do
          putMVar up server
          planBeside plan server
          when (planWaits plan) $ do
            mapM_ takeMVar ended
            -- The clients' connections end.
            _ <- drainServer server (seconds 100000000)
            serverConnections server >>= writeIORef left
        planAfter plan
        stopManagers
      options l = defaultOptions {optionLimits = Just (planLimits plan), optionListeners = [l], optionSharedListeners = planShared plan}
      settings = defaultSettings {settingsTimeout = planTimeout plan, settingsOnException = \_ _ -> pure (), settingsBeforeMainLoop = pure (), settingsPort = 8000, settingsHost = "127.0.0.1"}
      client (act, done) = (readMVar up >>= act) `finally` putMVar done ()
  pure . Scenario (program : map client (zip (planClients plan) ended)) $ \stuck -> do
    numbers <- openNumbers
    connections <- readIORef left
    claims <- planCheck plan
    pure $ case [why | (False, why) <- claims <> [(null stuck, "never woken: threads " <> show stuck), (null numbers, "left open: " <> show numbers), (not (planWaits plan) || connections == 0, show connections <> " connections are left")]] of
      why : _ -> Just why
      [] -> Nothing

-- Applications --------------------------------------------------------------------------

-- | Responds with the path.
echoing :: Application
echoing request respond = respond (responseLBS status200 [] (L.fromStrict (rawPathInfo request)))

-- | Responds with the request's body.
returning :: Application
returning request respond = whole >>= respond . responseLBS status200 [] . L.fromChunks
  where
    whole = getRequestBodyChunk request >>= \b -> if B.null b then pure [] else (b :) <$> whole

-- | Responds with more bytes than a socket buffers.
large :: Application
large _ respond = respond (responseLBS status200 [] (L.fromStrict (C.replicate 3000 'x')))

-- Clients --------------------------------------------------------------------------------

-- | How a client's stream ended.
data End = Ended | Reset | NoConnection
  deriving (Eq, Show)

type Seen = IORef (ByteString, End)

unseen :: IO Seen
unseen = newIORef ("", NoConnection)

-- | Run a client with a connection, and close it afterwards.
connecting :: (Int -> IO ()) -> Server -> IO ()
connecting act _ = do
  n <- newSocket
  r <- connectSocket n 8000
  when (r == 0) (act n)
  void (closeNumber n)

-- | Send everything; stops at an error.
sending :: Int -> ByteString -> IO ()
sending n bytes = unless (B.null bytes) $ do
  blockUntil (canSend n)
  r <- sendSocket n bytes
  case r of
    -11 -> sending n bytes
    _ | r < 0 -> pure ()
    _ -> sending n (B.drop r bytes)

-- | Receive until the condition holds or the stream ends.
receivingUntil :: Seen -> Int -> (ByteString -> Bool) -> IO ()
receivingUntil = receivingBy 4096

-- | As 'receivingUntil', at most that many bytes at a time.
receivingBy :: Int -> Seen -> Int -> (ByteString -> Bool) -> IO ()
receivingBy most seen n enough = do
  (have, _) <- readIORef seen
  unless (enough have) $ do
    blockUntil (canReceive n)
    r <- receiveSocket n most
    case r of
      Right "" -> writeIORef seen (have, Ended)
      Right bytes -> writeIORef seen (have <> bytes, Ended) >> receivingBy most seen n enough
      Left (-11) -> receivingBy most seen n enough
      Left _ -> writeIORef seen (have, Reset)

toTheEnd :: Seen -> Int -> IO ()
toTheEnd seen n = receivingUntil seen n (const False)

get :: ByteString -> ByteString
get path = "GET " <> path <> " HTTP/1.1\r\nHost: a\r\n\r\n"

lastGet :: ByteString -> ByteString
lastGet path = "GET " <> path <> " HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"

-- | The complete responses with status 200: a head, and a body of its length.
answers :: ByteString -> [ByteString]
answers bytes
  | "HTTP/1.1 200" `B.isPrefixOf` bytes,
    (h, rest) <- B.breakSubstring "\r\n\r\n" bytes,
    not (B.null rest),
    (_, field) <- B.breakSubstring "Content-Length: " h,
    Just (size, _) <- C.readInt (B.drop 16 field),
    B.length rest >= size + 4 =
    B.take size (B.drop 4 rest) : answers (B.drop (size + 4) rest)
  | otherwise = []

expecting :: Seen -> [ByteString] -> IO [(Bool, String)]
expecting seen wanted = do
  (bytes, end) <- readIORef seen
  pure [(answers bytes == wanted, "answers " <> show (answers bytes) <> ", instead of " <> show wanted <> ", of " <> show bytes <> ", " <> show end)]
