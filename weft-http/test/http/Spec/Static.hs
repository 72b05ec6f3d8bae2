{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Static": the files of a folder that are served or refused, and the responses.
module Spec.Static (tests) where

import Application (asNobody, filler, withQuietServer)
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (mapConcurrently_)
import Control.Exception (bracket)
import Control.Monad (forM_, replicateM, replicateM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (nub)
import Data.Maybe (fromMaybe)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import Network.HTTP.Types (notFound404)
import Network.Wai (pathInfo, rawPathInfo, responseLBS)
import System.Directory
import System.FilePath ((</>))
import System.Posix.Files (createSymbolicLink, setFileMode, setFileTimes)
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http
import Weft.Static

tests :: Configuration -> TestTree
tests on =
  testGroup
    "static"
    [ testOn on "files of many sizes, each requested twice" . site id $ \folder port -> do
        forM_ sizes $ \n -> B.writeFile (folder </> show n) (filler n)
        withClient port $ \client -> forM_ (sizes <> sizes) $ \n -> do
          answer <- get client ("/" <> C.pack (show n))
          answerStatus answer @?= 200
          answer `isBytes` filler n,
      testOn on "HEAD gives the file's length and type, and no body" . site id $ \folder port -> do
        B.writeFile (folder </> "f.txt") (filler 20000)
        withClient port $ \client -> do
          say client "HEAD /f.txt HTTP/1.1\r\nHost: test\r\n\r\n"
          answer <- hearAnswerToHead client
          answerStatus answer @?= 200
          header "content-length" answer @?= Just "20000"
          header "content-type" answer @?= Just "text/plain; charset=utf-8"
          get client "/f.txt" >>= (`isBytes` filler 20000),
      testOn on "a connection is idle after the response to HEAD: a drain does not wait for it" . withFolder $ \folder -> do
        B.writeFile (folder </> "f") (filler 20000)
        withStatic defaultStaticSettings folder $ \static -> withQuietServer defaultSettings (staticApp static) $ \server port ->
          withClient port $ \client -> do
            say client "HEAD /f HTTP/1.1\r\nHost: test\r\n\r\n"
            _ <- hearAnswerToHead client
            threadDelay 20000
            drained <- within 15 "the end" (drainServer server (seconds 20))
            drained @?= True,
      testOn on "a changed file is served" . site (\s -> s {staticTrust = milliseconds 20}) $ \folder port ->
        withClient port $ \client -> forM_ [1 .. 10 :: Int] $ \i -> do
          B.writeFile (folder </> "f") (filler (1000 * i))
          threadDelay 40000
          get client "/f" >>= (`isBytes` filler (1000 * i)),
      testOn on "a removed file gives a 404" . site (\s -> s {staticTrust = milliseconds 20}) $ \folder port ->
        withClient port $ \client -> do
          B.writeFile (folder </> "f") "x"
          statusOf client "/f" 200
          removeFile (folder </> "f")
          threadDelay 40000
          statusOf client "/f" 404,
      testOn on "no path leads out of the root" . site id $ \folder port -> do
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
      testOn on "paths of folders: redirects and index files" . site id $ \folder port -> do
        createDirectory (folder </> "a b")
        B.writeFile (folder </> "a b" </> "index.html") "index"
        createDirectory (folder </> "empty")
        withClient port $ \client -> do
          answer <- get client "/a%20b?x=1"
          answerStatus answer @?= 301
          header "location" answer @?= Just "./a%20b/?x=1"
          -- What no URL may contain is encoded, and nothing twice.
          odd' <- get client "/a%20b?x=\x80<>%41%e9%4&y[]=/?:@!$&'()*+,;=-._~|"
          header "location" odd' @?= Just "./a%20b/?x=%80%3C%3E%41%e9%254&y[]=/?:@!$&'()*+,;=-._~%7C"
          get client "/a%20b/" >>= (`isBytes` "index")
          get client "/a%20b/" >>= (`isBytes` "index")
          statusOf client "/empty/" 404,
      testOn on "an application that is mounted below a path, by routers that change the whole path or a part of it" mounted,
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
          assertBool (show (answerBody json)) ("\"sub\"" `B.isInfixOf` answerBody json)
          forM_
            [ ([], "text/html"),
              (["application/json;q=0, text/html"], "text/html"),
              (["text/html, application/json;q=0.5"], "text/html"),
              (["text/html, application/xhtml+xml, */*;q=0.8"], "text/html"),
              (["application/json-seq"], "text/html"),
              (["*/*"], "text/html"),
              (["application/json, text/plain, */*"], "application/json"),
              (["text/html;q=0.5", "Application/JSON;charset=utf-8;q=0.9"], "application/json"),
              (["application/*"], "application/json")
            ]
            $ \(accepted, expected) -> do
              ask client "/d/" ["Accept: " <> field | field <- accepted]
              answer <- hearAnswer client
              assertEqual (show accepted) (Just (expected <> "; charset=utf-8")) (header "content-type" answer),
      testOn on "a listing of 2,000 files, one with a name that is not UTF-8" . site (\s -> s {staticListing = True}) $ \folder port -> do
        createDirectory (folder </> "d")
        -- More names than one call of getdents(2) returns.
        forM_ [1 .. 2000 :: Int] $ \i -> B.writeFile (folder </> "d" </> ("a file of many, " <> show i)) "12345"
        -- A byte that is not UTF-8, as GHC represents it in a path.
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
      testOn on "conditional requests" . site id $ \folder port -> do
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
          forM_ ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] $ \old ->
            with ["If-Modified-Since: " <> old] 200 >> with ["If-Unmodified-Since: " <> old] 412
          with ["If-Modified-Since: Sat Nov  6 08:49:37 2094"] 304
          with ["If-Unmodified-Since: Sun, 06 Nov 1994 08:49:37 +0000"] 200
          with ["If-Match: " <> tag] 200
          with ["If-Match: W/" <> tag] 412
          with ["If-Match: \"other\""] 412
          with ["If-Unmodified-Since: " <> past] 412
          with ["If-Unmodified-Since: " <> future] 200
          with ["If-Match: " <> tag, "If-Unmodified-Since: " <> past] 200
          with ["If-Range: " <> tag, "Range: bytes=0-9"] 206
          with ["If-Range: \"other\"", "Range: bytes=0-9"] 200
          -- The file may have changed twice in the second of the date; its tag says more.
          with ["If-Range: " <> date, "Range: bytes=0-9"] 200
          with ["If-Range: " <> past, "Range: bytes=0-9"] 200
          with ["Range: bytes=0-9, -10"] 206
          with ["Range: bytes= 0-9 ,, 20-29\t"] 206
          with ["Range: bytes=0 - 9"] 200
          -- A list may be spread over several fields; a range applies to GET only.
          with ["If-None-Match: \"other\"", "If-None-Match: " <> tag] 304
          with ["If-Match: \"other\"", "If-Match: " <> tag] 200
          with ["If-Match: *"] 200
          with ["If-Range: W/" <> tag, "Range: bytes=0-9"] 200
          forM_ ["Range: bytes=0-9", "Range: bytes=200-"] $ \range -> do
            say client ("HEAD /f HTTP/1.1\r\nHost: test\r\n" <> range <> "\r\n\r\n")
            answer <- hearAnswerToHead client
            (answerStatus answer, header "content-length" answer) @?= (200, Just "100"),
      testOn on "a modification time in the future is not sent" . site id $ \folder port -> withClient port $ \client ->
        forM_ ["1000", "600000"] $ \name -> do
          B.writeFile (folder </> name) (filler (read name))
          -- In the year 2094.
          setFileTimes (folder </> name) 3939871777 3939871777
          answer <- get client ("/" <> C.pack name)
          answer `isBytes` filler (read name)
          assertBool (show (answerHeaders answer)) (maybe False (not . B.isInfixOf "2094") (header "last-modified" answer)),
      testOn on "a modification time from before 1970 is given as the beginning of 1970, in listings too" . site (\s -> s {staticListing = True}) $ \folder port -> withClient port $ \client -> do
        createDirectory (folder </> "d")
        B.writeFile (folder </> "d" </> "f") "x"
        setFileTimes (folder </> "d" </> "f") (-86400) (-86400)
        answer <- get client "/d/f"
        header "last-modified" answer @?= Just "Thu, 01 Jan 1970 00:00:00 GMT"
        forM_ [[], ["Accept: application/json"]] $ \fields -> do
          listing <- ask client "/d/" fields >> hearAnswer client
          assertBool (show (answerBody listing)) ("Thu, 01 Jan 1970 00:00:00 GMT" `B.isInfixOf` answerBody listing),
      testOn on "ranges of small and large files" . site id $ \folder port -> forM_ [1000, 600000] $ \n -> do
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
          part "-0, ,0-0" 0 1
          ask client ("/" <> size) ["Range: Bytes=0-1"]
          hearAnswer client >>= (@?= 206) . answerStatus
          -- RFC 9110, 14.1.2: a suffix of zero bytes cannot be satisfied either.
          forM_ [size <> "-", "-0"] $ \range -> do
            ask client ("/" <> size) ["Range: bytes=" <> range]
            none <- hearAnswer client
            assertEqual (show range) 416 (answerStatus none)
            header "content-range" none @?= Just ("bytes */" <> size)
          forM_ ["bytes=5-1", "bytes=x", "bytes=", "bytes=+1-2", "bytes=0-1,5-1", "bytes=--1", "bytes=1", "bytes=-", "lines=1-2", "bytes=" <> B.intercalate "," (replicate 17 "0-0"), "bytes=0-500,100-600"] $ \range -> do
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
      testOn on "each response with several ranges has a boundary of its own, which no file can contain" . site id $ \folder port -> forM_ [1000, 600000] $ \n -> do
        B.writeFile (folder </> show n) (filler n)
        withClient port $ \client -> do
          boundaries <- replicateM 10 $ do
            ask client ("/" <> C.pack (show n)) ["Range: bytes=0-1,500-503"]
            several <- hearAnswer client
            let boundary = snd (C.breakEnd (== '=') (fromMaybe "" (header "content-type" several)))
            (answerStatus several, ("\r\n--" <> boundary <> "--\r\n") `B.isSuffixOf` answerBody several) @?= (206, True)
            pure boundary
          (length (nub boundaries), length (nub (map B.length boundaries))) @?= (10, 1),
      testOn on "precompressed variants" . site id $ \folder port -> do
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
          _ <- accepting "br;Q=0, gzip ;\tq=0" "plain" Nothing
          _ <- accepting "*" "brotli" (Just "br")
          _ <- accepting "identity\r\nAccept-Encoding: gzip" "gzipped" (Just "gzip")
          -- The coding with the highest weight, and of equal ones the best (RFC 9110, 12.5.3). Without a weight of its
          -- own, the file itself is the last choice.
          _ <- accepting "br;q=0.1, gzip" "gzipped" (Just "gzip")
          _ <- accepting "gzip ; Q=0.5,\tBR;q=0.500" "brotli" (Just "br")
          _ <- accepting "gzip;q=0.25, br;q=0.255" "brotli" (Just "br")
          _ <- accepting "gzip;q=0.5, identity;q=1" "plain" Nothing
          _ <- accepting "gzip;q=1.0, identity" "gzipped" (Just "gzip")
          _ <- accepting "gzip;q=0.1" "gzipped" (Just "gzip")
          _ <- accepting "br;q=0.5, *;q=0.8" "gzipped" (Just "gzip")
          _ <- accepting "br;q=0.5, gzip;q=0, *;q=0.8" "plain" Nothing
          _ <- accepting "*;q=0" "plain" Nothing
          -- 8.4.1.3: another name of gzip.
          _ <- accepting "x-gzip" "gzipped" (Just "gzip")
          assertBool "the same tag" (a /= b && b /= c && a /= c),
      testOn on "DELETE gets a 405 with the allowed methods" . site id $ \folder port -> do
        B.writeFile (folder </> "f") "x"
        withClient port $ \client -> do
          say client "DELETE /f HTTP/1.1\r\nHost: test\r\n\r\n"
          answer <- hearAnswer client
          answerStatus answer @?= 405
          header "allow" answer @?= Just "GET, HEAD, OPTIONS"
          get client "/f" >>= (`isBytes` "x"),
      testOn on "a file that the server may not read gives a 403" . site id $ \folder port -> do
        B.writeFile (folder </> "f") "x"
        setFileMode (folder </> "f") 0
        setFileMode folder 0o755
        asNobody . withClient port $ \client -> statusOf client "/f" 403,
      testOn on "a folder whose index file the server may not read gives a 403, not a listing" . site (\s -> s {staticListing = True}) $ \folder port -> do
        forM_ ["index.html", "index.htm", "hidden-by-the-index"] $ \name -> B.writeFile (folder </> name) "x"
        setFileMode (folder </> "index.html") 0
        setFileMode folder 0o755
        asNobody . withClient port $ \client -> do
          answer <- get client "/"
          answerStatus answer @?= 403
          assertBool "a listing" (not ("hidden-by-the-index" `B.isInfixOf` answerBody answer))
        setFileMode (folder </> "index.html") 0o644
        withClient port $ \client -> get client "/" >>= (`isBytes` "x"),
      testOn on "a folder whose names the server may not read gives a 403 instead of a listing" . site (\s -> s {staticListing = True}) $ \folder port -> do
        createDirectory (folder </> "d")
        B.writeFile (folder </> "d" </> "f") "x"
        setFileMode (folder </> "d") 0o711
        setFileMode folder 0o755
        asNobody . withClient port $ \client -> do
          statusOf client "/d/" 403
          get client "/d/f" >>= (`isBytes` "x")
          forM_ ["/none/", "/d/f/"] $ \path -> statusOf client path 404,
      testOn on "errors of names: too long, not a folder, a loop of links, a folder" . site id $ \folder port -> do
        B.writeFile (folder </> "f") "x"
        createDirectory (folder </> "d")
        createSymbolicLink "loop" (folder </> "loop")
        createSymbolicLink "nowhere" (folder </> "broken")
        withClient port $ \client ->
          forM_ [(C.cons '/' (C.replicate 300 'x'), 404), ("/f/g", 404), ("/loop", 403), ("/d", 301), ("/broken", 404), ("/%ff", 404), ("/f", 200)] $
            uncurry (statusOf client),
      testOn on "without room for open files all requests are answered, and descriptors do not accumulate" . withFolder $ \folder -> do
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
      testOn on "200 requests at once for a file that is not cached" . site id $ \folder port -> do
        B.writeFile (folder </> "f") (filler 50000)
        mapConcurrently_ (const (withClient port (\client -> get client "/f" >>= (`isBytes` filler 50000)))) [1 .. 200 :: Int],
      testOn on "more files than the cache holds are all served" . site (\s -> s {staticCacheBytes = 300000}) $ \folder port -> do
        forM_ [1 .. 60 :: Int] $ \i -> B.writeFile (folder </> show i) (filler (10000 + i))
        withClient port $ \client -> forM_ (concat (replicate 3 [1 .. 60 :: Int])) $ \i ->
          get client ("/" <> C.pack (show i)) >>= (`isBytes` filler (10000 + i)),
      testOn on "the cache counts hits and misses, and stays within its size" counts,
      testOn on "all spellings of a path share one entry of the cache" . withFolder $ \folder -> do
        createDirectory (folder </> "d")
        forM_ [("app.js", "script"), ("%61", "percent"), ("a", "letter"), ("d/index.html", "index")] $ \(name, text) -> B.writeFile (folder </> name) text
        withStatic defaultStaticSettings {staticTrust = seconds 600} folder $ \static ->
          testWithApplication (pure (staticApp static)) $ \port -> withClient port $ \client -> do
            forM_ ["/app.js", "/%61pp.js", "/%61%70p.js", "/a%70%70.js", "/app%2Ejs", "/app%2ejs", "//app.js", "/%61pp.js"] $ \path -> get client path >>= (`isBytes` "script")
            forM_ ["/d/", "/%64/", "//d//"] $ \path -> get client path >>= (`isBytes` "index")
            figures <- staticMetrics static
            (cachedEntries figures, cachedMisses figures) @?= (2, 2)
            -- The name of one file is another spelling of the other one's.
            forM_ (concat (replicate 2 [("/%2561", "percent"), ("/%61", "letter"), ("/a", "letter"), ("/%25%36%31", "percent")])) $ \(path, text) -> get client path >>= (`isBytes` text)
            more <- staticMetrics static
            (cachedEntries more, cachedMisses more) @?= (4, 4),
      testOn on "a folder's second index file stays in the cache when its entry is checked" . withFolder $ \folder -> do
        B.writeFile (folder </> "index.htm") "second"
        withStatic defaultStaticSettings {staticTrust = seconds 0} folder $ \static ->
          testWithApplication (pure (staticApp static)) $ \port -> withClient port $ \client -> do
            replicateM_ 5 (get client "/" >>= (`isBytes` "second"))
            -- Each request checks the entry once; if the first name's look-up dropped it, there would be ten.
            figures <- staticMetrics static
            cachedMisses figures @?= 5
            B.writeFile (folder </> "index.html") "first"
            get client "/" >>= (`isBytes` "first")
            removeFile (folder </> "index.html")
            get client "/" >>= (`isBytes` "second")
    ]
  where
    sizes = [0, 1, 100, 13999, 14001, 16384, 40000, 131072, 262144, 262145, 1000000] :: [Int]

-- | As servant's Raw is mounted, and as wai-extra's mapUrls does it.
mounted :: Assertion
mounted = withFolder $ \folder -> do
  forM_ ["sub", "static", "a%41 b"] $ \name -> createDirectory (folder </> name)
  forM_ ["f", "sub/index.html", "static/f", "a%41 b/index.html"] $ \name -> B.writeFile (folder </> name) (C.pack name)
  B.writeFile (folder </> ".hidden") "hidden"
  forM_ [const, \_ parts -> C.cons '/' (T.encodeUtf8 (T.intercalate "/" parts))] $ \rawOf ->
    withStatic defaultStaticSettings folder $ \static -> do
      let app request respond = case pathInfo request of
            "static" : rest -> staticApp static request {pathInfo = rest, rawPathInfo = rawOf (rawPathInfo request) rest} respond
            _ -> respond (responseLBS notFound404 [] "")
      testWithApplication (pure app) $ \port -> withClient port $ \client -> do
        -- Twice, so that files come from the cache, too: the path of the first one is another one's path as a whole.
        forM_ (concat (replicate 2 [("static/f", "static/f"), ("f", "f"), ("%66", "f"), ("sub/", "sub/index.html"), ("a%2541%20b/", "a%41 b/index.html")])) $
          \(path, text) -> get client ("/static/" <> path) >>= (`isBytes` text)
        forM_ [("sub?x", "./sub/?x"), ("a%2541%20b", "./a%2541%20b/")] $ \(path, location) -> do
          answer <- get client ("/static/" <> path)
          (answerStatus answer, header "location" answer) @?= (301, Just location)
        forM_ ["../f", "%2e%2e/f", ".hidden", "sub%2findex.html", "none"] $ \path -> statusOf client ("/static/" <> path) 404
        -- A page at the mounted root has its links below that, also once the page is in the cache.
        void (get client "/static/")
        when (rawOf "/static" [] == "/static") $ get client "/static" >>= \answer -> header "location" answer @?= Just "./static/"

counts :: Assertion
counts = withFolder $ \folder -> do
  forM_ [1 .. 50 :: Int] $ \i -> B.writeFile (folder </> show i) (filler 10000)
  withStatic defaultStaticSettings {staticCacheBytes = 200000} folder $ \static ->
    testWithApplication (pure (staticApp static)) $ \port -> withClient port $ \client -> do
      forM_ [1 .. 50 :: Int] $ \i -> get client ("/" <> C.pack (show i))
      -- The cache is full. A file that is asked for twice evicts nothing; the third time it is kept.
      once <- staticMetrics static
      _ <- get client "/50"
      twice <- staticMetrics static
      twice @?= once {cachedMisses = 51}
      forM_ [1 .. 11 :: Int] $ \_ -> get client "/50"
      figures <- staticMetrics static
      assertBool (show figures) (cachedBytes figures <= 200000 && cachedEntries figures <= 18 && cachedEntries figures >= 10)
      assertBool (show figures) (cachedHits figures >= 10 && cachedMisses once == 50 && cachedMisses figures == 52)
      -- The files that came first are still there.
      forM_ [1 .. 5 :: Int] $ \i -> get client ("/" <> C.pack (show i))
      later <- staticMetrics static
      assertBool (show later) (cachedMisses later <= cachedMisses figures + 1)

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
isBytes answer bytes = unless (answerBody answer == bytes) (assertFailure ("wrong body of " <> show (B.length (answerBody answer)) <> " bytes, status " <> show (answerStatus answer)))
