{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The load of @weft-bench url@
--
-- A thread for each connection sends requests and counts what came of them. They share one counter of requests, so that
-- any free connection takes the next one that is due. Errors of the server are counted and not thrown.
module Weft.Bench.UrlLoad
  ( -- * A load
    Load (..),
    generate,
    unsent,
    asksToClose,

    -- * Its result
    Tally (..),
  )
where

import Control.Concurrent (forkOn, getNumCapabilities, newEmptyMVar, putMVar, takeMVar)
import Control.Exception (AsyncException (UserInterrupt), Handler (..), IOException, SomeException, catch, catches, mask, onException, throwIO, try)
import Control.Monad (forM, unless, when)
import qualified Data.ByteString.Char8 as B
import qualified Data.CaseInsensitive as CI
import Data.IORef
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import Foreign.C.Error (Errno (..), eCONNREFUSED, eCONNRESET, eMFILE, ePIPE)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.IO.Exception (ioe_description, ioe_errno, ioe_location)
import Network.HTTP.Types (Header, hConnection, statusCode)
import System.IO.Error (isDoesNotExistError)
import Weft.Bench.Latency
import Weft.Duration (nanoseconds, seconds)
import Weft.Http.Client
import Weft.Http.Client.Connection
import Weft.Socket (deadlineIn, isTimeout)
import Weft.Timer (sleep)
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings)
import Weft.Tools.Dialled (dialled)
import Weft.Tools.Trust (tlsReason)
import Weft.Transport (connClose)

-- | What to send, and how.
data Load = Load
  { loadTarget :: !Url,
    loadClients :: !Int,
    -- | Requests a second, over all connections; 'Nothing' means a closed loop.
    loadRate :: !(Maybe Double),
    loadSeconds :: !Double,
    loadWarm :: !Double,
    -- | Seconds after which a request counts as failed.
    loadPatience :: !Double,
    -- | Fields of the request besides @Host@.
    loadFields :: ![Header],
    -- | Open a connection, and perform a handshake, for each request, whatever the server answers.
    loadFresh :: !Bool,
    -- | The certificate authorities for @https@.
    loadTrust :: !Trust
  }

-- | The result. Times are in nanoseconds. A request belongs to the measured time in which it was due, except that
-- answers are counted when they arrive, so that their number over the time is the rate of the server.
data Tally = Tally
  { -- | Latencies of the requests that were answered, also of those answered after the end. Requests that timed out, and
    -- those that were due and not sent before the end, count with the time that they had waited.
    tallyLatencies :: !Latencies,
    -- | How late requests were sent, measured from when they were due or, if later, from when a connection was free.
    tallyLag :: !Latencies,
    -- | Answers with a status below 400 that arrived in the measured time.
    tallyAnswered :: !Int,
    -- | Answers with such a status that arrived after it, to requests that were due in it.
    tallyLate :: !Int,
    -- | The number of both that were redirects.
    tallyRedirected :: !Int,
    tallyUnsent :: !Int,
    -- | The number of requests without an answer when a signal ended the load. They count with the time that they had
    -- waited.
    tallyInFlight :: !Int,
    -- | Bytes of the answers that arrived in the measured time.
    tallyBytes :: !Int,
    -- | The number of connections opened in the measured time.
    tallyOpened :: !Int,
    -- | Errors by kind: a word, or @status N@ from 400 on.
    tallyErrors :: !(M.Map Text Int),
    -- | Errors of requests that were due in the warm-up, by kind, and when they were noticed does not matter. Those
    -- without an answer when a signal ended the load are of the kind @no answer yet@.
    tallyWarmErrors :: !(M.Map Text Int)
  }
  deriving (Eq, Show)

instance Semigroup Tally where
  s <> t =
    Tally
      { tallyLatencies = tallyLatencies s <> tallyLatencies t,
        tallyLag = tallyLag s <> tallyLag t,
        tallyAnswered = both tallyAnswered,
        tallyLate = both tallyLate,
        tallyRedirected = both tallyRedirected,
        tallyUnsent = both tallyUnsent,
        tallyInFlight = both tallyInFlight,
        tallyBytes = both tallyBytes,
        tallyOpened = both tallyOpened,
        tallyErrors = M.unionWith (+) (tallyErrors s) (tallyErrors t),
        tallyWarmErrors = M.unionWith (+) (tallyWarmErrors s) (tallyWarmErrors t)
      }
    where
      both count = count s + count t

instance Monoid Tally where
  mempty = Tally none none 0 0 0 0 0 0 0 M.empty M.empty

-- | Put the target under load. Also returns the measured time in seconds, and whether 'UserInterrupt' ended it
-- early; the time is not positive if that was during the warm-up.
generate :: Load -> IO (Tally, Double, Bool)
generate load = mask $ \restore -> do
  cores <- getNumCapabilities
  next <- newIORef 0
  opened <- newIORef 0
  begun <- now
  let warm = begun + nano (loadWarm load)
      end = warm + nano (loadSeconds load)
  clients <- forM [0 .. loadClients load - 1] $ \i -> do
    done <- newEmptyMVar
    progress <- newIORef (Progress mempty Nothing)
    _ <- forkOn (i `mod` cores) (try (restore (client load next opened begun warm end progress)) >>= putMVar done)
    pure (done, progress)
  interrupted <- (False <$ mapM_ (ended . fst) clients) `catch` \e -> if e == UserInterrupt then pure True else throwIO e
  stop <- if interrupted then min end <$> now else pure end
  progress <- mapM (readIORef . snd) clients
  sent <- readIORef next
  connections <- readIORef opened
  let left = maybe mempty (\rate -> unsent rate begun warm stop sent) (loadRate load)
      inFlight = mconcat [if due < warm then unansweredWarm else unanswered (stop - due) | Progress _ (Just due) <- progress, due < stop]
  pure (mconcat (mempty {tallyOpened = connections} : left : inFlight : [tally | Progress tally _ <- progress]), fromIntegral (stop - warm) / 1e9, interrupted)
  where
    unanswered waited = mempty {tallyLatencies = record waited none, tallyInFlight = 1}
    unansweredWarm = mempty {tallyWarmErrors = M.singleton "no answer yet" 1}
    ended done = takeMVar done >>= either (\e -> throwIO (e :: SomeException)) pure

-- | What a connection has counted, and when its present request was due: from when the connection takes the request,
-- which may be before it is due, until its result is counted.
data Progress = Progress !Tally !(Maybe Int)

now :: IO Int
now = fromIntegral <$> getMonotonicTimeNSec

nano :: Double -> Int
nano s = round (s * 1e9)

-- | When the request with this number is due.
dueAt :: Double -> Int -> Int -> Int
dueAt rate begun k = begun + round (fromIntegral k * 1e9 / rate)

-- | The number of requests that are due before the given instant.
dueBefore :: Double -> Int -> Int -> Int
dueBefore rate begun instant = until (\k -> dueAt rate begun k >= instant) (+ 1) (max 0 (floor (fromIntegral (instant - begun) * rate / 1e9) - 1))

-- | The requests that were due in the measured time and that no connection had taken by its end, with the time that
-- they had waited. There may be many millions of them, so that they are counted by arithmetic and not one by one. The
-- arguments are the rate; the begin of the load, of the measured time, and its end; and the number of requests that were
-- taken.
unsent :: Double -> Int -> Int -> Int -> Int -> Tally
unsent rate begun warm end sent
  | waiting end == 0 = mempty
  | otherwise = mempty {tallyLatencies = recordBetween longest (waiting . (end -)) none, tallyUnsent = waiting end}
  where
    first = max sent (dueBefore rate begun warm)
    longest = end - dueAt rate begun first
    waiting instant = max 0 (dueBefore rate begun instant - first)

-- | One connection: it takes the next request that is due, and reconnects after an error. All connections share the
-- reference @next@ and take numbers from it atomically, and count in @opened@ the connections that they open. It alone writes the last reference, before and after each
-- request; 'generate' reads it at the end.
client :: Load -> IORef Int -> IORef Int -> Int -> Int -> Int -> IORef Progress -> IO ()
client load next opened begun warm end progress = go Nothing mempty
  where
    asked = (getRequest (loadTarget load)) {requestFields = loadFields load ++ [(hConnection, "close") | loadFresh load, not (asksToClose (loadFields load))]}
    -- The one limit is that of the whole request.
    settings =
      defaultClientSettings
        { clientTls = defaultTlsClientSettings {tlsTrust = loadTrust load, tlsConnectTime = maxBound},
          clientConnectTime = maxBound,
          clientSendTime = maxBound,
          clientAnswerTime = maxBound,
          clientReadTime = maxBound
        }
    disconnect = connClose . httpConnection
    go connection tally = do
      free <- now
      due <- maybe (pure free) (\rate -> dueAt rate begun <$> atomicModifyIORef' next (\k -> (k + 1, k))) (loadRate load)
      if free >= end
        then writeIORef progress (Progress (tally <> left due) Nothing) >> mapM_ disconnect connection
        else if due >= end then mapM_ disconnect connection else atInstant connection tally free due
    -- A request that was taken and will not be sent counts as due and unsent. It cannot be given back: others may have
    -- taken later ones meanwhile.
    left due
      | due >= warm && due < end = mempty {tallyLatencies = record (end - due) none, tallyUnsent = 1}
      | otherwise = mempty
    atInstant connection tally free due = do
      writeIORef progress (Progress tally (Just due))
      ready <- if due > free then idleTo due connection else pure (Right connection)
      sent <- now
      (connection', outcome) <- either (pure . (,) Nothing . Left) send ready
      done <- now
      let counted = due >= warm
          timely = done >= warm && done <= end
          result = case outcome of
            Right (Received status size)
              | status < 400 -> answered status size
              | otherwise -> failed ("status " <> T.pack (show status))
            Left kind -> failed kind
          answered status size t
            | timely = arrived {tallyAnswered = tallyAnswered t + 1, tallyBytes = tallyBytes t + size}
            | counted = arrived {tallyLate = tallyLate t + 1}
            | otherwise = t
            where
              arrived = (waited t) {tallyRedirected = tallyRedirected t + (if redirects status then 1 else 0)}
          failed kind t
            | counted = (if kind == timedOut then waited t else t) {tallyErrors = M.insertWith (+) kind 1 (tallyErrors t)}
            | otherwise = t {tallyWarmErrors = M.insertWith (+) kind 1 (tallyWarmErrors t)}
          waited t = if counted then t {tallyLatencies = record (done - due) (tallyLatencies t)} else t
          late t = if counted then t {tallyLag = record (sent - max due free) (tallyLag t)} else t
          tally' = late (result tally)
      -- Avoids a busy loop if the server refuses connections.
      when (either (const True) (const False) outcome) $ sleep (nanoseconds 10000000)
      writeIORef progress $! Progress tally' Nothing
      go connection' tally'
    -- A connection without a request is watched: the server may end it, or send what nobody has asked for.
    idleTo due connection = do
      free <- now
      limit <- deadlineIn (untilDue free)
      found <- maybe (pure (Right Quiet)) (kinds . fmap Right . idleUntil limit) connection
      when (found /= Right Quiet) $ mapM_ disconnect connection
      left' <- now
      when (due > left') $ sleep (untilDue left')
      pure $ case found of
        Right Quiet -> Right connection
        Right Ended -> Right Nothing
        Right SurplusBytes -> Left surplus
        Left kind -> Left kind
      where
        untilDue at = nanoseconds (fromIntegral (max 0 (due - at)))
    send connection = do
      limit <- deadlineIn (seconds (loadPatience load))
      let fresh = (dialled (connectUrl settings limit (loadTarget load)) >>= newHttpConnection) >>= \c -> count >> ask c
          count = now >>= \at -> when (at >= warm) (atomicModifyIORef' opened (\n -> (n + 1, ())))
          ask c = do
            (received, state) <- exchange settings c limit asked measured `onException` disconnect c
            let kept = state == Kept && not (loadFresh load)
            unless kept $ disconnect c
            pure (if kept then Just c else Nothing, if state == Surplus then Left surplus else Right received)
          outcome = case connection of
            Nothing -> fresh
            -- The server may end a connection while it is idle: then the request goes out again on another one, as other
            -- clients send it, and both count as one.
            Just c ->
              try (ask c) >>= \came -> case came of
                Left (ClientError _ _ (NoAnswer _)) -> fresh
                Left e -> throwIO e
                Right (Nothing, Right (Received 408 _)) -> fresh
                Right answer -> pure answer
      either ((,) Nothing . Left) id <$> kinds (Right <$> outcome)
    kinds act =
      act
        `catches` [ Handler (pure . Left . errorKind),
                    Handler $ \e -> pure . Left $ case errorCause e of
                      TimedOut -> timedOut
                      ConnectionBroken why -> errorKind why
                      NoAnswer (Just why) -> errorKind why
                      NotHttp _ -> "not HTTP"
                      InvalidRequest why -> T.pack why
                      _ -> "ended early"
                  ]

-- | A response: its status, and the number of its body's bytes without their framing.
data Received = Received !Int !Int

measured :: Response -> IO Received
measured response = go 0
  where
    go size = do
      piece <- responsePiece response
      if B.null piece then pure (Received (statusCode (responseStatus response)) size) else go $! size + B.length piece

-- | Whether the fields of a request say that the connection ends with its response (RFC 9110, 7.6.1).
asksToClose :: [Header] -> Bool
asksToClose fields = or [CI.mk (B.filter (`notElem` (" \t" :: String)) option) == "close" | (name, value) <- fields, name == hConnection, option <- B.split ',' value]

-- | Whether a status below 400 sends the client elsewhere.
redirects :: Int -> Bool
redirects status = status >= 300 && status /= 304

timedOut :: Text
timedOut = "timed out"

-- | Bytes came that belong to no request.
surplus :: Text
surplus = "surplus bytes"

-- | A word for the kind of error.
errorKind :: IOException -> Text
errorKind e
  | isTimeout e = timedOut
  | otherwise = case Errno <$> ioe_errno e of
    Just n
      -- GHC's library says of a refused connection, too, that something does not exist.
      | n == eCONNREFUSED -> "refused"
      | n == eCONNRESET || n == ePIPE -> "reset"
      | n == eMFILE -> "no descriptors left"
    _
      | ioe_location e == "Weft.Tls" -> tlsReason (ioe_description e)
      -- Without the call and its arguments.
      | isDoesNotExistError e -> T.pack (ioe_description e)
      | otherwise -> T.pack (show e)
