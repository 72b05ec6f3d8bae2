-- |
-- A TCP stack as a "Weft.Transport": servers and clients that take a transport then use the stack instead of the
-- kernel's sockets.
--
-- @since 0.1.0
module Weft.Tcp.Transport
  ( tcpTransport,
    toSockAddr,
  )
where

import Control.Exception (SomeException, catch, fromException, mask_, throwIO)
import Control.Monad (when)
import Data.Bits (shiftL, shiftR, (.|.))
import qualified Data.ByteString as B
import Data.IORef
import Data.Word (Word16, Word64)
import Foreign.C.Error (Errno (..), eAFNOSUPPORT)
import Foreign.Ptr (castPtr)
import Network.Socket (SockAddr (..), hostAddress6ToTuple, hostAddressToTuple, tupleToHostAddress, tupleToHostAddress6)
import System.IO.Error (isEOFError)
import Weft.FFI.Errno (errnoError)
import Weft.Tcp.Core.Secret (Flow (..))
import Weft.Tcp.Operation (cutOff)
import Weft.Tcp.Socket
import Weft.Tcp.Stack
import Weft.Tcp.Wire.Address
import Weft.Transport

-- | The transport of a stack. Listening at the unspecified address means listening at all of the stack's addresses.
tcpTransport :: Stack -> Transport
tcpTransport st =
  Transport
    { transportListen = \a -> do
        (address, port) <- fromSockAddr a
        l <- listen st (if isUnspecified address then Nothing else Just address) port
        pure
          Listener
            { listenerAccept = Connection operations <$> accept l,
              listenerAddress = toSockAddr (listeningPort l) address,
              listenerClose = closeListening st l
            },
      transportConnect = \deadline a -> do
        (address, port) <- fromSockAddr a
        Connection operations <$> connect st deadline address port
    }
  where
    isUnspecified a = a == V4 0 || a == V6 0 0

operations :: Operations Socket
operations =
  Operations
    { opReceive = recv,
      -- The memory is valid only during the call.
      opSend = \s deadline (Region p n) -> B.packCStringLen (castPtr p, n) >>= send s deadline,
      opSendMany = sendMany,
      opSendFile = sendRange,
      opShutdownSend = \s _ -> shutdownSend s,
      opClose = close,
      opAbort = abort,
      opPeer = \s -> toSockAddr (remotePort (socketFlow s)) (remoteAddress (socketFlow s)),
      opLocal = \s -> pure (toSockAddr (localPort (socketFlow s)) (localAddress (socketFlow s))),
      opSendProgress = const (pure Nothing),
      opAwaitPeer = Nothing,
      opIsQuiet = const (pure False),
      opSecurity = const Nothing,
      opKeepsStrings = const True
    }

-- | Send strings and part of a file. If it is cut off after a part, further sends fail, as with 'send'; not if the file
-- ends early.
sendRange :: Socket -> Instant -> [B.ByteString] -> FileRange -> IO ()
sendRange s deadline strings range = mask_ $ do
  sendMany s deadline strings
  begun <- newIORef (not (all B.null strings))
  sendFileByReading (\piece -> send s deadline piece >> writeIORef begun True) range `catch` \e -> do
    partly <- readIORef begun
    when (partly && not (tooShort e)) (cutOff s)
    throwIO e
  where
    tooShort :: SomeException -> Bool
    tooShort e = maybe False isEOFError (fromException e)

-- | The socket address for a port and an IP address.
toSockAddr :: Word16 -> Address -> SockAddr
toSockAddr port (V4 a) = SockAddrInet (fromIntegral port) (tupleToHostAddress (byte 24, byte 16, byte 8, byte 0))
  where
    byte n = fromIntegral (a `shiftR` n)
toSockAddr port (V6 a b) = SockAddrInet6 (fromIntegral port) 0 (tupleToHostAddress6 (word a 48, word a 32, word a 16, word a 0, word b 48, word b 32, word b 16, word b 0)) 0
  where
    word :: Word64 -> Int -> Word16
    word w n = fromIntegral (w `shiftR` n)

fromSockAddr :: SockAddr -> IO (Address, Word16)
fromSockAddr a = case a of
  SockAddrInet port h ->
    let (x, y, z, w) = hostAddressToTuple h in pure (V4 (foldl (\n b -> (n `shiftL` 8) .|. fromIntegral b) 0 [x, y, z, w]), fromIntegral port)
  SockAddrInet6 port _ h _ ->
    let (p, q, r, s, t, u, v, w) = hostAddress6ToTuple h
        word = foldl (\n b -> (n `shiftL` 16) .|. fromIntegral b) 0
     in pure (V6 (word [p, q, r, s]) (word [t, u, v, w]), fromIntegral port)
  _ -> let Errno e = eAFNOSUPPORT in ioError (errnoError "Weft.Tcp" e)
