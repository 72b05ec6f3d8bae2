{-# LANGUAGE RankNTypes #-}

-- |
-- Total parsing of one message: every read checks the length first, and a short or wrong message is a 'Problem', never
-- an exception. Byte strings that a parser returns are parts of its input.
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
    untilEnd,

    -- * Numbers at a place
    byteAt,
    word16At,
    word32At,
    word64At,
    macAt,
  )
where

import Data.Bits (unsafeShiftL, (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (accursedUnutterablePerformIO, toForeignPtr)
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word16, Word32, Word64, Word8, byteSwap16, byteSwap32, byteSwap64)
import Foreign.Storable (Storable (peekByteOff))
import GHC.ByteOrder (ByteOrder (..), targetByteOrder)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Weft.OpenFlow.Message (Message (Error))
import Weft.OpenFlow.Types

-- | Why a message was not understood.
data Problem
  = -- | A version that is not spoken here.
    BadVersion !Word8
  | -- | No message has that type.
    BadType !Word16
  | -- | The message is shorter or longer than its contents.
    BadLength
  | -- | The length of an action does not fit.
    BadActionLength
  | -- | The length of an instruction does not fit.
    BadInstructionLength
  | -- | A match of a type that is not OXM.
    BadMatchType !Word16
  | -- | The length of a match or of one of its fields does not fit.
    BadMatchLength
  | -- | No command of a FLOW_MOD.
    BadCommand !Int
  | -- | No role.
    BadRole !Int
  | -- | No reason of a PORT_STATUS.
    BadReason !Int
  deriving (Eq, Show)

-- | The ERROR message for it, with the first 64 bytes of the message that was not understood (1.0.1, 5.4.4; 1.3.5, 7.4.4).
-- The specifications have no code for a bad reason; Nicira's extension, which Open vSwitch has, does.
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
  (BadRole _, _) -> standard 11 2
  (BadReason _, V10) -> Error 0xb0c2 0 (nicira <> B.pack [0, 1, 2, 5] <> offending)
  (BadReason _, V13) -> Error 0xffff 5 (nicira <> offending)
  where
    standard t code = Error t code offending
    offending = B.take 64 bytes
    nicira = B.pack [0, 0, 0x23, 0x20]

-- | A parser: what it does with the input, when it fails and when it succeeds.
newtype Get a = Get (forall r. ByteString -> (Problem -> r) -> (a -> ByteString -> r) -> r)

instance Functor Get where
  fmap f (Get g) = Get $ \s no yes -> g s no (yes . f)

instance Applicative Get where
  pure a = Get $ \s _ yes -> yes a s
  Get f <*> Get g = Get $ \s no yes -> f s no (\h rest -> g rest no (yes . h))

instance Monad Get where
  Get g >>= k = Get $ \s no yes -> g s no (\a rest -> let Get h = k a in h rest no yes)

-- | Parse; what is left over does not count.
runGet :: Get a -> ByteString -> Either Problem a
runGet (Get g) s = g s Left (\a _ -> Right a)

-- | Give up.
bad :: Problem -> Get a
bad p = Get $ \_ no _ -> no p

-- | Where the length is wrong, it is this problem.
blame :: Problem -> Get a -> Get a
blame p (Get g) = Get $ \s no yes -> g s (no . precisely) yes
  where
    precisely BadLength = p
    precisely other = other

-- | @fixed n f@ reads n bytes. What they are is worked out at once: a number must not keep the input alive.
fixed :: Int -> (ByteString -> a) -> Get a
fixed n f = Get $ \s no yes -> if B.length s < n then no BadLength else let !a = f s in yes a (B.unsafeDrop n s)
{-# INLINE fixed #-}

-- | One byte.
getWord8 :: Get Word8
getWord8 = fixed 1 (byteAt 0)

-- | Two bytes, the highest first, as all numbers in OpenFlow.
getWord16 :: Get Word16
getWord16 = fixed 2 (word16At 0)

-- | Four bytes.
getWord32 :: Get Word32
getWord32 = fixed 4 (word32At 0)

-- | Eight bytes.
getWord64 :: Get Word64
getWord64 = fixed 8 (word64At 0)

-- | Six bytes.
getMac :: Get MacAddress
getMac = fixed 6 (macAt 0)

-- | That many bytes, a part of the input.
getBytes :: Int -> Get ByteString
getBytes n
  | n < 0 = bad BadLength
  | otherwise = fixed n (B.unsafeTake n)

-- | All that is left.
getRest :: Get ByteString
getRest = Get $ \s _ yes -> yes s B.empty

-- | A text in a field of that many bytes, which ends at the first zero byte.
getText :: Int -> Get ByteString
getText n = B.takeWhile (/= 0) <$> getBytes n

-- | Pass over bytes.
skip :: Int -> Get ()
skip n
  | n < 0 = bad BadLength
  | otherwise = fixed n (const ())

-- | How many bytes are left.
remaining :: Get Int
remaining = Get $ \s _ yes -> yes (B.length s) s

-- | Run a parser on exactly the next bytes; what it leaves of them is passed over.
isolate :: Int -> Get a -> Get a
isolate n (Get g) = do
  part <- getBytes n
  Get $ \s no yes -> g part no (\a _ -> yes a s)

-- | One after the other until nothing is left. A parser that takes nothing is a 'BadLength'.
untilEnd :: Get a -> Get [a]
untilEnd g = do
  before <- remaining
  if before == 0
    then pure []
    else do
      a <- g
      after <- remaining
      if after >= before then bad BadLength else (a :) <$> untilEnd g

-- Numbers at a place --------------------------------------------------------------------

-- Note [Reading numbers]. 'B.unsafeIndex' keeps the string alive by @keepAlive#@ (bytestring 0.10.12 with GHC 9.0), for
-- which each byte that is read costs a closure, a box and a call that is not known: a PACKET_IN has 40 such bytes. So
-- numbers are read in one piece, under 'unsafeWithForeignPtr', which is right for what always returns.

-- | A byte at an offset, which must be inside.
byteAt :: Int -> ByteString -> Word8
byteAt = peekAt
{-# INLINE byteAt #-}

-- | Two bytes from an offset on, which must be inside.
word16At :: Int -> ByteString -> Word16
word16At i s = case targetByteOrder of LittleEndian -> byteSwap16 (peekAt i s); BigEndian -> peekAt i s
{-# INLINE word16At #-}

-- | Four bytes from an offset on, which must be inside.
word32At :: Int -> ByteString -> Word32
word32At i s = case targetByteOrder of LittleEndian -> byteSwap32 (peekAt i s); BigEndian -> peekAt i s
{-# INLINE word32At #-}

-- | Eight bytes from an offset on, which must be inside.
word64At :: Int -> ByteString -> Word64
word64At i s = case targetByteOrder of LittleEndian -> byteSwap64 (peekAt i s); BigEndian -> peekAt i s
{-# INLINE word64At #-}

-- | Six bytes from an offset on, which must be inside.
macAt :: Int -> ByteString -> MacAddress
macAt i s = MacAddress ((fromIntegral (word16At i s) `unsafeShiftL` 32) .|. fromIntegral (word32At (i + 2) s))
{-# INLINE macAt #-}

peekAt :: (Storable a) => Int -> ByteString -> a
peekAt i s = case B.toForeignPtr s of
  (p, start, _) -> B.accursedUnutterablePerformIO (unsafeWithForeignPtr p (\at -> peekByteOff at (start + i)))
{-# INLINE peekAt #-}
