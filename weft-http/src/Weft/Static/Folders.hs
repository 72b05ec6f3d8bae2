-- |
-- Which codings the names of a folder speak of: @.br@, @.zst@, @.gz@. Most folders have
-- none, and then nobody has to look for the compressed variants of a file in it, three
-- failing openat2(2), which take a disk's time when the kernel does not remember that the
-- names are not there.
--
-- That is learned from the folder's names, all of them, so not at once: as long as
-- looking for variants has cost less than reading the names will, the answer is that there
-- may be any. What was learned holds while the folder's status is what it was
-- ('statusChanged' moves when a name comes or goes), which is looked at eight times in the
-- time for which things are trusted; and only on file systems of which that is known
-- ('directoryLocal'). A folder that changed within the last seconds is not believed: its
-- time may not move once more.
--
-- Any thread may call anything.
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
  )
where

import Control.Concurrent (forkIOWithUnmask)
import Control.Exception (IOException, SomeException, catch, handle, mask_, throwIO)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (toLower)
import qualified Data.HashMap.Strict as H
import Data.IORef
import Data.Time.Clock.POSIX (getPOSIXTime)
import GHC.Conc (labelThread)
import Weft.Core.Time (Duration (..), Instant (..), after)
import Weft.File

-- Codings ------------------------------------------------------------------------------

-- | Content codings that may lie beside a file, compressed beforehand; the best first.
data Coding = Brotli | Zstandard | Gzip
  deriving (Eq, Show, Enum, Bounded)

-- | As in Content-Encoding.
codingName :: Coding -> ByteString
codingName Brotli = C.pack "br"
codingName Zstandard = C.pack "zstd"
codingName Gzip = C.pack "gzip"

-- | The suffix that such a file's name has.
codingSuffix :: Coding -> ByteString
codingSuffix Brotli = C.pack ".br"
codingSuffix Zstandard = C.pack ".zst"
codingSuffix Gzip = C.pack ".gz"

-- Folders ------------------------------------------------------------------------------

-- | The known folders below one.
data Folders = Folders
  { foldersRoot :: !Directory,
    -- | For so long something known is not compared with the disk.
    foldersTrust :: !Duration,
    -- | Changed atomically.
    foldersKnown :: !(IORef (H.HashMap ByteString (IORef Folder)))
  }

-- | Changed atomically, by any thread:
--
-- @
--   Probing n m -> Probing (n+1) m, Reading m (the thread that asks)
--   Reading m   -> Known, Probing 0 m' (the thread that reads the names)
--   Known       -> Known later, Probing 0 m (the thread that compares it with the disk)
-- @
data Folder
  = -- | Asked about so often; worth reading after so many.
    Probing !Int !Int
  | -- | Its names are being read. So many it was worth.
    Reading !Int
  | -- | It had this status, and only these codings, at this instant.
    Known !FileStatus ![Coding] !Instant

-- | Nothing is known yet. The duration is how long something may be taken to be right.
newFolders :: Directory -> Duration -> IO Folders
newFolders root (Duration trust) = Folders root (Duration (trust `div` 8)) <$> newIORef H.empty

-- | The codings in which there may be variants of the file with that path below the root,
-- and the instant at which that was so. The caller says what time it was when it began.
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

-- | A folder's entry. There is room for a limited number of folders; beyond that all entries are dropped.
entryOf :: Folders -> ByteString -> IO (IORef Folder)
entryOf folders folder = do
  known <- readIORef (foldersKnown folders)
  case H.lookup folder known of
    Just ref -> pure ref
    Nothing -> do
      fresh <- newIORef (Probing 0 firstWorth)
      atomicModifyIORef' (foldersKnown folders) $ \m -> case H.lookup folder m of
        Just ref -> (m, ref)
        -- The size is a walk through all of it, once for each new folder.
        Nothing -> (H.insert (B.copy folder) fresh (if H.size m >= 1000 then H.empty else m), fresh)

-- | The number of probes before the size of a folder is checked. The size gives the
-- number of names: reading a name costs the kernel 400 ns, a directory has 24 bytes for it,
-- and three probes cost 40 us if they have to go to the disk's directory.
firstWorth :: Int
firstWorth = 16

worthOf :: FileStatus -> Int
worthOf status = firstWorth + fromIntegral (statusSize status `div` 2048)

-- | Read the names, or put it off if they are too many for the questions so far, or not
-- to be trusted.
readInBackground :: Folders -> ByteString -> IORef Folder -> Int -> IO ()
readInBackground folders folder ref worth = do
  thread <- forkIOWithUnmask $ \unmask ->
    handle failed (unmask (beneath (foldersRoot folders) folder look) `catch` \e -> settle (Probing 0 worth) >> throwIO (e :: SomeException))
  labelThread thread "weft static names"
  where
    settle = writeIORef ref
    failed :: IOException -> IO ()
    failed _ = pure ()
    look file = do
      let status = openedStatus file
      clock <- truncate <$> getPOSIXTime
      if not (directoryLocal (foldersRoot folders) file)
        then settle (Probing 0 notAgain)
        else
          if worthOf status > worth
            then settle (Probing worth (worthOf status))
            else
              if fst (statusChanged status) + 2 > clock
                then settle (Probing 0 worth)
                else do
                  codings <- foldNames file (\found name -> pure $! spoken name found) []
                  now <- statFile file
                  -- Not compared since: the next request compares it.
                  settle (if now == status then Known status codings (Instant minBound) else Probing 0 worth)
    notAgain = 1000000

-- | With a name's coding, if it has one. File systems may not tell capitals apart.
spoken :: ByteString -> [Coding] -> [Coding]
spoken name found
  | dot == 0x2e || dot' == 0x2e = [c | c <- [minBound .. maxBound], c `elem` found || codingSuffix c `B.isSuffixOf` C.map toLower name]
  | otherwise = found
  where
    dot = at 3
    dot' = at 4
    at k = if B.length name >= k then B.index name (B.length name - k) else 0

-- | Open what is at a path below the root and does not lead out of it, without waiting for
-- anybody.
beneath :: Directory -> ByteString -> (File -> IO a) -> IO a
beneath root path = withRawFileAt root reading {openResolve = Beneath, openNonBlocking = True} (if B.null path then C.pack "." else path)
