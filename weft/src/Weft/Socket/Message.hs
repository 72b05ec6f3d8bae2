-- |
-- Messages with control data (cmsg(3)), among them descriptors that are passed over
-- Unix sockets: the names, types and exceptions of "Network.Socket", with the
-- deadlines of this library's sockets.
--
-- A message in several pieces of memory, or with control data, takes one system call.
module Weft.Socket.Message
  ( -- * Messages
    sendMsg,
    recvMsg,
    sendBufMsg,
    recvBufMsg,

    -- * Descriptors
    sendFd,
    recvFd,
  )
where

import Control.Concurrent (forkIO)
import Control.Exception (mask_, onException)
import Control.Monad (forM_, void, when)
import Data.Bits (bit)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (create, createAndTrim')
import Data.Foldable (foldlM)
import Data.IORef (newIORef, readIORef, writeIORef)
import Data.Word (Word8)
import Foreign.C.Error (eINVAL)
import Foreign.C.Types (CInt, CSize)
import Foreign.Marshal.Alloc (alloca, allocaBytes, allocaBytesAligned)
import Foreign.Marshal.Utils (copyBytes, fillBytes, with)
import Foreign.Ptr (Ptr, castPtr, nullPtr, plusPtr)
import Foreign.Storable (peek, peekElemOff, poke, pokeByteOff, sizeOf)
import GHC.IO.Exception (IOException (ioe_description))
import Network.Socket
  ( Cmsg (..),
    CmsgId (..),
    MsgFlag,
    SockAddr,
  )
import System.IO.Error (eofErrorType, mkIOError)
import System.Posix.Types (CSsize)
import Weft.FFI.Socket
import Weft.Socket.Address
import Weft.Socket.Datagram
import Weft.Socket.Pieces
import Weft.Socket.Types

-- Messages -----------------------------------------------------------------------------

-- | Send strings as one message with control data to an address, or to the peer of a connected socket. Returns the
-- number of bytes taken.
sendMsg :: Socket -> SockAddr -> [ByteString] -> [Cmsg] -> MsgFlag -> IO Int
sendMsg s addr chunks = sendMessageTo "Weft.Socket.sendMsg" s addr (withPieces chunks)

-- | 'sendMsg' from pieces of memory.
sendBufMsg :: Socket -> SockAddr -> [(Ptr Word8, Int)] -> [Cmsg] -> MsgFlag -> IO Int
sendBufMsg s addr bufs = sendMessageTo "Weft.Socket.sendBufMsg" s addr (withMemory bufs)

sendMessageTo :: String -> Socket -> SockAddr -> ((Ptr IoVec -> CInt -> IO Int) -> IO Int) -> [Cmsg] -> MsgFlag -> IO Int
sendMessageTo loc s addr withVector cmsgs flags =
  withVector $ \iov n -> withAddress addr $ \ap alen -> withControl cmsgs $ \control clen ->
    operateTo loc s addr $ \fd -> sent (cSendMsg fd iov n ap alen control clen (flagBits flags))

-- | What a call has sent.
sent :: IO CSsize -> IO (Attempt Int)
sent call = call >>= (`decodeResult` (pure . Done))

-- | Receive one message. The arguments are the room for data and for control data, in bytes, and flags. Returns the
-- sender, the data, the control data, and flags that say whether something was truncated. The caller has to close
-- descriptors in the control data. If an asynchronous exception interrupts the operation after the message has come,
-- the message is lost and its descriptors are closed; in a caller that has masked exceptions that does not happen.
recvMsg :: Socket -> Int -> Int -> MsgFlag -> IO (SockAddr, ByteString, [Cmsg], MsgFlag)
recvMsg s room control flags
  | room < 0 = ioError (socketError "Weft.Socket.recvMsg" eINVAL)
  | otherwise = closingDescriptors $ \keep -> do
    (bs, (addr, cmsgs, flags')) <- B.createAndTrim' room $ \p -> do
      (addr, got, cmsgs, flags') <- receive "Weft.Socket.recvMsg" s [(p, room)] control flags keep
      pure (0, got, (addr, cmsgs, flags'))
    pure (addr, bs, cmsgs, flags')

-- | 'recvMsg' into pieces of memory. Returns the number of bytes in place of the data.
recvBufMsg :: Socket -> [(Ptr Word8, Int)] -> Int -> MsgFlag -> IO (SockAddr, Int, [Cmsg], MsgFlag)
recvBufMsg s bufs room flags = closingDescriptors (receive "Weft.Socket.recvBufMsg" s bufs room flags)

-- | Run a receive, which passes on the control data that came. It runs masked, and an exception that arrives meanwhile
-- is thrown when it has ended: inside the handler here, which closes the descriptors. Nothing may follow the handler.
closingDescriptors :: (([Cmsg] -> IO ()) -> IO a) -> IO a
closingDescriptors act = do
  came <- newIORef []
  mask_ (act (writeIORef came)) `onException` (readIORef came >>= mapM_ closePassed)
  where
    closePassed c = when (cmsgId c == rights) $
      withBytes (cmsgData c) $ \p n ->
        forM_ [0 .. n `div` size - 1] $ \i -> peekElemOff (castPtr p) i >>= \fd -> closeNumber fd (pure ()) >>= void . forkIO
    size = sizeOf (0 :: CInt)
{-# NOINLINE closingDescriptors #-}

receive :: String -> Socket -> [(Ptr Word8, Int)] -> Int -> MsgFlag -> ([Cmsg] -> IO ()) -> IO (SockAddr, Int, [Cmsg], MsgFlag)
receive loc s bufs room flags keep
  | room < 0 = ioError (socketError loc eINVAL)
  | otherwise = withMemory bufs $ \iov n -> withControlRoom room $ \control clen ->
    operate loc s Reading $ \fd ->
      -- Fresh for each attempt, as the kernel writes into them.
      withRoom $ \ap alen -> with clen $ \clenp -> with (flagBits flags) $ \flagsp -> do
        r <- cRecvMsg fd iov n ap alen control clenp flagsp
        decodeResult r $ \got -> do
          addr <- readSender fd ap alen
          cmsgs <- readControl control =<< peek clenp
          keep cmsgs
          came <- peek flagsp
          pure (Done (addr, got, cmsgs, fromIntegral came))

-- | The bits of the flags. (@network@ does not export the conversion.)
flagBits :: MsgFlag -> CInt
flagBits flags = sum [b | b <- map bit [0 .. 30], fromIntegral b <> flags == flags]

-- Control data -------------------------------------------------------------------------

-- | Lay control data out as the kernel wants it.
withControl :: [Cmsg] -> (Ptr Word8 -> CSize -> IO a) -> IO a
withControl [] act = act nullPtr 0
withControl cmsgs act = withControlRoom (fromIntegral size) $ \p _ -> do
  fillBytes p 0 (fromIntegral size)
  _ <- foldlM put p cmsgs
  act p size
  where
    space = cControlSpace . fromIntegral . B.length . cmsgData
    size = sum (map space cmsgs)
    put p c@(Cmsg (CmsgId level kind) bs) = do
      to <- cControlPut p level kind (fromIntegral (B.length bs))
      withBytes bs (copyBytes to)
      pure (p `plusPtr` fromIntegral (space c))

withControlRoom :: Int -> (Ptr Word8 -> CSize -> IO a) -> IO a
withControlRoom n act = allocaBytesAligned (max 1 n) 8 (\p -> act p (fromIntegral n))

readControl :: Ptr Word8 -> CSize -> IO [Cmsg]
readControl start size = alloca $ \level -> alloca $ \kind -> alloca $ \len -> alloca $ \step ->
  let go p left
        | left <= 0 = pure []
        | otherwise = do
          found <- cControlGet p (fromIntegral left) level kind len step
          if found == nullPtr
            then pure []
            else do
              n <- fromIntegral <$> peek len
              c <- Cmsg <$> (CmsgId <$> peek level <*> peek kind) <*> B.create n (\to -> copyBytes to found n)
              on <- fromIntegral <$> peek step
              (c :) <$> go (p `plusPtr` on) (left - on)
   in go start (fromIntegral size :: Int)

-- Descriptors ----------------------------------------------------------------------------

-- | @SCM_RIGHTS@. (Versions of @network@ have different names for it.)
rights :: CmsgId
rights = CmsgId cRightsLevel cRightsType

-- | Pass a descriptor over a Unix socket, with one byte of data. The receiver gets a new descriptor of the same open
-- file (unix(7), @SCM_RIGHTS@).
sendFd :: Socket -> CInt -> IO ()
sendFd s fd = do
  bytes <- B.create (sizeOf fd) (\p -> poke (castPtr p) fd)
  withPieces [B.singleton 0] $ \iov n -> withControl [Cmsg rights bytes] $ \control clen ->
    void (operate "Weft.Socket.sendFd" s Writing (\sock -> sent (cSendMsg sock iov n nullPtr 0 control clen (flagBits mempty))))

-- | Receive a descriptor that was passed by 'sendFd', and the byte that it came with. It is close-on-exec. Throws an
-- end-of-file error at the end of the stream, and @EINVAL@ if the next byte came without a descriptor. That byte is
-- taken from the stream: the kernel gives a descriptor out only together with the byte, and one that was looked at
-- without taking it (@MSG_PEEK@) would be passed a second time. If the peer passed more than one, the kernel closes the
-- others. If it is interrupted, it closes a descriptor that has come.
recvFd :: Socket -> IO CInt
recvFd s = closingDescriptors $ \keep -> allocaBytes 1 $ \p -> do
  (_, got, cmsgs, _) <- receive loc s [(p, 1)] room mempty keep
  case cmsgs of
    Cmsg kind bytes : _ | kind == rights, B.length bytes >= size -> withBytes bytes (\fd _ -> peek (castPtr fd))
    _ | got == 0 -> ioError (mkIOError eofErrorType loc Nothing Nothing)
    _ -> ioError (socketError loc eINVAL) {ioe_description = "a byte came without a descriptor, and was taken from the stream"}
  where
    loc = "Weft.Socket.recvFd"
    -- Without the padding at the end there is room for one
    -- descriptor only: in that of @CMSG_SPACE@ the kernel puts a second one.
    room = fromIntegral (cControlSpace 0) + size
    size = sizeOf (0 :: CInt)

-- Memory -------------------------------------------------------------------------------

-- | Pieces of memory as a @struct iovec@ array.
withMemory :: [(Ptr Word8, Int)] -> (Ptr IoVec -> CInt -> IO a) -> IO a
withMemory pieces act = allocaBytes (pieceSize * max 1 count) $ \iov -> do
  sequence_ [pokeByteOff iov (pieceSize * i) p >> pokeByteOff iov (pieceSize * i + 8) (size n) | (i, (p, n)) <- zip [0 ..] pieces]
  act iov (fromIntegral count)
  where
    count = length pieces
    size n = fromIntegral n :: CSize
