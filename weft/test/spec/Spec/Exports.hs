-- | What the package @network@ exports and "Weft.Socket" does not. A name that a newer @network@ adds fails a test
-- here until Weft has it too, or until it is in 'leftOut' with the reason and in the header of "Weft.Socket".
--
-- @network@'s names come from @ghc -e ':browse MODULE'@, those of Weft from the export lists in its source.
module Spec.Exports
  ( tests,
  )
where

import Control.Monad (forM_)
import Data.Char (isAlphaNum, isSpace, isUpper)
import Data.List (isPrefixOf, nub, sort, (\\))
import System.Exit (ExitCode (..))
import System.FilePath ((<.>), (</>))
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip

-- | Modules and functions of @network@ that Weft does not have, with the reason.
leftOut :: [(String, String)]
leftOut =
  [ ("Network.Socket.Address", "addresses are SockAddr only, the class SocketAddress has no other instance for sockets"),
    ("Network.Socket.Internal", "helpers for foreign imports, which concern no socket"),
    ("recvBufNoWait", "since network 3.2; a deadline that has passed makes recvBuf a single attempt"),
    ("setSockOptValue", "since network 3.2; setSockOpt takes the value itself"),
    ("sendWithFds", "since network 3.2; sendMsg sends descriptors with data"),
    ("sendManyWithFds", "likewise")
  ]

tests :: TestTree
tests =
  testGroup
    "the exports of network"
    [ testCase "every module has a counterpart, or is left out" $ do
        found <- words . drop 1 . dropWhile (/= ':') <$> asked "ghc-pkg" ["field", "network", "exposed-modules"]
        -- A list may be separated by commas.
        let modules = nub (map (filter (/= ',')) found)
        modules \\ (["Network.Socket", "Network.Socket.ByteString", "Network.Socket.ByteString.Lazy"] <> map fst leftOut) @?= [],
      testCase "Weft.Socket" $ do
        (own, hidden) <- (,) <$> exportsOf "Weft.Socket" <*> hiddenIn "Weft.Socket"
        theirs <- browse "Network.Socket"
        complete "Network.Socket" (own <> (map fst theirs \\ hidden)) theirs
        -- What is re-exported must not work on network's own type of sockets.
        [name | (name, type') <- theirs, name `notElem` hidden, name `notElem` map fst leftOut, "Socket" `elem` identifiers type'] @?= [],
      testCase "Weft.Socket.ByteString" (same "ByteString"),
      testCase "Weft.Socket.ByteString.Lazy" (same "ByteString.Lazy")
    ]
  where
    same suffix = do
      own <- exportsOf ("Weft.Socket." <> suffix)
      browse ("Network.Socket." <> suffix) >>= complete ("Network.Socket." <> suffix) own

-- | Fails if a name is in neither list, or in both.
complete :: String -> [String] -> [(String, String)] -> Assertion
complete name own theirs = do
  assertBool ("no functions of " <> name) (length theirs > 3)
  assertEqual ("functions of " <> name <> " that Weft does not have") [] (sort (map fst theirs \\ (own <> map fst leftOut)))
  forM_ leftOut $ \(function, _) -> assertBool (function <> " is said to be left out, and is not") (function `notElem` own)

-- | The functions that a module of @network@ exports, with their types.
browse :: String -> IO [(String, String)]
browse name = do
  out <- asked "ghc" ["-package-env=-", "-package", "network", "-XNoImplicitPrelude", "-e", "import " <> name, "-e", ":browse " <> name]
  pure [(unqualified function, unwords type') | item <- items (lines out), function : "::" : type' <- [words item], not (isUpper (take1 (unqualified function)))]
  where
    -- A type that is continued on further lines is indented there.
    items [] = []
    items (first : rest) = let (more, others) = span (" " `isPrefixOf`) rest in unwords (first : more) : items others
    unqualified = reverse . takeWhile (/= '.') . reverse
    take1 text = case text of c : _ -> c; [] -> ' '

-- | The output of a program of GHC. Skips the test if there is none, or if it does not have @network@ among its own
-- packages.
asked :: FilePath -> [String] -> IO String
asked program arguments = do
  needProgram program
  (code, out, _) <- readProcessWithExitCode program arguments ""
  out <$ skipUnless "the compiler's own packages do not have network" (code == ExitSuccess)

-- | The functions in the export list of a module of this package.
exportsOf :: String -> IO [String]
exportsOf name = filter (not . isUpper . take1) . identifiers . section ("module " <> name) "where" <$> sourceOf name
  where
    take1 text = case text of c : _ -> c; [] -> 'A'

-- | The names of "Network.Socket" that a module hides.
hiddenIn :: String -> IO [String]
hiddenIn name = identifiers . section "import Network.Socket hiding" "import" <$> sourceOf name

sourceOf :: String -> IO String
sourceOf name = readFile ("src" </> map (\c -> if c == '.' then '/' else c) name <.> "hs")

-- | The lines from the one that begins with a text to the next one that begins with another, without comments.
section :: String -> String -> String -> String
section begin end source = case dropWhile (not . (begin `isPrefixOf`)) (lines source) of
  first : rest -> unlines (drop (length begin) first : takeWhile (not . (end `isPrefixOf`)) (map uncommented rest))
  [] -> ""
  where
    uncommented line = if "--" `isPrefixOf` dropWhile isSpace line then "" else line

-- | The words of a text that are names; of a qualified name only the last part. Names after @module@ are left out.
identifiers :: String -> [String]
identifiers text = go (words (map (\c -> if isAlphaNum c || c `elem` "_'." then c else ' ') text))
  where
    go ("module" : _ : rest) = go rest
    go (word : rest) = [name | let { name = reverse (takeWhile (/= '.') (reverse word)) }, not (null name)] <> go rest
    go [] = []
