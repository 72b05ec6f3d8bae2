-- |
-- Reading and writing descriptors that can be waited for (pipes, terminals,
-- character devices). A thread is parked while the kernel says @EAGAIN@. Errors are 'IOError's that name the function.
--
-- @since 0.1.0
module Weft.Hybrid.Pipe
  ( readBuf,
    writeBuf,
    writeAllBuf,
    readBytes,
    writeBytes,
  )
where

import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (create)
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeUseAsCStringLen)
import Data.Word (Word8)
import Foreign.C.Error (Errno (..), eAGAIN, eINTR, getErrno)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import System.Posix.Types (CSsize (..))
import Weft.Hybrid.Descriptor
import Weft.Hybrid.DescriptorTable (isPiecemeal)
import Weft.Hybrid.Monad
import Weft.Socket.Scratch

foreign import ccall unsafe "read" cRead :: CInt -> Ptr Word8 -> CSize -> IO CSsize

foreign import ccall unsafe "write" cWrite :: CInt -> Ptr Word8 -> CSize -> IO CSsize

-- | Read what is there, at most the given number of bytes; wait until there is some. Returns the number of bytes; 0
-- at the end.
readBuf :: Descriptor -> Ptr Word8 -> Int -> Hybrid Int
readBuf d !p !n = perform (Kind "Weft.Hybrid.readBuf" Reading) (sourceOf d) $ \fd ->
  transfer d (\got -> got > 0 && got < n) (cRead fd p (fromIntegral n))

-- | Write as much as the kernel takes at once; wait until it takes some. Returns the number of bytes.
writeBuf :: Descriptor -> Ptr Word8 -> Int -> Hybrid Int
writeBuf d !p !n = perform (Kind "Weft.Hybrid.writeBuf" Writing) (sourceOf d) $ \fd ->
  transfer d (< n) (cWrite fd p (fromIntegral n))

-- | Write all of a piece of memory.
writeAllBuf :: Descriptor -> Ptr Word8 -> Int -> Hybrid ()
writeAllBuf d p n = unless (n <= 0) $ do
  written <- writeBuf d p n
  writeAllBuf d (p `plusPtr` written) (n - written)

-- | Make the call and decode its result. The predicate says, for the number of bytes, whether a further call would have
-- to wait: a pipe that gives or takes less than was asked for has no more for now. Other descriptors ('isPiecemeal')
-- are tried once more.
transfer :: Descriptor -> (Int -> Bool) -> IO CSsize -> IO (Attempt Int)
transfer d drained act = do
  r <- act
  if r >= 0
    then do
      let done = fromIntegral r
      more <- if drained done then isPiecemeal d else pure True
      pure $! if more then Done done else Drained done
    else do
      e@(Errno code) <- getErrno
      if e == eAGAIN then pure NotYet else if e == eINTR then transfer d drained act else pure (Failed code)
{-# INLINE transfer #-}

-- | Read what is there, at most the given number of bytes and at most 64 KiB; wait until there is some. Empty at the
-- end.
readBytes :: Descriptor -> Int -> Hybrid ByteString
readBytes d !n = perform (Kind "Weft.Hybrid.readBytes" Reading) (sourceOf d) $ \fd -> withScratch $ \p -> do
  let room = max 1 (min n scratchSize)
  r <- transfer d (\got -> got > 0 && got < room) (cRead fd p (fromIntegral room))
  case r of
    Done got -> Done <$> copied p got
    Drained got -> Drained <$> copied p got
    Failed e -> pure (Failed e)
    NotYet -> pure NotYet
  where
    copied _ 0 = pure B.empty
    copied p got = B.create got (\to -> copyBytes to p got)

-- | Write all of a string.
writeBytes :: Descriptor -> ByteString -> Hybrid ()
writeBytes d bytes = unless (B.null bytes) $ do
  written <- perform (Kind "Weft.Hybrid.writeBytes" Writing) (sourceOf d) $ \fd ->
    B.unsafeUseAsCStringLen bytes $ \(p, n) ->
      transfer d (< n) (cWrite fd (castPtr p) (fromIntegral n))
  writeBytes d (B.unsafeDrop written bytes)
