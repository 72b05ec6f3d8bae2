-- |
-- An access log as WAI middleware. Writing it never makes a request wait: a line goes into
-- memory, from where a thread of the log's own takes it to a file, many at a time. When that
-- cannot keep up, or the disk is full, lines are lost and counted, and nothing else happens.
--
-- > import Weft.AccessLog
-- > import Weft.Http
-- >
-- > main :: IO ()
-- > main = withAccessLog defaultLogSettings {logPath = "access.log"} $ \accessLog ->
-- >   run 8080 (logRequests accessLog application)
--
-- Everything may be called from any thread. A line costs a request well below a microsecond
-- and no lock that another capability holds.
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

    -- * Figures
    LogMetrics (..),
    logMetrics,
  )
where

import Control.Concurrent (forkIOWithUnmask, getNumCapabilities, killThread)
import Control.Concurrent.MVar
import Control.Exception (IOException, bracket, finally, mask, onException, try)
import Control.Monad (forM_, forever, unless, void, when)
import Data.ByteString (ByteString)
import Data.IORef
import Data.Time.Clock.POSIX (getPOSIXTime)
import GHC.Conc (labelThread)
import Network.HTTP.Types (Status)
import Network.Wai (Middleware, Request)
import System.IO (hPutStrLn, stderr)
import Weft.AccessLog.Buffer
import Weft.AccessLog.Line
import Weft.AccessLog.Sink
import Weft.Blocking (blocking)
import Weft.Core.Time (Duration, Instant (..), after, milliseconds, seconds)
import Weft.Exchange
import Weft.Socket (SockAddr)
import Weft.Sys (now)
import Weft.Timer (within)

-- | How a log is kept.
data LogSettings = LogSettings
  { -- | The file, at whose end is written; @-@ is the standard output. It is made if it is
    -- missing, with permissions 0640.
    logPath :: !FilePath,
    logFormat :: !LogFormat,
    -- | Bytes for lines that wait to be written, of all capabilities, while as many again
    -- are being written. Each capability has 'longestLine' at least.
    logBuffer :: !Int,
    -- | A line waits so long for others at most, if there is room.
    logDelay :: !Duration,
    -- | Told of a write that failed, and how many lines were lost by it; then not again for a
    -- minute. Run by the log's thread.
    logOnError :: !(IOException -> Int -> IO ())
  }

-- | Combined lines to the standard output, after a tenth of a second, from 1 MiB; errors
-- are said on the standard error.
defaultLogSettings :: LogSettings
defaultLogSettings =
  LogSettings
    { logPath = "-",
      logFormat = Combined,
      logBuffer = 1024 * 1024,
      logDelay = milliseconds 100,
      logOnError = \e n -> blocking (hPutStrLn stderr ("access log: " <> show n <> " lines lost: " <> show e))
    }

-- | An open log.
data AccessLog = AccessLog
  { accessSettings :: !LogSettings,
    accessBuffer :: !Buffer,
    -- | The text of the present second. Replaced by any thread that finds it out of date;
    -- that two do so at once is no harm.
    accessDate :: !(IORef Date),
    -- | Full when there is something to write. Emptied by the log's thread.
    accessWork :: !(MVar ()),
    -- | Full when it should be written now. Likewise.
    accessUrgent :: !(MVar ()),
    -- | Who takes lines out and writes them holds it: they stay in order.
    accessSink :: !(MVar Sink),
    -- | Lines written, and lines that a failed write lost. Changed by who holds the sink.
    accessWritten :: !(IORef Int),
    accessFailed :: !(IORef Int),
    -- | When a failure may be reported again; likewise.
    accessQuiet :: !(IORef Instant)
  }

-- | Keep a log for as long as the action takes; then write what is left, for two seconds at
-- most. Throws an 'IOError' when the file cannot be opened.
withAccessLog :: LogSettings -> (AccessLog -> IO a) -> IO a
withAccessLog settings act = bracket open close $ \accessLog ->
  -- The thread ends last: what it is writing is complete then.
  bracket (start accessLog) killThread (const (act accessLog `finally` within (seconds 2) (flushLog accessLog)))
  where
    open = do
      capabilities <- getNumCapabilities
      sink <- openSink (logPath settings)
      AccessLog settings
        <$> newBuffer capabilities (max longestLine (logBuffer settings `quot` capabilities))
        <*> (newIORef =<< currentDate)
        <*> newEmptyMVar
        <*> newEmptyMVar
        <*> newMVar sink
        <*> newIORef 0
        <*> newIORef 0
        <*> newIORef (Instant minBound)
    -- Nobody holds the sink any more.
    close accessLog = tryTakeMVar (accessSink accessLog) >>= mapM_ closeSink
    start accessLog = do
      t <- forkIOWithUnmask (\unmask -> unmask (writer accessLog))
      t <$ labelThread t "weft access log"

-- | The log's thread.
writer :: AccessLog -> IO ()
writer accessLog = forever $ do
  takeMVar (accessWork accessLog)
  _ <- within (logDelay (accessSettings accessLog)) (takeMVar (accessUrgent accessLog))
  flushLog accessLog

-- Lines ------------------------------------------------------------------------------------

-- | Log each request when it is over.
logRequests :: AccessLog -> Middleware
logRequests accessLog = observing (pure ()) (logExchange accessLog)

-- | Log one request that is over, measured by 'observing'. Does not block or throw.
logExchange :: AccessLog -> Request -> Exchange -> IO ()
logExchange accessLog request exchange = logLine accessLog (Answered request exchange)

-- | Log a connection that was closed without a request for the application: whose it was,
-- what it was told, if anything, and why, in a word. Does not block or throw.
logRefusal :: AccessLog -> SockAddr -> Maybe Status -> ByteString -> IO ()
logRefusal accessLog peer status reason = logLine accessLog (Refused peer status reason)

logLine :: AccessLog -> Subject -> IO ()
logLine accessLog subject = do
  date <- theDate accessLog
  outcome <- append (accessBuffer accessLog) (line (logFormat (accessSettings accessLog)) date subject)
  case outcome of
    Kept -> pure ()
    Dropped -> pure ()
    First -> void (tryPutMVar (accessWork accessLog) ())
    HalfFull -> tryPutMVar (accessUrgent accessLog) () >> void (tryPutMVar (accessWork accessLog) ())

-- | The text of the present second.
theDate :: AccessLog -> IO Date
theDate accessLog = do
  date <- readIORef (accessDate accessLog)
  t <- now
  if t < dateEnds date
    then pure date
    else do
      fresh <- currentDate
      fresh <$ writeIORef (accessDate accessLog) fresh

-- | Evaluated, so that nobody waits for another's work.
currentDate :: IO Date
currentDate = do
  t <- now
  time <- getPOSIXTime
  let !date = dateAt t time
  pure date

-- Operation --------------------------------------------------------------------------------

-- | Open the file again, which may be another one of the same name by now: what logrotate
-- and the like want after they have renamed it. Lines that were logged before are in the old
-- one when it returns, those after it go to the new one, and none is lost. When that cannot
-- be opened an 'IOError' is thrown and the old one stays. On the standard output it does nothing.
reopenLog :: AccessLog -> IO ()
reopenLog accessLog = unless (path == "-") $
  mask $ \restore -> do
    sink <- openSink path
    old <- takeMVar (accessSink accessLog) `onException` closeSink sink
    restore (drain accessLog old) `finally` (putMVar (accessSink accessLog) sink >> closeSink old)
  where
    path = logPath (accessSettings accessLog)

-- | Write what was logged so far. Waits for the disk, or for who reads the pipe.
flushLog :: AccessLog -> IO ()
flushLog accessLog = withMVar (accessSink accessLog) (drain accessLog)

-- | Write all lines; the caller holds the sink.
drain :: AccessLog -> Sink -> IO ()
drain accessLog sink = do
  batches <- takeBatches (accessBuffer accessLog)
  forM_ batches $ \batch -> do
    outcome <- try (writeSink sink (batchMemory batch) (batchBytes batch))
    case outcome of
      Right () -> modifyIORef' (accessWritten accessLog) (+ batchLines batch)
      Left e -> do
        modifyIORef' (accessFailed accessLog) (+ batchLines batch)
        report e (batchLines batch)
  where
    report e count = do
      t <- now
      quiet <- readIORef (accessQuiet accessLog)
      when (t >= quiet) $ do
        writeIORef (accessQuiet accessLog) (seconds 60 `after` t)
        void (try (logOnError (accessSettings accessLog) e count) :: IO (Either IOException ()))

-- Figures ----------------------------------------------------------------------------------

-- | How a log is doing, in lines.
data LogMetrics = LogMetrics
  { logWritten :: !Int,
    -- | There was no room for them.
    logDropped :: !Int,
    -- | They could not be written.
    logFailed :: !Int
  }
  deriving (Eq, Show)

-- | The present figures.
logMetrics :: AccessLog -> IO LogMetrics
logMetrics accessLog =
  LogMetrics <$> readIORef (accessWritten accessLog) <*> droppedLines (accessBuffer accessLog) <*> readIORef (accessFailed accessLog)
