{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Configuration files
--
-- YAML: a mapping from the names of flags to texts, numbers, booleans, or lists of them.
module Weft.Tools.Serve.Config
  ( readConfig,
  )
where

import Control.Exception (IOException, try)
import Control.Monad (forM, unless, (<=<))
import Data.Aeson (Value (..), encode)
import qualified Data.Aeson.Key as Key
import qualified Data.Aeson.KeyMap as K
import Data.Aeson.Types (formatPath)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy.Char8 as L
import Data.Foldable (toList)
import Data.List (intercalate)
import qualified Data.Map.Strict as Map
import qualified Data.Text as T
import qualified Data.Yaml as Y
import qualified Data.Yaml.Internal as Y (Warning (..))
import GHC.IO.Exception (IOException (ioe_description))
import Weft.Blocking (blocking)
import Weft.Tools.Serve.Settings

-- | What a file gives. On the left a sentence that names the file and, if the file is YAML, the
-- key that is wrong.
readConfig :: FilePath -> IO (Either String Given)
readConfig path = do
  -- The library says "not found" of whatever it cannot open.
  readable <- blocking (try (B.readFile path))
  case readable of
    Left e -> pure (wrong (ioe_description (e :: IOException)))
    Right _ -> either wrong Right . (uncurry understand <=< parsed) <$> blocking (Y.decodeFileWithWarnings path)
  where
    wrong why = Left (path <> ": " <> why)
    parsed = either (Left . unwords . words . Y.prettyPrintParseException) Right

understand :: [Y.Warning] -> Value -> Either String Given
understand warnings value = do
  unless (null warnings) (Left (intercalate "; " (map duplicate warnings)))
  entries <- case value of
    Null -> Right []
    Object object -> Right (K.toList object)
    _ -> Left "a mapping from settings to values is wanted"
  given <- forM entries $ \(k, v) ->
    let name = Key.toString k in either (inKey name) (Right . (,) name) (entry name v)
  Map.fromList given <$ either (uncurry inKey) Right (settingsFrom (Map.fromList given))
  where
    duplicate (Y.DuplicateKey place) = drop 2 (formatPath place) <> " is there twice"
    inKey name why = Left (name <> ": " <> why)

-- | The texts of a key's value.
entry :: String -> Value -> Either String [String]
entry name value = case settingNamed name of
  Nothing -> Left ("there is no such setting; weft serve --help names them" <> meant)
  Just row -> case value of
    Array values | Many _ <- settingShape row -> mapM scalar (toList values)
    Array _ -> Left "one value is wanted, not a list"
    other -> (: []) <$> scalar other
  where
    meant = case [n | row <- table, let n = settingName row, map dash name == n] of
      n : _ -> "; " <> n <> "?"
      [] -> ""
    dash c = if c == '_' then '-' else c

scalar :: Value -> Either String String
scalar value = case value of
  String text -> Right (T.unpack text)
  Number _ -> Right (L.unpack (encode value))
  Bool b -> Right (if b then "true" else "false")
  Null -> Left "it has no value"
  Object _ -> Left "a text is wanted; one with a colon in it must be put in quotes"
  Array _ -> Left "a list in a list is not wanted"
