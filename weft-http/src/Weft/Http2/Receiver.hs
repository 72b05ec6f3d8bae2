-- |
-- The duty of a connection's crew: to receive, and to give what was received, and the time, to the core. See
-- "Weft.Http2.Engine".
module Weft.Http2.Receiver
  ( receiveAll,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
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
  (over, due, sends, later) <- uninterruptibleMask_ . withTurn h $ \shared -> do
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

-- | Let the crew serve the connection until it ends.
receiveAll :: Http2 -> IO ()
receiveAll h = do
  over <- newEmptyMVar
  t <- now
  (ending, due) <- stepping h t t Tick
  onDuty (http2Crew h) (receiving h over ending due)
  takeMVar over >>= either throwIO pure

-- | Receive once, until the time when the core wants to know it; given whether the connection is ending, and what to fill
-- at its end, with an exception if there was one that no client can cause.
receiving :: Http2 -> MVar (Either SomeException ()) -> Bool -> Instant -> Duty
receiving h over = next 0
  where
    next :: Int -> Bool -> Instant -> Duty
    next strays ending due = Duty $ do
      r <- try (if ending then Gone <$ dropRest h else hear h due)
      t <- now
      case r of
        Right (Heard bytes) -> stepped t due (Received bytes)
        Right Silence
          -- What the client has sent while the process did not run is heard first.
          | ranLate (t `until` due) -> pure (Just (next strays ending (after afterPause t)))
          | otherwise -> stepped t due Tick
        Right Crowded -> stepped t due (Break EnhanceYourCalm "streams do not end")
        Right Gone -> finished (Right ())
        -- This thread has run requests. An exception that somebody throws to it may be for one that has long ended; what the
        -- transport throws comes again.
        Left e
          | strays < mostStrays -> pure (Just (next (strays + 1) ending due))
          | Just io <- fromException e -> const (finished (Right ())) (io :: IOException)
          | otherwise -> finished (Left e)
    stepped t due input = try (stepping h due t input) >>= either (finished . Left) (pure . Just . uncurry (next 0))
    finished result = Nothing <$ putMVar over result

-- | What came of waiting for the client.
data Event
  = Heard !ByteString
  | -- | The time has come.
    Silence
  | -- | Too many threads still work for streams that the client regards as ended.
    Crowded
  | -- | The client has closed its direction.
    Gone

-- | Wait for the client. Throws what the transport throws. May be interrupted, and has lost nothing then.
hear :: Http2 -> Instant -> IO Event
hear h due = do
  -- Threads of streams that were reset or have responded may need a moment to end.
  few <- awaitFewer (http2Crew h) (2 * limitStreams limits) (limitFrame limits)
  if few then try (connReceive (http2Below h) due 16384) >>= either silence (pure . received) else pure Crowded
  where
    limits = http2Limits (http2Settings h)
    received bytes = if B.null bytes then Gone else Heard bytes
    silence e = if isTimeout e then pure Silence else throwIO e

-- | So many exceptions in a row are ignored.
mostStrays :: Int
mostStrays = 100

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
