-- |
-- TUN devices: a network interface of the kernel whose packets come to the program. With
-- offload a packet of up to 64 KiB crosses the interface in either direction as one,
-- and the kernel cuts it up or puts it together, and completes checksums.
--
-- Opening one needs @CAP_NET_ADMIN@, or a device that was made for the user before
-- (@ip tuntap add@).
--
-- @since 0.1.0
module Weft.Tcp.Device.Tun
  ( TunSettings (..),
    tunNamed,
    openTun,
    openLink,
  )
where

import Control.Exception (onException)
import Control.Monad (forM, void)
import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as BI
import qualified Data.ByteString.Unsafe as B
import Data.IORef
import Data.Word (Word16, Word8)
import Foreign.C.Error (Errno (..), eAGAIN, eBADF)
import Foreign.C.String (peekCString, withCStringLen)
import Foreign.ForeignPtr (ForeignPtr, withForeignPtr)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Marshal.Utils (copyBytes, fillBytes)
import Foreign.Ptr (castPtr, plusPtr)
import Foreign.Storable (poke, pokeByteOff)
import System.Posix.Types (Fd (..))
import Weft.Core.Descriptor
import Weft.Core.Time (never)
import Weft.FFI.Errno (throwErrnoCode, throwIfNegative)
import Weft.Runtime.Managers (currentManager, currentRegistry)
import Weft.Tcp.Device
import Weft.Tcp.FFI.Tun

-- | What a TUN device is opened with.
data TunSettings = TunSettings
  { -- | The interface; made if it does not exist.
    tunName :: !String,
    -- | Segmentation and checksum offload.
    tunOffload :: !Bool,
    -- | Queues: more than one needs an interface with @multi_queue@.
    tunQueues :: !Int
  }

-- | With offload and one queue.
tunNamed :: String -> TunSettings
tunNamed name = TunSettings name True 1

-- | Open a device. Its addresses, routes and MTU are the administrator's business. Throws
-- as open(2) of @\/dev\/net\/tun@ and the ioctls do: @EPERM@, @EBUSY@, @ENOENT@.
openTun :: TunSettings -> IO Device
openTun = openLink False

-- | A TUN device, or a TAP device, of which packets are frames. For "Weft.Tcp.Device.Tap".
openLink :: Bool -> TunSettings -> IO Device
openLink tap s = allocaBytes 32 $ \name -> do
  fillBytes name 0 32
  withCStringLen (take 15 (tunName s)) (uncurry (copyBytes name))
  fds <- openAll name (max 1 (tunQueues s))
  mtu <- throwIfNegative "Weft.Tcp.openTun" (cTunMtu name) `onException` mapM_ cTunClose fds
  called <- peekCString name
  descriptors <- forM fds (\fd -> newDescriptor currentRegistry currentManager (Fd fd) (pure () <$ cTunClose fd))
  queues <- mapM (newQueue (tunOffload s)) descriptors
  pure
    Device
      { deviceName = called,
        deviceMtu = fromIntegral mtu,
        deviceOffloads = tunOffload s,
        deviceQueues = queues,
        -- The numbers are given back when no thread is inside a system call with them.
        deviceClose = mapM_ closeDescriptor descriptors
      }
  where
    several = if tunQueues s > 1 then 1 else 0
    openAll _ 0 = pure []
    openAll name n = do
      fd <- throwIfNegative "Weft.Tcp.openTun" (cTunOpen name (if tap then 1 else 0) (if tunOffload s then 1 else 0) several)
      (fd :) <$> openAll name (n - 1 :: Int) `onException` cTunClose fd

-- | Packets that are read before they are handed on.
batchLimit :: Int
batchLimit = 64

-- | Room for the largest packet and its header.
slabSize :: Int
slabSize = 65536 + 64

newQueue :: Bool -> Descriptor -> IO Queue
newQueue offload d = do
  -- Written by the thread that receives.
  slab <- newIORef =<< BI.mallocByteString slabSize
  pure (Queue (receive slab) (send offload d))
  where
    Fd fd = descriptorFd d
    receive slab = do
      outcome <- perform d Reading never (readSome slab [] batchLimit)
      case outcome of
        Completed [] -> receive slab
        Completed batch -> pure batch
        Refused e -> throwErrnoCode "Weft.Tcp.receive" e
        _ -> let Errno e = eBADF in throwErrnoCode "Weft.Tcp.receive" e
    readSome _ batch 0 = pure (Done (reverse batch))
    readSome slab batch n = do
      memory <- readIORef slab
      got <- withForeignPtr memory (\p -> cTunRead fd p (fromIntegral slabSize))
      case fromIntegral got of
        r
          | r > headerSize -> keep slab memory r >>= \packet -> readSome slab (packet : batch) (n - 1 :: Int)
          | r >= 0 -> readSome slab batch (n - 1)
          -- Not 'Drained' after a batch: while it is worked on others come, and trying again finds them at once, without
          -- the dispatcher. What was read before an error is handed on; the next attempt meets the error again.
          | not (null batch) -> pure (Done (reverse batch))
          | otherwise -> pure (if Errno (negate (fromIntegral r)) == eAGAIN then NotYet else Failed (negate (fromIntegral r)))
    headerSize = if offload then 10 else 0
    keep = keepPacket offload headerSize

-- | A packet that fills half of the slab takes it along; a smaller one is copied out of
-- it. Either way a packet that is kept holds at most twice its size.
keepPacket :: Bool -> Int -> IORef (ForeignPtr Word8) -> ForeignPtr Word8 -> Int -> IO Incoming
keepPacket offload headerSize slab memory size = do
  whole <-
    if size >= slabSize `div` 2
      then BI.PS memory 0 size <$ (writeIORef slab =<< BI.mallocByteString slabSize)
      else BI.create size (\p -> withForeignPtr memory (\q -> copyBytes p q size))
  -- VIRTIO_NET_HDR_F_NEEDS_CSUM and _DATA_VALID.
  let trusted = offload && B.unsafeIndex whole 0 .&. 3 /= 0
  pure (Incoming (B.drop headerSize whole) trusted True)

send :: Bool -> Descriptor -> Offload -> [ByteString] -> IO ()
send offload d how parts
  | offload = withVector (virtioHeader how parts : parts) write
  | otherwise = withVector parts write
  where
    Fd fd = descriptorFd d
    -- A packet that does not go out, as the device is full or closed, is lost. TCP sends it again.
    write v n = void (useDescriptor d (cTunWriteV fd v n))

-- | @struct virtio_net_hdr@: flags, segmentation type, header length, segment size,
-- where the checksum begins and where it is stored; in the machine's byte order.
virtioHeader :: Offload -> [ByteString] -> ByteString
virtioHeader how parts = BI.unsafeCreate 10 $ \p -> do
  fillBytes p 0 10
  case how of
    NoOffload -> pure ()
    Complete ipSize headers size -> do
      poke (castPtr p) (1 :: Word8)
      let word at w = pokeByteOff p at (fromIntegral w :: Word16)
      if size == 0
        then pure ()
        else do
          poke (castPtr p `plusPtr` 1) (if isV6 then 4 else 1 :: Word8)
          word 2 headers
          word 4 size
      word 6 ipSize
      word 8 (16 :: Int)
  where
    isV6 = case parts of
      b : _ | not (B.null b) -> B.unsafeIndex b 0 >= 0x60
      _ -> False
