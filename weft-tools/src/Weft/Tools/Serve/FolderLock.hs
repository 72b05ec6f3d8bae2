-- |
-- A lock for what processes do to the files of a folder. It is the kernel's lock of the folder itself (flock(2)), so it
-- leaves no file behind, and ends with the process.
module Weft.Tools.Serve.FolderLock
  ( withFolderLock,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket)
import Foreign.C.Error (Errno (..), eWOULDBLOCK)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..))
import System.Posix.IO (closeFd)
import System.Posix.Types (Fd (..))
import Weft.FFI.Path (withPath)

-- | Run an action while no other process runs one with the same folder. The action runs without the lock where there
-- can be none: in a folder that may not be read, on a file system without locks, or if another program keeps the lock
-- for more than two seconds.
withFolderLock :: FilePath -> IO a -> IO a
withFolderLock folder = bracket (locked attempts) (mapM_ closeFd) . const
  where
    attempts = 200 :: Int
    locked n = do
      r <- withPath "weft_lock_folder" folder cLockFolder
      if r >= 0
        then pure (Just (Fd r))
        else
          if Errno (negate r) == eWOULDBLOCK && n > 1
            then threadDelay 10000 >> locked (n - 1)
            else pure Nothing

-- It may wait for the disk.
foreign import ccall safe "weft_lock_folder" cLockFolder :: CString -> IO CInt
