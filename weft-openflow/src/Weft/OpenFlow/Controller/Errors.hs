-- |
-- The ERROR messages that answer messages of a switch. Pure.
module Weft.OpenFlow.Controller.Errors
  ( errorFor,
    typeError,
  )
where

import Data.ByteString (ByteString)
import Data.Word (Word8)
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire

-- | The type of ERROR, in both versions.
typeError :: Word8
typeError = 1

-- | The ERROR message for a message that was not understood, with its first 64 bytes. Nothing for an ERROR: two sides
-- that do not understand each other's errors would answer each other without end.
errorFor :: Version -> Header -> ByteString -> Problem -> Put
errorFor version h bytes problem
  | headerType h == typeError = mempty
  | otherwise = putMessage version (headerXid h) (problemError version problem bytes)
