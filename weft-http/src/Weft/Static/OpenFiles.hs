-- |
-- A limit on the files that are open at the same time for the responses of one or more folders. Each open file is a
-- descriptor. A process has a limited number of these (getrlimit(2), @RLIMIT_NOFILE@), and a client that reads slowly
-- keeps its file open for as long as it likes. Files are open for three reasons: for the responses that read them, for
-- looking at them, and to be there for the next response ("Weft.Static.Kept").
--
-- Any thread may call these functions.
module Weft.Static.OpenFiles
  ( OpenFiles,
    newOpenFiles,
    withPermit,
    briefly,
    permitKept,
    returnKept,
  )
where

import Control.Concurrent.QSem
import Control.Exception (bracket, bracket_)
import Control.Monad (when)
import Data.IORef
import Weft.Core.PerProcess

-- | The permits left for responses, those for files that are kept, and a semaphore for threads that open files only for
-- a read. The numbers are changed atomically by each response's thread.
-- In a forked child all are left: what the parent's threads have taken they give back in the parent.
newtype OpenFiles = OpenFiles (PerProcess Permits)

data Permits = Permits !(IORef Int) !(IORef Int) !QSem

-- | Allow the given number of open files: half of them for responses that keep their file open, a quarter for files
-- that are kept for the next response, and a quarter for reads.
newOpenFiles :: Int -> IO OpenFiles
newOpenFiles n = OpenFiles <$> newPerProcess permits
  where
    permits = Permits <$> newIORef (n `quot` 2) <*> newIORef (n `quot` 4) <*> newQSem (max 1 (n `quot` 8))

-- | Run an action that opens one or two files and waits only for the disk. Blocks until it may open files.
briefly :: Maybe OpenFiles -> IO a -> IO a
briefly Nothing act = act
briefly (Just (OpenFiles permits)) act = ofThisProcess permits >>= \(Permits _ _ slots) -> bracket_ (waitQSem slots) (signalQSem slots) act

-- | Run an action with a flag that says whether it may keep a file open. Never blocks. Without a limit the flag is
-- 'True'.
withPermit :: Maybe OpenFiles -> (Bool -> IO a) -> IO a
withPermit Nothing act = act True
withPermit (Just (OpenFiles permits)) act = ofThisProcess permits >>= \(Permits left _ _) -> bracket (takeOne left) (\taken -> when taken (giveOne left)) act

-- | Whether one more file may be kept. Never blocks. If so, 'returnKept' has to follow when it is closed.
permitKept :: Maybe OpenFiles -> IO Bool
permitKept Nothing = pure True
permitKept (Just (OpenFiles permits)) = ofThisProcess permits >>= \(Permits _ left _) -> takeOne left

-- | A file that was kept is closed.
returnKept :: Maybe OpenFiles -> IO ()
returnKept = mapM_ (\(OpenFiles permits) -> ofThisProcess permits >>= \(Permits _ left _) -> giveOne left)

takeOne :: IORef Int -> IO Bool
takeOne left = atomicModifyIORef' left (\n -> if n > 0 then (n - 1, True) else (n, False))

giveOne :: IORef Int -> IO ()
giveOne left = atomicModifyIORef' left (\n -> (n + 1, ()))
