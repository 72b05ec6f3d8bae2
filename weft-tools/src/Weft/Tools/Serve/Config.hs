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

import Control.Applicative.Lift (Errors, failure, runErrors)
import Control.Exception (IOException, try)
import Control.Monad (unless)
import Data.Aeson (Value (..), encode)
import qualified Data.Aeson.Key as Key
import qualified Data.Aeson.KeyMap as K
import Data.Aeson.Types (formatPath)
import Data.Bifunctor (first)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy.Char8 as L
import Data.Char (toLower)
import Data.Foldable (toList, traverse_)
import Data.List (intercalate, sort, sortOn)
import qualified Data.Map.Strict as Map
import qualified Data.Text as T
import qualified Data.Yaml as Y
import qualified Data.Yaml.Internal as Y (Warning (..), decodeHelper_)
import GHC.IO.Exception (IOException (ioe_description))
import qualified Text.Libyaml as Libyaml (decode)
import Weft.Blocking (blocking)
import Weft.Tools.Serve.Settings
import Weft.WholeFile (readTextFile)

-- | The contents of a configuration file.
data Config = Config
  { configGiven :: Given,
    -- | The settings of virtual hosts, by name in lower case and without a dot at the end.
    configHosts :: Map.Map String Given
  }

-- | An empty configuration.
noConfig :: Config
noConfig = Config Map.empty Map.empty

-- | Read a configuration file. 'Left' is the error messages, each with the file, the line and, if the file is YAML, the
-- wrong key.
readConfig :: FilePath -> IO (Either [String] Config)
readConfig path = do
  readable <- blocking (try (readTextFile path))
  case readable of
    Left e -> pure (Left [path <> ": " <> ioe_description (e :: IOException)])
    Right text -> do
      decoded <- blocking (Y.decodeHelper_ (Libyaml.decode text))
      pure $ case decoded of
        Left e -> Left [path <> ": " <> unwords (words (Y.prettyPrintParseException e))]
        Right (warnings, value) -> first (map snd . sortOn fst . map (explained (C.lines text))) (runErrors (understand warnings value))
  where
    explained file (keys, why) =
      let line = lineOf keys file in (line, path <> maybe "" ((':' :) . show) line <> ": " <> intercalate "." keys <> (if null keys then "" else ": ") <> why)

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

wrong :: String -> Errors [Wrong] a
wrong why = failure [([], why)]

-- | The errors are below this key.
below :: String -> Errors [Wrong] a -> Errors [Wrong] a
below k = either (failure . map (first (k :))) pure . runErrors

understand :: [Y.Warning] -> Value -> Errors [Wrong] Config
understand warnings value =
  traverse_ (wrong . duplicate) warnings *> case value of
    Null -> settings K.empty
    Object object -> settings object
    _ -> wrong "expected a mapping from settings to values"
  where
    duplicate (Y.DuplicateKey place) = drop 2 (formatPath place) <> " is given twice"
    settings object = Config <$> settingsOf (const True) (K.delete hostsKey object) <*> maybe (pure Map.empty) (below "hosts" . hostsOf) (K.lookup hostsKey object)
    hostsKey = Key.fromString "hosts"

-- | The settings of hosts by name.
hostsOf :: Value -> Errors [Wrong] (Map.Map String Given)
hostsOf value = case value of
  Object names -> traverse_ same (spellings (map Key.toString (K.keys names))) *> (Map.fromList <$> traverse host' [(Key.toString k, v) | (k, v) <- K.toList names])
  _ -> wrong "expected a mapping from host names to their settings"
  where
    spellings names = [group | group@(_ : _ : _) <- Map.elems (Map.fromListWith (<>) [(canonical name, [name]) | name <- names])]
    same group = wrong (intercalate " and " (sort group) <> " are the same host") :: Errors [Wrong] ()
    host' (name, content) = below name ((,) (canonical name) <$ valid name <*> hostOf content)
    valid name = unless (validHost name) (wrong "expected a host name without a port, or *. and a host name")
    hostOf content = case content of
      Object object -> settingsOf ofHost object
      _ -> wrong "expected a mapping from settings to values"
    validHost name = case if take 2 name == "*." then drop 2 (canonical name) else canonical name of
      '[' : address -> take 1 (reverse address) == "]" && all (`elem` ("0123456789abcdef:." :: String)) (init address)
      n -> not (null n) && all (`elem` (['a' .. 'z'] <> ['0' .. '9'] <> ".-_")) n
    -- As the site looks for the host of a request.
    canonical name = case reverse (map toLower name) of
      '.' : n@(_ : _) -> reverse n
      n -> reverse n

-- | The values of a mapping. The predicate selects the settings that it may contain.
settingsOf :: (Setting -> Bool) -> K.KeyMap Value -> Errors [Wrong] Given
settingsOf may object = (Map.fromList <$> traverse texts entries) <* either (failure . map (first pure)) pure (settingsFrom readable)
  where
    entries = [(name, entry may name v) | (k, v) <- K.toList object, let name = Key.toString k]
    texts (name, found) = below name ((,) name <$> either wrong pure found)
    readable = Map.fromList [(name, given) | (name, Right given) <- entries]

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
