-- | What Weft's C code and foreign imports use of GHC's run-time system is in one header, @weft_runtime.h@ of
-- @weft-core@, and the installed GHC has all of it.
--
-- These tests compile a program with that header, by gcc and GHC, and read the sources of the packages that are
-- released.
module Runtime (tests) where

import Control.Exception (bracket)
import Control.Monad (forM)
import Data.Char (isAlphaNum)
import Data.List (isInfixOf, isPrefixOf, nub, sort, (\\))
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath (takeExtension, takeFileName, (</>))
import System.Posix.Temp (mkdtemp)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests =
  testGroup
    "what is used of the run-time system"
    [ testCase "the installed GHC has each function, as the header declares it" installed,
      testCase "no source of a package uses what is not in the header" nothingElse
    ]

header :: FilePath
header = ".." </> "weft-core" </> "cbits" </> "weft_runtime.h"

-- | The functions that the header lists, by the preprocessor's own reading of it, from a program that needs each of
-- them.
listed :: IO [String]
listed = do
  mapM_ needProgram ["gcc", "ghc"]
  temporary <- getTemporaryDirectory
  bracket (mkdtemp (temporary </> "weft-runtime")) removePathForcibly $ \folder -> do
    writeFile (folder </> "names.c") . unlines $
      [ "#include \"weft_runtime.h\"",
        "#include <stdio.h>",
        "#define NAME(result, name, parameters) {#name, (void (*)(void))name},",
        "static const struct { const char *name; void (*function)(void); } all[] = {WEFT_RUNTIME_FUNCTIONS(NAME)};",
        "int main(void) {",
        "  for (unsigned i = 0; i < sizeof all / sizeof all[0]; i++)",
        "    if (all[i].function) puts(all[i].name);",
        "}"
      ]
    let program = folder </> "names"
    (code, out, said) <-
      readProcessWithExitCode
        "ghc"
        ( ["-v0", "-threaded", "-no-hs-main", "-optc-Wall", "-optc-Werror", "-I../weft-core/cbits"]
            <> ["-outputdir", folder, "-o", program, folder </> "names.c"]
        )
        ""
    assertEqual (out <> said) ExitSuccess code
    lines <$> readProcess program [] ""

installed :: Assertion
installed = do
  names <- listed
  assertBool (unwords names) (length names > 5 && "hs_try_putmvar" `elem` names)

nothingElse :: Assertion
nothingElse = do
  names <- identifiers <$> readFile header
  packages <- filter ("weft" `isPrefixOf`) <$> listDirectory ".."
  found <- concat <$> mapM (sources . (".." </>)) (sort packages \\ ["weft-test-support"])
  assertBool "no sources" (length found > 100)
  uses <- forM found $ \file -> do
    text <- readFile file
    let directives = [line | takeFileName file /= takeFileName header, line <- lines text, "#include" `isInfixOf` line]
        included = [file <> ": " <> line | line <- directives, any (`isInfixOf` line) ["Rts", "HsFFI", "rts/"]]
        -- In Haskell, only what is imported: GHC's own names begin so in no other place.
        relevant
          | takeExtension file `elem` [".hs", ".hsc"] = unlines (filter ("foreign import" `isInfixOf`) (lines text))
          | otherwise = text
        other = [file <> ": " <> name | name <- nub (identifiers relevant), any (`isPrefixOf` name) prefixes, name `notElem` names]
    pure (included <> other)
  concat uses @?= []
  where
    prefixes = ["hs_", "rts_", "rtsSupports", "stg_", "getStable", "Hs", "Rts", "Stg", "ARG_", "FUN_"]

-- | C and Haskell sources and the package's description below its folder, without tests and what was built.
sources :: FilePath -> IO [FilePath]
sources folder = do
  entries <- sort <$> listDirectory folder
  fmap concat . forM (filter (`notElem` ["test", "sim", "dist", "dist-newstyle", "CHANGELOG.md", "README.md"]) entries) $ \entry -> do
    let path = folder </> entry
    isFolder <- doesDirectoryExist path
    if isFolder then sources path else pure [path | takeExtension path `elem` [".c", ".h", ".hs", ".hsc", ".cabal"]]

identifiers :: String -> [String]
identifiers text = case dropWhile (not . inName) text of
  "" -> []
  rest -> let (name, behind) = span inName rest in name : identifiers behind
  where
    inName c = isAlphaNum c || c == '_'
