{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Static": texts that the server compresses itself (@staticCompress@).
module Spec.Compression (tests) where

import Client
import qualified Codec.Compression.GZip as Z
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (forConcurrently_)
import Control.Exception (bracket)
import Control.Monad (forM_, replicateM_, unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.List (nub)
import Data.Maybe (isJust)
import Data.Word (Word64)
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds)
import Weft.Http
import Weft.Static

tests :: Configuration -> TestTree
tests on =
  testGroup
    "compression"
    [ testOn on "the first answer is the file as it is, later ones are compressed; a range is one of the compressed bytes" . site id $ \folder _ port -> do
        B.writeFile (folder </> "f.txt") text
        withClient port $ \client -> do
          first <- accepting client "/f.txt" "gzip" []
          first `isBytes` text
          (header "content-encoding" first, header "vary" first) @?= (Nothing, Just "Accept-Encoding")
          compressedSoon client "/f.txt"
          whole <- accepting client "/f.txt" "gzip" []
          (header "content-encoding" whole, header "vary" whole) @?= (Just "gzip", Just "Accept-Encoding")
          decoded whole @?= text
          assertBool "hardly compressed" (B.length (answerBody whole) * 10 < B.length text)
          part <- accepting client "/f.txt" "gzip" ["Range: bytes=10-19"]
          answerBody part @?= B.take 10 (B.drop 10 (answerBody whole))
          tag <- maybe (assertFailure "no tag") pure (header "etag" whole)
          same <- accepting client "/f.txt" "gzip" ["If-None-Match: " <> tag]
          answerStatus same @?= 304
          plain <- get client "/f.txt"
          plain `isBytes` text
          assertBool "one tag for both" (header "etag" plain /= Just tag),
      testOn on "in each coding, other programs decode the contents: texts whose last piece is whole, short or the only one" . site id $ \folder _ port -> do
        let sizes = [1024, 16384, 16385, 32768, 100001, 1048576]
            contents n = B.take n (B.concat (zipWith (\i line -> C.pack (show (i * i `mod` 7919)) <> line) [1 :: Int ..] (replicate (n `div` 16) " of these lines\n")))
        forM_ sizes $ \n -> B.writeFile (folder </> (show n <> ".txt")) (contents n)
        forM_ ["br", "zstd", "gzip"] $ \coding -> forM_ sizes $ \n -> do
          let path = "/" <> C.pack (show n) <> ".txt"
          withClient port $ \client -> do
            compressedSoonIn coding client path
            answer <- accepting client path coding []
            (header "content-encoding" answer, header "content-length" answer) @?= (Just coding, Just (C.pack (show (B.length (answerBody answer)))))
            assertBool (show (coding, n, B.length (answerBody answer))) (B.length (answerBody answer) * 2 < n)
          -- "--compressed" makes curl decode what it gets.
          (code, out, err) <- readProcessWithExitCode "curl" ["-sS", "--noproxy", "*", "--max-time", "60", "--compressed", "-H", "Accept-Encoding: " <> C.unpack coding, "-o", folder </> "decoded", "-w", "%{size_download}", "http://127.0.0.1:" <> show port <> C.unpack path] ""
          assertEqual (show (coding, n, err)) ExitSuccess code
          assertBool (show (coding, n, out)) ((read out :: Int) < n)
          decodedByCurl <- B.readFile (folder </> "decoded")
          assertBool (show (coding, n)) (decodedByCurl == contents n),
      testOn on "the client's weights decide on the coding, and of equal ones brotli is before zstd and gzip" . site id $ \folder _ port -> do
        B.writeFile (folder </> "f.txt") text
        withClient port $ \client -> forM_ weights $ \(accepted, coding) -> do
          compressedSoonIn accepted client "/f.txt"
          eventually (show accepted) $ do
            answer <- accepting client "/f.txt" accepted []
            pure (header "content-encoding" answer == Just coding)
          -- No two codings have one tag.
          tags <- mapM (\c -> header "etag" <$> accepting client "/f.txt" c []) ["identity", coding]
          assertBool (show tags) (length (nub tags) == 2),
      testOn on "clients that accept a compressed file which is there get that, and others have one made" . site id $ \folder static port -> do
        B.writeFile (folder </> "f.txt") text
        B.writeFile (folder </> "f.txt.gz") (L.toStrict (Z.compress (L.fromStrict text)))
        withClient port $ \client -> do
          replicateM_ 5 $ do
            answer <- accepting client "/f.txt" "gzip, br, zstd" []
            header "content-encoding" answer @?= Just "gzip"
            decoded answer @?= text
            threadDelay 20000
          staticMetrics static >>= (@?= 1) . cachedEntries
          compressedSoonIn "br" client "/f.txt"
          answer <- accepting client "/f.txt" "br" []
          header "content-encoding" answer @?= Just "br",
      testOn on "neither a HEAD nor a client that prefers or can only read the file as it is has it compressed" . site id $ \folder static port -> do
        B.writeFile (folder </> "f.txt") text
        withClient port $ \client -> do
          forM_ ["identity", "gzip;q=0", "gzip;q=0, br;q=0, zstd;q=0, *", "deflate, identity;q=0.5", "gzip;q=0.5, identity", ""] $ \accepted -> do
            answer <- accepting client "/f.txt" accepted []
            assertEqual (show accepted) (200, Nothing) (answerStatus answer, header "content-encoding" answer)
          replicateM_ 3 $ do
            say client "HEAD /f.txt HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n"
            answer <- hearAnswerToHead client
            (header "content-encoding" answer, header "content-length" answer) @?= (Nothing, Just (C.pack (show (B.length text))))
          threadDelay 300000
          -- There is one entry, that of the file.
          staticMetrics static >>= (@?= 1) . cachedEntries
          first <- accepting client "/f.txt" "gzip" []
          header "content-encoding" first @?= Nothing
          compressedSoon client "/f.txt"
          -- Now HEAD gets the fields of a GET (RFC 9110, 9.3.2).
          whole <- accepting client "/f.txt" "gzip" []
          say client "HEAD /f.txt HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n"
          answer <- hearAnswerToHead client
          forM_ ["content-encoding", "content-length", "etag", "vary"] $ \name -> header name answer @?= header name whole,
      testOn on "Vary is in every answer about a file that may be compressed, before and after it is" . site id $ \folder _ port -> do
        B.writeFile (folder </> "f.txt") text
        B.writeFile (folder </> "picture.png") text
        withClient port $ \client -> do
          let each = forM_ [[], ["If-None-Match: *"], ["If-Match: \"other\""], ["Range: bytes=0-9"], ["Range: bytes=9999999-"], ["Range: bytes=0-1,5-6"]] $ \fields ->
                forM_ ["identity", "br;q=0.3", "gzip"] $ \accepted -> do
                  answer <- accepting client "/f.txt" accepted fields
                  assertEqual (show (fields, accepted, answerStatus answer)) (Just "Accept-Encoding") (header "vary" answer)
          each
          compressedSoon client "/f.txt"
          each
          picture <- accepting client "/picture.png" "gzip" []
          header "vary" picture @?= Nothing,
      testOn on "what is small, large, of another type, or gains nothing stays as it is" . site id $ \folder _ port -> do
        let others = [("small.txt", B.take 1000 text), ("huge.txt", B.concat (replicate 6 text)), ("noise.txt", noise), ("picture.png", text)]
        forM_ others $ \(name, bytes) -> B.writeFile (folder </> name) bytes
        B.writeFile (folder </> "f.txt") text
        withClient port $ \client -> do
          forM_ (others <> others) $ \(name, _) -> accepting client ("/" <> C.pack name) "gzip" []
          -- It was asked for last.
          compressedSoon client "/f.txt"
          forM_ others $ \(name, bytes) -> do
            answer <- accepting client ("/" <> C.pack name) "gzip" []
            assertEqual name Nothing (header "content-encoding" answer)
            answer `isBytes` bytes,
      testOn on "staticCompressTypes decides which media types are compressed" . site (\s -> s {staticCompressTypes = ["image/*", "*+json", "Application/X-Own"]}) $ \folder _ port -> do
        let compressible = ["a.bmp", "a.geojson", "a.own"]
            not' = ["a.txt", "a.json", "a.other"]
        forM_ (compressible <> not') $ \name -> B.writeFile (folder </> name) text
        withClient port $ \client -> do
          forM_ not' $ \name -> accepting client ("/" <> C.pack name) "gzip" [] >>= (@?= Nothing) . header "vary"
          forM_ compressible $ \name -> compressedSoon client ("/" <> C.pack name)
          forM_ not' $ \name -> accepting client ("/" <> C.pack name) "gzip" [] >>= (@?= Nothing) . header "content-encoding",
      patientOn on "no answer has the contents from before a change" . site (\s -> s {staticTrust = milliseconds 20}) $ \folder _ port ->
        withClient port $ \client -> forM_ [1 .. 4 :: Int] $ \i -> forM_ [2000, 300000] $ \n -> do
          -- All are of one length, and may have one time.
          let version = B.take n (B.concat (replicate n (C.pack (show i) <> " ")))
              path = "/" <> C.pack (show n) <> ".txt"
          B.writeFile (folder </> (show n <> ".txt")) version
          threadDelay 60000
          forM_ [1 .. 20 :: Int] $ \_ -> do
            answer <- accepting client path "gzip" []
            decoded answer @?= version
            threadDelay 2000,
      patientOn on "a file whose size decides its entity tag is compressed once its time is reliable" . site (\s -> s {staticTrust = milliseconds 20, staticCacheFile = 1000}) $ \folder _ port -> do
        B.writeFile (folder </> "f.txt") text
        withClient port $ \client -> do
          compressedSoon client "/f.txt"
          answer <- accepting client "/f.txt" "gzip" []
          decoded answer @?= text,
      patientOn on "texts that exceed the cache are all right, and the cache stays within its size" . site (\s -> s {staticCacheBytes = 400000}) $ \folder static port -> do
        let names = [1 .. 40 :: Int]
            contents i = B.take 40000 (B.concat (replicate 20000 (C.pack (show i) <> ",")))
        forM_ names $ \i -> B.writeFile (folder </> (show i <> ".txt")) (contents i)
        forConcurrently_ [0 .. 3] $ \k -> withClient port $ \client -> forM_ (concat (replicate 5 (drop (10 * k) names <> take (10 * k) names))) $ \i -> do
          answer <- accepting client ("/" <> C.pack (show i) <> ".txt") "gzip" []
          unless (decoded answer == contents i) (assertFailure ("wrong contents of " <> show i))
        figures <- staticMetrics static
        assertBool (show figures) (cachedBytes figures <= 400000),
      testOn on "a folder that is closed while texts of it wait to be compressed" . withFolder $ \folder -> do
        forM_ [1 .. 10 :: Int] $ \i -> B.writeFile (folder </> (show i <> ".txt")) (B.concat [text, text])
        before <- length <$> listDirectory "/proc/self/fd"
        withStatic (compressing defaultStaticSettings) folder $ \static -> testWithApplication (pure (staticApp static)) $ \port -> withClient port $ \client ->
          forM_ [1 .. 10 :: Int] $ \i -> accepting client ("/" <> C.pack (show i) <> ".txt") "gzip" []
        eventually "the descriptors are closed" ((<= before + 4) . length <$> listDirectory "/proc/self/fd")
    ]
  where
    text = B.concat (replicate 10000 "compress this text ")
    weights =
      [ ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "br"),
        ("gzip, zstd", "zstd"),
        ("br;q=0.5, zstd;q=0.6, gzip;q=0.4", "zstd"),
        ("br;q=0.5, gzip", "gzip"),
        ("br;q=0, zstd;q=0, *", "gzip"),
        ("*", "br")
      ]
    -- A linear congruential generator.
    noise = fst (B.unfoldrN 3000 (\x -> Just (fromIntegral (x `div` 65536), (x * 1103515245 + 12345) `mod` 2147483648)) (1 :: Word64))

-- | Request a path with this @Accept-Encoding@, and other fields.
accepting :: Client -> ByteString -> ByteString -> [ByteString] -> IO Answer
accepting client path accepted fields = ask client path (("Accept-Encoding: " <> accepted) : fields) >> hearAnswer client

-- | Ask for a path until it comes compressed.
compressedSoon :: Client -> ByteString -> Assertion
compressedSoon = compressedSoonIn "gzip"

-- | Ask for a path with this @Accept-Encoding@ until it comes compressed.
compressedSoonIn :: ByteString -> Client -> ByteString -> Assertion
compressedSoonIn accepted client path = eventually (show (path, accepted) <> " is compressed") $ do
  answer <- accepting client path accepted []
  answerStatus answer @?= 200
  let done = isJust (header "content-encoding" answer)
  done <$ unless done (threadDelay 10000)

-- | The contents of an answer, decompressed if need be.
decoded :: Answer -> ByteString
decoded answer
  | header "content-encoding" answer == Just "gzip" = L.toStrict (Z.decompress (L.fromStrict (answerBody answer)))
  | otherwise = answerBody answer

compressing :: StaticSettings -> StaticSettings
compressing s = s {staticCompress = True, staticTypes = [("own", "application/x-own")]}

site :: (StaticSettings -> StaticSettings) -> (FilePath -> Static -> Int -> IO a) -> IO a
site change act = withFolder $ \folder ->
  withStatic (change (compressing defaultStaticSettings)) folder $ \static -> testWithApplication (pure (staticApp static)) (act folder static)

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removePathForcibly
  where
    make = getTemporaryDirectory >>= \dir -> mkdtemp (dir </> "weft-compression-")

isBytes :: Answer -> ByteString -> Assertion
isBytes answer bytes = when (answerBody answer /= bytes) (assertFailure ("wrong body of " <> show (B.length (answerBody answer)) <> " bytes, status " <> show (answerStatus answer)))
