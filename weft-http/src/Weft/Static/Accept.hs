{-# LANGUAGE OverloadedStrings #-}

-- |
-- What clients prefer, by the weights in Accept and Accept-Encoding (RFC 9110, 12). Pure.
module Weft.Static.Accept
  ( Weighted,
    weighted,
    weightOf,
    prefersJson,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (isDigit, toLower)
import Data.Maybe (fromMaybe, listToMaybe, mapMaybe)

-- | The members of a list, in lower case, with their weights in thousandths.
type Weighted = [(ByteString, Int)]

-- | Parse the values of a field. A member without a weight, or with an invalid one, has the greatest.
weighted :: [ByteString] -> Weighted
weighted = concatMap (map member . C.split ',' . C.map toLower)
  where
    member item =
      let (name, parameters) = C.break (== ';') item
       in (trim name, fromMaybe 1000 (listToMaybe (mapMaybe (fmap weight . B.stripPrefix "q=" . trim) (C.split ';' parameters))))
    trim = C.dropWhileEnd blank . C.dropWhile blank
    blank c = c == ' ' || c == '\t'
    weight text = case C.uncons text of
      Just ('0', fraction) -> maybe 0 fst (C.readInt (B.take 3 (C.takeWhile isDigit (B.drop 1 fraction) <> "000")))
      _ -> 1000

-- | The weight of the first of these names that is in the list, or else 0: not acceptable.
weightOf :: [ByteString] -> Weighted -> Int
weightOf names list = fromMaybe 0 (listToMaybe (mapMaybe (`lookup` list) names))

-- | Whether these values of Accept prefer JSON to HTML. If both have the same weight, JSON has to be named, since
-- clients that accept everything get HTML.
prefersJson :: [ByteString] -> Bool
prefersJson fields = json > html || json == html && json > 0 && any ((== "application/json") . fst) list
  where
    list = weighted fields
    json = weightOf ["application/json", "application/*", "*/*"] list
    html = weightOf ["text/html", "text/*", "*/*"] list
