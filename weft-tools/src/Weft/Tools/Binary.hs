{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft doctor --binary@
--
-- Was a program linked with @weft-relink@, and what of it runs on Weft then? The answer is in the program itself,
-- stripped or not: @weft-relink@ leaves a note in it. Also what else a program's bytes say about how it was linked, and
-- its arguments about options of the run-time system.
module Weft.Tools.Binary
  ( examineBinary,
    ServedBy (..),
    servedBy,
    Relinked (..),
    findNote,
    compiler,
    Linked (..),
    howLinked,
    hasRunTime,
    mentions,
    linkedOptions,
    optionsAmong,
  )
where

import Control.Exception (try)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isAlpha, isAlphaNum, isDigit)
import Data.List (nub)
import GHC.IO.Exception (IOException (ioe_description))
import System.Exit (ExitCode (..), exitWith)
import Weft.Tools.StandardError (reportLine)
import Weft.WholeFile (programLimit, readWholeFile)

-- | The contents of the note: the compiler, as in @__GLASGOW_HASKELL__@, and the functions that Weft serves.
data Relinked = Relinked Int [String]
  deriving (Eq, Show)

-- | What serves the waits of a program, unless @WEFT_DISABLE@ is set.
data ServedBy
  = -- | Weft, by @weft-relink@.
    ByRelink Relinked
  | -- | GHC's own manager: @weft-relink@ has no effect without @-threaded@.
    ByRelinkUnthreaded Relinked
  | -- | Weft, where the program calls it.
    ByLibrary
  | -- | GHC's own manager.
    ByGhc
  | -- | None of them: it is not a Haskell program.
    ByNone
  deriving (Eq, Show)

-- | Read from a program's bytes.
servedBy :: ByteString -> ServedBy
servedBy content = case findNote content of
  Just note
    | Just (Linked False _) <- howLinked content -> ByRelinkUnthreaded note
    | otherwise -> ByRelink note
  Nothing
    | mentions "weft:signal " content -> ByLibrary
    | hasRunTime content -> ByGhc
    | otherwise -> ByNone

-- | Print the findings about a program. Exit status 0: it is on Weft by @weft-relink@; 1: it is not; 2: it cannot be
-- read.
examineBinary :: FilePath -> IO ()
examineBinary file = do
  content <- try (readWholeFile programLimit file)
  case servedBy <$> content of
    Left e -> reportLine ("weft doctor: " <> file <> ": " <> ioe_description e) >> exitWith (ExitFailure 2)
    Right (ByRelink note@(Relinked _ functions)) -> do
      putStrLn (file <> ": linked with weft-relink for GHC " <> compiler note <> "; on Weft, unless WEFT_DISABLE is set, run:")
      mapM_ (putStrLn . ("  " <>)) functions
    Right (ByRelinkUnthreaded note) -> not' ("linked with weft-relink for GHC " <> compiler note <> ", but without -threaded: GHC's own I/O manager serves it; add ghc-options: -threaded")
    Right ByLibrary -> not' "not linked with weft-relink: Weft serves it where it calls the library weft, and GHC's own I/O manager elsewhere"
    Right ByGhc -> not' "not linked with weft-relink: GHC's own I/O manager serves it"
    Right ByNone -> not' "not a Haskell program: it has no run-time system of GHC"
  where
    not' why = putStrLn (file <> ": " <> why) >> exitWith (ExitFailure 1)

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

-- | Whether GHC's run-time system is in a program, or is a library of it.
hasRunTime :: ByteString -> Bool
hasRunTime content = mentions "stg_ap_pp" content || mentions "GHCRTS" content

-- | Are these bytes among them?
mentions :: ByteString -> ByteString -> Bool
mentions part content = not (B.null (snd (B.breakSubstring part content)))

-- | The options of the run-time system that a program was linked with (@-with-rtsopts@), if they have an allocation
-- area (@-A@). In the program's bytes they are a string of options and nothing else. None if there are several such
-- strings.
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

-- | The options of the run-time system among a program's arguments: between @+RTS@ and @-RTS@ (or @--RTS@, or @--@).
optionsAmong :: [String] -> [String]
optionsAmong arguments = case break (== "+RTS") (takeWhile (`notElem` ["--RTS", "--"]) arguments) of
  (_, _ : rest) -> let (options, others) = break (== "-RTS") rest in options <> optionsAmong (drop 1 others)
  _ -> []

-- | The version of the compiler of a program with a note.
compiler :: Relinked -> String
compiler (Relinked ghc _) = show (ghc `div` 100) <> "." <> show (ghc `mod` 100)

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
