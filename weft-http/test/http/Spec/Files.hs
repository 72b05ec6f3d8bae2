{-# LANGUAGE OverloadedStrings #-}

-- |
-- Responses from files: through the write buffer, by the kernel, and in parts.
module Spec.Files (tests) where

import Application (filler, withQuietServer)
import Client
import Configurations
import Control.Exception (bracket)
import Control.Monad (forM_)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Network.HTTP.Types (status200)
import Network.Wai
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hClose, openBinaryTempFile)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http

tests :: Configuration -> TestTree
tests on =
  testGroup
    "files"
    [ testOn on "of every size" $
        mapM_ whole [0, 1, 100, 16000, 16384, 16385, 131072, 400000, 5000000],
      testOn on "over and over on one connection" . withFile 20000 $ \client ->
        mapM_ (\_ -> (`isBytes` filler 20000) =<< get client "/") [1 .. 20 :: Int],
      testOn on "with a head that needs more than the write buffer" . withFile 50000 $ \client -> do
        answer <- get client "/wordy"
        fmap B.length (header "x-words" answer) @?= Just 30000
        answer `isBytes` filler 50000,
      testOn on "ranges" . withFile 1000000 $ \client -> do
        part client "0-0" >>= isPart 0 1
        part client "999999-" >>= isPart 999999 1
        part client "-10" >>= isPart 999990 10
        part client "5000-304999" >>= isPart 5000 300000
        part client "100-99999999" >>= isPart 100 999900
        get client "/" >>= (`isBytes` filler 1000000),
      testOn on "conditions, in the order of RFC 9110, 13.2.2" . withFile 1000 $ \client -> do
        first <- get client "/"
        date <- maybe (assertFailure "no date") pure (header "last-modified" first)
        let past = "Sun, 06 Nov 1994 08:49:37 GMT"
            with path fields status = do
              ask client path fields
              answer <- (if status == 304 then hearAnswerToHead else hearAnswer) client
              assertEqual (show (path, fields)) status (answerStatus answer)
        -- No tag: none is matched.
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
        -- The application's tag.
        forM_ [("/strong", 206, 200), ("/weak", 200, 412)] $ \(path, part', match) -> do
          with path ["If-Match: \"a\""] match
          with path ["If-Match: \"b\""] 412
          with path ["If-None-Match: \"b\", W/\"a\""] 304
          with path ["If-Range: \"a\"", "Range: bytes=0-9"] part'
        say client "HEAD / HTTP/1.1\r\nHost: test\r\nRange: bytes=0-9\r\n\r\n"
        answer <- hearAnswerToHead client
        (answerStatus answer, header "content-length" answer) @?= (200, Just "1000"),
      testOn on "curl resumes a download" . withFilePort id 700000 $ \port -> do
        out <- curl ["-C", "600000", "-o", "/dev/null", "-w", "%{http_code} %{size_download}", url port]
        out @?= "206 100000",
      testOn on "a part that the application chooses" . withFile 200000 $ \client -> do
        answer <- get client "/part"
        answerBody answer @?= B.take 150000 (B.drop 10 (filler 200000)),
      testOn on "HEAD" . withFile 123456 $ \client -> do
        say client "HEAD / HTTP/1.1\r\nHost: test\r\n\r\n"
        answer <- hearAnswerToHead client
        header "content-length" answer @?= Just "123456"
        get client "/" >>= (`isBytes` filler 123456),
      testOn on "a file that is not there is a 404" . withFile 1 $ \client -> do
        answer <- get client "/missing"
        answerStatus answer @?= 404
        get client "/" >>= (`isBytes` filler 1),
      testOn on "a file that is shorter than was said ends the connection" . withFile 1000 $ \client -> do
        ask client "/longer" []
        answer <- hearAnswerToHead client
        answerStatus answer @?= 200
        rest <- hearEnd client
        assertBool "no more than there is" (B.length rest <= 1000)
    ]
  where
    whole n = withFile n (\client -> get client "/" >>= (`isBytes` filler n))
    url port = "http://127.0.0.1:" <> show port <> "/"
    part client range = ask client "/" ["Range: bytes=" <> range] >> hearAnswer client
    isPart from n answer = do
      answerStatus answer @?= 206
      assertBool "the part" (answerBody answer == B.take n (B.drop from (filler 1000000)))

isBytes :: Answer -> ByteString -> Assertion
isBytes answer expected = do
  (answerStatus answer, B.length (answerBody answer)) @?= (200, B.length expected)
  assertBool "the bytes" (answerBody answer == expected)

-- | A client of a server that has a file of that many bytes.
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

files :: FilePath -> Application
files path req respond = case rawPathInfo req of
  "/part" -> respond (responseFile status200 [] path (Just (FilePart 10 150000 200000)))
  "/longer" -> respond (responseFile status200 [] path (Just (FilePart 0 5000 5000)))
  "/missing" -> respond (responseFile status200 [] (path <> ".not") Nothing)
  "/strong" -> respond (responseFile status200 [("ETag", "\"a\"")] path Nothing)
  "/weak" -> respond (responseFile status200 [("ETag", "W/\"a\"")] path Nothing)
  "/wordy" -> respond (responseFile status200 [("X-Words", C.replicate 30000 'w')] path Nothing)
  _ -> respond (responseFile status200 [] path Nothing)
