-- |
-- What is known of one descriptor that is registered once, edge-triggered,
-- for as long as it is open: its use count ("Weft.Core.UseCount"), what the kernel reported, and for each direction a
-- token. The token means: the operation may be worth trying. The dispatcher puts it when the kernel reports
-- a change; a thread takes it before it tries, blocks when it is not there, and
-- puts it back unless the kernel has said, by @EAGAIN@ or by giving less than
-- was asked for, that nothing is left. Waiting therefore needs no table, no
-- system call and no callback.
module Weft.Core.Readiness
  ( Readiness,
    newReadiness,
    readinessFd,
    readinessGeneration,

    -- * The dispatcher
    deliver,

    -- * Operations
    Direction (..),
    token,
    acquire,
    acquireToSend,
    release,
    Shut (..),
    shut,
    disown,
    wakeAll,

    -- * What is known of the descriptor
    isShut,
    cutSending,
    isSendingCut,
    isShared,
    setShared,
    mayHideMore,
    sawPeerClosed,
    sawHangup,

    -- * Waiters whose deadline has passed
    noteExpired,
    expiredDone,
    anyExpired,
  )
where

import Control.Monad (void, when)
import Data.Bits
import System.Posix.Types (Fd)
import Weft.Core.Events
import Weft.Core.UseCount (Shut (..), UseCount (..), hasFlags, ownerFlag, setFlags)
import qualified Weft.Core.UseCount as UseCount
import Weft.Sys

-- | One descriptor.
data Readiness = Readiness
  { -- | Its number.
    readinessFd :: !Fd,
    -- | Distinguishes it from earlier and later users of the same number.
    readinessGeneration :: !Int,
    -- | Word 0: its use count, and the flags below, which are set by anybody and never cleared. Words 1 and 2: expired
    -- waiters of each direction, counted up by timers and down by the waiters.
    readinessWords :: !AtomicWords,
    -- | The tokens hold the stamp of the event that put them, or 'unstamped'.
    readinessReadToken :: !(MVar Stamp),
    readinessWriteToken :: !(MVar Stamp)
  }

-- | Which of the two ways data goes.
data Direction = Reading | Writing
  deriving (Eq, Show)

flagPeerClosed, flagHangup, flagUrgent, flagShared, flagSendingCut :: Int
flagPeerClosed = ownerFlag 0
flagHangup = ownerFlag 1
flagUrgent = ownerFlag 2
flagShared = ownerFlag 3
flagSendingCut = ownerFlag 4

useCount :: Readiness -> UseCount
useCount rd = UseCount (readinessWords rd) 0 0
{-# INLINE useCount #-}

-- | Of an open descriptor. Both tokens are there: nothing has been
-- tried yet.
newReadiness :: Fd -> Int -> IO Readiness
newReadiness fd gen = Readiness fd gen <$> newAtomicWords 3 <*> newMVar unstamped <*> newMVar unstamped

-- | The token of a direction.
token :: Readiness -> Direction -> MVar Stamp
token rd Reading = readinessReadToken rd
token rd Writing = readinessWriteToken rd
{-# INLINE token #-}

-- | Note what the kernel reported and let threads try. Never blocks. The flags
-- are set before the tokens are put, so whoever takes a token sees them.
deliver :: Readiness -> Stamp -> Events -> IO ()
deliver rd stamp evs = if stamp == unstamped then deliverWith unstamped rd evs else deliverStamped stamp rd evs
{-# INLINE deliver #-}

-- | The same of an event that has a stamp, which is allocated.
deliverStamped :: Stamp -> Readiness -> Events -> IO ()
deliverStamped = deliverWith
{-# NOINLINE deliverStamped #-}

deliverWith :: Stamp -> Readiness -> Events -> IO ()
deliverWith !stamp rd evs = do
  when (evs `overlaps` (evtPeerClosed <> evtHangup <> evtUrgent)) (void (setFlags (useCount rd) (flagsOf evs)))
  when (evs `overlaps` evtRead) (void (tryPutMVar (readinessReadToken rd) stamp))
  when (evs `overlaps` evtWrite) (void (tryPutMVar (readinessWriteToken rd) stamp))
{-# INLINE deliverWith #-}

flagsOf :: Events -> Int
flagsOf evs = flag evtPeerClosed flagPeerClosed .|. flag evtHangup flagHangup .|. flag evtUrgent flagUrgent
  where
    flag e f = if evs `includes` e then f else 0

-- | Before a system call with the descriptor; see 'UseCount.acquire'.
acquire :: Readiness -> IO Bool
acquire = UseCount.acquire . useCount
{-# INLINE acquire #-}

-- | The same for a call that sends: 'False' also after 'cutSending'.
acquireToSend :: Readiness -> IO Bool
acquireToSend = UseCount.acquireUnless flagSendingCut . useCount
{-# INLINE acquireToSend #-}

-- | After it; see 'UseCount.release'.
release :: Readiness -> IO Bool
release = UseCount.release . useCount
{-# INLINE release #-}

-- | Forbid further use, and make every waiter find out.
shut :: Readiness -> IO Shut
shut rd = do
  outcome <- UseCount.shut (useCount rd)
  when (outcome /= WasShut) (wakeAll rd)
  pure outcome

-- | The descriptor is being closed by somebody else: forbid use, and let nobody
-- here close it a second time.
disown :: Readiness -> IO ()
disown rd = UseCount.disown (useCount rd) >> wakeAll rd

-- | Let a waiter of each direction try again. One that finds the tracked descriptor shut, or
-- nothing to do, passes the token on.
wakeAll :: Readiness -> IO ()
wakeAll rd = do
  void (tryPutMVar (readinessReadToken rd) unstamped)
  void (tryPutMVar (readinessWriteToken rd) unstamped)

-- | Has it been shut?
isShut :: Readiness -> IO Bool
isShut rd = not <$> UseCount.isOpen (useCount rd)

-- | A message was sent in part only and its rest never will be: nothing more is to be sent. Who
-- waits to send finds out.
cutSending :: Readiness -> IO ()
cutSending rd = setFlags (useCount rd) flagSendingCut >> void (tryPutMVar (readinessWriteToken rd) unstamped)

-- | Has that happened?
isSendingCut :: Readiness -> IO Bool
isSendingCut rd = hasFlags (useCount rd) flagSendingCut

-- | Do registrations in the table share the tracked descriptor's kernel registration?
isShared :: Readiness -> IO Bool
isShared rd = hasFlags (useCount rd) flagShared
{-# INLINE isShared #-}

-- | From now on they do.
setShared :: Readiness -> IO ()
setShared rd = void (setFlags (useCount rd) flagShared)

-- | May a read that returned less than was asked for have left something behind
-- for which no further report comes? So it is after the end of the stream or an
-- error was reported, and near urgent data, at which a read stops short.
mayHideMore :: Readiness -> IO Bool
mayHideMore rd = hasFlags (useCount rd) (flagPeerClosed .|. flagHangup .|. flagUrgent)
{-# INLINE mayHideMore #-}

-- | Has the kernel reported that the peer sends nothing more?
sawPeerClosed :: Readiness -> IO Bool
sawPeerClosed rd = hasFlags (useCount rd) (flagPeerClosed .|. flagHangup)

-- | Has it reported that the connection is gone in both directions?
sawHangup :: Readiness -> IO Bool
sawHangup rd = hasFlags (useCount rd) flagHangup

-- | A timer's part: one waiter more of that direction has to find out that its
-- time is over. As the token may reach another waiter first, each passes it on
-- for as long as 'anyExpired'.
noteExpired :: Readiness -> Direction -> IO ()
noteExpired rd d = do
  void (addWord (readinessWords rd) (expiredWord d) 1)
  void (tryPutMVar (token rd d) unstamped)

-- | That waiter has found out.
expiredDone :: Readiness -> Direction -> IO ()
expiredDone rd d = void (addWord (readinessWords rd) (expiredWord d) (-1))

-- | Is any waiter of that direction still to find out?
anyExpired :: Readiness -> Direction -> IO Bool
anyExpired rd d = (> 0) <$> readWord (readinessWords rd) (expiredWord d)

expiredWord :: Direction -> Int
expiredWord Reading = 1
expiredWord Writing = 2
