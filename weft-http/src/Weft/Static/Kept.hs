-- |
-- Open files that are kept for the next response, which then neither opens nor closes them.
--
-- There is a table for each capability, so that requests on different cores share nothing that is written. The first
-- response of a capability that opens a file keeps it there, if there is room. None has to leave for another one: with
-- more files in use than there is room for, some are kept and the others are opened each time. A file leaves its table
-- when nobody has used it for five to ten seconds, when a response finds that it is not the file that is wanted
-- ('dropKept'), and when the folder is closed. It is closed then, or when the last response that uses it has ended
-- ("Weft.Static.Users").
--
-- The states of the thread that closes unused files, and their successors:
--
-- @
--   Asleep  no thread                        -> Awake  (who has put a file into a table; it starts the thread)
--   Awake                                    -> Asleep (the thread, which then looks once more whether a table has a file)
--   any                                      -> Closed ('closeKept'; the thread ends when it finds that)
-- @
--
-- A forked child begins with no files: the thread that closes unused ones, and the responses that use others, exist in
-- the parent alone. The child's copies are left to the collector.
--
-- Any thread may call these functions.
module Weft.Static.Kept
  ( Kept,
    newKept,
    withKept,
    withOpened,
    dropKept,
    closeKept,
    countKept,
  )
where

import Control.Concurrent (forkIOWithUnmask)
import Control.Exception (bracket, mask, mask_, onException)
import Control.Monad (forM_, unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.HashMap.Strict as H
import Data.IORef
import Data.Maybe (isJust)
import GHC.Conc (labelThread)
import Weft.Core.Each (Each, everyOne, newEach, own)
import Weft.Core.PerProcess
import Weft.File (File, closeFile)
import Weft.Static.OpenFiles
import Weft.Static.Users
import Weft.Thread (threadDelay)

-- | The kept files of a folder, in each process.
newtype Kept = Kept (PerProcess Files)

-- | The kept files of a folder.
data Files = Files
  { -- | By their path below the folder. Changed atomically, by any thread.
    keptTables :: !(Each (IORef (H.HashMap ByteString Slot))),
    -- | The number of files that were kept and are still open. Changed atomically.
    keptCount :: !(IORef Int),
    -- | Changed atomically.
    keptCloser :: !(IORef Closer)
  }

data Closer = Asleep | Awake | Closed
  deriving (Eq)

data Slot = Slot
  { slotFile :: !File,
    -- | Those who use the file. The identity of the slot.
    slotUsers :: !Users,
    -- | Whether it was used since the closing thread looked. Written by both.
    slotUsed :: !(IORef Bool)
  }

-- | No files.
newKept :: IO Kept
newKept = noFiles Asleep >>= fmap Kept . newPerProcessFrom inherited
  where
    noFiles state = Files <$> newEach (newIORef H.empty) <*> newIORef 0 <*> newIORef state
    inherited kept = readIORef (keptCloser kept) >>= \state -> noFiles (if state == Closed then Closed else Asleep)

-- | Run an action with the file that is kept under a path, if there is one. 'Nothing' without running it if there is
-- none.
withKept :: Kept -> ByteString -> (File -> IO a) -> IO (Maybe a)
withKept (Kept files) path act = do
  kept <- ofThisProcess files
  table <- own (keptTables kept) >>= readIORef
  case H.lookup path table of
    Nothing -> pure Nothing
    Just slot -> do
      used <- readIORef (slotUsed slot)
      unless used (writeIORef (slotUsed slot) True)
      using (slotUsers slot) (act (slotFile slot))

-- | Open a file, and run the action that the function has for it; 'Nothing' if it has none. The file is kept under
-- the path if fewer than the given number are, and if the process may keep another one. Otherwise it is closed in the
-- end.
withOpened :: Kept -> Int -> Maybe OpenFiles -> ByteString -> IO File -> (File -> Maybe (IO a)) -> IO (Maybe a)
withOpened (Kept process) most files path open actionFor = mask $ \restore -> do
  kept <- ofThisProcess process
  room <- takeRoom kept most files
  if not room
    then bracket open closeFile (restore . sequence . actionFor)
    else do
      file <- open `onException` giveRoom kept files
      users <- newUsers (closeFile file >> giveRoom kept files)
      let wanted = actionFor file
      stays <- if isJust wanted then put kept path file users else pure False
      let end = unless stays (closeUnused users)
      result <- restore (maybe (pure Nothing) (using users) wanted) `onException` end
      result <$ end

takeRoom :: Files -> Int -> Maybe OpenFiles -> IO Bool
takeRoom kept most files = do
  -- Read first: where all room is taken, requests write nothing.
  full <- (>= most) <$> readIORef (keptCount kept)
  mine <- if full then pure False else atomicModifyIORef' (keptCount kept) (\n -> if n < most then (n + 1, True) else (n, False))
  permitted <- if mine then permitKept files else pure False
  permitted <$ when (mine && not permitted) (atomicModifyIORef' (keptCount kept) (\n -> (n - 1, ())))

giveRoom :: Files -> Maybe OpenFiles -> IO ()
giveRoom kept files = returnKept files >> atomicModifyIORef' (keptCount kept) (\n -> (n - 1, ()))

-- | Put a file into the table of the capability, unless it has one with the same path. Masked.
put :: Files -> ByteString -> File -> Users -> IO Bool
put kept path file users = do
  table <- own (keptTables kept)
  slot <- Slot file users <$> newIORef True
  -- Copied, since the path may be a slice of a larger string.
  let !name = B.copy path
  added <- atomicModifyIORef' table (\t -> if H.member name t then (t, False) else (H.insert name slot t, True))
  added <$ when added (wakeCloser kept)

-- | Keep the files of a path no longer. Responses that use them go on.
dropKept :: Kept -> ByteString -> IO ()
dropKept (Kept files) path = mask_ $ do
  kept <- ofThisProcess files
  tables <- everyOne (keptTables kept)
  forM_ tables $ \table -> readIORef table >>= mapM_ (remove table path) . H.lookup path

-- | Take a slot out of a table. Masked.
remove :: IORef (H.HashMap ByteString Slot) -> ByteString -> Slot -> IO ()
remove table path slot = do
  mine <- atomicModifyIORef' table $ \t -> case H.lookup path t of
    Just s | slotUsers s == slotUsers slot -> (H.delete path t, True)
    _ -> (t, False)
  when mine (closeUnused (slotUsers slot))

-- | Keep no file any more.
closeKept :: Kept -> IO ()
closeKept (Kept files) = mask_ $ do
  kept <- ofThisProcess files
  atomicWriteIORef (keptCloser kept) Closed
  empty kept

empty :: Files -> IO ()
empty kept = do
  tables <- everyOne (keptTables kept)
  forM_ tables $ \table -> atomicModifyIORef' table ((,) H.empty) >>= mapM_ (closeUnused . slotUsers)

-- | The number of files that were kept and are still open.
countKept :: Kept -> IO Int
countKept (Kept files) = ofThisProcess files >>= readIORef . keptCount

-- The thread that closes --------------------------------------------------------------------

-- | Called when a table has a new file. Masked.
wakeCloser :: Files -> IO ()
wakeCloser kept = do
  before <- atomicModifyIORef' (keptCloser kept) (\s -> (if s == Asleep then Awake else s, s))
  case before of
    Asleep -> do
      thread <- forkIOWithUnmask (\unmask -> closer kept (unmask (threadDelay 5000000)))
      labelThread thread "weft static kept files"
    Awake -> pure ()
    Closed -> empty kept

closer :: Files -> IO () -> IO ()
closer kept wait = do
  wait
  tables <- everyOne (keptTables kept)
  forM_ tables $ \table -> readIORef table >>= mapM_ (uncurry (closeIdle table)) . H.toList
  some <- hasFiles tables
  state <- if some then readIORef (keptCloser kept) else atomicModifyIORef' (keptCloser kept) (\s -> (if s == Awake then Asleep else s, s))
  if some
    then unless (state == Closed) (closer kept wait)
    else hasFiles tables >>= \again -> when again (wakeCloser kept)
  where
    hasFiles = fmap (not . all H.null) . mapM readIORef
    closeIdle table path slot = do
      used <- readIORef (slotUsed slot)
      if used then writeIORef (slotUsed slot) False else remove table path slot
