-- |
-- Directories: paths of bytes, names, and the detection of changes.
module Files.Folders
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket)
import Control.Monad (forM_, replicateM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (sort)
import Files.Cancelling (enginesOfAll)
import Foreign.C.Error (eINVAL, eNOENT, eNOTDIR, eXDEV)
import Foreign.Ptr (castPtr)
import Harness
import System.Directory (createDirectory, createFileLink, removeFile)
import System.FilePath ((</>))
import System.IO.Error
import qualified System.Posix.Files.ByteString as Raw
import qualified System.Posix.IO.ByteString as Raw
import Test.Tasty
import Test.Tasty.HUnit
import Weft.File
import Weft.Test.Files

-- | The argument is true if the suite runs on an emulated older kernel.
tests :: Bool -> TestTree
tests older =
  testGroup
    "folders"
    [ testCase "a path is any bytes" anyBytes,
      testCase "the names of empty and large directories, read repeatedly" names,
      testCase "the names of a file fail with ENOTDIR" noNames,
      testCase "the status of an entry: a file's, a link's own; any bytes; none; not of a file" entries,
      testCase "the statuses of all entries of a directory, read repeatedly" statuses,
      testCase "names that stay are found while others come and go" busy,
      testCase "an interrupted reader of names leaves nothing open" interrupted,
      testCase "a directory's time changes with every name, on file systems that guarantee it" (changes older),
      testCase "files are closed, with a name or without" closes,
      testCase "the status of opening is the one that is asked for" openings
    ]

readAll :: File -> IO B.ByteString
readAll file = readAt file 0 1000

anyBytes :: Assertion
anyBytes = withFolder $ \folder -> do
  let odd' = B.pack [0xff, 0x80, 0x41]
  fd <- Raw.createFile (C.pack (folder <> "/") <> odd') 0o600
  _ <- B.useAsCStringLen (C.pack "abc") (\(bytes, n) -> Raw.fdWriteBuf fd (castPtr bytes) (fromIntegral n))
  Raw.closeFd fd
  withDirectory folder $ \dir -> do
    withRawFileAt dir reading odd' readAll >>= (@?= C.pack "abc")
    -- The same file, by its name as base has it.
    withRawFileAt dir reading odd' (\file -> withFileAt dir reading (filePath file) readAll) >>= (@?= C.pack "abc")
    e <- failure "nothing" (withRawFileAt dir reading (C.pack "nothing") readAll)
    assertBool (show e) (isDoesNotExistError e)
    ioeGetFileName e @?= Just "nothing"
    failsWith "a zero byte" eINVAL (withRawFileAt dir reading (B.pack [0x41, 0]) readAll)
    failsWith "a way out" eXDEV (withRawFileAt dir reading {openResolve = Beneath} (C.pack "../x") readAll)

namesIn :: Directory -> FilePath -> IO [B.ByteString]
namesIn dir path = withFileAt dir reading path collected

collected :: File -> IO [B.ByteString]
collected file = sort <$> foldNames file (\acc name -> pure (B.copy name : acc)) []

names :: Assertion
names = withFolder $ \folder -> withDirectory folder $ \dir -> do
  namesIn dir "." >>= (@?= [])
  -- Several times as many as one call of getdents(2) returns.
  let many = [C.pack (replicate (i `mod` 200) 'n' <> show i) | i <- [1 .. 600 :: Int]]
  createDirectory (folder </> "d")
  forM_ many $ \name -> B.writeFile (folder </> "d" </> C.unpack name) B.empty
  withFileAt dir reading "d" $ \file -> do
    collected file >>= (@?= sort many)
    collected file >>= (@?= sort many)
    first <- foldNames file (\n _ -> pure (n + 1)) (0 :: Int)
    first @?= 600

noNames :: Assertion
noNames = withBytes 10 $ \path -> withFile reading path $ \file ->
  failsWith "names of a file" eNOTDIR (collected file)

entries :: Assertion
entries = withFolder $ \folder -> withDirectory folder $ \dir -> do
  let bytes = C.pack "\xff\xC3\xA9"
  createDirectory (folder </> "d")
  withRawFileAt dir writing bytes (\file -> writeAt file 0 (C.pack "four"))
  createFileLink "nowhere" (folder </> "link")
  withFileAt dir reading "." $ \file -> do
    let looked name = (\s -> (statusType s, statusSize s)) <$> statEntry file name
    looked bytes >>= (@?= (RegularFile, 4))
    looked (C.pack "link") >>= (@?= (SymbolicLink, 7))
    statEntry file (C.pack "d") >>= (@?= DirectoryFile) . statusType
    failsWith "no entry" eNOENT (statEntry file (C.pack "none"))
  withRawFileAt dir reading bytes $ \file -> failsWith "an entry of a file" eNOTDIR (statEntry file (C.pack "d"))

-- | The statuses that come with the names are those of 'statEntry', over several calls of getdents(2), and again.
statuses :: Assertion
statuses = withFolder $ \folder -> withDirectory folder $ \dir -> do
  forM_ [1 .. 600 :: Int] $ \i -> B.writeFile (folder </> (replicate (i `mod` 200) 'n' <> show i)) (B.replicate i 1)
  createDirectory (folder </> "d")
  createFileLink "nowhere" (folder </> "link")
  withFileAt dir reading "." $ \file -> forM_ [1, 2 :: Int] $ \_ -> do
    found <- foldEntries file (\acc name status -> pure ((B.copy name, status) : acc)) []
    length found @?= 602
    forM_ found $ \(name, status) -> either (const Nothing) Just status `isStatusOf` statEntry file name
  withFileAt dir reading "d" $ \file -> foldEntries file (\n _ _ -> pure (n + 1)) (0 :: Int) >>= (@?= 0)
  withFileAt dir reading "n1" $ \file -> failsWith "entries of a file" eNOTDIR (foldEntries file (\() _ _ -> pure ()) ())
  where
    isStatusOf status act = act >>= (status @?=) . Just

-- | Names that stay are found while other names come and go.
busy :: Assertion
busy = withFolder $ \folder -> withDirectory folder $ \dir -> do
  forM_ [1 .. 500 :: Int] $ \i -> B.writeFile (folder </> "stays" <> show i) B.empty
  task <- start . forM_ (cycle [1 .. 50 :: Int]) $ \i -> do
    B.writeFile (folder </> "goes" <> show i) B.empty
    removeFile (folder </> "goes" <> show i)
  replicateM_ (times 20) $ do
    found <- namesIn dir "."
    length (filter (C.isPrefixOf (C.pack "stays")) found) @?= 500
  stop task

interrupted :: Assertion
interrupted = withFolder $ \folder -> withDirectory folder $ \dir -> do
  forM_ [1 .. 300 :: Int] $ \i -> B.writeFile (folder </> show i) B.empty
  enginesOfAll
  before <- openDescriptors
  within 50 "names" . parallel 8 $ \i -> forM_ [1 .. times 50] $ \k -> do
    task <- start (namesIn dir ".")
    threadDelay ((i * 37 + k * 13) `mod` 200)
    stop task
  later <- settled before openDescriptors
  assertBool (show (later - before) <> " descriptors left") (later <= before)

-- | Longer than the kernel's clock for files ticks.
changes :: Bool -> Assertion
changes older = withFolder $ \folder -> withDirectory folder $ \dir -> do
  let changed = withFileAt dir reading "." (\file -> (,) (sameLocalDevice dir file) . statusChanged <$> statFile file)
      moves act = do
        (_, before) <- changed
        threadDelay 25000
        () <- act
        (local, now) <- changed
        assertBool "its time stands still" (not local || now > before)
  (local, _) <- changed
  assertBool "the disk's file system is known" (local /= older)
  forM_ [1 .. 3 :: Int] $ \i -> do
    moves (B.writeFile (folder </> show i) B.empty)
    moves (Raw.rename (C.pack (folder </> show i)) (C.pack (folder </> "r" <> show i)))
    moves (Raw.createLink (C.pack (folder </> "r" <> show i)) (C.pack (folder </> "l" <> show i)))
    moves (removeFile (folder </> "r" <> show i))
    moves (createDirectory (folder </> "d" <> show i))
  -- Files of procfs have no such times.
  made <- withDirectory "/proc" $ \proc -> withFileAt proc reading "version" (pure . sameLocalDevice proc)
  made @?= False

closes :: Assertion
closes = withFolder $ \folder -> withDirectory folder $ \dir -> do
  enginesOfAll
  before <- openDescriptors
  forM_ [1 .. times 100] $ \i -> do
    let path = "f" <> show (i `mod` 3)
    withFile writing (folder </> path) (\file -> writeAt file 0 (marked i 10))
    bracket (openFileAt dir reading path) closeFile $ \file -> do
      removeFile (folder </> path)
      got <- readAll file
      got @?= marked i 10
    withFile writing (folder </> path) (\file -> writeAt file 0 (marked i 10))
    withFileAt dir reading path readAll >>= (@?= marked i 10)
    withFileAt dir reading {openAccess = ReadWrite} path (\file -> writeAt file 0 (marked 0 10))
  later <- settled before openDescriptors
  assertBool (show (later - before) <> " descriptors left") (later <= before)

openings :: Assertion
openings = withFolder $ \folder -> withDirectory folder $ \dir -> do
  withFile writing (folder </> "f") (\file -> writeAt file 0 (marked 0 10))
  withFileAt dir reading "f" $ \file -> do
    now <- statFile file
    openedStatus file @?= now
    withFile writing {openTruncate = False} (folder </> "f") (\other -> writeAt other 10 (marked 10 10))
    statusSize (openedStatus file) @?= 10
    later <- statFile file
    statusSize later @?= 20
  failsWith "no directory" eNOTDIR (withFileAt dir reading "f/x" readAll)
