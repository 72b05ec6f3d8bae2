-- |
-- What sending messages needs beyond sending on a stream, for the modules that send: waiting for room in the queue of
-- an addressed Unix socket, and keeping a message whole. Any thread may call these functions; errors are those of
-- 'operate'.
module Weft.Socket.Datagram
  ( operateTo,
    keptWhole,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Foreign.C.Types (CInt)
import Network.Socket (SockAddr (..), SocketType (Stream))
import Weft.Core.Time (microseconds, milliseconds, until)
import Weft.Socket.Options (getSocketType)
import Weft.Socket.Types
import Weft.Sys (now)
import Weft.Thread.Time (sleep)
import Prelude hiding (until)

-- | 'operate' for a call that sends to an address.
--
-- A send to the address of a Unix socket without room fails with @EAGAIN@. But the sender's readiness is about its own
-- memory, and about the peer that it is connected to (@unix_dgram_sendmsg@ and @unix_dgram_poll@ in Linux): it is
-- reported writable whenever a try that failed gives its memory back, and a thread that waits for that never sleeps. So
-- the call is tried again after pauses, which double from 0.1 ms to 10 ms. A send goes on at most that much later than
-- the receiver makes room, and notices a close as late.
operateTo :: String -> Socket -> SockAddr -> (CInt -> IO (Attempt a)) -> IO a
operateTo loc s addr op = case addr of
  SockAddrUnix _ -> tryAfter shortest
  _ -> operate loc s Writing op
  where
    shortest = microseconds 100
    longest = milliseconds 10
    tryAfter pause = operate loc s Writing (fmap answered . op) >>= maybe (rest pause >> tryAfter (longer pause)) pure
    rest pause = do
      betweenParts loc s
      t <- now
      sleep (min pause (socketDeadline s `until` t))
    longer pause = min longest (pause <> pause)
    answered r = case r of
      NotYet -> Done Nothing
      Drained a -> Drained (Just a)
      Done a -> Done (Just a)
      Failed e -> Failed e

-- | Pieces that are sent by one call of the socket's user, of which a system call takes the given number, in a form
-- that keeps messages whole. On a stream further calls may send the rest. On other sockets each call sends a message,
-- so too many pieces are joined; the kernel refuses the result if it is too long (@EMSGSIZE@). One system call, if
-- there are as many pieces as a call takes and the socket is not known to be a stream; none otherwise.
keptWhole :: Int -> Socket -> [ByteString] -> IO [ByteString]
keptWhole most s pieces
  | socketDrains s || null (drop (most - 1) pieces) = pure pieces
  | otherwise = do
    kind <- getSocketType s
    pure (if kind == Stream then pieces else [B.concat pieces])
