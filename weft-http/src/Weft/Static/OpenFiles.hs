-- |
-- A limit on the files that are open at the same time for the responses of one or more folders. Each open file is a
-- descriptor. A process has a limited number of these (getrlimit(2), @RLIMIT_NOFILE@), and a client that reads slowly
-- keeps its file open for as long as it likes.
--
-- Any thread may call these functions.
module Weft.Static.OpenFiles
  ( OpenFiles,
    newOpenFiles,
    withPermit,
    briefly,
  )
where

import Control.Concurrent.QSem
import Control.Exception (bracket, bracket_)
import Control.Monad (when)
import Data.IORef

-- | The number of permits left, changed atomically by each response's thread; and a semaphore for threads that open
-- files only for a read.
data OpenFiles = OpenFiles !(IORef Int) !QSem

-- | Allow the given number of open files, half of them for responses that keep their file open.
newOpenFiles :: Int -> IO OpenFiles
newOpenFiles n = OpenFiles <$> newIORef (n `quot` 2) <*> newQSem (max 1 (n `quot` 4))

-- | Run an action that opens one or two files and waits only for the disk. Blocks until it may open files.
briefly :: Maybe OpenFiles -> IO a -> IO a
briefly Nothing act = act
briefly (Just (OpenFiles _ slots)) act = bracket_ (waitQSem slots) (signalQSem slots) act

-- | Run an action with a flag that says whether it may keep a file open. Never blocks. Without a limit the flag is
-- 'True'.
withPermit :: Maybe OpenFiles -> (Bool -> IO a) -> IO a
withPermit Nothing act = act True
withPermit (Just (OpenFiles left _)) act = bracket take' give act
  where
    take' = atomicModifyIORef' left (\n -> if n > 0 then (n - 1, True) else (n, False))
    give taken = when taken (atomicModifyIORef' left (\n -> (n + 1, ())))
