{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Text in HTML and SVG
module Weft.Tools.Markup
  ( escape,
  )
where

import Data.Text (Text)
import qualified Data.Text as T

-- | A text as HTML and XML have it, between tags or in an attribute's value in double quotes.
escape :: Text -> Text
escape = T.concatMap $ \c -> case c of
  '<' -> "&lt;"
  '>' -> "&gt;"
  '&' -> "&amp;"
  '"' -> "&quot;"
  _ -> T.singleton c
