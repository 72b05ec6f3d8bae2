-- |
-- The page that draws the network: @data\/index.html@, which @cbits\/page.c@ embeds in the program.
module Weft.OpenFlow.Northbound.Page
  ( page,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Unsafe as B
import Data.Word (Word8)
import Foreign.Ptr (Ptr, castPtr, minusPtr)
import System.IO.Unsafe (unsafePerformIO)

-- | HTML in UTF-8. It points to constant memory.
page :: ByteString
page = unsafePerformIO (B.unsafePackCStringLen (castPtr pageStart, pageEnd `minusPtr` pageStart))
{-# NOINLINE page #-}

foreign import ccall "&weft_openflow_page" pageStart :: Ptr Word8

foreign import ccall "&weft_openflow_page_end" pageEnd :: Ptr Word8
