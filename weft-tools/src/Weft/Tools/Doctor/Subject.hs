{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : A process or a program, examined
--
-- For @weft doctor PID@ and @weft doctor PROGRAM@: whether it uses Weft, its back end with the reason, its options of
-- the run-time system, and limits of its environment. Less can be found out about a process of another user.
module Weft.Tools.Doctor.Subject
  ( processFindings,
    programFindings,
  )
where

import Control.Exception (IOException, try)
import qualified Data.ByteString.Char8 as B
import Data.Either (fromRight, isRight)
import Data.List (intercalate, isInfixOf, isPrefixOf, nub)
import Data.Maybe (fromMaybe, listToMaybe, mapMaybe)
import GHC.Conc (getNumProcessors)
import System.Directory (getSymbolicLinkTarget, listDirectory)
import System.Environment (lookupEnv)
import System.Posix.User (getEffectiveUserID)
import Text.Read (readMaybe)
import Weft.Tools.Binary (Linked (..), Relinked (..), ServedBy (..), compiler, findNote, hasRunTime, howLinked, linkedOptions, optionsAmong, servedBy)
import Weft.Tools.Doctor.Finding
import Weft.Tools.Doctor.Machine

-- | The findings about a running process. 'Nothing' if there is no process with this number.
processFindings :: Int -> IO (Maybe [Finding])
processFindings pid = do
  status <- contents (base <> "/status")
  case status of
    Nothing -> pure Nothing
    Just text | Just ended <- endedPart pid text -> pure (Just ended)
    Just text -> do
      arguments <- splitZero <$> bytes (base <> "/cmdline")
      readable <- fmap splitZero <$> bytesOf (base <> "/environ")
      limits <- maybe "" id <$> contents (base <> "/limits")
      kinds <- descriptorKinds base
      tasks <- taskNames base
      content <- bytesOf (base <> "/exe")
      remedy <- remedyForAccess
      processors <- getNumProcessors
      let environment = fromRight [] readable
          options = Options (either (const []) linkedOptions content) (rtsOptions arguments environment) (isRight readable)
          program = programPart remedy content (isSet =<< lookupVariable "WEFT_DISABLE" environment)
      cores <- coreFindings base
      caches <- cacheFindings (areaIn content options)
      pure . Just $
        [fact "process" (show pid <> ": " <> unwords (take 6 arguments))]
          <> program
          <> backendPart remedy kinds environment
          <> [f | "ghc_ticker" `elem` tasks || not (null (knownOptions options)), f <- optionsPart remedy options]
          <> threadPart tasks options
          <> tooMany processors options
          <> cores
          <> [f | "ghc_ticker" `elem` tasks, f <- caches]
          <> limitFindings (length <$> kinds) limits
          <> seccompFindings text
  where
    base = "/proc/" <> show pid

-- | The findings about a process that has ended: a zombie, of which little more than its number is left.
endedPart :: Int -> String -> Maybe [Finding]
endedPart pid status = case statusField "State" status of
  Just (state : _)
    | state `elem` ("ZX" :: String) ->
      Just
        [ fact "process" (show pid <> ": " <> field "Name"),
          wrong "state" ("a zombie: it has ended, and its parent, process " <> field "PPid" <> ", has not waited for it")
        ]
  _ -> Nothing
  where
    field name = fromMaybe "?" (statusField name status)

-- | The findings about a program's file, and about this machine for it.
programFindings :: FilePath -> IO [Finding]
programFindings file = do
  content <- bytesOf file
  backends <- backendFindings
  chosen <- chosenFinding
  cores <- coreFindings "/proc/self"
  limits <- maybe "" id <$> contents "/proc/self/limits"
  status <- maybe "" id <$> contents "/proc/self/status"
  remedy <- remedyForAccess
  processors <- getNumProcessors
  -- Its arguments are not known, and its environment is presumably this one.
  variables <- maybe [] words <$> lookupEnv "GHCRTS"
  let options = Options (either (const []) linkedOptions content) variables True
      runTime = either (const False) hasRunTime content
      onWeft = case servedBy <$> content of
        Right (ByRelink _) -> True
        Right ByLibrary -> True
        _ -> False
  caches <- cacheFindings (if runTime then areaIn content options else AreaUnknown)
  pure $
    fact "program" file :
    programPart remedy content Nothing
      <> backends
      <> [chosen | onWeft]
      <> [fact "run-time options" ((if null (linkedIn options) then linkedUnknown else "linked in: " <> unwords (linkedIn options)) <> (if null variables then "" else "; of GHCRTS: " <> unwords variables)) | runTime]
      <> tooMany processors options
      <> cores
      <> caches
      <> limitFindings Nothing limits
      <> seccompFindings status

-- | What to do about a process or file that may not be read.
remedyForAccess :: IO String
remedyForAccess = do
  user <- getEffectiveUserID
  pure (if user == 0 then "not even by root here: it is a kernel thread, or a namespace or security module protects it" else "run as its user, or as root")

programPart :: String -> Either IOException B.ByteString -> Maybe String -> [Finding]
programPart remedy content disabled = case content of
  Left _ -> [advise "binary" ("cannot be read: " <> remedy)]
  Right text -> manager (servedBy text) : [wrong "run-time system" "linked without -threaded: it has one capability, and a call that blocks stops all of it; add ghc-options: -threaded" | Just (Linked False _) <- [howLinked text]]
  where
    manager served = case served of
      ByRelink note
        | Nothing <- disabled -> fine "binary" ("linked with weft-relink for GHC " <> compiler note <> ": waits and delays are served by Weft")
        | otherwise -> advise "binary" "linked with weft-relink, but WEFT_DISABLE is set: GHC's own manager serves it"
      ByRelinkUnthreaded note -> advise "binary" ("linked with weft-relink for GHC " <> compiler note <> ", but without -threaded: GHC's own manager serves it")
      ByLibrary -> fine "binary" "built with weft"
      ByGhc -> advise "binary" "a Haskell program on GHC's own I/O manager: weft-relink puts it on Weft (doc/adopting.md)"
      ByNone -> wrong "binary" "not a Haskell program that Weft could serve"

-- | The mechanisms whose kernel objects are among the descriptors, and the requested back end. GHC's own manager has
-- epoll instances in any program, and files have rings: only a ring that is missing shows that a request was in vain.
backendPart :: String -> Maybe [String] -> [String] -> [Finding]
backendPart remedy Nothing _ = [advise "back end" ("unknown, since the descriptors cannot be listed: " <> remedy)]
backendPart _ (Just kinds) environment =
  [ case (rings, polls) of
      _ | rings == 0, requested == Just "io_uring" -> advise "back end" "WEFT_BACKEND=io_uring is set, but no ring is open: the kernel refused it (weft doctor without an argument says why), the program chose another, or nothing has waited yet"
      (0, 0) -> fact "back end" ("no epoll and no io_uring is open: nothing has waited yet, or poll is used" <> asked)
      _ -> fine "back end" (show polls <> " epoll, " <> show rings <> " io_uring instances are open" <> asked)
  ]
  where
    requested = lookupVariable "WEFT_BACKEND" environment
    rings = length (filter ("[io_uring]" `isInfixOf`) kinds)
    polls = length (filter ("[eventpoll]" `isInfixOf`) kinds)
    asked = case [name <> "=" <> v | name <- ["WEFT_BACKEND", "WEFT_FILES"], Just v@(_ : _) <- [lookupVariable name environment]] of
      [] -> "; no WEFT_BACKEND, but the program may have chosen"
      set -> "; as asked for by " <> unwords set <> ", unless the program chose another"

-- | Options of the run-time system.
data Options = Options
  { -- | Those that the program was linked with; none if they are not known.
    linkedIn :: [String],
    -- | Those of GHCRTS and of the arguments.
    givenAtStart :: [String],
    -- | Whether the environment could be read.
    environmentRead :: Bool
  }

-- | All that are known. Later options win.
knownOptions :: Options -> [String]
knownOptions options = linkedIn options <> givenAtStart options

-- | The options of the run-time system, and which of them are not known.
optionsPart :: String -> Options -> [Finding]
optionsPart remedy options = [fact "run-time options" (intercalate "; " (found : linked <> variable))]
  where
    found = if null (knownOptions options) then "none at the start" else unwords (knownOptions options)
    linked = [linkedUnknown | null (linkedIn options)]
    variable = ["GHCRTS is not known: " <> remedy | not (environmentRead options)]

linkedUnknown :: String
linkedUnknown = "those that the program was linked with (-with-rtsopts) are not known"

threadPart :: [String] -> Options -> [Finding]
threadPart tasks options =
  [fact "OS threads" (show (length tasks))]
    <> [capabilities | "ghc_ticker" `elem` tasks, not (any ("-N" `isPrefixOf`) (knownOptions options))]
  where
    capabilities
      | null (linkedIn options) || not (environmentRead options) = fact "capabilities" "no -N among the options that are known: if there is none among the others (-with-rtsopts) and the program does not set its capabilities itself, it uses one core"
      | otherwise = advise "capabilities" "no -N among the options of the run-time system: unless the program sets its capabilities itself, +RTS -N would use all cores"

-- | Advice if the options ask for more capabilities than there are processors.
tooMany :: Int -> Options -> [Finding]
tooMany processors options =
  [ advise "capabilities" ("-N" <> show n <> " on " <> show processors <> " processors: all capabilities wait for each other in each collection; +RTS -N takes as many as there are processors")
    | option : _ <- [reverse (filter ("-N" `isPrefixOf`) (knownOptions options))],
      Just n <- [readMaybe (drop 2 option)],
      n > processors
  ]

-- | Options of the run-time system: in GHCRTS, and among the arguments.
rtsOptions :: [String] -> [String] -> [String]
rtsOptions arguments environment = maybe [] words (lookupVariable "GHCRTS" environment) <> optionsAmong (drop 1 arguments)

-- | The allocation area of a program with these options: the one that they ask for, or else the default of the
-- program's compiler, which a note in a relinked program names.
areaIn :: Either IOException B.ByteString -> Options -> Area
areaIn content options = case (areaOf (knownOptions options), content) of
  (Just size, _) -> AreaOf size
  _ | not (environmentRead options) -> AreaUnknown
  (Nothing, Right text) | Just (Relinked ghc _) <- findNote text -> AreaOf (if ghc < 902 then 1048576 else 4194304)
  _ -> AreaDefault

-- | The allocation area that options ask for, in bytes.
areaOf :: [String] -> Maybe Integer
areaOf options = listToMaybe (mapMaybe one (reverse options))
  where
    one ('-' : 'A' : size) = sizeOf size
    one _ = Nothing

lookupVariable :: String -> [String] -> Maybe String
lookupVariable name environment = listToMaybe [drop (length name + 1) v | v <- environment, (name <> "=") `isPrefixOf` v]

-- | The value of a variable that is neither empty nor 0, as @weft-relink@ judges it.
isSet :: String -> Maybe String
isSet value = if value `elem` ["", "0"] then Nothing else Just value

bytes :: FilePath -> IO B.ByteString
bytes path = fromRight B.empty <$> bytesOf path

bytesOf :: FilePath -> IO (Either IOException B.ByteString)
bytesOf path = try (B.readFile path)

splitZero :: B.ByteString -> [String]
splitZero = map decoded . filter (not . B.null) . B.split '\0'

-- | The kind of each descriptor of a process, if the descriptors may be listed.
descriptorKinds :: FilePath -> IO (Maybe [String])
descriptorKinds base = do
  listed <- try (listDirectory (base <> "/fd")) :: IO (Either IOException [FilePath])
  case listed of
    Left _ -> pure Nothing
    Right names -> Just <$> mapM (\n -> either (\e -> const "" (e :: IOException)) id <$> try (getSymbolicLinkTarget (base <> "/fd/" <> n))) names

taskNames :: FilePath -> IO [String]
taskNames base = do
  listed <- try (listDirectory (base <> "/task")) :: IO (Either IOException [FilePath])
  names <- mapM (\t -> maybe "" (takeWhile (/= '\n')) <$> contents (base <> "/task/" <> t <> "/comm")) (fromRight [] listed)
  pure (nub [n | n <- names, n == "ghc_ticker"] <> filter (/= "ghc_ticker") names)
