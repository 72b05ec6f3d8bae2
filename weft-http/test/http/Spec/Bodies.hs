{-# LANGUAGE OverloadedStrings #-}

-- |
-- Bodies of requests and responses: large ones, and in pieces.
module Spec.Bodies (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (forkIO, newEmptyMVar, putMVar, takeMVar, threadDelay)
import Control.Exception (IOException, SomeException, bracket, try)
import Control.Monad (forM, forM_, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString, stringUtf8)
import Data.ByteString.Builder.Extra (byteStringInsert)
import qualified Data.ByteString.Char8 as C
import qualified Data.CaseInsensitive as CI
import Data.IORef
import Data.List (intercalate, nub)
import Network.HTTP.Types (status200)
import Network.Wai (getRequestBodyChunk, rawPathInfo, rawQueryString, responseBuilder, responseStream)
import Numeric (showHex)
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hClose, openBinaryTempFile)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http (defaultSettings, setMaximumBodyFlush)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "bodies"
    [ testOn on "a response of 8 MB arrives whole" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          answer <- get client "/large?n=8000000"
          assertBool "the bytes" (answerBody answer == filler 8000000),
      testOn on "a client that begins to read late receives the whole body" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          ask client "/large?n=6000000" []
          threadDelay 300000
          answer <- hearAnswer client
          assertBool "the bytes" (answerBody answer == filler 6000000),
      testOn on "a response in chunks" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          answer <- get client "/chunks"
          answerBody answer @?= C.pack (concatMap (\i -> show i <> "\n") [1 .. 100 :: Int]),
      testOn on "bodies of parts of many sizes, from builders and from streams" . withTestServer $ \_ port ->
        withClient port $ \client ->
          forM_ [(how, n) | n <- [0 .. 60 :: Int], how <- ["builder", "declared", "stream"]] $ \(how, n) -> do
            answer <- get client (C.concat ["/mixed/", how, "?n=", C.pack (show n)])
            assertBool (show (how, n)) (answerBody answer == B.concat (partsOf n)),
      testOn on "bodies of parts of many sizes, to clients of HTTP/1.0" . withTestServer $ \_ port ->
        forM_ [(how, n) | n <- [3, 13 .. 60 :: Int], how <- ["builder", "declared", "stream"]] $ \(how, n) ->
          withClient port $ \client -> do
            say client (C.concat ["GET /mixed/", how, "?n=", C.pack (show n), " HTTP/1.0\r\n\r\n"])
            bytes <- hearEnd client
            assertBool (show (how, n)) (B.drop 4 (snd (B.breakSubstring "\r\n\r\n" bytes)) == B.concat (partsOf n)),
      testOn on "one string as a body: complete with the declared length; shorter or longer, it never looks complete" . withQuietServer defaultSettings oneString $ \_ port ->
        -- Beyond 128 KiB, bytes are sent before the server sees that the body is too long.
        forM_ [(what, n) | n <- [5000, 16384, 131072, 131073, 300000 :: Int], what <- ["/nothing", "/empty", "/less"] <> [more | n < 131072, more <- ["/more", "/large"]]] $ \(what, n) ->
          withClient port $ \client -> do
            let asking = ask client (C.concat [what, "?", C.pack (show n)])
            if what `elem` ["/nothing", "/empty"]
              then forM_ [1, 2 :: Int] $ \_ -> do
                answer <- asking [] >> hearAnswer client
                assertBool (show (what, n)) (answerBody answer == filler n)
              else do
                -- The head may have been sent, but no client may take this for a complete response.
                bytes <- asking ["Connection: close"] >> hearEndOrReset client
                let (answered, body) = B.breakSubstring "\r\n\r\n" bytes
                assertBool (show (what, n, answered)) (not ("HTTP/1.1 200" `B.isPrefixOf` answered) || B.drop 4 body /= filler n),
      testOn on "uploads of many sizes, each followed by another request" . withTestServer $ \_ port ->
        withClient port $ \client ->
          forM_ [n + d | n <- [16100, 16384, 32768, 65536, 81920, 131072, 200000], d <- [-200, -1, 0, 1, 150]] $ \n -> do
            say client (C.concat ["POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: ", C.pack (show n), "\r\n\r\n", filler n, "GET /hello HTTP/1.1\r\nHost: test\r\n\r\n"])
            answer <- hearAnswer client
            assertBool (show n) (answerBody answer == filler n)
            next <- hearAnswer client
            answerBody next @?= "hello",
      testOn on "curl uploads with a length" . withTestServer $ \_ port ->
        withFileOf (filler 5000000) $ \path ->
          curl ["--data-binary", "@" <> path, url port "/count"] >>= (@?= "5000000"),
      testOn on "curl uploads in chunks" . withTestServer $ \_ port ->
        withFileOf (filler 3000000) $ \path ->
          curl ["-H", "Transfer-Encoding: chunked", "--data-binary", "@" <> path, url port "/count"] >>= (@?= "3000000"),
      testOn on "a chunked request in segments of seven bytes" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          let bytes = "POST /echo HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n"
          forM_ (pieces 7 bytes) (\piece -> say client piece >> threadDelay 2000)
          answer <- hearAnswer client
          answerBody answer @?= "hello world"
          next <- get client "/hello"
          answerBody next @?= "hello",
      testOn on "a client that expects a 100 (Continue) gets it" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client "POST /echo HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n"
          interim <- hearAnswer client
          answerStatus interim @?= 100
          say client "hello"
          answer <- hearAnswer client
          answerBody answer @?= "hello",
      testOn on "a response that begins before the request has ended" . withTestServer $ \_ port ->
        withClient port $ \client -> do
          say client "POST /both HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 10\r\n\r\nhello"
          begun <- hear client
          assertBool (show begun) ("HTTP/1.1 200" `B.isPrefixOf` begun)
          say client "world"
          rest <- hearEnd client
          assertBool (show rest) ("10" `B.isInfixOf` (begun <> rest)),
      testOn on "a response is not lost if the request's body is not read" . withTestServer $ \server port -> do
        withClient port $ \client -> do
          say client "POST /ignore HTTP/1.1\r\nHost: test\r\nContent-Length: 1000000\r\n\r\n"
          say client (filler 60000)
          threadDelay 100000
          answer <- hearAnswer client
          (answerStatus answer, answerBody answer) @?= (413, "too large")
        noConnections server,
      testOn on "a thread that an application leaves reading takes nothing of the next request" . withQuietServer defaultSettings leftReading $ \server port -> do
        forM_ [0 .. 199 :: Int] $ \i -> withClient port $ \client -> do
          let cut = i * 15
          say client "POST /left HTTP/1.1\r\nHost: test\r\nContent-Length: 3000\r\n\r\n"
          say client (B.take cut (filler 3000))
          when (even i) (threadDelay 500)
          say client (B.drop cut (filler 3000) <> "GET /next HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n")
          -- The second request is answered, or the connection has ended after the first.
          heard <- hearEndOrReset client
          assertBool (show (i, heard)) (any (`B.isSuffixOf` heard) ["early", "next"])
        noConnections server,
      testOn on "a response to a request whose end has not come says whether the connection goes on" . withQuietServer defaultSettings beforeTheEnd $ \server port -> do
        -- The client sends the second part of the body, and another request, when it has the response.
        let cases = [(path, framing, size) | path <- ["/unread", "/elsewhere"], framing <- ["length", "chunks"], size <- [10, 40000, 60000, 80000, 400000]]
        told <- forM cases $ \(path, framing, size) -> withClient port $ \client -> do
          let (field, body)
                | framing == "chunks" = ("Transfer-Encoding: chunked", B.concat [C.pack (showHex (B.length p) "\r\n") <> p <> "\r\n" | p <- pieces 9000 (filler size)] <> "0\r\n\r\n")
                | otherwise = ("Content-Length: " <> C.pack (show size), filler size)
          say client ("POST " <> path <> " HTTP/1.1\r\nHost: test\r\n" <> field <> "\r\n\r\n" <> B.take 8 body)
          answer <- hearAnswer client
          answerBody answer @?= path
          let closes = header "connection" answer == Just "close"
          sent <- try (say client (B.drop 8 body <> "GET /next HTTP/1.1\r\nHost: test\r\n\r\n"))
          next <- try (hearAnswer client)
          case (closes, sent :: Either IOException (), next :: Either SomeException Answer) of
            (False, Right (), Right a) -> answerBody a @?= "/next"
            (True, _, Left _) -> pure ()
            found -> assertFailure (show ((path, framing :: ByteString, size), found))
          pure ((path, framing, size), closes)
        -- A short rest whose length is known is passed over.
        forM_ [10, 40000, 60000] $ \size -> lookup ("/unread", "length", size) told @?= Just False
        noConnections server,
      testOn on "a response to a request in chunks that have all come, and that the application does not read, keeps the connection" . withTestServer $ \server port -> do
        withClient port $ \client -> forM_ [(1 :: Int) .. 3] $ \_ -> do
          say client "POST /hello HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n3\r\nabc\r\n0\r\n\r\n"
          answer <- hearAnswer client
          (answerStatus answer, header "connection" answer) @?= (200, Nothing)
        noConnections server,
      testOn on "after a timeout of the application within a chunked body, the rest of the body is not taken for a request" . withQuietServer (setMaximumBodyFlush Nothing defaultSettings) impatient $ \server port -> do
        withClient port $ \client -> do
          say client "POST /first HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n2b\r\n"
          first <- hearAnswer client
          answerBody first @?= "/first"
          -- The 43 bytes of the chunk look like the end of the body and another request.
          say client "0\r\n\r\nGET /inside HTTP/1.1\r\nHost: test12\r\n\r\n\r\n0\r\n\r\n"
          next <- get client "/next"
          answerBody next @?= "/next"
        noConnections server,
      testOn on "a response field whose name is not a token gives a 500" . withQuietServer defaultSettings named $ \_ port ->
        withClient port $ \client ->
          forM_ (zip [0 :: Int ..] names) $ \(i, name) -> do
            answer <- get client ("/" <> C.pack (show i))
            (name, answerStatus answer) @?= (name, if isToken name then 200 else 500),
      testOn on "a write that the application makes after the end of its streamed response throws, and sends nothing" $ do
        kept <- newIORef (\_ -> pure (), pure ())
        withQuietServer defaultSettings (keeping kept) $ \_ port -> withClient port $ \client -> do
          forM_ ["/whole", "/length", "/throws"] $ \path -> do
            first <- get client path
            answerStatus first @?= (if path == "/throws" then 500 else 200)
            next <- get client "/next"
            (path, answerBody next) @?= (path, "user error (Weft.Http: this response has ended)"),
      testOn on "responseRaw gives the application the connection's bytes" . withTestServer $ \server port -> do
        withClient port $ \client -> do
          ask client "/raw" ["Upgrade: talk", "Connection: upgrade"]
          interim <- hearAnswerToHead client
          answerStatus interim @?= 101
          forM_ ["one", "two", "bye"] $ \word -> say client word >> hear client >>= (@?= word)
          hearEnd client >>= (@?= "")
        noConnections server,
      testOn on "responseRaw gives the application what came with the head: the body as it was sent, and what follows it" . withTestServer $ \server port -> do
        let requests =
              [ ("Content-Length: 5", "hello", "more"),
                ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n", "more"),
                ("Content-Length: 10", "hello", ""),
                ("Upgrade: talk", "", "more")
              ]
        forM_ requests $ \(framing, body, further) ->
          withClient port $ \client -> do
            say client (B.concat ["POST /raw HTTP/1.1\r\nHost: test\r\n", framing, "\r\n\r\n", body, further])
            interim <- hearAnswerToHead client
            answerStatus interim @?= 101
            let expected = body <> further
            heardBytes client (B.length expected) >>= (@?= expected)
            say client "bye"
            hearEnd client >>= (@?= "bye")
        noConnections server
    ]
  where
    url port path = "http://127.0.0.1:" <> show port <> path
    -- At least the given number of bytes, or all bytes up to the end of the stream.
    heardBytes client n
      | n <= 0 = pure B.empty
      | otherwise = hear client >>= \bytes -> if B.null bytes then pure B.empty else (bytes <>) <$> heardBytes client (n - B.length bytes)
    leftReading request respond
      | rawPathInfo request == "/next" = respond (responseBuilder status200 [] "next")
      | otherwise = do
        begun <- newEmptyMVar
        _ <- forkIO (putMVar begun () >> void (try (getRequestBodyChunk request) :: IO (Either IOException B.ByteString)))
        takeMVar begun
        respond (responseBuilder status200 [] "early")
    -- The path is the position of a name.
    named request respond = respond (responseBuilder status200 [(CI.mk (names !! maybe 0 fst (C.readInt (B.drop 1 (rawPathInfo request)))), "v")] "body")
    -- Each byte in names of several lengths, at several places.
    names = ["", "Bad-Name: x", "Content-Length "] <> [B.replicate at 120 <> B.cons byte (B.replicate (n - at - 1) 120) | n <- [1, 3, 6, 9, 20], byte <- [0 .. 255], let at = fromIntegral byte `mod` n]
    isToken name = not (B.null name) && C.all (`elem` "!#$%&'*+-.^_`|~" <> ['0' .. '9'] <> ['a' .. 'z'] <> ['A' .. 'Z']) name
    -- Responds without having read, or while another thread reads.
    beforeTheEnd request respond = do
      when (rawPathInfo request == "/elsewhere") $ do
        begun <- newEmptyMVar
        let readOn = getRequestBodyChunk request >>= \bytes -> if B.null bytes then pure () else readOn
        _ <- forkIO (void (try (getRequestBodyChunk request >> putMVar begun () >> readOn) :: IO (Either SomeException ())))
        takeMVar begun
        -- The other thread waits for more.
        threadDelay 20000
      respond (responseBuilder status200 [] (byteString (rawPathInfo request)))
    -- Keeps the functions of a streamed response, and calls them during another request.
    keeping kept request respond = case rawPathInfo request of
      "/whole" -> respond (responseStream status200 [] (curry (writeIORef kept)))
      "/length" -> respond (responseStream status200 [("Content-Length", "2")] (\write flush -> writeIORef kept (write, flush) >> write "ok"))
      "/throws" -> respond (responseStream status200 [] (\write flush -> writeIORef kept (write, flush) >> ioError (userError "thrown")))
      _ -> do
        (write, flush) <- readIORef kept
        results <- mapM try [write "stray", flush]
        respond (responseBuilder status200 [] (stringUtf8 (intercalate ", " (nub [either (\e -> show (e :: IOException)) (const "written") r | r <- results]))))
    impatient request respond = do
      _ <- timeout 200000 (getRequestBodyChunk request)
      respond (responseBuilder status200 [] (byteString (rawPathInfo request)))
    -- The path selects what follows the string, the query its length.
    oneString request respond = respond (responseBuilder status200 [("Content-Length", C.pack (show n))] body)
      where
        n = maybe 0 fst (C.readInt (B.drop 1 (rawQueryString request)))
        body = case rawPathInfo request of
          "/nothing" -> byteStringInsert (filler n)
          "/empty" -> byteStringInsert (filler n) <> byteStringInsert "" <> byteString ""
          "/more" -> byteStringInsert (filler n) <> byteString "x"
          "/large" -> byteStringInsert (filler n) <> byteStringInsert (filler 40000)
          _ -> byteStringInsert (filler (n - 1))
    pieces n bytes = if B.null bytes then [] else B.take n bytes : pieces n (B.drop n bytes)

-- | Run an action with a file that has these bytes.
withFileOf :: B.ByteString -> (FilePath -> IO a) -> IO a
withFileOf bytes = bracket create removeFile
  where
    create = do
      folder <- getTemporaryDirectory
      (path, h) <- openBinaryTempFile folder "weft-upload"
      B.hPut h bytes
      path <$ hClose h
