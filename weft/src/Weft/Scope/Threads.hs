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
import Weft.Scope.Types (Kind (..), Overdue (..), Place (..))
import Weft.Sys (Ref, casRef, newRef, readRef, updateRef)
import Weft.Sys.Label
import Weft.Timer (cancel, schedule)

-- | A set of threads. Changed by all of its threads and by those that start them, atomically ('change').
--
-- A thread that starts another takes a number for it, with an entry, forks, and names the new thread in the entry. The
-- new thread ends its number, which takes the entry out, maybe before it was named. An entry is changed by the thread
-- that starts its thread and by the one that tells all to end, atomically:
--
-- > Starting --named--> Entered, whose thread can be told
-- > Starting --told---> Doomed --named--> Entered, and the one that names it tells it
--
-- A number counts as alive from its taking to its end. Once the set has been told to end no number is taken.
newtype Threads = Threads (Ref State)

data State = State
  { stateNext :: !Int,
    -- | Numbers that have not ended.
    stateAlive :: !Int,
    -- | Those of them that are 'Work'.
    stateWorking :: !Int,
    stateEntries :: !(IntMap.IntMap (Ref Entry)),
    stateEnd :: !End
  }

-- | How the set ends, and who waits: what a thread that begins or ends leaves as it is, in most cases.
data End = End
  { endTold :: !Bool,
    -- | Whether 'awaitWork' waits no more.
    endWorkOver :: !Bool,
    -- | What the owner waits for.
    endWaiter :: !Waiter,
    -- | To be filled at the next end of a thread, for those that wait until there are fewer.
    endOnEnd :: ![MVar ()]
  }

data Entry
  = Starting
  | -- | A thread, and its label if it has one.
    Entered !ThreadId !(Maybe Label)
  | -- | To be told to end as soon as it has a name.
    Doomed

-- | The MVar is filled when the condition holds, or when the owner has waited long enough. The waiter of an owner that
-- has gone on meanwhile stays until the next one replaces it.
data Waiter = NoWaiter | ForWork !(MVar ()) | ForAll !(MVar ())

-- | A set without threads.
newThreads :: IO Threads
newThreads = Threads <$> newRef (State 0 0 0 IntMap.empty (End False False NoWaiter []))

-- | Change the state; the state before.
change :: Threads -> (State -> State) -> IO State
change (Threads ref) = updateRef ref
{-# INLINE change #-}

changeEnd :: Threads -> (End -> End) -> IO State
changeEnd threads = change threads . atEnd

atEnd :: (End -> End) -> State -> State
atEnd f st = st {stateEnd = f (stateEnd st)}

-- Starting -----------------------------------------------------------------------------

-- | Start a thread, with a label if one is given; 'Nothing' if the set has been told to end. The body runs masked and
-- is given a function that unmasks. It must not throw; the thread is counted until it returns.
--
-- O(log n) for n threads of the set. It cannot be interrupted, and does not block.
startThread :: Threads -> Kind -> Place -> Maybe Label -> ((forall a. IO a -> IO a) -> IO ()) -> IO (Maybe ThreadId)
startThread threads kind place label body = mask_ $ do
  entry <- newRef Starting
  taken <- takeNumber threads kind entry
  case taken of
    NoNumber -> pure Nothing
    Number n -> do
      t <- case place of
        Here -> forkIOWithUnmask (\unmask -> body unmask >> endNumber threads kind n)
        On c -> forkOnWithUnmask c (\unmask -> body unmask >> endNumber threads kind n)
      nameThread entry t label
      pure (Just t)
-- So that the body is known where it is run, and its way to unmask (Note [What a fork costs] in "Weft.Scope").
{-# INLINE startThread #-}

-- | A number, or that the set has been told to end.
data Taken = NoNumber | Number !Int

-- | By the thread that starts another.
takeNumber :: Threads -> Kind -> Ref Entry -> IO Taken
takeNumber threads kind entry = do
  before <- change threads $ \st ->
    if endTold (stateEnd st)
      then st
      else
        st
          { stateNext = stateNext st + 1,
            stateAlive = stateAlive st + 1,
            stateWorking = stateWorking st + weight kind,
            stateEntries = IntMap.insert (stateNext st) entry (stateEntries st)
          }
  pure $! if endTold (stateEnd before) then NoNumber else Number (stateNext before)
{-# NOINLINE takeNumber #-}

-- | By the thread that started it.
nameThread :: Ref Entry -> ThreadId -> Maybe Label -> IO ()
nameThread entry t label = mapM_ (setLabel t) label >> go
  where
    go = do
      found <- readRef entry
      ok <- casRef entry found (Entered t label)
      case found of
        _ | not ok -> go
        Doomed -> tell ThreadKilled t
        _ -> pure ()
{-# NOINLINE nameThread #-}

-- | By the thread itself. The number is not alive any more.
endNumber :: Threads -> Kind -> Int -> IO ()
endNumber threads kind n = do
  before <- changeAndWake threads $ \st ->
    st
      { stateAlive = stateAlive st - 1,
        stateWorking = stateWorking st - weight kind,
        stateEntries = IntMap.delete n (stateEntries st),
        stateEnd = awaitedByNone (stateEnd st)
      }
  mapM_ (`tryPutMVar` ()) (endOnEnd (stateEnd before))
  where
    awaitedByNone end
      | null (endOnEnd end) = end
      | otherwise = end {endOnEnd = []}
{-# NOINLINE endNumber #-}

-- | What a thread adds to 'stateWorking'.
weight :: Kind -> Int
weight kind = case kind of
  Work -> 1
  Daemon -> 0

-- | How many threads of the set have begun and not ended. Any thread may call this.
aliveThreads :: Threads -> IO Int
aliveThreads (Threads ref) = stateAlive <$> readRef ref

-- | Change the state, and wake the owner if what it waits for holds now. It may be woken again later, which has no
-- effect. Returns the state before.
changeAndWake :: Threads -> (State -> State) -> IO State
changeAndWake threads f = do
  before <- change threads f
  before <$ case endWaiter (stateEnd before) of
    NoWaiter -> pure ()
    waiter@(ForWork box) -> when (reached (f before) waiter) (void (tryPutMVar box ()))
    waiter@(ForAll box) -> when (reached (f before) waiter) (void (tryPutMVar box ()))
{-# INLINE changeAndWake #-}

reached :: State -> Waiter -> Bool
reached st waiter = case waiter of
  NoWaiter -> False
  ForWork _ -> endWorkOver (stateEnd st) || stateWorking st == 0
  ForAll _ -> stateAlive st == 0

-- Ending -------------------------------------------------------------------------------

-- | Throw an exception to a thread without waiting until it has arrived: a thread that masks exceptions receives it
-- later, or never.
tell :: Exception e => e -> ThreadId -> IO ()
tell e t = forkIO (throwTo t e) >>= \teller -> setLabel teller tellerLabel

-- | The label of threads that tell another one.
tellerLabel :: Label
tellerLabel = threadLabel "weft scope"

-- | The threads that have been named, with their labels.
named :: Threads -> IO [(ThreadId, Maybe Label)]
named (Threads ref) = do
  entries <- readRef ref >>= mapM readRef . IntMap.elems . stateEntries
  pure [(t, label) | Entered t label <- entries]

-- | Throw an exception to all threads. It may not have arrived yet when this returns.
notifyAll :: Exception e => Threads -> e -> IO ()
notifyAll threads e = do
  entries <- named threads
  mapM_ (tell e . fst) entries

-- | Tell all threads to end, by 'ThreadKilled'. It may not have arrived yet when this returns. No thread can be
-- started in the set any more. A second call has no effect.
tellAll :: Threads -> IO ()
tellAll threads = do
  before <- changeEnd threads (\end -> end {endTold = True})
  unless (endTold (stateEnd before)) (mapM_ doom (stateEntries before))
  where
    doom entry = do
      found <- readRef entry
      case found of
        Starting -> casRef entry found Doomed >>= \ok -> unless ok (doom entry)
        Doomed -> pure ()
        Entered t _ -> tell ThreadKilled t

-- | Let 'awaitWork' return at once, now and later.
endWork :: Threads -> IO ()
endWork threads = void (changeAndWake threads (atEnd (\end -> end {endWorkOver = True})))

-- | Block until no thread of the kind 'Work' is left, or 'endWork' was called. Interruptible.
awaitWork :: Threads -> IO ()
awaitWork threads = void (await ForWork maxBound threads)

-- | Block until no thread is left. If they have not ended after the given duration, the function is called, with the
-- labels of those that are left, and decides; it is called once.
awaitAll :: Duration -> ([String] -> IO Overdue) -> Threads -> IO ()
awaitAll patience overdue threads = do
  gone <- await ForAll patience threads
  unless gone $ do
    left <- named threads
    decision <- overdue [maybe "thread" labelText l <> " (" <> show t <> ")" | (t, l) <- left]
    when (decision == WaitOn) (void (await ForAll maxBound threads))

-- | Block until a condition holds; 'False' if it does not after the given duration.
await :: (MVar () -> Waiter) -> Duration -> Threads -> IO Bool
await condition patience threads@(Threads ref) = do
  box <- newEmptyMVar
  let waiter = condition box
  before <- changeEnd threads (\end -> end {endWaiter = waiter})
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
    others box mine threads = changeEnd threads (\end -> end {endOnEnd = mine <> filter (/= box) (endOnEnd end)})

-- | Wait again if the collector finds that nothing can end the wait. It finds threads that wait for one another all at
-- once, and throws to each: to a thread of the set, say, and to the owner, which waits for its end.
persistently :: IO a -> IO a
persistently act = act `catch` \e -> const (persistently act) (e :: BlockedIndefinitelyOnMVar)

-- | 'persistently', but only once: threads that wait for one another in a circle are to find out.
orTwice :: IO a -> IO a
orTwice act = act `catch` \e -> const act (e :: BlockedIndefinitelyOnMVar)
