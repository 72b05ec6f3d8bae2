-- |
-- What a process holds, as the kernel counts it: memory and descriptors of this one.
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

-- | Forget the most memory that was resident so far: proc(5), clear_refs.
forgetPeak :: IO ()
forgetPeak = writeFile "/proc/self/clear_refs" "5"

-- | A number of KiB in @/proc/self/status@: @VmRSS@ is what is resident, @VmHWM@ the most since 'forgetPeak'.
resident :: String -> IO Int
resident name = do
  status <- C.unpack <$> B.readFile "/proc/self/status"
  maybe (assertFailure ("no " <> name)) pure (listToMaybe [n | line <- lines status, field : number : _ <- [words line], field == name <> ":", Just n <- [readMaybe number]])

-- | How many descriptors are open.
openDescriptors :: IO Int
openDescriptors = length <$> listDirectory "/proc/self/fd"
