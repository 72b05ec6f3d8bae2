-- |
-- Receiving and sending many datagrams by one system call, for servers of UDP (DNS, QUIC, metrics).
--
-- > receiver <- newReceiver defaultReceiverSettings sock
-- > forever $ do
-- >   queries <- receiveDatagrams receiver noDeadline
-- >   sendDatagramsTo sock noDeadline [(datagramPeer q, answer (datagramBytes q)) | q <- queries]
--
-- Under load a call moves up to 64 messages (recvmmsg(2), sendmmsg(2)); without load it moves one, and nothing waits
-- for more to come. Datagrams of one size that go to one address one after the other, and the shorter one that ends
-- them, are handed to the kernel as one message, which it cuts (@UDP_SEGMENT@, Linux 4.18). With 'receiverOffload' it
-- also joins those that came from one sender together (@UDP_GRO@, Linux 5.0). Neither changes what is sent and
-- received. On other systems there is a call for each datagram.
--
-- Sockets of other kinds that keep messages (Unix datagrams) may be used too, without offload; not those of sequential
-- packets, whose end looks like empty datagrams without end. Any thread may send; one thread at a time may use a
-- receiver, and a socket may have several. All functions are interruptible while they wait, and their deadlines are
-- those of "Weft.Socket"; they throw the errors of recvmsg(2) and sendmsg(2).
--
-- 'Datagram' is also a type of socket in "Weft.Socket": import one of the two qualified, or that module
-- @hiding (SocketType (Datagram))@.
--
-- @since 0.1.0
module Weft.Datagram
  ( -- * Receiving
    Datagram (..),
    Receiver,
    newReceiver,
    ReceiverSettings (..),
    defaultReceiverSettings,
    receiveDatagrams,

    -- * Sending
    sendDatagrams,
    sendDatagramsTo,
  )
where

import Control.Exception (mask_)
import Control.Monad (forM, forM_, when)
import Data.Bifunctor (first)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (create)
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeTake)
import Data.Int (Int32)
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eINVAL, eIO, eMSGSIZE, eOPNOTSUPP)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Marshal.Utils (copyBytes, with)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (peekElemOff, pokeElemOff)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Network.Socket (SockAddr (..))
import Weft.Deadline (Instant)
import Weft.FFI.Datagram
import Weft.Socket.Address
import Weft.Socket.Datagram (operateTo)
import Weft.Socket.Message (withPieces)
import Weft.Socket.Types

-- Receiving --------------------------------------------------------------------------

-- | A datagram that was received.
data Datagram = Datagram
  { -- | The sender; @SockAddrUnix ""@ if it has no name, or one that @network@ cannot represent.
    datagramPeer :: !SockAddr,
    -- | May share memory with the others of its call: use 'Data.ByteString.copy' for one that is kept for long.
    datagramBytes :: !ByteString,
    -- | Whether it was longer than 'receiverLargest', and this is its beginning.
    datagramTruncated :: !Bool
  }
  deriving (Eq, Show)

-- | How to receive. Begin with 'defaultReceiverSettings'.
data ReceiverSettings = ReceiverSettings
  { -- | The longest datagram in bytes, at least one. Longer ones are truncated.
    receiverLargest :: !Int,
    -- | The most messages of a call, 1 to 64. A receiver holds memory for so many of the longest.
    receiverMost :: !Int,
    -- | Whether the kernel is asked to join datagrams, where it can. A message then takes 64 KiB, whatever
    -- 'receiverLargest' is, which still bounds each datagram. For few senders that send much. It is a property of the
    -- socket: all that receive from it then have to be receivers with this setting.
    receiverOffload :: !Bool
  }
  deriving (Eq, Show)

-- | Datagrams of 2,048 bytes, 32 by a call (64 KiB), and no offload.
defaultReceiverSettings :: ReceiverSettings
defaultReceiverSettings = ReceiverSettings {receiverLargest = 2048, receiverMost = 32, receiverOffload = False}

-- | A socket, and memory to receive into.
data Receiver = Receiver
  { receiverSocket :: !Socket,
    -- | The longest datagram.
    receiverLimit :: !Int,
    -- | The room for a message, and the number of messages.
    receiverRoom, receiverCount :: !Int,
    -- | Written by the thread that receives: messages, and their addresses.
    receiverMemory, receiverNames :: !(ForeignPtr Word8)
  }

-- | A receiver for a socket, which stays the caller's. It need not be closed.
newReceiver :: ReceiverSettings -> Socket -> IO Receiver
newReceiver settings s = do
  coalesced <- if receiverOffload settings then immediately "Weft.Datagram.newReceiver" s cCoalesce else pure 0
  let largest = max 1 (min 65536 (receiverLargest settings))
      room = if coalesced > 0 then 65536 else largest
      count = max 1 (min mostMessages (receiverMost settings))
  Receiver s largest room count <$> mallocForeignPtrBytes (count * room) <*> mallocForeignPtrBytes (count * nameRoom)

-- | Receive what has come, in order: at least one datagram, and as many as there are, up to 'receiverMost' messages.
-- Waits until there is one. If the deadline passes first, it throws an error that satisfies 'Weft.Deadline.isTimeout'.
-- One system call; its bytes are copied once, into memory of their size.
receiveDatagrams :: Receiver -> Instant -> IO [Datagram]
receiveDatagrams r deadline =
  allocaBytes (4 * receivedSize * receiverCount r) $ \found ->
    operate "Weft.Datagram.receiveDatagrams" (withDeadline deadline (receiverSocket r)) Reading $ \fd ->
      unsafeWithForeignPtr (receiverMemory r) $ \p -> unsafeWithForeignPtr (receiverNames r) $ \names -> do
        got <- cReceiveMany fd p (fromIntegral (receiverRoom r)) (fromIntegral (receiverCount r)) names found
        decodeResult got (fmap Done . takeOut r p names found)

-- | The messages of a call, in one new string, cut into datagrams.
takeOut :: Receiver -> Ptr Word8 -> Ptr Word8 -> Ptr Int32 -> Int -> IO [Datagram]
takeOut r p names found count = do
  sizes <- mapM (field 0) [0 .. count - 1]
  let messages = zip3 [0 ..] (scanl (+) 0 sizes) sizes
  whole <- B.create (sum sizes) $ \to ->
    forM_ messages $ \(i, offset, size) -> copyBytes (to `plusPtr` offset) (p `plusPtr` (i * receiverRoom r)) size
  concat <$> forM messages (\(i, offset, size) -> datagrams i (B.unsafeTake size (B.unsafeDrop offset whole)))
  where
    field :: Int -> Int -> IO Int
    field k i = fromIntegral <$> peekElemOff found (receivedSize * i + k)
    datagrams i bytes = do
      nameSize <- field 1 i
      truncated <- (/= 0) <$> field 2 i
      segment <- field 3 i
      peer <- with (fromIntegral nameSize) (readSender (-1) (castPtr (names `plusPtr` (nameRoom * i))))
      let cut b
            | segment > 0 && B.length b > segment = B.unsafeTake segment b : cut (B.unsafeDrop segment b)
            | otherwise = [b]
          limited b = Datagram peer (B.take (receiverLimit r) b) (truncated || B.length b > receiverLimit r)
      pure (map limited (cut bytes))

-- Sending ----------------------------------------------------------------------------

-- | Send each string as a datagram to the peer of a connected socket, in order; wait while there is no room. If it
-- throws, those before the one that failed, or that had to wait too long, were sent.
sendDatagrams :: Socket -> Instant -> [ByteString] -> IO ()
sendDatagrams s deadline = sendAllOf s deadline . map ((,) Nothing)

-- | 'sendDatagrams' to an address each.
sendDatagramsTo :: Socket -> Instant -> [(SockAddr, ByteString)] -> IO ()
sendDatagramsTo s deadline = sendAllOf s deadline . map (first Just)

-- | Datagrams that go as one message: to one address, all of the first one's size, but the last one, which may be
-- shorter.
data Message = Message !(Maybe SockAddr) ![ByteString]

sendAllOf :: Socket -> Instant -> [(Maybe SockAddr, ByteString)] -> IO ()
sendAllOf s deadline datagrams = case datagrams of
  _ : _ : _ -> do
    segments <- immediately location (withDeadline deadline s) cSegments
    sendMessages s deadline (if segments > 0 then joined datagrams else single datagrams)
  _ -> sendMessages s deadline (single datagrams)

single :: [(Maybe SockAddr, ByteString)] -> [Message]
single datagrams = [Message peer [bytes] | (peer, bytes) <- datagrams]

-- | At most 64 datagrams (@UDP_MAX_SEGMENTS@ of older kernels), and no more bytes than an IP packet can say that it
-- has.
joined :: [(Maybe SockAddr, ByteString)] -> [Message]
joined [] = []
joined ((peer, begin) : rest) = go [begin] (B.length begin) rest
  where
    size = B.length begin
    go taken total left = case left of
      (peer', bytes) : more
        | peer' == peer,
          size > 0,
          n > 0 && n <= size,
          length taken < 64,
          total + n <= 65000 ->
          if n < size then Message peer (reverse (bytes : taken)) : joined more else go (bytes : taken) (total + n) more
        where
          n = B.length bytes
      _ -> Message peer (reverse taken) : joined left

-- | Masked: an exception can interrupt it only while it waits.
sendMessages :: Socket -> Instant -> [Message] -> IO ()
sendMessages s deadline = mask_ . go
  where
    go [] = pure ()
    go messages = do
      let batch = take mostMessages messages
      sent <- sendBatch (withDeadline deadline s) batch
      case sent of
        Right n -> do
          when (n < length messages) (betweenParts location (withDeadline deadline s))
          go (drop n messages)
        -- The kernel does not cut these: the datagrams are longer than the path takes, or the device does not compute
        -- checksums. It says what is wrong with them one by one, if anything is.
        Left () -> go [Message peer [bytes] | Message peer pieces <- messages, bytes <- pieces]

-- | The number of messages that were sent, or 'Left' if the kernel does not cut the first one.
sendBatch :: Socket -> [Message] -> IO (Either () Int)
sendBatch s batch =
  withPieces (concat [pieces | Message _ pieces <- batch]) $ \iov _ ->
    allocaBytes (4 * sendingSize * length batch) $ \what ->
      allocaBytes (max 1 (nameRoom * length batch)) $ \names -> do
        fill what names 0 0 batch
        operateTo location s address $ \fd -> do
          r <- cSendMany fd names iov what (fromIntegral (length batch))
          if isCut && refuses r then pure (Done (Left ())) else decodeResult r (pure . Done . Right)
  where
    (address, isCut) = case batch of
      Message peer pieces : _ -> (fromMaybe (SockAddrInet 0 0) peer, not (null (drop 1 pieces)))
      [] -> (SockAddrInet 0 0, False)
    refuses r = r < 0 && Errno (negate r) `elem` [eINVAL, eIO, eOPNOTSUPP, eMSGSIZE]
    fill _ _ _ _ [] = pure ()
    fill what names i piece (Message peer pieces : rest) = do
      nameSize <- case peer of
        Nothing -> pure 0
        Just to -> withAddress to $ \p n -> do
          copyBytes (names `plusPtr` (nameRoom * i)) (castPtr p) (fromIntegral n)
          pure (fromIntegral n)
      let segment = case pieces of
            bytes : _ : _ -> B.length bytes
            _ -> 0
      sequence_
        [ pokeElemOff what (sendingSize * i + k) (fromIntegral v :: Int32)
          | (k, v) <- zip [0 ..] [nameRoom * i, nameSize, piece, length pieces, segment]
        ]
      fill what names (i + 1) (piece + length pieces) rest

location :: String
location = "Weft.Datagram.sendDatagrams"
