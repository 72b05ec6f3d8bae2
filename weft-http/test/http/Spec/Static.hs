{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Static": which files of a folder are served, how, and which are not.
module Spec.Static (tests) where

import Application (filler, withQuietServer)
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (mapConcurrently_)
import Control.Exception (bracket, bracket_)
import Control.Monad (forM_, unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Maybe (fromMaybe)
import System.Directory
import System.FilePath ((</>))
import System.Posix.Files (createSymbolicLink, setFileMode)
import System.Posix.Temp (mkdtemp)
import System.Posix.User (getEffectiveUserID, setEffectiveUserID)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http
import Weft.Static

tests :: Configuration -> TestTree
tests on =
  testGroup
    "static"
    [ testOn on "files of every size, again and again" . site id $ \folder port -> do
        forM_ sizes $ \n -> B.writeFile (folder </> show n) (filler n)
        withClient port $ \client -> forM_ (sizes <> sizes) $ \n -> do
          answer <- get client ("/" <> C.pack (show n))
          answerStatus answer @?= 200
          answer `isBytes` filler n,
      testOn on "HEAD says what GET would" . site id $ \folder port -> do
        B.writeFile (folder </> "f.txt") (filler 20000)
        withClient port $ \client -> do
          say client "HEAD /f.txt HTTP/1.1\r\nHost: test\r\n\r\n"
          answer <- hearAnswerToHead client
          answerStatus answer @?= 200
          header "content-length" answer @?= Just "20000"
          header "content-type" answer @?= Just "text/plain; charset=utf-8"
          get client "/f.txt" >>= (`isBytes` filler 20000),
      testOn on "a connection that was answered a HEAD is idle when the server ends" . withFolder $ \folder -> do
        B.writeFile (folder </> "f") (filler 20000)
        withStatic defaultStaticSettings folder $ \static -> withQuietServer defaultSettings (staticApp static) $ \server port ->
          withClient port $ \client -> do
            say client "HEAD /f HTTP/1.1\r\nHost: test\r\n\r\n"
            _ <- hearAnswerToHead client
            threadDelay 20000
            drained <- within 5 "the end" (drainServer server (seconds 20))
            drained @?= True,
      testOn on "a changed file is seen" . site (\s -> s {staticTrust = milliseconds 20}) $ \folder port ->
        withClient port $ \client -> forM_ [1 .. 10 :: Int] $ \i -> do
          B.writeFile (folder </> "f") (filler (1000 * i))
          threadDelay 40000
          get client "/f" >>= (`isBytes` filler (1000 * i)),
      testOn on "a vanished file is gone" . site (\s -> s {staticTrust = milliseconds 20}) $ \folder port ->
        withClient port $ \client -> do
          B.writeFile (folder </> "f") "x"
          statusOf client "/f" 200
          removeFile (folder </> "f")
          threadDelay 40000
          statusOf client "/f" 404,
      testOn on "no way out" . site id $ \folder port -> do
        B.writeFile (folder </> "page") "page"
        B.writeFile (folder </> ".hidden") "hidden"
        B.writeFile (folder <> ".secret") "secret"
        createSymbolicLink (folder <> ".secret") (folder </> "absolute")
        createSymbolicLink ("../" <> C.unpack (last (C.split '/' (C.pack folder))) <> ".secret") (folder </> "relative")
        createSymbolicLink "page" (folder </> "inside")
        let name = last (C.split '/' (C.pack folder)) <> ".secret"
        withClient port $ \client -> do
          forM_
            [ "/../" <> name,
              "/%2e%2e/" <> name,
              "/%2E%2e%2f" <> name,
              "/..%2f" <> name,
              "/x/..%5c..%5c" <> name,
              "/..\\" <> name,
              "/%252e%252e/" <> name,
              "//../" <> name,
              "/./../" <> name,
              "/page/../../" <> name,
              "/%c0%ae%c0%ae/" <> name,
              "/absolute",
              "/relative",
              "/.hidden",
              "/%2ehidden",
              "/page%00",
              "/page%00.html",
              "/page/"
            ]
            $ \path -> do
              answer <- get client path
              assertBool (show path <> ": " <> show (answerStatus answer)) (answerStatus answer `elem` [400, 403, 404])
              assertBool (show path <> " shows what it must not") (not ("secret" `B.isInfixOf` answerBody answer) || name `B.isInfixOf` answerBody answer)
          statusOf client "/%zz" 400
          statusOf client "/%4" 400
          get client "/inside" >>= (`isBytes` "page")
          get client "//page" >>= (`isBytes` "page")
          get client "/p%61ge" >>= (`isBytes` "page")
        removeFile (folder <> ".secret"),
      testOn on "folders" . site id $ \folder port -> do
        createDirectory (folder </> "a b")
        B.writeFile (folder </> "a b" </> "index.html") "index"
        createDirectory (folder </> "empty")
        withClient port $ \client -> do
          answer <- get client "/a%20b?x=1"
          answerStatus answer @?= 301
          header "location" answer @?= Just "/a%20b/?x=1"
          get client "/a%20b/" >>= (`isBytes` "index")
          get client "/a%20b/" >>= (`isBytes` "index")
          statusOf client "/empty/" 404,
      testOn on "listings" . site (\s -> s {staticListing = True}) $ \folder port -> do
        createDirectory (folder </> "d")
        B.writeFile (folder </> "d" </> "<i>&.txt") "x"
        B.writeFile (folder </> "d" </> ".hidden") "x"
        createDirectory (folder </> "d" </> "sub")
        createFileLink "/etc/hostname" (folder </> "d" </> "outside")
        createFileLink "sub" (folder </> "d" </> "within")
        withClient port $ \client -> do
          page <- get client "/d/"
          assertBool (show (answerBody page)) ("&lt;i&gt;&amp;.txt" `B.isInfixOf` answerBody page)
          assertBool "a link that is not encoded" ("./%3Ci%3E%26.txt" `B.isInfixOf` answerBody page)
          assertBool "a link that leads out" (not ("outside" `B.isInfixOf` answerBody page))
          assertBool "a link that does not" ("within" `B.isInfixOf` answerBody page)
          assertBool "a hidden file" (not ("hidden" `B.isInfixOf` answerBody page))
          get client "/d/%3Ci%3E%26.txt" >>= (`isBytes` "x")
          ask client "/d/" ["Accept: application/json"]
          json <- hearAnswer client
          header "content-type" json @?= Just "application/json; charset=utf-8"
          assertBool (show (answerBody json)) ("\"sub\"" `B.isInfixOf` answerBody json),
      testOn on "a listing of many, with names that are no text" . site (\s -> s {staticListing = True}) $ \folder port -> do
        createDirectory (folder </> "d")
        -- More names than one call of the kernel's gives.
        forM_ [1 .. 2000 :: Int] $ \i -> B.writeFile (folder </> "d" </> ("a file of many, " <> show i)) "12345"
        -- A byte that is not UTF-8, as GHC has it in a path.
        B.writeFile (folder </> "d" </> "odd\xdcff") "odd"
        createSymbolicLink "nowhere" (folder </> "d" </> "dangling")
        withClient port $ \client -> do
          ask client "/d/" ["Accept: application/json"]
          json <- answerBody <$> hearAnswer client
          length (filter ("\"size\":5" `B.isPrefixOf`) (B.tails json)) @?= 2000
          assertBool "a link that leads nowhere" (not ("dangling" `B.isInfixOf` json))
          page <- get client "/d/"
          assertBool "the odd name" ("./odd%FF" `B.isInfixOf` answerBody page)
          get client "/d/odd%ff" >>= (`isBytes` "odd"),
      testOn on "conditions" . site id $ \folder port -> do
        B.writeFile (folder </> "f") (filler 100)
        withClient port $ \client -> do
          first <- get client "/f"
          let tag = fromMaybe "" (header "etag" first)
              date = fromMaybe "" (header "last-modified" first)
              past = "Sun, 06 Nov 1994 08:49:37 GMT"
              future = "Sun, 06 Nov 2094 08:49:37 GMT"
              with fields status = do
                ask client "/f" fields
                answer <- (if status == 304 then hearAnswerToHead else hearAnswer) client
                assertEqual (show fields) status (answerStatus answer)
          with ["If-None-Match: " <> tag] 304
          with ["If-None-Match: \"other\", W/" <> tag] 304
          with ["If-None-Match: *"] 304
          with ["If-None-Match: \"other\""] 200
          with ["If-None-Match: \"other\"", "If-Modified-Since: " <> future] 200
          with ["If-Modified-Since: " <> date] 304
          with ["If-Modified-Since: " <> past] 200
          with ["If-Match: " <> tag] 200
          with ["If-Match: W/" <> tag] 412
          with ["If-Match: \"other\""] 412
          with ["If-Unmodified-Since: " <> past] 412
          with ["If-Unmodified-Since: " <> future] 200
          with ["If-Match: " <> tag, "If-Unmodified-Since: " <> past] 200
          with ["If-Range: " <> tag, "Range: bytes=0-9"] 206
          with ["If-Range: \"other\"", "Range: bytes=0-9"] 200
          with ["If-Range: " <> date, "Range: bytes=0-9"] 206
          with ["If-Range: " <> past, "Range: bytes=0-9"] 200
          with ["Range: bytes=0-9, -10"] 206
          with ["Range: bytes= 0-9 ,, 20-29\t"] 206
          with ["Range: bytes=0 - 9"] 200
          -- A list may be in several lines; a range is for GET.
          with ["If-None-Match: \"other\"", "If-None-Match: " <> tag] 304
          with ["If-Match: \"other\"", "If-Match: " <> tag] 200
          with ["If-Match: *"] 200
          with ["If-Range: W/" <> tag, "Range: bytes=0-9"] 200
          forM_ ["Range: bytes=0-9", "Range: bytes=200-"] $ \range -> do
            say client ("HEAD /f HTTP/1.1\r\nHost: test\r\n" <> range <> "\r\n\r\n")
            answer <- hearAnswerToHead client
            (answerStatus answer, header "content-length" answer) @?= (200, Just "100"),
      testOn on "ranges, of small files and large" . site id $ \folder port -> forM_ [1000, 600000] $ \n -> do
        B.writeFile (folder </> show n) (filler n)
        withClient port $ \client -> do
          let size = C.pack (show n)
              part range from count = do
                ask client ("/" <> size) ["Range: bytes=" <> range]
                answer <- hearAnswer client
                assertEqual (show range) 206 (answerStatus answer)
                answer `isBytes` B.take count (B.drop from (filler n))
                header "content-range" answer @?= Just ("bytes " <> C.pack (show from) <> "-" <> C.pack (show (from + count - 1)) <> "/" <> size)
          part "0-0" 0 1
          part "10-19" 10 10
          part "-5" (n - 5) 5
          part "990-99999999" 990 (n - 990)
          part "990-" 990 (n - 990)
          ask client ("/" <> size) ["Range: bytes=" <> size <> "-"]
          none <- hearAnswer client
          answerStatus none @?= 416
          header "content-range" none @?= Just ("bytes */" <> size)
          forM_ ["bytes=5-1", "bytes=x", "lines=1-2", "bytes=" <> B.intercalate "," (replicate 17 "0-0"), "bytes=0-500,100-600"] $ \range -> do
            ask client ("/" <> size) ["Range: " <> range]
            answer <- hearAnswer client
            assertEqual (show range) 200 (answerStatus answer)
          ask client ("/" <> size) ["Range: bytes=0-1,500-503,-2"]
          several <- hearAnswer client
          answerStatus several @?= 206
          let body = answerBody several
              bytes from count = B.take count (B.drop from (filler n))
          forM_ [(0, 2), (500, 4), (n - 2, 2)] $ \(from, count) ->
            assertBool "a part is missing" ((C.pack (show (from + count - 1)) <> "/" <> size <> "\r\n\r\n" <> bytes from count <> "\r\n--") `B.isInfixOf` body),
      testOn on "variants that were compressed beforehand" . site id $ \folder port -> do
        B.writeFile (folder </> "s.js") "plain"
        B.writeFile (folder </> "s.js.gz") "gzipped"
        B.writeFile (folder </> "s.js.br") "brotli"
        withClient port $ \client -> do
          let accepting field body coding = do
                ask client "/s.js" ["Accept-Encoding: " <> field]
                answer <- hearAnswer client
                answer `isBytes` body
                header "content-encoding" answer @?= coding
                header "vary" answer @?= Just "Accept-Encoding"
                header "content-type" answer @?= Just "application/javascript; charset=utf-8"
                pure (header "etag" answer)
          a <- accepting "gzip, deflate, br" "brotli" (Just "br")
          b <- accepting "gzip" "gzipped" (Just "gzip")
          c <- accepting "identity" "plain" Nothing
          _ <- accepting "br;q=0, gzip;q=0.5" "gzipped" (Just "gzip")
          _ <- accepting "br;q=0.000, gzip;q=0" "plain" Nothing
          _ <- accepting "*" "brotli" (Just "br")
          _ <- accepting "identity\r\nAccept-Encoding: gzip" "gzipped" (Just "gzip")
          assertBool "the same tag" (a /= b && b /= c && a /= c),
      testOn on "other methods" . site id $ \folder port -> do
        B.writeFile (folder </> "f") "x"
        withClient port $ \client -> do
          say client "DELETE /f HTTP/1.1\r\nHost: test\r\n\r\n"
          answer <- hearAnswer client
          answerStatus answer @?= 405
          header "allow" answer @?= Just "GET, HEAD, OPTIONS"
          get client "/f" >>= (`isBytes` "x"),
      testOn on "what may not be read is not shown" . site id $ \folder port -> do
        B.writeFile (folder </> "f") "x"
        setFileMode (folder </> "f") 0
        setFileMode folder 0o755
        asNobody . withClient port $ \client -> statusOf client "/f" 403,
      testOn on "texts are compressed if that is wanted, once; a part of them is a part of what is compressed" . site (\s -> s {staticCompress = True}) $ \folder port -> do
        let text = B.concat (replicate 20000 "compress this text ")
        B.writeFile (folder </> "f.txt") text
        B.writeFile (folder </> "small.txt") (B.take 1000 text)
        B.writeFile (folder </> "noise.txt") (filler 3000)
        B.writeFile (folder </> "huge.txt") (B.concat [text, text, text])
        withClient port $ \client -> do
          let accepting path fields = do
                say client ("GET " <> path <> " HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n" <> fields <> "\r\n")
                hearAnswer client
          whole <- accepting "/f.txt" ""
          header "content-encoding" whole @?= Just "gzip"
          header "vary" whole @?= Just "Accept-Encoding"
          B.take 2 (answerBody whole) @?= "\x1f\x8b"
          assertBool "larger than it was" (B.length (answerBody whole) * 10 < B.length text)
          part <- accepting "/f.txt" "Range: bytes=10-19\r\n"
          answerBody part @?= B.take 10 (B.drop 10 (answerBody whole))
          tag <- maybe (assertFailure "no tag") pure (header "etag" whole)
          same <- accepting "/f.txt" ("If-None-Match: " <> tag <> "\r\n")
          answerStatus same @?= 304
          plain <- get client "/f.txt"
          plain `isBytes` text
          header "vary" plain @?= Just "Accept-Encoding"
          assertBool "one tag for both" (header "etag" plain /= Just tag)
          forM_ ["/small.txt", "/huge.txt"] $ \path -> accepting path "" >>= (@?= Nothing) . header "content-encoding",
      testOn on "without room for open files every answer comes all the same, and no descriptor stays" . withFolder $ \folder -> do
        files <- newOpenFiles 0
        B.writeFile (folder </> "f") (filler 1000000)
        withStatic defaultStaticSettings {staticOpenFiles = Just files} folder $ \static -> testWithApplication (pure (staticApp static)) $ \port -> do
          before <- length <$> listDirectory "/proc/self/fd"
          mapConcurrently_ (const (withClient port $ \client -> forM_ [1 .. 3 :: Int] $ \_ -> get client "/f" >>= (`isBytes` filler 1000000))) [1 .. 8 :: Int]
          withClient port $ \client -> do
            say client "GET /f HTTP/1.1\r\nHost: test\r\nRange: bytes=70000-200000\r\n\r\n"
            part <- hearAnswer client
            answerStatus part @?= 206
            part `isBytes` B.take 130001 (B.drop 70000 (filler 1000000))
          -- A client that does not read.
          withClient port $ \client -> do
            say client "GET /f HTTP/1.1\r\nHost: test\r\n\r\n"
            threadDelay 100000
            during <- length <$> listDirectory "/proc/self/fd"
            assertBool (show (before, during)) (during <= before + 4),
      testOn on "a thousand requests for a cold file" . site id $ \folder port -> do
        B.writeFile (folder </> "f") (filler 50000)
        mapConcurrently_ (const (withClient port (\client -> get client "/f" >>= (`isBytes` filler 50000)))) [1 .. 200 :: Int],
      testOn on "more files than the cache holds" . site (\s -> s {staticCacheBytes = 300000}) $ \folder port -> do
        forM_ [1 .. 60 :: Int] $ \i -> B.writeFile (folder </> show i) (filler (10000 + i))
        withClient port $ \client -> forM_ (concat (replicate 3 [1 .. 60 :: Int])) $ \i ->
          get client ("/" <> C.pack (show i)) >>= (`isBytes` filler (10000 + i)),
      testOn on "the cache counts, and stays within its bounds" counts
    ]
  where
    sizes = [0, 1, 100, 13999, 14001, 16384, 40000, 131072, 262144, 262145, 1000000] :: [Int]

counts :: Assertion
counts = withFolder $ \folder -> do
  forM_ [1 .. 50 :: Int] $ \i -> B.writeFile (folder </> show i) (filler 10000)
  withStatic defaultStaticSettings {staticCacheBytes = 200000} folder $ \static ->
    testWithApplication (pure (staticApp static)) $ \port -> withClient port $ \client -> do
      forM_ [1 .. 50 :: Int] $ \i -> get client ("/" <> C.pack (show i))
      forM_ [1 .. 10 :: Int] $ \_ -> get client "/50"
      figures <- staticMetrics static
      assertBool (show figures) (cachedBytes figures <= 200000 && cachedEntries figures <= 18 && cachedEntries figures >= 10)
      assertBool (show figures) (cachedHits figures >= 10 && cachedMisses figures == 50)

-- | With the rights of a user who owns nothing: root may read everything. All threads of the process change.
asNobody :: IO a -> IO a
asNobody act = do
  user <- getEffectiveUserID
  if user == 0 then bracket_ (setEffectiveUserID 65534) (setEffectiveUserID 0) act else act

site :: (StaticSettings -> StaticSettings) -> (FilePath -> Int -> IO a) -> IO a
site change act = withFolder $ \folder ->
  withStatic (change defaultStaticSettings) folder $ \static -> testWithApplication (pure (staticApp static)) (act folder)

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removePathForcibly
  where
    make = getTemporaryDirectory >>= \dir -> mkdtemp (dir </> "weft-static-")

statusOf :: Client -> ByteString -> Int -> Assertion
statusOf client path status = do
  answer <- get client path
  assertEqual (show path) status (answerStatus answer)

isBytes :: Answer -> ByteString -> Assertion
isBytes answer bytes = unless (answerBody answer == bytes) (assertFailure ("another body, of " <> show (B.length (answerBody answer)) <> " bytes, status " <> show (answerStatus answer)))
