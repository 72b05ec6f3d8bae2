-- |
-- Which precompressed variants a folder contains: @.br@, @.zst@, @.gz@. Most folders have
-- none. If that is known, the server need not look for the variants of each file, which takes three
-- failing openat2(2) calls; these read the disk if the kernel has not cached that the
-- names do not exist.
--
-- To find out, all names of the folder have to be read. That is put off: as long as
-- the lookups so far have cost less than reading the names would, the answer is that there
-- may be variants. The result stays valid while the folder's status is the same
-- ('statusChanged' changes when a name is added or removed). The status is checked eight times within the
-- time for which entries are trusted, and only on file systems where it is reliable
-- ('sameLocalDevice'). The result is not used for a folder that changed within the last seconds, since its
-- time may stay the same at the next change.
--
-- Any thread may call these functions.
module Weft.Static.Folders
  ( -- * Codings
    Coding (..),
    codingName,
    codingSuffix,

    -- * Folders
    Folders,
    newFolders,
    codingsIn,

    -- * Opening
    beneath,
    openBeneath,
  )
where

import Control.Concurrent (forkIOWithUnmask)
import Control.Exception (IOException, SomeException, bracket, catch, handle, mask_, throwIO)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (toLower)
import qualified Data.HashMap.Strict as H
import Data.IORef
import Data.Time.Clock.POSIX (getPOSIXTime)
import GHC.Conc (labelThread)
import Weft.Core.PerProcess
import Weft.Core.Time (Duration (..), Instant (..), after)
import Weft.File

-- Codings ------------------------------------------------------------------------------

-- | Content codings for which there may be a precompressed file; the best first.
data Coding = Brotli | Zstandard | Gzip
  deriving (Eq, Ord, Show, Enum, Bounded)

-- | The name in Content-Encoding.
codingName :: Coding -> ByteString
codingName Brotli = C.pack "br"
codingName Zstandard = C.pack "zstd"
codingName Gzip = C.pack "gzip"

-- | The suffix of a precompressed file's name.
codingSuffix :: Coding -> ByteString
codingSuffix Brotli = C.pack ".br"
codingSuffix Zstandard = C.pack ".zst"
codingSuffix Gzip = C.pack ".gz"

-- Folders ------------------------------------------------------------------------------

-- | What is known about the folders below a root.
data Folders = Folders
  { foldersRoot :: !Directory,
    -- | How long a result is used without comparing it with the disk.
    foldersTrust :: !Duration,
    -- | Changed atomically. A forked child, where the threads that read names do not exist, begins with nothing.
    foldersKnown :: !(PerProcess (IORef (H.HashMap ByteString (IORef Folder))))
  }

-- | What is known about a folder. Changed atomically, by any thread:
--
-- @
--   Probing n m -> Probing (n+1) m, Reading m (the thread that asks)
--   Reading m   -> Known, Probing 0 m' (the thread that reads the names)
--   Known       -> Known later, Probing 0 m (the thread that compares it with the disk)
-- @
data Folder
  = -- | The number of lookups so far, and the number after which the names are worth reading.
    Probing !Int !Int
  | -- | The names are being read. The number is the one of lookups after which that was worthwhile.
    Reading !Int
  | -- | At this instant the folder had this status and only these codings.
    Known !FileStatus ![Coding] !Instant

-- | Nothing is known yet. The duration is how long a result may be used without a check.
newFolders :: Directory -> Duration -> IO Folders
newFolders root (Duration trust) = Folders root (Duration (trust `div` 8)) <$> newPerProcess (newIORef H.empty)

-- | The codings for which the file at a path below the root may have variants,
-- and the instant at which that was true. The instant passed in is when the caller began.
codingsIn :: Folders -> Instant -> ByteString -> IO ([Coding], Instant)
codingsIn folders began path = do
  ref <- entryOf folders folder
  now <- readIORef ref
  case now of
    Known status codings seen
      | foldersTrust folders `after` seen >= began -> pure (codings, seen)
      | otherwise -> do
        same <- beneath (foldersRoot folders) folder (pure . (== status) . openedStatus) `catch` failed
        atomicModifyIORef' ref $ \f -> (if sees status f then (if same then Known status codings began else Probing 0 firstWorth) else f, ())
        pure (if same then (codings, began) else anyOf)
    Reading _ -> pure anyOf
    Probing _ _ -> mask_ $ do
      enough <- atomicModifyIORef' ref $ \f -> case f of
        Probing n worth
          | n + 1 >= worth -> (Reading worth, Just worth)
          | otherwise -> (Probing (n + 1) worth, Nothing)
        _ -> (f, Nothing)
      anyOf <$ mapM_ (readInBackground folders (B.copy folder) ref) enough
  where
    folder = B.dropWhileEnd (== 0x2f) (fst (B.breakEnd (== 0x2f) path))
    anyOf = ([minBound .. maxBound], began)
    sees status f = case f of
      Known status' _ seen -> status' == status && seen < began
      _ -> False
    failed :: IOException -> IO Bool
    failed _ = pure False

-- | A folder's entry. The number of folders is limited. When the limit is exceeded, all entries are dropped.
entryOf :: Folders -> ByteString -> IO (IORef Folder)
entryOf folders folder = do
  ref' <- ofThisProcess (foldersKnown folders)
  known <- readIORef ref'
  case H.lookup folder known of
    Just ref -> pure ref
    Nothing -> do
      fresh <- newIORef (Probing 0 firstWorth)
      atomicModifyIORef' ref' $ \m -> case H.lookup folder m of
        Just ref -> (m, ref)
        -- The size is computed in linear time, but only once for each new folder.
        Nothing -> (H.insert (B.copy folder) fresh (if H.size m >= 1000 then H.empty else m), fresh)

-- | The number of lookups before the size of a folder is checked. The size indicates the
-- number of names: a directory has 24 bytes for each, and the kernel takes 400 ns to read one.
-- Three lookups cost 40 us if they have to read the directory from disk.
firstWorth :: Int
firstWorth = 16

worthOf :: FileStatus -> Int
worthOf status = firstWorth + fromIntegral (statusSize status `div` 2048)

-- | Read the names, or put it off if there are too many for the number of lookups so far, or if the status is not
-- reliable.
readInBackground :: Folders -> ByteString -> IORef Folder -> Int -> IO ()
readInBackground folders folder ref worth = do
  thread <- forkIOWithUnmask $ \unmask ->
    handle failed (unmask (beneath (foldersRoot folders) folder look) `catch` \e -> become (Probing 0 worth) >> throwIO (e :: SomeException))
  labelThread thread "weft static names"
  where
    become = writeIORef ref
    failed :: IOException -> IO ()
    failed _ = pure ()
    look file = do
      let status = openedStatus file
      clock <- truncate <$> getPOSIXTime
      if not (sameLocalDevice (foldersRoot folders) file)
        then become (Probing 0 notAgain)
        else
          if worthOf status > worth
            then become (Probing worth (worthOf status))
            else
              if fst (statusChanged status) + 2 > clock
                then become (Probing 0 worth)
                else do
                  codings <- foldNames file (\found name -> pure $! addCoding name found) []
                  now <- statFile file
                  -- The earliest instant makes the next request compare the status with the disk.
                  become (if now == status then Known status codings (Instant minBound) else Probing 0 worth)
    notAgain = 1000000

-- | Add the coding of a file name with one of the suffixes. Ignores case, since file systems may do so.
addCoding :: ByteString -> [Coding] -> [Coding]
addCoding name found
  | dot == 0x2e || dot' == 0x2e = [c | c <- [minBound .. maxBound], c `elem` found || codingSuffix c `B.isSuffixOf` C.map toLower name]
  | otherwise = found
  where
    dot = at 3
    dot' = at 4
    at k = if B.length name >= k then B.index name (B.length name - k) else 0

-- | Run an action with a path below the root that does not lead out of it, opened without blocking a capability.
beneath :: Directory -> ByteString -> (File -> IO a) -> IO a
beneath root path = bracket (openBeneath root path) closeFile

-- | Open a path as 'beneath' does.
openBeneath :: Directory -> ByteString -> IO File
openBeneath root path = openRawFileAt root reading {openResolve = Beneath, openNonBlocking = True} (if B.null path then C.pack "." else path)
