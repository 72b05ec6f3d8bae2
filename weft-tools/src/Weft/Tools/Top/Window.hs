{-# LANGUAGE CApiFFI #-}

-- |
-- Description : The size of the terminal's window
--
-- Asks the kernel for the size of the standard output's terminal (ioctl_tty(2)), again for each screen, since it can
-- change.
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

-- | Lines and columns; 'Nothing' if there is no terminal, or if it does not know its size.
windowSize :: IO (Maybe (Int, Int))
windowSize = allocaArray 4 $ \size -> do
  failed <- c_ioctl 1 requestWindowSize size
  found <- peekArray 2 size
  pure $ case found of
    [height, width] | failed == 0, height > 0, width > 0 -> Just (fromIntegral height, fromIntegral width)
    _ -> Nothing
