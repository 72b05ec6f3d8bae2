-- |
-- An open descriptor that its owner reads and writes through operations of the
-- form \"try, and wait when the kernel says not yet\": what sockets are made of.
-- It joins a channel with the manager that serves it, adds deadlines, and closes
-- the descriptor when the last operation has left it.
--
-- An endpoint is attached to a manager when a thread first has to wait, to the
-- manager of that thread's capability; one that never waits costs no
-- registration. It is attached anew when that manager has stopped, or in a forked
-- child.
module Weft.Core.Endpoint
  ( Endpoint,
    newEndpoint,
    endpointChannel,
    endpointFd,
    Direction (..),

    -- * Operations
    Attempt (..),
    Outcome (..),
    perform,
    useEndpoint,

    -- * Closing
    closeEndpoint,
    endpointClosed,
  )
where

import Control.Monad (unless, void, when)
import Foreign.C.Types (CInt)
import System.Posix.Types (Fd)
import Weft.Core.Backend
import Weft.Core.Channel
import Weft.Core.Counters
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Registry
import Weft.Core.Time (Instant, never)
import Weft.Core.Timer (cancelTimer)
import Weft.Sys

-- | An open descriptor.
data Endpoint = Endpoint
  { endpointChannel :: !Channel,
    -- | The manager that it was attached to last. Written by whoever attaches.
    endpointHome :: !(Ref (Maybe Manager)),
    -- | The manager for the calling thread, when one is needed.
    endpointManager :: !(IO Manager),
    -- | Closes the descriptor.
    endpointRelease :: !(IO ())
  }

-- | Take charge of an open, non-blocking descriptor. The arguments say where to
-- find the registry and a manager for the calling thread, and how to close the
-- descriptor.
newEndpoint :: IO (Registry Manager) -> IO Manager -> Fd -> IO () -> IO Endpoint
newEndpoint registry manager fd release = do
  r <- registry
  ch <- openChannel r fd
  home <- newRef Nothing
  -- Who has to close cannot be relieved of it by an exception: the waits inside, for
  -- a stripe's lock and for a poll that holds the descriptor, are short.
  let closing = uninterruptibleMask_ (registry >>= \current -> closeDescriptor current fd release)
  pure (Endpoint ch home manager closing)

-- | The descriptor. Only for a moment in which the endpoint is surely open.
endpointFd :: Endpoint -> Fd
endpointFd = channelFd . endpointChannel
{-# INLINE endpointFd #-}

-- | What a system call said.
data Attempt a
  = -- | Not now (@EAGAIN@).
    NotYet
  | -- | Done, and the kernel had no more than that to give or take.
    Drained !a
  | -- | Done; trying again may succeed at once.
    Done !a
  | -- | It failed with that errno.
    Failed !CInt

-- | What became of an operation.
data Outcome a
  = Completed !a
  | -- | It failed with that errno.
    Refused !CInt
  | -- | The endpoint was closed, before or meanwhile.
    EndpointClosed
  | -- | The deadline passed and the operation still could not be done.
    DeadlinePassed
  deriving (Eq, Show)

-- | Try an operation, and wait and try again until it is done. The operation runs
-- masked; it must neither block nor throw. It is tried once more after the
-- deadline has passed, so that what arrived in time is never lost. Any number of
-- threads may perform operations; those of one direction that wait are served in
-- turn. Interruptible while it waits, and then nothing was done.
perform :: Endpoint -> Direction -> Instant -> IO (Attempt a) -> IO (Outcome a)
perform ep dir deadline op = mask_ again
  where
    ch = endpointChannel ep
    passOn = void (tryPutMVar (token ch dir) ())
    again = do
      free <- tryTakeMVar (token ch dir)
      case free of
        Just () -> try
        Nothing -> do
          inTime <- waitToken ep dir deadline
          if inTime then try else lastTry
    try = do
      outcome <- inside ep EndpointClosed attemptOnce
      case outcome of
        DeadlinePassed -> again
        _ -> pure outcome
    -- DeadlinePassed stands for "not yet" here.
    attemptOnce = do
      r <- op
      case r of
        Drained a -> do
          more <- mayHideMore ch
          when more passOn
          pure (Completed a)
        Done a -> Completed a <$ passOn
        Failed e -> Refused e <$ passOn
        NotYet -> do
          others <- anyExpected ch dir
          when others passOn
          pure DeadlinePassed
    lastTry = inside ep EndpointClosed attemptOnce
{-# INLINE perform #-}

-- | Run a call with the descriptor that neither blocks nor throws; 'Nothing' if the
-- endpoint is closed.
useEndpoint :: Endpoint -> IO a -> IO (Maybe a)
useEndpoint ep act = mask_ (inside ep Nothing (Just <$> act))
{-# INLINE useEndpoint #-}

-- | Run something that uses the descriptor, if it is open, else give the first
-- argument. Masked; the action does not throw.
inside :: Endpoint -> a -> IO a -> IO a
inside ep closed act = do
  open <- enter ch
  if open
    then do
      a <- act
      lastOut <- leave ch
      when lastOut (endpointRelease ep)
      pure a
    else do
      wakeAll ch
      pure closed
  where
    ch = endpointChannel ep
{-# INLINE inside #-}

-- | Take the token, blocking. 'False': the deadline passed, and the token is left
-- to others.
waitToken :: Endpoint -> Direction -> Instant -> IO Bool
waitToken ep dir deadline = do
  home <- residence ep
  case home of
    Nothing -> pure True -- closed: the caller's attempt finds out
    Just m -> do
      countShared (managerCounters m) Waits
      case backendResume (managerBackend m) of
        Nothing -> pure ()
        Just resume -> do
          resume (channelFd ch) (eventOf dir)
          wakeManager m
      if deadline == never
        then True <$ takeMVar (token ch dir)
        else waitBefore m
  where
    ch = endpointChannel ep
    eventOf Reading = evtRead <> evtPeerClosed
    eventOf Writing = evtWrite
    passOn = void (tryPutMVar (token ch dir) ())
    -- Should the manager be stopped meanwhile, the timer comes early, and so does
    -- every token ('wakeChannels'). The cell: 0 while both may still happen, 1 when the timer came first, 2
    -- when the token did. Whoever moves it from 0 decides.
    waitBefore m = do
      cell <- newCells 1
      timer <- addTimer m deadline $ \_ -> do
        found <- casCell cell 0 0 1
        when (found == 0) (expect ch dir)
      let settle = do
            found <- casCell cell 0 0 2
            if found == 0 then True <$ cancelTimer timer else False <$ departed ch dir
      takeMVar (token ch dir) `onException` (settle >>= \won -> unless won passOn)
      inTime <- settle
      unless inTime passOn
      pure inTime

-- | The living manager that serves the endpoint; the endpoint is attached to one
-- if there is none. 'Nothing': the endpoint is closed.
residence :: Endpoint -> IO (Maybe Manager)
residence ep = do
  home <- readRef (endpointHome ep)
  case home of
    Just m -> do
      alive <- isAlive m
      if alive then pure home else settleDown ep
    Nothing -> settleDown ep
{-# INLINE residence #-}

settleDown :: Endpoint -> IO (Maybe Manager)
settleDown ep = do
  m <- endpointManager ep
  attempted <- inside ep (pure Nothing) (attempt (Just <$> attach (managerRegistry m) m (endpointChannel ep)))
  found <- attempted
  case found of
    Just Nothing -> settleDown ep -- stopped in this very moment
    Just home -> home <$ writeRef (endpointHome ep) home
    Nothing -> pure Nothing
{-# NOINLINE settleDown #-}

-- | Close: no operation begins any more, those that wait end with
-- 'EndpointClosed', and the descriptor is closed as soon as no thread is inside a
-- system call with it. 'False': it was closed already.
closeEndpoint :: Endpoint -> IO Bool
closeEndpoint ep = mask_ $ do
  outcome <- shut (endpointChannel ep)
  case outcome of
    WasShut -> pure False
    OthersInside -> pure True
    YoursToClose -> True <$ endpointRelease ep

-- | Has it been closed?
endpointClosed :: Endpoint -> IO Bool
endpointClosed = isShut . endpointChannel
