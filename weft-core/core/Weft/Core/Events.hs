-- |
-- Events of descriptors, lifetimes of registrations, triggers and tokens: the types
-- that the public API, the core and all back ends share. Pure.
module Weft.Core.Events
  ( -- * Events
    Events (..),
    evtRead,
    evtWrite,
    evtPeerClosed,
    evtHangup,
    evtUrgent,
    evtClose,
    evtOrphaned,
    includes,
    overlaps,
    common,
    without,
    isNoEvent,

    -- * How long a registration lives
    Lifetime (..),

    -- * How a back end reports
    Trigger (..),

    -- * When it was reported
    Stamp,
    unstamped,

    -- * Tokens
    Token (..),
    tableToken,
    readinessToken,
    isReadinessToken,
    externalToken,
    isExternalToken,
    tokenFd,
    tokenGeneration,
  )
where

import Data.Bits
import Data.List (intercalate)
import System.Posix.Types (Fd)

-- | When an event was delivered, in nanoseconds of the monotonic clock; 'unstamped' for most events
-- ("Weft.Core.Latency").
type Stamp = Int

-- | The stamp of an event whose latency is not measured.
unstamped :: Stamp
unstamped = 0

-- | A set of events. '<>' is union, 'mempty' the empty set.
newtype Events = Events Int
  deriving (Eq)

instance Semigroup Events where
  Events a <> Events b = Events (a .|. b)
  {-# INLINE (<>) #-}

instance Monoid Events where
  mempty = Events 0

instance Show Events where
  show e = "[" <> intercalate "," [n | (b, n) <- names, e `includes` b] <> "]"
    where
      names =
        [ (evtRead, "evtRead"),
          (evtWrite, "evtWrite"),
          (evtPeerClosed, "evtPeerClosed"),
          (evtHangup, "evtHangup"),
          (evtUrgent, "evtUrgent"),
          (evtClose, "evtClose")
        ]

-- | A read would not block: there is data, the end of the stream, a connection
-- to accept, or an error to collect.
evtRead :: Events
evtRead = Events 1

-- | A write would not block, or would report an error.
evtWrite :: Events
evtWrite = Events 2

-- | The peer will send nothing more (it closed the connection, or shut down its
-- sending half: @EPOLLRDHUP@). It may still be reading.
evtPeerClosed :: Events
evtPeerClosed = Events 4

-- | The connection is gone in both directions, or has an error (@EPOLLHUP@,
-- @EPOLLERR@). Always reported together with 'evtRead' and 'evtWrite', whatever
-- was asked for, since neither operation would block.
evtHangup :: Events
evtHangup = Events 8

-- | Urgent (out-of-band) data is in the stream (@EPOLLPRI@).
evtUrgent :: Events
evtUrgent = Events 16

-- | The descriptor was closed by 'Weft.Event.closeFd', or was found to be
-- closed; nothing else will come for this registration.
evtClose :: Events
evtClose = Events 32

-- | With 'evtClose': the manager was stopped; the descriptor may still be open.
evtOrphaned :: Events
evtOrphaned = Events 64

-- | Whether the first contains all of the second.
includes :: Events -> Events -> Bool
Events a `includes` Events b = a .&. b == b
{-# INLINE includes #-}

-- | Whether they have an event in common.
overlaps :: Events -> Events -> Bool
Events a `overlaps` Events b = a .&. b /= 0
{-# INLINE overlaps #-}

-- | The intersection.
common :: Events -> Events -> Events
common (Events a) (Events b) = Events (a .&. b)
{-# INLINE common #-}

-- | The first without the second.
without :: Events -> Events -> Events
without (Events a) (Events b) = Events (a .&. complement b)
{-# INLINE without #-}

-- | Whether the set is empty.
isNoEvent :: Events -> Bool
isNoEvent (Events a) = a == 0
{-# INLINE isNoEvent #-}

-- | How long a registration of a callback lasts.
data Lifetime
  = -- | Until its first event.
    OneShot
  | -- | Until it is unregistered or the descriptor is closed; called again as
    -- long as the event holds (level-triggered).
    MultiShot
  deriving (Eq, Ord, Show)

-- | How a back end is to report a descriptor.
data Trigger
  = -- | Report the next readiness, beginning with the present, then nothing
    -- until armed again.
    Once
  | -- | Report at every poll for as long as the readiness lasts.
    Level
  | -- | Report the present readiness, then each change.
    Edge
  deriving (Eq, Ord, Show)

-- | A number that a back end gets with a descriptor, and returns with its events. The low 32 bits are the descriptor,
-- the next 30 a generation. The highest two select the handler of the event: callbacks in the registry, the manager's
-- external handler ('Weft.Core.Manager.setExternalHandler'), or a tracked descriptor. A number that was closed and
-- opened again has another generation, so an event of the old descriptor is dropped.
newtype Token = Token Int
  deriving (Eq)

instance Show Token where
  show t =
    (if isReadinessToken t then "readiness " else if isExternalToken t then "external " else "table ")
      <> show (tokenFd t)
      <> "#"
      <> show (tokenGeneration t)

-- | Token of an entry of the registration table.
tableToken :: Fd -> Int -> Token
tableToken fd gen =
  Token (((gen .&. 0x3fffffff) `unsafeShiftL` 32) .|. (fromIntegral fd .&. 0xffffffff))
{-# INLINE tableToken #-}

-- | Token of a tracked descriptor.
readinessToken :: Fd -> Int -> Token
readinessToken fd gen = let Token t = tableToken fd gen in Token (t .|. minBound)
{-# INLINE readinessToken #-}

-- | Whether it is a tracked descriptor's.
isReadinessToken :: Token -> Bool
isReadinessToken (Token t) = t < 0
{-# INLINE isReadinessToken #-}

-- | Token of an external handler.
externalToken :: Fd -> Int -> Token
externalToken fd gen = let Token t = tableToken fd gen in Token (t .|. externalBit)
{-# INLINE externalToken #-}

-- | Whether it is an external handler's.
isExternalToken :: Token -> Bool
isExternalToken (Token t) = t >= externalBit
{-# INLINE isExternalToken #-}

externalBit :: Int
externalBit = 0x4000000000000000

-- | The descriptor.
tokenFd :: Token -> Fd
tokenFd (Token t) = fromIntegral (t .&. 0xffffffff)
{-# INLINE tokenFd #-}

-- | The generation, 30 bits.
tokenGeneration :: Token -> Int
tokenGeneration (Token t) = (t `unsafeShiftR` 32) .&. 0x3fffffff
{-# INLINE tokenGeneration #-}
