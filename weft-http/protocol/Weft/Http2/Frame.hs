{-# LANGUAGE OverloadedStrings #-}

-- |
-- HTTP\/2 frames as bytes: RFC 9113, sections 4 and 6. Pure; does not interpret the frames.
--
-- @since 0.1.0
module Weft.Http2.Frame
  ( -- * Headers of frames
    FrameHeader (..),
    frameHeaderSize,
    parseFrameHeader,
    frame,
    frameHead,

    -- * Types
    typeData,
    typeHeaders,
    typePriority,
    typeReset,
    typeSettings,
    typePushPromise,
    typePing,
    typeGoAway,
    typeWindowUpdate,
    typeContinuation,
    typePriorityUpdate,

    -- * Flags
    flagEndStream,
    flagAck,
    flagEndHeaders,
    flagPadded,
    hasFlag,

    -- * Payloads
    unpad,
    withoutPriority,
    word32,
    parseSettings,
    settingsPayload,
    headerFrames,

    -- * Errors
    ErrorCode (..),
    errorNumber,

    -- * The beginning
    connectionPreface,
  )
where

import Data.Bits
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (unsafeCreate)
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeIndex, unsafeTake)
import Data.Word (Word16, Word32, Word8)
import Foreign.Storable (pokeByteOff)

-- | Length of the payload, type, flags, stream.
data FrameHeader = FrameHeader
  { frameLength :: !Int,
    frameType :: !Word8,
    frameFlags :: !Word8,
    frameStream :: !Int
  }
  deriving (Eq, Show)

-- | Bytes before the payload.
frameHeaderSize :: Int
frameHeaderSize = 9

-- | The header of a frame; 'Nothing' if there are fewer than nine bytes.
parseFrameHeader :: ByteString -> Maybe FrameHeader
parseFrameHeader bytes
  | B.length bytes < frameHeaderSize = Nothing
  | otherwise = Just (FrameHeader (byte 0 `shiftL` 16 .|. byte 1 `shiftL` 8 .|. byte 2) (B.unsafeIndex bytes 3) (B.unsafeIndex bytes 4) stream)
  where
    byte = fromIntegral . B.unsafeIndex bytes
    stream = (byte 5 .&. 0x7f) `shiftL` 24 .|. byte 6 `shiftL` 16 .|. byte 7 `shiftL` 8 .|. byte 8

-- | A frame's header of nine bytes: type, flags, stream, length.
frameHead :: Word8 -> Word8 -> Int -> Int -> ByteString
frameHead kind flags stream size = B.unsafeCreate frameHeaderSize $ \p -> do
  let put at byte = pokeByteOff p at (byte :: Word8)
  put 0 (fromIntegral (size `unsafeShiftR` 16))
  put 1 (fromIntegral (size `unsafeShiftR` 8))
  put 2 (fromIntegral size)
  put 3 kind
  put 4 flags
  put 5 (fromIntegral (stream `unsafeShiftR` 24))
  put 6 (fromIntegral (stream `unsafeShiftR` 16))
  put 7 (fromIntegral (stream `unsafeShiftR` 8))
  put 8 (fromIntegral stream)

-- | A frame with its payload.
frame :: Word8 -> Word8 -> Int -> ByteString -> ByteString
frame kind flags stream payload = frameHead kind flags stream (B.length payload) <> payload

-- | The types of frames (RFC 9113, section 6; RFC 9218, section 7.1).
typeData, typeHeaders, typePriority, typeReset, typeSettings, typePushPromise, typePing, typeGoAway, typeWindowUpdate, typeContinuation, typePriorityUpdate :: Word8
typeData = 0
typeHeaders = 1
typePriority = 2
typeReset = 3
typeSettings = 4
typePushPromise = 5
typePing = 6
typeGoAway = 7
typeWindowUpdate = 8
typeContinuation = 9
typePriorityUpdate = 16

-- | The flags of frames (RFC 9113, section 6).
flagEndStream, flagAck, flagEndHeaders, flagPadded, flagPriority :: Word8
flagEndStream = 0x1
flagAck = 0x1
flagEndHeaders = 0x4
flagPadded = 0x8
flagPriority = 0x20

-- | Is the flag set?
hasFlag :: Word8 -> FrameHeader -> Bool
hasFlag flag h = frameFlags h .&. flag /= 0

-- | A payload without its padding (section 6.1); 'Nothing' if there is more padding than payload.
unpad :: FrameHeader -> ByteString -> Maybe ByteString
unpad h payload
  | not (hasFlag flagPadded h) = Just payload
  | B.null payload || padding > B.length payload - 1 = Nothing
  | otherwise = Just (B.unsafeTake (B.length payload - 1 - padding) (B.unsafeDrop 1 payload))
  where
    padding = fromIntegral (B.unsafeIndex payload 0)

-- | The payload of HEADERS without its priority, and the stream on which it depends, if any (section 6.2).
withoutPriority :: FrameHeader -> ByteString -> Maybe (Maybe Int, ByteString)
withoutPriority h payload
  | not (hasFlag flagPriority h) = Just (Nothing, payload)
  | B.length payload < 5 = Nothing
  | otherwise = Just (Just (fromIntegral (word32 payload .&. 0x7fffffff)), B.unsafeDrop 5 payload)

-- | The first four bytes; there must be at least four.
word32 :: ByteString -> Word32
word32 bytes = byte 0 `shiftL` 24 .|. byte 1 `shiftL` 16 .|. byte 2 `shiftL` 8 .|. byte 3
  where
    byte = fromIntegral . B.unsafeIndex bytes

-- | The parameters of SETTINGS in their order; 'Nothing' if the length is not a multiple of six.
parseSettings :: ByteString -> Maybe [(Word16, Word32)]
parseSettings bytes
  | B.null bytes = Just []
  | B.length bytes < 6 = Nothing
  | otherwise = ((key, word32 (B.unsafeDrop 2 bytes)) :) <$> parseSettings (B.unsafeDrop 6 bytes)
  where
    key = fromIntegral (B.unsafeIndex bytes 0) `shiftL` 8 .|. fromIntegral (B.unsafeIndex bytes 1)

-- | The payload of SETTINGS.
settingsPayload :: [(Word16, Word32)] -> ByteString
settingsPayload = B.concat . map one
  where
    one (key, value) = B.pack (map fromIntegral [key `shiftR` 8, key] <> map (fromIntegral . shiftR value) [24, 16, 8, 0])

-- | A header block as a HEADERS frame and as many CONTINUATION frames as needed. Arguments: the first frame's flags,
-- the stream, and the largest payload.
headerFrames :: Word8 -> Int -> Int -> ByteString -> [ByteString]
headerFrames flags stream most = go typeHeaders flags
  where
    go kind own bytes
      | B.length bytes <= most = [frameHead kind (own .|. flagEndHeaders) stream (B.length bytes), bytes]
      | otherwise = frameHead kind own stream most : B.unsafeTake most bytes : go typeContinuation 0 (B.unsafeDrop most bytes)

-- | Why a stream or a connection ends: section 7.
data ErrorCode
  = NoError
  | ProtocolError
  | InternalError
  | FlowControlError
  | SettingsTimeout
  | StreamClosed
  | FrameSizeError
  | RefusedStream
  | Cancel
  | CompressionError
  | ConnectError
  | EnhanceYourCalm
  | InadequateSecurity
  | Http11Required
  deriving (Eq, Show, Enum, Bounded)

-- | The number of an error.
errorNumber :: ErrorCode -> ByteString
errorNumber code = B.pack [0, 0, 0, fromIntegral (fromEnum code)]

-- | The first bytes that a client sends: section 3.4.
connectionPreface :: ByteString
connectionPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
