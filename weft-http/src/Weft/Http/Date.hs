{-# LANGUAGE OverloadedStrings #-}

-- |
-- The @Date@ field line of responses (RFC 9110, 6.6.1), made once a second on each capability.
-- Any thread; throws nothing.
module Weft.Http.Date
  ( dateLine,
  )
where

import Data.Bits ((.&.))
import Data.ByteString (ByteString)
import Foreign.C.Types (CTime (..))
import Foreign.Ptr (Ptr, nullPtr)
import Network.HTTP.Date (epochTimeToHTTPDate, formatHTTPDate)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Sys

-- | A second, and its line.
data Stamp = Stamp !CTime !ByteString

-- | By capability, modulo their number. Replaced by whichever thread finds that the second is over; two
-- that do so at once write the same.
stamps :: BoxedArray (Ref Stamp)
stamps = unsafePerformIO $ do
  first <- newRef (Stamp (-1) "")
  arr <- newBoxedArray stampCount first
  mapM_ (\i -> newRef (Stamp (-1) "") >>= writeBoxedArray arr i) [0 .. stampCount - 1]
  pure arr
{-# NOINLINE stamps #-}

stampCount :: Int
stampCount = 64

-- | @Date: Sun, 22 Nov 2026 02:00:00 GMT@ with its CRLF.
dateLine :: IO ByteString
dateLine = do
  cap <- myCapability
  ref <- readBoxedArray stamps (cap .&. (stampCount - 1))
  Stamp second line <- readRef ref
  t <- cTime nullPtr
  if t == second then pure line else renew ref t

renew :: Ref Stamp -> CTime -> IO ByteString
renew ref t = line <$ writeRef ref (Stamp t line)
  where
    !line = "Date: " <> formatHTTPDate (epochTimeToHTTPDate t) <> "\r\n"
{-# NOINLINE renew #-}

-- | time(2): seconds since 1970, without a system call where the kernel maps its clock.
foreign import ccall unsafe "time" cTime :: Ptr CTime -> IO CTime
