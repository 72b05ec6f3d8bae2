-- |
-- TUN devices: network interfaces of the kernel whose packets the program handles. With offload, a packet of up to 64
-- KiB crosses the interface in one piece in either direction, and the kernel splits or merges segments and completes
-- checksums.
--
-- Opening a device needs @CAP_NET_ADMIN@, or a device that was created for the user beforehand
-- (@ip tuntap add@).
--
-- @since 0.1.0
module Weft.Tcp.Device.Tun
  ( TunSettings (..),
    tunNamed,
    openTun,
    interfaceIsUp,
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
import Foreign.C.Error (Errno (..), eAGAIN, eBADF, eNAMETOOLONG)
import Foreign.C.String (peekCString, withCString, withCStringLen)
import Foreign.ForeignPtr (ForeignPtr, withForeignPtr)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Marshal.Utils (copyBytes, fillBytes)
import Foreign.Ptr (castPtr, plusPtr)
import Foreign.Storable (poke, pokeByteOff)
import System.Posix.Types (Fd (..))
import Weft.Core.Descriptor
import Weft.Core.Events (evtRead)
import Weft.Core.Time (never)
import Weft.FFI.Errno (throwErrnoCode, throwIfNegative)
import Weft.Runtime.Managers (currentManager, currentRegistry)
import Weft.Tcp.Device
import Weft.Tcp.FFI.Tun
import Weft.Thread.Wait (waitDescriptor)

-- | Settings of a TUN device.
data TunSettings = TunSettings
  { -- | The interface's name, of at most 15 bytes. The interface is created if it does not exist.
    tunName :: !String,
    -- | Whether the kernel splits segments and completes checksums.
    tunOffload :: !Bool,
    -- | The number of queues. More than one needs an interface with @multi_queue@.
    tunQueues :: !Int
  }

-- | Defaults: offload and one queue.
tunNamed :: String -> TunSettings
tunNamed name = TunSettings name True 1

-- | Open a device. The administrator sets its addresses, routes and MTU. Throws the errors of
-- open(2) of @\/dev\/net\/tun@ and of the ioctls: @EPERM@, @EBUSY@, @ENOENT@; @ENAMETOOLONG@ for a name of more than 15
-- bytes.
openTun :: TunSettings -> IO Device
openTun = openLink False

-- | Open a TUN device, or a TAP device, whose packets are Ethernet frames ("Weft.Tcp.Device.Tap").
openLink :: Bool -> TunSettings -> IO Device
openLink tap s = allocaBytes 32 $ \name -> do
  fillBytes name 0 32
  withCStringLen (tunName s) $ \(p, n) ->
    if n > 15 then throwErrnoCode "Weft.Tcp.openTun" (let Errno e = eNAMETOOLONG in e) else copyBytes name p n
  fds <- openAll name (max 1 (tunQueues s))
  mtu <- throwIfNegative "Weft.Tcp.openTun" (cTunMtu name) `onException` mapM_ cTunClose fds
  called <- peekCString name
  descriptors <- forM fds (\fd -> newDescriptor currentRegistry currentManager (Fd fd) (\_ -> pure () <$ cTunClose fd))
  queues <- mapM (newQueue tap (tunOffload s)) descriptors
  pure
    Device
      { deviceName = called,
        deviceMtu = fromIntegral mtu,
        deviceOffloads = tunOffload s,
        deviceQueues = queues,
        -- A descriptor is closed once no thread uses it in a system call any more.
        deviceClose = mapM_ closeDescriptor descriptors
      }
  where
    several = if tunQueues s > 1 then 1 else 0
    openAll _ 0 = pure []
    openAll name n = do
      fd <- throwIfNegative "Weft.Tcp.openTun" (cTunOpen name (if tap then 1 else 0) (if tunOffload s then 1 else 0) several)
      (fd :) <$> openAll name (n - 1 :: Int) `onException` cTunClose fd

-- | Whether the network interface with that name is up. No packet crosses one that is down. Throws @ENODEV@ if there is
-- none.
interfaceIsUp :: String -> IO Bool
interfaceIsUp name = (/= 0) <$> withCString name (throwIfNegative "Weft.Tcp.interfaceIsUp" . cTunUp)

-- | The maximum number of packets in a batch.
batchLimit :: Int
batchLimit = 64

-- | The size of the receive buffer: room for the largest packet and its header, in bytes.
slabSize :: Int
slabSize = 65536 + 64

newQueue :: Bool -> Bool -> Descriptor -> IO Queue
newQueue tap offload d = do
  -- Written only by the receiving thread.
  slab <- newIORef =<< BI.mallocByteString slabSize
  pure (Queue (receive slab) (send tap offload d))
  where
    Fd fd = descriptorFd d
    receive slab = do
      outcome <- useDescriptor d (readSome slab [] batchLimit)
      case outcome of
        Just (Done []) -> receive slab
        Just (Done batch) -> pure batch
        Just (Failed e) -> throwErrnoCode location e
        -- Packets that arrive while a batch is processed must not wake the dispatcher, so nothing is registered then.
        -- If it is closed meanwhile, the next attempt finds that.
        Just _ -> waitDescriptor d evtRead never >> receive slab
        Nothing -> let Errno e = eBADF in throwErrnoCode location e
    readSome _ batch 0 = pure (Done (reverse batch))
    readSome slab batch n = do
      memory <- readIORef slab
      got <- withForeignPtr memory (\p -> cTunRead fd p (fromIntegral slabSize))
      case fromIntegral got of
        r
          | r > headerSize -> keep slab memory r >>= \packet -> readSome slab (packet : batch) (n - 1 :: Int)
          | r >= 0 -> readSome slab batch (n - 1)
          -- More packets arrive while a batch is processed, and the next attempt finds them without the dispatcher.
          -- Packets read before an error are passed on; the next attempt meets the error again.
          | not (null batch) -> pure (Done (reverse batch))
          | otherwise -> pure (if Errno (negate (fromIntegral r)) == eAGAIN then NotYet else Failed (negate (fromIntegral r)))
    location = "Weft.Tcp.receive"
    headerSize = if offload then 10 else 0
    keep = keepPacket offload headerSize

-- | A packet that fills at least half of the slab keeps the slab; a smaller one is copied out of
-- it. Either way a retained packet occupies at most twice its size.
keepPacket :: Bool -> Int -> IORef (ForeignPtr Word8) -> ForeignPtr Word8 -> Int -> IO Incoming
keepPacket offload headerSize slab memory size = do
  whole <-
    if size >= slabSize `div` 2
      then BI.PS memory 0 size <$ (writeIORef slab =<< BI.mallocByteString slabSize)
      else BI.create size (\p -> withForeignPtr memory (\q -> copyBytes p q size))
  -- VIRTIO_NET_HDR_F_NEEDS_CSUM and _DATA_VALID.
  let trusted = offload && B.unsafeIndex whole 0 .&. 3 /= 0
  pure (Incoming (B.drop headerSize whole) trusted True)

send :: Bool -> Bool -> Descriptor -> Offload -> [ByteString] -> IO ()
send tap offload d how parts
  | offload = withVector (virtioHeader tap how parts : parts) write
  | otherwise = withVector parts write
  where
    Fd fd = descriptorFd d
    -- If the device is full or closed, the packet is dropped. TCP retransmits it.
    write v n = void (useDescriptor d (cTunWriteV fd v n))

-- | @struct virtio_net_hdr@ in the machine's byte order: flags, segmentation type, header length,
-- segment size, start of the checksummed data, and offset of the checksum.
virtioHeader :: Bool -> Offload -> [ByteString] -> ByteString
virtioHeader tap how parts = BI.unsafeCreate 10 $ \p -> do
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
      b : _
        -- The first part of a frame contains the type, which is 0x86dd for IPv6.
        | tap -> B.length b >= 14 && B.unsafeIndex b 12 == 0x86
        | not (B.null b) -> B.unsafeIndex b 0 >= 0x60
      _ -> False
