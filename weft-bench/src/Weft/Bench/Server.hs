{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Running the subjects
--
-- Starts a subject on its cores with its options and waits for its line @listening on PORT@. The bracket of
-- "Weft.Bench.Child" terminates it. Haskell subjects are asked for heap statistics.
module Weft.Bench.Server
  ( -- * Running
    Server (..),
    withServer,
    withServerOf,
    withServerOn,
    listening,
    portIn,
    available,
    subjectProgramWith,

    -- * Where things run
    serverCores,
    clientCores,
    allCores,

    -- * Reports
    Report (..),
    report,
  )
where

import Data.Aeson (FromJSON (..), withObject, (.:))
import Data.Char (isDigit)
import Data.Maybe (fromMaybe, isJust)
import qualified Data.Text as T
import System.Posix.Signals (sigUSR1, signalProcess)
import System.Posix.Types (ProcessID)
import Text.Read (readMaybe)
import Weft.Bench.Child
import Weft.Bench.Types

-- | A subject that listens.
data Server = Server
  { serverPid :: !ProcessID,
    serverPort :: !Int,
    serverSubject :: !Subject,
    serverChild :: !Child
  }

-- | Whether the subject's program exists.
available :: Env -> Subject -> IO Bool
available env subject = isJust <$> locate env (subjectProgram subject)

-- | Run a subject with this many cores and, unless it is built for the non-threaded run-time system, capabilities.
-- The action begins when the subject listens; afterwards the subject is terminated.
withServer :: Env -> Int -> Subject -> (Server -> IO a) -> IO a
withServer env capabilities subject = withServerOf env capabilities subject []

-- | 'withServer' with further arguments.
withServerOf :: Env -> Int -> Subject -> [String] -> (Server -> IO a) -> IO a
withServerOf env capabilities = withServerOn (serverCores env capabilities) env capabilities

-- | 'withServerOf' on the given cores.
withServerOn :: [Int] -> Env -> Int -> Subject -> [String] -> (Server -> IO a) -> IO a
withServerOn cores env capabilities subject arguments action = do
  program <- subjectProgramWith env capabilities subject (arguments ++ ["--port", "0"])
  withChild env program {programCores = cores} $ \child -> listening child subject >>= action

-- | Wait until a subject prints where it listens.
listening :: Child -> Subject -> IO Server
listening child subject = do
  line <- hearLine 20 child
  case portIn line of
    Just port -> pure (Server (childPid child) port subject child)
    Nothing -> failWith (subjectName subject <> " printed " <> line <> " instead of its port")

-- | The port in @listening on PORT@, or at the end of the first address in a line of @weft serve@.
portIn :: T.Text -> Maybe Int
portIn line = case T.stripPrefix "listening on " line of
  Just digits -> readMaybe (T.unpack digits)
  Nothing -> readMaybe . T.unpack . T.takeWhile isDigit . T.drop 1 . snd . T.breakOn ":" . T.drop 3 . snd $ T.breakOn "://" line

-- | A subject with these arguments, and with the options, environment and cores for a subject of its kind
-- with this many capabilities. Fails if it does not exist.
subjectProgramWith :: Env -> Int -> Subject -> [String] -> IO Program
subjectProgramWith env capabilities subject arguments = do
  path <- locate env (subjectProgram subject) >>= maybe (failWith ("missing: " <> T.pack (subjectProgram subject))) pure
  pure
    Program
      { programPath = path,
        programArguments = arguments ++ options,
        programEnvironment = [("WEFT_BACKEND", T.unpack name) | Just name <- [envBackend env]] ++ cores (subjectKind subject),
        programCores = serverCores env capabilities
      }
  where
    cores kind = case kind of
      GoProgram -> [("GOMAXPROCS", show capabilities)]
      RustProgram -> [("TOKIO_WORKER_THREADS", show capabilities)]
      _ -> []
    options = case subjectKind subject of
      WeftProgram -> maybe [] (\name -> ["--backend", T.unpack name]) (envBackend env) ++ rts
      GhcProgram -> rts
      _ -> []
    rts = ["+RTS", "-T"] ++ ["-N" ++ show capabilities | not nonThreaded] ++ fromMaybe [] (envRts env) ++ ["-RTS"]
    nonThreaded = "-nonthreaded" `T.isSuffixOf` T.pack (subjectProgram subject)

-- | A server with N capabilities has the first N cores.
serverCores :: Env -> Int -> [Int]
serverCores env capabilities = [0 .. min capabilities (envCores env) - 1]

-- | Its clients have the other cores; if there are none, server and clients share all.
clientCores :: Env -> Int -> [Int]
clientCores env capabilities
  | capabilities < envCores env = [capabilities .. envCores env - 1]
  | otherwise = allCores env

-- | All cores of the machine.
allCores :: Env -> [Int]
allCores env = [0 .. envCores env - 1]

-- | The heap statistics of a Haskell subject.
data Report = Report
  { -- | Bytes allocated since the start.
    reportAllocated :: !Double,
    -- | Live bytes after the collection that the report triggers.
    reportLive :: !Double,
    -- | The number of collections before that one, and including it.
    reportCollectionsBefore :: !Double,
    reportCollections :: !Double
  }
  deriving (Eq, Show)

instance FromJSON Report where
  parseJSON = withObject "report" $ \o ->
    Report <$> o .: "allocated_bytes" <*> o .: "live_bytes" <*> o .: "collections_before" <*> o .: "collections"

-- | Ask for a report; only Haskell programs provide one.
report :: Server -> IO (Maybe Report)
report server
  | subjectKind (serverSubject server) `elem` [WeftProgram, GhcProgram] = do
    signalProcess sigUSR1 (serverPid server)
    Just <$> hearJson 20 (serverChild server)
  | otherwise = pure Nothing
