{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Static" where its cache does not help: files inside and outside of the page cache, files that change while they
-- are read, compressed variants that appear and disappear, and clients that disconnect.
module Spec.Misses (tests) where

import Application (filler, withQuietServer)
import Client
import Configurations
import Control.Concurrent (forkIO, killThread, threadDelay)
import Control.Concurrent.Async (forConcurrently_)
import Control.Concurrent.MVar
import Control.Exception (IOException, bracket, bracket_, catch, finally, try)
import Control.Monad (forM, forM_, forever, replicateM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import qualified Data.Map.Strict as M
import Data.Maybe (isJust)
import Data.Word (Word8)
import Network.HTTP.Types (decodePathSegments, statusCode)
import Network.Wai (Application, defaultRequest, pathInfo, rawPathInfo, requestHeaders, requestMethod, responseStatus)
import Network.Wai.Internal (ResponseReceived (..))
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Fcntl (Advice (..), fileAdvise)
import System.Posix.Files (createLink, getFileStatus, modificationTimeHiRes, rename, setFileMode, setFileSize, setFileTimes, statusChangeTimeHiRes)
import System.Posix.Temp (mkdtemp)
import System.Posix.Unistd (fileSynchronise)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (Duration, milliseconds, seconds)
import Weft.File (FileEngine (..), preferFiles, reading, withFile, withFileFd)
import Weft.Http
import Weft.Static
import Weft.Test.Skip (skipUnless)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "cache misses"
    ( [testOn on ("files that the page cache has in whole, in part or not at all, by " <> show engine) (engaged engine cold) | engine <- [Adaptive, Rings, Threads]]
        <> [ testOn on "the content type depends on the file's name" types,
             testOn on "variants appear and disappear beside an unchanged file" beside,
             patientOn on "variants appear and disappear in a folder whose names are cached" known,
             testOn on "a large file is served after it gets a second name, then other permissions" large,
             testOn on "each response is one whole version of a file that is replaced continuously" replaced,
             testOn on "each response is one whole version of a large file that is replaced continuously" replacedLarge,
             testOn on "of two writes within one tick of the file system's clock, the second is served" sameTick,
             testOn on "a file, small and large, that is renamed, replaced, removed or truncated" renamed,
             testOn on "a download continues when its file is replaced, renamed or removed, and is cut off when the file is truncated" underWay,
             testOn on "requests that share a look-up are answered when others of them are cancelled" cancelled
           ]
        -- These wait for seconds, so they run in two configurations only.
        <> concat
          [ [ patientOn on "new contents are served although the file keeps its old modification time" timeBack,
              patientOn on "entity tags are equal on two servers of one site, and differ between codings" tags
            ]
            | capabilities on == 1 || limiting on && capabilities on == 2
          ]
    )

engaged :: FileEngine -> IO a -> IO a
engaged engine = bracket_ (preferFiles engine) (preferFiles Adaptive)

cold :: Assertion
cold = site (seconds 0) (\s -> s {staticCacheBytes = 100000}) $ \folder port -> do
  forM_ names $ \n -> B.writeFile (folder </> show n) (filler n)
  forM_ [forget 0 0, forget 0 8192, forget 4096 0, const (pure ())] $ \change -> do
    mapM_ (\n -> change (folder </> show n)) names
    forConcurrently_ [0 .. 7 :: Int] $ \k -> withClient port $ \client ->
      forM_ (drop k names <> take k names) $ \n -> do
        answer <- get client ("/" <> C.pack (show n))
        answer `isBytes` filler n
        header "content-length" answer @?= Just (C.pack (show n))
    withClient port $ \client -> do
      answer <- get client "/none"
      answerStatus answer @?= 404
  where
    names = [0, 1, 4096, 16384, 16385, 60000, 262144, 262145, 700000]
    -- Only pages that are written to the disk can be dropped from the page cache.
    forget from count path = withFile reading path $ \file -> withFileFd file $ \fd -> fileSynchronise fd >> fileAdvise fd from count AdviceDontNeed

types :: Assertion
types = site (seconds 1) id $ \folder port -> withClient port $ \client -> do
  createDirectory (folder </> "v1.html")
  forM_ table $ \(name, path, mime) -> do
    B.writeFile (folder </> name) "x"
    answer <- get client path
    assertEqual name (Just mime) (header "content-type" answer)
    assertBool "no entity tag" (isJust (header "etag" answer))
  where
    table =
      [ ("a.html", "/a.html", "text/html; charset=utf-8"),
        ("A.HTML", "/A.HTML", "text/html; charset=utf-8"),
        ("a.tar.gz", "/a.tar.gz", "application/x-tgz"),
        ("a.b.png", "/a.b.png", "image/png"),
        ("noending", "/noending", "application/octet-stream"),
        ("dot.", "/dot.", "application/octet-stream"),
        ("v1.html/f", "/v1.html/f", "application/octet-stream"),
        ("\228.svg", "/%c3%a4.svg", "image/svg+xml; charset=utf-8")
      ]

-- | Request a path with all codings. Returns @Content-Encoding@, @Vary@ and the body.
coded :: Client -> ByteString -> IO (Maybe ByteString, Maybe ByteString, ByteString)
coded client path = do
  ask client path ["Accept-Encoding: br, zstd, gzip"]
  answer <- hearAnswer client
  pure (header "content-encoding" answer, header "vary" answer, answerBody answer)

beside :: Assertion
beside = site trust id $ \folder port -> withClient port $ \client -> forM_ [1 .. 3 :: Int] $ \_ -> do
  B.writeFile (folder </> "s.js") "plain"
  comesAndGoes folder client "s.js"

-- | Each compressed variant of a file appears and disappears while the file itself is unchanged.
comesAndGoes :: FilePath -> Client -> FilePath -> Assertion
comesAndGoes folder client name = do
  let path = "/" <> C.pack name
      plain = coded client path >>= (@?= (Nothing, Nothing, "plain"))
      variant suffix coding = do
        B.writeFile (folder </> name <> suffix) (C.pack suffix)
        threadDelay later
        coded client path >>= (@?= (Just coding, Just "Accept-Encoding", C.pack suffix))
      gone suffix = removeFile (folder </> name <> suffix) >> threadDelay later
  plain
  variant ".gz" "gzip"
  variant ".zst" "zstd"
  variant ".br" "br"
  gone ".br"
  coded client path >>= (@?= (Just "zstd", Just "Accept-Encoding", ".zst"))
  gone ".zst"
  gone ".gz"
  plain

trust :: Duration
trust = milliseconds 40

-- | A delay that is longer than 'trust', in microseconds.
later :: Int
later = 80000

-- | After some dozens of requests the server reads the names in a folder that has not changed for some seconds. It must
-- nevertheless see variants that appear later.
known :: Assertion
known = site trust id $ \folder port -> do
  let folders = ["", "a/", "a/b/"]
  createDirectoryIfMissing True (folder </> "a/b")
  forM_ folders $ \f -> forM_ [1 .. 60 :: Int] $ \i -> B.writeFile (folder </> f <> show i) "plain"
  forM_ folders $ \f -> B.writeFile (folder </> f <> "2.zst") ".zst"
  threadDelay 3100000
  let everything = withClient port $ \client -> forM_ folders $ \f -> forM_ [1 .. 60 :: Int] $ \i -> do
        (coding, _, body) <- coded client ("/" <> C.pack f <> C.pack (show i))
        (coding, body) @?= (if i == 2 then (Just "zstd", ".zst") else (Nothing, "plain"))
  replicateM_ 3 (everything >> threadDelay 50000)
  withClient port $ \client -> forM_ folders $ \f -> do
    comesAndGoes folder client (f <> "1")
    comesAndGoes folder client (f <> "60")
  everything

-- | A hard link and new permissions do not change the file's contents.
large :: Assertion
large = site trust id $ \folder port -> withClient port $ \client -> do
  B.writeFile (folder </> "f") (filler 500000)
  get client "/f" >>= (`isBytes` filler 500000)
  forM_ [createLink (folder </> "f") (folder </> "g"), setFileMode (folder </> "f") 0o600] $ \change -> do
    change
    get client "/f" >>= (`isBytes` filler 500000)
    threadDelay later
    get client "/f" >>= (`isBytes` filler 500000)

-- | Each response is one complete version of the file, and an entity tag belongs to one version.
replaced :: Assertion
replaced = site (seconds 0) id $ \folder port -> do
  let version n = B.replicate (100000 + n) (fromIntegral n)
      put n = do
        B.writeFile (folder </> ".new") (version n)
        rename (folder </> ".new") (folder </> "f")
  put 1
  seen <- newIORef M.empty
  writer <- forkIO (forM_ (cycle [1 .. 50]) put)
  (`finally` killThread writer) . forConcurrently_ [1 .. 4 :: Int] $ \_ -> withClient port $ \client -> replicateM_ 60 $ do
    answer <- get client "/f"
    answerStatus answer @?= 200
    let body = answerBody answer
    assertBool "mixes several versions" (body == version (B.length body - 100000))
    tag <- maybe (assertFailure "no tag") pure (header "etag" answer)
    before <- atomicModifyIORef' seen (\m -> (M.insert tag (B.length body) m, M.lookup tag m))
    assertBool "two versions have the same entity tag" (maybe True (== B.length body) before)

-- | As 'replaced', with files too large for the cache. The status is never 503, although the file that was looked up
-- has mostly been replaced when it is opened.
replacedLarge :: Assertion
replacedLarge = site (milliseconds 20) id $ \folder port -> do
  let version n = B.replicate (300000 + n) (fromIntegral n)
      put n = do
        B.writeFile (folder </> ".new") (version n)
        rename (folder </> ".new") (folder </> "f")
  put 1
  writer <- forkIO (forM_ (cycle [1 .. 50]) (\n -> put n >> threadDelay 500))
  (`finally` killThread writer) . forConcurrently_ [1 .. 4 :: Int] $ \_ -> withClient port $ \client -> replicateM_ 60 $ do
    answer <- get client "/f"
    answerStatus answer @?= 200
    let body = answerBody answer
    assertBool "mixes several versions" (body == version (B.length body - 300000))

-- | Other bytes with the same length and modification time, as cp -p, rsync and tar leave them.
timeBack :: Assertion
timeBack = site trust id $ \folder port -> withClient port $ \client -> do
  let put n k = B.writeFile (folder </> show n) (B.replicate n k) >> setFileTimes (folder </> show n) 1000000000 1000000000
      sizes = [1000, 300000] :: [Int]
  forM_ sizes (`put` 1)
  -- Long enough for the server to rely on the file's time.
  threadDelay 3200000
  forM_ sizes $ \n -> timeBackOf put client n

timeBackOf :: (Int -> Word8 -> IO ()) -> Client -> Int -> Assertion
timeBackOf put client n = do
  let version = B.replicate n
  first <- get client ("/" <> C.pack (show n))
  first `isBytes` version 1
  put n 2
  threadDelay later
  second <- get client ("/" <> C.pack (show n))
  second `isBytes` version 2
  -- The tag of a large file depends on its times and size only.
  when (n < 262144) (assertBool "one tag for both" (header "etag" first /= header "etag" second))

-- | Two versions whose times are equal. On disks, newer kernels give them different times; therefore the test, if it
-- runs as root, uses a ramfs, which does not.
sameTick :: Assertion
sameTick = coarse $ \folder -> withStatic defaultStaticSettings {staticTrust = trust} folder $ \static -> testWithApplication (pure (staticApp static)) $ \port ->
  withClient port $ \client -> do
    let file = folder </> "f"
        attempt :: Int -> IO Bool
        attempt 0 = pure False
        attempt k = do
          B.writeFile file "one"
          get client "/f" >>= (`isBytes` "one")
          before <- getFileStatus file
          B.writeFile file "two"
          after' <- getFileStatus file
          let times status = (modificationTimeHiRes status, statusChangeTimeHiRes status)
          if times before == times after' then pure True else threadDelay later >> attempt (k - 1)
    happened <- attempt 20
    skipUnless "the file system gives any two changes different times" happened
    threadDelay later
    get client "/f" >>= (`isBytes` "two")
  where
    coarse act = withFolder $ \folder -> bracket (mount folder) (unmount folder) (const (act folder))
    mount folder = do
      (code, _, _) <- readProcessWithExitCode "mount" ["-t", "ramfs", "ramfs", folder] "" `catch` \e -> const (pure (ExitFailure 1, "", "")) (e :: IOException)
      pure (code == ExitSuccess)
    unmount folder mounted = when mounted . void $ readProcessWithExitCode "umount" ["--lazy", folder] ""

-- | The server sees each change after a short time. Until then the status is 200 or 404, never 503.
renamed :: Assertion
renamed = site trust id $ \folder port -> withClient port $ \client -> forM_ [1000, 300000] $ \n -> do
  let file = folder </> "f"
      version :: Int -> ByteString
      version k = B.replicate (n + k) (fromIntegral k)
      ask' path allowed = do
        answer <- get client path
        assertBool (show (path, answerStatus answer)) (answerStatus answer `elem` allowed)
        pure answer
      settled path outcome = do
        _ <- ask' path [200, 404]
        threadDelay later
        answer <- ask' path [200, 404]
        (answerStatus answer, if answerStatus answer == 200 then answerBody answer else "") @?= outcome
  B.writeFile file (version 1)
  settled "/f" (200, version 1)
  B.writeFile (folder </> ".new") (version 2) >> rename (folder </> ".new") file
  settled "/f" (200, version 2)
  rename file (folder </> "g")
  settled "/f" (404, "")
  settled "/g" (200, version 2)
  createLink (folder </> "g") file
  settled "/g" (200, version 2)
  settled "/f" (200, version 2)
  B.writeFile file (B.take 10 (version 2))
  settled "/f" (200, B.take 10 (version 2))
  removeFile file
  settled "/f" (404, "")
  removeFile (folder </> "g")
  settled "/g" (404, "")

underWay :: Assertion
underWay = withFolder $ \folder -> withStatic defaultStaticSettings {staticTrust = trust} folder $ \static -> withQuietServer defaultSettings (staticApp static) $ \_ port -> do
  let file = folder </> "f"
      size = 30000000
      -- The client's buffer has a fixed size: the kernel would let it grow to what the machine is configured for, which
      -- may be more than the file.
      start act = do
        B.writeFile file (filler size)
        withNarrowClient 200000 port $ \client -> do
          say client "GET /f HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
          before <- hear client
          () <- act
          threadDelay 50000
          after' <- hearEndOrReset client
          pure (B.length (snd (B.breakSubstring "\r\n\r\n" (before <> after'))) - 4)
  forM_
    [ B.writeFile (folder </> ".new") "other" >> rename (folder </> ".new") file,
      rename file (folder </> "g"),
      removeFile file
    ]
    $ \change -> start change >>= (@?= size)
  cut <- start (setFileSize file 20000000)
  assertBool (show cut) (cut < size)

tags :: Assertion
tags = withFolder $ \one -> withFolder $ \two -> do
  let old = 1000000000
      put folder name bytes time = B.writeFile (folder </> name) bytes >> setFileTimes (folder </> name) time time
  forM_ [one, two] $ \folder -> do
    put folder "small" (filler 1000) (if folder == one then old else old + 5)
    put folder "large" (filler 300000) old
    put folder "text.html" (filler 20000) old
  -- The second folder's files are copies, with another time of status change.
  threadDelay 3200000
  let tagOf folder path coding = withStatic defaultStaticSettings {staticCompress = True} folder $ \static ->
        testWithApplication (pure (staticApp static)) $ \port -> withClient port $ \client -> do
          let asked' = ask client path ["Accept-Encoding: " <> coding] >> hearAnswer client
          -- The first answer is not compressed.
          when (coding == "gzip") $ eventually "a compressed answer" (isJust . header "content-encoding" <$> asked')
          header "etag" <$> asked'
  forM_ [("/small", "identity"), ("/large", "identity"), ("/text.html", "identity"), ("/text.html", "gzip")] $ \(path, coding) -> do
    a <- tagOf one path coding
    b <- tagOf two path coding
    assertEqual (show (path, coding)) a b
    assertBool (show a) (maybe False ("\"" `B.isPrefixOf`) a)
  same <- (==) <$> tagOf one "/text.html" "identity" <*> tagOf one "/text.html" "gzip"
  assertBool "one tag for two codings" (not same)
  -- A large file that was modified a moment ago may change again within one tick; its tag is weak.
  put one "large" (filler 300000) old
  now <- tagOf one "/large" "identity"
  assertBool (show now) (maybe False ("W/\"" `B.isPrefixOf`) now)

-- | Concurrent requests for a file share one look-up. Some of the requesting threads are killed meanwhile.
cancelled :: Assertion
cancelled = withFolder $ \folder -> do
  B.writeFile (folder </> "f") (filler 60000)
  withStatic defaultStaticSettings {staticTrust = seconds 0} folder $ \static -> do
    stay <- forkIO (forever (threadDelay 1000000))
    forM_ [1 .. 60 :: Int] $ \i -> do
      boxes <- forM [1 .. 8 :: Int] $ \k -> do
        box <- newEmptyMVar
        thread <- forkIO (try (asked (staticApp static) "/f") >>= putMVar box)
        pure (k, thread, box)
      when (i `mod` 2 == 0) (threadDelay (i * 3))
      forM_ boxes $ \(k, thread, _) -> when (k `mod` 3 /= i `mod` 3) (killThread thread)
      forM_ boxes $ \(k, _, box) -> unless (k `mod` 3 /= i `mod` 3) $ do
        r <- within 60 "an answer" (takeMVar box)
        either (\e -> assertFailure (show (e :: IOException))) (@?= 200) r
    killThread stay
    asked (staticApp static) "/f" >>= (@?= 200)

-- | The status of an application's response.
asked :: Application -> ByteString -> IO Int
asked app path = do
  status <- newIORef 0
  void (app defaultRequest {requestMethod = "GET", rawPathInfo = path, pathInfo = decodePathSegments path, requestHeaders = []} (\r -> ResponseReceived <$ writeIORef status (statusCode (responseStatus r))))
  readIORef status

site :: Duration -> (StaticSettings -> StaticSettings) -> (FilePath -> Int -> IO a) -> IO a
site time change act = withFolder $ \folder ->
  withStatic (change defaultStaticSettings {staticTrust = time}) folder $ \static -> testWithApplication (pure (staticApp static)) (act folder)

-- | A folder on a disk, since files of a memory file system cannot leave the page cache.
withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket (mkdtemp "/var/tmp/weft-misses-") removePathForcibly

isBytes :: Answer -> ByteString -> Assertion
isBytes answer bytes = unless (answerBody answer == bytes) (assertFailure ("wrong body of " <> show (B.length (answerBody answer)) <> " bytes, status " <> show (answerStatus answer)))
