{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft doctor@
--
-- Checks the set-up of this machine, of a program or of a running process. Each line has a mark and a reason. Exit
-- status 0; 1 if something does not work; 2 for bad arguments.
module Weft.Tools.Doctor
  ( doctorCommand,
  )
where

import Control.Monad (when)
import Data.Aeson (Value, encode, object, toJSON, (.=))
import Data.Aeson.Key (fromString)
import qualified Data.ByteString.Lazy.Char8 as L
import Data.Char (isDigit)
import Data.Version (showVersion)
import Options.Applicative
import System.Directory (doesDirectoryExist, doesFileExist)
import System.Exit (ExitCode (..), exitWith)
import System.Info (arch, compilerName, compilerVersion, os)
import Weft.File (FileEngine (..), filesChoice)
import Weft.Tools.Binary (examineBinary)
import Weft.Tools.Doctor.Finding
import Weft.Tools.Doctor.Machine
import Weft.Tools.Doctor.Subject
import Weft.Tools.StandardError (reportLine)
import Weft.Tools.Surroundings (findProgram)

-- | The subcommand.
doctorCommand :: Mod CommandFields (IO ())
doctorCommand =
  command "doctor" $
    info
      (binary <|> doctor <$> asJson <*> many certificate <*> optional subject)
      ( progDesc "Check the set-up of this machine, of a program or of a running process"
          <> footer "Examples: weft doctor; weft doctor ./my-server; weft doctor 1234 --certificate chain.pem. [ok] nothing to do, [!] could be better, [XX] does not work (exit status 1)."
          <> failureCode 2
      )
  where
    asJson = switch (long "json" <> help "Print JSON")
    certificate = strOption (long "certificate" <> metavar "FILE" <> help "Check the periods of validity of the certificates in this file (PEM, also a chain; may be repeated)")
    subject = strArgument (metavar "PID|PROGRAM" <> help "Process or program to check, instead of this machine")
    binary = examineBinary <$> strOption (long "binary" <> metavar "FILE" <> help "Check whether a program is on Weft by weft-relink, and list the functions that Weft serves: exit status 0 if so, 1 if not")

doctor :: Bool -> [FilePath] -> Maybe String -> IO ()
doctor json certificates subject = do
  found <- maybe examine named subject
  ends <- mapM certificateFinding certificates
  let findings = found <> ends
  if json then L.putStrLn (encode (toValue findings)) else putStr (unlines (map renderFinding findings))
  if or [True | Finding Wrong _ _ <- findings] then exitWith (ExitFailure 1) else pure ()

-- | Findings about a process, given its number, or about a program, given its file or its name.
named :: String -> IO [Finding]
named text
  | not (null text), all isDigit text = maybe (pure Nothing) processFindings (processNumber text) >>= maybe (refuse ("there is no process " <> text)) pure
  | otherwise = do
    folder <- doesDirectoryExist text
    when folder (refuse (quoted text <> " is a folder: name a program in it"))
    here <- doesFileExist text
    path <- if here then pure (Just text) else findProgram text
    maybe (refuse ("no such program: " <> quoted text)) programFindings path
  where
    quoted name = "\"" <> name <> "\""
    -- Linux's process numbers have at most 22 bits.
    processNumber digits = case dropWhile (== '0') digits of
      significant | not (null significant), length significant < 10 -> Just (read significant)
      _ -> Nothing
    refuse why = reportLine ("weft doctor: " <> why) >> exitWith (ExitFailure 2)

-- | The engine for files, and the reason if it is not io_uring.
engineOf :: FileEngine -> Maybe String -> String
engineOf engine refused = case (engine, refused) of
  (Adaptive, _) -> "io_uring, and blocking calls and io_submit while few requests are in progress"
  (Rings, _) -> "io_uring (WEFT_FILES)"
  (Threads, Nothing) -> "a pool of threads (WEFT_FILES)"
  (Threads, Just why) -> "a pool of threads: " <> why

-- | Findings about this machine, and what Weft would choose on it.
examine :: IO [Finding]
examine = do
  kernel <- maybe "" (takeWhile (/= '\n')) <$> contents "/proc/sys/kernel/osrelease"
  backends <- backendFindings
  chosen <- chosenFinding
  disk <- filesChoice
  limits <- maybe "" id <$> contents "/proc/self/limits"
  status <- maybe "" id <$> contents "/proc/self/status"
  cores <- coreFindings "/proc/self"
  settings <- kernelFindings
  -- The options of the run-time system with which this program runs are those of no other.
  caches <- cacheFindings AreaUnknown
  pure . concat $
    [ [ fact "system" (os <> " " <> arch <> " " <> kernel),
        fact "compiler" (compilerName <> " " <> showVersion compilerVersion)
      ],
      backends,
      [chosen, fact "files" (uncurry engineOf disk)],
      cores,
      caches,
      limitFindings Nothing limits,
      settings,
      seccompFindings status
    ]

toValue :: [Finding] -> Value
toValue findings =
  object
    [ "findings" .= object [fromString name .= found | Finding _ name found <- findings],
      "marks" .= object [fromString name .= markName mark | Finding mark name _ <- findings],
      "advice" .= toJSON [name <> ": " <> found | Finding Advice name found <- findings],
      "runs" .= null [() | Finding Wrong _ _ <- findings]
    ]
