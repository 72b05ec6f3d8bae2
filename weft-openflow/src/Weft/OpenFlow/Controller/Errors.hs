-- |
-- The ERROR messages that answer messages of a switch, and their reasons in words. Pure.
module Weft.OpenFlow.Controller.Errors
  ( errorFor,
    problemText,
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

-- | Why a message was not understood, for people.
problemText :: Problem -> String
problemText problem = case problem of
  BadVersion v -> "its version of OpenFlow, " <> show v <> ", is another one"
  BadType _ -> "unknown type"
  BadLength -> "its length does not fit its contents"
  BadActionLength -> "the length of an action does not fit"
  BadInstructionLength -> "the length of an instruction does not fit"
  BadMatchType t -> "the type of a match, " <> show t <> ", is not OXM"
  BadMatchLength -> "the length of a match or of one of its fields does not fit"
  BadCommand n -> "the command " <> show n <> " is unknown"
  BadSetLength -> "the length of the field that an action sets does not fit"
  BadGroupCommand n -> "the command " <> show n <> " for a group is unknown"
  BadGroupType n -> "the type " <> show n <> " of a group is unknown"
  BadBucket -> "the length of a bucket does not fit"
  BadMeterCommand n -> "the command " <> show n <> " for a meter is unknown"
  BadRole n -> "the role " <> show n <> " is unknown"
  BadReason n -> "the reason " <> show n <> " is unknown"
