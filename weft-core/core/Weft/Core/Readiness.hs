-- |
-- The state of one descriptor that is registered once, edge-triggered,
-- for as long as it is open: its use count ("Weft.Core.UseCount"), what the kernel has reported, and a token for each
-- direction. The token means that trying an operation may succeed. The dispatcher puts it when the kernel reports
-- a change. A thread takes it before it tries, and blocks if it is not there. It
-- puts it back unless the kernel has said, by @EAGAIN@ or by transferring less than
-- was asked for, that nothing is left. So waiting needs no table, no
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
    markClosedElsewhere,
    wakeAll,

    -- * What is known of the descriptor
    isShut,
    markSendForbidden,
    isSendForbidden,
    isShared,
    setShared,
    setAsking,
    mayHideMore,
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
import Weft.Core.UseCount (Shut (..), UseCount, hasFlags, ownerFlag, setFlags, soleOwner)
import qualified Weft.Core.UseCount as UseCount
import Weft.Sys

-- | One descriptor.
data Readiness = Readiness
  { -- | Its number.
    readinessFd :: !Fd,
    -- | Distinguishes it from earlier and later descriptors of the same number.
    readinessGeneration :: !Int,
    -- | Word 0: its use count, and the flags below, which any thread sets and none clears. Words 1 and 2: the number of
    -- expired waiters of each direction, incremented by timers and decremented by the waiters; below zero while a
    -- waiter is ahead of its timer.
    readinessWords :: !WordArray,
    -- | The tokens hold the stamp of the event that put them, or 'unstamped'.
    readinessReadToken :: !(MVar Stamp),
    readinessWriteToken :: !(MVar Stamp)
  }

-- | The direction of data: from the descriptor, or to it.
data Direction = Reading | Writing
  deriving (Eq, Show)

flagPeerClosed, flagHangup, flagUrgent, flagShared, flagSendForbidden, flagAsking :: Int
flagPeerClosed = ownerFlag 0
flagHangup = ownerFlag 1
flagUrgent = ownerFlag 2
flagShared = ownerFlag 3
flagSendForbidden = ownerFlag 4
flagAsking = ownerFlag 5

useCount :: Readiness -> IO UseCount
useCount rd = soleOwner 2 (readinessWords rd)
{-# INLINE useCount #-}

-- | Set flags.
raiseFlags :: Readiness -> Int -> IO ()
raiseFlags rd flags = useCount rd >>= \l -> void (setFlags l flags)
{-# INLINE raiseFlags #-}

-- | Whether one of these flags is set.
hasAnyFlag :: Readiness -> Int -> IO Bool
hasAnyFlag rd flags = useCount rd >>= \l -> hasFlags l flags
{-# INLINE hasAnyFlag #-}

-- | The state of an open descriptor, of a generation. Both tokens are there, as nothing has been
-- tried yet.
newReadiness :: Fd -> Int -> IO Readiness
newReadiness fd gen = Readiness fd gen <$> newWordArray 3 <*> newMVar unstamped <*> newMVar unstamped

-- | The token of a direction.
token :: Readiness -> Direction -> MVar Stamp
token rd Reading = readinessReadToken rd
token rd Writing = readinessWriteToken rd
{-# INLINE token #-}

-- | Note the events that the kernel reported, and put the tokens of their directions. Never blocks. The flags are set
-- before the tokens are put, so a thread that takes a token sees them.
deliver :: Readiness -> Stamp -> Events -> IO ()
deliver rd stamp evs = if stamp == unstamped then deliverWith unstamped rd evs else deliverStamped stamp rd evs
{-# INLINE deliver #-}

-- | 'deliver' for an event that has a stamp; not inlined, since the stamp has to be allocated.
deliverStamped :: Stamp -> Readiness -> Events -> IO ()
deliverStamped = deliverWith
{-# NOINLINE deliverStamped #-}

deliverWith :: Stamp -> Readiness -> Events -> IO ()
deliverWith !stamp rd evs = do
  when (evs `overlaps` (evtPeerClosed <> evtHangup <> evtUrgent)) (raiseFlags rd (flagsOf evs))
  when (evs `overlaps` evtRead) (void (tryPutMVar (readinessReadToken rd) stamp))
  when (evs `overlaps` evtWrite) (void (tryPutMVar (readinessWriteToken rd) stamp))
{-# INLINE deliverWith #-}

flagsOf :: Events -> Int
flagsOf evs = flag evtPeerClosed flagPeerClosed .|. flag evtHangup flagHangup .|. flag evtUrgent flagUrgent
  where
    flag e f = if evs `includes` e then f else 0

-- | To be called before a system call with the descriptor; see 'UseCount.acquire'.
acquire :: Readiness -> IO Bool
acquire rd = useCount rd >>= UseCount.acquire
{-# INLINE acquire #-}

-- | 'acquire' for a call that sends: 'False' also after 'markSendForbidden'.
acquireToSend :: Readiness -> IO Bool
acquireToSend rd = useCount rd >>= UseCount.acquireUnless flagSendForbidden
{-# INLINE acquireToSend #-}

-- | To be called after the system call; see 'UseCount.release'.
release :: Readiness -> IO Bool
release rd = useCount rd >>= UseCount.release
{-# INLINE release #-}

-- | Forbid further use, and wake the threads that wait; they then find the descriptor shut.
shut :: Readiness -> IO Shut
shut rd = do
  outcome <- useCount rd >>= UseCount.shut
  when (outcome /= WasShut) (wakeAll rd)
  pure outcome

-- | Forbid further use of a descriptor that another owner closes, so that it is not closed a second
-- time.
markClosedElsewhere :: Readiness -> IO ()
markClosedElsewhere rd = (useCount rd >>= UseCount.markClosedElsewhere) >> wakeAll rd

-- | Let one waiter of each direction try again. If it finds the descriptor shut, it passes the token on to
-- the next.
wakeAll :: Readiness -> IO ()
wakeAll rd = do
  void (tryPutMVar (readinessReadToken rd) unstamped)
  void (tryPutMVar (readinessWriteToken rd) unstamped)

-- | Whether it has been shut.
isShut :: Readiness -> IO Bool
isShut rd = not <$> (useCount rd >>= UseCount.isOpen)

-- | Make all further sends fail, because a part of a message was sent and its rest never will be. Threads that
-- wait to send are woken.
markSendForbidden :: Readiness -> IO ()
markSendForbidden rd = raiseFlags rd flagSendForbidden >> void (tryPutMVar (readinessWriteToken rd) unstamped)

-- | Whether 'markSendForbidden' was called.
isSendForbidden :: Readiness -> IO Bool
isSendForbidden rd = hasAnyFlag rd flagSendForbidden

-- | Whether callbacks in the registry share this descriptor's kernel registration.
isShared :: Readiness -> IO Bool
isShared rd = hasAnyFlag rd flagShared
{-# INLINE isShared #-}

-- | Note that callbacks in the registry share this descriptor's kernel registration.
setShared :: Readiness -> IO ()
setShared rd = raiseFlags rd flagShared

-- | Note that the back end reports an event only to a thread that has asked since the last report (@backendResume@ of
-- "Weft.Core.Backend").
setAsking :: Readiness -> IO ()
setAsking rd = raiseFlags rd flagAsking

-- | Whether a read that returned less than was asked for may have left something behind
-- that will not be reported again. It is so after the end of the stream or an
-- error was reported, and near urgent data, at which a read stops. It is also so for other threads that wait, if each
-- has to ask again after a report ('setAsking').
mayHideMore :: Readiness -> IO Bool
mayHideMore rd = hasAnyFlag rd (flagPeerClosed .|. flagHangup .|. flagUrgent .|. flagAsking)
{-# INLINE mayHideMore #-}

-- | Whether the kernel has reported that the connection is gone in both directions.
sawHangup :: Readiness -> IO Bool
sawHangup rd = hasAnyFlag rd flagHangup

-- | Called by a timer when the deadline of a waiter of that direction has passed. The token may reach another waiter
-- first, so each waiter passes it on while 'anyExpired' holds.
noteExpired :: Readiness -> Direction -> IO ()
noteExpired rd d = do
  void (addWord (readinessWords rd) (expiredWord d) 1)
  void (tryPutMVar (token rd d) unstamped)

-- | Called by a waiter when it has found that its deadline has passed.
expiredDone :: Readiness -> Direction -> IO ()
expiredDone rd d = void (addWord (readinessWords rd) (expiredWord d) (-1))

-- | Whether the deadline of a waiter of that direction has passed and the waiter has not run since.
anyExpired :: Readiness -> Direction -> IO Bool
anyExpired rd d = (> 0) <$> readWord (readinessWords rd) (expiredWord d)

expiredWord :: Direction -> Int
expiredWord Reading = 1
expiredWord Writing = 2
