{-# LANGUAGE CPP #-}

-- | Checks the shape of the source tree, where GHC and hlint do not look. Reads the names of the project's files, NUL
-- between, from standard input; prints one line a finding and exits with 1 if there is any.
--
-- Rules, for the libraries (tests, tools and benchmarks may be looser, their packages may not):
--
-- * a cabal file parses without warnings, and no package depends on itself by way of others;
-- * every module is found, has an export list, and no module imports itself by way of others;
-- * every Haskell file in a library's folders belongs to a component;
-- * a function takes at most six arguments, unless it is a foreign one: more are a record, or the function is local;
-- * code is ASCII; other text has no invisible characters.
module Main
  ( main,
  )
where

import qualified Data.ByteString as Bytes
import Data.Char (GeneralCategory (..), generalCategory, isAlphaNum, isAscii, isSpace)
import Data.Foldable (toList)
import Data.Graph (SCC (..), stronglyConnComp)
import Data.List (find, intercalate, isPrefixOf, stripPrefix, tails)
import qualified Data.Map.Strict as Map
import Data.Maybe (catMaybes, listToMaybe, mapMaybe)
import qualified Data.Set as Set
import qualified Data.Text as Text
import qualified Data.Text.Encoding as Text
import qualified Data.Text.Encoding.Error as Text
import Distribution.ModuleName (ModuleName, components, toFilePath)
import qualified Distribution.PackageDescription as Cabal
import Distribution.PackageDescription.Parsec (parseGenericPackageDescription, runParseResult)
import Distribution.Parsec.Error (showPError)
import Distribution.Parsec.Warning (showPWarning)
#if MIN_VERSION_Cabal(3,6,0)
import Distribution.Utils.Path (getSymbolicPath)
#endif
import System.Exit (exitFailure)
import System.FilePath (normalise, splitDirectories, takeBaseName, takeDirectory, takeExtension, takeFileName, (<.>), (</>))
import System.IO (hPutStrLn, stderr)

-- | A line for the reader: where, and what is wrong.
type Finding = String

-- | The project's files, for lookup.
type Files = Set.Set FilePath

main :: IO ()
main = do
  files <- Set.fromList . map (normalise . Text.unpack) . splitNul <$> Bytes.getContents
  (parseFindings, parsed) <- unzip <$> mapM readPackage (filter ((== ".cabal") . takeExtension) (toList files))
  let packages = catMaybes parsed
      listed = Set.fromList (mapMaybe snd (concatMap (componentFiles files) (concatMap libraries packages)))
  modules <- mapM readModule (toList listed)
  textFindings <- mapM checkText (toList files)
  report (Set.size files) (length modules) $
    concat
      [ concat parseFindings,
        packageCycles packages,
        missingFiles files packages,
        strayFiles files packages,
        concatMap checkModule modules,
        moduleCycles files packages modules,
        catMaybes textFindings
      ]
  where
    splitNul = filter (not . Text.null) . Text.splitOn (Text.pack "\0") . decode

report :: Int -> Int -> [Finding] -> IO ()
report files modules [] =
  putStrLn ("check-modules: " ++ show files ++ " files, " ++ show modules ++ " library modules: fine")
report _ _ findings = mapM_ (hPutStrLn stderr) findings >> exitFailure

-- * Packages

-- | What is read from a cabal file.
data Package = Package
  { packageName :: String,
    -- | Packages that the libraries and programs need (a test may need what is built on the package it tests).
    dependencies :: [String],
    libraries :: [Component],
    -- | Programs, tests and benchmarks.
    others :: [Component]
  }

-- | The modules of a library or program, all alternatives of its conditions together.
data Component = Component
  { componentFile :: FilePath,
    folders :: [FilePath],
    moduleNames :: [ModuleName]
  }

readPackage :: FilePath -> IO ([Finding], Maybe Package)
readPackage file = do
  (warnings, result) <- runParseResult . parseGenericPackageDescription <$> Bytes.readFile file
  let warned = map (showPWarning file) warnings
  pure $ case result of
    Left (_, errors) -> (warned ++ map (showPError file) (toList errors), Nothing)
    Right description -> (warned, Just (toPackage file description))

toPackage :: FilePath -> Cabal.GenericPackageDescription -> Package
toPackage file description =
  Package
    { packageName = takeBaseName file,
      dependencies =
        [ Cabal.unPackageName (Cabal.depPkgName dependency)
          | info <- concatMap (map Cabal.libBuildInfo) libraryParts ++ concatMap (map Cabal.buildInfo) programParts,
            dependency <- Cabal.targetBuildDepends info
        ],
      libraries = [toComponent (concatMap Cabal.exposedModules ls) (map Cabal.libBuildInfo ls) | ls <- libraryParts],
      others =
        map (toComponent [] . map Cabal.buildInfo) programParts
          ++ map (toComponent [] . map Cabal.testBuildInfo . parts) (Cabal.condTestSuites description)
          ++ map (toComponent [] . map Cabal.benchmarkBuildInfo . parts) (Cabal.condBenchmarks description)
    }
  where
    libraryParts = map toList (toList (Cabal.condLibrary description)) ++ map parts (Cabal.condSubLibraries description)
    programParts = map parts (Cabal.condExecutables description)
    parts named = toList (snd named)
    toComponent exposed infos =
      Component
        { componentFile = file,
          folders = map (collapse . (takeDirectory file </>)) (concatMap sourceDirs infos),
          moduleNames = filter (`notElem` concatMap Cabal.autogenModules infos) (exposed ++ concatMap Cabal.otherModules infos)
        }

sourceDirs :: Cabal.BuildInfo -> [FilePath]
#if MIN_VERSION_Cabal(3,6,0)
sourceDirs = map getSymbolicPath . Cabal.hsSourceDirs
#else
sourceDirs = Cabal.hsSourceDirs
#endif

-- | @a/../b@ is @b@.
collapse :: FilePath -> FilePath
collapse = foldl step "" . splitDirectories . normalise
  where
    step path ".." = if takeDirectory path == "." then "" else takeDirectory path
    step path part = if null path then part else path </> part

candidates :: Component -> ModuleName -> [FilePath]
candidates component name =
  [normalise (folder </> toFilePath name <.> extension) | folder <- folders component, extension <- ["hs", "hsc"]]

-- | The modules that a component lists, each with the first file found for it.
componentFiles :: Files -> Component -> [(String, Maybe FilePath)]
componentFiles files component =
  [ (intercalate "." (components name), find (`Set.member` files) (candidates component name))
    | name <- moduleNames component
  ]

missingFiles :: Files -> [Package] -> [Finding]
missingFiles files packages =
  [ componentFile component ++ ": no file for module " ++ name
    | component <- concatMap libraries packages,
      (name, Nothing) <- componentFiles files component
  ]

-- | Haskell files in the folders of a library that no component of any package lists.
strayFiles :: Files -> [Package] -> [Finding]
strayFiles files packages =
  [ file ++ ": no component lists this module"
    | file <- toList files,
      takeExtension file `elem` [".hs", ".hsc"],
      any ((`isPrefixOf` file) . (++ "/")) (concatMap (concatMap folders . libraries) packages),
      not (file `Set.member` owned)
  ]
  where
    owned =
      Set.fromList
        [ file
          | package <- packages,
            component <- libraries package ++ others package,
            name <- moduleNames component,
            file <- candidates component name
        ]

packageCycles :: [Package] -> [Finding]
packageCycles packages =
  [ "packages depend on each other: " ++ unwords names
    | CyclicSCC names <- stronglyConnComp [(packageName p, packageName p, filter (/= packageName p) (dependencies p)) | p <- packages]
  ]

-- * Modules

-- | What is read from a Haskell file.
data Module = Module
  { moduleFile :: FilePath,
    hasExports :: Bool,
    imports :: [String],
    -- | The line, the names and the number of arguments of each type signature.
    signatures :: [(Int, String, Int)]
  }

readModule :: FilePath -> IO Module
readModule file = do
  text <- Text.unpack . decode <$> Bytes.readFile file
  let code = lines (withoutComments text)
  pure
    Module
      { moduleFile = file,
        hasExports = exportsListed (concatMap tokens code),
        imports = mapMaybe (importOf . tokens) code,
        signatures = signaturesOf code
      }

checkModule :: Module -> [Finding]
checkModule m =
  [moduleFile m ++ ": has no export list" | not (hasExports m)]
    ++ [ moduleFile m ++ ":" ++ show line ++ ": " ++ names ++ " takes " ++ show arguments ++ " arguments"
         | (line, names, arguments) <- signatures m,
           arguments > mostArguments
       ]

mostArguments :: Int
mostArguments = 6

-- | Cycles among the modules of one library, which only an hs-boot file makes possible.
moduleCycles :: Files -> [Package] -> [Module] -> [Finding]
moduleCycles files packages modules =
  [ "modules import each other: " ++ unwords names
    | component <- concatMap libraries packages,
      CyclicSCC names <- stronglyConnComp (map node (componentFiles files component))
  ]
  where
    node (name, file) = (name, name, maybe [] imports (file >>= (`Map.lookup` byFile)))
    byFile = Map.fromList [(moduleFile m, m) | m <- modules]

-- | Is there a parenthesis between the module's name and @where@? A module without a header exports @main@ alone.
exportsListed :: [String] -> Bool
exportsListed code = case dropWhile (/= "module") code of
  _ : _ : next : _ -> next == "("
  _ -> True

-- | The module that a line imports, if it imports one. 'tokens' keeps a dotted name in one piece.
importOf :: [String] -> Maybe String
importOf ("import" : rest) = find (\word -> word `notElem` ["qualified", "safe"] && not ("\"" `isPrefixOf` word)) rest
importOf _ = Nothing

-- | The type signatures of functions and of fields. A signature goes on in the lines that are indented more than its
-- first one. Those of foreign functions are left out.
signaturesOf :: [String] -> [(Int, String, Int)]
signaturesOf code =
  [ (number, unwords names, arrows (unlines (kind : takeWhile deeper rest)))
    | (number, before, line : rest) <- zip3 [1 ..] ("" : code) (tails code),
      let (front, behind) = breakOnColons line
          names = tokens front
          deeper other = all isSpace other || indentation other > indentation line,
      Just kind <- [behind],
      not (null names) && all isNames names,
      take 1 (tokens before) /= ["foreign"]
  ]
  where
    isNames word = word == "," || all (\c -> isAlphaNum c || c `elem` "_'") word
    indentation = length . takeWhile isSpace
    breakOnColons text = case text of
      ':' : ':' : rest -> ("", Just rest)
      c : rest -> let (front, behind) = breakOnColons rest in (c : front, behind)
      "" -> ("", Nothing)

-- | The arrows of a type that are not in parentheses.
arrows :: String -> Int
arrows = go (0 :: Int)
  where
    go 0 ('-' : '>' : rest) = 1 + go 0 rest
    go depth (c : rest)
      | c `elem` "([{" = go (depth + 1) rest
      | c `elem` ")]}" = go (depth - 1) rest
      | otherwise = go depth rest
    go _ "" = 0

tokens :: String -> [String]
tokens text = case dropWhile isSpace text of
  "" -> []
  c : rest
    | isName c -> let (name, after) = span isName (c : rest) in name : tokens after
    | c == '"' -> let (string, after) = break (== '"') rest in ('"' : string) : tokens (drop 1 after)
    | otherwise -> [c] : tokens rest
  where
    isName c = isAlphaNum c || c `elem` "_'."

-- | The text with comments and pragmas blanked out. Good enough for headers and imports: a comment sign inside a string
-- only blanks the rest of that string.
withoutComments :: String -> String
withoutComments = go (0 :: Int)
  where
    go depth text
      | Just rest <- stripPrefix "{-" text = go (depth + 1) rest
      | depth > 0, Just rest <- stripPrefix "-}" text = go (depth - 1) rest
      | depth == 0, Just rest <- stripPrefix "--" text, startsComment rest = go 0 (dropWhile (/= '\n') rest)
    go _ "" = ""
    go depth (c : rest)
      | depth == 0 || c == '\n' = c : go depth rest
      | otherwise = go depth rest
    -- @-->@ and the like are operators.
    startsComment rest = case dropWhile (== '-') rest of
      c : _ -> c `notElem` "!#$%&*+./<=>?@\\^|~:"
      "" -> True

-- * Text

-- | The first character of a file that does not belong there. Binary files are left alone.
checkText :: FilePath -> IO (Maybe Finding)
checkText file = do
  content <- Bytes.readFile file
  pure $
    if 0 `Bytes.elem` content
      then Nothing
      else listToMaybe (mapMaybe found (zip [1 :: Int ..] (lines (Text.unpack (decode content)))))
  where
    found (number, line) =
      (\c -> file ++ ":" ++ show number ++ ": character " ++ show c ++ " does not belong here")
        <$> find (not . allowed) line
    allowed c
      | isCode file = isAscii c && visible c
      | otherwise = visible c && c /= '\xFFFD'
    visible c = c == '\t' || generalCategory c `notElem` [Control, Format, Surrogate, PrivateUse, LineSeparator, ParagraphSeparator]

isCode :: FilePath -> Bool
isCode file =
  takeExtension file `elem` [".hs", ".hsc", ".c", ".h", ".cmm", ".S", ".cabal", ".project", ".sh", ".go", ".rs"]
    || takeFileName file == "Makefile"
    || "scripts" `elem` splitDirectories file

decode :: Bytes.ByteString -> Text.Text
decode = Text.decodeUtf8With Text.lenientDecode
