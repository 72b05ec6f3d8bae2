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
    refill,
    Receiver (..),
    receiving,
    within,
    sending,
    failing,
    progress,
    slice,
    warpTimeouts,
  )
where

import Control.Exception (SomeException, catch, fromException, mask_, throwIO, toException)
import Data.ByteString (ByteString)
import Data.Maybe (isJust)
import Network.Wai.Handler.Warp.Internal (Settings (..))
import System.TimeManager (TimeoutThread (..))
import Weft.Core.Time (Duration (..))
import Weft.Deadline
import Weft.Duration (seconds, toSeconds)
import Weft.Sys (Cells, newCells, peekCell, pokeCell)
import Weft.Warp.TimeManager (inertManager)

-- | What is left to one connection's client.
data Patience
  = Patient
      !Deadline
      -- The span of it.
      !Duration
      -- What is left of it for the slow receives in a row, in nanoseconds. Written by who
      -- receives.
      !Cells
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
    left <- newCells 1
    writeLeft left limit
    pure (Patient d limit left (settingsSlowlorisSize settings))
  | otherwise = pure Endless

readLeft :: Cells -> IO Duration
readLeft left = Duration . fromIntegral <$> peekCell left 0
{-# INLINE readLeft #-}

writeLeft :: Cells -> Duration -> IO ()
writeLeft left (Duration ns) = pokeCell left 0 (fromIntegral ns)
{-# INLINE writeLeft #-}

-- | Are slow clients ours to close?
ours :: Settings -> Bool
ours settings = settingsTimeout settings > 0 && not (isJust (settingsManager settings))

-- | The connection is over.
endPatience :: Patience -> IO ()
endPatience (Patient d _ _ _) = stop d
endPatience Endless = pure ()

-- | The client begins something new: it has so much time for it.
grant :: Patience -> Duration -> IO ()
grant (Patient _ _ left _) time = writeLeft left time
grant Endless _ = pure ()

-- | It has the time of Warp's settings.
grantUsual :: Patience -> IO ()
grantUsual (Patient _ limit left _) = writeLeft left limit
grantUsual Endless = pure ()

-- | How much of what it was granted is left, from 1 downwards. Of a receive under way. Any
-- thread may ask.
grantedLeft :: Patience -> IO Double
grantedLeft Endless = pure 1
grantedLeft (Patient d _ left _) = do
  had <- readLeft left
  (\has -> toSeconds has / max 0.001 (toSeconds had)) <$> remaining d

-- | Which receives give a client its time anew.
data Refill
  = -- | None: the time is for the whole.
    Never
  | -- | Those of many bytes.
    IfMuch
  | Always

-- | What a receive of so many bytes does for the client.
refill :: Patience -> Refill -> Int -> IO ()
refill Endless _ _ = pure ()
refill (Patient _ limit left slow) how received = case how of
  Never -> pure ()
  IfMuch | received < slow -> pure ()
  _ -> writeLeft left limit

-- | Made by 'receiving'.
data Receiver = Receiver
  { -- | Receive.
    receiverRun :: !(IO ByteString),
    -- | The handler within.
    receiverFailed :: !(SomeException -> IO ByteString)
  }

-- | An action that receives, in the time that is left, and a handler for what it throws: to be made
-- once for a connection, since what it takes (three closures) is then not made for each receive.
-- What the handler is given says whether the client was given up. The action runs masked; it
-- can be interrupted where it waits.
receiving :: Patience -> (SomeException -> IO ByteString) -> IO ByteString -> Receiver
receiving Endless failed act = Receiver (act `catch` failed) failed
receiving (Patient d _ left _) failed act = Receiver (mask_ whole) handler
  where
    whole = do
      have <- readLeft left
      awaiting d have
      bytes <- act `catch` handler
      remaining d >>= writeLeft left
      awaited d
      pure bytes
    handler e = awaited d >> because d e >>= failed

-- | Do something that waits for the client, in the time that is left.
within :: Patience -> IO a -> IO a
within Endless act = act
within (Patient d _ left _) act = do
  have <- readLeft left
  (a, rest) <- givingUp d (during d have ((\a -> (,) a <$> remaining d) =<< act))
  a <$ writeLeft left rest

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
givingUp d act = act `catch` \e -> because d (toException (e :: IOError)) >>= throwIO

-- | Throw what an operation failed with, or 'TimeoutThread' if that is why.
failing :: Patience -> IOError -> IO a
failing Endless e = throwIO e
failing (Patient d _ _ _) e = because d (toException e) >>= throwIO

-- | The error of a client that was given up is 'TimeoutThread'.
because :: Deadline -> SomeException -> IO SomeException
because d e = case fromException e of
  Just error' -> (\gone -> if gone then toException TimeoutThread else toException (error' :: IOError)) <$> expired d
  Nothing -> pure e

-- | Bytes of a response for which a client has the whole time.
slice :: Int
slice = 131072

-- | Settings with which Warp watches no connection, unless the user has a time
-- manager.
warpTimeouts :: Settings -> IO Settings
warpTimeouts settings = case settingsManager settings of
  Nothing -> (\manager -> settings {settingsManager = Just manager}) <$> inertManager
  Just _ -> pure settings
