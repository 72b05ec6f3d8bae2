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
import Data.Maybe (isJust)
import Data.Word (Word64)
import System.Directory
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
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
      testOn on "neither a HEAD nor a client that prefers or can only read the file as it is has it compressed" . site id $ \folder static port -> do
        B.writeFile (folder </> "f.txt") text
        withClient port $ \client -> do
          forM_ ["identity", "gzip;q=0", "gzip;q=0, *", "deflate, identity;q=0.5", "gzip;q=0.5, identity", ""] $ \accepted -> do
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
      testOn on "no answer has the contents from before a change" . site (\s -> s {staticTrust = milliseconds 20}) $ \folder _ port ->
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
      testOn on "a file whose size decides its entity tag is compressed once its time is reliable" . site (\s -> s {staticTrust = milliseconds 20, staticCacheFile = 1000}) $ \folder _ port -> do
        B.writeFile (folder </> "f.txt") text
        withClient port $ \client -> do
          compressedSoon client "/f.txt"
          answer <- accepting client "/f.txt" "gzip" []
          decoded answer @?= text,
      testOn on "texts that exceed the cache are all right, and the cache stays within its size" . site (\s -> s {staticCacheBytes = 400000}) $ \folder static port -> do
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
    -- A linear congruential generator.
    noise = fst (B.unfoldrN 3000 (\x -> Just (fromIntegral (x `div` 65536), (x * 1103515245 + 12345) `mod` 2147483648)) (1 :: Word64))

-- | Request a path with this @Accept-Encoding@, and other fields.
accepting :: Client -> ByteString -> ByteString -> [ByteString] -> IO Answer
accepting client path accepted fields = ask client path (("Accept-Encoding: " <> accepted) : fields) >> hearAnswer client

-- | Ask for a path until it comes compressed.
compressedSoon :: Client -> ByteString -> Assertion
compressedSoon client path = eventually (show path <> " is compressed") $ do
  answer <- accepting client path "gzip" []
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
