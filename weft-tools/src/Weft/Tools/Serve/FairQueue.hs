-- |
-- Description : Costly work, one piece at a time, for each client in turn
--
-- Each client has a queue, and each group of clients, for example the networks of one site. The groups are served in
-- turn, and in a group its clients. So a client that asks for much work delays itself, and one that has many addresses
-- its group: any other one waits at most for the piece that is being done and for one piece of each group that waits.
-- Work that a client asks for while it waits for the same work is done once. The queue of a client is bounded, and so
-- are all of them together. If that bound is reached, whoever has less waiting work than the group with the most takes
-- a place from that group. A client without waiting work takes no memory.
--
-- The work is done by a thread, which exists as long as there is work. So nothing is lost if a caller is killed: its
-- work may have other callers.
--
-- Any thread may call these functions.
module Weft.Tools.Serve.FairQueue
  ( FairQueue,
    newFairQueue,
    Refusal (..),
    askFor,
  )
where

import Control.Concurrent (forkIO)
import Control.Concurrent.MVar
import Control.Exception (SomeException, mask_, throwIO, try)
import Control.Monad (when)
import Data.IORef
import Data.List (maximumBy)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isJust, isNothing)
import Data.Ord (comparing)
import Data.Sequence (Seq, ViewL (..), ViewR (..), viewl, viewr, (|>))
import qualified Data.Sequence as Seq
import GHC.Conc (labelThread)

-- | Work for clients in groups, with keys that tell which work is the same.
data FairQueue group client key a = FairQueue
  { queueGroup :: client -> group,
    -- | The most pieces of work of one client that wait.
    queueClient :: Int,
    -- | The most pieces of work that wait.
    queueAll :: Int,
    -- | Changed atomically, by callers and by the thread that works.
    queueState :: IORef (State group client key a)
  }

data State group client key a = State
  { -- | The waiting work of each client.
    stateQueues :: !(Turns group (Turns client (Seq (Work client key a)))),
    stateWaiting :: !Int,
    -- | The results of the work that waits or is being done.
    stateResults :: !(Map.Map (client, key) (Result a)),
    -- | Whether there is a thread that works.
    stateWorking :: !Bool
  }

data Work client key a = Work
  { workOf :: !(client, key),
    workAct :: IO a,
    workResult :: !(Result a)
  }

-- | Filled once: by the thread that works, or by the caller that takes the place of this work.
type Result a = MVar (Either SomeException (Either Refusal a))

-- | Why work is not done.
data Refusal
  = -- | The client has as much waiting work as it may have.
    ClientFull
  | -- | All clients together have as much, and no group more than this client's.
    AllFull
  deriving (Eq, Show)

-- | A queue for this much waiting work of one client, and of all. The function gives a client's group.
newFairQueue :: (client -> group) -> Int -> Int -> IO (FairQueue group client key a)
newFairQueue groupOf ofClient ofAll = FairQueue groupOf ofClient ofAll <$> newIORef (State noTurns 0 Map.empty False)

-- | Have work done, and wait for its result. Throws what the work throws. Refuses at once, or when the work has lost
-- its place.
askFor :: (Ord group, Ord client, Ord key) => FairQueue group client key a -> client -> key -> IO a -> IO (Either Refusal a)
askFor queue client key act = do
  fresh <- newEmptyMVar
  -- Masked: whoever says that there is a thread has to start it, and whoever takes a place has to say so.
  asked <- mask_ $ do
    (asked, begin) <- atomicModifyIORef' (queueState queue) (enqueue queue (Work (client, key) act fresh))
    when begin $ forkIO (serveQueues queue) >>= (`labelThread` "weft costly work")
    case asked of
      Joined result -> pure (Right result)
      Displaced loser -> Right fresh <$ putMVar loser (Right (Left AllFull))
      Refused refusal -> pure (Left refusal)
  either (pure . Left) (\result -> readMVar result >>= either throwIO pure) asked

-- | What becomes of work that is asked for.
data Asked a
  = -- | It waits, and this will be its result.
    Joined !(Result a)
  | -- | It waits, in the place of the work with this result.
    Displaced !(Result a)
  | Refused !Refusal

-- | Put work into the client's queue, unless the same work is there. Returns also whether a thread has to be started.
enqueue :: (Ord group, Ord client, Ord key) => FairQueue group client key a -> Work client key a -> State group client key a -> (State group client key a, (Asked a, Bool))
enqueue queue work s
  | Just result <- Map.lookup (workOf work) (stateResults s) = (s, (Joined result, False))
  | maybe 0 Seq.length (own >>= queueOf client) >= queueClient queue = (s, (Refused ClientFull, False))
  | stateWaiting s < queueAll queue = (put s, (Joined (workResult work), not (stateWorking s)))
  | Just (loser, left) <- displace (maybe 0 pieces own) s = (put left, (Displaced (workResult loser), not (stateWorking s)))
  | otherwise = (s, (Refused AllFull, False))
  where
    client = fst (workOf work)
    group = queueGroup queue client
    own = queueOf group (stateQueues s)
    put before =
      before
        { stateQueues = change group (Just . change client (Just . maybe (Seq.singleton work) (|> work)) . fromMaybe noTurns) (stateQueues before),
          stateWaiting = stateWaiting before + 1,
          stateResults = Map.insert (workOf work) (workResult work) (stateResults before),
          stateWorking = True
        }

-- | Take out the newest work of the client with the most waiting work in the group with the most, if a client whose
-- group has this much would not have as much then. O(n) in the number of clients that wait.
displace :: (Ord group, Ord client, Ord key) => Int -> State group client key a -> Maybe (Work client key a, State group client key a)
displace mine s = do
  (group, clients) <- longest pieces (stateQueues s)
  (client, works) <- longest Seq.length clients
  case viewr works of
    rest :> loser
      | mine + 1 < pieces clients ->
        Just
          ( loser,
            s
              { stateQueues = change group (>>= filled . change client (const (if Seq.null rest then Nothing else Just rest))) (stateQueues s),
                stateWaiting = stateWaiting s - 1,
                stateResults = Map.delete (workOf loser) (stateResults s)
              }
          )
    _ -> Nothing
  where
    longest size (Turns queues _) = if Map.null queues then Nothing else Just (maximumBy (comparing (size . snd)) (Map.toList queues))

-- | The waiting work of a group.
pieces :: Turns client (Seq work) -> Int
pieces (Turns queues _) = sum (fmap Seq.length queues)

-- | Do all work that waits. (By tail calls: 'mapM_' would let the stack grow as long as there is work.)
serveQueues :: (Ord group, Ord client, Ord key) => FairQueue group client key a -> IO ()
serveQueues queue = atomicModifyIORef' (queueState queue) dequeue >>= maybe (pure ()) serve
  where
    serve work = do
      try (workAct work) >>= putMVar (workResult work) . fmap Right
      atomicModifyIORef' (queueState queue) (\s -> (s {stateResults = Map.delete (workOf work) (stateResults s)}, ()))
      serveQueues queue

-- | Take the next work out.
dequeue :: (Ord group, Ord client) => State group client key a -> (State group client key a, Maybe (Work client key a))
dequeue s = case next (next first) (stateQueues s) of
  Just (work, left) -> (s {stateQueues = fromMaybe noTurns left, stateWaiting = stateWaiting s - 1}, Just work)
  Nothing -> (s {stateWorking = False}, Nothing)
  where
    first works = case viewl works of
      work :< rest -> Just (work, if Seq.null rest then Nothing else Just rest)
      EmptyL -> Nothing

-- Turns ------------------------------------------------------------------------------------

-- | Queues that are served in turn, by the names of whoever they belong to, and the names, the next one first. No queue
-- is empty.
data Turns name queue = Turns !(Map.Map name queue) !(Seq name)

noTurns :: Turns name queue
noTurns = Turns Map.empty Seq.empty

-- | Nothing if there is no queue.
filled :: Turns name queue -> Maybe (Turns name queue)
filled turns@(Turns queues _) = if Map.null queues then Nothing else Just turns

queueOf :: Ord name => name -> Turns name queue -> Maybe queue
queueOf name (Turns queues _) = Map.lookup name queues

-- | Change a queue. A new one gets its turn after all others.
change :: Ord name => name -> (Maybe queue -> Maybe queue) -> Turns name queue -> Turns name queue
change name f (Turns queues order) = Turns (maybe (Map.delete name) (Map.insert name) after queues) turns
  where
    before = Map.lookup name queues
    after = f before
    turns
      | isNothing before && isJust after = order |> name
      | isJust before && isNothing after = Seq.filter (/= name) order
      | otherwise = order

-- | Take something out of the queue whose turn it is, given how to take it and what is left. The queue gets its next
-- turn after all others.
next :: Ord name => (queue -> Maybe (taken, Maybe queue)) -> Turns name queue -> Maybe (taken, Maybe (Turns name queue))
next takeOut (Turns queues order) = case viewl order of
  name :< others
    | Just (taken, left) <- Map.lookup name queues >>= takeOut ->
      Just (taken, filled (maybe (Turns (Map.delete name queues) others) (\queue -> Turns (Map.insert name queue queues) (others |> name)) left))
  _ -> Nothing
