-- |
-- Lines on standard error, for programs and for what the packages have to report. Any thread may call these functions.
--
-- 'System.IO.hPutStrLn' throws if the locale cannot encode a character, as of a file's name in a program that runs with
-- @LC_ALL=C@. It writes each character by a system call of its own, as standard error has no buffer, so that the lines
-- of several threads mingle.
module Weft.StandardError
  ( reportLine,
    encoded,
  )
where

import Control.Exception (IOException, try)
import Control.Monad (void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (charUtf8, toLazyByteString, word8)
import qualified Data.ByteString.Lazy as L
import Data.Char (GeneralCategory (Surrogate), generalCategory, ord)
import System.IO (hFlush, stderr)

-- | Write a line by one write(2), in the form of 'encoded'. Throws no 'IOException': if standard error cannot be
-- written, there is no other place for the line.
reportLine :: String -> IO ()
reportLine text = void (try (B.hPut stderr (encoded (text <> "\n")) >> hFlush stderr) :: IO (Either IOException ()))

-- | A text in UTF-8, in any locale. Where a character stands for a byte that the locale could not decode, as in names
-- of files, it becomes this byte again ('GHC.IO.Encoding.mkTextEncoding', @\/\/ROUNDTRIP@). Other halves of surrogate
-- pairs, which are no text, become U+FFFD.
encoded :: String -> ByteString
encoded = L.toStrict . toLazyByteString . foldMap encode
  where
    encode c
      | generalCategory c /= Surrogate = charUtf8 c
      | c >= '\xDC80' && c <= '\xDCFF' = word8 (fromIntegral (ord c - 0xDC00))
      | otherwise = charUtf8 '\xFFFD'
