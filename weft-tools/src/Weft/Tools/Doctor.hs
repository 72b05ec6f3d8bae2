{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft doctor@
--
-- What this machine and this build offer to Weft, what Weft chose, and advice. Status 0, or 1 when Weft cannot run here.
module Weft.Tools.Doctor
  ( doctorCommand,
  )
where

import Control.Concurrent (getNumCapabilities)
import Control.Exception (IOException, try)
import Data.Aeson (Value, encode, object, toJSON, (.=))
import Data.Aeson.Key (fromString)
import qualified Data.ByteString.Lazy.Char8 as L
import Data.Version (showVersion)
import GHC.Conc (getNumProcessors)
import GHC.RTS.Flags (GCFlags (..), getGCFlags)
import Options.Applicative
import System.Exit (ExitCode (..), exitWith)
import System.Info (arch, compilerName, compilerVersion, os)
import System.Posix.Resource
import Weft.Backend (Choice (..), backendChoice, backendNames, whyUnavailable)
import Weft.File (FileEngine (..), filesChoice)
import Weft.Tools.Binary (examineBinary)

-- | A finding: what it is about, and what was found.
data Finding = Finding String String

-- | Everything that is reported.
data Report = Report
  { reportFindings :: [Finding],
    reportAdvice :: [String],
    -- | Why Weft cannot run, if so.
    reportFailure :: Maybe String
  }

-- | The subcommand.
doctorCommand :: Mod CommandFields (IO ())
doctorCommand = command "doctor" (info (binary <|> doctor <$> asJson) (progDesc "Say what this machine offers and what was chosen" <> failureCode 2))
  where
    asJson = switch (long "json" <> help "Print JSON")
    binary = examineBinary <$> strOption (long "binary" <> metavar "FILE" <> help "Say whether a program was linked with weft-relink, and what of it Weft serves: status 0 if so, 1 if not")

doctor :: Bool -> IO ()
doctor json = do
  report <- examine
  if json then L.putStrLn (encode (toValue report)) else putStr (render report)
  maybe (pure ()) (const (exitWith (ExitFailure 1))) (reportFailure report)

-- | What reads and writes files, and why it is not io_uring.
engineOf :: FileEngine -> Maybe String -> String
engineOf engine refused = case (engine, refused) of
  (Adaptive, _) -> "io_uring, blocking calls while there is little to do"
  (Rings, _) -> "io_uring (WEFT_FILES)"
  (Threads, Nothing) -> "a pool of threads (WEFT_FILES)"
  (Threads, Just why) -> "a pool of threads: " <> why

examine :: IO Report
examine = do
  kernel <- firstLine "/proc/sys/kernel/osrelease"
  somaxconn <- firstLine "/proc/sys/net/core/somaxconn"
  processors <- getNumProcessors
  capabilities <- getNumCapabilities
  gc <- getGCFlags
  backends <- mapM (\name -> Finding ("back end " <> name) . maybe "available" ("not available: " <>) <$> whyUnavailable name) backendNames
  chosen <- try backendChoice
  files <- getResourceLimit ResourceOpenFiles
  disk <- filesChoice
  memlock <- firstMatch "Max locked memory" "/proc/self/limits"
  let nursery = fromIntegral (minAllocAreaSize gc) * 4096 :: Integer
  pure
    Report
      { reportFindings =
          [ Finding "system" (os <> " " <> arch <> maybe "" (" " <>) kernel),
            Finding "compiler" (compilerName <> " " <> showVersion compilerVersion)
          ]
            <> backends
            <> [ Finding "chosen" (either cannot choice chosen),
                 Finding "files" (uncurry engineOf disk),
                 Finding "open files" (limits files),
                 Finding "locked memory" (maybe "unknown" id memlock),
                 Finding "backlog limit" (maybe "unknown" id somaxconn <> " (net.core.somaxconn)"),
                 Finding "processors" (show processors),
                 Finding "capabilities" (show capabilities <> " (+RTS -N" <> show capabilities <> ")"),
                 Finding "allocation area" (show (nursery `div` 1024) <> " KiB a capability (+RTS -A)")
               ],
        reportAdvice = advice processors capabilities nursery files,
        reportFailure = either (Just . cannot) (const Nothing) chosen
      }
  where
    cannot :: IOException -> String
    cannot = show
    choice c =
      choiceBackend c <> case choiceRefused c of
        Nothing -> ""
        Just (name, why) -> " (" <> name <> " was asked for: " <> why <> ")"

advice :: Int -> Int -> Integer -> ResourceLimits -> [String]
advice processors capabilities nursery files =
  concat
    [ [ "Run with +RTS -N to use all " <> show processors <> " processors."
        | capabilities < processors
      ],
      [ "An allocation area of 4 MiB or more (+RTS -A16m) means fewer pauses on several cores."
        | nursery < 4194304 && processors > 1
      ],
      [ "Only " <> show n <> " files may be open: ulimit -n raises it, for as many connections as you expect."
        | ResourceLimit n <- [softLimit files],
          n < 10000
      ]
    ]

limits :: ResourceLimits -> String
limits r = "soft " <> one (softLimit r) <> ", hard " <> one (hardLimit r)
  where
    one ResourceLimitInfinity = "unlimited"
    one ResourceLimitUnknown = "unknown"
    one (ResourceLimit n) = show n

firstLine :: FilePath -> IO (Maybe String)
firstLine path = either none (Just . takeWhile (/= '\n')) <$> try (readFile path)
  where
    none :: IOException -> Maybe String
    none _ = Nothing

-- | The rest of the first line that begins so.
firstMatch :: String -> FilePath -> IO (Maybe String)
firstMatch label path = either none found <$> try (readFile path)
  where
    none :: IOException -> Maybe String
    none _ = Nothing
    found text = case [drop (length label) l | l <- lines text, take (length label) l == label] of
      l : _ | [soft, hard, unit] <- take 3 (words l) -> Just ("soft " <> soft <> ", hard " <> hard <> " " <> unit)
      _ -> Nothing

render :: Report -> String
render r =
  unlines $
    [take 18 (name <> repeat ' ') <> found | Finding name found <- reportFindings r]
      <> (if null (reportAdvice r) then [] else "" : map ("advice: " <>) (reportAdvice r))

toValue :: Report -> Value
toValue r =
  object
    [ "findings" .= object [fromString name .= found | Finding name found <- reportFindings r],
      "advice" .= toJSON (reportAdvice r),
      "runs" .= maybe True (const False) (reportFailure r)
    ]
