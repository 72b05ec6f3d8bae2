-- |
-- 'sendFile' of a file that takes long to close (@cbits/slow_close.c@): other threads of the capability run meanwhile.
module Files.Sending
  ( tests,
  )
where

import Control.Exception (bracket, bracket_)
import Data.Word (Word64)
import Foreign.C.Types (CInt (..))
import Harness
import System.Posix.Files (fileID, getFileStatus)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Socket
import Weft.Test.Files

tests :: TestTree
tests = testGroup "sending" [testCase "a file that takes long to close does not hold the capability" slowClose]

-- | With an unsafe call, no other thread of a program with one capability permits the close, which is then in vain.
slowClose :: Assertion
slowClose = withBytes 1000 $ \path -> do
  inode <- fileID <$> getFileStatus path
  bracket (socketPair AF_UNIX Stream defaultProtocol) (\(a, b) -> close a >> close b) $ \(a, _) ->
    bracket_ (c_slow_close (fromIntegral inode)) (c_slow_close 0) $ do
      sender <- start (sendFile a path)
      eventually "the file is not closed" ((/= 0) <$> c_begun)
      c_permit
      result "sendFile" sender
      c_in_vain >>= (@?= 0)

foreign import ccall unsafe "files_slow_close" c_slow_close :: Word64 -> IO ()

foreign import ccall unsafe "files_close_begun" c_begun :: IO CInt

foreign import ccall unsafe "files_permit_close" c_permit :: IO ()

foreign import ccall unsafe "files_closed_in_vain" c_in_vain :: IO CInt
