-- |
-- Lending a connection to the @network@ package, for what is not worth doing
-- again: control messages, passed descriptors, credentials.
module Weft.Socket.Bridge
  ( withNetworkSocket,
    bridged,
    sendBufMsg,
    recvBufMsg,
    sendFd,
    recvFd,
    getPeerCredential,
  )
where

import Control.Exception (bracket, mask_, onException)
import Data.Word (Word8)
import Foreign.C.Types (CInt, CUInt)
import Foreign.Ptr (Ptr)
import Network.Socket (Cmsg, MsgFlag, SockAddr)
import qualified Network.Socket as N
import qualified Network.Socket.Address as N.Address
import Weft.Core.Endpoint (endpointFd)
import Weft.FFI.Socket
import Weft.Socket.Types
import Weft.Thread (threadWaitRead, threadWaitWrite)

-- | Lend the connection to code that wants a socket of the @network@ package: a
-- duplicate descriptor, closed afterwards. If that code waits, it waits by GHC's
-- own manager.
withNetworkSocket :: Socket -> (N.Socket -> IO a) -> IO a
withNetworkSocket s = bracket lent N.close
  where
    lent = mask_ $ do
      fd <- immediately "Weft.Socket.withNetworkSocket" s cDup
      N.mkSocket fd `onException` cClose fd

-- | Wait until the socket is ready in a direction, then lend it.
bridged :: Direction -> Socket -> (N.Socket -> IO a) -> IO a
bridged dir s act = do
  withEndpoint s (wait . endpointFd)
  withNetworkSocket s act
  where
    wait fd = case dir of
      Reading -> threadWaitRead fd
      Writing -> threadWaitWrite fd

-- | Send a message from memory with control data.
sendBufMsg :: Socket -> SockAddr -> [(Ptr Word8, Int)] -> [Cmsg] -> MsgFlag -> IO Int
sendBufMsg s addr bufs cmsgs flags =
  bridged Writing s (\n -> N.Address.sendBufMsg n addr bufs cmsgs flags)

-- | Receive a message into memory with control data.
recvBufMsg :: Socket -> [(Ptr Word8, Int)] -> Int -> MsgFlag -> IO (SockAddr, Int, [Cmsg], MsgFlag)
recvBufMsg s bufs control flags =
  bridged Reading s (\n -> N.Address.recvBufMsg n bufs control flags)

-- | Pass a descriptor over a Unix socket.
sendFd :: Socket -> CInt -> IO ()
sendFd s fd = bridged Writing s (`N.sendFd` fd)

-- | Take a descriptor that was passed.
recvFd :: Socket -> IO CInt
recvFd s = bridged Reading s N.recvFd

-- | Process, user and group of the peer of a Unix socket.
getPeerCredential :: Socket -> IO (Maybe CUInt, Maybe CUInt, Maybe CUInt)
getPeerCredential s = withNetworkSocket s N.getPeerCredential
