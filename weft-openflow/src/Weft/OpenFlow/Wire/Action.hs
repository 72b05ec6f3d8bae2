-- |
-- Actions and instructions on the wire (1.0.1, 5.2.4; 1.3.5, 7.2.4 and 7.2.5).
module Weft.OpenFlow.Wire.Action
  ( putActions,
    getActions,
    putInstructions,
    getInstructions,
  )
where

import Control.Monad (when)
import Data.Bits (shiftL, shiftR, testBit, (.&.))
import qualified Data.ByteString as B
import Data.Word (Word16)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Match
import Weft.OpenFlow.Wire.Put

-- | Write a list of actions.
putActions :: Version -> [Action] -> Put
putActions V10 = putAll putAction10
putActions V13 = putAll putAction13

-- | Read actions until the input ends.
getActions :: Version -> Get [Action]
getActions version = blame BadActionLength . untilEnd $ do
  kind <- getWord16
  len <- eights
  isolate (len - 4) (body kind)
  where
    body = case version of
      V10 -> getAction10
      V13 -> getAction13

-- | Read the length of an action or an instruction: a multiple of 8.
eights :: Get Int
eights = do
  len <- fromIntegral <$> getWord16
  len <$ when (len < 8 || len .&. 7 /= 0) (bad BadLength)

-- 1.0 -----------------------------------------------------------------------------------

putAction10 :: Action -> Put
putAction10 action = case action of
  Output port n -> header 0 8 <> putPortNo10 port <> putWord16 n
  SetField (VlanId (Tagged v)) -> putUnless (v > 0xfff) (header 1 8 <> putWord16 v <> putZeros 2)
  SetField (VlanPriority n) -> putUnless (n > 7) (header 2 8 <> putWord8 n <> putZeros 3)
  PopVlan -> header 3 8 <> putZeros 4
  SetField (EthSrc m) -> header 4 16 <> putMac m <> putZeros 6
  SetField (EthDst m) -> header 5 16 <> putMac m <> putZeros 6
  SetField (Ipv4Src a mask) -> putUnless (mask /= exactIp) (header 6 8 <> putWord32 a)
  SetField (Ipv4Dst a mask) -> putUnless (mask /= exactIp) (header 7 8 <> putWord32 a)
  SetField (IpDscp n) -> putUnless (n > 63) (header 8 8 <> putWord8 (n `shiftL` 2) <> putZeros 3)
  SetField (TcpSrc n) -> header 9 8 <> putWord16 n <> putZeros 2
  SetField (UdpSrc n) -> header 9 8 <> putWord16 n <> putZeros 2
  SetField (TcpDst n) -> header 10 8 <> putWord16 n <> putZeros 2
  SetField (UdpDst n) -> header 10 8 <> putWord16 n <> putZeros 2
  Enqueue port q -> header 11 16 <> putPortNo10 port <> putZeros 6 <> putWord32 q
  OtherAction kind s -> putOther kind s
  _ -> unencodable

-- | Read the body of an action of the given type. An action of 1.0 that sets a port has no protocol, and is decoded as
-- one for TCP.
getAction10 :: Word16 -> Get Action
getAction10 kind = case kind of
  0 -> Output <$> getPort V10 <*> getWord16
  1 -> SetField . VlanId . Tagged . (.&. 0xfff) <$> getWord16
  2 -> SetField . VlanPriority . (.&. 7) <$> getWord8
  3 -> pure PopVlan
  4 -> SetField . EthSrc <$> getMac
  5 -> SetField . EthDst <$> getMac
  6 -> SetField . (`Ipv4Src` exactIp) <$> getWord32
  7 -> SetField . (`Ipv4Dst` exactIp) <$> getWord32
  8 -> SetField . IpDscp . (`shiftR` 2) <$> getWord8
  9 -> SetField . TcpSrc <$> getWord16
  10 -> SetField . TcpDst <$> getWord16
  11 -> Enqueue <$> getPort V10 <* skip 6 <*> getWord32
  _ -> OtherAction kind <$> getRest

-- 1.3 -----------------------------------------------------------------------------------

putAction13 :: Action -> Put
putAction13 action = case action of
  Output (PortNo port) n -> putRaw 16 $ \p -> poke32 p 0 16 >> poke32 p 4 port >> poke16 p 8 n >> poke16 p 10 0 >> poke32 p 12 0
  SetField field -> putUnless (not (settable field)) (putPadded 25 (putField field))
  PopVlan -> header 18 8 <> putZeros 4
  PushVlan t -> header 17 8 <> putWord16 t <> putZeros 2
  Group n -> header 22 8 <> putWord32 n
  SetQueue n -> header 21 8 <> putWord32 n
  OtherAction kind s -> putOther kind s
  Enqueue _ _ -> unencodable
  where
    -- No mask, and neither IN_PORT, IN_PHY_PORT nor METADATA (1.3.5, 7.2.5). A tag is removed by another action.
    settable field = case field of
      InPort _ -> False
      VlanId Untagged -> False
      Ipv4Src _ mask -> mask == exactIp
      Ipv4Dst _ mask -> mask == exactIp
      OtherField c f _ -> not (testBit f 0) && not (c == 0x8000 && f `shiftR` 1 <= 2)
      _ -> True
    -- The length counts the padding.
    putPadded kind body = case putSize body of
      Nothing -> unencodable
      Just n -> padTo8 (header kind (fromIntegral ((n + 11) `div` 8 * 8)) <> body)

getAction13 :: Word16 -> Get Action
getAction13 kind = case kind of
  0 -> Output <$> getPort V13 <*> getWord16 <* skip 6
  17 -> PushVlan <$> getWord16
  18 -> pure PopVlan
  21 -> SetQueue <$> getWord32
  22 -> Group <$> getWord32
  25 -> SetField <$> blame BadSetLength getField
  _ -> OtherAction kind <$> getRest

-- Both ----------------------------------------------------------------------------------

header :: Word16 -> Word16 -> Put
header kind len = putWord16 kind <> putWord16 len
{-# INLINE header #-}

putOther :: Word16 -> B.ByteString -> Put
putOther kind s = putUnless (n > 0xfff0 || n .&. 7 /= 0 || n < 8) (header kind (fromIntegral n) <> putBytes s)
  where
    n = B.length s + 4

-- Instructions --------------------------------------------------------------------------

-- | Write the instructions of a flow; in 1.0, its actions.
putInstructions :: Version -> [Instruction] -> Put
putInstructions V10 instructions = case instructions of
  [] -> mempty
  [ApplyActions actions] -> putActions V10 actions
  _ -> unencodable
putInstructions V13 instructions = putAll putInstruction instructions

putInstruction :: Instruction -> Put
putInstruction instruction = case instruction of
  GotoTable t -> header 1 8 <> putWord8 t <> putZeros 3
  WriteMetadata v mask -> header 2 24 <> putZeros 4 <> putWord64 v <> putWord64 mask
  WriteActions actions -> acting 3 actions
  ApplyActions actions -> acting 4 actions
  ClearActions -> header 5 8 <> putZeros 4
  OtherInstruction kind s -> putOther kind s
  where
    acting kind actions = case putActions V13 actions of
      body -> case putSize body of
        Nothing -> unencodable
        Just n -> putUnless (n > 0xfff0) (header kind (fromIntegral (n + 8)) <> putZeros 4 <> body)

-- | Read the instructions of a flow, or in 1.0 its actions, until the input ends.
getInstructions :: Version -> Get [Instruction]
getInstructions V10 = do
  actions <- getActions V10
  pure [ApplyActions actions | not (null actions)]
getInstructions V13 = blame BadInstructionLength . untilEnd $ do
  kind <- getWord16
  len <- eights
  isolate (len - 4) (getInstruction kind)

getInstruction :: Word16 -> Get Instruction
getInstruction kind = case kind of
  1 -> GotoTable <$> getWord8
  2 -> WriteMetadata <$> (skip 4 *> getWord64) <*> getWord64
  3 -> WriteActions <$> (skip 4 *> getActions V13)
  4 -> ApplyActions <$> (skip 4 *> getActions V13)
  5 -> pure ClearActions
  _ -> OtherInstruction kind <$> getRest
