-- |
-- Many datagrams by one system call, for both kinds of threads: what "Weft.Datagram" and "Weft.Hybrid.Datagram" share.
-- That is all but the waiting: the memory that a receiver has, the decoding of what came, and which datagrams go as one
-- message. Nothing here blocks. Memory of a 'Buffers' is for one thread at a time; any thread may send.
module Weft.Socket.Batch
  ( -- * Receiving
    Datagram (..),
    ReceiverSettings (..),
    defaultReceiverSettings,
    Buffers,
    newBuffers,
    receiveBatch,

    -- * Sending
    sendBatches,
  )
where

import Control.Monad (forM, forM_, unless)
import Control.Monad.IO.Class (MonadIO (..))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (create)
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeTake)
import Data.Int (Int32)
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eINVAL, eIO, eMSGSIZE, eOPNOTSUPP)
import Foreign.C.Types (CInt)
import Foreign.ForeignPtr (ForeignPtr, mallocForeignPtrBytes)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Marshal.Utils (copyBytes, with)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (peekElemOff, pokeElemOff)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Network.Socket (SockAddr (..))
import Weft.Core.Descriptor (Attempt (..), decodeResult)
import Weft.FFI.Datagram
import Weft.Socket.Address
import Weft.Socket.Pieces
import Weft.Socket.Sender

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

-- | Memory to receive into.
data Buffers = Buffers
  { -- | The longest datagram.
    buffersLimit :: !Int,
    -- | The room for a message, and the number of messages.
    buffersRoom, buffersCount :: !Int,
    -- | Written by the thread that receives: messages, and their addresses.
    buffersMemory, buffersNames :: !(ForeignPtr Word8)
  }

-- | Memory for a receiver. The function runs a call on its socket that needs no waiting, and throws its error; it is
-- called if the kernel is to be asked to join datagrams.
newBuffers :: MonadIO m => ((CInt -> IO CInt) -> m CInt) -> ReceiverSettings -> m Buffers
newBuffers onSocket settings = do
  coalesced <- if receiverOffload settings then onSocket cCoalesce else pure 0
  let largest = max 1 (min 65536 (receiverLargest settings))
      room = if coalesced > 0 then 65536 else largest
      count = max 1 (min mostMessages (receiverMost settings))
  liftIO (Buffers largest room count <$> mallocForeignPtrBytes (count * room) <*> mallocForeignPtrBytes (count * nameRoom))
{-# INLINE newBuffers #-}

-- | Receive what has come from a descriptor, in order, at most the messages that there is memory for. One system call;
-- its bytes are copied once, into memory of their size. Throws nothing.
receiveBatch :: Buffers -> CInt -> IO (Attempt [Datagram])
receiveBatch b fd = allocaBytes (4 * receivedSize * buffersCount b) $ \found ->
  unsafeWithForeignPtr (buffersMemory b) $ \p -> unsafeWithForeignPtr (buffersNames b) $ \names -> do
    got <- cReceiveMany fd p (fromIntegral (buffersRoom b)) (fromIntegral (buffersCount b)) names found
    -- A call that got less than it had room for may have stopped at an error, which the next one gives: there may be
    -- more.
    decodeResult got (fmap Done . takeOut b p names found)

-- | The messages of a call, in one new string, cut into datagrams.
takeOut :: Buffers -> Ptr Word8 -> Ptr Word8 -> Ptr Int32 -> Int -> IO [Datagram]
takeOut b p names found count = do
  sizes <- mapM (field 0) [0 .. count - 1]
  let messages = zip3 [0 ..] (scanl (+) 0 sizes) sizes
  whole <- B.create (sum sizes) $ \to ->
    forM_ messages $ \(i, offset, size) -> copyBytes (to `plusPtr` offset) (p `plusPtr` (i * buffersRoom b)) size
  concat <$> forM messages (\(i, offset, size) -> datagrams i (B.unsafeTake size (B.unsafeDrop offset whole)))
  where
    field :: Int -> Int -> IO Int
    field k i = fromIntegral <$> peekElemOff found (receivedSize * i + k)
    datagrams i bytes = do
      nameSize <- field 1 i
      truncated <- (/= 0) <$> field 2 i
      segment <- field 3 i
      peer <- with (fromIntegral nameSize) (readSender (-1) (castPtr (names `plusPtr` (nameRoom * i))))
      let cut joint
            | segment > 0 && B.length joint > segment = B.unsafeTake segment joint : cut (B.unsafeDrop segment joint)
            | otherwise = [joint]
          limited one = Datagram peer (B.take (buffersLimit b) one) (truncated || B.length one > buffersLimit b)
      pure (map limited (cut bytes))

-- Sending ----------------------------------------------------------------------------

-- | Send each string as a datagram to its address, or to the peer of a connected socket, in order; wait while there is
-- no room. If it throws, those before the one that failed, or that had to wait too long, were sent.
sendBatches :: MonadIO m => Sender m -> [(Maybe SockAddr, ByteString)] -> m ()
sendBatches sender datagrams = case datagrams of
  _ : _ : _ -> do
    segments <- senderImmediately sender cSegments
    sendMessages sender (if segments > 0 then joined datagrams else single datagrams)
  _ -> sendMessages sender (single datagrams)
{-# INLINE sendBatches #-}

-- | Datagrams that go as one message: to one address, all of the first one's size, but the last one, which may be
-- shorter.
data Message = Message !(Maybe SockAddr) ![ByteString]

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

sendMessages :: MonadIO m => Sender m -> [Message] -> m ()
sendMessages sender = go
  where
    go [] = pure ()
    go messages = do
      batch <- liftIO (layOut (take mostMessages messages))
      sent <- sendTo sender (batchAddress batch) (sendBatch batch)
      case sent of
        Right n -> do
          let left = drop n messages
          unless (null left) (senderBetweenParts sender)
          go left
        -- The kernel does not cut these: the datagrams are longer than the path takes, or the device does not compute
        -- checksums. It says what is wrong with them one by one, if anything is.
        Left () -> go [Message peer [bytes] | Message peer pieces <- messages, bytes <- pieces]
{-# INLINE sendMessages #-}

-- | Messages as a call wants them.
data Batch = Batch
  { -- | How many messages.
    batchCount :: !Int,
    -- | The address of the first one, and whether the kernel has to cut it.
    batchAddress :: !SockAddr,
    batchCut :: !Bool,
    -- | The pieces, which the memory refers to.
    batchPieces :: ![ByteString],
    -- | The @struct iovec@ of the pieces, then the addresses, then what is said about each message. Written once.
    batchMemory :: !(ForeignPtr Word8)
  }

-- | Lay messages out in new memory. What is wrong with the strings and addresses is thrown here, so that sending throws
-- nothing.
layOut :: [Message] -> IO Batch
layOut messages = do
  memory <- mallocForeignPtrBytes (max 1 (pieceSize * length pieces + (nameRoom + 4 * sendingSize) * count))
  unsafeWithForeignPtr memory $ \p -> do
    _ <- putPieces (castPtr p) pieces
    fill (p `plusPtr` namesAt pieces) (p `plusPtr` sayingsAt pieces count) 0 0 messages
  pure (Batch count address isCut pieces memory)
  where
    pieces = concat [its | Message _ its <- messages]
    count = length messages
    (address, isCut) = case messages of
      Message peer its : _ -> (fromMaybe (SockAddrInet 0 0) peer, not (null (drop 1 its)))
      [] -> (SockAddrInet 0 0, False)
    fill :: Ptr Word8 -> Ptr Int32 -> Int -> Int -> [Message] -> IO ()
    fill _ _ _ _ [] = pure ()
    fill names what i piece (Message peer its : rest) = do
      nameSize <- case peer of
        Nothing -> pure 0
        Just to -> withAddress to $ \p n -> do
          copyBytes (names `plusPtr` (nameRoom * i)) (castPtr p) (fromIntegral n)
          pure (fromIntegral n)
      let segment = case its of
            bytes : _ : _ -> B.length bytes
            _ -> 0
      sequence_
        [ pokeElemOff what (sendingSize * i + k) (fromIntegral v)
          | (k, v) <- zip [0 ..] [nameRoom * i, nameSize, piece, length its, segment]
        ]
      fill names what (i + 1) (piece + length its) rest

-- | Where the addresses begin in a batch's memory, and where what is said about the messages does.
namesAt :: [ByteString] -> Int
namesAt pieces = pieceSize * length pieces

sayingsAt :: [ByteString] -> Int -> Int
sayingsAt pieces count = namesAt pieces + nameRoom * count

-- | The number of messages that were sent, or 'Left' if the kernel does not cut the first one. Throws nothing.
sendBatch :: Batch -> CInt -> IO (Attempt (Either () Int))
sendBatch b fd = do
  r <- unsafeWithForeignPtr (batchMemory b) $ \p ->
    cSendMany fd (p `plusPtr` namesAt pieces) (castPtr p) (p `plusPtr` sayingsAt pieces count) (fromIntegral count)
  keepPieces pieces
  if batchCut b && refuses r then pure (Done (Left ())) else decodeResult r (pure . Done . Right)
  where
    pieces = batchPieces b
    count = batchCount b
    refuses r = r < 0 && Errno (negate r) `elem` [eINVAL, eIO, eOPNOTSUPP, eMSGSIZE]
