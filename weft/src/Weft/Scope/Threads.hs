{-# LANGUAGE RankNTypes #-}

-- |
-- A set of threads that end together: the bookkeeping below "Weft.Scope" and the servers of "Weft.Socket". All
-- threads of a set are told to end before any of them is awaited, so that one which takes its time keeps no other
-- alive.
--
-- Any thread may start threads in a set, tell them to end, and wait until there are fewer of them; one at a time waits
-- for their end, the set's owner.
module Weft.Scope.Threads
  ( Threads,
    newThreads,

    -- * Starting
    Kind (..),
    Place (..),
    startThread,
    aliveThreads,

    -- * Ending
    tell,
    notifyAll,
    tellAll,
    endWork,
    awaitWork,
    Overdue (..),
    awaitAll,
    awaitFewer,
    orTwice,
  )
where

import Control.Concurrent (ThreadId, forkIO, forkIOWithUnmask, forkOnWithUnmask)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (unless, void, when)
import qualified Data.IntMap.Strict as IntMap
import Weft.Duration
import Weft.Sys (Ref, newRef, readRef, updateRef)
import Weft.Sys.Label
import Weft.Timer (cancel, schedule)

-- | A set of threads. Changed by all of its threads and by those that start them, atomically ('change').
--
-- A thread that starts another takes a number for it, forks, and enters the fork. The new thread ends its number. The
-- last two may come in either order:
--
-- > no entry --entered--> Entered --ended--> no entry
-- > no entry --ended----> Early --entered--> no entry
--
-- A number counts as alive from its taking to its end. Once the set has been told to end no number is taken, and a
-- thread whose number was taken before is told when it is entered.
newtype Threads = Threads (Ref State)

data State = State
  { stateNext :: !Int,
    -- | Numbers that have not ended.
    stateAlive :: !Int,
    -- | Those of them that are 'Work'.
    stateWorking :: !Int,
    stateEntries :: !(IntMap.IntMap Entry),
    stateTold :: !Bool,
    -- | Whether 'awaitWork' waits no more.
    stateWorkOver :: !Bool,
    -- | What the owner waits for.
    stateWaiter :: !Waiter,
    -- | To be filled at the next end of a thread, for those that wait until there are fewer.
    stateOnEnd :: ![MVar ()]
  }

data Entry
  = -- | A thread, and its label if it has one.
    Entered !ThreadId !(Maybe Label)
  | -- | It ended before it was entered.
    Early

-- | The MVar is filled when the condition holds, or when the owner has waited long enough. The waiter of an owner that
-- has gone on meanwhile stays until the next one replaces it.
data Waiter = NoWaiter | ForWork !(MVar ()) | ForAll !(MVar ())

-- | Whether the owner waits for a thread's work, or only for its end once it has been told to end.
data Kind = Work | Daemon
  deriving (Eq, Show)

-- | The capability of a thread.
data Place
  = -- | That of the thread that starts it, at first. The run-time system may move it.
    Here
  | -- | This one, modulo their number, for good.
    On !Int
  deriving (Eq, Show)

-- | A set without threads.
newThreads :: IO Threads
newThreads = Threads <$> newRef (State 0 0 0 IntMap.empty False False NoWaiter [])

-- | Change the state; the state before.
change :: Threads -> (State -> State) -> IO State
change (Threads ref) = updateRef ref
{-# INLINE change #-}

-- Starting -----------------------------------------------------------------------------

-- | Start a thread, with a label if one is given; 'Nothing' if the set has been told to end. The body runs masked and
-- is given a function that unmasks. It must not throw; the thread is counted until it returns.
--
-- O(log n) for n threads of the set. It cannot be interrupted, and does not block.
startThread :: Threads -> Kind -> Place -> Maybe Label -> ((forall a. IO a -> IO a) -> IO ()) -> IO (Maybe ThreadId)
startThread threads kind place label body = mask_ $ do
  before <- change threads $ \st ->
    if stateTold st
      then st
      else st {stateNext = stateNext st + 1, stateAlive = stateAlive st + 1, stateWorking = stateWorking st + work}
  if stateTold before
    then pure Nothing
    else do
      let n = stateNext before
      t <- forkPlaced (\unmask -> body unmask >> ended (enter n Early)) `onException` ended id
      mapM_ (setLabel t) label
      entered <- change threads (\st -> st {stateEntries = enter n (Entered t label) (stateEntries st)})
      when (stateTold entered) (tell ThreadKilled t)
      pure (Just t)
  where
    work = if kind == Work then 1 else 0
    forkPlaced :: ((forall a. IO a -> IO a) -> IO ()) -> IO ThreadId
    forkPlaced act = case place of
      Here -> forkIOWithUnmask act
      On c -> forkOnWithUnmask c act
    enter n entry entries = case IntMap.lookup n entries of
      Just _ -> IntMap.delete n entries
      Nothing -> IntMap.insert n entry entries
    -- The number is not alive any more.
    ended entriesOf = do
      before <- changeAndWake threads $ \st ->
        st
          { stateAlive = stateAlive st - 1,
            stateWorking = stateWorking st - work,
            stateEntries = entriesOf (stateEntries st),
            stateOnEnd = []
          }
      mapM_ (`tryPutMVar` ()) (stateOnEnd before)

-- | How many threads of the set have begun and not ended. Any thread may call this.
aliveThreads :: Threads -> IO Int
aliveThreads (Threads ref) = stateAlive <$> readRef ref

-- | Change the state, and wake the owner if what it waits for holds now. It may be woken again later, which has no
-- effect. Returns the state before.
changeAndWake :: Threads -> (State -> State) -> IO State
changeAndWake threads f = do
  before <- change threads f
  before <$ case stateWaiter before of
    NoWaiter -> pure ()
    waiter@(ForWork box) -> when (reached (f before) waiter) (void (tryPutMVar box ()))
    waiter@(ForAll box) -> when (reached (f before) waiter) (void (tryPutMVar box ()))
{-# INLINE changeAndWake #-}

reached :: State -> Waiter -> Bool
reached st waiter = case waiter of
  NoWaiter -> False
  ForWork _ -> stateWorkOver st || stateWorking st == 0
  ForAll _ -> stateAlive st == 0

-- Ending -------------------------------------------------------------------------------

-- | Throw an exception to a thread without waiting until it has arrived: a thread that masks exceptions receives it
-- later, or never.
tell :: Exception e => e -> ThreadId -> IO ()
tell e t = forkIO (throwTo t e) >>= \teller -> setLabel teller tellerLabel

-- | The label of threads that tell another one.
tellerLabel :: Label
tellerLabel = threadLabel "weft scope"

-- | Throw an exception to all threads. It may not have arrived yet when this returns.
notifyAll :: Exception e => Threads -> e -> IO ()
notifyAll (Threads ref) e = do
  st <- readRef ref
  mapM_ (tell e) [t | Entered t _ <- IntMap.elems (stateEntries st)]

-- | Tell all threads to end, by 'ThreadKilled'. It may not have arrived yet when this returns. No thread can be
-- started in the set any more. A second call has no effect.
tellAll :: Threads -> IO ()
tellAll threads = do
  before <- change threads (\st -> st {stateTold = True})
  unless (stateTold before) $ mapM_ (tell ThreadKilled) [t | Entered t _ <- IntMap.elems (stateEntries before)]

-- | Let 'awaitWork' return at once, now and later.
endWork :: Threads -> IO ()
endWork threads = void (changeAndWake threads (\st -> st {stateWorkOver = True}))

-- | Block until no thread of the kind 'Work' is left, or 'endWork' was called. Interruptible.
awaitWork :: Threads -> IO ()
awaitWork threads = void (await ForWork maxBound threads)

-- | What to do about threads that do not end although they have been told to.
data Overdue
  = -- | Wait on, until they have ended.
    WaitOn
  | -- | Leave them to themselves. They may still run afterwards.
    Leave
  deriving (Eq, Show)

-- | Block until no thread is left. If they have not ended after the given duration, the function is called, with the
-- labels of those that are left, and decides; it is called once.
awaitAll :: Duration -> ([String] -> IO Overdue) -> Threads -> IO ()
awaitAll patience overdue threads@(Threads ref) = do
  gone <- await ForAll patience threads
  unless gone $ do
    st <- readRef ref
    decision <- overdue [maybe "thread" labelText l <> " (" <> show t <> ")" | Entered t l <- IntMap.elems (stateEntries st)]
    when (decision == WaitOn) (void (await ForAll maxBound threads))

-- | Block until a condition holds; 'False' if it does not after the given duration.
await :: (MVar () -> Waiter) -> Duration -> Threads -> IO Bool
await condition patience threads@(Threads ref) = do
  box <- newEmptyMVar
  let waiter = condition box
  before <- change threads (\st -> st {stateWaiter = waiter})
  if reached before waiter
    then pure True
    else do
      untilFull box
      st <- readRef ref
      pure (reached st waiter)
  where
    untilFull box
      | patience == maxBound = persistently (takeMVar box)
      | otherwise = bracket (schedule patience (void (tryPutMVar box ()))) cancel (\_ -> persistently (takeMVar box))

-- | Block until fewer threads than that are alive, of these sets together. Any thread may call this; interruptible.
-- While it waits, each end of a thread costs O(sets).
awaitFewer :: Int -> [Threads] -> IO ()
awaitFewer n sets = newEmptyMVar >>= \box -> wait box `finally` mapM_ (others box []) sets
  where
    -- Announced first: a thread that ends after it has been counted fills the MVar.
    wait box = do
      mapM_ (others box [box]) sets
      alive <- sum <$> mapM aliveThreads sets
      unless (alive < n) (persistently (takeMVar box) >> wait box)
    others box mine threads = change threads (\st -> st {stateOnEnd = mine <> filter (/= box) (stateOnEnd st)})

-- | Wait again if the collector finds that nothing can end the wait. It finds threads that wait for one another all at
-- once, and throws to each: to a thread of the set, say, and to the owner, which waits for its end.
persistently :: IO a -> IO a
persistently act = act `catch` \e -> const (persistently act) (e :: BlockedIndefinitelyOnMVar)

-- | 'persistently', but only once: threads that wait for one another in a circle are to find out.
orTwice :: IO a -> IO a
orTwice act = act `catch` \e -> const act (e :: BlockedIndefinitelyOnMVar)
