{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Configuration files
--
-- YAML: a mapping from the names of flags to texts, numbers, booleans, or lists of them; and @hosts@, a mapping from
-- names of virtual hosts to such mappings.
module Weft.Tools.Serve.Config
  ( Config (..),
    noConfig,
    readConfig,
  )
where

import Control.Exception (IOException, try)
import Control.Monad (forM, forM_, unless)
import Data.Aeson (Value (..), encode)
import qualified Data.Aeson.Key as Key
import qualified Data.Aeson.KeyMap as K
import Data.Aeson.Types (formatPath)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy.Char8 as L
import Data.Char (toLower)
import Data.Foldable (toList)
import Data.List (intercalate, sort)
import qualified Data.Map.Strict as Map
import qualified Data.Text as T
import qualified Data.Yaml as Y
import qualified Data.Yaml.Internal as Y (Warning (..))
import GHC.IO.Exception (IOException (ioe_description))
import Weft.Blocking (blocking)
import Weft.Tools.Serve.Settings

-- | The contents of a configuration file.
data Config = Config
  { configGiven :: Given,
    -- | The settings of virtual hosts, by name in lower case and without a dot at the end.
    configHosts :: Map.Map String Given
  }

-- | An empty configuration.
noConfig :: Config
noConfig = Config Map.empty Map.empty

-- | Read a configuration file. 'Left' is an error message with the file, the line and, if the file is YAML, the
-- wrong key.
readConfig :: FilePath -> IO (Either String Config)
readConfig path = do
  -- The library reports every file that it cannot open as not found.
  readable <- blocking (try (B.readFile path))
  case readable of
    Left e -> pure (Left (path <> ": " <> ioe_description (e :: IOException)))
    Right text -> do
      decoded <- blocking (Y.decodeFileWithWarnings path)
      pure $ case decoded of
        Left e -> Left (path <> ": " <> unwords (words (Y.prettyPrintParseException e)))
        Right (warnings, value) -> either (Left . explained (C.lines text)) Right (understand warnings value)
  where
    explained file (keys, why) = path <> maybe "" ((':' :) . show) (lineOf keys file) <> ": " <> intercalate "." keys <> (if null keys then "" else ": ") <> why

-- | The line of a value, given the keys that lead to it: the first line that begins with the first key, then the first
-- line after it that begins with the next key, and so on.
lineOf :: [String] -> [B.ByteString] -> Maybe Int
lineOf keys file = go keys (zip [1 ..] file) Nothing
  where
    go [] _ found = found
    go (k : rest) content found = case dropWhile (not . begins k . snd) content of
      (n, _) : behind -> go rest behind (Just n)
      [] -> found
    begins k l = any (`C.isPrefixOf` C.dropWhile (== ' ') l) [C.pack (quote <> k <> quote <> ":") | quote <- ["", "'", "\""]]

-- | The path of keys to an error, and its reason.
type Wrong = ([String], String)

understand :: [Y.Warning] -> Value -> Either Wrong Config
understand warnings value = do
  unless (null warnings) (Left ([], intercalate "; " (map duplicate warnings)))
  object <- case value of
    Null -> Right K.empty
    Object object -> Right object
    _ -> Left ([], "expected a mapping from settings to values")
  given <- settingsOf (const True) (K.delete (Key.fromString "hosts") object)
  hosts <- case K.lookup (Key.fromString "hosts") object of
    Nothing -> Right []
    Just (Object names) -> do
      let spelled = Map.fromListWith (<>) [(canonical name, [name]) | name <- map Key.toString (K.keys names)]
      forM_ [group | group@(_ : _ : _) <- Map.elems spelled] $ \group ->
        Left (["hosts"], intercalate " and " (sort group) <> " are the same host")
      forM (K.toList names) $ \(name, content) ->
        either (\(keys, why) -> Left ("hosts" : Key.toString name : keys, why)) (Right . (,) (canonical (Key.toString name))) (hostOf (Key.toString name) content)
    Just _ -> Left (["hosts"], "expected a mapping from host names to their settings")
  pure (Config given (Map.fromList hosts))
  where
    duplicate (Y.DuplicateKey place) = drop 2 (formatPath place) <> " is given twice"
    hostOf name content = do
      unless (validHost name) (Left ([], "expected a host name without a port, or *. and a host name"))
      case content of
        Object object -> settingsOf ofHost object
        _ -> Left ([], "expected a mapping from settings to values")
    validHost name = case if take 2 name == "*." then drop 2 (canonical name) else canonical name of
      '[' : address -> take 1 (reverse address) == "]" && all (`elem` ("0123456789abcdef:." :: String)) (init address)
      n -> not (null n) && all (`elem` (['a' .. 'z'] <> ['0' .. '9'] <> ".-_")) n
    -- As the site looks for the host of a request.
    canonical name = case reverse (map toLower name) of
      '.' : n@(_ : _) -> reverse n
      n -> reverse n

-- | The values of a mapping. The predicate selects the settings that it may contain.
settingsOf :: (Setting -> Bool) -> K.KeyMap Value -> Either Wrong Given
settingsOf may object = do
  given <- forM (K.toList object) $ \(k, v) ->
    let name = Key.toString k in either (inKey name) (Right . (,) name) (entry may name v)
  Map.fromList given <$ either (uncurry inKey) Right (settingsFrom (Map.fromList given))
  where
    inKey name why = Left ([name], why)

-- | The texts of a key's value.
entry :: (Setting -> Bool) -> String -> Value -> Either String [String]
entry may name value = case settingNamed name of
  Nothing -> Left ("unknown setting; weft serve --help lists them" <> meant)
  Just row | not (may row) -> Left "this setting is for the whole server, not for a host"
  Just row -> case value of
    Array values | Many _ <- settingShape row -> mapM scalar (toList values)
    Array _ -> Left "expected one value, not a list"
    -- A forgotten value must not turn off a password.
    Null | Optional _ <- settingShape row -> Left "it has no value; 'none' turns it off"
    other -> (: []) <$> scalar other
  where
    meant = case [n | row <- table, let n = settingName row, map dash name == n] of
      n : _ -> "; did you mean " <> n <> "?"
      [] -> ""
    dash c = if c == '_' then '-' else c

scalar :: Value -> Either String String
scalar value = case value of
  String text -> Right (T.unpack text)
  Number _ -> Right (L.unpack (encode value))
  Bool b -> Right (if b then "true" else "false")
  Null -> Left "it has no value"
  Object _ -> Left "expected a text, not a mapping; a text with a colon in it must be quoted"
  Array _ -> Left "a list cannot contain a list"
