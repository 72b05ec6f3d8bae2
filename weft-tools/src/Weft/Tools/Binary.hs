{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft doctor --binary@
--
-- Was a program linked with @weft-relink@, and what of it runs on Weft then? The answer is in the program itself, stripped
-- or not: @weft-relink@ leaves a note in it.
module Weft.Tools.Binary
  ( examineBinary,
    Relinked (..),
    findNote,
    Linked (..),
    howLinked,
    mentions,
  )
where

import Control.Exception (IOException, try)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
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
    Left e -> hPutStrLn stderr ("weft: " <> show (e :: IOException)) >> exitWith (ExitFailure 2)
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

-- | Read from the constants of the run-time system in a program's bytes: its name, and the complaint that only one without an event log has. 'Nothing'
-- if no run-time system is in it, as where it is a shared library.
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
