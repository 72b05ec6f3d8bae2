{-# LANGUAGE OverloadedStrings #-}

-- |
-- The @Date@ field line of responses (RFC 9110, 6.6.1), followed by a server's other lines, formatted once
-- a second on each capability. Any thread may use it; it throws nothing.
module Weft.Http.Date
  ( DateLines,
    newDateLines,
    dateLines,
  )
where

import Data.ByteString (ByteString)
import Foreign.C.Types (CTime (..))
import Foreign.Ptr (Ptr, nullPtr)
import Network.HTTP.Date (epochTimeToHTTPDate, formatHTTPDate)
import Weft.Core.Each
import Weft.Sys

-- | The lines that follow the date, and the most recently formatted lines for each capability. Any
-- thread that finds that the second is over replaces these; if two threads do so at once, they write the same value.
data DateLines = DateLines !ByteString !(Each (OwnRef Stamp))

-- | A second and its lines.
data Stamp = Stamp !CTime !ByteString

-- | Date lines that are followed by the given lines, each with its CRLF.
newDateLines :: ByteString -> IO DateLines
newDateLines behind = DateLines behind <$> newEach (newOwnRef (Stamp (-1) ""))

-- | @Date: Sun, 22 Nov 2026 02:00:00 GMT@ with its CRLF, and the lines after it, for a capability.
dateLines :: DateLines -> Int -> IO ByteString
dateLines (DateLines behind stamps) home = do
  ref <- ofCapability stamps home
  Stamp second made <- readOwnRef ref
  t <- cTime nullPtr
  if t == second then pure made else renew behind ref t

renew :: ByteString -> OwnRef Stamp -> CTime -> IO ByteString
renew behind ref t = made <$ writeOwnRef ref (Stamp t made)
  where
    !made = "Date: " <> formatHTTPDate (epochTimeToHTTPDate t) <> "\r\n" <> behind
{-# NOINLINE renew #-}

-- | time(2): seconds since 1970, without a system call where the kernel maps its clock.
foreign import ccall unsafe "time" cTime :: Ptr CTime -> IO CTime
