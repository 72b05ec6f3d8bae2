{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft trace@
--
-- Records the activity of a program's capabilities and event managers in GHC's event log, and draws it. Exit status:
-- the program's; 1 if a log cannot be read, is damaged or is not complete (when it is recorded, only if its program has
-- ended by itself); 2 for bad arguments and for programs that cannot log.
module Weft.Tools.Trace
  ( traceCommand,
    traceSubcommands,
  )
where

import Control.Concurrent (newEmptyMVar, takeMVar, threadDelay, tryPutMVar)
import Control.Concurrent.Async (withAsync)
import Control.Exception (AsyncException (UserInterrupt), bracket, catch, onException, throwIO, try)
import Control.Monad (forM_, unless, void, when)
import qualified Data.ByteString as B
import Data.List (isPrefixOf)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import GHC.IO.Exception (IOException (ioe_description))
import Options.Applicative
import System.Directory (canonicalizePath, doesDirectoryExist, doesFileExist, makeAbsolute, removeFile, renameFile)
import System.Exit (ExitCode (..), exitWith)
import System.FilePath (replaceExtension, takeDirectory, takeFileName)
import System.IO (IOMode (ReadMode), hFileSize, withBinaryFile)
import System.IO.Error (isDoesNotExistError, isPermissionError)
import System.Posix.Files (getFileStatus, isDirectory, isRegularFile)
import System.Posix.Process (getProcessID)
import System.Posix.Signals (Handler (Catch, Ignore), installHandler, sigHUP, sigINT, sigKILL, sigTERM, signalProcess)
import System.Process (createProcess, delegate_ctlc, getPid, proc, terminateProcess, waitForProcess)
import Weft.Tools.Binary (Linked (..), howLinked, mentions, optionsAmong)
import Weft.Tools.Numbers (renderNumber)
import Weft.Tools.Output (checkOutputs, sameFile, writeOut, writeText)
import Weft.Tools.Proc (availableBytes)
import Weft.Tools.StandardError (reportText)
import Weft.Tools.Subcommand
import Weft.Tools.Surroundings (findProgram)
import Weft.Tools.Trace.Chrome (chromeTrace)
import Weft.Tools.Trace.Log (End (..), Recording (..), checkLog, readLog)
import Weft.Tools.Trace.Page (timelinePage)
import Weft.Tools.Trace.Timeline
import Weft.WholeFile (programLimit, readWholeFile)

-- | Its subcommands.
traceSubcommands :: [Subcommand]
traceSubcommands = [viewCommand]

-- | The subcommand.
traceCommand :: Mod CommandFields (IO ())
traceCommand =
  command "trace" $
    info
      (hsubparser (subcommands traceSubcommands) <|> record <$> output <*> program <*> arguments)
      ( noIntersperse
          <> progDesc "Record the activity of a program's cores and event managers, or show a recording"
          <> footer
            "Example: weft trace -o pong.eventlog -- ./pong +RTS -N2, then weft trace view pong.eventlog. The program has to be linked with \
            \-rtsopts and, before GHC 9.4, with -eventlog."
          <> failureCode 2
      )
  where
    output = strOption (long "output" <> short 'o' <> metavar "FILE" <> value "weft.eventlog" <> showDefault <> help "The recording")
    program = strArgument (metavar "PROGRAM" <> help "A Haskell program; what follows it is for the program, with or without -- in front of it")
    arguments = many (strArgument (metavar "ARGS..." <> help "Its arguments, +RTS options too"))

viewCommand :: Subcommand
viewCommand =
  subcommand "view" $
    info
      ( view <$> strArgument (metavar "FILE" <> help "An event log, from weft trace or +RTS -l")
          <*> optional (strOption (long "output" <> short 'o' <> metavar "FILE.html" <> help "Where to write the page (default: FILE with the extension html); - is standard output"))
          <*> optional (strOption (long "json" <> metavar "FILE.json" <> help "Also write JSON for Perfetto and chrome://tracing"))
      )
      ( progDesc "Write a recording as an HTML page: a timeline of each core, wake-ups, latencies"
          <> footer "Example: weft trace view pong.eventlog --json pong.json. Exit status: 1 if the recording is cut off or damaged; the page then shows what is before that."
          <> failureCode 2
      )

record :: FilePath -> FilePath -> [String] -> IO ()
record output program arguments = do
  here <- doesFileExist program
  path <- if here then Just <$> makeAbsolute program else findProgram program
  case path of
    Nothing -> refuse (T.pack program <> ": no such program")
    Just found -> do
      let folder = takeDirectory output
      exists <- doesDirectoryExist folder
      unless exists (refuse ("there is no folder " <> T.pack folder <> " for the recording"))
      kind <- try (getFileStatus output)
      case kind of
        Right status
          | isDirectory status -> refuse (T.pack output <> " is a folder")
          | not (isRegularFile status) -> refuse (T.pack output <> " is not a file")
        Right _ -> pure ()
        Left e -> unless (isDoesNotExistError e) (refuse (T.pack output <> ": " <> T.pack (ioe_description e)))
      forM_ (filter ("-ol" `isPrefixOf`) (optionsAmong arguments)) $ \elsewhere ->
        refuse (T.pack elsewhere <> " among the program's arguments would send the log to another file: leave it out, and name the file with weft trace -o FILE")
      -- A symbolic link stays one.
      target <- canonicalizePath output
      content <- try (readWholeFile programLimit found) >>= either (\e -> refuse (T.pack program <> ": " <> T.pack (ioe_description e))) pure
      case howLinked content of
        Just (Linked _ False) -> refuse (T.pack program <> " cannot write an event log: link it with -rtsopts -eventlog (from GHC 9.4 on, -rtsopts is enough)")
        -- In a program that is linked dynamically, the run-time system is a library. A script may pass its arguments
        -- on.
        Nothing | "\x7f\&ELF" `B.isPrefixOf` content && not (mentions "libHSrts" content) -> refuse (T.pack program <> " is not a Haskell program: it has no run-time system of GHC")
        _ -> pure ()
      -- An earlier recording stays until there is a new one.
      let kept = target <> ".new"
      removeFile kept `catch` \e -> unless (isDoesNotExistError e) (refuse (T.pack kept <> ": " <> T.pack (show e)))
      -- Two commands may record to one file at a time: each has a file of its own until its program has ended.
      own <- getProcessID
      let new = target <> "." <> show own <> ".new"
      removeFile new `catch` \e -> unless (isDoesNotExistError e) (throwIO e)
      -- Scheduler events, garbage collections, user events and labels only.
      let options = ["+RTS", "-l-asgu", "-ol" <> new, "-RTS"]
      code <- runToEnd found (options <> arguments)
      there <- doesFileExist new
      unless there . refuse $
        T.pack program <> ending code <> " wrote no event log: " <> case code of
          ExitFailure n | n < 0 -> "it writes the log when it ends by itself"
          _ -> "link it with -rtsopts and, before GHC 9.4, with -eventlog"
      checked <- checkLog new
      earlier <- doesFileExist target
      let replaces = checked == Right Complete || not earlier
          recorded = T.pack (if replaces then output else kept)
      renameFile new (if replaces then target else kept)
      case checked of
        Left why -> damaged code (recorded <> " is " <> why)
        Right (DamagedAt at) -> damaged code (recorded <> " is damaged from byte " <> T.pack (show at) <> " on. A program that forks cannot be recorded: its processes write to the same file")
        Right CutOff | code == ExitSuccess -> damaged code (recorded <> " is not complete, although " <> T.pack program <> " ended by itself. It has replaced itself by another program (execve), it has processes that write to the same file (fork), or the disk is full")
        Right end -> do
          reportText ("weft trace: " <> recorded <> " (weft trace view " <> recorded <> " shows it as a page)")
          when (end == CutOff) $
            reportText ("weft trace: " <> T.pack program <> ending code <> " did not write the end of its log: the recording is incomplete")
          exitWith code
  where
    -- Never a success.
    damaged code why = reportText ("weft trace: " <> why) >> exitWith (if code == ExitSuccess then ExitFailure 1 else code)

-- | Run a program in the foreground until it ends. Ctrl-C is for the program, which usually ends by it and writes its
-- log: 'waitForProcess' then throws 'UserInterrupt', after the program has ended by SIGINT. SIGTERM and SIGHUP are
-- passed on as SIGINT; a program that does not end within ten seconds is killed.
runToEnd :: FilePath -> [String] -> IO ExitCode
runToEnd program arguments = do
  told <- newEmptyMVar
  handling told $ do
    (_, _, _, child) <- createProcess (proc program arguments) {delegate_ctlc = True}
    ended <- withAsync (passOn told child) $ \_ -> try (waitForProcess child `onException` terminateProcess child)
    case ended of
      Right code -> pure code
      Left UserInterrupt -> pure (ExitFailure (negate (fromIntegral sigINT)))
      Left other -> throwIO other
  where
    handling told act = foldr (\signal -> bracket (catching told signal) (\old -> installHandler signal old Nothing) . const) act [sigTERM, sigHUP]
    -- A signal that is ignored, as by nohup, stays so.
    catching told signal = do
      old <- installHandler signal (Catch (void (tryPutMVar told ()))) Nothing
      case old of
        Ignore -> old <$ installHandler signal Ignore Nothing
        _ -> pure old
    passOn told child = do
      () <- takeMVar told
      tell sigINT child
      threadDelay 10000000
      tell sigKILL child
    tell signal child = getPid child >>= mapM_ (signalProcess signal)

-- | How a program failed, in front of what it did not do.
ending :: ExitCode -> T.Text
ending code = case code of
  ExitSuccess -> ""
  ExitFailure n
    | n < 0 -> " was ended by signal " <> T.pack (show (negate n)) <> " and"
    | otherwise -> " ended with status " <> T.pack (show n) <> " and"

view :: FilePath -> Maybe FilePath -> Maybe FilePath -> IO ()
view file page json = do
  let target = fromMaybe (replaceExtension file "html") page
      printed = target == "-"
      outputs = [target | not printed] <> maybe [] pure json
  overwritten <- or <$> mapM (sameFile file) outputs
  when overwritten $ refuse (T.pack file <> " would be overwritten: name another file with -o")
  twice <- if printed then pure False else maybe (pure False) (sameFile target) json
  when twice $ refuse ("the page and the JSON cannot both be in " <> T.pack target)
  readable <- try (sizeOf =<< getFileStatus file)
  free <- availableBytes
  found <- case readable of
    Left e -> pure (Left (whyNot e))
    Right 0 -> pure (Left "it is empty: its program has not ended yet, or was killed before it wrote anything")
    Right size | Just why <- tooLarge size free -> pure (Left why)
    Right _ -> either (Left . ("it is " <>)) Right <$> readLog file
  case found of
    Left why -> reportText ("weft trace: " <> T.pack file <> ": " <> why) >> exitWith (ExitFailure 1)
    Right (Recording [] CutOff) ->
      reportText ("weft trace: " <> T.pack file <> ": it has no events: its program was killed before it wrote any") >> exitWith (ExitFailure 1)
    Right (Recording entries end) -> do
      checkOutputs "weft trace" outputs
      let timeline = timelineOf entries
          name = T.pack (takeFileName file)
          unmarked = not (any (`M.member` timelineCounts timeline) ["sleeps", "events handed"])
          content = timelinePage name (remarksOn end <> [noMarkers | unmarked]) timeline
          -- Nothing else may be in a page on standard output.
          written output = unless printed (T.putStrLn (T.pack output))
      if printed then T.putStr content else writeText target content >> written target
      mapM_ (\output -> writeOut output (chromeTrace name timeline) >> written output) json
      when (end == CutOff) $
        reportText ("weft trace: " <> T.pack file <> " is not complete, as if its program had been killed or the file cut off: the page shows what is there")
      when unmarked $ reportText ("weft trace: " <> noMarkers)
      case end of
        DamagedAt at -> reportText ("weft trace: " <> T.pack file <> " is damaged: of what is in the file from byte " <> T.pack (show at) <> " on, at most the first events are shown")
        _ -> pure ()
      unless (end == Complete) $ exitWith (ExitFailure 1)
  where
    sizeOf status
      | isDirectory status = ioError (userError "it is a folder")
      | not (isRegularFile status) = ioError (userError "it is not a file")
      | otherwise = withBinaryFile file ReadMode hFileSize

-- | What the page says of a recording without its end.
remarksOn :: End -> [Text]
remarksOn end = case end of
  Complete -> []
  CutOff -> ["The recording is not complete, as if its program had been killed or the file cut off: this page shows what is there."]
  DamagedAt at -> ["The recording is damaged: of what is in the file from byte " <> T.pack (show at) <> " on, at most the first events are shown."]

noMarkers :: Text
noMarkers = "The recording has no markers of Weft: the program does not run on Weft, or user events were off (+RTS -lu)"

-- | Whether a recording of the given size is too large for the given amount of free memory. Measured: 517 MB for a
-- recording of 35 MB.
tooLarge :: Integer -> Double -> Maybe Text
tooLarge size free
  | need > free = Just (T.concat ["it has ", gigabytes (fromIntegral size), ", and showing it needs about ", gigabytes need, " of memory, of which ", gigabytes free, " are free: record for a shorter time"])
  | otherwise = Nothing
  where
    need = 16 * fromIntegral size
    gigabytes bytes = renderNumber (bytes / 1e9) <> " GB"

whyNot :: IOException -> Text
whyNot e
  | isDoesNotExistError e = "there is no such file"
  | isPermissionError e = "it may not be read"
  | otherwise = T.pack (ioe_description e)

refuse :: Text -> IO a
refuse message = reportText ("weft trace: " <> message) >> exitWith (ExitFailure 2)
