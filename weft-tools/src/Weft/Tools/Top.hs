{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft top@
--
-- A live view of a running program by its metrics page: its managers' activity on each capability, its requests, its
-- memory and its garbage collections. On a terminal the screen is updated in place and the keys q and ESC quit;
-- otherwise, or if @TERM@ is @dumb@, each reading is printed. Exit status: 0; 1 if the first reading fails, or any with
-- @--count@; 2 for bad arguments.
module Weft.Tools.Top
  ( topCommand,
    trusted,
    readPage,
    reportingPages,
  )
where

import Control.Concurrent (MVar, newEmptyMVar, takeMVar)
import Control.Concurrent.Async (race)
import Control.Exception (Exception, catch, throwIO, try)
import Control.Monad (void, when)
import Data.Char (isDigit)
import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import qualified Data.Text.IO as T
import Data.Time (defaultTimeLocale, formatTime, getZonedTime)
import Foreign.C.Error (Errno (..), eCONNREFUSED)
import GHC.Clock (getMonotonicTime)
import GHC.IO.Exception (IOException (ioe_description, ioe_errno, ioe_location))
import Network.HTTP.Types (hConnection, statusCode)
import Options.Applicative
import System.Exit (ExitCode (..), exitWith)
import System.IO
import System.IO.Error (isDoesNotExistError, isPermissionError)
import System.Timeout (timeout)
import Text.Read (readMaybe)
import Weft.Duration (seconds)
import Weft.Http.Client
import Weft.Socket (deadlineIn, isTimeout)
import Weft.Tls (TlsClientSettings (..), Trust, defaultTlsClientSettings)
import Weft.Tools.Dialled (dialError)
import Weft.Tools.Numbers (positive)
import Weft.Tools.StandardError (reportText)
import Weft.Tools.Surroundings (screenOn)
import Weft.Tools.Top.Readings
import Weft.Tools.Top.Terminal (onTerminal)
import Weft.Tools.Trust

-- | The subcommand.
topCommand :: Mod CommandFields (IO ())
topCommand =
  command "top" $
    info
      ( top <$> trustOption
          <*> argument (eitherReader (fmap metrics . target')) (metavar "URL" <> help "The metrics page: http://HOST:PORT (/metrics is added), https, or unix:FILE")
          <*> option period (long "interval" <> metavar "SECONDS" <> value 1 <> showDefault <> help "Time between two readings, from 0.05 to 86400")
          <*> optional (option positive (long "count" <> metavar "N" <> help "Number of readings, after which the command ends; it also ends if one fails"))
      )
      ( progDesc "Show what a running program does, live, over its metrics page"
          <> footer "Example: weft serve site --port 8080 & weft top http://127.0.0.1:8080. On a terminal, q or ESC ends it; elsewhere readings are printed as text. If the program stops answering, the command waits until it answers again; it ends with status 1 if the first reading fails, or any with --count."
          <> failureCode 2
      )
  where
    target' text
      | all isDigit text = Left ("weft top needs the URL of a program's metrics page; to check a process, use weft doctor " <> text)
      | otherwise = parseUrlOrSocket text
    period = eitherReader $ \text -> case readMaybe text of
      Just number | number >= 0.05, number <= 86400 -> Right number
      _ -> Left ("not a number of seconds from 0.05 to 86400: " <> text)
    metrics target = if urlPath target == "/" then target {urlPath = "/metrics"} else target

top :: Trust -> Url -> Double -> Maybe Int -> IO ()
top trust target interval count = reportingPages "weft top" $ do
  known <- trusted target trust
  watch (readPage known target) target interval count

-- | Read a target's page by the action and show it, at intervals in seconds.
watch :: IO Reading -> Url -> Double -> Maybe Int -> IO ()
watch readNow target interval count = do
  terminal <- (&&) <$> screenOn stdout <*> hIsTerminalDevice stdin
  quit <- newEmptyMVar
  if terminal then onTerminal quit (run terminal quit) else run terminal quit printed
  where
    run :: Bool -> MVar () -> ([Text] -> IO ()) -> IO ()
    run terminal quit display = do
      begun <- getMonotonicTime
      first <- readNow
      follow terminal quit display count (Seen begun first [title] Nothing)
    follow :: Bool -> MVar () -> ([Text] -> IO ()) -> Maybe Int -> Seen -> IO ()
    follow _ _ _ (Just 0) _ = pure ()
    follow terminal quit display left seen = do
      stopped <- timeout (round (interval * 1e6)) (takeMVar quit)
      now <- getMonotonicTime
      tried <- timeOfDay
      next <- maybe (race (takeMVar quit) readNext) (pure . Left) stopped
      case next of
        Left () -> pure ()
        Right (Left why) -> do
          let since = fromMaybe tried (silentSince seen)
              notice = "no answer since " <> since <> ": " <> why
          display (if terminal then title : notice : drop 1 (lastShown seen) else [notice])
          follow terminal quit display left seen {silentSince = Just since}
        Right (Right after) -> do
          let Screen shown = screenOf title (now - takenAt seen) (lastReading seen) after
          display shown
          follow terminal quit display (subtract 1 <$> left) (Seen now after shown Nothing)
    readNext = case count of
      Nothing -> either (\(PageError _ why) -> Left why) Right <$> try readNow
      Just _ -> Right <$> readNow
    title = "weft top: " <> name <> "   every " <> T.pack (show interval) <> " s"
    timeOfDay = T.pack . formatTime defaultTimeLocale "%T" <$> getZonedTime
    name = maybe (T.pack (hostAndPort target)) T.pack (urlUnix target)

-- | The last good reading.
data Seen = Seen
  { -- | The monotonic clock before it.
    takenAt :: Double,
    lastReading :: Reading,
    -- | The screen that was shown for it.
    lastShown :: [Text],
    -- | The time of day of the first of the readings that have failed since.
    silentSince :: Maybe Text
  }

-- | Show lines below those before.
printed :: [Text] -> IO ()
printed shown = mapM_ T.putStrLn shown >> T.putStrLn "" >> hFlush stdout

-- | A page could not be read: the exit status, where, and why.
data PageError = PageError Int Text
  deriving (Show)

instance Exception PageError

-- | Run a command that reads pages. If one cannot be read, ends the program with a message that begins with the
-- command's name, after the terminal was restored: on the alternate screen it would vanish with it.
reportingPages :: Text -> IO a -> IO a
reportingPages who act =
  act `catch` \(PageError status why) -> do
    reportText (who <> ": " <> why)
    exitWith (ExitFailure status)

-- | Load the authorities for a page, once for all readings. The error is for 'reportingPages'.
trusted :: Url -> Trust -> IO Trust
trusted target trust = trustFor target trust >>= either (throwIO . PageError 2 . T.pack) pure

-- | Read the page, on a new connection, from a server that is trusted. The errors are for 'reportingPages'.
readPage :: Trust -> Url -> IO Reading
readPage trust target =
  page `catch` (failed . whyNotRead . errorCause)
  where
    page = do
      due <- deadlineIn (seconds 5)
      answer <- withClient settings $ \client -> request client due (getRequest target) {requestFields = [(hConnection, "close")]}
      let text = T.decodeUtf8With T.lenientDecode (answerBody answer)
          found = parseReading text
          status = statusCode (answerStatus answer)
      when (status /= 200) . void . failed $ "status " <> T.pack (show status) <> (if status == 404 then "; weft serve has the page where --metrics-listen says" else "")
      when (null found) . void . failed $ "there are no metrics on that page"
      pure found
    settings = defaultClientSettings {clientTls = defaultTlsClientSettings {tlsTrust = trust}}
    whyNotRead cause = case cause of
      TimedOut -> late
      NotConnected e -> whyNot (dialError e)
      ConnectionBroken e -> whyNot e
      NotHttp _ -> "no HTTP is spoken there"
      OtherProtocol begins -> "no HTTP is spoken there; the answer is " <> T.pack (show begins)
      BodyTooLarge most -> "the page is larger than " <> T.pack (show (most `div` 1048576)) <> " MiB"
      InvalidRequest why -> T.pack why
      _ -> "the connection ended early"
    late = "no answer within 5 s"
    whyNot :: IOException -> Text
    whyNot e
      | isTimeout e = late
      | Just code <- ioe_errno e, Errno code == eCONNREFUSED = "no server listens there (connection refused)"
      | isDoesNotExistError e, Just file <- urlUnix target = "there is no socket " <> T.pack file
      | ioe_location e == "Weft.Tls" = tlsReason (ioe_description e) <> (if isPermissionError e then T.pack trustAdvice else "")
      -- Without the call and its arguments. A host without an address has no number of an error.
      | isDoesNotExistError e = maybe "no address: " (const "") (ioe_errno e) <> T.pack (ioe_description e)
      | otherwise = T.pack (show e)
    place = maybe (T.pack (hostAndPort target)) (("unix:" <>) . T.pack) (urlUnix target)
    failed :: Text -> IO Reading
    failed why = throwIO (PageError 1 (place <> " " <> T.decodeLatin1 (urlPath target) <> ": " <> why))
