-- |
-- How many files may stay open at once for the answers of a folder, or of several. Every open file is a descriptor, of
-- which a process has a limited number (getrlimit(2), @RLIMIT_NOFILE@), and a client that reads slowly keeps its file
-- open as long as it likes.
--
-- Any thread may call anything.
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

-- | The number of permits that are left, changed atomically by the thread of each response; and a semaphore for threads that open files
-- only for a read.
data OpenFiles = OpenFiles !(IORef Int) !QSem

-- | For this many files at once, half of them for responses that keep their file open.
newOpenFiles :: Int -> IO OpenFiles
newOpenFiles n = OpenFiles <$> newIORef (n `quot` 2) <*> newQSem (max 1 (n `quot` 4))

-- | Run an action that opens one or two files, and waits only for the disk. Waits until there is room for it.
briefly :: Maybe OpenFiles -> IO a -> IO a
briefly Nothing act = act
briefly (Just (OpenFiles _ slots)) act = bracket_ (waitQSem slots) (signalQSem slots) act

-- | Run an action with a flag that says whether it may keep a file open. Never waits. Without a limit it may.
withPermit :: Maybe OpenFiles -> (Bool -> IO a) -> IO a
withPermit Nothing act = act True
withPermit (Just (OpenFiles left _)) act = bracket take' give act
  where
    take' = atomicModifyIORef' left (\n -> if n > 0 then (n - 1, True) else (n, False))
    give taken = when taken (atomicModifyIORef' left (\n -> (n + 1, ())))
