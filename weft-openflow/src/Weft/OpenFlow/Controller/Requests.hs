-- |
-- Requests that a switch answers: statistics, barriers, and echoes that show whether it is still there. Any thread may
-- request; the switch's own thread hands in the answers.
--
-- What is outstanding at a switch is bounded. It has at most 'mostPending' requests, and of each kind of statistics
-- one: threads that ask for the same while a request is under way share the next one. They cannot share the one under
-- way, since the switch may have read its counters before they asked: who has added a flow finds it in what is read
-- then.
--
-- @
--   absent        nobody asks                     -> alone        a thread asks: the request is sent
--   alone         a request is under way          -> followed v   another thread asks, and waits for v
--                                                 -> absent       the switch answers, or is given up
--   followed v    a request is under way, and     -> followed v   further threads ask, and wait for v
--                 others wait for the next one    -> alone        the switch answers, or is given up: the next request
--                                                                 is sent
-- @
--
-- A switch that has not answered within 'patience' is not sent the same again until it has, or another 'lateness' is
-- over: otherwise requests that nobody waits for would fill its queue.
module Weft.OpenFlow.Controller.Requests
  ( -- * Requests
    askShared,
    awaitReply,
    isThere,

    -- * Answers
    answered,
    answeredBy,
    switchGone,
  )
where

import Control.Concurrent (forkIOWithUnmask, myThreadId)
import Control.Concurrent.MVar
import Control.Exception (SomeException, bracket_, mask_, try)
import Control.Monad (foldM, forM_, join, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isNothing)
import GHC.Conc (labelThread)
import Weft.Duration (Duration, seconds)
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Timer (within)

-- Requests --------------------------------------------------------------------------------

-- | How long a request waits for its answer.
patience :: Duration
patience = seconds 5

-- | How much longer a switch that did not answer is not sent the same request.
lateness :: Duration
lateness = seconds 25

-- | The maximum number of messages of a switch whose answers are awaited. Further requests are 'TooManyRequests'.
mostPending :: Int
mostPending = 128

-- | The maximum number of kinds of statistics that are requested from a switch at a time.
mostKinds :: Int
mostKinds = 16

-- | Request statistics from a switch. Threads that ask for the same at the same time share requests, as described
-- above. Waits at most twice 'patience': for an earlier request, and for its own.
askShared :: Controller -> Session -> StatsRequest -> IO Outcome
askShared c s request = case encode (sessionVersion s) 0 (StatsRequestMessage False request) of
  Nothing -> pure (Left NotInVersion)
  Just kind -> do
    mine <- newEmptyMVar
    -- Masked: once the request is entered, its thread has to exist.
    var <- mask_ . join . atomicModifyIORef' (sessionReads s) $ \m -> case Map.lookup kind m of
      Just (Just next) -> (m, pure next)
      Just Nothing -> (Map.insert kind (Just mine) m, pure mine)
      Nothing
        | Map.size m >= mostKinds -> (m, mine <$ putMVar mine (Left TooManyRequests))
        | otherwise -> (Map.insert kind Nothing m, mine <$ forkIOWithUnmask (\unmask -> unmask (readingThread c s request kind mine)))
    fromMaybe (Left NoReply) <$> within (patience <> patience) (readMVar var)

-- | Send a request, and again as long as others wait for the next one.
readingThread :: Controller -> Session -> StatsRequest -> ByteString -> MVar Outcome -> IO ()
readingThread c s request kind first = do
  t <- myThreadId
  labelThread t "weft openflow statistics"
  go first
  where
    go var = do
      outcome <- try (pending c s [StatsRequestMessage False request] (publish var))
      either (\e -> report c (Failed (e :: SomeException))) pure outcome
      _ <- tryPutMVar var (Left NoReply)
      join . atomicModifyIORef' (sessionReads s) $ \m -> case Map.lookup kind m of
        Just (Just next) -> (Map.insert kind Nothing m, go next)
        _ -> (Map.delete kind m, pure ())
    publish var sent = case sent of
      Left why -> putMVar var (Left why)
      Right wait -> do
        outcome <- wait patience
        putMVar var (maybe (Left NoReply) (>>= checked (all (answers request))) outcome)
        when (isNothing outcome) (void (wait lateness))

-- | Send messages, and wait that long for a reply to the last one or an ERROR for any of them. A reply with statistics
-- is 'OtherReply'.
awaitReply :: Controller -> Session -> Duration -> [Message] -> IO (Either RequestFailure ())
awaitReply c s most messages =
  pending c s messages $ either (pure . Left) (fmap (maybe (Left NoReply) (void . (>>= checked null))) . ($ most))

checked :: ([StatsReply] -> Bool) -> [StatsReply] -> Outcome
checked expected parts = if expected parts then Right parts else Left OtherReply

-- | Whether the switch sends an answer to an echo request within that time.
isThere :: Controller -> Session -> Duration -> IO Bool
isThere c s most = (`notElem` [Left NoReply, Left NotConnected]) <$> awaitReply c s most [EchoRequest B.empty]

-- | Send messages, and run an action while answers to them are accepted. It gets a function that waits for the outcome.
pending :: Controller -> Session -> [Message] -> (Either RequestFailure (Duration -> IO (Maybe Outcome)) -> IO a) -> IO a
pending c s messages act = do
  numbered <- mapM (\message -> (\xid -> (xid, message)) <$> nextXid s) messages
  var <- newEmptyMVar
  let asking = Map.fromList [(xid, Asking 0 [] var) | (xid, _) <- numbered]
      sendNext before (xid, message) = either (pure . Left) (\() -> sendTo c s xid message) before
      enter m = if Map.size m + length messages > mostPending then m else Map.union asking m
  bracket_ (atomicModifyIORef' (sessionAsking s) (\m -> (enter m, ()))) (atomicModifyIORef' (sessionAsking s) (\m -> (m `Map.difference` asking, ()))) $ do
    -- Requests that are pending when a session leaves are completed. It may have left before this one was added.
    here <- Map.lookup (featuresDatapath (sessionFeatures s)) <$> readIORef (controllerSessions c)
    room <- (\m -> all ((`Map.member` m) . fst) numbered) <$> readIORef (sessionAsking s)
    case () of
      _
        | fmap sessionNumber here /= Just (sessionNumber s) -> act (Left NotConnected)
        | not room -> act (Left TooManyRequests)
        | otherwise -> foldM sendNext (Right ()) numbered >>= act . fmap (\() most -> fmap (fromMaybe (Left NotConnected)) <$> within most (readMVar var))

-- | Whether a reply has the statistics that were requested.
answers :: StatsRequest -> StatsReply -> Bool
answers request reply = case (request, reply) of
  (DescRequest, DescReply _) -> True
  (FlowStatsRequest _, FlowStatsReply _) -> True
  (TableStatsRequest, TableStatsReply _) -> True
  (PortStatsRequest _, PortStatsReply _) -> True
  (PortDescRequest, PortDescReply _) -> True
  _ -> False

-- Answers ---------------------------------------------------------------------------------

-- | Whether the message is a part of the reply to a pending request. The last part completes the request. A reply that
-- is too long is given up, so that the memory that a switch can take is bounded.
answered :: Session -> Header -> Bool -> StatsReply -> IO Bool
answered s h more reply = do
  found <- atomicModifyIORef' (sessionAsking s) $ \m -> case Map.lookup xid m of
    Nothing -> (m, Nothing)
    Just (Asking before parts var)
      | size > mostBytes -> (Map.delete xid m, Just (complete var (Left ReplyTooLong)))
      | more -> (Map.insert xid (Asking size (reply : parts) var) m, Just (pure ()))
      | otherwise -> (Map.delete xid m, Just (complete var (Right (reverse (reply : parts)))))
      where
        size = before + headerLength h
  case found of
    Nothing -> pure False
    Just act -> True <$ act
  where
    complete var = void . tryPutMVar var . Just
    xid = headerXid h
    mostBytes = 16777216

-- | Complete a pending request, if there is one.
answeredBy :: Session -> Xid -> Outcome -> IO Bool
answeredBy s xid result = do
  found <- atomicModifyIORef' (sessionAsking s) (\m -> (Map.delete xid m, Map.lookup xid m))
  case found of
    Nothing -> pure False
    Just (Asking _ _ var) -> True <$ tryPutMVar var (Just result)

-- | The switch has no connection any more: complete all pending requests.
switchGone :: Session -> IO ()
switchGone s = do
  asking <- atomicModifyIORef' (sessionAsking s) (\m -> (Map.empty, m))
  forM_ asking (\(Asking _ _ var) -> tryPutMVar var Nothing)
