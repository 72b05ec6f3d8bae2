{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft-bench transfers@
--
-- Counts the cache lines that move between capabilities for each request, for numbers of capabilities that this machine
-- has no cores for: the server runs in QEMU's user mode, with a plug-in that sees every access to memory
-- (@bench\/peers\/transfers.c@). One request is in flight at a time, and the connections take turns. Requests of
-- different connections commute, so they need not share a line that is written (Clements and others 2013).
--
-- Exit status: 0 if it was counted, 1 if it could not be, 2 for bad arguments.
module Weft.Bench.Transfers
  ( transfersCommand,
  )
where

import Control.Concurrent (forkIO, killThread)
import Control.Concurrent.MVar (newEmptyMVar, putMVar, takeMVar)
import Control.Exception (bracket, finally, handle, try)
import Control.Monad (forM, forM_, forever, replicateM_, unless, when)
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.List (isPrefixOf)
import qualified Data.Map.Strict as M
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import GHC.IO.Exception (IOException)
import Numeric (showFFloat, showHex)
import Options.Applicative hiding (columns)
import System.Directory (canonicalizePath, doesFileExist, removePathForcibly)
import System.Environment (getExecutablePath)
import System.Exit (ExitCode (..), exitWith)
import System.FilePath (takeDirectory, takeFileName, (</>))
import System.IO (IOMode (ReadWriteMode), hFlush, hSetBinaryMode, stdout, withFile)
import System.Posix.Files (createNamedPipe)
import System.Process (readProcess)
import Weft.Bench.Asking
import Weft.Bench.CacheLines
import Weft.Bench.Certificates (Key (P256), certificateFiles)
import Weft.Bench.Child
import Weft.Bench.Folders (smallFolder)
import Weft.Bench.Options (Target (All), noOptions)
import Weft.Bench.Server (portIn)
import Weft.Bench.Setup (withEnv)
import Weft.Bench.Types
import Weft.Thread (threadDelay)
import Weft.Tools.Numbers (columns, positive)
import Weft.Tools.StandardError (reportText)
import Weft.Tools.Subcommand (Subcommand, subcommand)
import Weft.Transport (Connection)

data Arguments = Arguments
  { argCapabilities :: ![Int],
    argSeconds :: !Double,
    argRequests :: !(Maybe Int),
    argLines :: !Int,
    argSubjects :: ![FilePath]
  }

-- | The subcommand of @weft-bench@.
transfersCommand :: Subcommand
transfersCommand =
  subcommand "transfers" $
    info
      (countAll <$> arguments)
      ( progDesc "Count the cache lines that move between capabilities for each request"
          <> footer
            "Example: weft-bench transfers pong-weft -N 8. The server runs in QEMU's user mode (qemu-x86_64), as slow as that is, so no time is \
            \measured, and the machine needs no cores for its capabilities. Of its -N capabilities each has four connections on average; one \
            \request is in flight, and the connections take turns. Counted are reads of lines that another capability has written since, and writes \
            \to lines of which another has a copy. Exit status: 0 it was counted, 1 it was not, 2 bad arguments."
      )
  where
    arguments =
      Arguments
        <$> (some (option positive (short 'N' <> metavar "N" <> help "Number of capabilities; may be repeated (default: 2 and 8)")) <|> pure [2, 8])
        <*> option positive (long "seconds" <> metavar "SECONDS" <> value 8 <> showDefault <> help "Counted time")
        <*> optional (option positive (long "requests" <> metavar "N" <> help "Count so many requests instead, in 40 seconds at most"))
        <*> option positive (long "lines" <> metavar "N" <> value 12 <> showDefault <> help "Names of lines to print")
        <*> (some (strArgument (metavar "SUBJECT..." <> help "file, https or http2 (weft serve with a file of 1 KiB), proxy (weft serve before wai-weft), sdn-weft (a controller), or programs of bin/subjects or bin/peers (default: pong-weft)")) <|> pure ["pong-weft"])

countAll :: Arguments -> IO ()
countAll args = do
  results <- withEnv (noOptions All) $ \env ->
    forM [(subject, n) | subject <- argSubjects args, n <- argCapabilities args] $ \(subject, n) -> do
      result <- try (count env args subject n)
      case result of
        Left problem -> False <$ reportText ("weft-bench transfers: " <> T.pack subject <> ", -N" <> number n <> ": " <> saying problem)
        Right lines' -> True <$ (T.putStr (T.unlines lines') >> hFlush stdout)
  unless (and results) $ exitWith (ExitFailure 1)
  where
    saying (BenchError why) = why

number :: Int -> Text
number = T.pack . show

-- | A server, and how its clients speak.
data Scenario = Scenario
  { scenarioProgram :: !FilePath,
    scenarioArguments :: ![String],
    scenarioSecure :: !(Connection -> IO Connection),
    -- | Begins to ask on the connection of that number.
    scenarioAsking :: !(Int -> Connection -> IO (IO ()))
  }

-- | @file@, @https@ and @http2@ are @weft serve@ with a file of 1 KiB, and @proxy@ is it before another server, which
-- runs while the action does and is not counted. A subject whose name begins with @sdn@ is a controller, and its
-- clients are switches. Other subjects are programs that answer anything.
withScenario :: Env -> FilePath -> Int -> (Scenario -> IO a) -> IO a
withScenario env subject n act = case subject of
  "file" -> files [] pure askingHttp1
  "https" -> secured "http/1.1" askingHttp1
  "http2" -> secured "h2" askingHttp2
  "proxy" -> do
    behind <- found "wai-weft"
    withChild env (Program behind ["--port", "0"] [] []) $ \child -> do
      port <- portOf child
      serving ["--proxy", "/=http://127.0.0.1:" <> show port] pure (askingHttp1 "/")
  _ -> found subject >>= \program -> act (Scenario program [] pure (if "sdn" `isPrefixOf` subject then askingOpenFlow else const (askingHttp1 "/")))
  where
    found name = locate env name >>= maybe (failWith ("missing: " <> T.pack name <> " (make bench-peers, or cabal)")) pure
    secured protocol ask = do
      (chain, private) <- certificateFiles P256 env
      files ["--certificate", chain, "--key", private] (trusting chain protocol) ask
    files arguments secure ask = do
      root <- smallFolder env
      -- Comparing the file with the disk is no part of a request.
      serving ([root, "--trust", "60"] <> arguments) secure (ask "/1k")
    serving arguments secure ask = do
      program <- (</> "weft") . takeDirectory <$> getExecutablePath
      act (Scenario program (["serve", "--cores", show n, "--keep-alive-requests", "0"] <> arguments) secure (const ask))

-- | The port on which a program says it listens.
portOf :: Child -> IO Int
portOf child = hearLine 60 child >>= \line -> maybe (failWith ("it did not say where it listens: " <> line)) pure (portIn line)

-- | Count for one server, and render the result.
count :: Env -> Arguments -> FilePath -> Int -> IO [Text]
count env args subject n = withScenario env subject n $ \scenario -> do
  qemu <- found "qemu-x86_64" "Debian's package qemu-user"
  limiter <- found "prlimit" "Debian's package util-linux"
  plugin <- found "transfers.so" "make bench-peers"
  -- The plug-in has the names of files from the kernel, without symbolic links.
  program <- canonicalizePath (scenarioProgram scenario)
  symbols <- parseSymbols . B.pack <$> readProcess "nm" [program] ""
  area <- parseThreadArea . B.pack <$> readProcess "readelf" ["-lW", program] ""
  let runtime = case (mapM (`symbolAt` symbols) ["capabilities", "n_capabilities", "my_task"], area) of
        (Just [all', many', task], Just size) ->
          Just [("capabilities", showHex all' ""), ("n_capabilities", showHex many' ""), ("my_task", show (fromIntegral task - fromIntegral size :: Int))]
        _ -> Nothing
      commands = envScratch env </> "transfers-commands"
      result = envScratch env </> "transfers-result"
      given = concat [',' : name ++ "=" ++ value' | (name, value') <- [("in", commands), ("out", result)] ++ maybe [] id runtime]
      options = maybe [] (const ["--port", "0", "+RTS", "-N" ++ show n, "-A64m", "-V0", "-RTS"]) runtime
      begun = result <> ".begun"
  mapM_ removePathForcibly [commands, result, begun]
  createNamedPipe commands 0o600
  counted <- withChild env (Program limiter (["--as=" <> show (addresses n), qemu, "-plugin", "file=" ++ plugin ++ given, program] ++ scenarioArguments scenario ++ options) [] []) $ \child -> do
    port <- portOf child
    withFile commands ReadWriteMode $ \control -> do
      hSetBinaryMode control True
      asking scenario (if port == 0 then 0 else 4 * n) port $ \answered -> do
        -- What the first requests of a connection take is left out.
        if port == 0 then threadDelay 3000000 else untilAnswered answered (4 * 4 * n)
        B.hPut control "s" >> hFlush control
        awaitFile child begun
        case argRequests args of
          Just wanted | port /= 0 -> readIORef answered >>= untilAnswered answered . (+ wanted)
          _ -> threadDelay (round (1e6 * argSeconds args))
        B.hPut control "e" >> hFlush control
        awaitFile child result
    B.readFile result >>= either (failWith . ("the plug-in wrote " <>)) pure . parseCounted
  let sends = sentBy counted
      requests = sum sends
  when (requests == 0) $ failWith "no request was answered"
  -- Without its addresses no line would be Weft's.
  when (null [() | (_, _, _, name) <- countedMaps counted, name == B.pack program]) $ failWith ("the plug-in knows no address of " <> T.pack program)
  -- A server in which one capability answers has no transfers. Three of four should have an eighth of their share at
  -- least: the kernel spreads few connections unevenly.
  when (runtime /= Nothing && 4 * length (filter (\sent -> sent * 8 * n >= requests) sends) < 3 * n) $
    failWith ("the work was not spread: requests by capability " <> T.unwords (map number sends))
  pure (render args subject n (hottest program symbols counted) counted)
  where
    found name from = locate env name >>= maybe (libraryOf name >>= maybe (failWith ("missing: " <> T.pack name <> " (" <> from <> ")")) pure) pure
    libraryOf name = do
      there <- filterM' doesFileExist [directory </> name | directory <- envSearch env]
      pure (case there of first : _ -> Just first; [] -> Nothing)
    filterM' p = fmap concat . mapM (\x -> (\ok -> [x | ok]) <$> p x)

-- | Wait for a file of the plug-in, for half a minute at most.
awaitFile :: Child -> FilePath -> IO ()
awaitFile child file = go (300 :: Int)
  where
    go 0 = failWith ("too slow: the plug-in has not written " <> T.pack (takeFileName file))
    go left = do
      there <- doesFileExist file
      ended <- hasEnded child
      case ended of
        _ | there -> pure ()
        Just why -> failWith (T.pack (takeFileName file) <> ": the server ended: " <> why)
        Nothing -> threadDelay 100000 >> go (left - 1)

-- | How many addresses a server with so many capabilities may use. GHC reserves two thirds of what it may, a terabyte
-- at most, of which QEMU would keep 7 GB of tables.
addresses :: Int -> Int
addresses n = (24 * 1024 + 512 * n) * 1024 * 1024

-- | Wait until so many requests are answered, for 40 seconds at most.
untilAnswered :: IORef Int -> Int -> IO ()
untilAnswered answered wanted = go (400 :: Int)
  where
    go 0 = readIORef answered >>= \n -> failWith ("too slow: in 40 s it has answered " <> number n <> " requests")
    go left = readIORef answered >>= \n -> when (n < wanted) (threadDelay 100000 >> go (left - 1))

-- | Run an action while that many connections send requests in turn, each when the one before has been answered. The
-- action gets the number of those that have been.
asking :: Scenario -> Int -> Int -> (IORef Int -> IO a) -> IO a
asking scenario connections port act = newIORef 0 >>= \answered -> go answered connections []
  where
    -- Only the thread that asks writes the number.
    go answered 0 asks
      | null asks = act answered
      | otherwise = bracket (forkIO (handle ended (together asks >> forever (forM_ (reverse asks) (\ask -> ask >> modifyIORef' answered (+ 1)))))) killThread (const (act answered))
    go answered left asks = connecting port (scenarioSecure scenario) $ \connection -> do
      ask <- scenarioAsking scenario left connection
      go answered (left - 1) (ask : asks)
    -- At first all at once, so that each capability has what a server has under load: a proxy, connections of its own
    -- to the server behind. With one request in flight ever, there would be one for all.
    together asks = forM asks (\ask -> newEmptyMVar >>= \done -> done <$ forkIO (handle ended (replicateM_ 4 ask) `finally` putMVar done ())) >>= mapM_ takeMVar
    -- What the server's end means is said elsewhere.
    ended :: IOException -> IO ()
    ended _ = pure ()

-- | The requests that each capability has sent.
sentBy :: Counted -> [Int]
sentBy = M.elems . countedSends

-- | The result for a subject with that many capabilities.
render :: Arguments -> FilePath -> Int -> [Hot] -> Counted -> [Text]
render args subject n hots counted =
  [ T.pack subject <> ", -N" <> number n <> ", one request in flight: " <> number requests <> " requests, the busiest of "
      <> number (length sends)
      <> " sent "
      <> number (100 * maximum sends `div` requests)
      <> " %",
    "transfers a request: " <> each (sum (map hotCount hots)) <> "; with Weft's code on a side: " <> each (ofWeft hots)
  ]
    <> ["not counted for want of room: " <> number lost <> " accesses" | lost > 0]
    <> columns (["", "false", "code of", "line", "most often"] : map row (take (argLines args) hots))
    <> [""]
  where
    sends = sentBy counted
    requests = sum sends
    lost = countedLost counted
    each k = T.pack (showFFloat (Just 3) (fromIntegral k / fromIntegral requests :: Double) "")
    row h = [each (hotCount h), number (100 * hotFalse h `div` max 1 (hotCount h)) <> " %", owner (hotOwner h), T.take 60 (hotName h), T.intercalate "; " [T.take 50 w <> " -> " <> T.take 50 r | (w, r) <- take 1 (hotCode h)]]
    owner o = case o of
      OfWeft -> "Weft"
      OfProgram -> "program"
      OfOthers -> "others"
