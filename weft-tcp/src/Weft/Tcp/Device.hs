-- |
-- The interface between the stack and a link. A link passes IP packets in batches, and states whether it computes
-- checksums and splits large segments.
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

-- | A link. Any thread may use any operation, but at most one thread at a time may call
-- 'receiveBatch' of a queue.
data Device = Device
  { deviceName :: !String,
    -- | The maximum size of a packet in bytes, including its IP header.
    deviceMtu :: !Int,
    -- | Whether the device implements 'Offload'.
    deviceOffloads :: !Bool,
    -- | At least one queue. Each is meant for its own thread.
    deviceQueues :: ![Queue],
    -- | Close the device. Waiting calls end with @EBADF@. Idempotent.
    deviceClose :: !(IO ())
  }

-- | A queue for receiving and sending packets.
data Queue = Queue
  { -- | Wait until packets have arrived, and return them. Interruptible.
    receiveBatch :: !(IO [Incoming]),
    -- | Send a packet, given in parts. Never blocks: if there is no room, the packet is dropped.
    sendPacket :: !(Offload -> [ByteString] -> IO ())
  }

-- | A received packet, which starts with its IP header.
data Incoming = Incoming
  { incomingPacket :: !ByteString,
    -- | The checksum of the transport protocol is known to be correct, or was never computed
    -- because the packet did not leave the machine.
    checksumTrusted :: !Bool,
    -- | Whether the packet's memory is never overwritten. If not, the device reuses it for the next batch, so the
    -- stack copies the data that it keeps.
    ownsMemory :: !Bool
  }

-- | What the link has to do before a packet is complete.
data Offload
  = NoOffload
  | -- | For a TCP segment: the length of the IP header, the length of the IP and TCP headers
    -- together, and the size to split the data into (0: do not split). Where packets are Ethernet
    -- frames, the first two numbers include the Ethernet header. The checksum field contains the
    -- sum over the pseudo header.
    Complete !Int !Int !Int
  deriving (Eq, Show)

-- | No work for the link: the packet is complete.
noOffload :: Offload
noOffload = NoOffload

-- | Two devices connected in memory, for tests and for programs without privileges, with the given
-- MTU. Packets are numbered from 0 in each direction; a packet is dropped if the function returns
-- true for its number. Each direction queues up to 1024 packets. While one device is closed,
-- packets to it are dropped.
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

-- | Whether the receiving device is open, the number of queued packets, and the packets, newest first.
data Inbox = Inbox !Bool !Int ![ByteString]
