{-# LANGUAGE OverloadedStrings #-}

-- |
-- What stands before Warp's parser: it follows the framing of HTTP\/1 (RFC 9112), hands on
-- heads that are whole and in order, and refuses what Warp would let pass although
-- another server might understand it differently. Pure; every byte is looked at once.
--
-- A guard is in one of these places, and moves when it hands on what it has:
--
-- @
--   AtHead     a head, or nothing yet   -> InBody, InChunks, AtHead (no body), Through
--   InBody     n bytes of a body left   -> AtHead
--   InChunks   somewhere in chunks      -> AtHead
--   Through    HTTP\/2, or no HTTP any more: all is handed on
-- @
--
-- Never more is handed on than belongs to one request, so the next one is looked at
-- when it is asked for: when this one has been answered.
module Weft.Warp.Guard
  ( Guard,
    newGuard,
    Step (..),
    step,
    feed,
    through,
    begun,
    waiting,
  )
where

import Data.Bits (complement, shiftL, unsafeShiftR, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (accursedUnutterablePerformIO, toForeignPtr)
import qualified Data.ByteString.Unsafe as B
import Data.CaseInsensitive (foldCase)
import Data.Word (Word64, Word8)
import Foreign.Storable (Storable, peekByteOff)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Weft.Warp.Limits

-- | Where in the stream of requests one is, and what has come that was not handed on.
data Guard = Guard !Place !ByteString

data Place
  = AtHead !Head
  | InBody !Int
  | InChunks !Chunks
  | Through

-- | How far a head has been looked at, and what it said.
data Head = Head
  { -- | The lines before this offset are in order.
    headLooked :: !Int,
    headFields :: !Int,
    -- | The sum of these bits.
    headSeen :: !Int,
    -- | Negative: none was given.
    headLength :: !Int
  }

-- | It is the first of the connection: only that may be the preface of HTTP\/2. It is of
-- HTTP\/1.0. It has a host; it has a coding.
isFirst, isOld, hasHost, hasCoding :: Int
isFirst = 1
isOld = 2
hasHost = 4
hasCoding = 8

seen :: Int -> Head -> Bool
seen bit h = headSeen h .&. bit /= 0
{-# INLINE seen #-}

see :: Int -> Head -> Head
see bit h = h {headSeen = headSeen h .|. bit}
{-# INLINE see #-}

-- | A place in a chunked body (RFC 9112, 7.1).
data Chunks
  = -- | In the digits of a size: its value so far, and how many digits there were.
    Size !Int !Int
  | -- | In what comes between the digits and the end of their line: so many bytes of
    -- the chunk follow.
    Extension !Int !Int
  | -- | At the end of that line.
    SizeEnd !Int
  | -- | So many bytes are left, with the line end behind them.
    Chunk !Int
  | -- | In a line after the last chunk, of which so many bytes came; so many in all.
    Trailer !Int !Int

-- | What is to be done next.
data Step
  = -- | More has to come before anything can be handed on.
    More !Guard
  | -- | Hand this on; it is not empty.
    Deliver !ByteString !Guard
  | -- | Tell the client so, and close.
    Refuse !Refusal

-- | At the beginning of a connection.
newGuard :: Guard
newGuard = Guard (AtHead (newHead isFirst)) B.empty

newHead :: Int -> Head
newHead bits = Head 0 0 bits (-1)

-- | Add what has come.
feed :: ByteString -> Guard -> Guard
feed bytes (Guard place have)
  | B.null have = Guard place bytes
  | otherwise = Guard place (have <> bytes)

-- | From now on everything is handed on.
through :: Guard -> Guard
through (Guard _ have) = Guard Through have

-- | Has a part of a head come?
begun :: Guard -> Bool
begun (Guard place have) = case place of
  AtHead _ -> not (B.null have)
  _ -> False

-- | Is a head what comes next?
waiting :: Guard -> Bool
waiting (Guard place _) = case place of
  AtHead _ -> True
  _ -> False

-- | Look at what is there.
step :: Limits -> Guard -> Step
step limits guard@(Guard place have)
  | B.null have = More guard
  | otherwise = case place of
    AtHead h -> atHead limits h have
    InBody left
      | B.length have < left -> Deliver have (Guard (InBody (left - B.length have)) B.empty)
      | otherwise -> deliver left next have
    InChunks at -> inChunks limits at have
    Through -> Deliver have (Guard Through B.empty)
{-# INLINE step #-}

-- | Where one is after a request.
next :: Place
next = AtHead (newHead 0)

-- | After a request behind which nothing has come yet. One value for all connections, which
-- keeps nothing of a request alive.
between :: Guard
between = Guard next B.empty

-- | Hand so many bytes on.
deliver :: Int -> Place -> ByteString -> Step
deliver n place have
  | n < B.length have = Deliver (B.unsafeTake n have) (Guard place (B.unsafeDrop n have))
  | otherwise = Deliver have $ case place of
    AtHead _ -> between
    _ -> Guard place B.empty

-- Heads ----------------------------------------------------------------------------------

atHead :: Limits -> Head -> ByteString -> Step
atHead limits start have
  | headLooked start > 0 = fields start
  -- RFC 9112, 2.2: an empty line before a request is passed over.
  | "\r\n" `B.isPrefixOf` have = step limits (Guard (AtHead start) (B.unsafeDrop 2 have))
  | end < 0 = noLine limits start have
  | end + 2 > min (limitTarget limits) (limitHead limits) = Refuse (tooLong limits 0 (end + 2))
  | otherwise = case requestLine (B.unsafeTake end have) of
    Current -> fields start {headLooked = end + 2}
    Old -> fields (see isOld start) {headLooked = end + 2}
    Preface | seen isFirst start -> Deliver have (Guard Through B.empty)
    Preface -> Refuse UnknownVersion
    Unknown -> Refuse UnknownVersion
    Malformed -> Refuse BadRequest
  where
    end = lineEnd have 0
    fields h
      | to < 0 = noLine limits h have
      | to + 2 > limitHead limits = Refuse HeadTooLarge
      | to == from = either Refuse (\place -> deliver (to + 2) place have) (framing h)
      | headFields h >= limitFields limits = Refuse HeadTooLarge
      | otherwise = case nameEnd have from to of
        colon | colon <= from -> Refuse BadRequest
        colon -> case colon - from of
          4 | isNamed "host" have from -> if seen hasHost h then Refuse BadRequest else ok (see hasHost h)
          14 | isNamed "content-length" have from -> case C.readInt value of
            Just (len, "") | headLength h < 0, B.all digit value, B.length value <= 18 -> ok h {headLength = len}
            _ -> Refuse BadRequest
          17 | isNamed "transfer-encoding" have from -> case foldCase value of
            "chunked" | headSeen h .&. (hasCoding .|. isOld) /= 0 -> Refuse BadRequest
            "chunked" -> ok (see hasCoding h)
            _ -> Refuse UnknownCoding
          _ -> ok h
          where
            value = trim (B.unsafeTake (to - colon - 1) (B.unsafeDrop (colon + 1) have))
      where
        from = headLooked h
        to = lineEnd have from
        ok h' = fields h' {headLooked = to + 2, headFields = headFields h' + 1}
    digit c = c >= 48 && c <= 57

-- | There is no line in order from where the head was looked at last: it is not whole yet, or
-- it is to be refused.
noLine :: Limits -> Head -> ByteString -> Step
noLine limits h have = case B.elemIndex 10 (B.unsafeDrop from have) of
  Nothing
    | over (B.length have) -> Refuse (tooLong limits from (B.length have))
    | otherwise -> More (Guard (AtHead h) have)
  Just n
    | over (from + n + 1) -> Refuse (tooLong limits from (from + n + 1))
    | otherwise -> Refuse BadRequest
  where
    from = headLooked h
    over size = size > limitHead limits || (from == 0 && size > limitTarget limits)

-- | Which limit has a head of so many bytes passed, in a line that begins there?
tooLong :: Limits -> Int -> Int -> Refusal
tooLong limits from size = if from == 0 && size > limitTarget limits then TargetTooLong else HeadTooLarge

-- | Where the line that begins there ends, if it ends in CRLF and has no other CR or LF, nor a
-- zero byte: the place of the CR. Negative otherwise.
lineEnd :: ByteString -> Int -> Int
lineEnd have = wide
  where
    end = B.length have
    -- Eight bytes at a time as long as none of them is less than 14.
    wide i
      | i + 8 > end = narrow i end
      | (w - 0x0e0e0e0e0e0e0e0e) .&. complement w .&. 0x8080808080808080 == 0 = wide (i + 8)
      | otherwise = narrow i (i + 8)
      where
        w = wordAt have i
    narrow i stop
      | i >= stop = if stop < end then wide stop else -1
      | c > 13 = narrow (i + 1) stop
      | c == 13 = if i + 1 < end && byteAt have (i + 1) == 10 then i else -1
      | c == 10 || c == 0 = -1
      | otherwise = narrow (i + 1) stop
      where
        c = byteAt have i

-- | A byte of a string. That of the library (0.10, with GHC 9.0) makes a closure and a boxed byte of each.
byteAt :: ByteString -> Int -> Word8
byteAt = storedAt
{-# INLINE byteAt #-}

-- | Eight bytes of a string, in the order of the machine.
wordAt :: ByteString -> Int -> Word64
wordAt = storedAt
{-# INLINE wordAt #-}

-- | The offset is the caller's care.
storedAt :: Storable a => ByteString -> Int -> a
storedAt bytes i = B.accursedUnutterablePerformIO (unsafeWithForeignPtr start (\p -> peekByteOff p (offset + i)))
  where
    (start, offset, _) = B.toForeignPtr bytes
{-# INLINE storedAt #-}

-- | What the first line of a head says.
data FirstLine
  = -- | A request of HTTP\/1.1.
    Current
  | -- | One of HTTP\/1.0.
    Old
  | -- | The preface of HTTP\/2 (RFC 9113, 3.4).
    Preface
  | -- | Of a version that is none of these.
    Unknown
  | Malformed

-- | A method, a target and a version, one space between them.
requestLine :: ByteString -> FirstLine
requestLine line
  | method <= 0 || at method /= 32 = Malformed
  | target == method + 1 || at target /= 32 = Malformed
  | version == "HTTP/1.1" = Current
  | version == "HTTP/1.0" = Old
  | line == "PRI * HTTP/2.0" = Preface
  | "HTTP/" `B.isPrefixOf` version && B.length version == 8 = Unknown
  | otherwise = Malformed
  where
    method = skip tokenByte 0
    target = skip (\c -> c > 32 && c /= 127) (method + 1)
    version = B.unsafeDrop (target + 1) line
    at i = if i < B.length line then byteAt line i else 0
    skip ok i
      | i < B.length line && ok (byteAt line i) = skip ok (i + 1)
      | otherwise = i

-- | Where the name of a field ends (RFC 9112, 5): a token with a colon behind it. Of the line from
-- the one place to the other; negative if it has no such name. (A line that begins with a space would continue
-- the one before, 5.2.)
nameEnd :: ByteString -> Int -> Int -> Int
nameEnd have from to = go from
  where
    go i
      | i >= to = -1
      | c == 58 = i
      | tokenByte c = go (i + 1)
      | otherwise = -1
      where
        c = byteAt have i

-- | Is that name, in lower case, what is there in any case? There are as many bytes.
isNamed :: ByteString -> ByteString -> Int -> Bool
isNamed name have from = go 0
  where
    go i
      | i >= B.length name = True
      | lower (byteAt have (from + i)) == byteAt name i = go (i + 1)
      | otherwise = False
    lower c = if c >= 65 && c <= 90 then c + 32 else c

-- | Of a token (RFC 9110, 5.6.2): a bit for each of the first 64 bytes, and of the second.
tokenByte :: Word8 -> Bool
tokenByte c
  | c < 64 = has 0x03ff6cfa00000000
  | c < 128 = has 0x57ffffffc7fffffe
  | otherwise = False
  where
    has :: Word64 -> Bool
    has bits = (bits `unsafeShiftR` fromIntegral (c .&. 63)) .&. 1 /= 0
{-# INLINE tokenByte #-}

trim :: ByteString -> ByteString
trim = B.dropWhileEnd blank . B.dropWhile blank
  where
    blank c = c == 32 || c == 9

-- | What follows a head.
framing :: Head -> Either Refusal Place
framing h
  | headSeen h .&. (hasHost .|. isOld) == 0 = Left BadRequest
  | seen hasCoding h && headLength h >= 0 = Left BadRequest
  | seen hasCoding h = Right (InChunks (Size 0 0))
  | headLength h > 0 = Right (InBody (headLength h))
  | otherwise = Right next

-- Chunks ---------------------------------------------------------------------------------

inChunks :: Limits -> Chunks -> ByteString -> Step
inChunks limits start have = go start 0
  where
    end = B.length have
    go at i
      | i >= end = Deliver have (Guard (InChunks at) B.empty)
      | otherwise = case at of
        Size n digits -> case hexDigit c of
          Just d | digits < 15 -> go (Size (n `shiftL` 4 .|. d) (digits + 1)) (i + 1)
          Just _ -> Refuse BadRequest
          Nothing
            | digits == 0 -> Refuse BadRequest
            | c == 13 -> go (SizeEnd n) (i + 1)
            | c == 59 || c == 32 || c == 9 -> go (Extension n 1) (i + 1)
            | otherwise -> Refuse BadRequest
        Extension n len
          | c == 13 -> go (SizeEnd n) (i + 1)
          | c == 10 || c == 0 || len > limitTarget limits -> Refuse BadRequest
          | otherwise -> go (Extension n (len + 1)) (i + 1)
        SizeEnd n
          | c /= 10 -> Refuse BadRequest
          | n == 0 -> go (Trailer 0 0) (i + 1)
          | otherwise -> go (Chunk (n + 2)) (i + 1)
        -- The last two are the end of a line.
        Chunk left
          | left > 2 -> let n = min (left - 2) (end - i) in go (Chunk (left - n)) (i + n)
          | left == 2 -> if c == 13 then go (Chunk 1) (i + 1) else Refuse BadRequest
          | otherwise -> if c == 10 then go (Size 0 0) (i + 1) else Refuse BadRequest
        -- Negative: a CR has come, which only a line's end follows.
        Trailer len total
          | total >= limitHead limits -> Refuse HeadTooLarge
          | len < 0 -> if c /= 10 then Refuse BadRequest else if len == -1 then done (i + 1) else go (Trailer 0 (total + 1)) (i + 1)
          | c == 13 -> go (Trailer (-1 - len) (total + 1)) (i + 1)
          | c == 10 || c == 0 || (len == 0 && (c == 32 || c == 9)) -> Refuse BadRequest
          | otherwise -> go (Trailer (len + 1) (total + 1)) (i + 1)
      where
        c = byteAt have i
    done i = deliver i next have

hexDigit :: Word8 -> Maybe Int
hexDigit c
  | c >= 48 && c <= 57 = Just (fromIntegral c - 48)
  | c >= 97 && c <= 102 = Just (fromIntegral c - 87)
  | c >= 65 && c <= 70 = Just (fromIntegral c - 55)
  | otherwise = Nothing
