-- |
-- What sending messages needs beyond sending on a stream, for the modules that send: waiting for room in the queue of
-- an addressed Unix socket, and keeping a message whole. Any thread may call these functions; errors are those of
-- 'operate'.
module Weft.Socket.Datagram
  ( operateTo,
    ghcSender,
    keptWhole,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Foreign.C.Types (CInt)
import Network.Socket (SockAddr, SocketType (Stream))
import Weft.Core.Time (until)
import Weft.Socket.Options (getSocketType)
import Weft.Socket.Sender
import Weft.Socket.Types
import Weft.Sys (now)
import Weft.Thread.Time (sleep)
import Prelude hiding (until)

-- | 'operate' for a call that sends to an address ('sendTo').
operateTo :: String -> Socket -> SockAddr -> (CInt -> IO (Attempt a)) -> IO a
operateTo loc s = sendTo (ghcSender loc s)

-- | How GHC's threads send on a socket. The first argument names the operation in exceptions. Exceptions of other
-- threads arrive between parts if the caller has masked them.
ghcSender :: String -> Socket -> Sender IO
ghcSender loc s =
  Sender
    { senderPerform = operate loc s Writing,
      senderImmediately = immediately loc s,
      senderBetweenParts = betweenParts loc s,
      senderPause = \d -> do
        t <- now
        sleep (min d (socketDeadline s `until` t))
    }
{-# INLINE ghcSender #-}

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
