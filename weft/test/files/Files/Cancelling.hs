-- |
-- Interrupted operations: memory is the kernel's until it has said its last word.
--
-- The canary: memory into which an interrupted read was to go is filled with a byte
-- as soon as the read has ended for its caller; whatever arrives later, on the pipe
-- or from the disk, must not change it.
module Files.Cancelling
  ( tests,
    enginesOfAll,
  )
where

import Control.Concurrent (forkIO, forkOn, getNumCapabilities, myThreadId, threadDelay, throwTo, yield)
import Control.Concurrent.MVar
import Control.Exception (ErrorCall (..), try)
import Control.Monad (forM_, unless, void, when)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.IORef
import Data.Int (Int32)
import Data.Word (Word32, Word8)
import Foreign.C.Types (CInt)
import Foreign.ForeignPtr (withForeignPtr)
import Foreign.Marshal.Alloc (allocaBytes, free, mallocBytes)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, castPtr, plusPtr)
import Foreign.Storable (peekElemOff, poke)
import Harness
import System.FilePath ((</>))
import System.Posix.Files (createNamedPipe)
import System.Posix.IO (closeFd, createPipe, fdWriteBuf)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.FFI.File
import Weft.File
import Weft.File.Engine (begin)
import Weft.Test.Files
import qualified Weft.Thread as Weft (threadDelay)

tests :: TestTree
tests =
  testGroup
    "cancelling"
    [ testCase "cancelled reads of pipes leave the memory alone" canaryPipe,
      testCase "interrupted reads of files leave the memory alone" canaryFile,
      testCase "reads whose callers go at any moment" abandoned,
      testCase "opening a named pipe can be interrupted" namedPipe,
      testCase "opens whose callers go leave nothing open" opens,
      testCase "a cancelled request ends even when all slots are taken" crowded,
      testCaseInfo "a cancel is not lost to a request that is submitted at the same time" overtaken,
      testCaseInfo "who cancels too late takes nothing from who cancels the slot's next request" tooLate
    ]

holds :: Ptr Word8 -> Int -> IO Bool
holds p n = and <$> mapM (fmap (== 0xaa) . peekElemOff p) [0 .. n - 1]

canaryPipe :: Assertion
canaryPipe = forM_ [1 .. times 300] $ \round' -> do
  (r, w) <- createPipe
  p <- mallocBytes 64
  fillBytes p 0 64
  ended <- newEmptyMVar
  cancelIt <- begin False (opRead r (-1) p 64) (putMVar ended)
  when (round' `mod` 3 == 0) yield
  when (round' `mod` 7 == 0) (threadDelay 100)
  cancelIt
  code <- finishes "the end of a cancelled read" (takeMVar ended)
  code @?= errCancelled
  fillBytes p 0xaa 64
  _ <- B.unsafeUseAsCStringLen (marked 0 64) (\(from, n) -> fdWriteBuf w (castPtr from) (fromIntegral n))
  when (round' `mod` 10 == 0) (threadDelay 1000)
  ok <- holds p 64
  assertBool "the kernel wrote into memory that it had given back" ok
  mapM_ closeFd [r, w]
  free p

-- | Threads read a file into memory of their own and are hit by exceptions at random
-- moments.
canaryFile :: Assertion
canaryFile = withBytes 1048576 $ \path -> withFile reading {openDirect = True} path $ \file -> do
  bad <- newIORef (0 :: Int)
  within 50 "interrupted reads" . parallel 8 $ \i -> do
    memory <- alignedBuffer 65536
    withForeignPtr memory $ \p -> forM_ [1 .. times 150] $ \k -> do
      me <- myThreadId
      arrived <- newEmptyMVar
      r <- try $ do
        _ <- forkIO $ do
          threadDelay ((k * 37 + i * 11) `mod` 400)
          throwTo me (ErrorCall "enough")
          putMVar arrived ()
        void (readBufAt file (fromIntegral (65536 * ((k + i) `mod` 16))) p 65536)
        takeMVar arrived
      fillBytes p 0xaa 65536
      case r of
        Left (ErrorCall _) -> takeMVar arrived
        Right () -> pure ()
      yield
      ok <- holds p 4096
      unless ok (modifyIORef' bad (+ 1))
  readIORef bad >>= (@?= 0)

abandoned :: Assertion
abandoned = withBytes 1048576 $ \path -> withFile reading {openDirect = True} path $ \file -> do
  within 50 "abandoned reads" . parallel 16 $ \i -> forM_ [1 .. times 200] $ \k -> do
    task <- start (readAt file (fromIntegral (4096 * ((i * 7 + k) `mod` 256))) 4096)
    when (k `mod` 3 == 0) yield
    when (k `mod` 5 == 0) (threadDelay ((k * 13) `mod` 150))
    stop task
  got <- finishes "a read afterwards" (readAt file 0 4096)
  got @?= marked 0 4096

namedPipe :: Assertion
namedPipe = withFolder $ \folder -> do
  let path = folder </> "fifo"
  createNamedPipe path 0o600
  let interrupted = do
        task <- start (withFile reading path (const (pure ())))
        threadDelay 500
        stop task
  -- The engine opens its own descriptors at its first use.
  interrupted
  before <- openDescriptors
  forM_ [1 .. times 20] (const interrupted)
  later <- settled before openDescriptors
  assertBool (show (later - before) <> " descriptors left") (later <= before)

-- | Make the engine open its own descriptors on each capability.
enginesOfAll :: Assertion
enginesOfAll = do
  caps <- getNumCapabilities
  forM_ [0 .. caps - 1] $ \cap -> do
    done <- newEmptyMVar
    _ <- forkOn cap $ do
      (_, _) <- filesChoice
      threadDelay 1
      Weft.threadDelay 1
      putMVar done ()
    finishes "the engine" (takeMVar done)

opens :: Assertion
opens = withFolder $ \folder -> do
  forM_ [0 .. 63 :: Int] $ \i -> withFile writing (folder </> show i) (const (pure ()))
  enginesOfAll
  before <- openDescriptors
  within 50 "opens" . parallel 8 $ \i -> forM_ [1 .. times 200] $ \k -> do
    let path = folder </> show ((i * 11 + k) `mod` 64)
    task <- start (withFile reading path (const yield) >> withFile writing path (const (pure ())))
    when (k `mod` 2 == 0) yield
    stop task
  later <- settled before openDescriptors
  assertBool (show (later - before) <> " descriptors left") (later <= before)

-- | More reads of idle pipes than a ring has slots; then all are cancelled, the
-- waiting ones first.
crowded :: Assertion
crowded = do
  (r, w) <- createPipe
  p <- mallocBytes 1
  ends <- newIORef (0 :: Int)
  let n = 1500
  cancels <- mapM (const (begin False (opRead r (-1) p 1) (\_ -> atomicModifyIORef' ends (\k -> (k + 1, ()))))) [1 .. n]
  sequence_ (reverse cancels)
  eventually "the end of all" ((== n) <$> readIORef ends)
  mapM_ closeFd [r, w]
  free p

-- | On a ring of its own, without a reader: two requests one after the other in one slot, the
-- second cancelled, and then the first, which has ended.
tooLate :: IO String
tooLate = withRing 8 attempts
  where
    attempts ring = do
      (r, w) <- createPipe
      p <- mallocBytes 1
      forM_ [1 .. times 200] $ \_ -> do
        _ <- B.unsafeUseAsCStringLen (marked 0 1) (\(from, _) -> fdWriteBuf w (castPtr from) 1)
        first <- ringGeneration ring 0
        submitRing ring 0 (opRead r (-1) p 1)
        finishes "the first read" (endOf ring) >>= (@?= 1)
        second <- ringGeneration ring 0
        submitRing ring 0 (opRead r (-1) p 1)
        cancelRing ring 0 second
        cancelRing ring 0 first
        finishes "the end of the second" (endOf ring) >>= (@?= errCancelled)
      stopRing ring
      freeRing ring
      mapM_ closeFd [r, w]
      free p

-- | A ring of its own: requests are submitted and at once cancelled, while the owner takes in others.
overtaken :: IO String
overtaken = withRing depth attempts
  where
    depth = 512 :: Int
    attempts ring = do
      (r, w) <- createPipe
      p <- mallocBytes 1
      forM_ [1 .. times 1000] $ \n -> do
        forM_ [0 .. fromIntegral depth - 1] $ \slot -> do
          generation <- ringGeneration ring slot
          submitRing ring slot (opRead r (-1) p 1)
          cancelRing ring slot generation
        finishes ("round " <> show n) (endsOf depth ring >>= (@?= replicate depth errCancelled))
      stopRing ring
      freeRing ring
      mapM_ closeFd [r, w]
      free p

-- | On a ring of its own with this many slots; skipped where there are no rings.
withRing :: Int -> (Ptr CRing -> Assertion) -> IO String
withRing depth act = openRing depth 0 >>= either (\code -> pure ("SKIPPED: no ring, errno " <> show code)) (\ring -> "" <$ act ring)

-- | The result of the next request to end.
endOf :: Ptr CRing -> IO CInt
endOf ring = sum <$> endsOf 1 ring

-- | The results of the next requests to end; no others may be under way.
endsOf :: Int -> Ptr CRing -> IO [CInt]
endsOf n ring = allocaBytes (4 + 8 * n) $ \list -> poke list 0 >> next list n
  where
    next :: Ptr Word32 -> Int -> IO [CInt]
    next _ 0 = pure []
    next list left = do
      k <- fromIntegral <$> collectRing ring list (list `plusPtr` 4) (fromIntegral left)
      if k == 0
        then threadDelay 20 >> next list left
        else do
          wakeRing ring
          results <- mapM (\i -> peekElemOff (castPtr list) (2 * i)) [1 .. k] :: IO [Int32]
          (map fromIntegral results <>) <$> next list (left - k)
