-- |
-- The codec of OpenFlow 1.0 and 1.3. Decoding is total. The size of a message is known before it is encoded. Pure,
-- except for 'pokePut'.
--
-- 'nextMessage' splits a stream into messages and reads only their headers. 'decode' decodes a message; 'encode' and
-- 'putMessage' encode one.
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
    typeStatsReply,
    Problem (..),
    problemError,

    -- * Writing
    encode,
    putMessage,
    putHello,
    Put,
    putSize,
    pokePut,
    tryRunPut,
  )
where

import Weft.OpenFlow.Wire.Decode
import Weft.OpenFlow.Wire.Encode
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Header
import Weft.OpenFlow.Wire.Put
