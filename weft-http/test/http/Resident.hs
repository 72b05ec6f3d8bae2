-- |
-- This process's resident memory and open descriptors, from @\/proc@.
module Resident
  ( forgetPeak,
    resident,
    openDescriptors,
  )
where

import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Maybe (listToMaybe)
import System.Directory (listDirectory)
import Test.Tasty.HUnit (assertFailure)
import Text.Read (readMaybe)

-- | Reset the peak of resident memory (@VmHWM@): proc(5), clear_refs.
forgetPeak :: IO ()
forgetPeak = writeFile "/proc/self/clear_refs" "5"

-- | A field of @/proc/self/status@, in KiB: @VmRSS@ is the resident memory now, @VmHWM@ its peak since 'forgetPeak'.
resident :: String -> IO Int
resident name = do
  status <- C.unpack <$> B.readFile "/proc/self/status"
  maybe (assertFailure ("no " <> name)) pure (listToMaybe [n | line <- lines status, field : number : _ <- [words line], field == name <> ":", Just n <- [readMaybe number]])

-- | The number of open descriptors.
openDescriptors :: IO Int
openDescriptors = length <$> listDirectory "/proc/self/fd"
