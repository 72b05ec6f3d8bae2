-- |
-- What the stack asks of a link: Internet packets in batches, and whether the link
-- computes checksums and cuts up large segments.
--
-- @since 0.1.0
module Weft.Tcp.Device
  ( Device (..),
    Queue (..),
    Incoming (..),
    Offload (..),
    noOffload,
    pairOfDevices,
  )
where

import Control.Concurrent.STM
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Foreign.C.Error (Errno (..), eBADF)
import Weft.FFI.Errno (throwErrnoCode)

-- | A link. Everything may be used by any thread, but each queue's 'receiveBatch' by
-- one at a time.
data Device = Device
  { deviceName :: !String,
    -- | Bytes of a packet with its IP header.
    deviceMtu :: !Int,
    -- | Whether 'Offload' is understood.
    deviceOffloads :: !Bool,
    -- | At least one. Each is meant for a thread of its own.
    deviceQueues :: ![Queue],
    -- | Release it; waits end with @EBADF@. No effect the second time.
    deviceClose :: !(IO ())
  }

-- | A way to receive and send packets.
data Queue = Queue
  { -- | Wait for packets, and take what there is of them. Interruptible.
    receiveBatch :: !(IO [Incoming]),
    -- | Send a packet, given in parts. Never blocks: a packet for which there is no
    -- room is lost.
    sendPacket :: !(Offload -> [ByteString] -> IO ())
  }

-- | A packet from its IP header on.
data Incoming = Incoming
  { incomingPacket :: !ByteString,
    -- | The checksum above IP is known to be right, or was never computed since the
    -- packet did not leave the machine.
    checksumTrusted :: !Bool,
    -- | Whether the packet's memory is never written again. Otherwise the device reuses it for the
    -- next batch, and the stack copies what it keeps.
    ownsMemory :: !Bool
  }

-- | What the link has to do before a packet is complete.
data Offload
  = NoOffload
  | -- | Of a TCP segment: bytes of the IP header, bytes of IP and TCP headers, and the
    -- size to cut the data into, 0 for no cutting. The checksum field has the sum over
    -- the pseudo header.
    Complete !Int !Int !Int
  deriving (Eq, Show)

-- | Nothing to do: the packet is complete.
noOffload :: Offload
noOffload = NoOffload

-- | Two devices that are connected to each other in memory, for tests and for programs
-- without privileges. Packets are numbered from 0 in each direction, and lost if the
-- function says so; each direction holds 1024. While one device is closed, what the other one
-- sends is lost, and nothing arrives there.
pairOfDevices :: Int -> (Int -> Bool) -> IO (Device, Device)
pairOfDevices mtu loses = do
  there <- newTVarIO (Inbox True 0 [])
  back <- newTVarIO (Inbox True 0 [])
  countA <- newTVarIO 0
  countB <- newTVarIO 0
  let device name inbox outbox count =
        Device
          { deviceName = name,
            deviceMtu = mtu,
            deviceOffloads = False,
            deviceQueues = [Queue (receive inbox) (\_ parts -> send inbox outbox count (B.concat parts))],
            deviceClose = atomically (writeTVar inbox (Inbox False 0 []))
          }
      receive inbox = do
        arrived <- atomically $ do
          box <- readTVar inbox
          case box of
            Inbox False _ _ -> pure Nothing
            Inbox True _ [] -> retry
            Inbox True _ packets -> Just packets <$ writeTVar inbox (Inbox True 0 [])
        case arrived of
          Nothing -> let Errno e = eBADF in throwErrnoCode "Weft.Tcp.receive" e
          Just packets -> pure [Incoming p False True | p <- reverse packets]
      send inbox outbox count packet = atomically $ do
        Inbox ours _ _ <- readTVar inbox
        n <- readTVar count
        writeTVar count $! n + 1
        Inbox open waiting packets <- readTVar outbox
        when (ours && open && not (loses n) && waiting < 1024) (writeTVar outbox (Inbox True (waiting + 1) (packet : packets)))
  pure (device "memory-a" back there countA, device "memory-b" there back countB)

-- | Whether the device that receives from it is open, how many packets wait, and the packets, the last
-- one first.
data Inbox = Inbox !Bool !Int ![ByteString]
