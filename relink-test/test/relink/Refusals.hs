-- | Builds that @weft-relink@ does not support are refused with one line. Programs in which nothing can be redirected
-- work with GHC's manager.
--
-- These tests compile @cbits\/relink.c@ for unsupported machines, C libraries and ways, and a small project with a
-- library that depends on @weft-relink@, by cabal, in a folder of its own.
module Refusals (tests) where

import Control.Exception (bracket)
import Control.Monad (forM, forM_)
import Data.List (isInfixOf, sort)
import System.Directory
import System.Environment (getEnvironment)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (needProgram, skipUnless, testCase)

tests :: TestTree
tests =
  testGroup
    "unsupported builds"
    [ testCase "another processor" $ refused "gcc" ["-U__x86_64__", "-U__aarch64__"] "only x86-64 and aarch64",
      testCase "musl" $ refused "musl-gcc" [] "not musl",
      testCase "profiling" $ refused "gcc" ["-DPROFILING"] "profiling is not supported",
      testCase "another GHC" $ refused "gcc" ["-D__GLASGOW_HASKELL__=918"] "not known to work with this GHC",
      testCase "the next GHCs are not refused" $ mapM_ accepted [912, 914, 916],
      localOption (mkTimeout 600000000) (testCase "a project: linkers, a library, Template Haskell, cabal repl, dynamic linking" project)
    ]

-- | The first thing that the compiler says of the source is a line with this in it.
refused :: FilePath -> [String] -> String -> Assertion
refused compiler flags part = do
  needProgram compiler
  (code, _, said) <- readProcessWithExitCode compiler (flags <> ["-fsyntax-only", "-Wfatal-errors", "../weft-relink/cbits/relink.c"]) ""
  assertBool "it compiles" (code /= ExitSuccess)
  case filter ("#error" `isInfixOf`) (lines said) of
    line : _ -> assertBool said ("weft-relink: " `isInfixOf` line && part `isInfixOf` line)
    [] -> assertFailure said

-- | The source compiles for a GHC of that number, with this one's headers. In GHC 9.12 and later nothing of base is
-- named but what is in @ghc-internal@: names of others have a hash in them.
accepted :: Int -> Assertion
accepted version = do
  library <- concat . lines <$> readProcess "ghc" ["--print-libdir"] ""
  headers <- filter (not . null) . lines <$> readProcess "find" [library, "-name", "Rts.h", "-printf", "-I%h\n"] ""
  (code, out, said) <- readProcessWithExitCode "gcc" (headers <> ["-I../weft-core/cbits", "-D__GLASGOW_HASKELL__=" <> show version, "-S", "-o", "-", "../weft-relink/cbits/relink.c"]) ""
  assertEqual said ExitSuccess code
  assertBool "a function of base" (not ("base_" `isInfixOf` out) && "ghczminternal_" `isInfixOf` out)

-- | Programs of a project whose shared libraries are built, as cabal does unless told otherwise.
project :: Assertion
project = withProject $ \folder -> do
  mapM_ needProgram ["cabal", "ghc"]
  repository <- canonicalizePath ".."
  inherited <- getEnvironment
  -- As scripts/cabal: without a Hackage index, the compiler's own packages.
  (index, _, _) <- readProcessWithExitCode (repository </> "scripts" </> "has-index") [] ""
  let variables = [("CABAL_CONFIG", repository </> "scripts" </> "cabal.config") | index /= ExitSuccess, Nothing <- [lookup "CABAL_CONFIG" inherited]] <> inherited
      cabal arguments = readCreateProcessWithExitCode (proc "cabal" arguments) {cwd = Just folder, env = Just variables}
      -- Quoted in the project file: the path may have blanks.
      packages = "." : map (repository </>) ["weft-core", "weft", "weft-relink"]
      run program set = readCreateProcessWithExitCode (proc program []) {env = Just (set <> inherited)} ""
  writeFile (folder </> "cabal.project") ("packages: " <> unwords (map show packages) <> "\nshared: True\noptimization: 0\n")
  -- The library has a splice, for which the compiler loads weft-relink's shared library.
  (built, out, err) <- cabal ["build", "all"] ""
  assertEqual (out <> err) ExitSuccess built
  let located target = do
        (found, path, trouble) <- cabal ["list-bin", target] ""
        assertEqual (target <> path <> trouble) ExitSuccess found
        pure (concat (lines path))
  forM_ ["own", "by-library"] $ \name -> do
    program <- located ("exe:" <> name)
    (code, said, told) <- run program [("WEFT_VERBOSE", "1")]
    assertEqual told (ExitSuccess, "waited\n") (code, said)
    assertBool told ("threadDelay: Weft's" `isInfixOf` told)
    run program [("WEFT_DISABLE", "1")] >>= (@?= (ExitSuccess, "waited\n", ""))
  dynamic <- located "exe:dynamic"
  (code, said, told) <- run dynamic []
  assertEqual told (ExitSuccess, "waited\n") (code, said)
  assertBool told ("nothing is redirected in a dynamically linked program" `isInfixOf` told)
  forM_ [("exe:own", "main"), ("lib:app", "waits"), ("exe:by-library", "main")] $ \(target, action) -> do
    (status, shown, trouble) <- cabal ["repl", target] (action <> "\nputStrLn (\"after\" ++ \" it\")\n")
    assertEqual (target <> shown <> trouble) ExitSuccess status
    assertBool (target <> shown <> trouble) ("after it" `isInfixOf` shown && not ("unknown symbol" `isInfixOf` trouble || "undefined symbol" `isInfixOf` trouble))
  databases <- listDirectory (folder </> "dist-newstyle" </> "packagedb")
  database <- case reverse (sort databases) of
    d : _ -> pure (folder </> "dist-newstyle" </> "packagedb" </> d)
    [] -> assertFailure "no package database"
  absent <- fmap concat . forM ["bfd", "gold", "lld", "mold"] $ \linker -> do
    there <- findExecutable (if linker == "mold" then linker else "ld." <> linker)
    case there of
      Nothing -> pure [linker]
      Just _ -> do
        let program = folder </> ("with-" <> linker)
            flags = ["-v0", "-threaded", "-package-env=-", "-package-db", database, "-package", "weft-relink", "-outputdir", folder </> "objects", "-optl-fuse-ld=" <> linker]
        (linked, text, complaint) <- readCreateProcessWithExitCode (proc "ghc" (flags <> [folder </> "Main.hs", "-o", program])) ""
        assertEqual (linker <> ": " <> text <> complaint) ExitSuccess linked
        (status, shown, trouble) <- run program [("WEFT_VERBOSE", "1")]
        if linker == "lld"
          then assertBool trouble (status /= ExitSuccess && "does not work with this linker" `isInfixOf` trouble)
          else assertEqual (linker <> trouble) (ExitSuccess, "waited\n", True) (status, shown, "threadDelay: Weft's" `isInfixOf` trouble)
        pure []
  -- The others are packages of their own in some distributions.
  assertBool "no ld.bfd" ("bfd" `notElem` absent)
  skipUnless ("linkers that are not installed: " <> unwords absent) (null absent)

withProject :: (FilePath -> IO a) -> IO a
withProject = bracket make removePathForcibly
  where
    make = do
      temporary <- getTemporaryDirectory
      folder <- mkdtemp (temporary </> "weft-refusals-")
      createDirectory (folder </> "library")
      mapM_ (\(name, text) -> writeFile (folder </> name) (unlines text)) files
      pure folder
    program name file more = ["executable " <> name, "  main-is: " <> file, "  default-language: Haskell2010"] <> more
    files =
      [ ( "app.cabal",
          ["cabal-version: 3.0", "name: app", "version: 0", "library", "  exposed-modules: Lib", "  hs-source-dirs: library", "  build-depends: base, template-haskell, weft-relink", "  default-language: Haskell2010"]
            <> program "own" "Main.hs" ["  build-depends: base, weft-relink", "  ghc-options: -threaded"]
            <> program "dynamic" "Main.hs" ["  build-depends: base, weft-relink", "  ghc-options: -threaded -dynamic"]
            <> program "by-library" "ByLibrary.hs" ["  build-depends: base, app", "  ghc-options: -threaded"]
        ),
        ("Main.hs", ["module Main (main) where", "import Control.Concurrent", "main :: IO ()", "main = threadDelay 1000 >> putStrLn \"waited\""]),
        ("ByLibrary.hs", ["module Main (main) where", "import Lib", "main :: IO ()", "main = waits >> putStrLn \"waited\""]),
        ( "library" </> "Lib.hs",
          ["{-# LANGUAGE TemplateHaskell #-}", "module Lib (waits) where", "import Control.Concurrent", "import Language.Haskell.TH", "waits :: IO ()", "waits = threadDelay $(litE (integerL 1000))"]
        )
      ]
