{-# LANGUAGE OverloadedStrings #-}

-- |
-- Responses from files: through the write buffer, by sendfile(2), and ranges.
module Spec.Files (tests) where

import Application (filler, withQuietServer)
import Client
import Configurations
import Control.Exception (bracket, bracket_)
import Control.Monad (forM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Network.HTTP.Types (status200)
import Network.Wai
import System.Directory (getTemporaryDirectory, removeDirectoryRecursive, removeFile)
import System.FilePath ((</>))
import System.IO (hClose, openBinaryTempFile)
import System.Posix.Files (createNamedPipe, setFileTimes)
import System.Posix.IO (closeFd, createPipe)
import System.Posix.Resource
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http
import Weft.Static

tests :: Configuration -> TestTree
tests on =
  testGroup
    "files"
    [ testOn on "files of many sizes" $
        mapM_ whole [0, 1, 100, 16000, 16384, 16385, 131072, 400000, 5000000],
      testOn on "the same file twenty times on one connection" . withFile 20000 $ \client ->
        mapM_ (\_ -> (`isBytes` filler 20000) =<< get client "/") [1 .. 20 :: Int],
      testOn on "a response head that is larger than the write buffer" . withFile 50000 $ \client -> do
        answer <- get client "/wordy"
        fmap B.length (header "x-words" answer) @?= Just 30000
        answer `isBytes` filler 50000,
      testOn on "ranges" . withFile 1000000 $ \client -> do
        part client "0-0" >>= isPart 0 1
        part client "999999-" >>= isPart 999999 1
        part client "-10" >>= isPart 999990 10
        part client "5000-304999" >>= isPart 5000 300000
        part client "100-99999999" >>= isPart 100 999900
        part client "100-99999999999999999999" >>= isPart 100 999900
        ask client "/" ["Range: BYTES=5-6"] >> hearAnswer client >>= isPart 5 2
        get client "/" >>= (`isBytes` filler 1000000),
      testOn on "conditions are evaluated in the order of RFC 9110, 13.2.2" . withFile 1000 $ \client -> do
        first <- get client "/"
        date <- maybe (assertFailure "no date") pure (header "last-modified" first)
        let past = "Sun, 06 Nov 1994 08:49:37 GMT"
            with path fields status = do
              ask client path fields
              answer <- (if status == 304 then hearAnswerToHead else hearAnswer) client
              assertEqual (show (path, fields)) status (answerStatus answer)
        -- The file has no entity tag.
        with "/" ["If-Match: \"a\""] 412
        with "/" ["If-Match: *"] 200
        with "/" ["If-None-Match: \"a\""] 200
        with "/" ["If-None-Match: *"] 304
        with "/" ["If-None-Match: \"a\"", "If-Modified-Since: " <> date] 200
        with "/" ["If-Modified-Since: " <> date] 304
        with "/" ["If-Modified-Since: " <> past] 200
        with "/" ["If-Unmodified-Since: " <> past] 412
        with "/" ["If-Match: *", "If-Unmodified-Since: " <> past] 200
        with "/" ["If-Range: " <> date, "Range: bytes=0-9"] 206
        with "/" ["If-Range: \"a\"", "Range: bytes=0-9"] 200
        -- The application gives an entity tag.
        forM_ [("/strong", 206, 200), ("/weak", 200, 412)] $ \(path, part', match) -> do
          with path ["If-Match: \"a\""] match
          with path ["If-Match: \"b\""] 412
          with path ["If-None-Match: \"b\", W/\"a\""] 304
          with path ["If-Range: \"a\"", "Range: bytes=0-9"] part'
          with path ["If-Range: " <> date, "Range: bytes=0-9"] 200
        -- The application gives a date.
        with "/dated" ["If-Modified-Since: " <> past] 304
        with "/dated" ["If-Unmodified-Since: " <> past] 200
        with "/dated" ["If-Range: " <> past, "Range: bytes=0-9"] 206
        with "/dated" ["If-Range: " <> date, "Range: bytes=0-9"] 200
        -- The obsolete forms of dates (5.6.7), and what looks like a date.
        forM_ ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994", "Mon Nov 06 08:49:37 1994"] $ \old -> do
          with "/dated" ["If-Range: " <> old, "Range: bytes=0-9"] 206
          with "/dated" ["If-Modified-Since: " <> old] 304
          with "/" ["If-Modified-Since: " <> old] 200
          with "/dated" ["If-Unmodified-Since: " <> old] 200
          with "/" ["If-Unmodified-Since: " <> old] 412
        forM_ ["Saturday, 05-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:36 1994"] $ \before -> do
          with "/dated" ["If-Modified-Since: " <> before] 200
          with "/dated" ["If-Unmodified-Since: " <> before] 412
        -- Two digits mean at most 50 years ahead: from 2026 to 2048, this is 2049.
        with "/" ["If-Unmodified-Since: Friday, 05-Nov-49 08:49:37 GMT"] 200
        forM_ noDates $ \no -> do
          with "/dated" ["If-Modified-Since: " <> no] 200
          with "/" ["If-Unmodified-Since: " <> no] 200
        say client "HEAD / HTTP/1.1\r\nHost: test\r\nRange: bytes=0-9\r\n\r\n"
        answer <- hearAnswerToHead client
        (answerStatus answer, header "content-length" answer) @?= (200, Just "1000"),
      testOn on "what the choice of a file depends on is said whatever the answer is" . withFolder $ \folder -> do
        B.writeFile (folder </> "f") "0123456789"
        B.writeFile (folder </> "f.gz") "zipped"
        let varied _ respond = respond (responseFile status200 [("Vary", "Accept-Encoding"), ("ETag", "\"a\"")] (folder </> "f") Nothing)
        withStatic defaultStaticSettings folder $ \static -> forM_ [staticApp static, varied] $ \app -> withQuietServer defaultSettings app $ \_ port ->
          forM_ [("GET", "X: y", 200), ("HEAD", "X: y", 200), ("GET", "If-None-Match: *", 304), ("GET", "If-Match: \"b\"", 412), ("GET", "Range: bytes=10-", 416), ("GET", "Range: bytes=0-1", 206)] $ \(method, field, status) -> withClient port $ \client -> do
            say client (method <> " /f HTTP/1.1\r\nHost: test\r\n" <> field <> "\r\n\r\n")
            answer <- hearAnswerToHead client
            (answerStatus answer, header "vary" answer) @?= (status, Just "Accept-Encoding"),
      testOn on "curl resumes a download" . withFilePort id 700000 $ \port -> do
        out <- curl ["-C", "600000", "-o", "/dev/null", "-w", "%{http_code} %{size_download}", url port]
        out @?= "206 100000",
      testOn on "a part of a file that the application selects" . withFile 200000 $ \client -> do
        answer <- get client "/part"
        answerBody answer @?= B.take 150000 (B.drop 10 (filler 200000)),
      testOn on "an empty part has no Content-Range" . withFile 1000 $ \client -> do
        answer <- get client "/none"
        answer `isBytes` ""
        (header "content-length" answer, header "content-range" answer) @?= (Just "0", Nothing),
      testOn on "HEAD gives the file's length" . withFile 123456 $ \client -> do
        say client "HEAD / HTTP/1.1\r\nHost: test\r\n\r\n"
        answer <- hearAnswerToHead client
        header "content-length" answer @?= Just "123456"
        get client "/" >>= (`isBytes` filler 123456),
      testOn on "a missing file gives a 404" . withFile 1 $ \client -> do
        answer <- get client "/missing"
        answerStatus answer @?= 404
        get client "/" >>= (`isBytes` filler 1),
      testOn on "a named pipe gives a 404, and a modification time in the future is not sent" . withFolder $ \folder -> do
        createNamedPipe (folder </> "pipe") 0o600
        B.writeFile (folder </> "file") "x"
        -- In the year 2094.
        setFileTimes (folder </> "file") 3939871777 3939871777
        let app req respond = respond (responseFile status200 [] (folder </> C.unpack (B.drop 1 (rawPathInfo req))) Nothing)
        withQuietServer defaultSettings app $ \_ port -> withClient port $ \client -> do
          get client "/pipe" >>= (@?= 404) . answerStatus
          answer <- get client "/file"
          answer `isBytes` "x"
          assertBool (show (answerHeaders answer)) (maybe False (not . B.isInfixOf "2094") (header "last-modified" answer)),
      testOn on "the modification time of a file from before 1970 is given as the beginning of 1970" . withFolder $ \folder -> do
        B.writeFile (folder </> "file") "x"
        setFileTimes (folder </> "file") (-86400) (-86400)
        withQuietServer defaultSettings (\_ respond -> respond (responseFile status200 [] (folder </> "file") Nothing)) $ \_ port -> withClient port $ \client -> do
          answer <- get client "/"
          header "last-modified" answer @?= Just "Thu, 01 Jan 1970 00:00:00 GMT",
      testOn on "a file that cannot be opened for lack of descriptors gives a 500, which caches do not keep" . withFile 1000 $ \client -> do
        get client "/" >>= (`isBytes` filler 1000)
        -- An earlier test's connection may end meanwhile, and give a descriptor back.
        let refused n = withoutDescriptors (answerStatus <$> get client "/") >>= \status -> if status == 200 && n > 0 then refused (n - 1) else pure status
        refused (50 :: Int) >>= (@?= 500)
        get client "/" >>= (`isBytes` filler 1000),
      testOn on "a name that is not valid in the locale is the name of that file only" . withFolder $ \folder -> do
        -- The second name has a byte 0xff in front of the first one, and the third one does not exist.
        forM_ [("a", "one"), ("\xdcff\&a", "other")] $ \(name, text) -> B.writeFile (folder </> name) text
        let app req respond = respond (responseFile status200 [] (folder </> named (rawPathInfo req)) Nothing)
            named path = case path of
              "/1" -> "a"
              "/2" -> "\xdcff\&a"
              "/3" -> "\xdcfe\&a"
              _ -> "a\0b"
        withQuietServer defaultSettings app $ \_ port -> withClient port $ \client -> do
          get client "/1" >>= (`isBytes` "one")
          get client "/2" >>= (`isBytes` "other")
          forM_ ["/3", "/4"] $ \path -> get client path >>= (@?= 404) . answerStatus,
      testOn on "a part that goes beyond the end of its file gives a 500" . withFile 1000 $ \client ->
        forM_ ["/longer", "/behind"] $ \path -> do
          get client path >>= (@?= 500) . answerStatus
          get client "/" >>= (`isBytes` filler 1000)
    ]
  where
    whole n = withFile n (\client -> get client "/" >>= (`isBytes` filler n))
    url port = "http://127.0.0.1:" <> show port <> "/"
    part client range = ask client "/" ["Range: bytes=" <> range] >> hearAnswer client
    isPart from n answer = do
      answerStatus answer @?= 206
      assertBool "the part" (answerBody answer == B.take n (B.drop from (filler 1000000)))

-- | Values that are no dates; each would be one in the past.
noDates :: [ByteString]
noDates =
  [ "Sun, 06 Nov 1994 08:49:37 +0000",
    "Sun, 06 Nov 1994 08:49:37 UTC",
    "Sun, 06 Nov 1994 08:49:37",
    "Sun, 06 Nov 1994 08:49:37 GMT x",
    "Sun, 6 Nov 1994 08:49:37 GMT",
    "Sun, 06 Nov 94 08:49:37 GMT",
    "sun, 06 nov 1994 08:49:37 gmt",
    "Sun, 31 Nov 1994 08:49:37 GMT",
    "Sun, 29 Feb 1993 08:49:37 GMT",
    "Sun, 06 Nov 1994 24:49:37 GMT",
    "Sun, 06 Nov 1994 08:49:61 GMT",
    "Sun, 06 Nov 1994 8:49:37 GMT",
    "Sun, 06-Nov-94 08:49:37 GMT",
    "Sunday, 06-Nov-94 08:49:37 +0000",
    "Sunday, 06-Nov-1994 08:49:37 GMT",
    "Sun Nov  6 08:49:37 1994 GMT",
    "Sun Nov 6 08:49:37 1994",
    "784111777"
  ]

isBytes :: Answer -> ByteString -> Assertion
isBytes answer expected = do
  (answerStatus answer, B.length (answerBody answer)) @?= (200, B.length expected)
  assertBool "the bytes" (answerBody answer == expected)

-- | Run an action with a client of a server that has a file of the given number of bytes.
withFile :: Int -> (Client -> IO a) -> IO a
withFile = withFileAnd id

withFileAnd :: (Settings -> Settings) -> Int -> (Client -> IO a) -> IO a
withFileAnd change size act = withFilePort change size (`withClient` act)

withFilePort :: (Settings -> Settings) -> Int -> (Int -> IO a) -> IO a
withFilePort change size act = bracket create removeFile $ \path ->
  withQuietServer (change defaultSettings) (files path) (const act)
  where
    create = do
      folder <- getTemporaryDirectory
      (path, h) <- openBinaryTempFile folder "weft-file"
      B.hPut h (filler size)
      path <$ hClose h

-- | Run an action while no descriptor can be opened.
withoutDescriptors :: IO a -> IO a
withoutDescriptors act = bracket (taken []) (mapM_ closeFd) $ \_ -> do
  limits <- getResourceLimit ResourceOpenFiles
  bracket_ (change limits {softLimit = ResourceLimit 64}) (change limits) act
  where
    change = setResourceLimit ResourceOpenFiles
    -- Until all numbers below 64 are in use.
    taken have = do
      (a, b) <- createPipe
      (if a >= 64 then pure else taken) (a : b : have)

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removeDirectoryRecursive
  where
    make = getTemporaryDirectory >>= \folder -> mkdtemp (folder </> "weft-files-")

files :: FilePath -> Application
files path req respond = case rawPathInfo req of
  "/part" -> respond (responseFile status200 [] path (Just (FilePart 10 150000 200000)))
  "/longer" -> respond (responseFile status200 [] path (Just (FilePart 0 5000 5000)))
  "/behind" -> respond (responseFile status200 [] path (Just (FilePart 1001 0 1001)))
  "/none" -> respond (responseFile status200 [] path (Just (FilePart 5 0 1000)))
  "/missing" -> respond (responseFile status200 [] (path <> ".not") Nothing)
  "/strong" -> respond (responseFile status200 [("ETag", "\"a\"")] path Nothing)
  "/weak" -> respond (responseFile status200 [("ETag", "W/\"a\"")] path Nothing)
  "/dated" -> respond (responseFile status200 [("Last-Modified", "Sun, 06 Nov 1994 08:49:37 GMT")] path Nothing)
  "/wordy" -> respond (responseFile status200 [("X-Words", C.replicate 30000 'w')] path Nothing)
  _ -> respond (responseFile status200 [] path Nothing)
