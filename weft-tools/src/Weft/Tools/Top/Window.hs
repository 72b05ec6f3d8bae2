{-# LANGUAGE CApiFFI #-}

-- |
-- Description : The size of the terminal's window
--
-- As the kernel knows it of standard output (ioctl_tty(2)), asked again for each screen, since a window changes.
module Weft.Tools.Top.Window
  ( windowSize,
  )
where

import Data.Word (Word16)
import Foreign (Ptr, allocaArray, peekArray)
import Foreign.C (CInt (..), CULong (..))

foreign import capi unsafe "sys/ioctl.h ioctl"
  c_ioctl :: CInt -> CULong -> Ptr Word16 -> IO CInt

foreign import capi "sys/ioctl.h value TIOCGWINSZ"
  requestWindowSize :: CULong

-- | Lines and columns; 'Nothing' where there is no terminal, or one that does not know.
windowSize :: IO (Maybe (Int, Int))
windowSize = allocaArray 4 $ \size -> do
  failed <- c_ioctl 1 requestWindowSize size
  found <- peekArray 2 size
  pure $ case found of
    [height, width] | failed == 0, height > 0, width > 0 -> Just (fromIntegral height, fromIntegral width)
    _ -> Nothing
