{-# LANGUAGE OverloadedStrings #-}

-- |
-- Dates in the fields of requests and responses, in the three forms that a recipient has to accept (RFC 9110, 5.6.7):
--
-- > Sun, 06 Nov 1994 08:49:37 GMT
-- > Sunday, 06-Nov-94 08:49:37 GMT
-- > Sun Nov  6 08:49:37 1994
--
-- The name of the day is not compared with the date. The functions throw nothing.
module Weft.Http.DateForms
  ( dateOf,
  )
where

import Control.Monad (guard)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (isDigit)
import Data.List (elemIndex)
import Data.Time.Calendar (dayOfWeek, fromGregorianValid, toGregorian)
import Data.Time.Clock (getCurrentTime, utctDay)
import Network.HTTP.Date (HTTPDate, defaultHTTPDate, hdDay, hdHour, hdMinute, hdMonth, hdSecond, hdWkday, hdYear)
import System.IO.Unsafe (unsafePerformIO)

-- | The date in a field's value.
dateOf :: ByteString -> Maybe HTTPDate
dateOf value = case C.split ' ' (strip value) of
  [name, day, month, year, time, "GMT"] | name `elem` map (<> ",") shortNames -> date (number 4 year) month (number 2 day) time
  [name, date', time, "GMT"] | name `elem` map (<> ",") longNames, [day, month, year] <- C.split '-' date' -> date (century <$> number 2 year) month (number 2 day) time
  [name, month, day, time, year] | name `elem` shortNames -> date (number 4 year) month (number 2 day) time
  [name, month, "", day, time, year] | name `elem` shortNames -> date (number 4 year) month (number 1 day) time
  _ -> Nothing
  where
    strip = C.dropWhileEnd blank . C.dropWhile blank
    blank c = c == ' ' || c == '\t'

-- | A date, given its year, month, day and time.
date :: Maybe Int -> ByteString -> Maybe Int -> ByteString -> Maybe HTTPDate
date givenYear name givenDay time = do
  year <- givenYear
  month <- (+ 1) <$> elemIndex name months
  day <- givenDay
  valid <- fromGregorianValid (fromIntegral year) month day
  [hour, minute, second] <- mapM (number 2) (C.split ':' time)
  -- A leap second is the second 60.
  guard (hour <= 23 && minute <= 59 && second <= 60)
  pure
    defaultHTTPDate
      { hdYear = year,
        hdMonth = month,
        hdDay = day,
        hdHour = hour,
        hdMinute = minute,
        hdSecond = second,
        hdWkday = fromEnum (dayOfWeek valid)
      }

-- | A number of that many digits.
number :: Int -> ByteString -> Maybe Int
number count digits
  | B.length digits == count, C.all isDigit digits = fst <$> C.readInt digits
  | otherwise = Nothing

months, shortNames, longNames :: [ByteString]
months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
shortNames = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
longNames = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

-- | The year with these last two digits that is at most 50 years ahead, and the latest such (RFC 9110, 5.6.7).
century :: Int -> Int
century digits = latest - (latest - digits) `mod` 100
  where
    latest = startYear + 50

-- | The year in which the process first needs it. It decides nothing but the century of two digits, so it may be some
-- years old.
startYear :: Int
startYear = unsafePerformIO ((\(year, _, _) -> fromIntegral year) . toGregorian . utctDay <$> getCurrentTime)
{-# NOINLINE startYear #-}
