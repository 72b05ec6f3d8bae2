-- |
-- From header blocks to requests: HPACK's decoder as "Weft.Http2.Core" uses it. Pure.
--
-- Clients that ask for one thing again and again, as callers of an RPC do, send one block again and again, of
-- references to the table. Such a block is decoded, and read as a request, once.
module Weft.Http2.Decoding
  ( decoding,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Weft.Http2.Core.Types (Decode (..), Fields, fieldsOf)
import Weft.Http2.Frame (ErrorCode (..))
import Weft.Http2.Hpack.Decoder

-- | The last block and its fields, if it has left the table as it was.
data Last = Last !ByteString !Fields | NoLast

-- | A decoder with an empty table of 4,096 bytes, given the limit on a list of fields in bytes: fields beyond it are
-- counted and not kept.
decoding :: Int -> Decode
decoding most = from NoLast (newDecoder 4096)
  where
    from before decoder = state
      where
        state = Decode $ \block -> case before of
          Last same fields | same == block -> Right (fields, state)
          _ -> case decodeBlock most block decoder of
            Left fault -> Left (CompressionError, describe fault)
            Right (Decoded list size, next) ->
              let !fields = fieldsOf list size
                  !after'
                    | sameTable decoder next && B.length block <= mostKept = Last (B.copy block) fields
                    | otherwise = NoLast
               in Right (fields, from after' next)

-- | The largest block that is kept, in bytes. With what it refers to in the table, it is a small part of a connection.
mostKept :: Int
mostKept = 256
