-- |
-- Files of hybrid threads, compared with "Weft.File".
module Files.Use
  ( tests,
  )
where

import Control.Monad (forM, forM_, replicateM_, unless, when)
import qualified Control.Monad.Catch as C
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.IORef
import Data.List (isInfixOf, sort)
import Foreign.ForeignPtr (touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (castPtr, plusPtr)
import GHC.Clock (getMonotonicTime)
import Support
import System.Directory (createDirectory)
import System.FilePath ((</>))
import System.IO.Error
import Test.QuickCheck
import Test.QuickCheck.Monadic (monadicIO, run)
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import qualified Weft.File as GHC
import Weft.Hybrid hiding (run)
import Weft.Hybrid.File
import Weft.Test.Descriptors (openCount)
import Weft.Test.Files

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "use"
    [ test "bytes come back, from the cache and from the disk" bytes,
      test "chunks" chunks,
      test "memory of one's own" own,
      test "opened by one kind of thread, used by the other" both,
      test "a file that is closed while others read it" closing,
      test "status" status,
      test "errors have their kind, function and name" errors,
      test "no way out of a directory" beneath,
      test "paths that are bytes, and the names of a directory" names,
      test "3,000 threads read at once" crowd,
      test "a thread that waits for the disk blocks no other" others,
      testProperty "any sequence of reads and writes, to a string" (random scheduler)
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= \s -> act (runIn s)))

-- | 'runIn'.
type Run = Hybrid () -> IO ()

bytes :: Run -> Assertion
bytes go = withFolder $ \folder -> go $ do
  let path = folder </> "f"
  withFile writing path $ \f -> do
    writeAt f 0 (marked 0 100000)
    writeManyAt f 100000 [marked 100000 5, B.empty, marked 100005 4091]
    syncData f
    sync f
  forM_ [reading, reading {openDirect = True}] $ \mode -> withFile mode path $ \f -> do
    readAt f 0 200000 >>= \x -> nonBlocking (x @?= marked 0 104096)
    readAt f 4096 8192 >>= \x -> nonBlocking (x @?= marked 4096 8192)
    readAt f 200704 4096 >>= \x -> nonBlocking (x @?= B.empty)
    readAt f 0 0 >>= \x -> nonBlocking (x @?= B.empty)

chunks :: Run -> Assertion
chunks go = withBytes 100000 $ \path -> go . withFile reading path $ \f -> do
  (sizes, all') <- foldChunks f 10 30000 (\(ns, acc) b -> pure (B.length b : ns, acc <> b)) ([], B.empty)
  nonBlocking $ do
    reverse sizes @?= [30000, 30000, 30000, 9990]
    all' @?= marked 10 99990

own :: Run -> Assertion
own go = withFolder $ \folder -> do
  let path = folder </> "f"
  from <- alignedBuffer 65536
  into <- alignedBuffer 65536
  let p = unsafeForeignPtrToPtr from
      q = unsafeForeignPtrToPtr into
      piece r (at, n) = (r `plusPtr` at, Count n)
  B.unsafeUseAsCStringLen (marked 0 65536) (\(b, n) -> copyBytes p (castPtr b) n)
  go $ do
    withFile writing {openAccess = ReadWrite} path $ \f -> do
      writeBufAt f 0 p 30000
      n <- writeBufsAt f 30000 (map (piece p) [(30000, 1), (30001, 0), (30001, 35535)])
      nonBlocking (n @?= 35536)
    withFile reading {openDirect = True} path $ \f -> do
      n <- readBufAt f 0 q 65536
      m <- readBufAt f 61440 q 65536
      nonBlocking ((n, m) @?= (65536, 4096))
    withFile reading path $ \f -> do
      n <- readBufsAt f 0 ([piece q (i * 20, 20) | i <- [0 .. 3000]] ++ [piece q (60020, 5516)])
      nonBlocking (n @?= 65536)
  touchForeignPtr from
  B.fromForeignPtr into 0 65536 @?= marked 0 65536

both :: Run -> Assertion
both go = withBytes 4096 $ \path -> do
  GHC.withFile reading path $ \f -> go (readAt f 0 10 >>= \x -> nonBlocking (x @?= marked 0 10))
  held <- newIORef Nothing
  go (openFile reading path >>= nonBlocking . writeIORef held . Just)
  f <- readIORef held >>= maybe (assertFailure "no file") pure
  GHC.readAt f 5 10 >>= (@?= marked 5 10)
  GHC.closeFile f
  e <- tryIOError (go (() <$ readAt f 0 1))
  either (\x -> "file is closed" `isInfixOf` show x @? show x) (const (assertFailure "read")) e

-- | A closed file's descriptor number goes to another file at once; no read returns bytes of that file.
closing :: Run -> Assertion
closing go = withBytes 65536 $ \path -> withFolder $ \folder -> do
  let other = folder </> "other"
  GHC.withFile writing other $ \file -> GHC.writeAt file 0 (B.replicate 65536 255) >> GHC.sync file
  before <- openCount
  wrong <- newIORef []
  begun <- getMonotonicTime
  -- On a machine that is busy with other work, each round waits for the pool's threads: as many as there is time for.
  let timely act = getMonotonicTime >>= \t -> when (t < begun + 20) act
  forM_ [1 .. 150 :: Int] $ \i -> timely $ do
    f <- GHC.openFile (if even i then reading {openDirect = True} else reading) path
    go $ do
      readers <- forM [0 .. 7 :: Int] $ \k -> forkThread (reader wrong f (k * 4096))
      replicateM_ (i `mod` 7) yield
      nonBlocking (GHC.closeFile f)
      g <- openFile reading {openDirect = True} other
      x <- readAt g 0 4096
      unless (x == B.replicate 4096 255) (note wrong "the other file")
      mapM waitCatch readers >>= mapM_ (either throwM pure)
      closeFile g
  readIORef wrong >>= (@?= [])
  -- Rings that were not there before have a few.
  now <- openCount
  assertBool (show (before, now)) (now < before + 20)
  where
    note wrong what = nonBlocking (modifyIORef' wrong (what :))
    reader wrong f at = do
      r <- C.try (readAt f (Offset (fromIntegral at)) 4096)
      case r of
        Left e -> unless ("file is closed" `isInfixOf` show (e :: IOError)) (note wrong (show e))
        Right x
          | x == marked at 4096 -> reader wrong f at
          | otherwise -> note wrong "bytes of another file"

status :: Run -> Assertion
status go = withBytes 12345 $ \path -> do
  expected <- GHC.statPath path
  go $ do
    one <- statPath path
    two <- withFile reading path statFile
    nonBlocking ((one, two, statusSize one) @?= (expected, expected, 12345))
    withFile writing path $ \f -> allocate f 0 8192 >> statFile f >>= \s -> nonBlocking (statusSize s @?= 8192)

errors :: Run -> Assertion
errors go = withBytes 10 $ \path -> do
  let missing = path <> "-not"
  e <- tryIOError (go (withFile reading missing (const (pure ()))))
  case e of
    Right () -> assertFailure "it opened"
    Left x -> do
      isDoesNotExistError x @? show x
      ioeGetFileName x @?= Just missing
      ("openFile" `isInfixOf` ioeGetLocation x) @? ioeGetLocation x
  refused (statPath missing)
  go . withFile reading path $ \f -> do
    refusedIn (readAt f (-1) 1)
    refusedIn (writeAt f 0 (B.pack [1]))
    closeFile f
    refusedIn (statFile f)
  where
    refused act = tryIOError (go (() <$ act)) >>= either (const (pure ())) (const (assertFailure "no error"))
    refusedIn act = C.try (() <$ act) >>= either (\x -> const (pure ()) (x :: IOError)) (const (nonBlocking (assertFailure "no error")))

beneath :: Run -> Assertion
beneath go = withFolder $ \folder -> do
  createDirectory (folder </> "in")
  B.writeFile (folder </> "secret") (B.pack [1])
  B.writeFile (folder </> "in" </> "f") (B.pack [2])
  go . withDirectory (folder </> "in") $ \d -> do
    let mode = reading {openResolve = Beneath}
    withFileAt d mode "f" (\f -> readAt f 0 10) >>= \x -> nonBlocking (x @?= B.pack [2])
    forM_ ["../secret", "/etc/passwd", "f/../../secret"] $ \path -> do
      r <- C.try (withFileAt d mode path (const (pure ())))
      nonBlocking (either (\x -> const (pure ()) (x :: IOError)) (const (assertFailure path)) r)

names :: Run -> Assertion
names go = withFolder $ \folder -> do
  let raw = B.pack [0xff, 0x41]
      many = [B.pack (map (fromIntegral . fromEnum) (show i <> replicate 100 'n')) | i <- [1 .. 800 :: Int]]
  go . withDirectory folder $ \d -> do
    let mode = reading {openResolve = Beneath, openNonBlocking = True}
        here = B.pack [0x2e]
    forM_ (raw : many) $ \name -> withRawFileAt d writing name (\f -> writeAt f 0 name)
    forM_ [1 .. 2 :: Int] $ \_ -> do
      found <- withRawFileAt d mode here (\f -> foldNames f (\acc name -> pure (B.copy name : acc)) [])
      nonBlocking (sort found @?= sort (raw : many))
      entry <- withRawFileAt d mode here (`statEntry` raw)
      nonBlocking (statusSize entry @?= 2)
      sizes <- withRawFileAt d mode here (\f -> foldEntries f (\acc name s -> pure ((B.copy name, either (const (-1)) statusSize s) : acc)) [])
      nonBlocking (sort sizes @?= sort [(name, fromIntegral (B.length name)) | name <- raw : many])
    withRawFileAt d mode raw $ \f -> do
      size <- statusSize <$> statFile f
      x <- readAt f 0 10
      nonBlocking ((x, size, statusSize (openedStatus f)) @?= (raw, 2, 2))
    r <- C.try (withRawFileAt d mode raw (\f -> foldNames f (\() _ -> pure ()) ()))
    nonBlocking (either (\x -> const (pure ()) (x :: IOError)) (const (assertFailure "names of a file")) r)

-- | More than a ring has slots.
crowd :: Run -> Assertion
crowd go = withBytes 1048576 $ \path -> go . withFile reading {openDirect = True} path $ \f -> do
  wrong <- nonBlocking (newIORef (0 :: Int))
  ts <- forM [0 .. 2999] $ \i -> forkThread $ do
    let at = 4096 * (i * 37 `mod` 256)
    x <- readAt f (fromIntegral at) 4096
    nonBlocking (if x == marked at 4096 then pure () else atomicModifyIORef' wrong (\n -> (n + 1, ())))
  mapM waitCatch ts >>= mapM_ (either throwM pure)
  nonBlocking (readIORef wrong >>= (@?= 0))

-- | While one reads from the disk, over and over, another has its turns.
others :: Run -> Assertion
others go = withBytes 1048576 $ \path -> go . withFile reading {openDirect = True} path $ \f -> do
  turns <- nonBlocking (newIORef (0 :: Int))
  reader <- forkThread (forM_ [0 .. 199] (\i -> readAt f (4096 * (i `mod` 256)) 4096))
  other <- forkThread (let count = nonBlocking (modifyIORef' turns (+ 1)) >> sleep (microseconds 20) >> count in count)
  waitCatch reader >>= either throwM pure
  killThread other
  n <- nonBlocking (readIORef turns)
  nonBlocking (n >= 20 @? ("only " <> show n <> " turns beside 200 reads"))

-- | One step.
data Access' = Put Int B.ByteString | PutMany Int [B.ByteString] | Get Int Int | Sync
  deriving (Show)

instance Arbitrary Access' where
  arbitrary = oneof [Put <$> place <*> string, PutMany <$> place <*> listOf string, Get <$> place <*> choose (0, 9000), pure Sync]
    where
      place = choose (0, 20000)
      string = (\c n -> B.replicate n c) <$> arbitrary <*> choose (0, 6000)
  shrink (Put at b) = [Put at (B.take n b) | n <- shrink (B.length b)]
  shrink (PutMany at bs) = PutMany at <$> shrinkList (const []) bs
  shrink _ = []

random :: IO Scheduler -> [Access'] -> Property
random scheduler steps = monadicIO . run $ do
  s <- scheduler
  withFolder $ \folder -> runIn s . withFile writing {openAccess = ReadWrite} (folder </> "f") $ \f ->
    let go _ [] = pure ()
        go model (x : rest) = case x of
          Put at b -> writeAt f (fromIntegral at) b >> go (put at b model) rest
          PutMany at bs -> writeManyAt f (fromIntegral at) bs >> go (put at (B.concat bs) model) rest
          Sync -> sync f >> go model rest
          Get at n -> do
            got <- readAt f (fromIntegral at) (Count n)
            nonBlocking (got @?= B.take n (B.drop at model))
            go model rest
     in go B.empty steps
  where
    put at b model
      | B.null b = model
      | otherwise = B.take at (model <> B.replicate (max 0 (at - B.length model)) 0) <> b <> B.drop (at + B.length b) model
