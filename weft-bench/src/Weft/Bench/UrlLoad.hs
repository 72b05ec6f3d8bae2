{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The load of @weft-bench url@
--
-- A thread for each connection sends requests and counts what came of them. They share one counter of requests, so that
-- any free connection takes the next one that is due. Errors of the server are counted and not thrown. Instants are in
-- nanoseconds of the monotonic clock.
module Weft.Bench.UrlLoad
  ( -- * A load
    Load (..),
    generate,
    asksToClose,
  )
where

import Control.Concurrent (forkOn, getNumCapabilities, newEmptyMVar, putMVar, takeMVar)
import Control.Exception (AsyncException (UserInterrupt), Handler (..), IOException, SomeException, catch, catches, mask, onException, throwIO, try)
import Control.Monad (forM, unless, when)
import qualified Data.ByteString.Char8 as B
import qualified Data.CaseInsensitive as CI
import Data.IORef
import Data.Text (Text)
import qualified Data.Text as T
import Foreign.C.Error (Errno (..), eCONNREFUSED, eCONNRESET, eMFILE, ePIPE)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.IO.Exception (ioe_description, ioe_errno, ioe_location)
import Network.HTTP.Types (Header, hConnection, statusCode)
import System.IO.Error (isDoesNotExistError)
import Weft.Bench.UrlLoad.Tally
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

-- | A load that is under way. Its connections share it.
data Run = Run
  { runLoad :: !Load,
    runRequest :: !Request,
    runSettings :: !ClientSettings,
    -- | When the load began.
    runBegun :: !Int,
    runMeasured :: !Measured,
    -- | The number of the next request. Connections take numbers from it atomically.
    runNext :: !(IORef Int),
    -- | How many connections were opened in the measured time. They are counted atomically.
    runOpened :: !(IORef Int)
  }

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
      run =
        Run
          { runLoad = load,
            runRequest = (getRequest (loadTarget load)) {requestFields = loadFields load ++ [(hConnection, "close") | loadFresh load, not (asksToClose (loadFields load))]},
            runSettings = settings,
            runBegun = begun,
            runMeasured = Measured warm end,
            runNext = next,
            runOpened = opened
          }
  clients <- forM [0 .. loadClients load - 1] $ \i -> do
    done <- newEmptyMVar
    progress <- newIORef (Progress mempty Nothing)
    _ <- forkOn (i `mod` cores) (try (restore (client run progress)) >>= putMVar done)
    pure (done, progress)
  interrupted <- (False <$ mapM_ (ended . fst) clients) `catch` \e -> if e == UserInterrupt then pure True else throwIO e
  stop <- if interrupted then min end <$> now else pure end
  progress <- mapM (readIORef . snd) clients
  sent <- readIORef next
  connections <- readIORef opened
  let left = maybe mempty (\rate -> unsent rate begun warm stop sent) (loadRate load)
      inFlight = mconcat [unanswered (Measured warm stop) due | Progress _ (Just due) <- progress, due < stop]
  pure (mconcat (mempty {tallyOpened = connections} : left : inFlight : [tally | Progress tally _ <- progress]), fromIntegral (stop - warm) / 1e9, interrupted)
  where
    -- The one limit is that of the whole request.
    settings =
      defaultClientSettings
        { clientTls = defaultTlsClientSettings {tlsTrust = loadTrust load, tlsConnectTime = maxBound},
          clientConnectTime = maxBound,
          clientSendTime = maxBound,
          clientAnswerTime = maxBound,
          clientReadTime = maxBound
        }
    ended done = takeMVar done >>= either (\e -> throwIO (e :: SomeException)) pure

-- | What a connection has counted, and when its present request was due: from when the connection takes the request,
-- which may be before it is due, until its result is counted.
data Progress = Progress !Tally !(Maybe Int)

now :: IO Int
now = fromIntegral <$> getMonotonicTimeNSec

nano :: Double -> Int
nano s = round (s * 1e9)

-- | One connection: it takes the next request that is due, and reconnects after an error. It alone writes the
-- reference, before and after each request; 'generate' reads it at the end.
client :: Run -> IORef Progress -> IO ()
client run progress = go Nothing mempty
  where
    go connection tally = do
      free <- now
      due <- maybe (pure free) (\rate -> dueAt rate (runBegun run) <$> next) (loadRate (runLoad run))
      if free >= end
        then writeIORef progress (Progress (tally <> abandoned (runMeasured run) due) Nothing) >> mapM_ disconnect connection
        else if due >= end then mapM_ disconnect connection else ask connection tally free due
    end = measuredTo (runMeasured run)
    next = atomicModifyIORef' (runNext run) (\k -> (k + 1, k))
    ask connection tally free due = do
      writeIORef progress (Progress tally (Just due))
      ready <- if due > free then idleTo due connection else pure (Right connection)
      sent <- now
      (connection', outcome) <- either (pure . (,) Nothing . Left) (send run) ready
      done <- now
      let tally' = count (runMeasured run) (Times free due sent done) outcome tally
      -- Avoids a busy loop if the server refuses connections.
      when (either (const True) (const False) outcome) $ sleep (nanoseconds 10000000)
      writeIORef progress $! Progress tally' Nothing
      go connection' tally'

-- | Wait until the instant with a connection without a request, if there is one. It is watched: the server may end it,
-- or send what nobody has asked for. Then it is closed.
idleTo :: Int -> Maybe HttpConnection -> IO (Either Text (Maybe HttpConnection))
idleTo due connection = do
  limit <- now >>= deadlineIn . untilDue
  found <- maybe (pure (Right Quiet)) (failing . fmap Right . idleUntil limit) connection
  when (found /= Right Quiet) $ mapM_ disconnect connection
  left <- now
  when (due > left) $ sleep (untilDue left)
  pure $ case found of
    Right Quiet -> Right connection
    Right Ended -> Right Nothing
    Right SurplusBytes -> Left surplus
    Left kind -> Left kind
  where
    untilDue at = nanoseconds (fromIntegral (max 0 (due - at)))

-- | Send a request on the connection, or on a new one. Returns the connection if it can be used again, and what came of
-- the request.
send :: Run -> Maybe HttpConnection -> IO (Maybe HttpConnection, Outcome)
send run connection = do
  limit <- deadlineIn (seconds (loadPatience load))
  let fresh = dialled (connectUrl (runSettings run) limit (loadTarget load)) >>= newHttpConnection >>= \c -> opened >> ask c
      ask c = do
        (received, state) <- exchange (runSettings run) c limit (runRequest run) measured `onException` disconnect c
        let kept = state == Kept && not (loadFresh load)
        unless kept $ disconnect c
        pure (if kept then Just c else Nothing, if state == Surplus then Left surplus else Right received)
      asked = case connection of
        Nothing -> fresh
        -- The server may end a connection while it is idle: then the request goes out again on another one, as other
        -- clients send it, and both count as one.
        Just c ->
          try (ask c) >>= \came -> case came of
            Left (ClientError _ _ (NoAnswer _)) -> fresh
            Left e -> throwIO e
            Right (Nothing, Right (Received 408 _)) -> fresh
            Right answer -> pure answer
  either ((,) Nothing . Left) id <$> failing (Right <$> asked)
  where
    load = runLoad run
    opened = now >>= \at -> when (at >= measuredFrom (runMeasured run)) (atomicModifyIORef' (runOpened run) (\n -> (n + 1, ())))

disconnect :: HttpConnection -> IO ()
disconnect = connClose . httpConnection

measured :: Response -> IO Received
measured response = go 0
  where
    go size = do
      piece <- responsePiece response
      if B.null piece then pure (Received (statusCode (responseStatus response)) size) else go $! size + B.length piece

-- | Whether the fields of a request say that the connection ends with its response (RFC 9110, 7.6.1).
asksToClose :: [Header] -> Bool
asksToClose fields = or [CI.mk (B.filter (`notElem` (" \t" :: String)) option) == "close" | (name, value) <- fields, name == hConnection, option <- B.split ',' value]

-- | Bytes came that belong to no request.
surplus :: Text
surplus = "surplus bytes"

-- | The kind of the error with which a client's action fails, as a word.
failing :: IO (Either Text a) -> IO (Either Text a)
failing act =
  act
    `catches` [ Handler (pure . Left . errorKind),
                Handler $ \e -> pure . Left $ case errorCause e of
                  TimedOut -> timedOut
                  ConnectionBroken why -> errorKind why
                  NoAnswer (Just why) -> errorKind why
                  NotHttp _ -> "not HTTP"
                  OtherProtocol _ -> "not HTTP"
                  InvalidRequest why -> T.pack why
                  _ -> "ended early"
              ]

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
