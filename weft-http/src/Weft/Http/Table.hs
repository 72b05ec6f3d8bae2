-- |
-- The connection table: what a server needs to know about its connections to end idle ones when it shuts down or has
-- too many. Each capability has a table, so that connections on different capabilities share
-- nothing.
--
-- An idle connection is ended by an exception to its thread, which receives what its client has sent in the meantime,
-- answers it and closes the connection. Only a thread that waits for a request, or lingers after the last response, is
-- interrupted: before it throws, the interrupting thread changes the phase from Fresh, Idle or Lingering to Ending.
-- The connection's thread never does that, and if it finds Ending when a request has arrived, it waits until the
-- exception has ('stopWaiting'). No exception comes while applications and the actions of @setOnOpen@ and @setOnClose@
-- run. The program's other callbacks may get one.
--
-- An HTTP\/2 connection is idle if no stream is open. It is ended by a graceful shutdown ('Http2Control').
module Weft.Http.Table
  ( -- * Tables
    Table,
    newTable,
    addEntry,
    removeEntry,
    isEmptyTable,
    Entry (..),

    -- * Ending
    EndIdle (..),
    endIdle,
    endThread,
    stopWaiting,
    idleEntries,
    evict,
  )
where

import Control.Concurrent (ThreadId, threadDelay)
import Control.Exception
import Control.Monad (filterM, forM, forM_, void, when)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (fromMaybe, maybeToList)
import Weft.Core.Time (Instant)
import Weft.Http.Limits
import Weft.Http.Timeouts (hasLingered, shareOfIdleTimeLeft, shareOfTimeLeft)
import Weft.Http.Types
import Weft.Http2.Control (Http2Control (..))
import Weft.IdleTimer (IdleTimer)
import Weft.Sys (WordArray, casWord, peekWord)

-- | A connection, as other threads see it.
data Entry = Entry
  { entryThread :: !ThreadId,
    entryCells :: !WordArray,
    entryDeadline :: !IdleTimer,
    -- | Present if the connection speaks HTTP\/2; the phase is Busy then. Written by the connection's thread.
    entryHttp2 :: !(IORef (Maybe Http2Control))
  }

-- | The connections of a capability by number. Their threads add and remove them, and threads that end connections read
-- it. An insertion takes fewer words of the connection's stack than one into a 'Data.Map.Map' would.
newtype Table = Table (IORef Entries)

-- | The number of the next connection, and the present ones.
data Entries = Entries !Int !(IntMap.IntMap Entry)

-- | An empty table.
newTable :: IO Table
newTable = Table <$> newIORef (Entries 0 IntMap.empty)

-- | Add a connection, and return its number. Its thread removes it again.
addEntry :: Table -> Entry -> IO Int
addEntry (Table ref) entry = atomicModifyIORef' ref (\(Entries n m) -> (Entries (n + 1) (IntMap.insert n entry m), n))

-- | Remove a connection.
removeEntry :: Table -> Int -> IO ()
removeEntry (Table ref) number = atomicModifyIORef' ref (\(Entries n m) -> (Entries n (IntMap.delete number m), ()))

-- | Whether there are no connections.
isEmptyTable :: Table -> IO Bool
isEmptyTable (Table ref) = (\(Entries _ m) -> IntMap.null m) <$> readIORef ref

-- | The present connections.
entriesOf :: Table -> IO [Entry]
entriesOf (Table ref) = (\(Entries _ m) -> IntMap.elems m) <$> readIORef ref

-- | Thrown to a thread that waits for a request when its connection has to end.
data EndIdle = EndIdle
  deriving (Show)

instance Exception EndIdle where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | End a connection if it is waiting for a request, or lingers; 'True' if it was.
evict :: Entry -> IO Bool
evict entry = do
  ended <- endEntry entry
  if ended then pure True else readIORef (entryHttp2 entry) >>= maybe (pure False) controlEvict

-- | End an HTTP\/1 connection if it is waiting for a request; 'True' if it was.
endEntry :: Entry -> IO Bool
endEntry entry = endThread (entryThread entry) (entryCells entry)

-- | The same for a connection's thread and words. Uninterruptible, since the thread waits for the exception; it does
-- not take long, as a thread in these phases can be interrupted.
endThread :: ThreadId -> WordArray -> IO Bool
endThread thread cells = uninterruptibleMask_ $ do
  fresh <- casWord cells cellPhase phaseFresh phaseEnding
  idle <- if fresh == phaseFresh then pure phaseIdle else casWord cells cellPhase phaseIdle phaseEnding
  lingering <- if idle == phaseIdle then pure phaseLingering else casWord cells cellPhase phaseLingering phaseEnding
  let mine = lingering == phaseLingering
  when mine $ do
    throwTo thread EndIdle
    void (casWord cells cellPhase phaseEnding phaseEnded)
  pure mine

-- | The connection's thread no longer waits for a request: from now on no other thread ends the connection. 'True' if
-- it was told to end before; the exception has arrived then, here or before. Another exception that arrives meanwhile
-- is thrown after that.
stopWaiting :: WordArray -> IO Bool
stopWaiting cells = do
  found <- casWord cells cellPhase phaseIdle phaseBusy
  if found == phaseIdle
    then pure False
    else do
      found' <- casWord cells cellPhase phaseFresh phaseBusy
      lingering <- if found' == phaseLingering then casWord cells cellPhase phaseLingering phaseBusy else pure found'
      if lingering == phaseEnding || lingering == phaseEnded then True <$ mask_ (untilTold Nothing) else pure False
  where
    -- The other thread takes its time only until the exception can arrive, which it can here.
    untilTold :: Maybe SomeException -> IO ()
    untilTold other = do
      phase <- peekWord cells cellPhase
      if phase == phaseEnded
        then mapM_ throwIO other
        else do
          r <- try (threadDelay 1000)
          untilTold $ case r of
            Left e | Just EndIdle <- fromException e -> other
            Left e -> Just (fromMaybe e other)
            Right () -> other
{-# NOINLINE stopWaiting #-}

-- | End the connections that wait for a next request or have lingered for two seconds and, with 'True', also those that
-- have not received anything yet.
-- HTTP\/2 connections accept no more streams. The caller repeats this until no connection is left.
endIdle :: Bool -> Table -> IO ()
endIdle alsoFresh table = do
  entries <- entriesOf table
  waiting <- filterM ends entries
  forM_ waiting endEntry
  forM_ entries (\entry -> readIORef (entryHttp2 entry) >>= mapM_ controlShutdown)
  where
    ends entry = do
      phase <- peekWord (entryCells entry) cellPhase
      if phase == phaseLingering
        then hasLingered (entryDeadline entry)
        else pure (phase == phaseIdle || (alsoFresh && phase == phaseFresh))

-- | The connections that wait for a request or linger, with the share of their time that is left at an instant, from 1
-- downwards. Any thread may call it.
--
-- The instant is the same for all connections: a thread that examines them is preempted for longer than some of them
-- differ.
idleEntries :: Limits -> Instant -> Table -> IO [(Double, Entry)]
idleEntries limits at table = do
  entries <- entriesOf table
  found <- forM entries $ \entry -> do
    phase <- peekWord (entryCells entry) cellPhase
    if phase == phaseFresh || phase == phaseIdle || phase == phaseLingering
      then (\left -> [(left, entry)]) <$> shareOfTimeLeft limits at (entryCells entry) (entryDeadline entry)
      else do
        since <- readIORef (entryHttp2 entry) >>= maybe (pure Nothing) controlIdleSince
        pure [(shareOfIdleTimeLeft limits at began, entry) | began <- maybeToList since]
  pure (concat found)
