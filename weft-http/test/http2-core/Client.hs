{-# LANGUAGE OverloadedStrings #-}

-- | A client's connection in a test: requests and a server's bytes go in, actions and frames come out. Frames are those
-- of "Bytes", with its format of header blocks.
module Client
  ( Run (..),
    begun,
    beginWith,
    fresh,
    get,
    post,
    headOf,
    hear,
    give,
    later,
    flush,
    flushAtMost,
    goAway,
    resetBy,
    pushPromise,
    ended,
    resets,
    losses,
  )
where

import Bytes (block, settings, toyDecode)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Weft.Core.Time (Instant (..))
import Weft.Http2.Client
import Weft.Http2.Core (Field, Frame (..), StreamId)
import Weft.Http2.Frame

-- | A connection, the time, and what came out so far.
data Run = Run
  { runCore :: Core,
    runTime :: Instant,
    runActions :: [Action],
    runFrames :: [Frame]
  }

-- | A connection whose server has sent its settings, without its outputs until then.
begun :: Run
begun = beginWith defaultConfig

beginWith :: Config -> Run
beginWith config = (flush (hear (settings []) (fresh config))) {runActions = [], runFrames = []}

-- | A connection on which nothing has come.
fresh :: Config -> Run
fresh config = Run (newCore config t toyDecode) t [] []
  where
    t = Instant 1000000000

-- | A request without a body, if a stream is allowed; one with a body.
get, post :: Run -> Run
get = started "GET" True
post = started "POST" False

-- | HEAD.
headOf :: Run -> Run
headOf = started "HEAD" True

started :: ByteString -> Bool -> Run -> Run
started method final run = case begin (runTime run) (method == "HEAD") fields final (runCore run) of
  Just (_, core) -> run {runCore = core}
  Nothing -> run
  where
    fields = [(":method", method), (":scheme", "http"), (":path", "/"), (":authority", "a")]

-- | The server sends bytes.
hear :: ByteString -> Run -> Run
hear = give . Received

-- | Something happens.
give :: Input -> Run -> Run
give input run = run {runCore = core, runActions = runActions run <> actions}
  where
    (actions, core) = step (runTime run) input (runCore run)

-- | Milliseconds pass.
later :: Int -> Run -> Run
later ms run = run {runTime = let Instant t = runTime run in Instant (t + fromIntegral ms * 1000000)}

-- | Send what can be sent.
flush :: Run -> Run
flush = flushAtMost maxBound

flushAtMost :: Int -> Run -> Run
flushAtMost most run = run {runCore = core, runActions = runActions run <> actions, runFrames = runFrames run <> frames}
  where
    (frames, actions, core) = takeFrames (runTime run) most (runCore run)

goAway :: StreamId -> ErrorCode -> ByteString
goAway n code = frame typeGoAway 0 0 (B.drop 5 (frameHead 0 0 n 0) <> errorNumber code)

resetBy :: ErrorCode -> StreamId -> ByteString
resetBy code n = frame typeReset 0 n (errorNumber code)

pushPromise :: StreamId -> ByteString
pushPromise n = frame typePushPromise flagEndHeaders n ("\0\0\0\2" <> block fields)
  where
    fields = [(":method", "GET")] :: [Field]

-- | The code and the reason of the connection's end.
ended :: Run -> Maybe (ErrorCode, String)
ended run = case [(code, why) | Close code why <- runActions run] of
  [end] -> Just end
  _ -> Nothing

resets :: Run -> [(StreamId, ErrorCode)]
resets run = [(n, code) | SendReset n code <- runFrames run]

losses :: Run -> [(StreamId, Loss)]
losses run = [(n, why) | Lost n why <- runActions run]
