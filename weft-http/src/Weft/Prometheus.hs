{-# LANGUAGE OverloadedStrings #-}

-- |
-- A server's metrics for Prometheus, and a health page.
--
-- > import Weft.Prometheus
-- > import Weft.Http
-- >
-- > main :: IO ()
-- > main = do
-- >   requests <- newRequestCounters
-- >   let metrics = (<>) <$> requestFamilies requests <*> processFamilies
-- >   run 8080 (countRequests requests (metricsPage (pure . fromLoopback) metrics application))
--
-- Counting takes a few atomic additions to words of the request's capability; it neither
-- allocates nor waits. Reading sums the words without stopping any thread. Any thread may call these
-- functions.
--
-- @since 0.1.0
module Weft.Prometheus
  ( -- * Requests
    RequestCounters,
    newRequestCounters,
    countRequests,
    countBegin,
    countExchange,
    countRefusal,

    -- * Families of metrics
    requestFamilies,
    serverFamilies,
    cacheFamilies,
    logFamilies,
    managerFamilies,
    fileFamilies,
    processFamilies,
    runtimeFamilies,
    Family (..),
    Kind (..),
    Sample (..),
    Value (..),
    counter,
    gauge,
    exposition,

    -- * Pages
    metricsPage,
    fromLoopback,
    healthPage,
  )
where

import Control.Monad (forM_)
import Data.ByteString (ByteString)
import Data.ByteString.Builder (doubleDec, toLazyByteString)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.Int (Int64)
import Network.HTTP.Types
import Network.Wai
import Weft.AccessLog (AccessLog, LogMetrics (..), logMetrics)
import Weft.Core.Each (Each, everyOne, newEach, own)
import Weft.Core.Time (Duration (..))
import Weft.Exchange
import Weft.File (DirectMetrics (..), RingMetrics (..), readDirectMetrics, readRingMetrics)
import Weft.Http (Refusal, Server, refusalReason, serverConnections)
import Weft.Metrics
import Weft.Prometheus.Process
import Weft.Prometheus.Text
import Weft.Socket.Address (isLoopback)
import Weft.Static (CacheMetrics (..), Static, staticKept, staticMetrics)
import Weft.Sys (WordArray, addWord, newOwnWords, readWord)
import Weft.Watchdog (WatchdogMetrics (..), watchdogMetrics)

-- Requests ---------------------------------------------------------------------------------

-- | Counters of requests: a block of words for each capability. The threads of a capability add to its block
-- atomically, since a thread can be moved to another capability. The counters only increase.
newtype RequestCounters = RequestCounters (Each WordArray)

-- | The words of a block.
data Slot
  = Begun
  | Aborted
  | BodyBytes
  | Nanoseconds
  | -- | Requests by class of method and status.
    Answers !MethodClass !Int
  | -- | Requests that took no longer than this bound, but longer than the one before.
    Took !Int
  | Turned !Refusal

data MethodClass = Get | Head | Options | Other
  deriving (Eq, Show, Enum, Bounded)

-- | The index of a counter in its block.
place :: Slot -> Int
place slot = case slot of
  Begun -> 0
  Aborted -> 1
  BodyBytes -> 2
  Nanoseconds -> 3
  Answers method status -> 4 + 5 * fromEnum method + status - 1
  Took bucket -> 24 + bucket
  Turned refusal -> 24 + length bounds + 1 + fromEnum refusal
{-# INLINE place #-}

blockSize :: Int
blockSize = place (Turned maxBound) + 1

-- | Upper bounds of the durations, in seconds.
bounds :: [Double]
bounds = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60]

-- | Counters that are zero.
newRequestCounters :: IO RequestCounters
newRequestCounters = RequestCounters <$> newEach (newOwnWords blockSize)

-- | The calling thread's block.
ownBlock :: RequestCounters -> IO WordArray
ownBlock (RequestCounters blocks) = own blocks
{-# INLINE ownBlock #-}

add :: WordArray -> Slot -> Int -> IO ()
add block slot n = () <$ addWord block (place slot) n
{-# INLINE add #-}

-- | Count all requests of an application.
countRequests :: RequestCounters -> Middleware
countRequests counters = observing (countBegin counters) (countExchange counters)

-- | Count a request that begins. Use it with 'countExchange' in 'observing'.
countBegin :: RequestCounters -> IO ()
countBegin counters = ownBlock counters >>= \block -> add block Begun 1

-- | Count a request that has ended. Use it with 'countBegin' in 'observing'.
countExchange :: RequestCounters -> Request -> Exchange -> IO ()
countExchange counters request (Exchange status bytes (Duration ns) aborted) = do
  block <- ownBlock counters
  add block (Answers (methodClass (requestMethod request)) (max 1 (min 5 (status `quot` 100)))) 1
  add block (Took (bucketOf ns)) 1
  add block Nanoseconds (fromIntegral ns)
  forM_ bytes (add block BodyBytes)
  if aborted then add block Aborted 1 else pure ()
  where
    bucketOf n = length (takeWhile (< n) boundsNs)

boundsNs :: [Int64]
boundsNs = map (round . (1e9 *)) bounds

methodClass :: Method -> MethodClass
methodClass method
  | method == methodGet = Get
  | method == methodHead = Head
  | method == methodOptions = Options
  | otherwise = Other

-- | Count a connection that was closed before the application got a request; for
-- 'Weft.Http.optionOnRefused'.
countRefusal :: RequestCounters -> Refusal -> IO ()
countRefusal counters refusal = ownBlock counters >>= \block -> add block (Turned refusal) 1

-- Families ---------------------------------------------------------------------------------

-- | The metrics of requests.
requestFamilies :: RequestCounters -> IO [Family]
requestFamilies (RequestCounters blocks) = do
  all' <- everyOne blocks
  let get slot = sum <$> mapM (`readWord` place slot) all'
  -- Completed requests are read before those that have begun, so that the number in flight is never negative.
  counts <- mapM (\(m, s) -> (,) (m, s) <$> get (Answers m s)) [(m, s) | m <- [minBound ..], s <- [1 .. 5]]
  begun <- get Begun
  bytes <- get BodyBytes
  aborted <- get Aborted
  ns <- get Nanoseconds
  took <- mapM (get . Took) [0 .. length bounds]
  refused <- mapM (\r -> (,) r <$> get (Turned r)) [minBound ..]
  pure
    [ Family "http_requests_total" "Finished requests, by method and class of status." Counter [answered m s n | ((m, s), n) <- counts],
      gauge "http_requests_in_flight" "Requests in progress." (Whole (begun - sum (map snd counts))),
      counter "http_requests_aborted_total" "Requests that ended before their response was complete." (Whole aborted),
      counter "http_response_body_bytes_total" "Bytes of the bodies of complete responses, as far as their length is known." (Whole bytes),
      durations took ns,
      Family "http_refused_total" "Refused requests and connections, by reason." Counter (map turned refused)
    ]
  where
    answered method status n = Sample "" [("method", methodName method), ("status", C.pack (show (status :: Int) <> "xx"))] (Whole n)
    turned (reason, n) = Sample "" [("reason", C.pack (refusalReason reason))] (Whole n)

durations :: [Int] -> Int -> Family
durations took ns =
  Family "http_request_duration_seconds" "Time from a request's head to the last byte of its response." Histogram $
    zipWith bucket (map number bounds <> ["+Inf"]) upTo
      <> [Sample "_sum" [] (Real (fromIntegral ns / 1e9)), Sample "_count" [] (Whole (sum took))]
  where
    upTo = drop 1 (scanl (+) 0 took)
    bucket bound n = Sample "_bucket" [("le", bound)] (Whole n)
    number = L.toStrict . toLazyByteString . doubleDec

methodName :: MethodClass -> ByteString
methodName method = case method of
  Get -> "GET"
  Head -> "HEAD"
  Options -> "OPTIONS"
  Other -> "other"

-- | The metrics of a server: the number of its connections.
serverFamilies :: Server -> IO [Family]
serverFamilies server = do
  n <- serverConnections server
  pure [gauge "http_connections" "Open connections, busy or idle." (Whole n)]

-- | The metrics of a folder's cache.
cacheFamilies :: Static -> IO [Family]
cacheFamilies static = do
  metrics <- staticMetrics static
  kept <- staticKept static
  pure
    [ counter "static_cache_hits_total" "Requests for files answered from the cache." (Whole (cachedHits metrics)),
      counter "static_cache_misses_total" "Requests for files that were not in the cache." (Whole (cachedMisses metrics)),
      gauge "static_cache_entries" "Files in the cache." (Whole (cachedEntries metrics)),
      gauge "static_cache_bytes" "Bytes of the files in the cache." (Whole (cachedBytes metrics)),
      gauge "static_kept_files" "Files above the cache's reach that are kept open." (Whole kept)
    ]

-- | The metrics of an access log.
logFamilies :: AccessLog -> IO [Family]
logFamilies accessLog = do
  metrics <- logMetrics accessLog
  pure
    [ counter "access_log_lines_total" "Lines written to the access log." (Whole (logWritten metrics)),
      Family
        "access_log_lost_lines_total"
        "Lines of the access log that were lost: the buffer was full, or writing failed."
        Counter
        [Sample "" [("reason", "full")] (Whole (logDropped metrics)), Sample "" [("reason", "write")] (Whole (logFailed metrics))]
    ]

-- | The metrics of the event managers, by capability ("Weft.Metrics").
managerFamilies :: IO [Family]
managerFamilies = do
  metrics <- readMetrics
  watchdog <- watchdogMetrics
  let ofEach kind name text f = Family name text kind [Sample "" [byCapability (metricsCapability c)] (Whole (f c)) | c <- metricsCapabilities metrics]
      each = ofEach Counter
  pure
    [ gauge "weft_descriptors" "Descriptors that are registered with an event manager." (Whole (metricsRegistered metrics)),
      Family "weft_backend_info" "The back end of the capability's manager; always 1." Gauge [Sample "" [byCapability (metricsCapability c), ("backend", C.pack (metricsBackend c))] (Whole 1) | c <- metricsCapabilities metrics],
      each "weft_waits_total" "Waits of threads for a descriptor." metricsWaits,
      each "weft_events_total" "Events delivered to threads and callbacks." metricsDispatched,
      each "weft_polls_total" "Polls for events." (\c -> metricsPollsEmpty c + metricsPollsFull c),
      each "weft_polls_empty_total" "Polls that found nothing." metricsPollsEmpty,
      each "weft_sleeps_total" "Polls in which a manager blocked in the kernel." metricsSleeps,
      each "weft_wakeups_total" "System calls that woke a manager." metricsWakeupsSent,
      each "weft_wakeups_saved_total" "Wake-ups of a manager that needed no system call." metricsWakeupsSaved,
      each "weft_timers_set_total" "Timers that were set." metricsTimersSet,
      each "weft_timers_fired_total" "Timers that fired." metricsTimersFired,
      each "weft_timers_cancelled_total" "Timers that were cancelled." metricsTimersCancelled,
      ofEach Gauge "weft_timers_pending" "Timers that are pending." metricsTimersPending,
      ofEach Gauge "weft_capability_descriptors" "Descriptors whose events the capability's manager reports." metricsDescriptors,
      histogram
        "weft_wake_latency_seconds"
        "Time from the manager's receipt of an event to the running of the thread that waited for it; measured for one batch of events in 64."
        [([byCapability (metricsCapability c)], metricsWakeLatency c) | c <- metricsCapabilities metrics],
      histogram
        "weft_timer_lateness_seconds"
        "Time from the instant at which a timer was due to the round in which it fired."
        [([byCapability (metricsCapability c)], metricsTimerLateness c) | c <- metricsCapabilities metrics],
      Family
        "weft_longest_callback_seconds"
        "Longest time taken by the callbacks of a descriptor or by the timers of a turn, while there was a watchdog."
        Gauge
        [ Sample "" [byCapability (metricsCapability c), ("of", maybe "timers" (("descriptor " <>) . C.pack . show) fd)] (inSeconds longest)
          | c <- metricsCapabilities metrics,
            let (longest, fd) = metricsLongestCallback c,
            longest > mempty
        ],
      counter "weft_watchdog_stalls_total" "Times a capability was held for longer than the watchdog's bound." (Whole (watchdogStalls watchdog)),
      gauge "weft_watchdog_longest_seconds" "Longest of the times for which a capability was held, above the watchdog's bound." (inSeconds (watchdogLongest watchdog))
    ]

-- | The metrics of the requests of "Weft.File", by capability: those in rings, and those past the page cache that were
-- submitted by io_submit(2). There are none before the first such request, or if the kernel refuses these calls.
fileFamilies :: IO [Family]
fileFamilies = do
  rings <- readRingMetrics
  contexts <- readDirectMetrics
  let direct kind name text f = Family name text kind [Sample "" [byCapability (directCapability c)] (Whole (f c)) | c <- contexts]
      each kind name text f = Family name text kind [Sample "" [byCapability (ringCapability r)] (Whole (f r)) | r <- rings]
  pure
    [ each Gauge "weft_file_requests_in_flight" "File requests that were submitted to the kernel and are not complete." ringInFlight,
      each Gauge "weft_file_requests_waiting" "File requests that wait for a free slot in the ring." ringWaiting,
      each Counter "weft_file_requests_total" "File requests that were submitted to the ring." ringRequests,
      each Counter "weft_file_calls_total" "System calls by which the ring's owner submitted file requests and waited." ringEntered,
      each Counter "weft_file_cancels_total" "File requests for which cancelling was requested." ringCancels,
      direct Gauge "weft_file_direct_in_flight" "Reads and writes past the page cache that were submitted by io_submit and are not complete." directInFlight,
      direct Counter "weft_file_direct_requests_total" "Reads and writes past the page cache that were submitted by io_submit." directRequests
    ]

byCapability :: Int -> (ByteString, ByteString)
byCapability c = ("capability", C.pack (show c))

inSeconds :: Duration -> Value
inSeconds (Duration ns) = Real (fromIntegral ns / 1e9)

-- | A histogram for each set of labels, in Prometheus's form: the buckets are cumulative.
histogram :: ByteString -> ByteString -> [([(ByteString, ByteString)], HistogramCounts)] -> Family
histogram name text parts = Family name text Histogram (concatMap part parts)
  where
    part (labels, counts) =
      zipWith (bucket labels) (map bound bucketBounds <> ["+Inf"]) (drop 1 (scanl (+) 0 (countsBuckets counts)))
        <> [Sample "_sum" labels (inSeconds (countsSum counts)), Sample "_count" labels (Whole (countsTotal counts))]
    bucket labels upper n = Sample "_bucket" (labels <> [("le", upper)]) (Whole n)
    bound (Duration ns) = L.toStrict (toLazyByteString (doubleDec (fromIntegral ns / 1e9)))

-- Pages ------------------------------------------------------------------------------------

-- | Serve @\/metrics@ to requests for which the predicate holds; other requests go to the application.
metricsPage :: (Request -> IO Bool) -> IO [Family] -> Middleware
metricsPage allowed metrics app request respond
  | rawPathInfo request /= "/metrics" || not (isGet request) = app request respond
  | otherwise = do
    may <- allowed request
    if may
      then metrics >>= respond . page status200 expositionType . toLazyByteString . exposition
      else app request respond

-- | Whether a request comes from this machine. This includes requests that a proxy on this machine
-- forwards.
fromLoopback :: Request -> Bool
fromLoopback = isLoopback . remoteHost

-- | Serve @\/healthz@: @ok@, or 503 and @draining@ if the server should not get new
-- requests, as the action says.
healthPage :: IO Bool -> Middleware
healthPage healthy app request respond
  | rawPathInfo request /= "/healthz" || not (isGet request) = app request respond
  | otherwise = do
    well <- healthy
    respond $
      if well
        then page status200 "text/plain" "ok\n"
        else page status503 "text/plain" "draining\n"

isGet :: Request -> Bool
isGet request = requestMethod request `elem` [methodGet, methodHead]

page :: Status -> ByteString -> L.ByteString -> Response
page status mediaType text = responseLBS status fields text
  where
    fields = [(hContentType, mediaType), (hContentLength, C.pack (show (L.length text))), (hCacheControl, "no-store")]
