-- |
-- From the bytes that come, in pieces of any size, to whole frames (RFC 9113, 4.1): what is kept until a frame is
-- whole. Pure.
--
-- A peer can make it hold one frame, of the largest size that is accepted, and as many pieces as that has bytes. Pieces
-- are put together once for each frame, however many they are.
module Weft.Http2.Pieces
  ( Pieces,
    noPieces,
    piecesSize,
    piecesCount,
    joinPiece,
    keepRest,
    frameWanted,
    mostPayload,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Weft.Http2.Frame

-- | Bytes that form no whole frame yet, the last piece first; their number, and how many it takes at least.
data Pieces = Pieces [ByteString] !Int !Int

-- | None; so many bytes are wanted.
noPieces :: Int -> Pieces
noPieces = Pieces [] 0

-- | How many bytes are kept.
piecesSize :: Pieces -> Int
piecesSize (Pieces _ have _) = have
{-# INLINE piecesSize #-}

-- | In how many pieces. For tests.
piecesCount :: Pieces -> Int
piecesCount (Pieces pieces _ _) = length pieces

-- | Add a piece: all bytes, if there are as many as are wanted; otherwise the pieces, with a copy of the last one.
joinPiece :: ByteString -> Pieces -> Either Pieces ByteString
joinPiece bytes (Pieces pieces have wanted)
  | size < wanted = Left (Pieces (B.copy bytes : pieces) size wanted)
  | null pieces = Right bytes
  | otherwise = Right (B.concat (reverse (bytes : pieces)))
  where
    size = have + B.length bytes
{-# INLINE joinPiece #-}

-- | A copy of the bytes behind the last whole frame, of which so many are wanted.
keepRest :: Int -> ByteString -> Pieces
keepRest wanted bytes = Pieces [B.copy bytes | not (B.null bytes)] (B.length bytes) wanted

-- | How many bytes are wanted of the frame that begins so. Of one whose header has not come, the header; of one that is
-- too long also, since that is an error already.
frameWanted :: ByteString -> Int
frameWanted bytes = case parseFrameHeader bytes of
  Just header | frameLength header <= mostPayload -> frameHeaderSize + frameLength header
  _ -> frameHeaderSize
{-# INLINE frameWanted #-}

-- | The largest payload that is accepted: the protocol's default.
mostPayload :: Int
mostPayload = 16384
