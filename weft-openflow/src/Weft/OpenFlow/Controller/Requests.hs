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
--   any                                           -> absent       the connection ends: all that wait are told
-- @
--
-- The thread of a request belongs to the connection's scope, and is killed at the connection's end wherever it is. So
-- not the thread tells those that wait then, but 'switchGone', which is called once more after that: no thread is left
-- that could change anything, and one that asks later, and cannot have a thread, calls it itself.
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

import Control.Concurrent.MVar
import Control.Exception (AsyncException (ThreadKilled), SomeException, bracket_, catch, fromException, mask_, throwIO, try)
import Control.Monad (foldM, forM_, join, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isNothing)
import Weft.Duration (Duration, seconds)
import Weft.OpenFlow.Controller.Types
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Scope (Child (..), ScopeEnded (..), daemon, forkUsing)
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
      Just (Reading _ (Just next)) -> (m, pure next)
      Just (Reading now Nothing) -> (Map.insert kind (Reading now (Just mine)) m, pure mine)
      Nothing
        | Map.size m >= mostKinds -> (m, mine <$ putMVar mine (Left TooManyRequests))
        | otherwise -> (Map.insert kind (Reading mine Nothing) m, mine <$ begin kind mine)
    fromMaybe (Left NoReply) <$> within (patience <> patience) (readMVar var)
  where
    begin kind mine = void (forkUsing reader (sessionScope s) (readingThread c s request kind mine)) `catch` \ScopeEnded -> switchGone s

-- | The thread that requests statistics.
reader :: Child
reader = daemon {childLabel = Just "weft openflow statistics"}

-- | Send a request, and again as long as others wait for the next one.
readingThread :: Controller -> Session -> StatsRequest -> ByteString -> MVar Outcome -> IO ()
readingThread c s request kind = go
  where
    go var = do
      outcome <- try (pending c s [StatsRequestMessage False request] (publish var))
      either failed pure outcome
      settle var (Left NoReply)
      -- At the connection's end the entry is taken out, and there may be another one's.
      join . atomicModifyIORef' (sessionReads s) $ \m -> case Map.lookup kind m of
        Just (Reading now next) | now == var -> maybe (Map.delete kind m, pure ()) (\v -> (Map.insert kind (Reading v Nothing) m, go v)) next
        _ -> (m, pure ())
    failed :: SomeException -> IO ()
    failed e = case fromException e of
      Just ThreadKilled -> throwIO ThreadKilled
      _ -> report c (Failed e)
    publish var sent = case sent of
      Left why -> settle var (Left why)
      Right wait -> do
        outcome <- wait patience
        settle var (maybe (Left NoReply) (>>= checked (all (answers request))) outcome)
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

-- | The switch has no connection any more: complete all pending requests. Does not wait; any thread may call this, any
-- number of times.
switchGone :: Session -> IO ()
switchGone s = mask_ $ do
  asking <- atomicModifyIORef' (sessionAsking s) (\m -> (Map.empty, m))
  forM_ asking (\(Asking _ _ var) -> tryPutMVar var Nothing)
  reads' <- atomicModifyIORef' (sessionReads s) (\m -> (Map.empty, m))
  forM_ reads' $ \(Reading now next) -> do
    settle now (Left NotConnected)
    mapM_ (`settle` Left NotConnected) next

-- | The outcome of a request, if it has none yet.
settle :: MVar Outcome -> Outcome -> IO ()
settle var = void . tryPutMVar var
