{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft doctor --binary@
--
-- Was a program linked with @weft-relink@, and what of it runs on Weft then? The answer is in the program itself,
-- stripped or not: @weft-relink@ leaves a note in it.
module Weft.Tools.Binary
  ( examineBinary,
    Relinked (..),
    findNote,
    Linked (..),
    howLinked,
    mentions,
    linkedOptions,
  )
where

import Control.Exception (try)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isAlpha, isAlphaNum, isDigit)
import Data.List (nub)
import GHC.IO.Exception (IOException (ioe_description))
import System.Exit (ExitCode (..), exitWith)
import System.IO (hPutStrLn, stderr)

-- | The contents of the note: the compiler, as in @__GLASGOW_HASKELL__@, and the functions that Weft serves.
data Relinked = Relinked Int [String]
  deriving (Eq, Show)

-- | Print the findings about a program. Exit status 0: it is relinked; 1: it is not; 2: it cannot be read.
examineBinary :: FilePath -> IO ()
examineBinary file = do
  content <- try (B.readFile file)
  case findNote <$> content of
    Left e -> hPutStrLn stderr ("weft doctor: " <> file <> ": " <> ioe_description e) >> exitWith (ExitFailure 2)
    Right Nothing -> do
      putStrLn (file <> ": not linked with weft-relink: GHC's own I/O manager serves it")
      exitWith (ExitFailure 1)
    Right (Just (Relinked ghc functions)) -> do
      putStrLn (file <> ": linked with weft-relink for GHC " <> version ghc <> "; on Weft, unless WEFT_DISABLE is set, run:")
      mapM_ (putStrLn . ("  " <>)) functions
  where
    version n = show (n `div` 100) <> "." <> show (n `mod` 100)

-- | What a Haskell program was linked with.
data Linked = Linked
  { linkedThreaded :: Bool,
    -- | Can it write an event log?
    linkedEventLog :: Bool
  }
  deriving (Eq, Show)

-- | Read from the constants of the run-time system in a program's bytes: its name, and the complaint that only one
-- without an event log has. 'Nothing' if no run-time system is in it, as where it is a shared library.
howLinked :: ByteString -> Maybe Linked
howLinked content
  | any (`mentions` content) ["\0rts_thr\0", "\0rts_thr_"] = Just (Linked True log')
  | any (`mentions` content) ["\0rts_v\0", "\0rts_l\0", "\0rts_debug\0", "\0rts_p\0"] = Just (Linked False log')
  | otherwise = Nothing
  where
    log' = not (mentions "requires the program to be built with -eventlog" content)

-- | Are these bytes among them?
mentions :: ByteString -> ByteString -> Bool
mentions part content = not (B.null (snd (B.breakSubstring part content)))

-- | The options of the run-time system that a program was linked with (@-with-rtsopts@), if they have an allocation area
-- (@-A@). In the program's bytes they are a string of options and nothing else. None if there are several such strings.
linkedOptions :: ByteString -> [String]
linkedOptions content = case nub (from 0) of
  [options] -> options
  _ -> []
  where
    from start = case B.breakSubstring "-A" (B.drop start content) of
      (_, "") -> []
      (skipped, _) -> filter hasArea [wordsAround at] <> from (at + 2)
        where
          at = start + B.length skipped
    hasArea options = all isOption options && any isArea options
    -- The words of the string around a place. Strings end with a zero.
    wordsAround at = map B.unpack (B.words (before <> behind))
      where
        before = B.takeWhileEnd (/= '\0') (B.take (min at longest) (B.drop (at - longest) content))
        behind = B.takeWhile (/= '\0') (B.take longest (B.drop at content))
    longest = 1000
    isOption word = case word of
      '-' : c : rest -> isAlpha c && all (\x -> isAlphaNum x || x `elem` ("-.=,:/_%" :: String)) rest
      _ -> False
    isArea word = case word of
      '-' : 'A' : size@(d : _) -> isDigit d && dropWhile isDigit size `elem` ["", "k", "K", "m", "M", "g", "G"]
      _ -> False

-- | The note in a program's bytes (@cbits\/relink.c@): a mark, the compiler, then a function a line, to a zero.
findNote :: ByteString -> Maybe Relinked
findNote content = case B.breakSubstring mark content of
  (_, "") -> Nothing
  (_, found) -> case B.lines (B.takeWhile (/= '\0') (B.drop (B.length mark) found)) of
    ghc : functions@(_ : _)
      | Just (n, "") <- B.readInt ghc, B.all isDigit ghc -> Just (Relinked n (map B.unpack functions))
    -- This program has the mark in it too.
    _ -> findNote (B.drop (B.length mark) found)
  where
    mark = "@(#)weft-relink\n"
