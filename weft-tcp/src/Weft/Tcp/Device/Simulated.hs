-- |
-- A simulated link: two devices in one program, connected by a link that delays, loses, duplicates, reorders and
-- corrupts packets. For tests of programs that use "Weft.Tcp", without privileges and without a network.
--
-- > (a, b) <- simulatedLink perfectLink {linkSeed = 7, linkDelay = milliseconds 5, linkLoss = 0.05}
-- > withStack (defaultSettings [address "10.0.0.1"]) a $ \client ->
-- >   withStack (defaultSettings [address "10.0.0.2"]) b $ \server -> ...
--
-- The seed decides what happens to the first, second, third packet of each direction. Time is real time, so two runs
-- may send different packets. A run that can be repeated exactly, in simulated time, needs the core alone
-- ("Weft.Tcp.Core").
--
-- @since 0.1.0
module Weft.Tcp.Device.Simulated
  ( Link (..),
    perfectLink,
    simulatedLink,

    -- * What happens to a packet
    Fate (..),
    Delivery (..),
    fateOf,
  )
where

import Control.Concurrent.STM
import Control.Monad (forM_, void)
import Data.Bits (shiftR, xor)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Word (Word64, Word8)
import Foreign.C.Error (Errno (..), eBADF)
import Weft.Duration (Duration, nanoseconds, toSeconds)
import Weft.FFI.Errno (throwErrnoCode)
import Weft.Tcp.Device
import Weft.Timer (schedule)

-- | The properties of a link, the same in both directions. Probabilities are from 0 to 1, for each packet.
data Link = Link
  { -- | The largest packet in bytes, with its IP header.
    linkMtu :: !Int,
    -- | The seed of the random decisions about packets.
    linkSeed :: !Word64,
    -- | The time that each packet takes in one direction.
    linkDelay :: !Duration,
    -- | The maximum additional delay, which is random for each packet. Because of it, packets can overtake each
    -- other.
    linkJitter :: !Duration,
    -- | The probability that a packet is lost.
    linkLoss :: !Double,
    -- | The probability that a packet arrives twice.
    linkDuplication :: !Double,
    -- | The probability that a packet takes twice as long as others, so that later packets overtake it.
    linkReordering :: !Double,
    -- | The probability that one byte of a packet is changed.
    linkCorruption :: !Double,
    -- | The maximum number of packets in each direction that are in transit or not yet read. Above it, packets are
    -- dropped.
    linkQueue :: !Int
  }
  deriving (Eq, Show)

-- | A link that changes, loses and delays no packets, with an MTU of 1500 bytes and room for 1,024 packets.
perfectLink :: Link
perfectLink = Link 1500 1 mempty mempty 0 0 0 0 1024

-- | What happens to a packet: the arrivals of its copies, none if it is lost.
newtype Fate = Fate [Delivery]
  deriving (Eq, Show)

-- | The arrival of a copy after a delay. If one byte is changed: its position, as a fraction of the packet's length
-- from 0 to 1, and the bits that are flipped.
data Delivery = Delivery !Duration !(Maybe (Double, Word8))
  deriving (Eq, Show)

-- | The fate of a packet, which depends only on the link, the direction ('False' for packets of the first device) and
-- the packet's number in that direction, from 0.
fateOf :: Link -> Bool -> Int -> Fate
fateOf l backwards n
  | chance 0 (linkLoss l) = Fate []
  | chance 1 (linkDuplication l) = Fate [copy 10, copy 20]
  | otherwise = Fate [copy 10]
  where
    copy k = Delivery (linkDelay l <> late k <> part (draw (k + 1)) (linkJitter l)) (damage k)
    late k = if chance k (linkReordering l) then linkDelay l <> linkJitter l else mempty
    damage k
      | chance (k + 2) (linkCorruption l) = Just (draw (k + 3), 1 + fromIntegral (number (k + 4) `mod` 255))
      | otherwise = Nothing
    part x d = nanoseconds (floor (x * toSeconds d * 1e9))
    chance :: Word64 -> Double -> Bool
    chance k p = draw k < p
    -- A number from 0 (inclusive) to 1 (exclusive).
    draw :: Word64 -> Double
    draw k = fromIntegral (number k `shiftR` 11) / 9007199254740992
    number k = mixed (mixed (linkSeed l * 2 + (if backwards then 1 else 0)) + fromIntegral n * 64 + k)

-- | The mixing function of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
mixed :: Word64 -> Word64
mixed w0 = w2 `xor` (w2 `shiftR` 31)
  where
    w = w0 * 0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15
    w1 = (w `xor` (w `shiftR` 30)) * 0xbf58476d1ce4e5b9
    w2 = (w1 `xor` (w1 `shiftR` 27)) * 0x94d049bb133111eb

-- | What was sent to a device: the packets that have arrived, newest first, or 'Nothing' if the device is closed; the
-- number of packets that are unread or in transit; and the number of all packets that were sent. Changed by
-- transactions, from any thread.
data Inbox = Inbox
  { arrived :: !(TVar (Maybe [ByteString])),
    occupied :: !(TVar Int),
    counted :: !(TVar Int)
  }

-- | Two devices connected by a link. While one of them is closed, packets to it are lost. Packets in transit when
-- both are closed are dropped within their delay.
simulatedLink :: Link -> IO (Device, Device)
simulatedLink l = do
  first <- newInbox
  second <- newInbox
  pure (device "simulated-a" first second False, device "simulated-b" second first True)
  where
    newInbox = Inbox <$> newTVarIO (Just []) <*> newTVarIO 0 <*> newTVarIO 0
    device name own other backwards =
      Device
        { deviceName = name,
          deviceMtu = linkMtu l,
          deviceOffloads = False,
          deviceQueues = [Queue (receive own) (\_ parts -> send l backwards own other (B.concat parts))],
          deviceClose = atomically (writeTVar (arrived own) Nothing)
        }

receive :: Inbox -> IO [Incoming]
receive box = do
  packets <- atomically $ do
    state <- readTVar (arrived box)
    case state of
      Just [] -> retry
      Just ps -> Just ps <$ (writeTVar (arrived box) (Just []) >> modifyTVar' (occupied box) (subtract (length ps)))
      Nothing -> pure Nothing
  case packets of
    Nothing -> let Errno e = eBADF in throwErrnoCode "Weft.Tcp.receive" e
    Just ps -> pure [Incoming p False True | p <- reverse ps]

-- | Send a packet to the other device, or drop it. Never blocks.
send :: Link -> Bool -> Inbox -> Inbox -> ByteString -> IO ()
send l backwards own other packet = do
  deliveries <- atomically $ do
    n <- readTVar (counted other)
    writeTVar (counted other) $! n + 1
    open <- (&&) <$> isOpen own <*> isOpen other
    used <- readTVar (occupied other)
    let Fate copies = fateOf l backwards n
        taken = if open then take (linkQueue l - used) copies else []
    taken <$ modifyTVar' (occupied other) (+ length taken)
  forM_ deliveries $ \(Delivery delay damage) -> do
    let bytes = maybe packet (`changedIn` packet) damage
        deliver = atomically (modifyTVar' (arrived other) (fmap (bytes :)))
    -- A timer's callback runs on a dispatcher; a transaction that only writes does not block it.
    if delay == mempty then deliver else void (schedule delay deliver)
  where
    isOpen box = (/= Nothing) <$> readTVar (arrived box)

-- | Flip bits of the byte at that fraction of the length.
changedIn :: (Double, Word8) -> ByteString -> ByteString
changedIn (place, bits) b
  | B.null b = b
  | otherwise = B.take i b <> B.cons (B.index b i `xor` bits) (B.drop (i + 1) b)
  where
    i = floor (place * fromIntegral (B.length b))
