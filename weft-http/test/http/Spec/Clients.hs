{-# LANGUAGE OverloadedStrings #-}

-- |
-- A site that is served to real clients, good ones and bad ones: a browser, @wrk@,
-- @h2load@, @slowhttptest@.
module Spec.Clients (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (concurrently, mapConcurrently)
import Control.Exception (bracket, finally)
import Control.Monad (forM_, replicateM_, unless, void, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (isDigit, isSpace)
import Data.IORef
import Data.List (isInfixOf)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe, listToMaybe)
import Network.HTTP.Types (hRange, statusCode)
import Network.Wai (Middleware, httpVersion, isSecure, rawPathInfo, requestHeaders, responseStatus)
import Resident
import Spec.Secure (certificate)
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), hSetFileSize, withFile)
import System.Posix.Resource
import System.Posix.Temp (mkdtemp)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit
import Text.Read (readMaybe)
import Weft.Duration (seconds)
import Weft.Http
import Weft.Static
import Weft.Test.Skip (needProgram)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "real clients"
    [ testOn on "wrk gets every file" . site id False $ \_ port -> forM_ ["/1k", "/100k", "/1m"] $ \path -> do
        out <- tool "wrk" ["-t2", "-c64", "-d2s", "http://127.0.0.1:" <> show port <> path]
        assertBool out (not ("Socket errors" `isInfixOf` out) && not ("Non-2xx" `isInfixOf` out) && requestsIn out > 10),
      testOn on "h2load gets every file over HTTP/2" . site id True $ \_ port -> forM_ [("/1k", 5000), ("/100k", 500), ("/1m", 50)] $ \(path, n) -> do
        out <- tool "h2load" ["-n" <> show (n :: Int), "-c10", "-m20", "https://127.0.0.1:" <> show port <> C.unpack path]
        assertBool out (("status codes: " <> show n <> " 2xx, 0 3xx, 0 4xx, 0 5xx") `isInfixOf` out && ", 0 timeout" `isInfixOf` out)
        assertBool out (succeededIn out >= n && "Application protocol: h2" `isInfixOf` out),
      testOn on "h2load without TLS" . site id False $ \_ port -> do
        out <- tool "h2load" ["-n2000", "-c10", "-m10", "http://127.0.0.1:" <> show port <> "/1k"]
        assertBool out ("2000 succeeded, 0 failed, 0 errored, 0 timeout" `isInfixOf` out),
      testOn on "curl uploads 1 GiB, sized and in chunks, through bounded memory" . withFolder $ \folder -> do
        let file = folder </> "sparse"
        withFile file WriteMode (`hSetFileSize` 1073741824)
        withServer (quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))) application $ \server -> forM_ [[], ["-H", "Transfer-Encoding: chunked"]] $ \more -> do
          forgetPeak
          before <- resident "VmRSS"
          out <- curl (["-X", "POST", "-H", "Expect:", "-T", file, "http://127.0.0.1:" <> show (portOf (serverAddress server)) <> "/count"] <> more)
          out @?= "1073741824"
          peak <- resident "VmHWM"
          assertBool ("KiB before and at most: " <> show (before, peak)) (peak - before < 65536),
      testOn on "slow heads" $ slowly id ["-H", "-c", "1000", "-r", "1000", "-i", "1", "-x", "24"],
      testOn on "slow bodies" $ slowly id ["-B", "-c", "1000", "-r", "1000", "-i", "1", "-s", "8192", "-x", "10"],
      testOn on "slow readers" $ slowly id ["-X", "-c", "1000", "-r", "1000", "-n", "1", "-w", "10", "-y", "20", "-z", "32", "-k", "3"],
      testOn on "a range of everything" $ slowly id ["-R", "-c", "500", "-r", "500", "-t", "HEAD", "-a", "10", "-b", "3000"],
      testOn on "8,000 slow connections do not keep others out" $ slowly id ["-H", "-c", "8000", "-r", "4000", "-i", "1", "-x", "24"],
      testOn on "nor when there is room for 1,000" $ slowly (\l -> l {limitConnections = 1000}) ["-H", "-c", "8000", "-r", "4000", "-i", "1", "-x", "24"],
      testOn on "a browser shows a page over HTTPS and HTTP/2, and plays a video" . site id True $ \seen port -> do
        needProgram "chromium"
        withFolder $ \folder ->
          browsing folder ("https://localhost:" <> show port <> "/") $ do
            within 40 "the page's report" . until' $ any ("/done/" `B.isPrefixOf`) . Map.keys <$> readIORef seen
            asked <- readIORef seen
            filter ("/done/" `B.isPrefixOf`) (Map.keys asked) @?= ["/done/h2/styled/8/sought/ended"]
            forM_ ["/", "/style.css", "/script.js", "/dot.svg"] $ \path -> Map.lookup path asked @?= Just (200, "HTTP/2.0", False)
            Map.lookup "/video.webm" asked @?= Just (206, "HTTP/2.0", True)
    ]
  where
    until' condition = condition >>= \holds -> unless holds (threadDelay 20000 >> until' condition)
    -- While they come, another client asks again and again, and is answered.
    slowly change arguments = site change False $ \_ port -> do
      (out, ()) <-
        concurrently
          (tool "slowhttptest" (arguments <> ["-l", "6", "-p", "5", "-u", "http://127.0.0.1:" <> show port <> "/1m"]))
          (void (mapConcurrently (const (steady port)) [1 .. 4 :: Int]))
      assertBool out ("YES" `isInfixOf` out && not ("service available:   NO" `isInfixOf` out))
    steady port = replicateM_ 40 . withClient port $ \client -> do
      answer <- get client "/1k"
      answerBody answer @?= filler 1024
      answer' <- get client "/100k"
      B.length (answerBody answer') @?= 102400

-- | A site, served with limits; for each path that was asked for, its last answer's
-- status, the version of HTTP, and whether a part was asked for.
site :: (Limits -> Limits) -> Bool -> (IORef (Map.Map C.ByteString (Int, String, Bool)) -> Int -> IO ()) -> IO ()
site change encrypted act = withFolder $ \folder -> do
  room
  let root = folder </> "site"
  createDirectory root
  forM_ [("1k", 1024), ("100k", 102400), ("1m", 1048576)] $ \(name, n) -> B.writeFile (root </> name) (filler n)
  copyFile "test/http/data/video.webm" (root </> "video.webm")
  forM_ page $ \(name, text) -> writeFile (root </> name) text
  tls <- if encrypted then Just <$> (certificate folder "site" >>= uncurry loadTls) else pure Nothing
  seen <- newIORef Map.empty
  let options = defaultOptions {optionTls = tls, optionLimits = Just (change defaultLimits {limitHeadTime = seconds 3})}
      settings = quiet (setTimeout 3 (setHost "127.0.0.1" (setPort 0 (setHTTP2Cleartext True defaultSettings))))
  withStatic defaultStaticSettings root $ \static ->
    withServerWith options settings (noting seen (staticApp static)) $ \server -> do
      act seen (portOf (serverAddress server))
      -- The bad ones are gone, or go.
      noConnections server

-- | What h2load says.
succeededIn :: String -> Int
succeededIn out = case [n | (n, word) <- zip <*> drop 1 $ words out, word == "succeeded,"] of
  n : _ | [(k, "")] <- reads n -> k
  _ -> 0

noting :: IORef (Map.Map C.ByteString (Int, String, Bool)) -> Middleware
noting seen app request respond = app request $ \response -> do
  let what = (statusCode (responseStatus response), show (httpVersion request), any ((== hRange) . fst) (requestHeaders request))
  when (isSecure request) (atomicModifyIORef' seen (\m -> (Map.insert (rawPathInfo request) what m, ())))
  respond response

-- | Descriptors for all of them.
room :: IO ()
room = do
  limits <- getResourceLimit ResourceOpenFiles
  setResourceLimit ResourceOpenFiles limits {softLimit = hardLimit limits}

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket (mkdtemp "/tmp/weft-clients-") removeDirectoryRecursive

-- | A program's output.
tool :: FilePath -> [String] -> IO String
tool name arguments = do
  needProgram name
  (code, out, err) <- within 50 name (readProcessWithExitCode name arguments "")
  case code of
    ExitSuccess -> pure (out <> err)
    ExitFailure n -> assertFailure (unlines [name <> " ended with " <> show n, out, err])

-- | The requests that wrk counts.
requestsIn :: String -> Int
requestsIn out = maybe 0 last' (listToMaybe [l | l <- lines out, "requests in" `isInfixOf` l])
  where
    last' l = fromMaybe 0 (readMaybe (takeWhile isDigit (dropWhile isSpace l)))

-- | Show a page in a browser beside an action.
browsing :: FilePath -> String -> IO a -> IO a
browsing folder address act =
  withFile (folder </> "log") WriteMode $ \out ->
    withCreateProcess (proc "chromium" arguments) {std_out = UseHandle out, std_err = UseHandle out, create_group = True} $ \_ _ _ process ->
      act `finally` (interruptProcessGroupOf process >> waitForProcess process)
  where
    arguments =
      ["--headless", "--no-sandbox", "--disable-gpu", "--mute-audio", "--autoplay-policy=no-user-gesture-required"]
        <> ["--remote-debugging-port=0", "--ignore-certificate-errors", "--user-data-dir=" <> folder </> "profile", address]

-- | It reports what became of it by asking for a path.
page :: [(FilePath, String)]
page =
  [ ( "index.html",
      "<!DOCTYPE html><html><head><title>A film</title><link rel=stylesheet href=style.css></head>\n\
      \<body><p id=text>Styled.</p><img id=dot src=dot.svg><video id=film src=video.webm muted preload=auto></video>\n\
      \<script src=script.js></script></body></html>\n"
    ),
    ("style.css", "#text { color: rgb(1, 2, 3) }\n"),
    ("dot.svg", "<svg xmlns='http://www.w3.org/2000/svg' width='8' height='8'><rect width='8' height='8'/></svg>\n"),
    ( "script.js",
      "const at = id => document.getElementById(id), film = at('film');\n\
      \const loaded = new Promise(resolve => window.onload = resolve);\n\
      \let sought = 'unsought';\n\
      \film.onseeked = () => { sought = 'sought'; film.play() };\n\
      \film.oncanplay = () => { film.oncanplay = null; film.currentTime = 11 };\n\
      \const report = async end => {\n\
      \  await loaded;\n\
      \  const protocol = performance.getEntriesByType('navigation')[0].nextHopProtocol;\n\
      \  const style = getComputedStyle(at('text')).color === 'rgb(1, 2, 3)' ? 'styled' : 'unstyled';\n\
      \  fetch(['/done', protocol, style, at('dot').naturalWidth, sought, end].join('/'));\n\
      \};\n\
      \film.onended = () => report('ended');\n\
      \film.onerror = () => report('error');\n"
    )
  ]
