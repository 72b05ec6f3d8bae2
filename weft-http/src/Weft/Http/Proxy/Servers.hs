{-# LANGUAGE OverloadedStrings #-}
{-# LANGUAGE RankNTypes #-}

-- |
-- The servers of a proxy: which one is asked next, and which are passed over, since they failed or since their health
-- checks say so. Any thread may call these functions.
module Weft.Http.Proxy.Servers
  ( Upstream (..),
    newUpstream,
    inOrder,
    counted,

    -- * Failures
    Passing (..),
    answered,
    failed,

    -- * Checks
    HealthCheck (..),
    defaultHealthCheck,
    Checked (..),
    afterCheck,
    noteCheck,
  )
where

import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import Data.IORef
import Data.List (sortOn)
import Weft.Core.Each
import Weft.Core.PerProcess
import Weft.Duration
import Weft.Http.Client.Types (ClientProtocol)
import Weft.Http.Client.Url (Url)
import Weft.Sys (OwnRef, newOwnRef, readOwnRef, updateOwnRef)
import Weft.Transport (Instant, deadlineIn)

-- | A server that requests are passed on to.
data Upstream = Upstream
  { upstreamUrl :: !Url,
    -- | What it speaks.
    upstreamProtocol :: !ClientProtocol,
    -- | The requests that a capability has under way with it, and the turn of the last one. Written by the capability's
    -- threads. Made anew in a forked child: the parent's requests do not end there.
    upstreamLoad :: !(PerProcess (Each (OwnRef Load))),
    -- | Written when a server fails, when one that had failed answers, and by its checks; read by each request.
    upstreamHealth :: !(IORef Health)
  }

data Load = Load !Int !Int

-- | Failures of requests in a row, until when the server is passed over for them, and what its checks say.
data Health = Health !Int !(Maybe Instant) !Checked

-- | A server without requests, which counts as well.
newUpstream :: ClientProtocol -> Url -> IO Upstream
newUpstream protocol url = Upstream url protocol <$> newPerProcess loads <*> newIORef (Health 0 Nothing (Well 0))
  where
    loads = newEach (newOwnRef (Load 0 0))

-- | The turn of a capability's request: later ones have greater numbers.
type Turn = Int

-- | The turn of a request, and the servers in the order in which they are asked: those that are passed over last, then
-- by the requests of this capability that are under way, then in turn. (Not by the number of requests so far: a server
-- that comes back would get all of them until it has caught up.)
inOrder :: [Upstream] -> IO (Turn, [Upstream])
inOrder upstreams = case upstreams of
  [_] -> pure (0, upstreams)
  _ -> do
    t <- deadlineIn (nanoseconds 0)
    ranked <- forM upstreams $ \upstream -> do
      Load busy turn <- readOwnRef =<< loadOf upstream
      Health _ until' checked <- readIORef (upstreamHealth upstream)
      pure ((isIll checked || maybe False (> t) until', busy, turn), upstream)
    pure (1 + maximum (0 : [turn | ((_, _, turn), _) <- ranked]), map snd (sortOn fst ranked))
  where
    isIll checked = case checked of
      Ill _ -> True
      Well _ -> False

-- | Run the request of that turn to a server, masked; it is given the function that unmasks. What it throws is
-- returned. (One handler and one mask, so that a thread that waits for the server has less on its stack.)
counted :: Turn -> Upstream -> ((forall b. IO b -> IO b) -> IO a) -> IO (Either SomeException a)
counted turn upstream act = mask $ \restore -> do
  load <- loadOf upstream
  _ <- updateOwnRef load (\(Load busy _) -> Load (busy + 1) turn)
  outcome <- try (act restore)
  outcome <$ updateOwnRef load (\(Load busy latest) -> Load (busy - 1) latest)

-- | That of the calling thread's capability.
loadOf :: Upstream -> IO (OwnRef Load)
loadOf upstream = ofThisProcess (upstreamLoad upstream) >>= own

-- Failures ---------------------------------------------------------------------------

-- | After how many failures in a row a server is passed over, and for how long.
data Passing = Passing !Int !Duration

-- | The server has answered a request.
answered :: Upstream -> IO ()
answered upstream = do
  Health failures _ _ <- readIORef (upstreamHealth upstream)
  when (failures > 0) . atomicModifyIORef' (upstreamHealth upstream) $ \(Health _ _ checked) -> (Health 0 Nothing checked, ())

-- | The server has failed.
failed :: Passing -> Upstream -> IO ()
failed (Passing most time) upstream = do
  pause <- deadlineIn time
  atomicModifyIORef' (upstreamHealth upstream) $ \(Health failures before checked) ->
    (Health (failures + 1) (if failures + 1 >= most then Just pause else before) checked, ())

-- Checks -----------------------------------------------------------------------------

-- | How a server is asked whether it is well. Begin with 'defaultHealthCheck'.
data HealthCheck = HealthCheck
  { -- | The target of the GET, which begins with a slash. A status of 2xx or 3xx within the interval passes.
    checkPath :: !ByteString,
    -- | From one check to the next.
    checkInterval :: !Duration,
    -- | After so many failed checks in a row the server is passed over,
    checkMostFailures :: !Int,
    -- | and after so many that pass in a row it is asked again.
    checkSuccesses :: !Int
  }
  deriving (Eq, Show)

-- | A GET of this path every five seconds; three failures, two successes.
defaultHealthCheck :: ByteString -> HealthCheck
defaultHealthCheck path = HealthCheck {checkPath = path, checkInterval = seconds 5, checkMostFailures = 3, checkSuccesses = 2}

-- | What checks say of a server, and how many in a row have said the contrary since. It begins well.
data Checked = Well !Int | Ill !Int
  deriving (Eq, Show)

-- | After a check, which passed or not.
afterCheck :: HealthCheck -> Bool -> Checked -> Checked
afterCheck check passed checked = case checked of
  Well n
    | passed -> Well 0
    | n + 1 >= checkMostFailures check -> Ill 0
    | otherwise -> Well (n + 1)
  Ill n
    | not passed -> Ill 0
    | n + 1 >= checkSuccesses check -> Well 0
    | otherwise -> Ill (n + 1)

-- | Note the outcome of a check. Returns whether the server is well, if that has changed; failures of requests from
-- before are then forgotten.
noteCheck :: HealthCheck -> Upstream -> Bool -> IO (Maybe Bool)
noteCheck check upstream passed = atomicModifyIORef' (upstreamHealth upstream) $ \(Health failures until' before) ->
  case (before, afterCheck check passed before) of
    (Well _, now'@(Ill _)) -> (Health failures until' now', Just False)
    (Ill _, now'@(Well _)) -> (Health 0 Nothing now', Just True)
    (_, now') -> (Health failures until' now', Nothing)
