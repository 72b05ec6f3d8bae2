-- |
-- Reassembly of fragmented packets (RFC 791, section 3.2; RFC 8200, section 4.5). Pure: the time is passed in. The
-- memory that senders can occupy is bounded: there are limits on bytes and packets in all, on fragments of a packet,
-- and on time. At the limits, the sender that takes the most makes room. If fragments overlap, their whole packet is
-- discarded (RFC 5722; done here for IPv4 too). A copy of a fragment, which a network may make, is ignored (RFC 8200,
-- section 4.5). A sender whose packet has not become complete in time is to be told, if its first fragment has arrived
-- ('Late').
--
-- @since 0.1.0
module Weft.Tcp.Wire.Fragments
  ( Fragments,
    Key (..),
    Piece (..),
    Late (..),
    Limits (..),
    defaultLimits,
    noFragments,
    addFragment,
    expireFragments,
    noneIncomplete,
    heldBytes,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import Data.List (maximumBy, minimumBy)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, isNothing)
import Data.Ord (comparing)
import Data.Word (Word32, Word8)
import Weft.Tcp.Wire.Address

-- | What identifies the packet of a fragment: source, destination, protocol and identification.
data Key = Key !Address !Address !Word8 !Word32
  deriving (Eq, Ord, Show)

-- | A fragment: the offset of its bytes in the packet, whether more fragments follow, and its bytes.
data Piece = Piece
  { pieceOffset :: !Int,
    pieceMore :: !Bool,
    pieceBytes :: !ByteString,
    -- | The packet's headers before them.
    pieceHeaders :: !ByteString
  }

-- | The first fragment of a packet of which others have not arrived in time: its headers, and its bytes.
data Late = Late !Key !ByteString !ByteString
  deriving (Eq, Show)

-- | The limits of reassembly.
data Limits = Limits
  { maxPackets :: !Int,
    maxBytes :: !Int,
    maxPieces :: !Int,
    -- | How long the fragments of a packet are kept, in microseconds after the first one.
    lifetime :: !Int64
  }

-- | The default limits: 256 packets, 4 MiB, 128 fragments of a packet, 30 seconds.
defaultLimits :: Limits
defaultLimits = Limits 256 4194304 128 30000000

-- | The packets of which some fragments have arrived.
data Fragments = Fragments
  { packets :: !(Map.Map Key Partial),
    held :: !Int
  }

data Partial = Partial
  { expires :: !Int64,
    -- | Set when fragments overlapped or were too many. Further fragments of the packet are dropped.
    discarded :: !Bool,
    -- | The size of the whole packet, known from its last fragment.
    size :: !(Maybe Int),
    pieces :: !(IntMap.IntMap ByteString),
    -- | The number of bytes in 'pieces'.
    arrived :: !Int,
    -- | The headers of the first fragment, once that has arrived; empty if they are longer than 'mostHeaders'. They do
    -- not count as held.
    firstHeaders :: !ByteString
  }

-- | The number of bytes of headers that are kept: enough for any of IPv4, and for those of IPv6 with some options.
mostHeaders :: Int
mostHeaders = 256

-- | No incomplete packets.
noFragments :: Fragments
noFragments = Fragments Map.empty 0

-- | The number of bytes in incomplete packets.
heldBytes :: Fragments -> Int
heldBytes = held

-- | Add a fragment that arrived at the given time. The result is 'Just' the packet's payload if no fragment is
-- missing any more. If there is no room, packets of the sender that takes the most of it are discarded, so that one
-- sender does not keep others out. O(log n); O(incomplete packets) if there is no room. The fragment's bytes are kept
-- as they are, its headers are copied.
addFragment :: Limits -> Int64 -> Key -> Piece -> Fragments -> (Maybe ByteString, Fragments)
addFragment limits now key piece fs
  | len == 0 || len > maxBytes limits || end > 65535 || (pieceMore piece && len `mod` 8 /= 0) = (Nothing, fs)
  | maybe False discarded found = (Nothing, fs)
  | otherwise = place limits key piece (fromMaybe new (Map.lookup key (packets room))) room
  where
    found = Map.lookup key (packets fs)
    room = makeRoom limits (if isNothing found then 1 else 0) len fs
    new = Partial (now + lifetime limits) False Nothing IntMap.empty 0 B.empty
    len = B.length (pieceBytes piece)
    end = pieceOffset piece + len

-- | Discard packets until there is room for so many packets and bytes more: each time the oldest one of the sender that
-- has the most packets, or bytes. O(incomplete packets) for each.
makeRoom :: Limits -> Int -> Int -> Fragments -> Fragments
makeRoom limits more bytes fs
  | Map.null (packets fs) = fs
  | Map.size (packets fs) + more > maxPackets limits = makeRoom limits more bytes (without (const (1 :: Int)))
  | held fs + bytes > maxBytes limits = makeRoom limits more bytes (without arrived)
  | otherwise = fs
  where
    without weight = Fragments (Map.delete victim (packets fs)) (held fs - maybe 0 arrived (Map.lookup victim (packets fs)))
      where
        shares = Map.fromListWith (+) [(from, weight p) | (Key from _ _ _, p) <- Map.toList (packets fs)]
        greatest = fst (maximumBy (comparing snd) (Map.toList shares))
        victim = fst (minimumBy (comparing (expires . snd)) [e | e@(Key from _ _ _, p) <- Map.toList (packets fs), from == greatest, weight p > 0])

place :: Limits -> Key -> Piece -> Partial -> Fragments -> (Maybe ByteString, Fragments)
place limits key piece partial fs
  | copied = (Nothing, fs)
  | overlaps || contradicts = (Nothing, discard)
  | IntMap.size (pieces partial) >= maxPieces limits = (Nothing, discard)
  | size next == Just (arrived next) =
    (Just (B.concat (IntMap.elems (pieces next))), Fragments (Map.delete key (packets fs)) (held fs - arrived partial))
  | otherwise = (Nothing, Fragments (Map.insert key next (packets fs)) (held fs + len))
  where
    start = pieceOffset piece
    len = B.length (pieceBytes piece)
    end = start + len
    before = IntMap.lookupLT end (pieces partial)
    -- The last fragment is the only one that ends where the packet ends.
    copied = IntMap.lookup start (pieces partial) == Just (pieceBytes piece) && pieceMore piece == (size partial /= Just end)
    overlaps = maybe False (\(at, b) -> at + B.length b > start) before
    furthest = maybe 0 (\(at, b) -> at + B.length b) (IntMap.lookupMax (pieces partial))
    contradicts = case size partial of
      Just n -> end > n || not (pieceMore piece)
      Nothing -> not (pieceMore piece) && furthest > end
    next =
      partial
        { size = if pieceMore piece then size partial else Just end,
          pieces = IntMap.insert start (pieceBytes piece) (pieces partial),
          arrived = arrived partial + len,
          firstHeaders = if start == 0 && B.length (pieceHeaders piece) <= mostHeaders then B.copy (pieceHeaders piece) else firstHeaders partial
        }
    discard = Fragments (Map.insert key (Partial (expires partial) True Nothing IntMap.empty 0 B.empty) (packets fs)) (held fs - arrived partial)

-- | Discard incomplete packets whose lifetime is over. Returns those whose sender is to be told. O(incomplete packets),
-- of which there are few.
expireFragments :: Int64 -> Fragments -> ([Late], Fragments)
expireFragments now fs
  | Map.null old = ([], fs)
  | otherwise = ([Late k (firstHeaders p) b | (k, p) <- Map.toList old, not (B.null (firstHeaders p)), Just b <- [IntMap.lookup 0 (pieces p)]], Fragments kept (held fs - sum (arrived <$> old)))
  where
    (old, kept) = Map.partition ((<= now) . expires) (packets fs)

-- | Whether no packet is incomplete.
noneIncomplete :: Fragments -> Bool
noneIncomplete = Map.null . packets
