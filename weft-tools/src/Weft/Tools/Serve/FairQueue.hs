-- |
-- Description : Costly work, one piece at a time, for each client in turn
--
-- Each client has a queue, and the queues are served in turn. So a client that asks for much work delays itself: any
-- other one waits at most for the piece that is being done and for one piece of each client that waits. Work that a
-- client asks for while it waits for the same work is done once. The queue of a client is bounded, and so are all of
-- them together; a client without waiting work takes no memory.
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
import qualified Data.Map.Strict as Map
import Data.Sequence (Seq, ViewL (..), viewl, (|>))
import qualified Data.Sequence as Seq
import GHC.Conc (labelThread)

-- | Work for clients, with keys that tell which work is the same.
data FairQueue client key a = FairQueue
  { -- | The most pieces of work of one client that wait.
    queueClient :: Int,
    -- | The most pieces of work that wait.
    queueAll :: Int,
    -- | Changed atomically, by callers and by the thread that works.
    queueState :: IORef (State client key a)
  }

data State client key a = State
  { -- | The waiting work of each client. No queue is empty.
    stateQueues :: !(Map.Map client (Seq (Work key a))),
    -- | The clients that have a queue, the next one first.
    stateTurns :: !(Seq client),
    stateWaiting :: !Int,
    -- | The results of the work that waits or is being done.
    stateResults :: !(Map.Map (client, key) (Result a)),
    -- | Whether there is a thread that works.
    stateWorking :: !Bool
  }

data Work key a = Work key (IO a) (Result a)

-- | Filled once, by the thread that works.
type Result a = MVar (Either SomeException a)

-- | Why work is not done.
data Refusal
  = -- | The client has as much waiting work as it may have.
    ClientFull
  | -- | All clients together have as much.
    AllFull
  deriving (Eq, Show)

-- | A queue for this much waiting work of one client, and of all.
newFairQueue :: Int -> Int -> IO (FairQueue client key a)
newFairQueue ofClient ofAll = FairQueue ofClient ofAll <$> newIORef (State Map.empty Seq.empty 0 Map.empty False)

-- | Have work done, and wait for its result. Throws what the work throws. Refuses at once.
askFor :: (Ord client, Ord key) => FairQueue client key a -> client -> key -> IO a -> IO (Either Refusal a)
askFor queue client key act = do
  fresh <- newEmptyMVar
  -- Masked: whoever says that there is a thread has to start it.
  asked <- mask_ $ do
    (asked, begin) <- atomicModifyIORef' (queueState queue) (enqueue queue client (Work key act fresh))
    when begin $ forkIO (serveQueues queue) >>= (`labelThread` "weft costly work")
    pure asked
  case asked of
    Left refusal -> pure (Left refusal)
    Right result -> readMVar result >>= either throwIO (pure . Right)

-- | Put work into the client's queue, unless the same work is there. Returns where the result will be, and whether a
-- thread has to be started.
enqueue :: (Ord client, Ord key) => FairQueue client key a -> client -> Work key a -> State client key a -> (State client key a, (Either Refusal (Result a), Bool))
enqueue queue client work@(Work key _ fresh) s
  | Just result <- Map.lookup (client, key) (stateResults s) = (s, (Right result, False))
  | Seq.length before >= queueClient queue = (s, (Left ClientFull, False))
  | stateWaiting s >= queueAll queue = (s, (Left AllFull, False))
  | otherwise =
    ( State
        { stateQueues = Map.insert client (before |> work) (stateQueues s),
          stateTurns = if Seq.null before then stateTurns s |> client else stateTurns s,
          stateWaiting = stateWaiting s + 1,
          stateResults = Map.insert (client, key) fresh (stateResults s),
          stateWorking = True
        },
      (Right fresh, not (stateWorking s))
    )
  where
    before = Map.findWithDefault Seq.empty client (stateQueues s)

-- | Do all work that waits. (By tail calls: 'mapM_' would let the stack grow as long as there is work.)
serveQueues :: (Ord client, Ord key) => FairQueue client key a -> IO ()
serveQueues queue = atomicModifyIORef' (queueState queue) dequeue >>= maybe (pure ()) serve
  where
    serve (client, Work key act result) = do
      try act >>= putMVar result
      atomicModifyIORef' (queueState queue) (\s -> (s {stateResults = Map.delete (client, key) (stateResults s)}, ()))
      serveQueues queue

-- | Take the next work out. A client that has more gets its next turn after all others.
dequeue :: Ord client => State client key a -> (State client key a, Maybe (client, Work key a))
dequeue s = case viewl (stateTurns s) of
  client :< turns
    | Just works <- Map.lookup client (stateQueues s),
      work :< rest <- viewl works ->
      let more = not (Seq.null rest)
       in ( s
              { stateQueues = if more then Map.insert client rest (stateQueues s) else Map.delete client (stateQueues s),
                stateTurns = if more then turns |> client else turns,
                stateWaiting = stateWaiting s - 1
              },
            Just (client, work)
          )
  _ -> (s {stateWorking = False}, Nothing)
