{-# LANGUAGE OverloadedStrings #-}

-- |
-- The date is constant on the simulated machine, so that equal schedules take equal steps.
module Weft.Http.Date
  ( DateLines,
    newDateLines,
    dateLines,
  )
where

import Data.ByteString (ByteString)

newtype DateLines = DateLines ByteString

newDateLines :: ByteString -> IO DateLines
newDateLines = pure . DateLines

dateLines :: DateLines -> Int -> IO ByteString
dateLines (DateLines behind) _home = pure ("Date: Sun, 22 Nov 2026 02:00:00 GMT\r\n" <> behind)
