-- |
-- The state of a connection's field compression (HPACK, RFC 7541), in each direction, for "Weft.Http2.Receive" and those
-- who write header blocks. The rules are in "Weft.Http2.Hpack.Decoder" and "Weft.Http2.Hpack.Encoder", which are pure.
module Weft.Http2.Hpack
  ( Decoder,
    newDecoder,
    decodeFields,
    Decoded (..),
    Encoder,
    newEncoder,
    encodeFields,
    limitEncoder,
  )
where

import Control.Exception (evaluate)
import Data.ByteString (ByteString)
import Data.IORef
import Weft.Http2.Hpack.Decoder (Decoded (..), decodeBlock, describe)
import qualified Weft.Http2.Hpack.Decoder as Decoder
import Weft.Http2.Hpack.Encoder (encodeBlock)
import qualified Weft.Http2.Hpack.Encoder as Encoder

-- | The state of the receiving side. For one thread.
newtype Decoder = Decoder (IORef Decoder.Decoder)

-- | A decoder with a table of 4,096 bytes, the size that peers assume.
newDecoder :: IO Decoder
newDecoder = Decoder <$> newIORef (Decoder.newDecoder defaultTableSize)

-- | The initial value of @SETTINGS_HEADER_TABLE_SIZE@.
defaultTableSize :: Int
defaultTableSize = 4096

-- | The fields of a header block up to the given size in bytes, or the error. After an error the decoder is unusable.
decodeFields :: Decoder -> Int -> ByteString -> IO (Either String Decoded)
decodeFields (Decoder ref) most block = do
  state <- readIORef ref
  case decodeBlock most block state of
    Left fault -> pure (Left (describe fault))
    Right (decoded, state') -> Right decoded <$ (writeIORef ref $! state')

-- | The state of the sending side. For one thread at a time.
newtype Encoder = Encoder (IORef Encoder.Encoder)

-- | An encoder with a table of 4,096 bytes.
newEncoder :: IO Encoder
newEncoder = Encoder <$> newIORef (Encoder.newEncoder defaultTableSize)

-- | Encode fields as a header block, which has to be sent. Their names must be in lower case.
encodeFields :: Encoder -> [(ByteString, ByteString)] -> IO ByteString
encodeFields (Encoder ref) fields = do
  state <- readIORef ref
  (block, state') <- evaluate (encodeBlock fields state)
  block <$ (writeIORef ref $! state')

-- | Limit the table to the given number of bytes, which the peer has set. To be called for each value, in their order.
limitEncoder :: Int -> Encoder -> IO ()
limitEncoder size (Encoder ref) = readIORef ref >>= \state -> writeIORef ref $! Encoder.limitEncoder size state
