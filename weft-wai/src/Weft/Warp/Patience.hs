-- |
-- Slow clients: how long a connection waits for its client, by a deadline that is
-- pushed ("Weft.Deadline"), in the place of Warp's time manager.
--
-- The deadline runs only while a receive or a send is under way; however long an
-- application takes, it does not count. What a client is to do within the time that 'setTimeout'
-- gives, or it is given up:
--
-- * send a request's head from when the server is ready for it;
-- * of a body, send each 'Network.Wai.Handler.Warp.setSlowlorisSize' bytes, of waiting time;
-- * take each 128 KiB of a response;
-- * over HTTP\/2, or on a raw connection (WebSockets), send or take anything.
--
-- A limit that is not positive is none, and so is that of a server with a time manager of the
-- user's own ('setManager'), which is then Warp's to ask.
--
-- A client is given up by closing its socket; the thread that serves it finds that
-- and ends with 'TimeoutThread', which Warp reports to nobody.
module Weft.Warp.Patience
  ( Patience,
    newPatience,
    endPatience,
    grant,
    grantUsual,
    grantedLeft,
    Refill (..),
    receiving,
    within,
    sending,
    progress,
    slice,
    warpTimeouts,
  )
where

import Control.Exception (catch, throwIO)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (isJust)
import Network.Wai.Handler.Warp.Internal (Settings (..))
import System.TimeManager (TimeoutThread (..))
import Weft.Deadline
import Weft.Duration
import Weft.Warp.TimeManager (inertManager)

-- | What is left to one connection's client.
data Patience
  = Patient
      !Deadline
      -- The span of it.
      !Duration
      -- What is left of it for the slow receives in a row. Written by who receives.
      !(IORef Duration)
      -- Bytes of a receive from which on it is none of the slow ones.
      !Int
  | -- | The user has a time manager, or wants no limit.
    Endless

-- | With the action that gives the client up. To be ended.
newPatience :: Settings -> IO () -> IO Patience
newPatience settings giveUp
  | ours settings = do
    let limit = seconds (fromIntegral (settingsTimeout settings))
    d <- newPausedDeadline limit giveUp
    (\left -> Patient d limit left (settingsSlowlorisSize settings)) <$> newIORef limit
  | otherwise = pure Endless

-- | Are slow clients ours to close?
ours :: Settings -> Bool
ours settings = settingsTimeout settings > 0 && not (isJust (settingsManager settings))

-- | The connection is over.
endPatience :: Patience -> IO ()
endPatience (Patient d _ _ _) = stop d
endPatience Endless = pure ()

-- | The client begins something new: it has so much time for it.
grant :: Patience -> Duration -> IO ()
grant (Patient _ _ left _) time = writeIORef left time
grant Endless _ = pure ()

-- | It has the time of Warp's settings.
grantUsual :: Patience -> IO ()
grantUsual (Patient _ limit left _) = writeIORef left limit
grantUsual Endless = pure ()

-- | How much of what it was granted is left, from 1 downwards. Of a receive under way. Any
-- thread may ask.
grantedLeft :: Patience -> IO Double
grantedLeft Endless = pure 1
grantedLeft (Patient d _ left _) = do
  had <- readIORef left
  (\has -> toSeconds has / max 0.001 (toSeconds had)) <$> remaining d

-- | Which receives give a client its time anew.
data Refill
  = -- | None: the time is for the whole.
    Never
  | -- | Those of many bytes.
    IfMuch
  | Always

-- | Receive, in the time that is left.
receiving :: Patience -> Refill -> IO ByteString -> IO ByteString
receiving Endless _ act = act
receiving (Patient d limit left slow) refill act = do
  have <- readIORef left
  (bytes, rest) <- givingUp d (during d have ((\b -> (,) b <$> remaining d) =<< act))
  let next = case refill of
        Never -> rest
        IfMuch | B.length bytes < slow -> rest
        _ -> limit
  if next == have then pure () else writeIORef left next
  pure bytes

-- | Do something that waits for the client, in the time that is left.
within :: Patience -> IO a -> IO a
within Endless act = act
within (Patient d _ left _) act = do
  have <- readIORef left
  (a, rest) <- givingUp d (during d have ((\a -> (,) a <$> remaining d) =<< act))
  a <$ writeIORef left rest

-- | Do something in which the client takes data; 'progress' in it gives the client
-- its whole time anew.
sending :: Patience -> IO a -> IO a
sending Endless act = act
sending (Patient d limit _ _) act = givingUp d (during d limit act)

-- | So far it has taken all.
progress :: Patience -> IO ()
progress (Patient d _ _ _) = postpone d
progress Endless = pure ()

-- | What fails because the client was given up ends its thread quietly.
givingUp :: Deadline -> IO a -> IO a
givingUp d act = act `catch` failed
  where
    failed :: IOError -> IO a
    failed e = do
      gone <- expired d
      if gone then throwIO TimeoutThread else throwIO e

-- | Bytes of a response for which a client has the whole time.
slice :: Int
slice = 131072

-- | Settings with which Warp watches no connection, unless the user has a time
-- manager.
warpTimeouts :: Settings -> IO Settings
warpTimeouts settings = case settingsManager settings of
  Nothing -> (\manager -> settings {settingsManager = Just manager}) <$> inertManager
  Just _ -> pure settings
