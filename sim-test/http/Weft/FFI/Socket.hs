-- |
-- System calls on sockets, on the model kernel ("KernelSocket"), with the interface of the real module. Calls that a
-- web server does not need fail with @ENOSYS@.
module Weft.FFI.Socket
  ( SockAddrBytes,
    IoVec,
    cSocket,
    cSocketPair,
    cSetNonBlocking,
    cDrains,
    cBind,
    cListen,
    cListens,
    cAccept,
    cAcceptable,
    cConnect,
    cConnected,
    cShutdown,
    cDup,
    cClose,
    cCloseNow,
    cCloseLingering,
    cCloseFile,
    cExpectLingering,
    cUnlinkStale,
    cRecv,
    cRecvFrom,
    cSend,
    cSendTo,
    cSendV,
    cSendTwo,
    cSendVMore,
    cSendMsg,
    cRecvMsg,
    cOpenRead,
    cReadAt,
    cSendProgress,
    cControlSpace,
    cControlPut,
    cControlGet,
    cRightsLevel,
    cRightsType,
    cGetSockName,
    cGetPeerName,
    cSetSockOpt,
    cGetSockOpt,
  )
where

import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Int (Int64)
import Data.Word (Word32, Word8)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Marshal.Array (pokeArray)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr, nullPtr, plusPtr)
import Foreign.Storable (peek, peekByteOff, poke)
import Kernel (closeNumber)
import KernelSocket
import Network.Socket (SockAddr (..), tupleToHostAddress)
import Network.Socket.Address (SocketAddress (..))
import System.Posix.Types (CSsize (..))

data SockAddrBytes

data IoVec

unsupported :: Num a => IO a
unsupported = pure (-38)

cSocket :: CInt -> CInt -> CInt -> IO CInt
cSocket _ _ _ = fromIntegral <$> newSocket

cSocketPair :: CInt -> CInt -> CInt -> Ptr CInt -> IO CInt
cSocketPair _ _ _ p = do
  (a, b) <- newSocketPair
  0 <$ pokeArray p [fromIntegral a, fromIntegral b]

cSetNonBlocking :: CInt -> IO CInt
cSetNonBlocking _ = pure 0

-- | All are streams of TCP.
cDrains :: CInt -> IO CInt
cDrains _ = pure 1

-- | It may always be so.
cAcceptable :: CInt -> IO CInt
cAcceptable _ = pure 1

-- | Only the port matters.
cBind :: CInt -> Ptr SockAddrBytes -> Word32 -> IO CInt
cBind n p _ = do
  address <- peekSocketAddress (castPtr p)
  fromIntegral <$> bindSocket (fromIntegral n) (case address of SockAddrInet port _ -> fromIntegral port; _ -> 0)

cListen :: CInt -> CInt -> IO CInt
cListen n backlog = fromIntegral <$> listenSocket (fromIntegral n) (fromIntegral backlog)

cListens :: CInt -> IO CInt
cListens n = fromIntegral <$> listens (fromIntegral n)

loopback :: Int -> SockAddr
loopback port = SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1))

putAddress :: Ptr SockAddrBytes -> Ptr Word32 -> Int -> IO ()
putAddress p len port = do
  pokeSocketAddress (castPtr p) (loopback port)
  poke len (fromIntegral (sizeOfSocketAddress (loopback port)))

cAccept :: CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CInt
cAccept n p len = do
  r <- acceptSocket (fromIntegral n)
  case r of
    Left e -> pure (fromIntegral e)
    Right (number, remote) -> fromIntegral number <$ putAddress p len remote

-- | Only the port matters.
cConnect :: CInt -> Ptr SockAddrBytes -> Word32 -> IO CInt
cConnect n p _ = do
  address <- peekSocketAddress (castPtr p)
  fromIntegral <$> connectSocket (fromIntegral n) (case address of SockAddrInet port _ -> fromIntegral port; _ -> 0)

cConnected :: CInt -> IO CInt
cConnected _ = pure 0

cShutdown :: CInt -> CInt -> IO CInt
cShutdown n _ = fromIntegral <$> shutdownSocket (fromIntegral n)

cDup :: CInt -> IO CInt
cDup _ = unsupported

-- | Closing a number that is not open is an error of the caller.
cClose :: CInt -> IO ()
cClose n = do
  r <- closeNumber (fromIntegral n)
  if r < 0 then ioError (userError ("close(" <> show n <> ") of a number that is not open")) else pure ()

cCloseNow :: CInt -> IO CInt
cCloseNow n = (-1) <$ cClose n

cCloseLingering :: CInt -> IO ()
cCloseLingering _ = pure ()

cCloseFile :: CInt -> IO ()
cCloseFile = cClose

cExpectLingering :: IO ()
cExpectLingering = pure ()

cUnlinkStale :: CInt -> Ptr SockAddrBytes -> Word32 -> IO CInt
cUnlinkStale _ _ _ = unsupported

cRecv :: CInt -> Ptr Word8 -> CSize -> CInt -> IO CSsize
cRecv n p size _ = do
  r <- receiveSocket (fromIntegral n) (fromIntegral size)
  case r of
    Left e -> pure (fromIntegral e)
    Right bytes -> B.unsafeUseAsCStringLen bytes (\(from, k) -> fromIntegral k <$ copyBytes p (castPtr from) k)

cRecvFrom :: CInt -> Ptr Word8 -> CSize -> CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CSsize
cRecvFrom _ _ _ _ _ _ = unsupported

cSend :: CInt -> Ptr Word8 -> CSize -> CInt -> IO CSsize
cSend n p size _ = B.packCStringLen (castPtr p, fromIntegral size) >>= fmap fromIntegral . sendSocket (fromIntegral n)

cSendTo :: CInt -> Ptr Word8 -> CSize -> Ptr SockAddrBytes -> Word32 -> IO CSsize
cSendTo n p size _ _ = cSend n p size 0

cSendV :: CInt -> Ptr IoVec -> CInt -> Ptr SockAddrBytes -> Word32 -> IO CSsize
cSendV n vec count _ _ = gathered vec count >>= fmap fromIntegral . sendSocket (fromIntegral n)

cSendTwo :: CInt -> Ptr Word8 -> CSize -> Ptr Word8 -> CSize -> IO CSsize
cSendTwo n p size q size' = do
  first <- B.packCStringLen (castPtr p, fromIntegral size)
  second <- B.packCStringLen (castPtr q, fromIntegral size')
  fromIntegral <$> sendSocket (fromIntegral n) (first <> second)

cSendVMore :: CInt -> Ptr IoVec -> CInt -> IO CSsize
cSendVMore n vec count = cSendV n vec count nullPtr 0

-- | struct iovec: an address and a size.
gathered :: Ptr IoVec -> CInt -> IO B.ByteString
gathered vec count = B.concat <$> mapM one [0 .. fromIntegral count - 1]
  where
    one i = do
      p <- peekByteOff vec (16 * i)
      size <- peek (castPtr vec `plusPtr` (16 * i + 8)) :: IO CSize
      B.packCStringLen (p, fromIntegral size)

cSendMsg :: CInt -> Ptr IoVec -> CInt -> Ptr SockAddrBytes -> Word32 -> Ptr Word8 -> CSize -> CInt -> IO CSsize
cSendMsg _ _ _ _ _ _ _ _ = unsupported

cRecvMsg :: CInt -> Ptr IoVec -> CInt -> Ptr SockAddrBytes -> Ptr Word32 -> Ptr Word8 -> Ptr CSize -> Ptr CInt -> IO CSsize
cRecvMsg _ _ _ _ _ _ _ _ = unsupported

cOpenRead :: CString -> IO CInt
cOpenRead _ = unsupported

cReadAt :: CInt -> Ptr Word8 -> CSize -> Int64 -> IO CSsize
cReadAt _ _ _ _ = unsupported

cSendProgress :: CInt -> Ptr Int64 -> IO CInt
cSendProgress n p = do
  r <- sendingProgress (fromIntegral n)
  case r of
    Left e -> pure (fromIntegral e)
    Right (taken, full, outstanding) -> ((if full then 1 else 0) + (if outstanding then 2 else 0)) <$ poke p (fromIntegral taken)

cControlSpace :: CSize -> CSize
cControlSpace = id

cControlPut :: Ptr Word8 -> CInt -> CInt -> CSize -> IO (Ptr Word8)
cControlPut p _ _ _ = pure p

cControlGet :: Ptr Word8 -> CSize -> Ptr CInt -> Ptr CInt -> Ptr CSize -> Ptr CSize -> IO (Ptr Word8)
cControlGet _ _ _ _ _ _ = pure nullPtr

cRightsLevel, cRightsType :: CInt
cRightsLevel = 1
cRightsType = 1

cGetSockName :: CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CInt
cGetSockName n p len = socketPorts (fromIntegral n) >>= maybe (pure (-9)) (\(port, _) -> 0 <$ putAddress p len port)

cGetPeerName :: CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CInt
cGetPeerName n p len = socketPorts (fromIntegral n) >>= maybe (pure (-9)) (\(_, port) -> 0 <$ putAddress p len port)

-- | Only SO_LINGER (13 of SOL_SOCKET) with a time of zero has an effect.
cSetSockOpt :: CInt -> CInt -> CInt -> Ptr Word8 -> Word32 -> IO CInt
cSetSockOpt n 1 13 p _ = do
  on <- peek (castPtr p) :: IO CInt
  time <- peek (castPtr p `plusPtr` 4) :: IO CInt
  if on /= 0 && time == 0 then fromIntegral <$> abortAtClose (fromIntegral n) else pure 0
cSetSockOpt _ _ _ _ _ = pure 0

cGetSockOpt :: CInt -> CInt -> CInt -> Ptr Word8 -> Ptr Word32 -> IO CInt
cGetSockOpt _ _ _ p _ = 0 <$ poke (castPtr p) (0 :: CInt)
