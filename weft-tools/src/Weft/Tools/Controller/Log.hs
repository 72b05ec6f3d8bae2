-- |
-- Description : The log of @weft controller@
--
-- Lines on standard error that never delay the thread that logs them: they are queued, and a thread of the log writes
-- them. If nobody reads the pipe, or the disk is full, lines are dropped, and their number is written when that is
-- possible again.
module Weft.Tools.Controller.Log
  ( Log,
    withLog,
    writeLog,
  )
where

import Control.Concurrent.MVar
import Control.Exception (IOException, evaluate, finally, try)
import Control.Monad (filterM, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Weft.Duration (seconds)
import Weft.Scope (Child (childLabel), daemon, forkUsing, withScope)
import Weft.Timer (within)
import Weft.Tools.Serve.Messages (lineOf, writeError)

-- | A log.
data Log = Log
  { -- | The lines to write, the last one first, the sum of their bytes, and the number of lines that were dropped or
    -- could not be written since the last report. Changed atomically by any thread.
    logQueue :: !(IORef Queue),
    -- | Full if there is something to do. Emptied by the log's thread.
    logWork :: !(MVar ()),
    -- | Whether the log's thread is to end. Written by 'withLog'.
    logEnding :: !(IORef Bool),
    -- | Filled by the log's thread when it ends.
    logEnded :: !(MVar ())
  }

data Queue = Queue ![ByteString] !Int !Int

-- | The maximum number of bytes in the queue.
mostQueued :: Int
mostQueued = 262144

-- | Run an action with a log. Afterwards the remaining lines are written, for a second at most. When this returns or
-- throws, the log's thread has ended.
withLog :: (Log -> IO a) -> IO a
withLog act = do
  l <- Log <$> newIORef (Queue [] 0 0) <*> newEmptyMVar <*> newIORef False <*> newEmptyMVar
  withScope $ \scope -> do
    _ <- forkUsing daemon {childLabel = Just "weft log"} scope (writer l)
    act l `finally` stop l
  where
    stop l = do
      writeIORef (logEnding l) True
      void (tryPutMVar (logWork l) ())
      void (within (seconds 1) (takeMVar (logEnded l)))

-- | Log a line, from any thread. Does not wait. Control characters are replaced by blanks.
writeLog :: Log -> String -> IO ()
writeLog l text = do
  -- Here, so that an exception is the caller's.
  line <- evaluate (lineOf text)
  atomicModifyIORef' (logQueue l) $ \(Queue ls size lost) ->
    let size' = size + B.length line
     in (if size' > mostQueued then Queue ls size (lost + 1) else Queue (line : ls) size' lost, ())
  void (tryPutMVar (logWork l) ())

-- | The loop of the log's thread.
writer :: Log -> IO ()
writer l = do
  takeMVar (logWork l)
  ending <- readIORef (logEnding l)
  (ls, dropped) <- atomicModifyIORef' (logQueue l) (\(Queue ls _ lost) -> (Queue [] 0 0, (reverse ls, lost)))
  failed <- filterM (fmap not . written) ls
  let lost = dropped + length failed
  when (lost > 0) $ do
    told <- written (lineOf ("weft: " <> show lost <> (if lost == 1 then " line" else " lines") <> " of this log lost"))
    unless told (atomicModifyIORef' (logQueue l) (\(Queue new size n) -> (Queue new size (n + lost), ())))
  if ending then putMVar (logEnded l) () else writer l
  where
    written line = either (\e -> const False (e :: IOException)) (const True) <$> try (writeError line)
