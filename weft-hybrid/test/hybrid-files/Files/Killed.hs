-- |
-- Threads that are killed inside of operations on files: memory is the kernel's until it has
-- said its last word, and what opened is closed.
--
-- The canary: memory into which the read of a killed thread was to go is filled with a byte
-- when the thread has ended; whatever arrives later must not change it.
module Files.Killed
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Monad (forM, forM_, replicateM_, unless, void, when)
import qualified Control.Monad.Catch as C
import qualified Data.ByteString as B
import Data.IORef
import Data.Word (Word8)
import Foreign.ForeignPtr (touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (Ptr, plusPtr)
import Foreign.Storable (peekElemOff)
import Support
import System.FilePath ((</>))
import System.Posix.Files (createNamedPipe)
import Test.Tasty
import Test.Tasty.HUnit
import qualified Weft.File as GHC
import Weft.Hybrid
import Weft.Hybrid.File
import Weft.Test.Descriptors (openCount)
import Weft.Test.Files

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "killed"
    [ test "reads into lent memory leave it alone" (canary readBufAt),
      test "reads into lent pieces leave them alone" (canary inPieces),
      test "writes from lent memory end before their thread" lentWrites,
      test "reads whose threads go at any moment" abandoned,
      test "syncs and status" syncs,
      test "opening a named pipe" namedPipe,
      test "opens leave nothing open" opens,
      test "masked, a read is interrupted; uninterruptible, it is not" masked,
      test "a time limit around a read" limited
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= act))

inPieces :: File -> Offset -> Ptr Word8 -> Count -> Hybrid Count
inPieces f at p n = readBufsAt f at [(p `plusPtr` (4096 * i), 4096) | i <- [0 .. countBytes n `div` 4096 - 1]]

-- | At most so long, by the number of the round: none, a switch or some, some microseconds.
anyMoment :: Int -> Hybrid ()
anyMoment k
  | k `mod` 4 == 0 = pure ()
  | k `mod` 4 == 1 = replicateM_ (k `mod` 9) yield
  | otherwise = sleep (microseconds (k * 37 `mod` 400))

-- | The thread has ended, of itself or by being killed, and of nothing else.
endedWell :: Thread -> Hybrid ()
endedWell t = do
  end <- waitCatch t
  unless (isKilled end) (either C.throwM pure end)

-- | Wait for the threads. Throws if one of them died of an exception.
joined :: [Thread] -> Hybrid ()
joined ts = mapM waitCatch ts >>= mapM_ (either C.throwM pure)

canary :: (File -> Offset -> Ptr Word8 -> Count -> Hybrid Count) -> Scheduler -> Assertion
canary readInto s = withBytes 1048576 $ \path -> GHC.withFile reading {openDirect = True} path $ \file -> do
  bad <- newIORef (0 :: Int)
  runIn s $ do
    clients <- forM [1 .. 8] $ \i -> forkThread $ do
      memory <- nonBlocking (alignedBuffer 65536)
      let p = unsafeForeignPtrToPtr memory
      forM_ [1 .. times 100] $ \k -> do
        t <- forkThread (void (readInto file (fromIntegral (65536 * ((k + i) `mod` 16))) p 65536))
        anyMoment (k + 3 * i)
        killThread t
        end <- waitCatch t
        nonBlocking (fillBytes p 0xaa 65536)
        if k `mod` 5 == 0 then sleep (microseconds 300) else yield
        ok <- nonBlocking (holds p 65536)
        unless (ok && either (const (isKilled end)) (const True) end) (nonBlocking (atomicModifyIORef' bad (\n -> (n + 1, ()))))
      nonBlocking (touchForeignPtr memory)
    joined clients
  readIORef bad >>= (@?= 0)

holds :: Ptr Word8 -> Int -> IO Bool
holds p n = and <$> mapM (fmap (== 0xaa) . peekElemOff p) [0, 509 .. n - 1]

-- | The memory is not written to after the thread has ended.
lentWrites :: Scheduler -> Assertion
lentWrites s = withBytes 65536 $ \path -> do
  GHC.withFile writing path (\file -> GHC.writeAt file 0 (B.replicate 65536 0))
  memory <- alignedBuffer 65536
  let p = unsafeForeignPtrToPtr memory
      direct = reading {openDirect = True, openAccess = ReadWrite}
  GHC.withFile direct path $ \file -> forM_ [1 .. times 60] $ \k -> do
    fillBytes p (fromIntegral k) 65536
    runIn s $ do
      t <- forkThread (writeBufAt file 0 p 65536)
      anyMoment k
      killThread t
      endedWell t
    fillBytes p 0xff 65536
    when (k `mod` 5 == 0) (threadDelay 300)
    got <- GHC.readAt file 0 65536
    B.notElem 0xff got @? ("memory that was given back was written, round " <> show k)
  touchForeignPtr memory

abandoned :: Scheduler -> Assertion
abandoned s = withBytes 1048576 $ \path -> GHC.withFile reading {openDirect = True} path $ \file -> do
  runIn s $ do
    clients <- forM [1 .. 16] $ \i -> forkThread . forM_ [1 .. times 100] $ \k -> do
      t <- forkThread (void (readAt file (fromIntegral (4096 * ((i * 7 + k) `mod` 256))) 4096))
      anyMoment (k + i)
      killThread t
      endedWell t
    joined clients
    got <- readAt file 0 4096
    nonBlocking (got @?= marked 0 4096)

syncs :: Scheduler -> Assertion
syncs s = withBytes 65536 $ \path -> do
  before <- openCount
  runIn s . forM_ [1 .. times 60] $ \k -> do
    t <- forkThread . withFile writing {openTruncate = False} path $ \f -> do
      writeAt f 0 (marked 0 4096)
      sync f
      void (statFile f)
      allocate f 0 65536
    anyMoment k
    killThread t
    endedWell t
  eventually "as many descriptors as before" ((<= before + 4) <$> openCount)

-- | Nobody writes into it: the open waits for ever, but for the kernel's rings, which open it at
-- once.
namedPipe :: Scheduler -> Assertion
namedPipe s = withFolder $ \folder -> do
  let path = folder </> "fifo"
  createNamedPipe path 0o600
  before <- openCount
  runIn s . forM_ [1 .. times 20] $ \k -> do
    t <- forkThread (withFile reading path (const (pure ())))
    anyMoment k
    killThread t
    endedWell t
  eventually "as many descriptors as before" ((<= before + 4) <$> openCount)

opens :: Scheduler -> Assertion
opens s = withFolder $ \folder -> do
  forM_ [0 .. 63 :: Int] $ \i -> B.writeFile (folder </> show i) B.empty
  before <- openCount
  runIn s $ do
    clients <- forM [1 .. 8] $ \i -> forkThread . forM_ [1 .. times 100] $ \k -> do
      let path = folder </> show ((i * 11 + k) `mod` 64)
      t <- forkThread (withFile reading path (const yield) >> withFile writing path (const (pure ())))
      anyMoment (2 * k)
      killThread t
      endedWell t
    joined clients
  eventually "as many descriptors as before" ((<= before + 4) <$> openCount)

masked :: Scheduler -> Assertion
masked s = withBytes 1048576 $ \path -> GHC.withFile reading {openDirect = True} path $ \file -> do
  finished <- newIORef (0 :: Int)
  runIn s . forM_ [1 .. times 40] $ \k -> do
    let loop = readAt file (4096 * fromIntegral (k `mod` 256)) 4096 >> loop :: Hybrid ()
    t <- forkThread (mask_ loop)
    anyMoment k
    killThread t
    end <- waitCatch t
    nonBlocking (isKilled end @? show end)
    u <- forkThread . uninterruptible $ do
      replicateM_ 5 (readAt file (4096 * fromIntegral (k `mod` 256)) 4096)
      nonBlocking (modifyIORef' finished (+ 1))
    -- It has begun, and is masked.
    yield
    killThread u
    endedWell u
  n <- readIORef finished
  (n > 0) @? "no uninterruptible read came to its end"
  where
    uninterruptible = C.uninterruptibleMask_

limited :: Scheduler -> Assertion
limited s = withBytes 1048576 $ \path -> GHC.withFile reading {openDirect = True} path $ \file ->
  runIn s . forM_ [1 .. times 100] $ \k -> do
    r <- within (microseconds (k * 7 `mod` 200)) (readAt file 8192 65536)
    nonBlocking (maybe (pure ()) (@?= marked 8192 65536) r)
