-- |
-- Where hosts are, by address: an immutable table that is looked at for every packet and seldom changed.
--
-- Nearly all entries are in one array of words without pointers, a hash table with open addressing, so that a look-up
-- touches a line or two of the cache; in a tree of a thousand addresses it touches a dozen. What was inserted since the
-- array was made is in a small tree beside it. When there is an eighth as much of that as in the array (and at least 'leastFresh'), a
-- new array is made of both, so that an insertion costs as much as eight copies of an entry.
--
-- Addresses are chosen by those who send packets. Where many of them fall to the same place, an entry that would be more
-- than 'mostProbes' from its place stays in the tree: a look-up is bounded by that and the depth of a tree.
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

-- | The array, whose words are 48 bits of an address and 16 of its port, or 0 in a free place; what its hash is shifted by;
-- how many addresses there are; the tree; how many insertions there were since the array was made; and whether the tree has addresses that
-- the array has too: then it counts.
data AddressTable = AddressTable !ByteArray !Int !Int !(IntMap.IntMap PortNo) !Int !Bool

-- | No addresses.
emptyTable :: AddressTable
emptyTable = rebuilt 0 IntMap.empty []

-- | Insertions that the tree takes at least.
leastFresh :: Int
leastFresh = 64

-- | Places that are looked at for an address.
mostProbes :: Int
mostProbes = 16

-- | How many addresses.
tableSize :: AddressTable -> Int
tableSize (AddressTable _ _ n _ _ _) = n

-- | The port of an address.
lookupAddress :: MacAddress -> AddressTable -> Maybe PortNo
lookupAddress (MacAddress m) (AddressTable array shift _ tree _ overriding)
  | overriding, found@(Just _) <- IntMap.lookup (fromIntegral m) tree = found
  | word /= 0 = Just (portOf word)
  | IntMap.null tree = Nothing
  | otherwise = IntMap.lookup (fromIntegral m) tree
  where
    word = findWord array shift m
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

-- | Where an address belongs: the highest bits of its product with 2^64 divided by the golden ratio.
placeOf :: Int -> Word64 -> Int
placeOf shift address = fromIntegral ((address * 0x9e3779b97f4a7c15) `unsafeShiftR` shift)
{-# INLINE placeOf #-}

-- | An address is at this port now.
insertAddress :: MacAddress -> PortNo -> AddressTable -> AddressTable
insertAddress mac@(MacAddress m) port table@(AddressTable array shift n tree fresh overriding)
  | fresh >= max leastFresh (n `div` 8) = rebuilt n' tree' (entries array)
  | otherwise = AddressTable array shift n' tree' (fresh + 1) (overriding || findWord array shift m /= 0)
  where
    tree' = IntMap.insert (fromIntegral m) port tree
    n' = maybe (n + 1) (const n) (lookupAddress mac table)

-- | Only the addresses at ports for which this holds.
filterPorts :: (PortNo -> Bool) -> AddressTable -> AddressTable
filterPorts stays (AddressTable array _ _ tree _ _) = rebuilt (IntMap.size kept) kept []
  where
    kept = IntMap.filter stays (IntMap.union tree (IntMap.fromList [(fromIntegral (w `unsafeShiftR` 16), portOf w) | w <- entries array]))

-- | The words of an array.
entries :: ByteArray -> [Word64]
entries array = [w | i <- [0 .. sizeofByteArray array `unsafeShiftR` 3 - 1], let w = indexByteArray array i, w /= 0]

-- | So many addresses: those of the tree, and those of these words that the tree does not have.
rebuilt :: Int -> IntMap.IntMap PortNo -> [Word64] -> AddressTable
rebuilt n tree old = runST $ do
  slots <- newByteArray (8 * size)
  setByteArray slots 0 size (0 :: Word64)
  kept <- foldM (place slots shift) IntMap.empty ([(k, portOf w) | w <- old, let { k = fromIntegral (w `unsafeShiftR` 16) }, IntMap.notMember k tree] ++ IntMap.toList tree)
  array <- unsafeFreezeByteArray slots
  pure (AddressTable array shift n kept 0 False)
  where
    -- At most half of the places are taken.
    bits = max 4 (finiteBitSize n + 1 - countLeadingZeros n)
    shift = 64 - bits
    size = 1 `unsafeShiftL` bits :: Int

-- | Put an entry into the array, or into the tree where that has no place for it.
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
