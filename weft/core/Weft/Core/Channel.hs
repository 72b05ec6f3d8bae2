-- |
-- The waiting room of one descriptor that is registered once, edge-triggered,
-- for as long as it is open. Each direction has one token. The token means: the
-- operation may be worth trying. The dispatcher puts it when the kernel reports
-- a change; a thread takes it before it tries, blocks when it is not there, and
-- puts it back unless the kernel has said, by @EAGAIN@ or by giving less than
-- was asked for, that nothing is left. Waiting therefore needs no table, no
-- system call and no callback.
--
-- A descriptor's number belongs to the channel until nobody is inside a system
-- call with it: 'enter' and 'leave' count who is, 'shut' forbids entry, and the
-- last to leave closes it. A number that the kernel gives out again can so never
-- be used by a thread that meant the old descriptor.
module Weft.Core.Channel
  ( Channel,
    newChannel,
    channelFd,
    channelGeneration,

    -- * The dispatcher
    deliver,

    -- * Operations
    Direction (..),
    token,
    enter,
    leave,
    Shut (..),
    shut,
    disown,
    wakeAll,

    -- * What is known of the descriptor
    isShut,
    isShared,
    setShared,
    mayHideMore,
    sawPeerClosed,
    sawHangup,

    -- * Waiters whose deadline has passed
    expect,
    departed,
    anyExpected,
  )
where

import Control.Monad (void, when)
import Data.Bits
import System.Posix.Types (Fd)
import Weft.Core.Events
import Weft.Sys

-- | One descriptor.
data Channel = Channel
  { channelFd :: !Fd,
    -- | Distinguishes it from earlier and later users of the same number.
    channelGeneration :: !Int,
    -- | Cell 0: flags in the low byte, set by anybody and never cleared but for
    -- 'flagShared'; above it the number of threads inside. Cells 1 and 2: expired
    -- waiters of each direction, counted up by timers and down by the waiters.
    channelState :: !Cells,
    channelReadToken :: !(MVar ()),
    channelWriteToken :: !(MVar ())
  }

-- | Which of the two ways data goes.
data Direction = Reading | Writing
  deriving (Eq, Show)

flagShut, flagReleased, flagPeerClosed, flagHangup, flagUrgent, flagShared, oneInside :: Int
flagShut = 1
flagReleased = 2
flagPeerClosed = 4
flagHangup = 8
flagUrgent = 16
flagShared = 32
oneInside = 256

-- | A channel for an open descriptor. Both tokens are there: nothing has been
-- tried yet.
newChannel :: Fd -> Int -> IO Channel
newChannel fd gen = Channel fd gen <$> newCells 3 <*> newMVar () <*> newMVar ()

-- | The token of a direction.
token :: Channel -> Direction -> MVar ()
token ch Reading = channelReadToken ch
token ch Writing = channelWriteToken ch
{-# INLINE token #-}

-- | Note what the kernel reported and let threads try. Never blocks. The flags
-- are set before the tokens are put, so whoever takes a token sees them.
deliver :: Channel -> Events -> IO ()
deliver ch evs = do
  when (evs `overlaps` (evtPeerClosed <> evtHangup <> evtUrgent)) (void (setFlags ch (flagsOf evs)))
  when (evs `overlaps` evtRead) (void (tryPutMVar (channelReadToken ch) ()))
  when (evs `overlaps` evtWrite) (void (tryPutMVar (channelWriteToken ch) ()))
{-# INLINE deliver #-}

flagsOf :: Events -> Int
flagsOf evs = flag evtPeerClosed flagPeerClosed .|. flag evtHangup flagHangup .|. flag evtUrgent flagUrgent
  where
    flag e f = if evs `includes` e then f else 0

-- | Returns the word as it was before.
setFlags :: Channel -> Int -> IO Int
setFlags ch f = go =<< readCell (channelState ch) 0
  where
    go old
      | old .&. f == f = pure old
      | otherwise = do
        found <- casCell (channelState ch) 0 old (old .|. f)
        if found == old then pure old else go found

hasFlag :: Int -> Channel -> IO Bool
hasFlag f ch = (\w -> w .&. f /= 0) <$> readCell (channelState ch) 0
{-# INLINE hasFlag #-}

-- | Before a system call with the descriptor. 'False': it is shut, and the
-- caller is not inside. Between 'enter' and 'leave' the caller neither blocks nor
-- is interrupted.
enter :: Channel -> IO Bool
enter ch = go =<< readCell (channelState ch) 0
  where
    go old
      | old .&. flagShut /= 0 = pure False
      | otherwise = do
        found <- casCell (channelState ch) 0 old (old + oneInside)
        if found == old then pure True else go found
{-# INLINE enter #-}

-- | After it. 'True': the caller was the last to leave a channel that is shut,
-- and has to close the descriptor. One thread gets this answer.
leave :: Channel -> IO Bool
leave ch = do
  old <- addCell (channelState ch) 0 (negate oneInside)
  if old .&. flagShut /= 0 && old - oneInside < oneInside then claimRelease ch else pure False
{-# INLINE leave #-}

claimRelease :: Channel -> IO Bool
claimRelease ch = go =<< readCell (channelState ch) 0
  where
    go old
      | old .&. flagReleased /= 0 || old >= oneInside = pure False
      | otherwise = do
        found <- casCell (channelState ch) 0 old (old .|. flagReleased)
        if found == old then pure True else go found

-- | What became of 'shut'.
data Shut
  = -- | It was shut already.
    WasShut
  | -- | Threads are still inside; the last of them will close the descriptor.
    OthersInside
  | -- | The caller has to close the descriptor.
    YoursToClose
  deriving (Eq, Show)

-- | Forbid entry, and make every waiter find out.
shut :: Channel -> IO Shut
shut ch = do
  old <- setFlags ch flagShut
  if old .&. flagShut /= 0
    then pure WasShut
    else do
      wakeAll ch
      mine <- claimRelease ch
      pure (if mine then YoursToClose else OthersInside)

-- | The descriptor is being closed by somebody else: forbid entry, and let nobody
-- here close it a second time.
disown :: Channel -> IO ()
disown ch = void (setFlags ch (flagShut .|. flagReleased)) >> wakeAll ch

-- | Let a waiter of each direction try again. One that finds the channel shut, or
-- nothing to do, passes the token on.
wakeAll :: Channel -> IO ()
wakeAll ch = do
  void (tryPutMVar (channelReadToken ch) ())
  void (tryPutMVar (channelWriteToken ch) ())

-- | Has it been shut?
isShut :: Channel -> IO Bool
isShut = hasFlag flagShut

-- | Do registrations in the table share the channel's kernel registration?
isShared :: Channel -> IO Bool
isShared = hasFlag flagShared
{-# INLINE isShared #-}

-- | From now on they do.
setShared :: Channel -> IO ()
setShared ch = void (setFlags ch flagShared)

-- | May a read that returned less than was asked for have left something behind
-- for which no further report comes? So it is after the end of the stream or an
-- error was reported, and near urgent data, at which a read stops short.
mayHideMore :: Channel -> IO Bool
mayHideMore = hasFlag (flagPeerClosed .|. flagHangup .|. flagUrgent)
{-# INLINE mayHideMore #-}

-- | Has the kernel reported that the peer sends nothing more?
sawPeerClosed :: Channel -> IO Bool
sawPeerClosed = hasFlag (flagPeerClosed .|. flagHangup)

-- | Has it reported that the connection is gone in both directions?
sawHangup :: Channel -> IO Bool
sawHangup = hasFlag flagHangup

-- | A timer's part: one waiter more of that direction has to find out that its
-- time is over. As the token may reach another waiter first, each passes it on
-- for as long as 'anyExpected'.
expect :: Channel -> Direction -> IO ()
expect ch d = do
  void (addCell (channelState ch) (expectCell d) 1)
  void (tryPutMVar (token ch d) ())

-- | That waiter has found out.
departed :: Channel -> Direction -> IO ()
departed ch d = void (addCell (channelState ch) (expectCell d) (-1))

-- | Is any waiter of that direction still to find out?
anyExpected :: Channel -> Direction -> IO Bool
anyExpected ch d = (> 0) <$> readCell (channelState ch) (expectCell d)

expectCell :: Direction -> Int
expectCell Reading = 1
expectCell Writing = 2
