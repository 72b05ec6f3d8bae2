{-# LANGUAGE OverloadedStrings #-}

-- |
-- Compression of files without precompressed variants: which files are worth compressing, and the content codings
-- (brotli, RFC 7932; zstd, RFC 8878; gzip, RFC 1952), by the C libraries of their authors, in pieces.
--
-- Any thread may call these functions.
module Weft.Static.Compress
  ( compressedTypes,
    compressible,
    encodedIn,
  )
where

import Control.Exception (bracket)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCString)
import Data.Char (toLower)
import Data.Word (Word8)
import Foreign.C.Types (CChar, CInt (..), CLong (..), CSize (..))
import Foreign.ForeignPtr (withForeignPtr)
import Foreign.Marshal.Utils (fromBool)
import Foreign.Ptr (Ptr, nullPtr, plusPtr)
import Weft.Static.Folders (Coding)

-- | The media types whose files are worth compressing, as 'compressible' takes them: texts, and some binary formats.
-- Most images, videos, archives and web fonts are compressed already.
compressedTypes :: [ByteString]
compressedTypes =
  [ "text/*",
    "*+xml",
    "*+json",
    "application/javascript",
    "application/json",
    "application/rtf",
    "application/toml",
    "application/vnd.ms-fontobject",
    "application/wasm",
    "application/x-font-otf",
    "application/x-font-ttf",
    "application/x-javascript",
    "application/xml",
    "application/yaml",
    "font/otf",
    "font/ttf",
    "image/bmp",
    "image/x-icon"
  ]

-- | Whether a media type, with or without parameters, is one of these: @type\/*@ stands for all that begin so,
-- @*+suffix@ for all that end so. Case does not matter (RFC 9110, 8.3.1).
compressible :: [ByteString] -> ByteString -> Bool
compressible types = \mediaType -> any (isOne (C.map toLower (C.takeWhile (`notElem` ("; " :: String)) mediaType))) folded
  where
    folded = map (C.map toLower) types
    isOne t pattern'
      | Just suffix <- B.stripPrefix "*" pattern' = suffix `B.isSuffixOf` t
      | Just prefix <- B.stripSuffix "*" pattern' = prefix `B.isPrefixOf` t
      | otherwise = t == pattern'

-- | Contents in a coding; 'Nothing' if that saves less than a tenth, or if there is no memory for it. Each call of the
-- library has 16 KiB, and takes up to some milliseconds, in which other threads run; the action is run between two
-- calls.
--
-- For a MiB it takes up to 14 MiB beside contents and result (zstd; brotli 10, gzip 0.3), outside of GHC's heap.
encodedIn :: Coding -> IO () -> ByteString -> IO (Maybe ByteString)
encodedIn coding between bytes = bracket (cNew (fromIntegral (fromEnum coding)) (fromIntegral size)) cFree $ \encoder ->
  if encoder == nullPtr then pure Nothing else B.mallocByteString room >>= go encoder 0 0
  where
    size = B.length bytes
    room = size * 9 `quot` 10
    go encoder from to out = do
      let count = min 16384 (size - from)
          isLast = from + count == size
      n <- B.unsafeUseAsCString (B.take count (B.drop from bytes)) $ \piece ->
        withForeignPtr out $ \p -> cPut encoder piece (fromIntegral count) (fromBool isLast) (p `plusPtr` to) (fromIntegral (room - to))
      if n < 0
        then pure Nothing
        else
          if isLast
            then pure (Just (B.copy (B.fromForeignPtr out 0 (to + fromIntegral n))))
            else between >> go encoder (from + count) (to + fromIntegral n) out

-- | An encoder of @cbits\/compress.c@.
data Encoder

foreign import ccall unsafe "weft_encoder_new" cNew :: CInt -> CSize -> IO (Ptr Encoder)

foreign import ccall unsafe "weft_encoder_free" cFree :: Ptr Encoder -> IO ()

foreign import ccall safe "weft_encoder_put" cPut :: Ptr Encoder -> Ptr CChar -> CSize -> CInt -> Ptr Word8 -> CSize -> IO CLong
