-- |
-- The types that an HTTP\/1 connection and its server share.
--
-- @since 0.1.0
module Weft.Http.Types
  ( -- * Servers
    Shared (..),

    -- * Connections
    Client (..),
    depart,
    Origin (..),
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
    cellAdmission,
    cellCount,

    -- * Phases
    phaseFresh,
    phaseIdle,
    phaseBusy,
    phaseLingering,
    phaseEnding,
    phaseEnded,
    setPhase,

    -- * Responses
    responseNone,
    responseBegun,
    responseKeep,
    responseClose,
    responseState,
    openResponse,
    isUnclaimed,
    claimResponse,
    tryClaimResponse,
    setResponse,
    isFinal,
  )
where

import Control.Concurrent (ThreadId)
import Control.Exception (throwIO)
import Control.Monad (unless)
import Data.Bits ((.&.), (.|.))
import Data.ByteString (ByteString)
import Data.IORef
import Data.Vault.Lazy (Vault)
import System.Posix.Types (Fd)
import Weft.Duration (Duration)
import Weft.Http.Date (DateLines)
import Weft.Http.Limits
import Weft.Http.Settings
import Weft.Http2.Control (Http2Control)
import Weft.IdleTimer (IdleTimer)
import Weft.Socket (SockAddr)
import Weft.Sys (WordArray, casWord, peekWord, pokeWord)
import Weft.Transport (Connection)

-- | What all connections of a server share. Immutable except for the reference.
data Shared = Shared
  { sharedSettings :: !Settings,
    sharedLimits :: !Limits,
    -- | 'settingsTimeout' as a duration, 'maxBound' if there is none.
    sharedTimeout :: !Duration,
    -- | The @Server@ field line, for responses that have no such field.
    sharedServerLine :: !ByteString,
    -- | Field lines for every response.
    sharedLines :: !ByteString,
    -- | The @Date@ line followed by both of the above.
    sharedDate :: !DateLines,
    sharedOnRefused :: !(SockAddr -> Refusal -> IO ()),
    -- | Written once, by the thread that begins the shutdown; read by all connections.
    sharedDraining :: !(IORef Bool),
    -- | Whether a connection that was told to end, and has something from its client, may continue
    -- ('Weft.Http.Admission.countAgain').
    sharedContinues :: !(WordArray -> IO Bool),
    -- | A connection with these words does not count towards the limit any more ('Weft.Http.Admission.departEntry').
    -- Run before it is closed: a client that sees the end and connects again finds its place free.
    sharedDepart :: !(WordArray -> IO ())
  }

-- | One connection.
data Client = Client
  { clientShared :: !Shared,
    clientConnection :: !Connection,
    -- | The connection below TLS; without TLS, the same.
    clientBelow :: !Connection,
    clientPeer :: !SockAddr,
    clientSecure :: !Bool,
    -- | The thread that serves it.
    clientThread :: !ThreadId,
    -- | Closes the connection when its client is too slow.
    clientIdleTimer :: !IdleTimer,
    -- | Words that change with each request; see the cells below.
    clientCells :: !WordArray,
    -- | The file that the application keeps open for the response. Written and cleared by the application's
    -- thread; read by that thread when it responds.
    clientFile :: !(IORef OpenFile),
    -- | The initial vault of each request, with the reference above and the connection ('Origin').
    clientVault :: !Vault,
    -- | Present if the connection speaks HTTP\/2. Written by the connection's thread, read by threads that end
    -- connections.
    clientHttp2 :: !(IORef (Maybe Http2Control))
  }

-- | What the vault of a request has of its connection or stream: the file that the application keeps open, and the
-- connection whose end is that of the client ('Nothing' for HTTP\/2, which tells the application itself).
data Origin = Origin
  { originFile :: !(IORef OpenFile),
    originConnection :: !(Maybe Connection)
  }

-- | An open file and its path.
data OpenFile = NoFile | OpenFile !FilePath !Fd

-- | The words of 'clientCells'. Unless stated otherwise, the connection's thread writes them.
--
-- * 'cellPhase': the phase; see below.
-- * 'cellRequests': the number of requests.
-- * 'cellBodyBytes', 'cellBodyTime': bytes of a body since the client's time was last renewed, and what is left of that
--   time in nanoseconds. Written by the thread that reads the body.
-- * 'cellResponse': the state of the response and the number of its request; see below. Opened by the connection's
--   thread; begun by compare-and-swap, by the first of the threads that respond; from then on written by that thread.
-- * 'cellFinal': nonzero if the connection ends after the current response.
-- * 'cellHandshake': nonzero during a TLS handshake.
-- * 'cellBegun': nonzero if part of a head has been received.
-- * 'cellBodyFast': nonzero if the last receive of a body got 16 KiB or more. Written by the thread that reads the
--   body.
-- * 'cellSending': the state of a send; see "Weft.Http.SendTime".
-- * 'cellExpected': the expected size of the next request in bytes; zero if it is small.
-- * 'cellAdmission': whether the connection counts towards the limit; see "Weft.Http.Admission". Changed by the
--   connection's thread and by threads that evict it.
cellPhase, cellRequests, cellBodyBytes, cellBodyTime, cellResponse, cellFinal, cellHandshake, cellBegun, cellBodyFast, cellSending, cellExpected, cellAdmission, cellCount :: Int
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
cellAdmission = 11
cellCount = 12

-- | The phases of a connection and their successors:
--
-- @
--   Fresh    waits for its first head                     -> Busy, Ending
--   Idle     waits for the next head                      -> Busy, Ending
--   Busy     a request is answered, or onOpen or the      -> Fresh (after onOpen), Idle, Lingering
--            clean-up of the connection runs
--   Lingering                                             -> Busy, Ending
--            its last response was sent, and it waits
--            for the client to close
--   Ending   to be closed, for shutdown or to make room   -> Ended, Busy
--   Ended    the same; its thread has been told           -> Busy
-- @
--
-- Fresh, Idle and Lingering are left by compare-and-swap. The connection's thread moves to Busy when a head is
-- complete, before onOpen, and at its end. A thread that ends the connection moves to Ending, throws
-- 'Weft.Http.Table.EndIdle' to the connection's thread, and moves to Ended, by compare-and-swap, when the exception
-- has arrived.
phaseFresh, phaseIdle, phaseBusy, phaseEnding, phaseEnded, phaseLingering :: Int
phaseFresh = 0
phaseIdle = 1
phaseBusy = 2
phaseEnding = 3
phaseEnded = 4
phaseLingering = 5

-- | The connection is about to be closed, or its client to be told so: it does not count any more. Any number of times.
depart :: Client -> IO ()
depart client = sharedDepart (clientShared client) (clientCells client)

-- | Set the phase, by the thread of the connection.
setPhase :: Client -> Int -> IO ()
setPhase client = pokeWord (clientCells client) cellPhase
{-# INLINE setPhase #-}

-- | States of the response: nothing was sent; the head was sent, at least in part; all was sent, and the connection
-- continues; all was sent, and the connection ends. An application may respond from several threads at once, and long
-- after the request. So the word contains the number of the request as well, and only the thread that replaces
-- 'responseNone' of its own request by 'responseBegun' sends.
responseNone, responseBegun, responseKeep, responseClose :: Int
responseNone = 0
responseBegun = 1
responseKeep = 2
responseClose = 3

-- | A new request, with a number other than the last one's: nothing was sent. By the thread of the connection.
openResponse :: Client -> Int -> IO ()
openResponse client n = pokeWord (clientCells client) cellResponse (4 * n)
{-# INLINE openResponse #-}

-- | Whether nothing was sent in response to the request of that number, which is still the connection's last one.
isUnclaimed :: Client -> Int -> IO Bool
isUnclaimed client n = (== 4 * n) <$> peekWord (clientCells client) cellResponse
{-# INLINE isUnclaimed #-}

-- | To be called before anything of the response to the request of that number is sent. Throws 'ResponseTwice' if
-- another response was sent, or another request came.
claimResponse :: Client -> Int -> IO ()
claimResponse client n = tryClaimResponse client n >>= \ours -> unless ours (throwIO ResponseTwice)
{-# INLINE claimResponse #-}

-- | 'claimResponse', which returns whether it succeeded.
tryClaimResponse :: Client -> Int -> IO Bool
tryClaimResponse client n = (== 4 * n) <$> casWord (clientCells client) cellResponse (4 * n) (4 * n + responseBegun)
{-# INLINE tryClaimResponse #-}

-- | Set the state of a response, by the thread that has claimed it.
setResponse :: Client -> Int -> IO ()
setResponse client state = peekWord (clientCells client) cellResponse >>= \word -> pokeWord (clientCells client) cellResponse (word .&. (-4) .|. state)
{-# INLINE setResponse #-}

-- | The state of the response.
responseState :: Client -> IO Int
responseState client = (.&. 3) <$> peekWord (clientCells client) cellResponse
{-# INLINE responseState #-}

-- | Whether the current response is the connection's last: the server is shutting down, the client has reached its
-- limit of requests, or the connection has to make room.
isFinal :: Client -> IO Bool
isFinal client = do
  draining <- readIORef (sharedDraining (clientShared client))
  if draining then pure True else (/= 0) <$> peekWord (clientCells client) cellFinal
{-# INLINE isFinal #-}
