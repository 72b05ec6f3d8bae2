-- |
-- The receiving thread of a connection: it gives what it receives, and the time, to the core. See "Weft.Http2.Engine".
module Weft.Http2.Receiver
  ( receiveAll,
    stepping,
  )
where

import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import Data.IORef
import Weft.Core.Time (Duration (..), Instant, after, until)
import Weft.Duration (milliseconds, seconds)
import Weft.Http.SendTime (afterPause)
import Weft.Http2.Core
import Weft.Http2.Crew
import Weft.Http2.Engine
import Weft.Http2.Flush
import Weft.Http2.Frame (ErrorCode (..))
import Weft.Http2.Settings
import Weft.Runtime.IdleTimer (ranLate)
import Weft.Sys (now)
import Weft.Transport hiding (Instant)
import Prelude hiding (until)

-- | Let the core take a step, and do what it says. Returns whether the connection is ending, and when the core wants to
-- know the time next, given when that was before.
stepping :: Http2 -> Instant -> Instant -> Input -> IO (Bool, Instant)
stepping h before t input = do
  (over, due, sends, later) <- withTurn h $ \shared -> do
    let (actions, core) = step t input (sharedCore shared)
    (shared', later) <- obey h shared {sharedCore = core} actions
    pure (shared', (isEnded core, wake core, hasFrames core, later))
  afterwards h later
  when sends (ring h)
  pure (over, due)
  where
    limits = http2Limits (http2Settings h)
    -- What applications do sets deadlines while this thread waits. So it looks at the time four times in each limit.
    often = let Duration least = minimum [limitWait limits, limitFrame limits, limitIdle limits] in max (milliseconds 10) (min (seconds 5) (Duration (least `div` 4)))
    wake core
      | t < before && before <= after often t = before
      | isQuiet core = maybe noDeadline id (nextDeadline core)
      | otherwise = min (after often t) (maybe noDeadline id (nextDeadline core))

-- | Serve the connection until it ends. Returns whether the server has ended it.
receiveAll :: Http2 -> IO Bool
receiveAll h = do
  t <- now
  (over, due) <- stepping h t t Tick
  loop over due
  where
    limits = http2Limits (http2Settings h)
    loop True _ = True <$ dropRest h
    loop False due = do
      -- Threads of streams that were reset or have responded may need a moment to end.
      few <- awaitFewer (http2Crew h) (2 * limitStreams limits) (limitFrame limits)
      if few
        then do
          r <- try (connReceive (http2Below h) due 16384)
          t <- now
          case r of
            Right bytes
              | B.null bytes -> pure False
              | otherwise -> stepping h due t (Received bytes) >>= uncurry loop
            Left e
              -- What the client has sent while the process did not run is heard first.
              | isTimeout e && ranLate (t `until` due) -> loop False (after afterPause t)
              | isTimeout e -> stepping h due t Tick >>= uncurry loop
              | otherwise -> endedNow
        else do
          t <- now
          stepping h due t (Break EnhanceYourCalm "streams do not end") >>= uncurry loop
    endedNow = withTurn h (\shared -> pure (shared, isEnded (sharedCore shared)))

-- | Drop what still comes on a connection that ends, until the client or 'Weft.Http2.Flush.afterwards' closes it: TCP
-- resets a connection that is closed with unread data. A client that has seen the end sends little more than its
-- windows allow, so after 8 MiB the connection is closed.
dropRest :: Http2 -> IO ()
dropRest h = go (8388608 :: Int) `catch` ignore
  where
    go left = when (left > 0) $ do
      bytes <- connReceive (http2Below h) noDeadline 65536
      now >>= writeIORef (http2Heard h)
      unless (B.null bytes) (go (left - B.length bytes))
    ignore :: IOException -> IO ()
    ignore _ = pure ()
