{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The result of the plug-in that counts cache lines
--
-- Reads what @bench\/peers\/transfers.c@ has written, and gives lines and code their names, from the symbols of the
-- program that was run. Pure.
module Weft.Bench.CacheLines
  ( -- * What the plug-in has counted
    Counted (..),
    Move (..),
    parseCounted,

    -- * Names
    Symbols,
    symbolAt,
    parseSymbols,
    parseThreadArea,
    Owner (..),

    -- * Lines by name
    Hot (..),
    hottest,
    ofWeft,
  )
where

import qualified Data.ByteString.Char8 as B
import Data.Char (isHexDigit, ord)
import Data.List (foldl', nub, sortOn)
import qualified Data.Map.Strict as M
import Data.Maybe (fromMaybe, listToMaybe, mapMaybe)
import Data.Ord (Down (..))
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import Data.Word (Word64)

-- | The counts of a run.
data Counted = Counted
  { -- | The calls that sent, by agent: a capability, or a thread that had none.
    countedSends :: !(M.Map Int Int),
    countedMoves :: ![Move],
    -- | Accesses that were not counted for want of room.
    countedLost :: !Int,
    -- | The mapped files: from, to, offset, name.
    countedMaps :: ![(Word64, Word64, Word64, B.ByteString)]
  }

-- | Moves of one line, from the code that wrote it to the code that needed it.
data Move = Move
  { moveCode :: !Word64,
    moveWriter :: !Word64,
    moveLine :: !Word64,
    -- | They used no byte in common.
    moveFalse :: !Bool,
    moveCount :: !Int,
    -- | What the line contained in the end.
    moveWords :: ![Word64]
  }

-- | The plug-in's result. 'Left' has a line that is none.
parseCounted :: B.ByteString -> Either Text Counted
parseCounted text = reversed <$> foldl' (\found line -> found >>= addLine line) (Right (Counted M.empty [] 0 [])) (B.lines text)
  where
    reversed counted = counted {countedMaps = reverse (countedMaps counted)}
    addLine line counted = case B.words line of
      ["agent", a, "sends", n] -> Right counted {countedSends = M.insertWith (+) (fromIntegral (hex a)) (decimal n) (countedSends counted)}
      "moved" : code : writer : at : kind : n : contents ->
        Right counted {countedMoves = Move (hex code) (hex writer) (hex at) (hex kind `div` 2 == 1) (decimal n) (map hex contents) : countedMoves counted}
      ["lost", n] -> Right counted {countedLost = decimal n}
      "map" : range : _ : offset : _ : _ : name : _ ->
        let (from, to) = B.break (== '-') range in Right counted {countedMaps = (hex from, hex (B.drop 1 to), hex offset, name) : countedMaps counted}
      "map" : _ -> Right counted
      _ -> Left (T.decodeLatin1 line)

decimal :: B.ByteString -> Int
decimal = maybe 0 fst . B.readInt

hex :: B.ByteString -> Word64
hex = B.foldl' (\n c -> 16 * n + digit c) 0 . B.takeWhile isHexDigit
  where
    digit c
      | c <= '9' = fromIntegral (ord c - ord '0')
      | otherwise = fromIntegral ((ord c - ord 'A') `mod` 32 + 10)

-- Names --------------------------------------------------------------------------------------

-- | The symbols of a program by address, and the address of the first code. (Those of thread-local variables are
-- offsets.)
data Symbols = Symbols !(M.Map Word64 B.ByteString) !Word64

-- | From the output of nm(1).
parseSymbols :: B.ByteString -> Symbols
parseSymbols text = Symbols (M.fromList [(at, name) | (at, _, name) <- found]) (minimum (maxBound : [at | (at, kind, _) <- found, kind `elem` ["t", "T"]]))
  where
    found = [(hex at, kind, name) | line <- B.lines text, [at, kind, name] <- [B.words line], B.all (`elem` ("tTdDbBrRvVwW" :: String)) kind]

-- | The address of a symbol.
symbolAt :: B.ByteString -> Symbols -> Maybe Word64
symbolAt name (Symbols symbols _) = listToMaybe [at | (at, found) <- M.toList symbols, found == name]

-- | The size of the thread-local variables, from the output of @readelf -lW@: on x86-64 they end at the thread pointer.
parseThreadArea :: B.ByteString -> Maybe Word64
parseThreadArea text = listToMaybe [(hexed size + hexed align - 1) `div` hexed align * hexed align | line <- B.lines text, "TLS" : _ : _ : _ : _ : size : rest <- [B.words line], align : _ <- [reverse rest], hexed align > 0]
  where
    hexed = hex . B.drop 2

-- | Whose code it is.
data Owner
  = -- | A package of Weft.
    OfWeft
  | -- | The program's own modules.
    OfProgram
  | -- | The run-time system, and other libraries.
    OfOthers
  deriving (Eq, Ord, Show)

-- | The symbol of an address in the program, or the file that is mapped there.
type Place = Either B.ByteString B.ByteString

-- | The place of an address, and how far behind the symbol's beginning it is.
type Places = Word64 -> Maybe (Place, Word64)

placesOf :: FilePath -> Symbols -> Counted -> Places
placesOf program (Symbols symbols code) counted = \address -> case M.lookupLE address maps of
  Just (_, (to, name)) | address < to, name /= B.pack program -> Just (Left name, 0)
  _
    | address < lowest || address > highest -> Nothing
    | otherwise -> (\(at, name) -> (Right name, address - base - at)) <$> M.lookupLE (address - base) symbols
  where
    maps = M.fromList [(from, (to, name)) | (from, to, _, name) <- countedMaps counted]
    own = [(from, to) | (from, to, _, name) <- countedMaps counted, name == B.pack program]
    lowest = minimum (maxBound : map fst own)
    -- Variables without an initial value follow, in a mapping without a name.
    highest = maximum (0 : map snd own) + 0x100000
    -- A program that can be loaded anywhere has addresses from zero on.
    base = if code < lowest then lowest else 0

ownerOf :: Maybe (Place, Word64) -> Owner
ownerOf (Just (Right name, _))
  | any (`B.isPrefixOf` name) ["weft", "s_weft"] = OfWeft
  | any (`B.isPrefixOf` name) ["Main_", "ZCMain"] = OfProgram
ownerOf _ = OfOthers

-- | A symbol as a reader knows it: without GHC's encoding and the package's version.
shown :: Maybe (Place, Word64) -> Text
shown Nothing = "?"
shown (Just (Left file, _)) = T.decodeLatin1 (snd (B.breakEnd (== '/') file))
shown (Just (Right name, _)) = T.decodeLatin1 (decoded (fromMaybe name (B.stripSuffix "_info" (unversioned name))))
  where
    unversioned text = case B.breakSubstring "_" text of
      (package, rest) | any (`B.isInfixOf` package) ["zm0", "zm1", "zm2", "zm3", "zm4", "zm5", "zm6", "zm7", "zm8", "zm9"], not (B.null rest) -> B.drop 1 rest
      _ -> text
    decoded text = case B.uncons text of
      Nothing -> B.empty
      Just ('z', rest) | Just (c, more) <- B.uncons rest, Just plain <- lookup c codes -> B.cons plain (decoded more)
      Just ('Z', rest) | Just (c, more) <- B.uncons rest, c `elem` ("CZ" :: String) -> B.cons (if c == 'C' then ':' else 'Z') (decoded more)
      Just (c, rest) -> B.cons c (decoded rest)
    codes = zip "imduqhz" ".-$_'#z"

-- Lines --------------------------------------------------------------------------------------

-- | Lines with one name.
data Hot = Hot
  { -- | A variable, or what kinds of objects of the heap the line contains.
    hotName :: !Text,
    hotCount :: !Int,
    -- | How many of these moves were false sharing.
    hotFalse :: !Int,
    -- | Whether code of Weft was on a side.
    hotOwner :: !Owner,
    -- | The code that wrote and the code that needed it, most often first.
    hotCode :: ![(Text, Text)]
  }

-- | The moved lines by name, those that moved most often first.
hottest :: FilePath -> Symbols -> Counted -> [Hot]
hottest program symbols counted = sortOn (Down . hotCount) (map hot (M.toList grouped))
  where
    place = placesOf program symbols counted
    grouped :: M.Map (Text, Owner) [Move]
    grouped = M.fromListWith (<>) [((lineName m, sideOf m), [m]) | m <- countedMoves counted]
    hot ((name, owner), moves) =
      Hot name (total moves) (total (filter moveFalse moves)) owner . map fst . sortOn (Down . snd) . M.toList $
        M.fromListWith (+) [((shown (place (moveWriter m)), shown (place (moveCode m))), moveCount m) | m <- moves]
    total = sum . map moveCount
    lineName m = case place (moveLine m) of
      Just (Right "_end", _) -> "memory of malloc"
      found@(Just (Right _, _)) -> "variable " <> shown found
      _ -> case nub (mapMaybe kind (moveWords m)) of
        [] -> "memory"
        kinds -> T.intercalate " + " kinds
    -- Objects of the heap begin with the address of their code.
    kind word = case place word of
      found@(Just (Right name, 0)) | any (`B.isSuffixOf` name) ["_info", "_INFO"] -> Just (T.replace "stg_" "" (shown found))
      _ -> Nothing
    sideOf m = case map (ownerOf . place) [moveCode m, moveWriter m] of
      sides
        | OfWeft `elem` sides -> OfWeft
        | OfProgram `elem` sides -> OfProgram
        | otherwise -> OfOthers

-- | The number of moves with code of Weft on a side.
ofWeft :: [Hot] -> Int
ofWeft hots = sum [hotCount h | h <- hots, hotOwner h == OfWeft]
