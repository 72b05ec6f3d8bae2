-- |
-- Contents of files: written bytes are read back.
module Files.Contents
  ( tests,
  )
where

import Control.Exception (bracket, bracket_, try)
import Control.Monad (foldM, forM, forM_, unless, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafePackCStringLen, unsafeUseAsCStringLen)
import Foreign.C.Error (eFBIG, eINVAL, eSPIPE)
import Foreign.ForeignPtr (withForeignPtr)
import Foreign.Marshal.Alloc (allocaBytes)
import Foreign.Marshal.Utils (copyBytes, fillBytes)
import Foreign.Ptr (castPtr, plusPtr, ptrToWordPtr)
import GHC.IO.Exception (IOErrorType (InvalidArgument))
import Harness
import System.FilePath ((</>))
import System.IO.Error (ioeGetErrorType, ioeGetFileName, isIllegalOperation)
import System.Mem (performGC)
import qualified System.Posix.Files as Posix
import System.Posix.Resource (Resource (ResourceFileSize), ResourceLimit (..), ResourceLimits (..), getResourceLimit, setResourceLimit)
import System.Posix.Signals (Handler (Ignore), fileSizeLimitExceeded, installHandler)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Test.Tasty.QuickCheck (Gen, choose, elements, forAllShow, ioProperty, listOf, oneof, testProperty, withMaxSuccess)
import Weft.File
import Weft.Test.Files
import Weft.Test.Skip (skip, testCase)

tests :: TestTree
tests =
  testGroup
    "contents"
    [ testCase "reads end where the file ends" ends,
      testCase "a read of more than there is takes memory for what there is" more,
      testProperty "writes and reads in any order agree with a model" . withMaxSuccess (times 60) $
        forAllShow (listOf step) show (ioProperty . agrees),
      testCase "several pieces of memory are filled in order" pieces,
      testCase "more pieces than one call takes" manyPieces,
      testCase "more pieces are written than one call takes, also at the end of a file" manyWritten,
      testCase "no pieces are read and written, but only where others could be" noPieces,
      testCase "pieces that a file has no room for are an error" noRoom,
      testCase "strings are written one later the other" manyStrings,
      testCase "past the page cache" direct,
      testCase "written past the page cache, whole, in blocks and in parts" directWrites,
      testCase "aligned memory is where it was allocated" alignedMemory,
      testCase "a few bytes past the page cache" smallDirect,
      testCase "memory that is not aligned is an error with the file's name" misaligned,
      testCase "chunks are the file" chunks,
      testCase "space set aside counts" allocated,
      testCase "status agrees with stat(2)" status,
      testCase "ten thousand threads read one file" crowd
    ]

ends :: Assertion
ends = withBytes 10000 $ \path -> withFile reading path $ \file -> do
  let check off n = do
        bytes <- readAt file off n
        bytes @?= B.take (countBytes n) (B.drop (fromIntegral off) (marked 0 10000))
  sequence_ [check off n | off <- [0, 1, 4095, 4096, 9999, 10000, 10001, 1000000], n <- [0, 1, 100, 4096, 20000]]
  e <- failure "a negative offset" (readAt file (-1) 10)
  assertBool (show e) (isErrno eINVAL e)
  e' <- failure "a negative count" (readAt file 0 (-1))
  assertBool (show e') (isErrno eINVAL e')

data Step = Write Int B.ByteString | Read Int Int
  deriving (Show)

step :: Gen Step
step =
  oneof
    [ (\at n k -> Write at (marked k n)) <$> place <*> size <*> choose (0, 1000),
      Read <$> place <*> size
    ]
  where
    place = oneof [choose (0, 100), choose (0, 70000), elements [4095, 4096, 65536]]
    size = oneof [choose (0, 10), choose (0, 20000), elements [4096]]

-- | Files whose size is right, and some of \/proc, whose size is 0, with numbers that do not fit into memory.
more :: Assertion
more = do
  withBytes (3 * 1048576 + 5) $ \path -> forM_ [False, True] $ \past ->
    withFile reading {openDirect = past} path $ \file ->
      forM_ [(0, large), (4096, large), (8388608, large), (0, biggest)] $ \(off, n) -> do
        got <- if past && n == biggest then readAt file off (n - 4095) else readAt file off n
        assertBool (show (off, n) <> ": other bytes") (got == B.drop (fromIntegral off) (marked 0 (3 * 1048576 + 5)))
  withFile reading "/proc/self/cmdline" $ \file -> do
    got <- readAt file 0 biggest
    small <- readAt file 0 65536
    got @?= small
  withFile reading "/proc/kallsyms" $ \file -> do
    got <- readAt file 0 biggest
    chunked <- foldChunks file 0 65536 (\before chunk -> pure (chunk : before)) []
    assertBool "other names" (got == B.concat (reverse chunked))
  where
    large = 2 ^ (40 :: Int)
    biggest = Count maxBound

agrees :: [Step] -> IO Bool
agrees steps = withFolder $ \folder ->
  withFile writing {openAccess = ReadWrite} (folder </> "model") $ \file -> do
    (_, ok) <- foldM (one file) (B.empty, True) steps
    pure ok
  where
    one file (model, ok) (Write at bytes) = do
      writeAt file (fromIntegral at) bytes
      let padded = if B.null bytes then model else model <> B.replicate (at - B.length model) 0
      pure (if B.null bytes then model else B.take at padded <> bytes <> B.drop (at + B.length bytes) padded, ok)
    one file (model, ok) (Read at n) = do
      got <- readAt file (fromIntegral at) (fromIntegral n)
      pure (model, ok && got == B.take n (B.drop at model))

pieces :: Assertion
pieces = withBytes 10000 $ \path -> withFile reading path $ \file -> allocaBytes 10000 $ \p -> do
  n <- readBufsAt file 100 [(p, 10), (p `plusPtr` 10, 0), (p `plusPtr` 10, 5000), (p `plusPtr` 5010, 4990)]
  n @?= 9900
  got <- B.unsafePackCStringLen (castPtr p, 9900)
  got @?= marked 100 9900

manyPieces :: Assertion
manyPieces = withBytes 9000 $ \path -> withFile reading path $ \file -> allocaBytes 9000 $ \p -> do
  n <- readBufsAt file 0 [(p `plusPtr` (3 * i), 3) | i <- [0 .. 2999]]
  n @?= 9000
  got <- B.unsafePackCStringLen (castPtr p, 9000)
  got @?= marked 0 9000

-- | 3,000 pieces, and more bytes than one call copies.
manyWritten :: Assertion
manyWritten = forM_ [False, True] $ \append -> withFolder $ \folder -> do
  let path = folder </> "f"
      mine = marked 7 3000000
  withFile writing path (\file -> writeAt file 0 (marked 0 100))
  n <- withFile writing {openTruncate = False, openAppend = append} path $ \file -> B.unsafeUseAsCStringLen mine $ \(p, _) ->
    writeBufsAt file 50 [(castPtr p `plusPtr` (1000 * i), if i < 0 then 0 else 1000) | i <- [0 .. 2999] <> [-1]]
  n @?= 3000000
  got <- withFile reading path (\file -> readAt file 0 4000000)
  assertBool "other bytes" (got == B.take (if append then 100 else 50) (marked 0 100) <> mine)

noPieces :: Assertion
noPieces = withBytes 10 $ \path -> allocaBytes 1 $ \p -> forM_ [[], [(p, 0), (p, 0)]] $ \none -> forM_ [writeBufsAt, readBufsAt] $ \act -> do
  let mode = reading {openAccess = ReadWrite}
  withFile mode path $ \file -> do
    act file 5 none >>= (@?= 0)
    failsWith "a negative offset" eINVAL (act file (-1) none)
  withFile mode "/dev/null" $ \file -> failsWith "a device without offsets" eSPIPE (act file 0 none)
  closed <- openFile mode path
  closeFile closed
  e <- failure "a closed file" (act closed 0 none)
  assertBool (show e) (isIllegalOperation e)

-- | By a limit on the size of files, as by a device that is full, some of the bytes are written first. The limit is far
-- beyond the files of tests that run at the same time, and of their output.
noRoom :: Assertion
noRoom = withFolder $ \folder -> withFile writing {openAccess = ReadWrite} (folder </> "f") $ \file -> B.unsafeUseAsCStringLen (marked 0 30000) $ \(p, _) -> do
  limits <- getResourceLimit ResourceFileSize
  bracket (installHandler fileSizeLimitExceeded Ignore Nothing) (\before -> installHandler fileSizeLimitExceeded before Nothing)
    . const
    . bracket_ (setResourceLimit ResourceFileSize limits {softLimit = ResourceLimit (fromIntegral limit)}) (setResourceLimit ResourceFileSize limits)
    $ failsWith "more than there is room for" eFBIG (writeBufsAt file (limit - 20000) [(castPtr p `plusPtr` i, 15000) | i <- [0, 15000]])
  got <- readAt file (limit - 20000) 30000
  got @?= marked 0 20000
  where
    limit = 1099511627776

manyStrings :: Assertion
manyStrings = withFolder $ \folder -> withFile writing {openAccess = ReadWrite} (folder </> "f") $ \file -> do
  writeManyAt file 5 [marked (10 * i) 10 | i <- [0 .. 2999]]
  writeManyAt file 0 []
  got <- readAt file 5 30000
  got @?= marked 0 30000

direct :: Assertion
direct = withBytes 65536 $ \path -> withFile reading {openDirect = True} path $ \file ->
  forM_ [0, 4096, 61440] $ \off -> do
    got <- readAt file off 8192
    got @?= B.take 8192 (B.drop (fromIntegral off) (marked 0 65536))

-- | The first write makes the file longer, which the kernel does not do without waiting; the next ones change what is
-- there. Parts, and more than a megabyte.
directWrites :: Assertion
directWrites = withFolder $ \folder -> do
  memory <- alignedBuffer (Count most)
  withForeignPtr memory $ \p -> withFile writing {openAccess = ReadWrite, openDirect = True} (folder </> "f") $ \file -> forM_ [0, 1 .. 5 :: Int] $ \round' -> do
    let mine = marked (4096 * round') most
        at = 4096 * fromIntegral round'
    B.unsafeUseAsCStringLen mine $ \(from, n) -> copyBytes p (castPtr from) n
    case round' `mod` 3 of
      0 -> writeBufAt file at p (Count most)
      1 -> forM_ [0, 65536 .. most - 65536] $ \i -> writeBufAt file (at + fromIntegral i) (p `plusPtr` i) 65536
      _ -> do
        n <- writeBufsAt file at [(p `plusPtr` i, 131072) | i <- [0, 131072 .. most - 131072]]
        n @?= Count most
    got <- readAt file at (Count most)
    assertBool ("other bytes in round " <> show round') (got == mine)
    fillBytes p 0 most
    n <- readBufsAt file at [(p, 4096), (p `plusPtr` 4096, Count (most - 4096))]
    n @?= Count most
    again <- B.packCStringLen (castPtr p, most)
    assertBool ("other bytes in the parts of round " <> show round') (again == mine)
  where
    most = 2097152

alignedMemory :: Assertion
alignedMemory = forM_ [1, 100, 512, 2048, 3000, 3200, 3300, 4096, 10000] $ \size -> do
  made <- forM [1 .. 200 :: Int] $ \i -> do
    memory <- alignedBuffer (Count size)
    withForeignPtr memory $ \p -> do
      ptrToWordPtr p `mod` 4096 @?= 0
      fillBytes p (fromIntegral i) size
    when (i `mod` 20 == 0) performGC
    pure (i, memory)
  forM_ made $ \(i, memory) -> withForeignPtr memory $ \p -> do
    bytes <- B.packCStringLen (castPtr p, size)
    assertBool ("other bytes, of " <> show size) (B.all (== fromIntegral i) bytes)

smallDirect :: Assertion
smallDirect = withBytes 65536 $ \path -> withFile reading {openDirect = True} path $ \file -> forM_ [1 .. 300 :: Int] $ \i -> do
  -- A device with blocks of 4096 bytes refuses it.
  r <- try (readAt file 0 512)
  either (\e -> ioeGetErrorType e @?= InvalidArgument) (@?= marked 0 512) r
  when (i `mod` 10 == 0) performGC

misaligned :: Assertion
misaligned = withBytes 65536 $ \path -> withFile reading {openDirect = True} path $ \file -> do
  r <- try (readAt file 3 4096)
  case r of
    Left e -> assertBool (show e) (isErrno eINVAL e) >> (ioeGetFileName e @?= Just path)
    -- tmpfs does, from Linux 6.6 on.
    Right bytes -> (bytes @?= marked 3 4096) >> skip "the file system takes any offset past the page cache"

chunks :: Assertion
chunks = withBytes 100000 $ \path -> withFile reading path $ \file -> do
  got <- foldChunks file 10 4096 (\acc bytes -> pure (bytes : acc)) []
  B.concat (reverse got) @?= marked 10 99990
  maximum (map B.length got) @?= 4096

allocated :: Assertion
allocated = withFolder $ \folder -> withFile writing (folder </> "f") $ \file -> do
  allocate file 0 100000
  size <- statusSize <$> statFile file
  size @?= 100000
  syncData file

status :: Assertion
status = withBytes 12345 $ \path -> do
  theirs <- Posix.getFileStatus path
  ours <- withFile reading path statFile
  byPath <- statPath path
  ours @?= byPath
  statusType ours @?= RegularFile
  statusSize ours @?= fromIntegral (Posix.fileSize theirs)
  statusInode ours @?= fromIntegral (Posix.fileID theirs)
  statusMode ours @?= Posix.fileMode theirs `mod` 0o10000
  fst (statusChanged ours) @?= truncate (Posix.statusChangeTimeHiRes theirs)
  fst (statusModified ours) @?= truncate (Posix.modificationTimeHiRes theirs)
  folder <- statPath "/"
  statusType folder @?= DirectoryFile

crowd :: Assertion
crowd = withBytes 1048576 $ \path -> withFile reading {openDirect = True} path $ \file ->
  within 60 "ten thousand reads" . parallel (times 10000) $ \i -> do
    let off = 4096 * (i * 37 `mod` 256)
    got <- readAt file (fromIntegral off) 4096
    unless (got == marked off 4096) (assertFailure ("wrong bytes at " <> show off))
