{-# LANGUAGE OverloadedStrings #-}

-- | Frames as a client sends them, with header blocks in a format that a test can read: a line for each field. And
-- connections in a test: inputs go in, actions and frames come out.
module Bytes
  ( -- * Frames
    preface,
    headers,
    request,
    get,
    post,
    postOf,
    wrongLengths,
    trailers,
    content,
    end,
    reset,
    update,
    settings,
    acknowledgement,
    ping,
    priority,
    block,
    toyDecode,

    -- * Connections
    Run (..),
    begun,
    beginWith,
    send,
    give,
    later,
    flush,
    flushAtMost,
    everything,
    started,
    goneAway,
    resets,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Word (Word16, Word32)
import Weft.Core.Time (Instant (..))
import Weft.Http2.Core
import Weft.Http2.Frame
import Weft.Http2.Request (listSize)

-- Frames -----------------------------------------------------------------------------

-- | What a client sends first: the preface, SETTINGS, and the acknowledgement of the server's.
preface :: ByteString
preface = connectionPreface <> settings [] <> acknowledgement

block :: [Field] -> ByteString
block fields = B.concat [name <> "=" <> value <> "\n" | (name, value) <- fields]

-- | A decoder of 'block', whose state counts the blocks; "!" is an error.
toyDecode :: Decode
toyDecode = Decode decode
  where
    decode bytes
      | "!" `B.isPrefixOf` bytes = Left (CompressionError, "an exclamation mark")
      | otherwise =
        let fields = [(name, B.drop 1 value) | line <- B8.lines bytes, let (name, value) = B8.break (== '=') line]
         in Right (fieldsOf fields (listSize fields), toyDecode)

headers :: Int -> Bool -> [Field] -> ByteString
headers n final fields = frame typeHeaders (flagEndHeaders + (if final then flagEndStream else 0)) n (block fields)

request :: ByteString -> [Field] -> [Field]
request method more = [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "a")] <> more

get, post :: Int -> ByteString
get n = headers n True (request "GET" [])
post n = headers n False (request "POST" [])

-- | A POST that declares its length.
postOf :: Int -> Int -> ByteString
postOf n size = headers n False (request "POST" [("content-length", B8.pack (show size))])

-- | Values of @content-length@ that no message may have; the last two are 2^63 and 2^64 + 3.
wrongLengths :: [ByteString]
wrongLengths = ["", "-3", "+3", " 3 ", "0x3", "3,", "3, 3", "9223372036854775808", "18446744073709551619"]

trailers :: Int -> ByteString
trailers n = headers n True [("x-sum", "1")]

content, end :: Int -> ByteString -> ByteString
content = frame typeData 0
end = frame typeData flagEndStream

reset :: Int -> ByteString
reset n = frame typeReset 0 n (errorNumber Cancel)

update :: Int -> Int -> ByteString
update n by = frame typeWindowUpdate 0 n (B.drop 5 (frameHead 0 0 by 0))

settings :: [(Word16, Word32)] -> ByteString
settings parameters = frame typeSettings 0 0 (settingsPayload parameters)

acknowledgement :: ByteString
acknowledgement = frame typeSettings flagAck 0 ""

ping :: ByteString -> ByteString
ping = frame typePing 0 0

-- | PRIORITY_UPDATE.
priority :: Int -> ByteString -> ByteString
priority n value = frame typePriorityUpdate 0 0 (B.drop 5 (frameHead 0 0 n 0) <> value)

-- Connections ------------------------------------------------------------------------

-- | A connection, the time, and what came out so far.
data Run = Run
  { runCore :: Core,
    runTime :: Instant,
    runActions :: [Action],
    runFrames :: [Frame]
  }

-- | A connection whose client has sent 'preface'; its outputs until then are left out.
begun :: Run
begun = beginWith defaultConfig

beginWith :: Config -> Run
beginWith config = (flush (send preface (Run (newCore config t toyDecode) t [] []))) {runActions = [], runFrames = []}
  where
    t = Instant 1000000000

-- | The client sends bytes.
send :: ByteString -> Run -> Run
send = give . Received

-- | Something happens.
give :: Input -> Run -> Run
give input run = run {runCore = core, runActions = runActions run <> actions}
  where
    (actions, core) = step (runTime run) input (runCore run)

-- | Milliseconds pass.
later :: Int -> Run -> Run
later ms run = give Tick run {runTime = let Instant t = runTime run in Instant (t + fromIntegral ms * 1000000)}

-- | Send what can be sent.
flush :: Run -> Run
flush = flushAtMost maxBound

flushAtMost :: Int -> Run -> Run
flushAtMost most run = run {runCore = core, runActions = runActions run <> actions, runFrames = runFrames run <> frames}
  where
    (frames, actions, core) = takeFrames (runTime run) most (runCore run)

-- | All that comes out when a client sends these bytes after its preface.
everything :: [ByteString] -> Run
everything bytes = flush (send (B.concat bytes) begun)

started :: Run -> [Int]
started run = [n | Start n _ _ <- runActions run]

-- | The code of the last GOAWAY.
goneAway :: Run -> Maybe ErrorCode
goneAway run = case [code | SendGoAway _ code <- runFrames run] of
  [] -> Nothing
  codes -> Just (last codes)

resets :: Run -> [(Int, ErrorCode)]
resets run = [(n, code) | SendReset n code <- runFrames run]
