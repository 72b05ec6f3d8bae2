{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Static": listings of folders that are kept, and show what has changed.
module Spec.Listings (tests) where

import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Exception (bracket)
import Control.Monad (forM_, unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Maybe (isJust)
import System.Directory
import System.FilePath ((</>))
import System.Posix.Files (setFileTimes)
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http
import Weft.Static

tests :: Configuration -> TestTree
tests on =
  testGroup
    "listings"
    [ testOn on "a listing has an entity tag, by which it is not sent again; dates do not count" . site id $ \folder _ port -> do
        createDirectory (folder </> "d")
        B.writeFile (folder </> "d" </> "f") "x"
        withClient port $ \client -> do
          pages <- mapM (listed client []) ["text/html", "application/json"]
          tags <- mapM (maybe (assertFailure "no tag") pure . header "etag") pages
          assertBool "one tag for both" (and (zipWith (/=) tags (drop 1 tags)))
          forM_ (zip3 ["text/html", "application/json"] tags pages) $ \(accepted, tag, page) -> do
            (header "vary" page, header "cache-control" page, header "last-modified" page) @?= (Just "Accept", Just "no-cache", Nothing)
            same <- listed client ["If-None-Match: " <> tag] accepted
            (answerStatus same, header "etag" same, header "vary" same, answerBody same) @?= (304, Just tag, Just "Accept", "")
            forM_ ["If-Modified-Since: Fri, 01 Jan 2038 00:00:00 GMT", "If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT", "If-None-Match: \"other\""] $ \field -> do
              answer <- listed client [field] accepted
              assertEqual (show field) (200, answerBody page) (answerStatus answer, answerBody answer)
            say client ("HEAD /d/ HTTP/1.1\r\nHost: test\r\nAccept: " <> accepted <> "\r\n\r\n")
            answer <- hearAnswerToHead client
            forM_ ["etag", "content-length", "content-type", "vary"] $ \name -> header name answer @?= header name page,
      testOn on "a listing is kept for the time of staticTrust" . site (\s -> s {staticTrust = seconds 600}) $ \folder _ port -> do
        createDirectory (folder </> "d")
        withClient port $ \client -> do
          before <- listed client [] "text/html"
          B.writeFile (folder </> "d" </> "later") "x"
          after' <- listed client [] "text/html"
          answerBody after' @?= answerBody before
          -- The other form was not asked for before.
          json <- listed client [] "application/json"
          assertBool (show json) ("later" `B.isInfixOf` answerBody json),
      patientOn on "what changes in a folder shows, whatever the times of the folder and of its files say" . site id $ \folder _ port -> do
        createDirectory (folder </> "d")
        let file name = folder </> "d" </> name
            shows' client part = forM_ ["text/html", "application/json"] $ \accepted -> do
              threadDelay 60000
              answer <- listed client [] accepted
              assertBool (show (accepted, part, answerBody answer)) (part `B.isInfixOf` answerBody answer)
            lacks client part = do
              threadDelay 60000
              answer <- listed client [] "text/html"
              assertBool (show (part, answerBody answer)) (not (part `B.isInfixOf` answerBody answer))
        withClient port $ \client -> do
          forM_ [1 .. 5 :: Int] $ \i -> do
            -- The folder's time does not change with the size of a file, whose own time stays the same too.
            B.writeFile (file "f") (B.replicate (10000 + i) 1)
            setFileTimes (file "f") 1000000000 1000000000
            shows' client (C.pack (show (10000 + i)))
            B.writeFile (file ("new" <> show i)) ""
            shows' client (C.pack ("new" <> show i))
            removeFile (file ("new" <> show i))
            lacks client (C.pack ("new" <> show i))
          setFileTimes (file "f") 1100000000 1100000000
          shows' client "Tue, 09 Nov 2004"
          renameFile (file "f") (file "g")
          lacks client ">f<"
          shows' client "g"
          removeFile (file "g")
          createDirectory (file "g")
          shows' client "g"
          page <- listed client [] "text/html"
          assertBool "a folder" ("g/</a>" `B.isInfixOf` answerBody page)
          B.writeFile (file "index.html") "index"
          threadDelay 60000
          get client "/d/" >>= (@?= "index") . answerBody
          removeFile (file "index.html")
          lacks client "index"
          removeDirectoryRecursive (folder </> "d")
          threadDelay 60000
          get client "/d/" >>= (@?= 404) . answerStatus,
      testOn on "a folder named like the other form of a listing" . site id $ \folder _ port -> do
        forM_ ["json", "html", "json/a", "a"] $ \name -> createDirectory (folder </> name) >> B.writeFile (folder </> name </> "file") "x"
        withClient port $ \client -> forM_ [1, 2 :: Int] $ \_ -> forM_ ["/json/", "/html/", "/json/a/", "/a/", "/"] $ \path -> forM_ ["text/html", "application/json"] $ \accepted -> do
          ask client path ["Accept: " <> accepted]
          answer <- hearAnswer client
          assertEqual (show path) (Just (accepted <> "; charset=utf-8")) (header "content-type" answer)
          unless (accepted == "application/json") (assertBool (show answer) (("<title>" <> path <> "</title>") `B.isInfixOf` answerBody answer)),
      testOn on "listings of many folders stay within the size of the cache" . site (\s -> s {staticCacheBytes = 100000}) $ \folder static port -> do
        forM_ [1 .. 60 :: Int] $ \i -> createDirectory (folder </> show i) >> forM_ [1 .. i] (\k -> B.writeFile (folder </> show i </> show k) "")
        withClient port $ \client -> do
          forM_ (concat (replicate 3 [1 .. 60 :: Int])) $ \i -> do
            answer <- get client ("/" <> C.pack (show i) <> "/")
            assertBool (show i) ((">" <> C.pack (show i) <> "</a>") `B.isInfixOf` answerBody answer)
          figures <- staticMetrics static
          assertBool (show figures) (cachedBytes figures <= 100000 && cachedEntries figures > 0),
      testOn on "a listing is compressed as a text is" . site (\s -> s {staticCompress = True}) $ \folder _ port -> do
        createDirectory (folder </> "d")
        forM_ [1 .. 50 :: Int] $ \i -> B.writeFile (folder </> "d" </> show i) ""
        withClient port $ \client -> eventually "a compressed listing" $ do
          answer <- listed client ["Accept-Encoding: gzip"] "text/html"
          header "vary" answer @?= Just "Accept, Accept-Encoding"
          pure (isJust (header "content-encoding" answer))
    ]

-- | The listing of @\/d\/@ as this media type, with other fields of the request.
listed :: Client -> [ByteString] -> ByteString -> IO Answer
listed client fields accepted = ask client "/d/" (("Accept: " <> accepted) : fields) >> hearAnswer client

site :: (StaticSettings -> StaticSettings) -> (FilePath -> Static -> Int -> IO a) -> IO a
site change act = withFolder $ \folder ->
  withStatic (change defaultStaticSettings {staticListing = True, staticTrust = milliseconds 20}) folder $ \static -> testWithApplication (pure (staticApp static)) (act folder static)

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removePathForcibly
  where
    make = getTemporaryDirectory >>= \dir -> mkdtemp (dir </> "weft-listings-")
