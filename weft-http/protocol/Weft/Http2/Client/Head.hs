{-# LANGUAGE OverloadedStrings #-}

-- |
-- Converts decoded fields to the head of a response: RFC 9113, 8.3.2. Pure.
module Weft.Http2.Client.Head
  ( ResponseHead (..),
    readResponse,
    readTrailers,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import qualified Data.CaseInsensitive.Unsafe as CI (unsafeMk)
import Data.Char (isDigit)
import Network.HTTP.Types (ResponseHeaders)
import Weft.Http2.Request (contentLength, readTrailers)

-- | The head of a response.
data ResponseHead = ResponseHead
  { -- | From 100 to 999.
    responseCode :: !Int,
    responseHeaders :: !ResponseHeaders,
    responseLength :: !(Maybe Int)
  }
  deriving (Eq, Show)

-- | The head, or what is wrong with it: the response is malformed then (section 8.1.1).
readResponse :: [(ByteString, ByteString)] -> Either String ResponseHead
readResponse fields = do
  code <- case pseudo of
    [(":status", value)] | Just code <- statusCode value -> Right code
    [(":status", _)] -> Left "the status"
    [] -> Left "no status"
    _ -> Left "another pseudo-field than one status"
  -- A pseudo-field behind others is no token.
  readTrailers regular
  size <- contentLength [value | ("content-length", value) <- regular]
  -- The names were checked: they are in lower case.
  pure (ResponseHead code [(CI.unsafeMk name, value) | (name, value) <- regular] size)
  where
    (pseudo, regular) = span (B.isPrefixOf ":" . fst) fields

-- | Three digits (RFC 9110, 15).
statusCode :: ByteString -> Maybe Int
statusCode value
  | B.length value == 3, B8.all isDigit value, Just (code, _) <- B8.readInt value, code >= 100 = Just code
  | otherwise = Nothing
