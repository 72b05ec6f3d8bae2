-- | Bindings for socket calls. None blocks, except those that are imported as safe: 'cSendFile', 'cReadAt',
-- 'cCloseFile' and 'cUnlinkStale' may wait for the disk, 'cCloseLingering' for the peer. All return a result or
-- @-errno@, and repeat themselves when a signal interrupts them. The policy is in @Weft.Socket.*@.
module Weft.FFI.Socket
  ( SockAddrBytes,
    IoVec,

    -- * Life
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
    cExpectLingering,
    cExpectsLingering,
    cUnlinkStale,

    -- * Data
    cRecv,
    cRecvFrom,
    cSend,
    cSendTo,
    cSendV,
    cSendTwo,
    cSendVMore,
    cSendMsg,
    cRecvMsg,
    cSendFile,
    cSendFileCached,
    cOpenRead,
    cCloseFile,
    cFileSize,
    cReadAt,
    cSendProgress,

    -- * Control data
    cControlSpace,
    cControlPut,
    cControlGet,
    cRightsLevel,
    cRightsType,

    -- * Names and options
    cGetSockName,
    cGetPeerName,
    cSetSockOpt,
    cGetSockOpt,
  )
where

import Data.Int (Int64)
import Data.Word (Word32, Word8)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Ptr (Ptr)
import System.Posix.Types (CSsize (..))

-- | A @struct sockaddr@ of any family.
data SockAddrBytes

-- | A @struct iovec@.
data IoVec

foreign import ccall unsafe "weft_socket" cSocket :: CInt -> CInt -> CInt -> IO CInt

foreign import ccall unsafe "weft_socketpair" cSocketPair :: CInt -> CInt -> CInt -> Ptr CInt -> IO CInt

foreign import ccall unsafe "weft_set_nonblocking" cSetNonBlocking :: CInt -> IO CInt

-- | 1 for a descriptor that a short read has emptied, and a short write has filled: a TCP stream, or a pipe that does
-- not carry packets. 0 for others.
foreign import ccall unsafe "weft_drains" cDrains :: CInt -> IO CInt

foreign import ccall unsafe "weft_bind" cBind :: CInt -> Ptr SockAddrBytes -> Word32 -> IO CInt

foreign import ccall unsafe "weft_listen" cListen :: CInt -> CInt -> IO CInt

foreign import ccall unsafe "weft_listens" cListens :: CInt -> IO CInt

foreign import ccall unsafe "weft_accept" cAccept :: CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CInt

foreign import ccall unsafe "weft_acceptable" cAcceptable :: CInt -> IO CInt

foreign import ccall unsafe "weft_connect" cConnect :: CInt -> Ptr SockAddrBytes -> Word32 -> IO CInt

foreign import ccall unsafe "weft_connected" cConnected :: CInt -> IO CInt

foreign import ccall unsafe "weft_shutdown" cShutdown :: CInt -> CInt -> IO CInt

foreign import ccall unsafe "weft_dup" cDup :: CInt -> IO CInt

foreign import ccall unsafe "weft_close" cClose :: CInt -> IO ()

-- | Close a socket without blocking. Returns -1, or, if the socket lingers, a duplicate for 'cCloseLingering'.
foreign import ccall unsafe "weft_close_now" cCloseNow :: CInt -> IO CInt

foreign import ccall safe "weft_close" cCloseLingering :: CInt -> IO ()

-- | From now on 'cCloseNow' asks the kernel whether a socket lingers, because other code may have set the option.
-- 'cSetSockOpt' calls this itself when it sets the option to a time.
foreign import ccall unsafe "weft_expect_lingering" cExpectLingering :: IO ()

-- | 1 if 'cCloseNow' asks the kernel.
foreign import ccall unsafe "weft_expects_lingering" cExpectsLingering :: IO CInt

-- | Remove the file of a Unix socket's address if no process listens there. The result is 0, or the error.
foreign import ccall safe "weft_unlink_stale" cUnlinkStale :: CInt -> Ptr SockAddrBytes -> Word32 -> IO CInt

foreign import ccall unsafe "weft_recv" cRecv :: CInt -> Ptr Word8 -> CSize -> CInt -> IO CSsize

foreign import ccall unsafe "weft_recvfrom"
  cRecvFrom :: CInt -> Ptr Word8 -> CSize -> CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CSsize

foreign import ccall unsafe "weft_send" cSend :: CInt -> Ptr Word8 -> CSize -> CInt -> IO CSsize

foreign import ccall unsafe "weft_sendto"
  cSendTo :: CInt -> Ptr Word8 -> CSize -> Ptr SockAddrBytes -> Word32 -> IO CSsize

foreign import ccall unsafe "weft_sendv"
  cSendV :: CInt -> Ptr IoVec -> CInt -> Ptr SockAddrBytes -> Word32 -> IO CSsize

-- | Send two pieces of memory, each given by its address and length.
foreign import ccall unsafe "weft_send_two" cSendTwo :: CInt -> Ptr Word8 -> CSize -> Ptr Word8 -> CSize -> IO CSsize

-- | Store the number of bytes that the peer has acknowledged. Returns 1 if the send buffer is full, and 0 if not.
foreign import ccall unsafe "weft_send_progress" cSendProgress :: CInt -> Ptr Int64 -> IO CInt

-- | 'cSendV' when more data follows at once (@MSG_MORE@).
foreign import ccall unsafe "weft_sendv_more" cSendVMore :: CInt -> Ptr IoVec -> CInt -> IO CSsize

foreign import ccall unsafe "weft_sendmsg"
  cSendMsg :: CInt -> Ptr IoVec -> CInt -> Ptr SockAddrBytes -> Word32 -> Ptr Word8 -> CSize -> CInt -> IO CSsize

-- | recvmsg(2). The lengths and the flags are read before the call (room, requested flags) and hold the results after
-- it.
foreign import ccall unsafe "weft_recvmsg"
  cRecvMsg ::
    CInt ->
    Ptr IoVec ->
    CInt ->
    Ptr SockAddrBytes ->
    Ptr Word32 ->
    Ptr Word8 ->
    Ptr CSize ->
    Ptr CInt ->
    IO CSsize

foreign import ccall unsafe "weft_cmsg_space" cControlSpace :: CSize -> CSize

foreign import ccall unsafe "weft_rights_level" cRightsLevel :: CInt

foreign import ccall unsafe "weft_rights_type" cRightsType :: CInt

foreign import ccall unsafe "weft_cmsg_put" cControlPut :: Ptr Word8 -> CInt -> CInt -> CSize -> IO (Ptr Word8)

foreign import ccall unsafe "weft_cmsg_get"
  cControlGet :: Ptr Word8 -> CSize -> Ptr CInt -> Ptr CInt -> Ptr CSize -> Ptr CSize -> IO (Ptr Word8)

-- | sendfile(2) for data in the page cache; @-ENOSYS@ if some of it may not be there.
foreign import ccall unsafe "weft_sendfile_cached" cSendFileCached :: CInt -> CInt -> Int64 -> CSize -> IO CSsize

foreign import ccall safe "weft_sendfile" cSendFile :: CInt -> CInt -> Int64 -> CSize -> IO CSsize

-- | Read from a file at an offset; may wait for the disk. 0 at the end of the file.
foreign import ccall safe "weft_read_at" cReadAt :: CInt -> Ptr Word8 -> CSize -> Int64 -> IO CSsize

foreign import ccall unsafe "weft_getsockname" cGetSockName :: CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CInt

foreign import ccall unsafe "weft_getpeername" cGetPeerName :: CInt -> Ptr SockAddrBytes -> Ptr Word32 -> IO CInt

foreign import ccall unsafe "weft_setsockopt"
  cSetSockOpt :: CInt -> CInt -> CInt -> Ptr Word8 -> Word32 -> IO CInt

foreign import ccall unsafe "weft_getsockopt"
  cGetSockOpt :: CInt -> CInt -> CInt -> Ptr Word8 -> Ptr Word32 -> IO CInt

foreign import ccall safe "weft_open_read" cOpenRead :: CString -> IO CInt

-- | Close a file that was opened for reading. A network file system or FUSE may have to answer.
foreign import ccall safe "weft_close" cCloseFile :: CInt -> IO ()

foreign import ccall safe "weft_file_size" cFileSize :: CInt -> IO Int64
