{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft bench url@
--
-- A load generator for any HTTP/1.1 server, with or without TLS. With a rate, requests are due at fixed instants
-- whatever the server does, and any free connection sends the next one. A latency is measured from the instant at which
-- the request was due, so if a server stops for a second, all requests of that second count as slow. Without a rate
-- each connection sends its next request when it has received its answer, and the output says what that leaves out.
-- Exit status: 0 if requests were answered, 1 if none was, 2 for bad arguments, 130 if Ctrl-C ended it; the
-- results until then are printed.
module Weft.Tools.Bench.Url
  ( urlCommand,

    -- * A load
    Load (..),
    Tally (..),
    generate,
    tallyMetrics,
  )
where

import Control.Concurrent (forkOn, getNumCapabilities, newEmptyMVar, putMVar, setNumCapabilities, takeMVar)
import Control.Exception (AsyncException (UserInterrupt), Handler (..), IOException, SomeException, catch, catches, mask, onException, throwIO, try)
import Control.Monad (forM, forM_, when)
import Data.ByteString (ByteString)
import Data.ByteString.Builder (hPutBuilder)
import qualified Data.CaseInsensitive as CI
import Data.IORef
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import Foreign.C.Error (Errno (..), eCONNREFUSED, eCONNRESET, eMFILE, ePIPE)
import GHC.Clock (getMonotonicTimeNSec)
import GHC.IO.Exception (ioe_description, ioe_errno)
import Options.Applicative hiding (columns)
import System.CPUTime (getCPUTime)
import System.Exit (ExitCode (..), exitWith)
import System.IO (IOMode (WriteMode), stderr, withFile)
import System.IO.Error (isDoesNotExistError)
import Weft.Duration (nanoseconds, seconds)
import Weft.Socket (AddrInfo, deadlineIn, getAddrInfo, isTimeout)
import Weft.Timer (sleep)
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings)
import qualified Weft.Tls as Tls
import Weft.Tools.Bench.Json
import Weft.Tools.Bench.Latency
import Weft.Tools.Bench.Options (defaultPlan, notNegative, positive)
import Weft.Tools.Bench.Runner (Outcome (..))
import Weft.Tools.Bench.Setup (machineFacts, raiseOpenFiles)
import Weft.Tools.Bench.Table (columns, renderNumber)
import Weft.Tools.Bench.Types
import Weft.Tools.Http
import Weft.Tools.Serve.Values (anyField)

-- | What to send, and how.
data Load = Load
  { loadTarget :: !Target,
    loadClients :: !Int,
    -- | Requests a second, over all connections; 'Nothing' means a closed loop.
    loadRate :: !(Maybe Double),
    loadSeconds :: !Double,
    loadWarm :: !Double,
    -- | Seconds after which a request counts as failed.
    loadPatience :: !Double,
    -- | Fields of the request besides @Host@.
    loadFields :: ![ByteString],
    -- | Open a connection, and perform a handshake, for each request.
    loadFresh :: !Bool,
    -- | The certificate authorities for @https@.
    loadTrust :: !Trust
  }

-- | The result. Times are in nanoseconds.
data Tally = Tally
  { -- | Latencies of the requests that were answered. Requests that timed out, and those that were due and not sent
    -- before the end, count with the time that they had waited.
    tallyLatencies :: !Latencies,
    -- | How late requests were sent, measured from when they were due or, if later, from when a connection was free.
    tallyLag :: !Latencies,
    -- | Requests that were answered with a status below 400.
    tallyAnswered :: !Int,
    -- | The number of them that were answered with a redirect.
    tallyRedirected :: !Int,
    tallyUnsent :: !Int,
    tallyBytes :: !Int,
    -- | The number of connections opened, including those of the warm-up.
    tallyOpened :: !Int,
    -- | Errors by kind: a word, or @status N@ from 400 on.
    tallyErrors :: !(M.Map Text Int)
  }
  deriving (Eq, Show)

instance Semigroup Tally where
  Tally a b c d e f g h <> Tally a' b' c' d' e' f' g' h' = Tally (a <> a') (b <> b') (c + c') (d + d') (e + e') (f + f') (g + g') (M.unionWith (+) h h')

instance Monoid Tally where
  mempty = Tally none none 0 0 0 0 0 M.empty

-- | The subcommand of @weft bench@.
urlCommand :: Mod CommandFields (IO ())
urlCommand =
  command "url" $
    info
      (runLoad <$> threads <*> optional (strOption (long "json" <> metavar "FILE" <> help "Write the result as JSON")) <*> load)
      ( progDesc "Put an HTTP server under load: latency percentiles, errors by kind, bytes"
          <> footer
            "Example: weft bench url http://127.0.0.1:8080/ --connections 64 --rate 5000 --duration 10. With --rate, latencies count \
            \from the instant at which a request was due, so that a server's pauses are not left out (no coordinated \
            \omission); requests that timed out, or were due and could not be sent, count with the time for which they had waited. A \
            \connection is kept for as long as the server keeps it; where one has to be opened, that and the handshake are part of \
            \the latency. Redirects are not followed. Exit status: 0 requests were answered, 1 none was, 2 bad arguments, 130 \
            \it was ended by Ctrl-C, after which it prints the results until then."
      )
  where
    threads = option positive (long "threads" <> metavar "N" <> value 1 <> showDefault <> help "Cores that the generator may use")
    load =
      Load
        <$> argument (eitherReader parseTarget) (metavar "URL" <> help "http://HOST:PORT/PATH, https, or unix:FILE:/PATH")
        <*> option positive (long "connections" <> metavar "N" <> value 64 <> showDefault <> help "Number of connections")
        <*> optional (option positive (long "rate" <> metavar "R" <> help "Requests a second, at fixed times; without it each connection sends its next request after a response (a closed loop)"))
        <*> option positive (long "duration" <> metavar "SECONDS" <> value 10 <> showDefault <> help "Measured time")
        <*> option notNegative (long "warmup" <> metavar "SECONDS" <> value 1 <> showDefault <> help "Load before the measured time")
        <*> option positive (long "timeout" <> metavar "SECONDS" <> value 10 <> showDefault <> help "Time limit of a request; one that takes longer counts as an error")
        <*> many (option (eitherReader field) (long "header" <> metavar "FIELD" <> help "Header field to send with each request, such as 'Accept: */*'; Host replaces that of the URL"))
        <*> switch (long "no-keep-alive" <> help "Open a new connection for each request")
        <*> trust
    field text = (\(name, content) -> CI.original name <> ": " <> content) <$> anyField text
    trust =
      flag' TrustAnything (long "insecure" <> help "Accept any certificate")
        <|> TrustAuthorities <$> strOption (long "ca" <> metavar "FILE" <> help "Trust the authorities in this file (PEM) instead of the system's")
        <|> pure (tlsTrust defaultTlsClientSettings)

runLoad :: Int -> Maybe FilePath -> Load -> IO ()
runLoad threads json load = do
  raiseOpenFiles
  setNumCapabilities threads
  before <- getCPUTime
  ready <- readied load `catch` \e -> T.hPutStrLn stderr ("weft bench url: " <> T.pack (ioe_description e)) >> exitWith (ExitFailure 2)
  findHost (loadTarget load)
  (tally, wall, interrupted) <- generate ready
  when (interrupted && wall <= 0) $ T.hPutStrLn stderr "weft bench url: interrupted before the measured time" >> exitWith (ExitFailure 130)
  after <- getCPUTime
  let busy = fromIntegral (after - before) / 1e12 / (wall + loadWarm load)
      metrics = tallyMetrics wall tally
  T.putStr (render load wall tally metrics)
  when (busy > 0.9 * fromIntegral threads) . T.putStrLn $
    "note: the generator used " <> renderNumber busy <> " cores of " <> number threads <> ": it may have been the limit (--threads)"
  machine <- machineFacts
  forM_ json $ \file ->
    withFile file WriteMode . flip hPutBuilder $
      outcomeJson machine (Settings once [] Nothing False) benchmark (Outcome [Run "server" (paramsOf load) (M.singleton 0 metrics)] [] [] [])
  when interrupted $ T.hPutStrLn stderr "weft bench url: interrupted" >> exitWith (ExitFailure 130)
  when (tallyAnswered tally == 0) $ T.hPutStrLn stderr "weft bench url: no request was answered with a status below 400" >> exitWith (ExitFailure 1)
  where
    once = defaultPlan {planRounds = 1, planDuration = loadSeconds load, planWarmup = loadWarm load}
    benchmark = Benchmark "url" "a load of a server" (const []) [] [] ["--rts"] (const []) ["p99_us", "ops_per_s"] id

-- | Load the authorities once instead of for each connection.
readied :: Load -> IO Load
readied load
  | targetSecure (loadTarget load) = (\trust -> load {loadTrust = trust}) <$> Tls.loadTrust (loadTrust load)
  | otherwise = pure load

-- | Ends the program if the host has no address, instead of at each connection.
findHost :: Target -> IO ()
findHost target = case targetUnix target of
  Just _ -> pure ()
  Nothing -> do
    found <- try (getAddrInfo Nothing (Just (targetHost target)) (Just (targetPort target)))
    case found :: Either IOException [AddrInfo] of
      Right _ -> pure ()
      Left e -> do
        T.hPutStrLn stderr ("weft bench url: no address of " <> T.pack (targetHost target) <> ": " <> T.pack (ioe_description e))
        exitWith (ExitFailure 1)

number :: Int -> Text
number = T.pack . show

-- | Parameters of the result; the mode is the kind of loop.
paramsOf :: Load -> Params
paramsOf load =
  [("mode", Word (maybe "closed-loop" (const "rate") (loadRate load))), ("connections", Count (loadClients load))]
    <> [("tls", Word "yes") | targetSecure (loadTarget load)]
    <> [("keep_alive", Word "no") | loadFresh load]
    <> [("rate", Count (round rate)) | Just rate <- [loadRate load]]

-- ---------------------------------------------------------------------------------------------------------------
-- The load

-- | Put the target under load. Also returns the measured time in seconds, and whether Ctrl-C ('UserInterrupt') ended it
-- early; the time is not positive if that was during the warm-up.
generate :: Load -> IO (Tally, Double, Bool)
generate load = mask $ \restore -> do
  cores <- getNumCapabilities
  next <- newIORef 0
  begun <- now
  let warm = begun + nano (loadWarm load)
      end = warm + nano (loadSeconds load)
  clients <- forM [0 .. loadClients load - 1] $ \i -> do
    done <- newEmptyMVar
    tally <- newIORef mempty
    _ <- forkOn (i `mod` cores) (try (restore (client load next begun warm end tally)) >>= putMVar done)
    pure (done, tally)
  interrupted <- (False <$ mapM_ (ended . fst) clients) `catch` \e -> if e == UserInterrupt then pure True else throwIO e
  stop <- if interrupted then min end <$> now else pure end
  tallies <- mapM (readIORef . snd) clients
  sent <- readIORef next
  let waiting = unsent load begun warm stop sent
      left = mempty {tallyLatencies = recordMany waiting none, tallyUnsent = length waiting}
  pure (mconcat (left : tallies), fromIntegral (stop - warm) / 1e9, interrupted)
  where
    ended done = takeMVar done >>= either (\e -> throwIO (e :: SomeException)) pure

now :: IO Int
now = fromIntegral <$> getMonotonicTimeNSec

nano :: Double -> Int
nano s = round (s * 1e9)

-- | When the request with this number is due.
dueAt :: Double -> Int -> Int -> Int
dueAt rate begun k = begun + round (fromIntegral k * 1e9 / rate)

-- | How long the requests had waited that were due in the measured time and that no connection had taken by its end.
unsent :: Load -> Int -> Int -> Int -> Int -> [Int]
unsent load begun warm end sent = case loadRate load of
  Nothing -> []
  Just rate -> [end - due | due <- takeWhile (< end) (map (dueAt rate begun) [sent ..]), due >= warm]

-- | One connection: it takes the next request that is due, and reconnects after an error. All connections share the
-- reference
-- @next@ and take numbers from it atomically. It alone writes the last reference, after each request.
client :: Load -> IORef Int -> Int -> Int -> Int -> IORef Tally -> IO ()
client load next begun warm end results = go Nothing mempty
  where
    request = getRequest (loadTarget load) (loadFields load ++ ["Connection: close" | loadFresh load])
    tls = defaultTlsClientSettings {tlsTrust = loadTrust load, tlsConnectTime = seconds (loadPatience load)}
    go connection tally = do
      free <- now
      due <- maybe (pure free) (\rate -> dueAt rate begun <$> atomicModifyIORef' next (\k -> (k + 1, k))) (loadRate load)
      if free >= end
        then (writeIORef results $! tally <> left due) >> mapM_ disconnect connection
        else if due >= end then mapM_ disconnect connection else atInstant connection tally free due
    -- A request that was taken and will not be sent counts as due and unsent. It cannot be given back: others may have
    -- taken later ones meanwhile.
    left due
      | due >= warm && due < end = mempty {tallyLatencies = record (end - due) none, tallyUnsent = 1}
      | otherwise = mempty
    atInstant connection tally free due = do
      when (due > free) $ sleep (nanoseconds (fromIntegral (due - free)))
      sent <- now
      (connection', opens, outcome) <- send connection
      done <- now
      let counted = due >= warm
          lag = record (sent - max due free)
          result = case outcome of
            Right response
              | responseStatus response < 400 -> answered (responseStatus response) (responseBytes response)
              | otherwise -> failed ("status " <> number (responseStatus response))
            Left kind -> failed kind
          answered status bytes t =
            (waited t)
              { tallyAnswered = tallyAnswered t + 1,
                tallyRedirected = tallyRedirected t + (if status >= 300 && status /= 304 then 1 else 0),
                tallyBytes = tallyBytes t + bytes
              }
          failed kind t = (if kind == timedOut then waited t else t) {tallyErrors = M.insertWith (+) kind 1 (tallyErrors t)}
          waited t = t {tallyLatencies = record (done - due) (tallyLatencies t)}
          opened = tally {tallyOpened = tallyOpened tally + opens}
          tally' = if counted then result opened {tallyLag = lag (tallyLag opened)} else opened
      -- Avoids a busy loop if the server refuses connections.
      when (either (const True) (const False) outcome) $ sleep (nanoseconds 10000000)
      writeIORef results $! tally'
      go connection' tally'
    send connection = do
      limit <- deadlineIn (seconds (loadPatience load))
      let fresh = connectTo tls limit (loadTarget load) >>= ask 1
          ask opens c = do
            response <- exchange limit c Measure request `onException` disconnect c
            if responseKept response then pure (Just c, opens, Right response) else disconnect c >> pure (Nothing, opens, Right response)
      kinds $ case connection of
        Nothing -> fresh
        -- The server may close a connection while it is idle: then the request goes out again on another one, as other
        -- clients send it, and both count as one.
        Just c ->
          ask (0 :: Int) c `catch` \e -> case e of
            NoResponse _ -> fresh
            _ -> throwIO e
    kinds act =
      act
        `catches` [ Handler (\e -> pure (Nothing, 0, Left (errorKind e))),
                    Handler $ \e -> pure . (,,) Nothing 0 . Left $ case e of
                      Malformed -> "not HTTP"
                      NoResponse (Just why) -> errorKind why
                      _ -> "ended early"
                  ]

timedOut :: Text
timedOut = "timed out"

-- | A word for the kind of error.
errorKind :: IOException -> Text
errorKind e
  | isTimeout e = timedOut
  -- Without the call and its arguments.
  | isDoesNotExistError e = T.pack (ioe_description e)
  | otherwise = case Errno <$> ioe_errno e of
    Just n
      | n == eCONNREFUSED -> "refused"
      | n == eCONNRESET || n == ePIPE -> "reset"
      | n == eMFILE -> "no descriptors left"
    _ -> T.pack (show e)

-- ---------------------------------------------------------------------------------------------------------------
-- Results

-- | The metrics of a load that was measured for this many seconds.
tallyMetrics :: Double -> Tally -> Metrics
tallyMetrics wall tally =
  M.fromList $
    [ ("wall_s", wall),
      ("ops_per_s", fromIntegral (tallyAnswered tally) / wall),
      ("answered", fromIntegral (tallyAnswered tally)),
      ("errors", fromIntegral (sum (tallyErrors tally))),
      ("unsent", fromIntegral (tallyUnsent tally)),
      ("opened", fromIntegral (tallyOpened tally)),
      ("received_mb", fromIntegral (tallyBytes tally) / 1e6)
    ]
      <> [(name, micro ns) | (name, percent) <- percentiles, Just ns <- [percentileOf percent latencies]]
      <> [("max_us", micro (largest latencies)) | samples latencies > 0]
      <> [("lag_p99_us", micro ns) | Just ns <- [percentileOf 99 (tallyLag tally)]]
  where
    latencies = tallyLatencies tally
    micro ns = fromIntegral ns / 1000

percentiles :: [(Text, Rational)]
percentiles = [("p50_us", 50), ("p90_us", 90), ("p95_us", 95), ("p99_us", 99), ("p999_us", 99.9)]

render :: Load -> Double -> Tally -> Metrics -> Text
render load wall tally metrics =
  T.unlines $
    [ "GET " <> T.pack (targetPath target) <> " of " <> maybe (T.pack (targetHost target <> ":" <> targetPort target)) T.pack (targetUnix target)
        <> (", " <> number (loadClients load) <> " connections, ")
        <> maybe "closed loop" (\rate -> renderNumber rate <> " requests a second") (loadRate load)
        <> (", " <> renderNumber wall <> " s"),
      ""
    ]
      <> columns
        [ ["answered", whole "answered" <> " (" <> figure "ops_per_s" <> " a second, " <> figure "received_mb" <> " MB of bodies)"],
          ["latency, us", T.intercalate ", " [spoken name <> " " <> figure name | (name, _) <- percentiles <> [("max_us", 0)]]],
          ["connections opened", whole "opened"],
          ["errors", if M.null (tallyErrors tally) then "none" else T.intercalate ", " [kind <> ": " <> number n | (kind, n) <- M.toList (tallyErrors tally)]]
        ]
      <> [""]
      <> notes
  where
    target = loadTarget load
    spoken name = if name == "p999_us" then "p99.9" else T.dropEnd 3 name
    figure name = maybe "-" renderNumber (M.lookup name metrics)
    whole name = maybe "-" (number . round) (M.lookup name metrics)
    notes = [number (tallyRedirected tally) <> " answers were redirects, which are not followed: measure the address that they name" | tallyRedirected tally > 0] <> kindOfLoop
    kindOfLoop = case loadRate load of
      Nothing ->
        [ "note: in a closed loop a connection waits for its answer before it asks again. While the server pauses nothing is sent, \
          \so the percentiles leave out what clients of their own would have waited; --rate R counts it."
        ]
      Just _ ->
        ["latencies count from the instants at which requests were due; the generator sent 99 % of them within " <> figure "lag_p99_us" <> " us of that or of a free connection"]
          <> [ number (tallyUnsent tally) <> " requests were due and could not be sent before the end; they count with the time for which they had waited"
               | tallyUnsent tally > 0
             ]
