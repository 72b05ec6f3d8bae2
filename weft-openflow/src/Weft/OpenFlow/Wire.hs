-- |
-- The codec of OpenFlow 1.0 and 1.3: reading is total, writing knows the size beforehand. Pure, but for 'pokePut'.
--
-- A stream is cut into messages by 'nextMessage', which reads headers only; 'decode' makes a message of one, and
-- 'encode' or 'putMessage' the bytes of one.
--
-- @since 0.1.0
module Weft.OpenFlow.Wire
  ( -- * Reading
    nextMessage,
    Framing (..),
    Header (..),
    headerSize,
    readHeader,
    decode,
    decodeBody,
    decodePacketIn,
    typePacketIn,
    Problem (..),
    problemError,

    -- * Writing
    encode,
    putMessage,
    putHello,
    Put,
    putSize,
    pokePut,
    runPut,
  )
where

import Weft.OpenFlow.Wire.Decode
import Weft.OpenFlow.Wire.Encode
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Header
import Weft.OpenFlow.Wire.Put
