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

import Data.Bits (shiftL, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Unsafe as B
import Data.CaseInsensitive (foldCase)
import Data.Word (Word8)
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
    -- | Is it the first of the connection? Only that may be the preface of HTTP\/2.
    headFirst :: !Bool,
    headOld :: !Bool,
    headHosts :: !Int,
    -- | Negative: none was given.
    headLength :: !Int,
    headChunked :: !Bool
  }

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
newGuard = Guard (AtHead (newHead True)) B.empty

newHead :: Bool -> Head
newHead first = Head 0 0 first False 0 (-1) False

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
      | otherwise -> Deliver (B.unsafeTake left have) (Guard next (B.unsafeDrop left have))
    InChunks at -> inChunks limits at have
    Through -> Deliver have (Guard Through B.empty)
{-# INLINE step #-}

-- | Where one is after a request.
next :: Place
next = AtHead (newHead False)

-- Heads ----------------------------------------------------------------------------------

atHead :: Limits -> Head -> ByteString -> Step
atHead limits start have
  -- RFC 9112, 2.2: an empty line before a request is passed over.
  | headLooked start == 0 && "\r\n" `B.isPrefixOf` have = step limits (Guard (AtHead start) (B.drop 2 have))
  | otherwise = go start
  where
    go h = case B.elemIndex 10 (B.unsafeDrop from have) of
      Nothing
        | tooLong (B.length have) -> Refuse (long (B.length have))
        | otherwise -> More (Guard (AtHead h) have)
      Just n
        | tooLong (from + n + 1) -> Refuse (long (from + n + 1))
        -- The line ends in CRLF and has no other CR, nor a zero byte.
        | B.elemIndex 13 line /= Just (n - 1) || B.elem 0 line -> Refuse BadRequest
        | from == 0 -> requestLine (B.unsafeTake (n - 1) line) h (Deliver have (Guard Through B.empty)) (toNext 0)
        | n == 1 -> either Refuse (finish (from + 2)) (framing h)
        | headFields h >= limitFields limits -> Refuse HeadTooLarge
        | otherwise -> field (B.unsafeTake (n - 1) line) h (toNext (headFields h + 1))
        where
          line = B.unsafeTake n (B.unsafeDrop from have)
          toNext fields h' = go h' {headLooked = from + n + 1, headFields = fields}
      where
        from = headLooked h
        tooLong size = size > limitHead limits || (from == 0 && size > limitTarget limits)
        long size = if from == 0 && size > limitTarget limits then TargetTooLong else HeadTooLarge
    finish end place = Deliver (B.unsafeTake end have) (Guard place (B.unsafeDrop end have))

-- | A method, a target and a version, one space between them, or the preface of
-- HTTP\/2 (RFC 9113, 3.4): the step for that, and the way on from a request.
requestLine :: ByteString -> Head -> Step -> (Head -> Step) -> Step
requestLine line h preface ok
  | B.null method || not (B.all tokenByte method) = Refuse BadRequest
  | B.null target || B.any (\c -> c <= 32 || c == 127) target = Refuse BadRequest
  | version == "HTTP/1.1" = ok h
  | version == "HTTP/1.0" = ok h {headOld = True}
  | headFirst h && line == "PRI * HTTP/2.0" = preface
  | "HTTP/" `B.isPrefixOf` version && B.length version == 8 = Refuse UnknownVersion
  | otherwise = Refuse BadRequest
  where
    (method, afterMethod) = B.break (== 32) line
    (target, afterTarget) = B.break (== 32) (B.drop 1 afterMethod)
    version = B.drop 1 afterTarget
{-# INLINE requestLine #-}

-- | A name that is a token, a colon, a value (RFC 9112, 5), and the way on. A line that
-- begins with a space would continue the one before (5.2).
field :: ByteString -> Head -> (Head -> Step) -> Step
field line h ok
  | n <= 0 || n == B.length line = Refuse BadRequest
  | otherwise = case n of
    4 | named "host" -> if headHosts h > 0 then Refuse BadRequest else ok h {headHosts = 1}
    14 | named "content-length" -> case C.readInt value of
      Just (len, "") | headLength h < 0, B.all digit value, B.length value <= 18 -> ok h {headLength = len}
      _ -> Refuse BadRequest
    17 | named "transfer-encoding" -> case foldCase value of
      "chunked" | headChunked h || headOld h -> Refuse BadRequest
      "chunked" -> ok h {headChunked = True}
      _ -> Refuse UnknownCoding
    _ -> ok h
  where
    n = nameLength line
    value = trim (B.unsafeDrop (n + 1) line)
    named name = foldCase (B.unsafeTake n line) == name
    digit c = c >= 48 && c <= 57
{-# INLINE field #-}

-- | How many bytes of a line are a name before a colon; the whole length if there is no
-- colon, negative if what is before it is no name.
nameLength :: ByteString -> Int
nameLength line = go 0
  where
    go i
      | i >= B.length line = i
      | c == 58 = i
      | tokenByte c = go (i + 1)
      | otherwise = -1
      where
        c = B.unsafeIndex line i

-- | Of a token (RFC 9110, 5.6.2).
tokenByte :: Word8 -> Bool
tokenByte c
  | c .&. 0xdf >= 65 && c .&. 0xdf <= 90 = True
  | c == 45 || (c >= 48 && c <= 57) = True
  | otherwise = c `B.elem` "!#$%&'*+.^_`|~"
{-# INLINE tokenByte #-}

trim :: ByteString -> ByteString
trim = B.dropWhileEnd blank . B.dropWhile blank
  where
    blank c = c == 32 || c == 9

-- | What follows a head.
framing :: Head -> Either Refusal Place
framing h
  | headHosts h == 0 && not (headOld h) = Left BadRequest
  | headChunked h && headLength h >= 0 = Left BadRequest
  | headChunked h = Right (InChunks (Size 0 0))
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
        c = B.unsafeIndex have i
    done i = Deliver (B.unsafeTake i have) (Guard next (B.unsafeDrop i have))

hexDigit :: Word8 -> Maybe Int
hexDigit c
  | c >= 48 && c <= 57 = Just (fromIntegral c - 48)
  | c >= 97 && c <= 102 = Just (fromIntegral c - 87)
  | c >= 65 && c <= 70 = Just (fromIntegral c - 55)
  | otherwise = Nothing
