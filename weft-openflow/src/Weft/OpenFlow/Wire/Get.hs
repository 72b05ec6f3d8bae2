{-# LANGUAGE RankNTypes #-}

-- |
-- A total parser for one message. Each read checks the length first. A short or wrong message gives a 'Problem',
-- never an exception. Byte strings that a parser returns are slices of its input. Pure.
module Weft.OpenFlow.Wire.Get
  ( -- * Parsers
    Get,
    runGet,
    bad,
    blame,

    -- * Problems
    Problem (..),
    problemError,

    -- * Reading
    getWord8,
    getWord16,
    getWord32,
    getWord64,
    getMac,
    getBytes,
    getRest,
    getText,
    skip,
    remaining,
    isolate,
    exactly,
    untilEnd,
    getEnum,

    -- * Reading at an offset
    macAt,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word16, Word32, Word64, Word8)
import Weft.OpenFlow.Message (Message (Error))
import Weft.OpenFlow.Types
import Weft.Wire.Peek

-- | Why a message was not understood.
data Problem
  = -- | A version that is not supported.
    BadVersion !Word8
  | -- | An unknown message type.
    BadType !Word16
  | -- | The length of the message does not fit its contents.
    BadLength
  | -- | The length of an action does not fit.
    BadActionLength
  | -- | The length of an instruction does not fit.
    BadInstructionLength
  | -- | The type of a match is not OXM.
    BadMatchType !Word16
  | -- | The length of a match or of one of its fields does not fit.
    BadMatchLength
  | -- | An unknown command of a FLOW_MOD.
    BadCommand !Int
  | -- | The length of the field of a SET_FIELD does not fit.
    BadSetLength
  | -- | An unknown command of a GROUP_MOD.
    BadGroupCommand !Int
  | -- | An unknown type of a group.
    BadGroupType !Int
  | -- | The length of a bucket does not fit.
    BadBucket
  | -- | An unknown command of a METER_MOD.
    BadMeterCommand !Int
  | -- | An unknown role.
    BadRole !Int
  | -- | An unknown reason of a PORT_STATUS.
    BadReason !Int
  deriving (Eq, Show)

-- | The ERROR message for a problem, with the first 64 bytes of the message concerned (1.0.1, 5.4.4; 1.3.5, 7.4.4). The
-- specifications have no code for an unknown reason.
problemError :: Version -> Problem -> ByteString -> Message
problemError version problem bytes = case (problem, version) of
  (BadVersion _, _) -> standard 1 0
  (BadType _, _) -> standard 1 1
  (BadLength, _) -> standard 1 6
  (BadActionLength, _) -> standard 2 1
  (BadInstructionLength, _) -> standard 3 7
  (BadMatchType _, _) -> standard 4 0
  (BadMatchLength, _) -> standard 4 1
  (BadCommand _, V10) -> standard 3 4
  (BadCommand _, V13) -> standard 5 6
  (BadSetLength, _) -> standard 2 14
  (BadGroupType _, _) -> standard 6 10
  (BadGroupCommand _, _) -> standard 6 11
  (BadBucket, _) -> standard 6 12
  (BadMeterCommand _, _) -> standard 12 4
  (BadRole _, _) -> standard 11 2
  (BadReason _, V10) -> Error 0xb0c2 0 (nicira <> B.pack [0, 1, 2, 5] <> offending)
  (BadReason _, V13) -> Error 0xffff 5 (nicira <> offending)
  where
    standard t code = Error t code offending
    offending = B.take 64 bytes
    nicira = B.pack [0, 0, 0x23, 0x20]

-- | A parser: a function of the input, a continuation for failure and one for success.
newtype Get a = Get (forall r. ByteString -> (Problem -> r) -> (a -> ByteString -> r) -> r)

instance Functor Get where
  fmap f (Get g) = Get $ \s no yes -> g s no (yes . f)

instance Applicative Get where
  pure a = Get $ \s _ yes -> yes a s
  Get f <*> Get g = Get $ \s no yes -> f s no (\h rest -> g rest no (yes . h))

instance Monad Get where
  Get g >>= k = Get $ \s no yes -> g s no (\a rest -> let Get h = k a in h rest no yes)

-- | Run a parser. Input that it does not read is ignored.
runGet :: Get a -> ByteString -> Either Problem a
runGet (Get g) s = g s Left (\a _ -> Right a)

-- | A parser that fails with a problem.
bad :: Problem -> Get a
bad p = Get $ \_ no _ -> no p

-- | Replace 'BadLength' by another problem.
blame :: Problem -> Get a -> Get a
blame p (Get g) = Get $ \s no yes -> g s (no . precisely) yes
  where
    precisely BadLength = p
    precisely other = other

-- | @fixed n f@ reads n bytes. The result is evaluated at once, so that it does not keep the input alive.
fixed :: Int -> (ByteString -> a) -> Get a
fixed n f = Get $ \s no yes -> if B.length s < n then no BadLength else let !a = f s in yes a (B.unsafeDrop n s)
{-# INLINE fixed #-}

-- | Read one byte.
getWord8 :: Get Word8
getWord8 = fixed 1 (`word8At` 0)

-- | Read two bytes, the highest first, as all numbers in OpenFlow.
getWord16 :: Get Word16
getWord16 = fixed 2 (`word16At` 0)

-- | Read four bytes.
getWord32 :: Get Word32
getWord32 = fixed 4 (`word32At` 0)

-- | Read eight bytes.
getWord64 :: Get Word64
getWord64 = fixed 8 (`word64At` 0)

-- | Read the six bytes of an address.
getMac :: Get MacAddress
getMac = fixed 6 (`macAt` 0)

-- | Read the given number of bytes, as a slice of the input.
getBytes :: Int -> Get ByteString
getBytes n
  | n < 0 = bad BadLength
  | otherwise = fixed n (B.unsafeTake n)

-- | Read the rest of the input.
getRest :: Get ByteString
getRest = Get $ \s _ yes -> yes s B.empty

-- | Read a text in a field of the given size in bytes. The text ends at the first zero byte.
getText :: Int -> Get ByteString
getText n = B.takeWhile (/= 0) <$> getBytes n

-- | Skip that many bytes.
skip :: Int -> Get ()
skip n
  | n < 0 = bad BadLength
  | otherwise = fixed n (const ())

-- | The number of bytes left.
remaining :: Get Int
remaining = Get $ \s _ yes -> yes (B.length s) s

-- | Run a parser on exactly the given number of bytes. Bytes that it does not read are skipped.
isolate :: Int -> Get a -> Get a
isolate n (Get g) = do
  part <- getBytes n
  Get $ \s no yes -> g part no (\a _ -> yes a s)

-- | Run a parser that has to read the whole input. If it leaves bytes, that is a 'BadLength'.
exactly :: Get a -> Get a
exactly g = do
  a <- g
  left <- remaining
  if left == 0 then pure a else bad BadLength

-- | Run a parser repeatedly until the input ends. If it consumes nothing, that is a 'BadLength'.
untilEnd :: Get a -> Get [a]
untilEnd g = do
  before <- remaining
  if before == 0
    then pure []
    else do
      a <- g
      after <- remaining
      if after >= before then bad BadLength else (a :) <$> untilEnd g

-- | A value of an enumeration, numbered from 0; otherwise the problem with this number.
getEnum :: (Enum a, Bounded a) => (Int -> Problem) -> Int -> Get a
getEnum problem n = result
  where
    result
      | n >= 0 && n <= fromEnum (maxBound `asIn` result) = pure (toEnum n)
      | otherwise = bad (problem n)
    asIn :: b -> Get b -> b
    asIn = const

-- Reading at an offset ------------------------------------------------------------------

-- | The six bytes at an offset. All must be within the string.
macAt :: ByteString -> Int -> MacAddress
macAt s i = MacAddress (word48At s i)
{-# INLINE macAt #-}
