-- | The manual page, @weft man@, beside the help texts.
module ManualPage (tests) where

import Control.Monad (forM_)
import Data.Char (toUpper)
import Data.List (isInfixOf, isPrefixOf, isSuffixOf)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "manual page"
    [ testCase "each subcommand has a section, with each of its options" $ do
        (_, page) <- outcome program [] ["man"]
        let -- The paths of a command's subcommands, after their sections were checked.
            below path = do
              (_, help) <- outcome program [] (path <> ["--help"])
              concat <$> mapM (checked . (\name -> path <> [name])) (namesIn help)
            checked path = do
              (_, help) <- outcome program [] (path <> ["--help"])
              let section = sectionOf path (lines (plain page))
              assertBool (unwords path <> " has no section") (not (null section))
              forM_ (optionsIn help) $ \option -> assertBool (unwords path <> " without " <> option) (any (option `isInfixOf`) section)
              (unwords path :) <$> below path
        (_, help) <- outcome program [] ["--help"]
        found <- concat <$> mapM (checked . pure) [name | name <- namesIn help, name `notElem` ["serve", "man"]]
        -- That the help texts were understood.
        forM_ ["controller", "trace view", "tcp connections", "tcp replay"] $ \path -> assertBool (show found) (path `elem` found)
        assertBool "an option" ("--rate" `elem` optionsIn "Available options:\n  -r,--rate N  Text")
    ]

-- | The commands that a help text lists: all its lists but that of the options are of commands.
namesIn :: String -> [String]
namesIn help = [takeWhile (/= ' ') entry | (title, entries) <- listsOf help, title /= "Available options:", entry <- entries]

-- | The long options that a help text lists.
optionsIn :: String -> [String]
optionsIn help =
  [ option
    | ("Available options:", entries) <- listsOf help,
      entry <- entries,
      option <- words (map (\c -> if c == ',' then ' ' else c) (takeWhile (/= ' ') entry)),
      "--" `isPrefixOf` option
  ]

-- | The lists of a help text: a title, and entries that are indented by two columns. Lines that go on are indented
-- more.
listsOf :: String -> [(String, [String])]
listsOf help = case break isTitle (lines help) of
  (_, title : rest) ->
    let (list, others) = break null rest
     in (title, [entry | ' ' : ' ' : entry <- list, take 1 entry /= " "]) : listsOf (unlines others)
  (_, []) -> []
  where
    isTitle line = ":" `isSuffixOf` line && take 1 line /= " "

-- | The lines of a subcommand's section.
sectionOf :: [String] -> [String] -> [String]
sectionOf path = takeWhile (not . (".S" `isPrefixOf`)) . drop 1 . dropWhile (/= title)
  where
    title = case path of
      [name] -> ".SH " <> map toUpper ("weft " <> name)
      _ -> ".SS " <> unwords ("weft" : path)

-- | Without escapes.
plain :: String -> String
plain text = case text of
  '\\' : 'f' : _ : rest -> plain rest
  '\\' : c : rest -> c : plain rest
  c : rest -> c : plain rest
  [] -> []
