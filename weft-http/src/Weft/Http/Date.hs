{-# LANGUAGE OverloadedStrings #-}

-- |
-- The @Date@ field line of responses (RFC 9110, 6.6.1), and the lines that a server puts behind it, made once
-- a second on each capability. Any thread; throws nothing.
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
import Weft.Http.Buffer (placeCount)
import Weft.Sys

-- | The lines that follow the date, and for each home of buffers what was made last. That is
-- replaced by whichever thread finds that the second is over; two that do so at once write the same.
data DateLines = DateLines !ByteString !(BoxedArray (Ref Stamp))

-- | A second, and its lines.
data Stamp = Stamp !CTime !ByteString

-- | With these lines behind the date, each with its CRLF.
newDateLines :: ByteString -> IO DateLines
newDateLines behind = do
  first <- newRef (Stamp (-1) "")
  arr <- newBoxedArray placeCount first
  mapM_ (\i -> newRef (Stamp (-1) "") >>= writeBoxedArray arr i) [0 .. placeCount - 1]
  pure (DateLines behind arr)

-- | @Date: Sun, 22 Nov 2026 02:00:00 GMT@ with its CRLF, and the lines behind it, for a buffer of this home.
dateLines :: DateLines -> Int -> IO ByteString
dateLines (DateLines behind stamps) home = do
  ref <- readBoxedArray stamps home
  Stamp second made <- readRef ref
  t <- cTime nullPtr
  if t == second then pure made else renew behind ref t

renew :: ByteString -> Ref Stamp -> CTime -> IO ByteString
renew behind ref t = made <$ writeRef ref (Stamp t made)
  where
    !made = "Date: " <> formatHTTPDate (epochTimeToHTTPDate t) <> "\r\n" <> behind
{-# NOINLINE renew #-}

-- | time(2): seconds since 1970, without a system call where the kernel maps its clock.
foreign import ccall unsafe "time" cTime :: Ptr CTime -> IO CTime
