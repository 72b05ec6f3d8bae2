{-# LANGUAGE OverloadedStrings #-}

-- |
-- Access logs: the contents of a line, and that faults of the log do not affect requests.
module Spec.Logs (tests) where

import Application (portOf)
import Client
import Configurations (Configuration, patientOn, testOn)
import Control.Concurrent.Async (concurrently_, forConcurrently_)
import Control.Concurrent.MVar
import Control.Exception (bracket, try)
import Control.Monad (forM_, join, replicateM_, void, when)
import Data.Aeson (Value (..), decodeStrict')
import qualified Data.Aeson.KeyMap as K
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Maybe (mapMaybe)
import Data.String (fromString)
import Data.Text (Text)
import Foreign.C.Types (CInt (..))
import Network.HTTP.Types
import Network.Wai
import System.Directory
import System.FilePath ((</>))
import System.IO (BufferMode (NoBuffering), Handle, IOMode (ReadWriteMode), hSetBuffering, withFile)
import System.IO.Error (isDoesNotExistError, isFullError)
import System.Posix.Files (createNamedPipe, fileMode, getFileStatus)
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.AccessLog
import Weft.Exchange (Exchange (..))
import Weft.Http
import Weft.Socket (SockAddr (..), tupleToHostAddress, tupleToHostAddress6)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "access log"
    [ testOn on "a line in the combined format" . logged id $ \file port -> do
        _ <- withClient port $ \client -> ask client "/hello?q=1" ["User-Agent: me", "Referer: http://there/"] >> hearAnswer client
        pure $ do
          [line] <- C.lines <$> B.readFile file
          let (front, rest) = B.breakSubstring "] " line
          assertBool (show line) ("127.0.0.1 - - [" `B.isPrefixOf` front && " +0000" `B.isSuffixOf` front)
          rest @?= "] \"GET /hello?q=1 HTTP/1.1\" 200 5 \"http://there/\" \"me\""
          mode <- fileMode <$> getFileStatus file
          mode `mod` 0o1000 @?= 0o640,
      testOn on "a line of JSON" . logged json $ \file port -> do
        _ <- withClient port $ \client -> ask client "/chunks" ["User-Agent: \"\\\255"] >> hearAnswer client
        pure $ do
          [object] <- objects file
          map (`K.lookup` object) ["peer", "user", "host", "method", "target", "version", "status", "bytes", "referer", "aborted"]
            @?= map Just [String "127.0.0.1", Null, String "test", String "GET", String "/chunks", String "HTTP/1.1", Number 200, Number 292, Null, Bool False]
          K.lookup "agent" object @?= Just (String "\"\\\255")
          assertBool (show object) (case K.lookup "seconds" object of Just (Number s) -> s >= 0 && s < 60; _ -> False),
      testOn on "the user of basic authentication" . withFolder $ \folder ->
        forM_ users $ \(value, combined, object) -> do
          let file = folder </> "log"
              line format = do
                withAccessLog defaultLogSettings {logPath = file, logFormat = format} $ \accessLog ->
                  logExchange accessLog defaultRequest {requestHeaders = [("Host", "h"), ("Authorization", value)]} (Exchange 401 Nothing mempty False)
                B.readFile file <* removeFile file
          text <- line Combined
          (value, take 3 (C.words text)) @?= (value, ["0.0.0.0", "-", combined])
          found <- line Json
          (value, fmap (K.lookup "user") (decodeStrict' found)) @?= (value, Just (Just (maybe Null String object))),
      testOn on "bytes that a client sends cannot end a line or a field" . logged id $ \file port -> do
        void . withClient port $ \client -> ask client "/\"x\\%0A\200" ["User-Agent: a\"b\\c\195\164"] >> hearAnswer client
        pure $ do
          [line] <- C.lines <$> B.readFile file
          snd (B.breakSubstring "] " line)
            @?= "] \"GET /\\x22x\\x5C%0A\\xC8 HTTP/1.1\" 404 8 \"-\" \"a\\x22b\\x5Cc\\xC3\\xA4\"",
      testOn on "long fields are cut off in the log" . logged json $ \file port -> do
        void . withClient port $ \client -> ask client ("/" <> B.replicate 20000 34) ["User-Agent: " <> B.replicate 9000 34] >> hearAnswer client
        pure $ do
          [object] <- objects file
          K.lookup "status" object @?= Just (Number 404)
          K.lookup "target" object @?= Just (String (fromString ('/' : replicate 8191 '"')))
          K.lookup "agent" object @?= Just (String (fromString (replicate 1024 '"'))),
      testOn on "the number of body bytes, for each kind of response" . logged json $ \file port -> do
        withClient port $ \client -> do
          say client "HEAD /hello HTTP/1.1\r\nHost: test\r\n\r\n" >> void (hearAnswerToHead client)
          forM_ ["/empty", "/builder", "/file", "/raise"] (get client)
        pure $ do
          lines' <- objects file
          map (\o -> (K.lookup "bytes" o, K.lookup "status" o)) lines'
            @?= [ (Just (Number 0), Just (Number 200)),
                  (Just (Number 0), Just (Number 304)),
                  (Just (Number 100000), Just (Number 200)),
                  (Just (Number 10), Just (Number 206)),
                  (Just Null, Just (Number 500))
                ],
      testOn on "a response that the client aborts" . logged json $ \file port -> do
        client <- connectTo port
        ask client "/endless" []
        _ <- hear client
        reset client
        pure $ do
          [object] <- objects file
          K.lookup "aborted" object @?= Just (Bool True),
      testOn on "the line of a refused request" . withFolder $ \folder -> do
        let file = folder </> "log"
        forM_ [(Combined, "192.0.2.1 - - ", "\"bad_request\" 400 0 \"-\" \"-\""), (Json, "{", "\"status\":400,\"refused\":\"bad_request\"}")] $ \(format, begin, end) -> do
          withAccessLog defaultLogSettings {logPath = file, logFormat = format} $ \accessLog ->
            logRefusal accessLog (SockAddrInet 1 (tupleToHostAddress (192, 0, 2, 1))) (Just status400) "bad_request"
          line <- B.readFile file
          assertBool (show line) (begin `B.isPrefixOf` line && (end <> "\n") `B.isSuffixOf` line)
          removeFile file,
      testOn on "IPv6 addresses are written as in RFC 5952" addresses,
      testOn on "a pipe without a reader does not block requests" deaf,
      testOn on "with a full disk lines are dropped and counted, and all are reported" full,
      patientOn on "lines that are dropped while a pipe is not read are reported meanwhile" . unread $ \pipe told -> do
        B.hPut pipe (B.replicate pipeSize 120)
        pure $ \accessLog -> do
          untilM (refuse accessLog >> (> 0) . logDropped <$> logMetrics accessLog)
          eventually "a report" ((> 0) <$> readIORef told)
          pure (pure ()),
      patientOn on "when a log ends whose pipe is not read, each line was written whole or is reported" . unread $ \pipe told -> do
        -- There is room for some lines, and a part of one.
        B.hPut pipe (B.replicate (pipeSize - 4096) 10)
        let rounds = 3000
            logAll accessLog = forConcurrently_ [1, 2 :: Int] (const (replicateM_ rounds (refuse accessLog)))
            atEnd accessLog = do
              figures <- logMetrics accessLog
              written <- subtract (pipeSize - 4096) . C.count '\n' <$> contents pipe
              logWritten figures @?= written
              assertBool (show figures) (written > 0)
              reported <- readIORef told
              assertEqual (show figures) (2 * rounds) (written + reported)
        pure $ \accessLog -> logAll accessLog >> pure (atEnd accessLog),
      testOn on "a file that ends in the middle of a line: that line is ended first" . withFolder $ \folder -> do
        let file = folder </> "log"
        forM_ ["", "a\nb\n", "a\nb"] $ \before -> do
          B.writeFile file before
          withAccessLog defaultLogSettings {logPath = file} $ \accessLog -> do
            refuse accessLog >> flushLog accessLog
            B.appendFile file "c"
            reopenLog accessLog
            refuse accessLog
          found <- map (\l -> if B.isSuffixOf "\"-\"" l then "line" else l) . C.split '\n' <$> B.readFile file
          found @?= C.lines before <> ["line", "c", "line", ""],
      testOn on "no line is lost while the file is reopened" reopening,
      testOn on "if reopening fails, the old file stays in use" . withFolder $ \folder -> do
        createDirectory (folder </> "a")
        withAccessLog defaultLogSettings {logPath = folder </> "a" </> "log"} $ \accessLog -> do
          renameDirectory (folder </> "a") (folder </> "b")
          outcome <- try (reopenLog accessLog)
          assertBool "no error" (either isDoesNotExistError (const False) outcome)
          refuse accessLog
        n <- length . C.lines <$> B.readFile (folder </> "b" </> "log")
        n @?= 1
    ]
  where
    json settings = settings {logFormat = Json}

-- | Values of @Authorization@, and the user in the combined format and as JSON.
users :: [(B.ByteString, B.ByteString, Maybe Text)]
users =
  [ ("Basic YWxpY2U6c2VjcmV0", "alice", Just "alice"),
    ("basic  YWxpY2U6", "alice", Just "alice"),
    ("Basic YSAiXAriIDpiOmM=", "a\\x20\\x22\\x5C\\x0A\\xE2\\x20", Just "a \"\\\n\226 "),
    ("Basic Ong=", "-", Just ""),
    ("Basic YWxpY2U=", "-", Nothing),
    ("Basic %%%", "-", Nothing),
    ("Bearer YWxpY2U6c2VjcmV0", "-", Nothing),
    ("", "-", Nothing)
  ]

-- | Run a server with a log. The action returns checks, which run when the log is complete.
logged :: (LogSettings -> LogSettings) -> (FilePath -> Int -> IO Assertion) -> Assertion
logged change act = withFolder $ \folder -> do
  let file = folder </> "log"
  B.writeFile (folder </> "data") (B.replicate 1000 65)
  check <- withAccessLog (change defaultLogSettings {logPath = file}) $ \accessLog ->
    withServer (settingsFor 0) (logRequests accessLog (answers (folder </> "data"))) $ \server -> do
      check <- act file (portOf (serverAddress server))
      eventually "no connection is left" ((== 0) <$> serverConnections server)
      pure check
  check

settingsFor :: Port -> Settings
settingsFor port = setHost "127.0.0.1" (setPort port (setOnException (\_ _ -> pure ()) defaultSettings))

answers :: FilePath -> Application
answers file request respond = case pathInfo request of
  ["hello"] -> respond (responseLBS status200 [("Content-Length", "5")] "hello")
  ["chunks"] -> respond . responseStream status200 [] $ \write _ -> forM_ [1 .. 100 :: Int] (\i -> write (fromStringOf i))
  ["empty"] -> respond (responseLBS status304 [] "")
  ["builder"] -> respond (responseBuilder status200 [] (foldMap (const "0123456789") [1 .. 10000 :: Int]))
  ["file"] -> respond (responseFile status206 [] file (Just (FilePart 5 10 1000)))
  ["endless"] -> respond . responseStream status200 [] $ \write flush ->
    let go = write (foldMap (const "0123456789") [1 .. 1000 :: Int]) >> flush >> go in go
  ["raise"] -> ioError (userError "on purpose")
  _ -> respond (responseLBS status404 [("Content-Length", "8")] "not here")
  where
    fromStringOf i = if i < 100 then (if i < 10 then "1\n" else "22\n") else "333\n"

objects :: FilePath -> IO [K.KeyMap Value]
objects file = do
  lines' <- C.lines <$> B.readFile file
  let found = mapMaybe decodeStrict' lines'
  length found @?= length lines'
  pure [o | Object o <- found]

refuse :: AccessLog -> IO ()
refuse accessLog = logRefusal accessLog (SockAddrInet 1 0) Nothing "test"

-- | RFC 5952, section 4.
addresses :: Assertion
addresses = withFolder $ \folder -> do
  let file = folder </> "log"
  withAccessLog defaultLogSettings {logPath = file} $ \accessLog ->
    forM_ examples $ \(groups, _) -> logRefusal accessLog (SockAddrInet6 1 0 (tupleToHostAddress6 groups) 0) Nothing "test"
  found <- map (C.takeWhile (/= ' ')) . C.lines <$> B.readFile file
  found @?= map snd examples
  where
    examples =
      [ ((0, 0, 0, 0, 0, 0, 0, 0), "::"),
        ((0, 0, 0, 0, 0, 0, 0, 1), "::1"),
        ((0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), "2001:db8::1"),
        ((0x2001, 0xdb8, 0, 1, 1, 1, 1, 1), "2001:db8:0:1:1:1:1:1"),
        ((0x2001, 0, 0, 1, 0, 0, 0, 1), "2001:0:0:1::1"),
        ((0x2001, 0xdb8, 0, 0, 1, 0, 0, 1), "2001:db8::1:0:0:1"),
        ((0xfe80, 1, 2, 3, 4, 5, 0, 0), "fe80:1:2:3:4:5::"),
        ((0, 0, 0, 0, 0, 0xffff, 0xc000, 0x0207), "192.0.2.7")
      ]

-- | The log goes to a pipe that nobody reads, so its buffer fills up.
deaf :: Assertion
deaf = withFolder $ \folder -> do
  let pipe = folder </> "pipe"
  createNamedPipe pipe 0o600
  -- The pipe is open at both ends.
  withFile pipe ReadWriteMode $ \_ ->
    withAccessLog defaultLogSettings {logPath = pipe, logBuffer = 1} $ \accessLog ->
      withServer (settingsFor 0) (logRequests accessLog (answers "")) $ \server -> do
        let port = portOf (serverAddress server)
            -- Each request has a line of 8 KiB.
            path = "/" <> B.replicate 8000 120
            someDropped = do
              forConcurrently_ [1 .. 4 :: Int] $ \_ -> withClient port $ \client ->
                replicateM_ 50 (get client path >>= (@?= 404) . answerStatus)
              (> 0) . logDropped <$> logMetrics accessLog
        within 200 "requests" (untilM someDropped)

-- | Bytes that a pipe takes: 16 pages (pipe(7)).
pipeSize :: Int
pipeSize = 16 * fromIntegral c_getpagesize

foreign import ccall unsafe "getpagesize" c_getpagesize :: CInt

-- | A log whose pipe nobody reads. Before it is opened, the first action gets the pipe and the number of lines that are
-- reported as lost. Then it runs with the log, and what it returns runs when the log is closed.
unread :: (Handle -> IORef Int -> IO (AccessLog -> IO (IO ()))) -> Assertion
unread prepare = withFolder $ \folder -> do
  told <- newIORef 0
  let path = folder </> "pipe"
      report _ n = atomicModifyIORef' told (\m -> (m + n, ()))
  createNamedPipe path 0o600
  withFile path ReadWriteMode $ \pipe -> do
    hSetBuffering pipe NoBuffering
    act <- prepare pipe told
    join (withAccessLog defaultLogSettings {logPath = path, logBuffer = 1, logOnError = report} act)

-- | What a pipe has taken.
contents :: Handle -> IO B.ByteString
contents pipe = do
  part <- B.hGetNonBlocking pipe pipeSize
  if B.null part then pure part else (part <>) <$> contents pipe

untilM :: IO Bool -> IO ()
untilM act = act >>= \done -> if done then pure () else untilM act

full :: Assertion
full = do
  told <- newIORef []
  let report e n = when (isFullError e) (modifyIORef' told (n :))
  withAccessLog defaultLogSettings {logPath = "/dev/full", logOnError = report} $ \accessLog -> do
    replicateM_ 3 (replicateM_ 10 (refuse accessLog) >> flushLog accessLog)
    figures <- logMetrics accessLog
    logFailed figures @?= 30
    logWritten figures @?= 0
    readIORef told >>= (@?= [10])
  -- The rest is reported at the end.
  readIORef told >>= (@?= [20, 10])

-- | The file is renamed and reopened, as by logrotate, while requests run.
reopening :: Assertion
reopening = withFolder $ \folder -> do
  let file = folder </> "log"
      rotated i = folder </> ("log." <> show i)
      rounds = [1 .. 10 :: Int]
  done <- newEmptyMVar
  count <- newIORef (0 :: Int)
  withAccessLog defaultLogSettings {logPath = file, logBuffer = 8 * 1024 * 1024} $ \accessLog ->
    withServer (settingsFor 0) (logRequests accessLog (answers "")) $ \server -> do
      let requests = withClient (portOf (serverAddress server)) $ \client -> untilM $ do
            answer <- get client "/hello"
            answerStatus answer @?= 200
            modifyIORef' count (+ 1)
            not <$> isEmptyMVar done
          rotate i = do
            before <- readIORef count
            eventually "requests" ((> before + 10) <$> readIORef count)
            renameFile file (rotated i)
            reopenLog accessLog
      concurrently_ requests (mapM_ rotate rounds >> putMVar done ())
  lines' <- mapM (fmap (length . C.lines) . B.readFile) (file : map rotated rounds)
  total <- readIORef count
  sum lines' @?= total
  assertBool (show lines') (all (> 0) (drop 1 lines'))

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removePathForcibly
  where
    make = getTemporaryDirectory >>= \dir -> mkdtemp (dir </> "weft-logs-")
