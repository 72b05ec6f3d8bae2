-- |
-- The types that an HTTP\/1 connection and its server share.
--
-- @since 0.1.0
module Weft.Http.Types
  ( -- * Servers
    Shared (..),

    -- * Connections
    Client (..),
    OpenFile (..),
    cellPhase,
    cellRequests,
    cellBodyBytes,
    cellBodyTime,
    cellBodyFast,
    cellFinal,
    cellHandshake,
    cellBegun,
    cellSending,
    cellExpected,
    cellCount,

    -- * Phases
    phaseFresh,
    phaseIdle,
    phaseBusy,
    phaseEnding,
    setPhase,

    -- * Responses
    responseNone,
    responseBegun,
    responseKeep,
    responseClose,
    responseState,
    setResponse,
    isFinal,
  )
where

import Control.Concurrent (ThreadId)
import Data.ByteString (ByteString)
import Data.IORef
import Data.Vault.Lazy (Vault)
import System.Posix.Types (Fd)
import Weft.Duration (Duration)
import Weft.Http.Date (DateLines)
import Weft.Http.Limits
import Weft.Http.Settings
import Weft.IdleTimer (IdleTimer)
import Weft.Socket (SockAddr)
import Weft.Sys (AtomicWords, peekWord, pokeWord)
import Weft.Transport (Connection)

-- | The part that all connections of a server share. Immutable except for the reference.
data Shared = Shared
  { sharedSettings :: !Settings,
    sharedLimits :: !Limits,
    -- | 'settingsTimeout' as a duration, 'maxBound' if there is none.
    sharedTimeout :: !Duration,
    -- | A field line that every response gets unless it has a @Server@ field.
    sharedServerLine :: !ByteString,
    -- | Field lines that every response gets.
    sharedLines :: !ByteString,
    -- | The date, with both behind it.
    sharedDate :: !DateLines,
    sharedOnRefused :: !(SockAddr -> Refusal -> IO ()),
    -- | Written once, by the thread that begins the shutdown; read by all connections.
    sharedDraining :: !(IORef Bool)
  }

-- | One connection.
data Client = Client
  { clientShared :: !Shared,
    clientConnection :: !Connection,
    clientPeer :: !SockAddr,
    clientSecure :: !Bool,
    -- | The thread that serves it.
    clientThread :: !ThreadId,
    -- | Closes the connection when its client is too slow.
    clientDeadline :: !IdleTimer,
    -- | Words that change with each request; see the cells below.
    clientCells :: !AtomicWords,
    -- | A file that the application holds open for the response. Written and cleared by the application's
    -- thread, read by the same thread when it responds.
    clientFile :: !(IORef OpenFile),
    -- | The initial vault of each request: it has a place for an open file.
    clientVault :: !Vault,
    -- | Where a connection of HTTP\/2 puts the action that begins its shutdown. Written by its thread, read by who
    -- shuts the server down.
    clientShutdown :: !(IORef (IO ()))
  }

-- | An open file and the path that it stands for.
data OpenFile = NoFile | OpenFile !FilePath !Fd

-- | The phase: see below. How many requests there were, written by the connection's thread. Bytes of a body since
-- its client's time was renewed, and what is left of that time in nanoseconds, written by the thread
-- that reads the body. How far the response is: written by the thread that responds.
-- Not zero: the connection ends after the response under way; written by its thread. Not zero: a TLS handshake is under way, of the
-- connection's thread. Not zero: a part of a head has come, of the same thread. Not zero: the last receive of a body got 16 KiB or
-- more; of the thread that reads the body. How far a send is: "Weft.Http.SendTime". Bytes of
-- the request that is expected next, zero if it is small; of the thread.
cellPhase, cellRequests, cellBodyBytes, cellBodyTime, cellResponse, cellFinal, cellHandshake, cellBegun, cellBodyFast, cellSending, cellExpected, cellCount :: Int
cellPhase = 0
cellRequests = 1
cellBodyBytes = 2
cellBodyTime = 3
cellResponse = 4
cellFinal = 5
cellHandshake = 6
cellBegun = 7
cellBodyFast = 8
cellSending = 9
cellExpected = 10
cellCount = 11

-- | The phases of a connection:
--
-- @
--   Fresh    waits for its first head      -> Busy, Ending
--   Idle     waits for another head        -> Busy, Ending
--   Busy     a request is being answered   -> Idle
--   Ending   told to end, to make room or because the server ends -> Busy
-- @
--
-- Fresh and Idle are left by compare-and-swap: to Busy by the connection's thread when a head is complete, to Ending by
-- a thread that ends the connection, and then throws 'Weft.Http.Table.EndIdle' to the connection's thread.
phaseFresh, phaseIdle, phaseBusy, phaseEnding :: Int
phaseFresh = 0
phaseIdle = 1
phaseBusy = 2
phaseEnding = 3

-- | Set the phase, by the thread of the connection.
setPhase :: Client -> Int -> IO ()
setPhase client = pokeWord (clientCells client) cellPhase
{-# INLINE setPhase #-}

-- | Nothing was sent; the head was, or a part of it; all was, and the connection goes on; all was, and it ends.
responseNone, responseBegun, responseKeep, responseClose :: Int
responseNone = 0
responseBegun = 1
responseKeep = 2
responseClose = 3

-- | Set the state of the response, by the thread of the connection.
setResponse :: Client -> Int -> IO ()
setResponse client = pokeWord (clientCells client) cellResponse
{-# INLINE setResponse #-}

-- | The state of the response.
responseState :: Client -> IO Int
responseState client = peekWord (clientCells client) cellResponse
{-# INLINE responseState #-}

-- | Is the response under way the connection's last: because the server ends, or the client has made as many requests as
-- it may, or was told to make room?
isFinal :: Client -> IO Bool
isFinal client = do
  draining <- readIORef (sharedDraining (clientShared client))
  if draining then pure True else (/= 0) <$> peekWord (clientCells client) cellFinal
{-# INLINE isFinal #-}
