-- |
-- The port of each host, by its address: an immutable table that is read for every packet and seldom changed.
--
-- Nearly all entries are in one array of unboxed words, a hash table with open addressing. A lookup touches one or
-- two cache lines; in a tree of a thousand addresses it touches a dozen. Entries that were inserted since the array
-- was built are in a small tree beside it. When the tree reaches an eighth of the array's size (and at least
-- 'leastFresh'), a new array is built of both, so the amortised cost of an insertion is eight copies of an entry.
--
-- Senders of packets choose the addresses, so many of them may have the same hash. An entry that would be more than
-- 'mostProbes' away from its place stays in the tree: a lookup is bounded by that number and the depth of a tree.
module Weft.OpenFlow.AddressTable
  ( AddressTable,
    emptyTable,
    lookupAddress,
    insertAddress,
    filterPorts,
    tableSize,
  )
where

import Control.Monad (foldM)
import Control.Monad.ST (ST, runST)
import Data.Bits (countLeadingZeros, finiteBitSize, unsafeShiftL, unsafeShiftR, (.&.), (.|.))
import qualified Data.IntMap.Strict as IntMap
import Data.Primitive.ByteArray
import Data.Word (Word64)
import Weft.OpenFlow.Types

-- | The ports of addresses.
data AddressTable = AddressTable
  { -- | Words of 48 bits of an address and 16 of its port, or 0 in a free place.
    tableArray :: !ByteArray,
    -- | How far the hash of an address is shifted to be a place of the array.
    tableShift :: !Int,
    tableCount :: !Int,
    -- | What the array does not have.
    tableTree :: !(IntMap.IntMap PortNo),
    -- | The number of insertions since the array was built.
    tableFresh :: !Int,
    -- | Whether the tree has addresses that are also in the array. For such an address the tree's entry is the valid
    -- one.
    tableOverriding :: !Bool
  }

-- | The empty table.
emptyTable :: AddressTable
emptyTable = rebuilt 0 IntMap.empty []

-- | The minimum number of insertions before the array is rebuilt.
leastFresh :: Int
leastFresh = 64

-- | The maximum number of places probed for an address.
mostProbes :: Int
mostProbes = 16

-- | The number of addresses.
tableSize :: AddressTable -> Int
tableSize = tableCount

-- | The port of an address.
lookupAddress :: MacAddress -> AddressTable -> Maybe PortNo
lookupAddress (MacAddress m) table
  | tableOverriding table, found@(Just _) <- IntMap.lookup (fromIntegral m) tree = found
  | word /= 0 = Just (portOf word)
  | IntMap.null tree = Nothing
  | otherwise = IntMap.lookup (fromIntegral m) tree
  where
    tree = tableTree table
    word = findWord (tableArray table) (tableShift table) m
{-# INLINE lookupAddress #-}

-- | The word of an address, or 0.
findWord :: ByteArray -> Int -> Word64 -> Word64
findWord array !shift !address = go (placeOf shift address) mostProbes
  where
    mask = sizeofByteArray array `unsafeShiftR` 3 - 1
    go :: Int -> Int -> Word64
    go !i !left
      | word == 0 || left == 0 = 0
      | word `unsafeShiftR` 16 == address = word
      | otherwise = go ((i + 1) .&. mask) (left - 1)
      where
        word = indexByteArray array i :: Word64

portOf :: Word64 -> PortNo
portOf word = PortNo (fromIntegral (word .&. 0xffff))

-- | The first place for an address: the highest bits of its product with 2^64 divided by the golden ratio.
placeOf :: Int -> Word64 -> Int
placeOf shift address = fromIntegral ((address * 0x9e3779b97f4a7c15) `unsafeShiftR` shift)
{-# INLINE placeOf #-}

-- | Set the port of an address.
insertAddress :: MacAddress -> PortNo -> AddressTable -> AddressTable
insertAddress mac@(MacAddress m) port table@AddressTable {tableArray = array, tableShift = shift, tableCount = n}
  | tableFresh table >= max leastFresh (n `div` 8) = rebuilt n' tree' (entries array)
  | otherwise = table {tableCount = n', tableTree = tree', tableFresh = tableFresh table + 1, tableOverriding = overriding}
  where
    tree' = IntMap.insert (fromIntegral m) port (tableTree table)
    n' = maybe (n + 1) (const n) (lookupAddress mac table)
    overriding = tableOverriding table || findWord array shift m /= 0

-- | Keep only the addresses whose port satisfies the predicate.
filterPorts :: (PortNo -> Bool) -> AddressTable -> AddressTable
filterPorts stays table = rebuilt (IntMap.size kept) kept []
  where
    kept = IntMap.filter stays (IntMap.union (tableTree table) inArray)
    inArray = IntMap.fromList [(fromIntegral (w `unsafeShiftR` 16), portOf w) | w <- entries (tableArray table)]

-- | The words of an array.
entries :: ByteArray -> [Word64]
entries array = [w | i <- [0 .. sizeofByteArray array `unsafeShiftR` 3 - 1], let w = indexByteArray array i, w /= 0]

-- | Build a table of the given number of addresses: those of the tree, and those of the words that are not in the tree.
rebuilt :: Int -> IntMap.IntMap PortNo -> [Word64] -> AddressTable
rebuilt n tree old = runST $ do
  slots <- newByteArray (8 * size)
  setByteArray slots 0 size (0 :: Word64)
  kept <- foldM (place slots shift) IntMap.empty ([(k, portOf w) | w <- old, let { k = fromIntegral (w `unsafeShiftR` 16) }, IntMap.notMember k tree] ++ IntMap.toList tree)
  array <- unsafeFreezeByteArray slots
  pure
    AddressTable
      { tableArray = array,
        tableShift = shift,
        tableCount = n,
        tableTree = kept,
        tableFresh = 0,
        tableOverriding = False
      }
  where
    -- At most half of the places are taken.
    bits = max 4 (finiteBitSize n + 1 - countLeadingZeros n)
    shift = 64 - bits
    size = 1 `unsafeShiftL` bits :: Int

-- | Put an entry into the array, or into the tree if the array has no place for it.
place :: MutableByteArray s -> Int -> IntMap.IntMap PortNo -> (Int, PortNo) -> ST s (IntMap.IntMap PortNo)
place slots shift kept (k, port@(PortNo p))
  | p == 0 || p > 0xffff = pure refused
  | otherwise = do
    size <- (`unsafeShiftR` 3) <$> getSizeofMutableByteArray slots
    let go i left
          | left == 0 = pure refused
          | otherwise = do
            word <- readByteArray slots i
            if word == (0 :: Word64)
              then kept <$ writeByteArray slots i ((fromIntegral k `unsafeShiftL` 16) .|. fromIntegral p :: Word64)
              else go ((i + 1) .&. (size - 1)) (left - 1 :: Int)
    go (placeOf shift (fromIntegral k)) mostProbes
  where
    refused = IntMap.insert k port kept
