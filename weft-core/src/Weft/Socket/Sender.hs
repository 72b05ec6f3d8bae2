{-# LANGUAGE RankNTypes #-}

-- |
-- How a kind of threads (GHC's, hybrid) sends messages on a socket. What sends them is written once, for all kinds: its
-- first argument is a 'Sender'.
module Weft.Socket.Sender
  ( Sender (..),
    sendTo,
  )
where

import Foreign.C.Types (CInt)
import Network.Socket (SockAddr (..))
import Weft.Core.Descriptor (Attempt (..))
import Weft.Core.Time (Duration, microseconds, milliseconds)

-- | A socket with a deadline, as threads of a kind send on it. The errors of all fields are 'IOError's that name the
-- public function.
data Sender m = Sender
  { -- | Run an operation until it is done, and wait while there is no room.
    senderPerform :: forall a. (CInt -> IO (Attempt a)) -> m a,
    -- | Run a call that needs no waiting and returns a result or @-errno@.
    senderImmediately :: (CInt -> IO CInt) -> m CInt,
    -- | To be called between the parts of a message or a batch: throw if the deadline has passed. Exceptions of other
    -- threads arrive here.
    senderBetweenParts :: m (),
    -- | Wait this long, but not beyond the deadline.
    senderPause :: Duration -> m ()
  }

-- | Run an operation that sends to an address.
--
-- A send to the address of a Unix socket without room fails with @EAGAIN@. But the sender's readiness is about its own
-- memory, and about the peer that it is connected to (@unix_dgram_sendmsg@ and @unix_dgram_poll@ in Linux): it is
-- reported writable whenever a try that failed gives its memory back, and a thread that waits for that never sleeps. So
-- the call is tried again after pauses, which double from 0.1 ms to 10 ms. A send goes on at most that much later than
-- the receiver makes room, and notices a close as late.
sendTo :: Monad m => Sender m -> SockAddr -> (CInt -> IO (Attempt a)) -> m a
sendTo sender addr op = case addr of
  SockAddrUnix _ -> tryAfter shortest
  _ -> senderPerform sender op
  where
    shortest = microseconds 100
    longest = milliseconds 10
    tryAfter pause = do
      r <- senderPerform sender (fmap answered . op)
      maybe (rest pause >> tryAfter (min longest (pause <> pause))) pure r
    rest pause = senderBetweenParts sender >> senderPause sender pause
    answered r = case r of
      NotYet -> Done Nothing
      Drained a -> Drained (Just a)
      Done a -> Done (Just a)
      Failed e -> Failed e
{-# INLINE sendTo #-}
