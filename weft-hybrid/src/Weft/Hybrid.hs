-- |
-- Threads of a few dozen bytes on Weft's event loops, after P. Li and S. Zdancewic,
-- \"Combining events and threads for scalable network services\" (PLDI 2007).
--
-- A hybrid thread is written like any thread, in the monad 'Hybrid'. It is run by a
-- loop, one a capability, which also watches the descriptors and timers that its
-- threads wait for. Threads switch only at system calls, the functions below; what they do
-- in between is pure, or 'nonBlocking'.
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
-- A listening socket is made in 'IO' and handed over; 'run' takes a hybrid thread to its
-- end:
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
-- A client that says nothing for a minute is let go. A deadline loses nothing that came
-- in time; 'timeout' works on any action, by an exception:
--
-- > patient :: Socket -> Hybrid ()
-- > patient sock = do
-- >   deadline <- deadlineIn (seconds 60)
-- >   bytes <- recv (withDeadline deadline sock) 4096
-- >   if B.null bytes then pure () else sendAll sock bytes >> patient sock
--
-- == A chat
--
-- Threads share what is in an 'MVar', as GHC's do. Everybody has a channel, and a thread
-- that sends what arrives there; what one says is written to the channels of all:
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
-- * 'nonBlocking' runs on the loop's thread. What blocks there (a lock, a file, name
--   resolution) stops all threads of the loop: use 'blocking', or 'onGhcThread'.
-- * A loop looks at events and timers after half a millisecond of threads, or 4,096 system
--   calls, or when nothing is ready. A step is what a thread does between two system
--   calls; it is not interrupted, so the bound is half a millisecond and the longest
--   step (64 of them, when steps that were short turn long). A computation that takes longer
--   is cut into steps by 'yield'.
-- * A thread that 'fork' starts has no identity: nobody can kill it or wait for it.
--   'forkThread' costs some 200 bytes more. What is pending in a thread that dies of
--   an exception is reported by the scheduler; other threads go on.
-- * Handlers run where the exception is raised, masked as their 'Control.Monad.Catch.catch' was.
-- * Loops share work: an idle one gets half of the threads of one that has had more than a
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
