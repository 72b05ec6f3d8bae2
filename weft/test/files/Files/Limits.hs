-- |
-- Limits: on the bytes that one call copies while it holds the capability, on the memory that remains
-- after requests, and on the time for which a lack of descriptors is remembered.
module Files.Limits
  ( tests,
  )
where

import Control.Concurrent (forkOn, isEmptyMVar, newEmptyMVar, putMVar, takeMVar, threadDelay)
import Control.Exception (IOException, SomeException, bracket, bracket_, throwIO, try)
import Control.Monad (forM, forM_, replicateM_, unless, void, when)
import qualified Data.ByteString as B
import Data.IORef
import Data.Word (Word64)
import Files.Older
import Foreign.ForeignPtr (mallocForeignPtrArray, withForeignPtr)
import Foreign.Marshal.Alloc (free, mallocBytes)
import Foreign.Ptr (Ptr, WordPtr (..), castPtr, plusPtr, ptrToWordPtr)
import Foreign.Storable (pokeElemOff)
import Harness
import System.Posix.IO (closeFd, createPipe, dup)
import System.Posix.Resource
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.FFI.File
import Weft.File
import Weft.File.Engine (begin)
import Weft.File.Types (fileFd)
import Weft.Test.Files
import Weft.Test.Skip (skip, testCase)

tests :: FileEngine -> TestTree
tests engine =
  testGroup
    "limits"
    ( [ testCase "a call that has the capability copies at most 1 MiB" oneCall,
        testCase "a read of several parts copies at most 1 MiB a call" oneCallOfParts,
        testCase "interrupted waits leave no memory behind" unwatched,
        testCase "a request that waits for a slot fails when the rings are stopped" stopped
      ]
        <> [testCase "a direct read that has to go another way, for which a ring is opened, does not hold up others" anotherWay | engine == Adaptive]
        <> [t | engine /= Threads, t <- [testCase "a request that has ended keeps no memory" ended, testCase "rings come after a lack of descriptors" shortage]]
    )

mebibyte :: Int
mebibyte = 1048576

-- | The results of direct reads are taken by one thread, on which their handlers run. While one of them needs a ring,
-- and the kernel takes its time to open it, the next one ends.
anotherWay :: Assertion
anotherWay = withBytes 65536 $ \path -> withFile reading {openDirect = True} path $ \file -> do
  noRings <- snd <$> filesChoice
  mapM_ (skip . ("no rings: " <>)) noRings
  stopRings
  memory <- alignedBuffer 8192
  withForeignPtr memory $ \p -> do
    (first, second) <- (,) <$> newEmptyMVar <*> newEmptyMVar
    let readAtBlock i = begin True (opRead (fileFd file) (4096 * fromIntegral i) (p `plusPtr` (4096 * i)) 4096)
    holdingRings $ do
      postponing 1 . onFirst . void $ do
        _ <- readAtBlock 0 (putMVar first)
        eventually "the first read has to go another way, or has ended" $ (||) <$> ((== 0) <$> stillPostponed) <*> (not <$> isEmptyMVar first)
      direct <- isEmptyMVar first
      unless direct (skip "no direct reads on this file system")
      eventually "a ring is being opened" ((> 0) <$> heldRings)
      onFirst (void (readAtBlock 1 (putMVar second)))
      finishes "the second read" (takeMVar second) >>= (@?= 4096)
    finishes "the first read" (takeMVar first) >>= (@?= 4096)
    got <- B.packCStringLen (castPtr p, 8192)
    got @?= marked 0 8192
  where
    -- The requests of one capability have one thread.
    onFirst act = do
      done <- newEmptyMVar
      _ <- forkOn 0 (try act >>= putMVar done)
      takeMVar done >>= either (throwIO :: SomeException -> IO ()) pure

-- | Filled by one write, so that all of it is in the page cache.
withCached :: Int -> (File -> IO a) -> IO a
withCached size act = withBytes size $ \path -> withFile reading path $ \file -> do
  all' <- readAt file 0 (fromIntegral size)
  B.length all' @?= size
  act file

oneCall :: Assertion
oneCall = withCached (5 * mebibyte + 17) $ \file -> do
  let size = 5 * mebibyte + 17
  p <- mallocBytes size
  n <- tryOp (opRead (fileFd file) 0 p size)
  free p
  assertBool (show n <> " bytes in one call") (n == errAgain || fromIntegral n <= mebibyte)
  got <- readAt file 0 (fromIntegral size)
  assertBool "other bytes" (got == marked 0 size)

oneCallOfParts :: Assertion
oneCallOfParts = withCached (4 * mebibyte) $ \file -> do
  let part = mebibyte - 5
  p <- mallocBytes (4 * part)
  vector <- mallocForeignPtrArray 8
  n <- withForeignPtr vector $ \v -> do
    forM_ [0 .. 3] $ \i -> do
      pokeElemOff v (2 * i) (address (p `plusPtr` (i * part)))
      pokeElemOff v (2 * i + 1) (fromIntegral part :: Word64)
    tryOp (opReadParts (fileFd file) 0 v 4)
  free p
  assertBool (show n <> " bytes in one call") (n == errAgain || fromIntegral n <= mebibyte)
  where
    address :: Ptr a -> Word64
    address q = let WordPtr w = ptrToWordPtr q in fromIntegral w

-- | 3,000 reads of an empty pipe, each given up.
unwatched :: Assertion
unwatched = bracket open (\(r, w) -> closeFile r >> closeFile w) $ \(r, _) -> do
  let given = replicateM_ (times 100) $ do
        task <- start (readNext r 65536)
        void (blocked task)
        stop task
  given
  before <- liveBytes
  replicateM_ 10 given
  later <- settled (before + 2000000) liveBytes
  assertBool (show (later - before) <> " bytes more are alive") (later <= before + 2000000)
  where
    open = do
      (r, w) <- createPipe
      (,) <$> fromDescriptor "pipe" r <*> fromDescriptor "pipe" w

-- | As many large reads as a ring has slots, all at once.
ended :: Assertion
ended = withBytes mebibyte $ \path -> withFile reading {openDirect = True} path $ \file -> do
  before <- liveBytes
  parallel 64 $ \_ -> replicateM_ 4 $ do
    got <- readAt file 0 (fromIntegral mebibyte)
    when (B.length got /= mebibyte) (assertFailure "a short read")
  later <- settled (before + 16000000) liveBytes
  assertBool (show (later - before) <> " bytes are alive") (later <= before + 16000000)

-- | More reads of an idle pipe than there are slots.
stopped :: Assertion
stopped = do
  (r, w) <- createPipe
  p <- mallocBytes 1
  ends <- newIORef (0 :: Int)
  cancels <- forM [1 .. 1200 :: Int] $ \_ -> begin False (opRead r (-1) p 1) (\_ -> atomicModifyIORef' ends (\k -> (k + 1, ())))
  finishes "stopping" stopRings
  -- The pool's are not stopped.
  sequence_ cancels
  eventually "the end of all" ((== 1200) <$> readIORef ends)
  mapM_ closeFd [r, w]
  free p

-- | Without a descriptor for a ring, requests are carried out otherwise; with descriptors again, by rings.
shortage :: Assertion
shortage = withBytes 65536 $ \path -> withFile reading {openDirect = True} path $ \file -> do
  (_, refused) <- filesChoice
  mapM_ skip refused
  stopRings
  limits <- getResourceLimit ResourceOpenFiles
  bracket_ (setResourceLimit ResourceOpenFiles limits {softLimit = ResourceLimit 200}) (setResourceLimit ResourceOpenFiles limits)
    . bracket (untilNone (fileFd file)) (mapM_ closeFd)
    $ \_ -> do
      many file
      (choice, why) <- filesChoice
      assertBool (show (choice, why)) (choice == Threads && why /= Nothing)
  threadDelay 1500000
  -- Not each time are there enough at once for a ring.
  eventually "there are rings" $ many file >> (> 0) . sum . map ringRequests <$> readRingMetrics
  where
    untilNone fd = try (dup fd) >>= either (\e -> const (pure []) (e :: IOException)) (\d -> (d :) <$> untilNone fd)
    many file = parallel 256 $ \i -> do
      got <- finishes "a read" (readAt file (fromIntegral (4096 * (i `mod` 16))) 4096)
      when (got /= marked (4096 * (i `mod` 16)) 4096) (assertFailure "wrong bytes")
