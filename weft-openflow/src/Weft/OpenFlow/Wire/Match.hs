-- |
-- Matches on the wire: the structure of 40 bytes of 1.0, and the type-length-value list of 1.3 (OXM), padded to eight
-- bytes. Names and numbers are those of the specifications (1.0.1, 5.2.3; 1.3.5, 7.2.3).
module Weft.OpenFlow.Wire.Match
  ( putMatch,
    getMatch,
    expressible10,
    pokeMatch10,
    matchSize13,
    pokeMatch13,
    putField,
    getField,
    fieldOf,
    fieldFits,
    oxmOf,
    isPrefix,
    putPort,
    getPort,
    putPortNo10,
    portFrom10,
  )
where

import Data.Bits (clearBit, complement, countLeadingZeros, popCount, shiftL, shiftR, testBit, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Maybe (fromMaybe)
import Data.Word (Word16, Word32, Word8)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, minusPtr, plusPtr)
import Foreign.Storable (pokeByteOff)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire.Get
import Weft.OpenFlow.Wire.Put
import Weft.Wire.Peek

-- Ports ---------------------------------------------------------------------------------

-- | Write a port number: two bytes in 1.0, four in 1.3.
putPort :: Version -> PortNo -> Put
putPort V13 (PortNo n) = putWord32 n
putPort V10 p = putPortNo10 p

-- | Write a port number of 1.0. A reserved number is the lower half of the one in 1.3.
putPortNo10 :: PortNo -> Put
putPortNo10 (PortNo n) = putUnless (n >= 0xfff8 && n < 0xfffffff8) (putWord16 (fromIntegral n))
{-# INLINE putPortNo10 #-}

-- | Read a port number.
getPort :: Version -> Get PortNo
getPort V13 = PortNo <$> getWord32
getPort V10 = portFrom10 <$> getWord16

-- | Convert a port number of 1.0.
portFrom10 :: Word16 -> PortNo
portFrom10 n
  | n >= 0xfff8 = PortNo (0xffff0000 .|. fromIntegral n)
  | otherwise = PortNo (fromIntegral n)
{-# INLINE portFrom10 #-}

-- Both versions -------------------------------------------------------------------------

-- | Write a match, with its padding.
putMatch :: Version -> Match -> Put
putMatch V10 m = putMatch10 m
putMatch V13 m = if n < 0 then unencodable else putRaw n (pokeMatch13 m)
  where
    n = matchSize13 m

-- | Read a match, with its padding.
getMatch :: Version -> Get Match
getMatch V10 = getMatch10
getMatch V13 = blame BadMatchLength $ do
  kind <- getWord16
  len <- fromIntegral <$> getWord16
  if kind /= 1 then bad (BadMatchType kind) else pure ()
  fields <- isolate (len - 4) (untilEnd getField)
  fields <$ skip ((-len) `mod` 8)

-- 1.3 -----------------------------------------------------------------------------------

-- | The size of a match of 1.3 in bytes, with its padding; negative if it is unencodable.
matchSize13 :: Match -> Int
matchSize13 m
  | n < 0 || n > 0xfff0 = -1
  | otherwise = (n + 11) .&. complement 7
  where
    n = fieldsSize 0 m

fieldsSize :: Int -> Match -> Int
fieldsSize !n fields = case fields of
  [] -> n
  InPort _ : rest -> fieldsSize (n + 8) rest
  EthDst _ : rest -> fieldsSize (n + 10) rest
  EthSrc _ : rest -> fieldsSize (n + 10) rest
  field : rest -> case putSize (putField field) of
    Just k -> fieldsSize (n + k) rest
    Nothing -> -1

-- | Write a match of 1.3 whose size is not negative.
pokeMatch13 :: Match -> Ptr Word8 -> IO ()
pokeMatch13 m p = do
  poke16 p 0 1
  go m (p `plusPtr` 4)
  where
    go [] q = do
      let n = q `minusPtr` p
      poke16 p 2 (fromIntegral n)
      fillBytes q 0 ((-n) .&. 7)
    go (field : rest) q = case field of
      InPort (PortNo n) -> poke32 q 0 0x80000004 >> poke32 q 4 n >> go rest (q `plusPtr` 8)
      EthDst a -> poke32 q 0 0x80000606 >> pokeMac q 4 a >> go rest (q `plusPtr` 10)
      EthSrc a -> poke32 q 0 0x80000806 >> pokeMac q 4 a >> go rest (q `plusPtr` 10)
      _ -> case putField field of
        bytes -> pokePut bytes q >> go rest (q `plusPtr` fromMaybe 0 (putSize bytes))

-- | Write a field of 1.3: class, number and mask bit, length, payload.
putField :: Field -> Put
putField field = case field of
  InPort (PortNo n) -> putRaw 8 (\p -> poke32 p 0 0x80000004 >> poke32 p 4 n)
  EthDst m -> putRaw 10 (\p -> poke32 p 0 0x80000606 >> pokeMac p 4 m)
  EthSrc m -> putRaw 10 (\p -> poke32 p 0 0x80000806 >> pokeMac p 4 m)
  EthType t -> short 5 t
  VlanId Untagged -> short 6 0
  VlanId (Tagged v) -> putUnless (v > 0xfff) (short 6 (0x1000 .|. v))
  VlanPriority n -> putUnless (n > 7) (byte 7 n)
  IpDscp n -> putUnless (n > 63) (byte 8 n)
  IpProtocol n -> byte 10 n
  Ipv4Src a mask -> address 11 a mask
  Ipv4Dst a mask -> address 12 a mask
  TcpSrc n -> short 13 n
  TcpDst n -> short 14 n
  UdpSrc n -> short 15 n
  UdpDst n -> short 16 n
  IcmpType n -> byte 19 n
  IcmpCode n -> byte 20 n
  OtherField c f s ->
    putUnless (not (fieldFits c f (B.length s))) (putWord16 c <> putWord8 f <> putWord8 (fromIntegral (B.length s)) <> putBytes s)
  where
    header n len = putWord32 (0x80000000 .|. (n `shiftL` 9) .|. len)
    short n v = header n 2 <> putWord16 v
    byte n v = header n 1 <> putWord8 v
    address n a mask
      | mask == exactIp = header n 4 <> putWord32 a
      | otherwise = header n 0x108 <> putWord32 a <> putWord32 mask

-- | Read a field of 1.3. One without a constructor of its own, such as a masked link-layer address, is an
-- 'OtherField'.
getField :: Get Field
getField = do
  c <- getWord16
  f <- getWord8
  len <- fromIntegral <$> getWord8
  if fieldFits c f len then fieldOf c f <$> getBytes len else bad BadLength

-- | Whether the payload of a field, given by its class and its number with mask bit, can have that many bytes. Each
-- field needs some; the sizes of OpenFlow's own ones are given (1.3.5, 7.2.3.7), and a mask has the size of the value.
-- What is behind the number of an experimenter is not known.
fieldFits :: Word16 -> Word8 -> Int -> Bool
fieldFits c f n
  | n <= 0 || n > 255 = False
  | c == 0xffff = n > 4
  | c == 0x8000, size : _ <- drop (fromIntegral (f `shiftR` 1)) basicSizes = n == if masked then 2 * size else size
  | otherwise = not masked || even n
  where
    masked = testBit f 0

-- | The sizes of the fields of class 0x8000 in bytes, from number 0 on.
basicSizes :: [Int]
basicSizes = [4, 4, 8, 6, 6, 2, 2, 1, 1, 1, 1, 4, 4, 2, 2, 2, 2, 2, 2, 1, 1, 2, 4, 4, 6, 6, 16, 16, 4, 1, 1, 16, 6, 6, 4, 1, 1, 3, 8, 2]

-- | The field of a class, a number with mask bit, and a payload.
fieldOf :: Word16 -> Word8 -> ByteString -> Field
fieldOf c f body = case (c, f, B.length body) of
  (0x8000, 0, 4) -> InPort (PortNo (word32At body 0))
  (0x8000, 6, 6) -> EthDst (macAt body 0)
  (0x8000, 8, 6) -> EthSrc (macAt body 0)
  (0x8000, 10, 2) -> EthType (word16At body 0)
  (0x8000, 12, 2)
    | v == 0 -> VlanId Untagged
    | v .&. 0xf000 == 0x1000 -> VlanId (Tagged (v .&. 0xfff))
    where
      v = word16At body 0
  (0x8000, 14, 1) | one <= 7 -> VlanPriority one
  (0x8000, 16, 1) | one <= 63 -> IpDscp one
  (0x8000, 20, 1) -> IpProtocol one
  (0x8000, 22, 4) -> Ipv4Src (word32At body 0) exactIp
  (0x8000, 23, 8) | word32At body 4 /= exactIp -> Ipv4Src (word32At body 0) (word32At body 4)
  (0x8000, 24, 4) -> Ipv4Dst (word32At body 0) exactIp
  (0x8000, 25, 8) | word32At body 4 /= exactIp -> Ipv4Dst (word32At body 0) (word32At body 4)
  (0x8000, 26, 2) -> TcpSrc (word16At body 0)
  (0x8000, 28, 2) -> TcpDst (word16At body 0)
  (0x8000, 30, 2) -> UdpSrc (word16At body 0)
  (0x8000, 32, 2) -> UdpDst (word16At body 0)
  (0x8000, 38, 1) -> IcmpType one
  (0x8000, 40, 1) -> IcmpCode one
  _ -> OtherField c f body
  where
    one = B.head body

-- | The class of a field, and its number with mask bit, as on the wire.
oxmOf :: Field -> (Word16, Word8)
oxmOf field = case field of
  OtherField c f _ -> (c, f)
  _ -> case tryRunPut (putField field) of
    Just bytes -> (word16At bytes 0, B.index bytes 2)
    -- A value that has no encoding.
    Nothing -> (0x8000, maxBound)

-- 1.0 -----------------------------------------------------------------------------------

-- | All wildcard bits of 1.0.
wildcardsAll :: Word32
wildcardsAll = 0x3fffff

putMatch10 :: Match -> Put
putMatch10 fields = putUnless (not (expressible10 fields)) (putRaw 40 (pokeMatch10 fields))

-- | Whether 1.0 can express a match.
expressible10 :: Match -> Bool
expressible10 = all expressible

-- | Write a match that 1.0 can express.
pokeMatch10 :: Match -> Ptr Word8 -> IO ()
pokeMatch10 fields p = do
  poke32 p 4 0
  poke64 p 8 0
  poke64 p 16 0
  poke64 p 24 0
  poke64 p 32 0
  go wildcardsAll fields
  where
    go !wildcards [] = poke32 p 0 wildcards
    go wildcards (field : rest) = pokeField10 p field >> go (uncovered wildcards field) rest

-- | Whether 1.0 can express a field with this value.
expressible :: Field -> Bool
expressible field = case field of
  InPort (PortNo n) -> n < 0xfff8 || n >= 0xfffffff8
  Ipv4Src _ mask -> isPrefix mask
  Ipv4Dst _ mask -> isPrefix mask
  VlanId (Tagged v) -> v <= 0xfff
  VlanPriority n -> n <= 7
  IpDscp n -> n <= 63
  OtherField {} -> False
  _ -> True

-- | Whether a mask selects the first bits of an address.
isPrefix :: Word32 -> Bool
isPrefix mask = countLeadingZeros (complement mask) == popCount mask

-- | Clear the wildcard bits of a field.
uncovered :: Word32 -> Field -> Word32
uncovered w field = case field of
  InPort _ -> clearBit w 0
  VlanId _ -> clearBit w 1
  EthSrc _ -> clearBit w 2
  EthDst _ -> clearBit w 3
  EthType _ -> clearBit w 4
  IpProtocol _ -> clearBit w 5
  TcpSrc _ -> clearBit w 6
  UdpSrc _ -> clearBit w 6
  IcmpType _ -> clearBit w 6
  TcpDst _ -> clearBit w 7
  UdpDst _ -> clearBit w 7
  IcmpCode _ -> clearBit w 7
  Ipv4Src _ mask -> prefix 8 mask
  Ipv4Dst _ mask -> prefix 14 mask
  VlanPriority _ -> clearBit w 20
  IpDscp _ -> clearBit w 21
  OtherField {} -> w
  where
    -- Six bits hold the number of low address bits that are ignored.
    prefix at mask = (w .&. complement (0x3f `shiftL` at)) .|. (fromIntegral (32 - popCount mask) `shiftL` at)

pokeField10 :: Ptr Word8 -> Field -> IO ()
pokeField10 p field = case field of
  InPort (PortNo n) -> poke16 p 4 (fromIntegral n)
  EthSrc m -> pokeMac p 6 m
  EthDst m -> pokeMac p 12 m
  VlanId Untagged -> poke16 p 18 0xffff
  VlanId (Tagged v) -> poke16 p 18 v
  VlanPriority n -> pokeByteOff p 20 n
  EthType t -> poke16 p 22 t
  IpDscp n -> pokeByteOff p 24 (n `shiftL` 2)
  IpProtocol n -> pokeByteOff p 25 n
  Ipv4Src a _ -> poke32 p 28 a
  Ipv4Dst a _ -> poke32 p 32 a
  TcpSrc n -> poke16 p 36 n
  UdpSrc n -> poke16 p 36 n
  IcmpType n -> poke16 p 36 (fromIntegral n)
  TcpDst n -> poke16 p 38 n
  UdpDst n -> poke16 p 38 n
  IcmpCode n -> poke16 p 38 (fromIntegral n)
  OtherField {} -> pure ()

-- | Read a match of 1.0. Its port fields are used only if it requires the protocol TCP, UDP or ICMP.
getMatch10 :: Get Match
getMatch10 = fields10 <$> getBytes 40

fields10 :: ByteString -> Match
fields10 s =
  concat
    [ [InPort (portFrom10 (word16At s 4)) | has 0],
      [EthDst (macAt s 12) | has 3],
      [EthSrc (macAt s 6) | has 2],
      [EthType (word16At s 22) | has 4],
      [VlanId (if vlan == 0xffff then Untagged else Tagged (vlan .&. 0xfff)) | has 1],
      [VlanPriority (B.index s 20 .&. 7) | has 20],
      [IpDscp (B.index s 24 `shiftR` 2) | has 21],
      [IpProtocol proto | has 5],
      [Ipv4Src (word32At s 28) mask | Just mask <- [maskAt 8]],
      [Ipv4Dst (word32At s 32) mask | Just mask <- [maskAt 14]],
      [field | has 5, has 6, field <- transport TcpSrc UdpSrc IcmpType (word16At s 36)],
      [field | has 5, has 7, field <- transport TcpDst UdpDst IcmpCode (word16At s 38)]
    ]
  where
    wildcards = word32At s 0
    has bit = not (testBit wildcards bit)
    vlan = word16At s 18
    proto = B.index s 25
    maskAt at = case min 32 (fromIntegral ((wildcards `shiftR` at) .&. 0x3f)) of
      32 -> Nothing
      n -> Just (exactIp `shiftL` n)
    transport tcp udp icmp n = case proto of
      6 -> [tcp n]
      17 -> [udp n]
      1 -> [icmp (fromIntegral n)]
      _ -> []
