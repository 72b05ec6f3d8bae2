-- |
-- Pipes.
module Files.Streams
  ( tests,
  )
where

import Control.Concurrent (forkOn, getNumCapabilities, threadDelay)
import Control.Concurrent.MVar
import Control.Exception (IOException, SomeException, bracket, displayException, finally, mask_, throwIO, try)
import Control.Monad (forM, forM_, forever, replicateM, replicateM_, unless, void, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import Data.IORef
import Data.List (isInfixOf)
import Data.Word (Word32)
import Foreign.C.String (CString, withCString)
import Foreign.C.Types (CInt (..))
import GHC.Conc (ThreadStatus (..), threadStatus)
import Harness
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (IOMode (ReadMode), hPutStrLn, stderr)
import qualified System.IO as IO
import System.IO.Error (ioeGetErrorString)
import System.Posix.Files (createNamedPipe, getFdStatus)
import System.Posix.IO (FdOption (NonBlockingRead), closeFd, createPipe, dup, handleToFd, setFdOption)
import System.Posix.Process (ProcessStatus (..), exitImmediately, forkProcess, getProcessStatus)
import System.Posix.Types (Fd (..))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Deadline (deadlineIn, inTime, isTimeout)
import Weft.File
import Weft.Test.Files
import qualified Weft.Thread as W
import Weft.Timer (milliseconds)
import qualified Weft.Timer as Timer

tests :: TestTree
tests =
  testGroup
    "streams"
    [ testCase "a pipe carries the written bytes, and ends" carries,
      testCase "the largest reads and writes transfer what there is" largest,
      testCase "an interrupted read loses nothing" keeps,
      testCase "a read whose deadline passes loses nothing" overdue,
      testCase "closing ends a read that waits" closes,
      testCase "a named pipe that nobody has open for writing is at its end" withoutWriter,
      testCase "a pipe has no offsets" offsets,
      testCase "many pipes wait at once" many,
      testCase "a forked child reads, writes and closes streams that threads of the parent are using" inherited,
      testCase "a descriptor that does not block, and that rings cannot wait for" withoutBlocking,
      testCase "more pipes wait than a ring has slots, and a disk is read" idle
    ]

-- | The two ends of a pipe.
withPipe :: (File -> File -> IO a) -> IO a
withPipe act = bracket open (\(r, w) -> closeFile r >> closeFile w) (uncurry act)
  where
    open = do
      (r, w) <- createPipe
      (,) <$> fromDescriptor "pipe" r <*> fromDescriptor "pipe" w

carries :: Assertion
carries = withPipe $ \r w -> do
  let size = 300000
  writer <- start (writeNext w (marked 0 size) >> closeFile w)
  got <- finishes "reading" (readAll r)
  result "writing" writer
  B.concat got @?= marked 0 size
  where
    readAll r = do
      bytes <- readNext r 50000
      if B.null bytes then pure [] else (bytes :) <$> readAll r

-- | Whenever the bytes come, they are the result of the read or are still in the pipe.
overdue :: Assertion
overdue = withPipe $ \r w -> forM_ [1 .. times 50] $ \i -> do
  soon <- deadlineIn (milliseconds (i `mod` 5))
  reader <- start (mask_ (try (inTime soon (readNext r 10))))
  when (even i) (W.threadDelay (100 * i))
  ended <- if i `mod` 5 == 1 then Just <$> finishes "the deadline" (result "reading" reader) else pure Nothing
  writeNext w (marked i 10)
  got <- maybe (finishes "reading" (result "reading" reader)) pure ended
  bytes <- case got of
    Right bytes -> pure bytes
    Left e -> do
      isTimeout e @? show (e :: IOException)
      finishes "what is in the pipe" (readNext r 10)
  bytes @?= marked i 10

-- | One of the parent's threads reads from a pipe, another one writes into a full one. Neither exists in the child. A
-- pipe holds 16 pages, of up to 64 KB (pipe(7)).
inherited :: Assertion
inherited = withPipe $ \r w -> withPipe $ \drain full -> do
  reader <- start (readNext r 1)
  writer <- start (writeNext full (marked 0 2000000))
  blocked reader >>= assertBool "the reader waits"
  blocked writer >>= assertBool "the writer waits"
  child <- forkProcess $ do
    worked <- try (finishes "the child's work" (childsWork r drain full))
    either (\e -> hPutStrLn stderr ("in the child: " <> displayException (e :: SomeException))) pure worked
    exitImmediately (either (const (ExitFailure 1)) (const ExitSuccess) worked)
  -- One byte for each reader.
  writeNext w (marked 0 2)
  status <- finishes "the child" (getProcessStatus True False child)
  status @?= Just (Exited ExitSuccess)
  got <- result "the parent's reader" reader
  B.length got @?= 1
  emptying <- start (forever (readNext drain 65536))
  result "the parent's writer" writer
  stop emptying
  where
    childsWork r drain full = do
      readNext r 1 >>= (@?= 1) . B.length
      emptying <- start (forever (readNext drain 65536))
      writeNext full (marked 0 10)
      stop emptying
      forM_ [r, full] $ \file -> do
        fd <- withFileFd file pure
        closeFile file
        open <- try (getFdStatus fd)
        either (const (pure ()) :: IOException -> IO ()) (const (assertFailure (show fd <> " is open"))) open

-- | Linux has no RWF_NOWAIT for inotify(7).
withoutBlocking :: Assertion
withoutBlocking = withFolder $ \dir -> bracket opened closeFile $ \file -> do
  w <- withFileFd file (\(Fd fd) -> withCString dir (\path -> c_inotify_add_watch fd path 0x100))
  assertBool "watched" (w >= 0)
  forM_ [1, 2 :: Int] $ \n -> do
    reader <- start (readNext file 4096)
    threadDelay 50000
    writeFile (dir </> show n) ""
    event <- result "reading" reader
    assertBool (show event) (B.length event >= 16)
  -- Interrupted, and ended by closing.
  early <- Timer.within (milliseconds 20) (readNext file 4096)
  early @?= Nothing
  reader <- start (try (readNext file 4096) :: IO (Either IOException B.ByteString))
  threadDelay 50000
  closeFile file
  result "closed" reader >>= either (const (pure ())) (assertFailure . show)
  where
    opened = c_inotify_init1 0x800 >>= fromDescriptor "inotify" . fromIntegral

foreign import ccall unsafe "inotify_init1" c_inotify_init1 :: CInt -> IO CInt

foreign import ccall unsafe "inotify_add_watch" c_inotify_add_watch :: CInt -> CString -> Word32 -> IO CInt

-- | As read(2) has it: before the first writer, after it, and with a descriptor that blocks.
withoutWriter :: Assertion
withoutWriter = withFolder $ \folder -> do
  let path = folder </> "pipe"
      ends what file = finishes what (readNext file 100) >>= (@?= B.empty)
  createNamedPipe path 0o600
  withFile reading {openNonBlocking = True} path $ \file -> do
    replicateM_ 3 (ends "before a writer" file)
    withFile reading {openAccess = WriteOnly} path $ \w -> do
      reader <- start (readNext file 100)
      blocked reader >>= assertBool "it does not wait for the writer"
      writeNext w (marked 0 10)
      result "reading" reader >>= (@?= marked 0 10)
      late <- start (readNext file 100)
      blocked late >>= assertBool "it does not wait for more"
      closeFile w
      result "the end" late >>= (@?= B.empty)
    replicateM_ 3 (ends "after the writer" file)
  bracket (IO.openFile path ReadMode >>= handleToFd >>= \fd -> setFdOption fd NonBlockingRead False >> fromDescriptor path fd) closeFile (ends "with a descriptor that blocks")

-- | 4 GiB are no bytes if their number is cut to 32 bits. The string that is written is shorter than it says, which a
-- pipe does not notice.
largest :: Assertion
largest = withPipe $ \r w -> do
  forM_ [4294967296, Count maxBound] $ \count -> do
    writeNext w (marked 0 10)
    readNext r count >>= (@?= marked 0 10)
  memory <- B.mallocByteString 2097152
  writer <- start (writeNext w (B.fromForeignPtr memory 0 4294967296))
  got <- finishes "reading" (readNext r 10)
  stop writer
  B.length got @?= 10

-- | Readers are killed all the time while a writer writes; what those got who were
-- not, and what was left for others, is everything, in order.
keeps :: Assertion
keeps = withPipe $ \r w -> do
  heard <- newIORef []
  let size = times 20000
  writer <- start (forM_ [0, 5 .. size - 5] (\i -> writeNext w (marked i 5) >> when (i `mod` 50 == 0) (pause 0)) >> closeFile w)
  ended <- newIORef False
  let reader = mask_ $ do
        bytes <- readNext r 64
        if B.null bytes then writeIORef ended True else modifyIORef' heard (bytes :)
      loop = do
        over <- readIORef ended
        unless over $ do
          task <- start (replicateM_ 20 reader)
          void (blocked task)
          stop task
          loop
  within 50 "all of it" loop
  result "writing" writer
  got <- B.concat . reverse <$> readIORef heard
  B.length got @?= size
  assertBool "other bytes" (got == marked 0 size)

closes :: Assertion
closes = do
  -- The descriptors of a manager, and of a ring, come with their first use on each capability.
  capabilities <- getNumCapabilities
  forM_ [0 .. capabilities - 1] $ \i -> do
    done <- newEmptyMVar
    _ <- forkOn i ((W.threadDelay 1 >> closedWhileReading) `finally` putMVar done ())
    takeMVar done
  before <- openDescriptors
  forM_ [1 .. times 100] (const once)
  later <- settled before openDescriptors
  assertBool ("descriptors left: " <> show (later - before)) (later <= before)
  where
    once = withPipe $ \r _ -> do
      reader <- start (readNext r 10)
      _ <- blocked reader
      finishes "closing" (closeFile r)
      end <- outcome "the read" reader
      case end of
        Left e -> assertBool (show e) ("closed" `isInfixOf` show e)
        Right bytes -> assertFailure ("read " <> show bytes)
    closedWhileReading = withPipe $ \r _ -> do
      _ <- start (threadDelay 20000 >> closeFile r)
      void (try (readNext r 10) :: IO (Either IOException B.ByteString))

offsets :: Assertion
offsets = withPipe $ \r _ -> do
  e <- failure "an offset" (readAt r 0 10)
  assertBool (show e) ("seek" `isInfixOf` ioeGetErrorString e || "seek" `isInfixOf` show e)

many :: Assertion
many = do
  let n = 200
  pipes <- mapM (const createPipe) [1 .. n :: Int]
  files <- mapM (\(r, w) -> (,) <$> fromDescriptor "pipe" r <*> fromDescriptor "pipe" w) pipes
  heard <- mapM (const newEmptyMVar) files
  readers <- sequence [start (readNext r 10 >>= putMVar box) | ((r, _), box) <- zip files heard]
  mapM_ blocked readers
  forM_ (zip [0 ..] files) $ \(i, (_, w)) -> writeNext w (marked i 3)
  forM_ (zip [0 ..] heard) $ \(i, box) -> finishes "a pipe" (takeMVar box) >>= (@?= marked i 3)
  forM_ files (\(r, w) -> closeFile r >> closeFile w)

-- | All on one capability, whose ring has 512 slots.
idle :: Assertion
idle = withBytes 65536 $ \path -> do
  (r, w) <- createPipe
  files <- replicateM 600 (dup r >>= fromDescriptor "pipe")
  closeFd r
  let onFirst act = do
        box <- newEmptyMVar
        t <- forkOn 0 (try act >>= putMVar box)
        pure (t, box)
      outcome' what box = finishes what (takeMVar box) >>= either (\e -> throwIO (e :: IOException)) pure
  readers <- forM files (\file -> onFirst (readNext file 10))
  forM_ readers (\(t, _) -> eventually "it waits" (isBlocked <$> threadStatus t))
  withFile reading {openDirect = True} path $ \file -> do
    reads' <- forM [0 .. 15 :: Int] (\i -> onFirst (readAt file (fromIntegral (4096 * i)) 4096))
    forM_ (zip [0 ..] reads') (\(i, (_, box)) -> outcome' "a read of the disk" box >>= (@?= marked (4096 * i) 4096))
  closeFd w
  forM_ readers (\(_, box) -> outcome' "the end of a pipe" box >>= (@?= B.empty))
  mapM_ closeFile files
  where
    isBlocked status = case status of ThreadBlocked _ -> True; _ -> False
