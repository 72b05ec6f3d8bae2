-- |
-- An access log as WAI middleware. Logging does not delay a request: it puts the line into a buffer in memory, and
-- the log's thread writes many lines at a time to a file. If the thread cannot keep up, or the disk is full, lines are
-- dropped and counted.
--
-- > import Weft.AccessLog
-- > import Weft.Http
-- >
-- > main :: IO ()
-- > main = withAccessLog defaultLogSettings {logPath = "access.log"} $ \accessLog ->
-- >   run 8080 (logRequests accessLog application)
--
-- Each capability has a buffer, so lines that different capabilities log at almost the same time, also those of one
-- client with several connections, can be out of order by up to 'logDelay' and the time of a write.
--
-- A child of 'System.Posix.Process.forkProcess' can log to the log of its parent: it appends to the same file, with a
-- buffer and threads of its own, and its counters begin at 0. Lines that wait at the fork are written by the parent
-- alone. Nothing writes the child's last lines when it ends: it has to call 'flushLog' before. Each process reopens the
-- file for itself.
--
-- Any thread may call these functions. A line costs a request less than a microsecond,
-- and takes no lock that other capabilities use.
--
-- @since 0.1.0
module Weft.AccessLog
  ( -- * A log
    AccessLog,
    withAccessLog,
    LogSettings (..),
    LogFormat (..),
    defaultLogSettings,

    -- * Lines
    logRequests,
    logExchange,
    logRefusal,

    -- * Operation
    reopenLog,
    flushLog,

    -- * Metrics
    LogMetrics (..),
    logMetrics,
  )
where

import Control.Concurrent (forkIOWithUnmask, getNumCapabilities, killThread)
import Control.Concurrent.MVar
import Control.Exception (IOException, bracket, finally, mask, mask_, onException, try)
import Control.Monad (forM_, forever, unless, void, when)
import Data.ByteString (ByteString)
import Data.IORef
import Data.Maybe (isJust)
import Data.Time.Clock.POSIX (getPOSIXTime)
import GHC.Conc (labelThread)
import Network.HTTP.Types (Status)
import Network.Wai (Middleware, Request)
import Weft.AccessLog.Buffer
import Weft.AccessLog.Line
import Weft.AccessLog.Sink
import Weft.Blocking (blocking)
import Weft.Core.PerProcess
import Weft.Core.Time (Duration, Instant (..), after, milliseconds, seconds)
import qualified Weft.Core.Time as Time (until)
import Weft.Exchange
import Weft.Socket (SockAddr)
import Weft.StandardError (reportLine)
import Weft.Sys (now)
import Weft.Timer (within)

-- | Settings of a log. Begin with 'defaultLogSettings'.
data LogSettings = LogSettings
  { -- | The file that lines are appended to; @-@ is the standard output. It is created if it is
    -- missing, with permissions 0640. A named pipe must have a reader when it is opened.
    logPath :: !FilePath,
    logFormat :: !LogFormat,
    -- | Bytes for lines that wait to be written, over all capabilities together. (Up to the same amount may be
    -- being written at the same time.) Each capability gets at least the size of the longest line.
    logBuffer :: !Int,
    -- | How long a line is held back to be written together with others, while there is room.
    logDelay :: !Duration,
    -- | Called with the number of lines lost since the last call, and why: the error of the last failed write, or a
    -- user error if lines were only not written fast enough. It is called on a thread of the log, or of a caller of
    -- 'flushLog' or 'reopenLog': at most once a minute, and once more when the log is closed if lines were lost after
    -- that.
    logOnError :: !(IOException -> Int -> IO ())
  }

-- | The combined format, written to the standard output after a tenth of a second at most, with 1 MiB of memory; errors
-- are printed on the standard error.
defaultLogSettings :: LogSettings
defaultLogSettings =
  LogSettings
    { logPath = "-",
      logFormat = Combined,
      logBuffer = 1024 * 1024,
      logDelay = milliseconds 100,
      logOnError = \e n -> blocking (reportLine ("access log: " <> counted n <> " lost: " <> show e))
    }
  where
    counted n = show n <> (if n == 1 then " line" else " lines")

-- | An open log: what each process has of it.
newtype AccessLog = AccessLog (PerProcess Log)

-- | An open log, in one process.
data Log = Log
  { accessSettings :: !LogSettings,
    accessBuffer :: !Buffer,
    -- | The formatted current second. Any thread that finds it out of date replaces it;
    -- two may do so at once.
    accessDate :: !(IORef Date),
    -- | Full if there are lines to write. Emptied by the log's thread.
    accessWork :: !(MVar ()),
    -- | Full if the lines should be written at once. Emptied by the log's thread.
    accessUrgent :: !(MVar ()),
    -- | Held by the thread that takes out lines and writes them, so that they stay in order.
    accessSink :: !(MVar Sink),
    -- | The same sink, also while a thread holds it, for forked children; 'Nothing' once the log is closed. Written by
    -- the thread that holds the sink.
    accessCurrent :: !(IORef (Maybe Sink)),
    -- | The number of lines written, and the number lost by failed writes. Changed while the sink is held.
    accessWritten :: !(IORef Int),
    accessFailed :: !(IORef Int),
    -- | Held for a moment by any thread, so that failures and dropped lines are reported while another one holds the
    -- sink and waits for a pipe or a disk.
    accessLosses :: !(MVar Losses),
    -- | Full if lines were lost. Emptied by the thread that reports them.
    accessLost :: !(MVar ())
  }

-- | What is known of lost lines.
data Losses = Losses
  { -- | The lines lost since the last report, and the last error.
    lossesUnreported :: !(Maybe (IOException, Int)),
    -- | How many of the lines for which there was no room this or an earlier report includes.
    lossesDropped :: !Int,
    -- | The instant before which there is no further report.
    lossesQuiet :: !Instant
  }

-- | Run an action with a log. Afterwards the remaining lines are written, for two seconds at
-- most. Throws an 'IOError' if the file cannot be opened.
withAccessLog :: LogSettings -> (AccessLog -> IO a) -> IO a
withAccessLog settings act = bracket open close $ \accessLog ->
  -- The log's threads end last, so that a write in progress is completed.
  running writerLabel (writer accessLog) $
    running reporterLabel (reporter accessLog) $
      (newPerProcessFrom inherited accessLog >>= act . AccessLog) `finally` within (seconds 2) (flush accessLog)
  where
    open = openSink (logPath settings) >>= newLog settings . Just
    -- No thread holds the sink any more.
    close accessLog =
      (writeIORef (accessCurrent accessLog) Nothing >> tryTakeMVar (accessSink accessLog) >>= mapM_ closeSink)
        `finally` within (seconds 2) (abandon accessLog >> report True accessLog)
    -- Lines that nobody has taken in two seconds.
    abandon accessLog = do
      left <- sum . map batchLines <$> takeBatches (accessBuffer accessLog)
      when (left > 0) (failed accessLog tooSlow left)

newLog :: LogSettings -> Maybe Sink -> IO Log
newLog settings sink = do
  capabilities <- getNumCapabilities
  Log settings
    <$> newBuffer capabilities (max longestLine (logBuffer settings `quot` capabilities))
    <*> (newIORef =<< currentDate)
    <*> newEmptyMVar
    <*> newEmptyMVar
    <*> maybe newEmptyMVar newMVar sink
    <*> newIORef sink
    <*> newIORef 0
    <*> newIORef 0
    <*> newMVar (Losses Nothing 0 (Instant minBound))
    <*> newEmptyMVar

-- | The log of a forked child, with threads that end with the process.
inherited :: Log -> IO Log
inherited parents = do
  sink <- readIORef (accessCurrent parents) >>= mapM inheritedSink
  accessLog <- newLog (accessSettings parents) sink
  when (isJust sink) $
    forM_ [(writerLabel, writer), (reporterLabel, reporter)] $ \(name, loop) -> do
      thread <- forkIOWithUnmask (\unmask -> unmask (loop accessLog))
      labelThread thread name
  pure accessLog

-- | What a process has of the log.
here :: AccessLog -> (Log -> IO a) -> IO a
here (AccessLog logs) act = ofThisProcess logs >>= act

writerLabel, reporterLabel :: String
writerLabel = "weft access log"
reporterLabel = "weft access log: lost lines"

-- | Run an action while a thread runs another one. Afterwards that thread has ended: it holds no sink any more, and has
-- counted the lines that it could not write.
running :: String -> IO () -> IO a -> IO a
running name loop = bracket start stop . const
  where
    start = do
      ended <- newEmptyMVar
      t <- forkIOWithUnmask (\unmask -> unmask loop `finally` putMVar ended ())
      labelThread t name
      pure (t, ended)
    stop (t, ended) = killThread t >> takeMVar ended

-- | The loop of the log's thread.
writer :: Log -> IO ()
writer accessLog = forever $ do
  takeMVar (accessWork accessLog)
  _ <- within (logDelay (accessSettings accessLog)) (takeMVar (accessUrgent accessLog))
  flush accessLog

-- | The loop of the thread that reports lost lines, also while the other one waits for the reader of a pipe.
reporter :: Log -> IO ()
reporter accessLog = forever $ do
  takeMVar (accessLost accessLog)
  -- More may follow.
  sleep (logDelay (accessSettings accessLog))
  untilDue
  report False accessLog
  where
    untilDue = do
      quiet <- lossesQuiet <$> readMVar (accessLosses accessLog)
      t <- now
      when (t < quiet) (sleep (quiet `Time.until` t) >> untilDue)
    sleep d = newEmptyMVar >>= \forGood -> void (within d (takeMVar forGood :: IO ()))

-- Lines ------------------------------------------------------------------------------------

-- | Log each request when it has ended.
logRequests :: AccessLog -> Middleware
logRequests accessLog = observing (pure ()) (logExchange accessLog)

-- | Log one completed request, as measured by 'observing'. Does not block or throw.
logExchange :: AccessLog -> Request -> Exchange -> IO ()
logExchange accessLog request exchange = logLine accessLog (Answered request exchange)

-- | Log a connection that was closed before the application got a request: the client's address,
-- the status that was sent, if any, and the reason. Does not block or throw.
logRefusal :: AccessLog -> SockAddr -> Maybe Status -> ByteString -> IO ()
logRefusal accessLog peer status reason = logLine accessLog (Refused peer status reason)

logLine :: AccessLog -> Subject -> IO ()
logLine logs subject = here logs $ \accessLog -> do
  date <- theDate accessLog
  outcome <- append (accessBuffer accessLog) (line (logFormat (accessSettings accessLog)) date subject)
  case outcome of
    Kept -> pure ()
    Dropped -> wakeReporter accessLog
    First -> void (tryPutMVar (accessWork accessLog) ())
    HalfFull -> tryPutMVar (accessUrgent accessLog) () >> void (tryPutMVar (accessWork accessLog) ())

-- | The formatted current second.
theDate :: Log -> IO Date
theDate accessLog = do
  date <- readIORef (accessDate accessLog)
  t <- now
  if t < dateEnds date
    then pure date
    else do
      fresh <- currentDate
      fresh <$ writeIORef (accessDate accessLog) fresh

-- | The current second, formatted and evaluated, so that no other thread has to evaluate it.
currentDate :: IO Date
currentDate = do
  t <- now
  time <- getPOSIXTime
  let !date = dateAt t time
  pure date

-- Operation --------------------------------------------------------------------------------

-- | Reopen the file by its name, as logrotate and similar programs require after they have renamed the
-- file. When it returns, earlier lines are in the old file and later ones go to the new file; none is
-- lost. If the new file cannot be opened, an 'IOError' is thrown and the old one stays in use. No effect on the
-- standard output.
reopenLog :: AccessLog -> IO ()
reopenLog logs = here logs $ \accessLog -> do
  let path = logPath (accessSettings accessLog)
  unless (path == "-") $
    mask $ \restore -> do
      sink <- openSink path
      old <- takeMVar (accessSink accessLog) `onException` closeSink sink
      let exchange = do
            writeIORef (accessCurrent accessLog) (Just sink)
            putMVar (accessSink accessLog) sink
            closeSink old
      restore (drain accessLog old) `finally` exchange

-- | Write all lines that were logged so far. Waits for the disk, or for the reader of a pipe.
flushLog :: AccessLog -> IO ()
flushLog logs = here logs flush

flush :: Log -> IO ()
flush accessLog = withMVar (accessSink accessLog) (drain accessLog)

-- | Write all lines; the caller holds the sink. If it is interrupted, the lines that were not written are lost.
drain :: Log -> Sink -> IO ()
drain accessLog sink = mask $ \restore -> do
  before <- settled
  batches <- takeBatches (accessBuffer accessLog)
  let rest = do
        after' <- settled
        failed accessLog tooSlow (sum (map batchLines batches) - (after' - before))
  restore (mapM_ write batches) `onException` rest
  restore (report False accessLog)
  where
    settled = (+) <$> readIORef (accessWritten accessLog) <*> readIORef (accessFailed accessLog)
    write batch = do
      before <- readIORef (accessWritten accessLog)
      failure <- writeSink (\n -> modifyIORef' (accessWritten accessLog) (+ n)) sink (batchMemory batch) (batchBytes batch)
      forM_ failure $ \e -> do
        written <- subtract before <$> readIORef (accessWritten accessLog)
        failed accessLog e (batchLines batch - written)

-- Lost lines -------------------------------------------------------------------------------

-- | Lines could not be written. The caller holds the sink, or closes the log.
failed :: Log -> IOException -> Int -> IO ()
failed accessLog e n = mask_ $ do
  modifyIORef' (accessFailed accessLog) (+ n)
  unreported accessLog e n

-- | Lines are to be reported as lost.
unreported :: Log -> IOException -> Int -> IO ()
unreported accessLog e n = do
  modifyMVar_ (accessLosses accessLog) $ \losses ->
    let !m = maybe 0 snd (lossesUnreported losses) + n in pure losses {lossesUnreported = Just (e, m)}
  wakeReporter accessLog

wakeReporter :: Log -> IO ()
wakeReporter accessLog = void (tryPutMVar (accessLost accessLog) ())

tooSlow :: IOException
tooSlow = userError "they were not written fast enough"

-- | Report the lines that were lost since the last report, if there are any, and, unless the log is being closed, if
-- the last report was long enough ago. If it is interrupted, they are left for the next report.
report :: Bool -> Log -> IO ()
report closing accessLog = mask $ \restore -> do
  t <- now
  dropped <- droppedLines (accessBuffer accessLog)
  due <- modifyMVar (accessLosses accessLog) $ \before -> do
    let losses = includeDropped dropped before
    pure $ case lossesUnreported losses of
      Just loss
        | closing || t >= lossesQuiet losses ->
          (losses {lossesUnreported = Nothing, lossesQuiet = seconds 60 `after` t}, Just loss)
      _ -> (losses, Nothing)
  forM_ due $ \(e, n) -> do
    let tell = try (restore (logOnError (accessSettings accessLog) e n)) :: IO (Either IOException ())
    void tell `onException` unreported accessLog e n

-- | Add the lines for which there was no room, given their number since the log was opened.
includeDropped :: Int -> Losses -> Losses
includeDropped dropped losses
  | new > 0 = losses {lossesUnreported = Just (maybe (tooSlow, new) more (lossesUnreported losses)), lossesDropped = dropped}
  | otherwise = losses
  where
    new = dropped - lossesDropped losses
    more (e, n) = let !m = n + new in (e, m)

-- Metrics ----------------------------------------------------------------------------------

-- | Counters of a log, in lines.
data LogMetrics = LogMetrics
  { logWritten :: !Int,
    -- | Dropped because there was no room.
    logDropped :: !Int,
    -- | Lost because a write failed or was interrupted.
    logFailed :: !Int
  }
  deriving (Eq, Show)

-- | Read the counters.
logMetrics :: AccessLog -> IO LogMetrics
logMetrics logs = here logs $ \accessLog ->
  LogMetrics
    <$> readIORef (accessWritten accessLog)
    <*> droppedLines (accessBuffer accessLog)
    <*> readIORef (accessFailed accessLog)
