-- |
-- Threads of a few dozen bytes on Weft's event loops, after P. Li and S. Zdancewic,
-- \"Combining events and threads for scalable network services\" (PLDI 2007).
--
-- A hybrid thread is written in the monad 'Hybrid'. Loops run the threads, one loop on each
-- capability; a loop also watches the descriptors and timers that its
-- threads wait for. Threads switch only at system calls, which are the functions below. Between
-- two system calls a thread runs pure code, or 'IO' by 'nonBlocking'.
--
-- == A server
--
-- The server of the paper's figure 4 accepts connections and forks a thread for each:
--
-- > import Control.Monad (forever)
-- > import qualified Data.ByteString as B
-- > import Weft.Hybrid
-- > import qualified Weft.Socket as Weft
-- >
-- > server :: Socket -> Hybrid ()
-- > server listener = forever $ do
-- >   (sock, _peer) <- accept listener
-- >   fork (client sock `finally` close sock)
-- >
-- > client :: Socket -> Hybrid ()
-- > client sock = do
-- >   bytes <- recv sock 4096
-- >   if B.null bytes then pure () else sendAll sock bytes >> client sock
--
-- A listening socket is made in 'IO' and then given to hybrid threads. 'run' runs a hybrid
-- thread to its end:
--
-- > main :: IO ()
-- > main = do
-- >   listening <- Weft.socket Weft.AF_INET Weft.Stream Weft.defaultProtocol
-- >   Weft.setSocketOption listening Weft.ReuseAddr 1
-- >   Weft.bind listening (Weft.SockAddrInet 7000 (Weft.tupleToHostAddress (127, 0, 0, 1)))
-- >   Weft.listen listening 1024
-- >   run (fromSocket listening >>= server)
--
-- == Limits
--
-- This server disconnects a client that sends nothing for a minute. A deadline on a socket loses no data that
-- came in time. ('inTime' limits any action, by an exception.)
--
-- > patient :: Socket -> Hybrid ()
-- > patient sock = do
-- >   deadline <- deadlineIn (seconds 60)
-- >   bytes <- recv (withDeadline deadline sock) 4096
-- >   if B.null bytes then pure () else sendAll sock bytes >> patient sock
--
-- == A chat
--
-- Threads share state in an 'MVar', as GHC's threads do. Each client has a channel, and a thread that sends what is
-- written to it. A message of one client is written to the channels of all:
--
-- > import qualified Data.Map as Map
-- >
-- > type Room = MVar (Int, Map.Map Int (Channel B.ByteString))
-- >
-- > chat :: Socket -> Hybrid ()
-- > chat listener = do
-- >   room <- newMVar (0, Map.empty)
-- >   forever $ do
-- >     (sock, _peer) <- accept listener
-- >     fork (guest room sock `finally` close sock)
-- >
-- > guest :: Room -> Socket -> Hybrid ()
-- > guest room sock = bracket enter leave (const listen)
-- >   where
-- >     enter = do
-- >       inbox <- newChannel
-- >       me <- modifyMVar room (\(n, others) -> pure ((n + 1, Map.insert n inbox others), n))
-- >       speaker <- forkThread (forever (readChannel inbox >>= sendAll sock))
-- >       pure (me, speaker)
-- >     leave (me, speaker) = do
-- >       killThread speaker
-- >       modifyMVar_ room (\(n, others) -> pure (n, Map.delete me others))
-- >     listen = do
-- >       bytes <- recv sock 4096
-- >       if B.null bytes then pure () else say bytes >> listen
-- >     say bytes = do
-- >       (_, everybody) <- readMVar room
-- >       mapM_ (`writeChannel` bytes) everybody
--
-- == What to know
--
-- * 'nonBlocking' runs on the loop's thread. An action that blocks there (a lock, a file, name
--   resolution) stops all threads of the loop: use 'blocking' or 'onGhcThread' for it.
-- * A loop checks events and timers when a turn ends: after half a millisecond, after 4,096 system
--   calls, or when no thread is ready. A thread is not interrupted between two system
--   calls; call that a step. So a turn takes at most half a millisecond and the longest
--   step. (Since the clock is read every 64 steps, it may be up to 64 long steps after short ones.) Cut a long
--   computation into steps by 'yield'.
-- * A thread that 'fork' starts has no identity: it cannot be killed or waited for.
--   A thread of 'forkThread' has one, for some 200 bytes. The scheduler reports the exception of a
--   thread that dies of one; other threads go on.
-- * Threads that are to end with the block that starts them, and whose exceptions are to end it, are forked in a scope:
--   "Weft.Hybrid.Scope".
-- * A handler runs with the masking that its 'Control.Monad.Catch.catch' had.
-- * Loops share work: an idle loop gets half of the ready threads of a loop that has more than one
--   turn's work.
--
-- @since 0.1.0
module Weft.Hybrid
  ( -- * Running
    Hybrid,
    run,
    runIn,
    forkFrom,
    forkFromIn,
    withScheduler,
    Scheduler,
    Settings (..),
    defaultSettings,

    -- ** Policies
    Policy,
    roundRobin,
    priorities,
    resourceAware,
    Resource (..),

    -- * Threads
    nonBlocking,
    fork,
    yield,
    ret,

    -- ** With an identity
    module Weft.Hybrid.Thread,

    -- * Exceptions

    -- | From "Control.Monad.Catch", where the rest is.
    throwM,
    catch,
    handle,
    try,
    finally,
    onException,
    bracket,
    bracket_,
    mask,
    mask_,

    -- * Time
    module Weft.Hybrid.Timer,
    module Weft.Hybrid.Deadline,

    -- * Blocking calls
    module Weft.Hybrid.Blocking,

    -- * Waiting for each other
    module Weft.Hybrid.MVar,
    module Weft.Hybrid.Semaphore,
    module Weft.Hybrid.Channel,

    -- * Sockets
    module Weft.Hybrid.Socket,

    -- * Other descriptors
    Descriptor,
    adopt,
    closeDescriptor,
    waitReadable,
    waitWritable,
    readBytes,
    writeBytes,
  )
where

import Control.Monad.Catch
import Weft.Hybrid.Blocking
import Weft.Hybrid.Channel
import Weft.Hybrid.Deadline
import Weft.Hybrid.Descriptor
import Weft.Hybrid.MVar
import Weft.Hybrid.Monad
import Weft.Hybrid.Pipe
import Weft.Hybrid.Policy
import Weft.Hybrid.Run
import Weft.Hybrid.Scheduler
import Weft.Hybrid.Semaphore
import Weft.Hybrid.Socket
import Weft.Hybrid.Thread
import Weft.Hybrid.Timer hiding (callAt)
