{-# LANGUAGE OverloadedStrings #-}

-- |
-- A site served to programs that others wrote: a browser, @curl@, @wrk@, @h2load@, and @slowhttptest@, which attacks.
module Spec.Clients (tests) where

import Application
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (concurrently, mapConcurrently)
import Control.Concurrent.MVar
import Control.Exception (catch, finally, throwIO)
import Control.Monad (forM_, replicateM_, unless, void, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (isDigit, isSpace)
import Data.IORef
import Data.List (isInfixOf, stripPrefix)
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
import System.Process
import Test.Tasty
import Test.Tasty.HUnit
import Text.Read (readMaybe)
import Weft.Duration (seconds)
import Weft.Http
import Weft.Static
import Weft.Test.Files (withFolder)
import Weft.Test.Skip (needProgram, skipUnless)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "real clients"
    [ testOn on "wrk gets every file" . site id False $ \_ port -> forM_ ["/1k", "/100k", "/1m"] $ \path -> do
        out <- tool "wrk" ["-t2", "-c64", "-d2s", "--timeout", "30s", "http://127.0.0.1:" <> show port <> path]
        assertBool out (not ("Socket errors" `isInfixOf` out) && not ("Non-2xx" `isInfixOf` out) && requestsIn out > 10),
      testOn on "ab -k gets every file over HTTP/1.0, and each response keeps the connection open" . site id False $ \_ port -> forM_ ["/1k", "/100k", "/1m"] $ \path -> do
        out <- tool "ab" ["-q", "-k", "-n200", "-c10", "http://127.0.0.1:" <> show port <> path]
        let number label = listToMaybe [n | l <- lines out, Just rest <- [stripPrefix label l], Just n <- [readMaybe (takeWhile isDigit (dropWhile isSpace rest))]]
        assertBool out (map number ["Complete requests:", "Failed requests:", "Keep-Alive requests:"] == map Just [200, 0, 200 :: Int] && not ("Non-2xx" `isInfixOf` out)),
      testOn on "h2load gets every file over HTTP/2" . site id True $ \_ port -> forM_ [("/1k", 5000), ("/100k", 500), ("/1m", 50)] $ \(path, n) -> do
        out <- tool "h2load" ["-n" <> show (n :: Int), "-c10", "-m20", "https://127.0.0.1:" <> show port <> C.unpack path]
        assertBool out (("status codes: " <> show n <> " 2xx, 0 3xx, 0 4xx, 0 5xx") `isInfixOf` out && ", 0 timeout" `isInfixOf` out)
        assertBool out (succeededIn out >= n && "Application protocol: h2" `isInfixOf` out),
      testOn on "h2load gets a file over HTTP/2 without TLS" . site id False $ \_ port -> do
        out <- tool "h2load" ["-n2000", "-c10", "-m10", "http://127.0.0.1:" <> show port <> "/1k"]
        assertBool out ("2000 succeeded, 0 failed, 0 errored, 0 timeout" `isInfixOf` out),
      testOn on "curl uploads 1 GiB, with a length and in chunks, in bounded memory" . withFolder $ \folder -> do
        let file = folder </> "sparse"
        withFile file WriteMode (`hSetFileSize` 1073741824)
        withServer (quiet (setHost "127.0.0.1" (setPort 0 defaultSettings))) application $ \server -> forM_ [[], ["-H", "Transfer-Encoding: chunked"]] $ \more -> do
          forgetPeak
          before <- resident "VmRSS"
          out <- curl (["-X", "POST", "-H", "Expect:", "-T", file, "http://127.0.0.1:" <> show (portOf (serverAddress server)) <> "/count"] <> more)
          out @?= "1073741824"
          peak <- resident "VmHWM"
          assertBool ("KiB before and at most: " <> show (before, peak)) (peak - before < 65536),
      testOn on "slowhttptest: slow request heads" $ slowly id ["-H", "-c", "1000", "-r", "1000", "-i", "1", "-x", "24"],
      testOn on "slowhttptest: slow request bodies" $ slowly id ["-B", "-c", "1000", "-r", "1000", "-i", "1", "-s", "8192", "-x", "10"],
      testOn on "slowhttptest: slow readers" $ slowly id ["-X", "-c", "1000", "-r", "1000", "-n", "1", "-w", "10", "-y", "20", "-z", "32", "-k", "3"],
      testOn on "slowhttptest: requests with many overlapping ranges" $ slowly id ["-R", "-c", "500", "-r", "500", "-t", "HEAD", "-a", "10", "-b", "3000"],
      testOn on "slowhttptest: 8,000 slow connections do not keep other clients out" $ room 20000 >> slowly id ["-H", "-c", "8000", "-r", "4000", "-i", "1", "-x", "24"],
      testOn on "slowhttptest: 8,000 slow connections do not keep other clients out, with limitConnections = 1,000" $ room 20000 >> slowly (\l -> l {limitConnections = 1000}) ["-H", "-c", "8000", "-r", "4000", "-i", "1", "-x", "24"],
      testOn on "a browser shows a page over HTTPS and HTTP/2, and plays a video" . site id True $ \seen port -> do
        needProgram "chromium"
        withFolder $ \folder ->
          browsing folder ("https://localhost:" <> show port <> "/") $ do
            within 150 "the page's report" . until' $ any ("/done/" `B.isPrefixOf`) . Map.keys <$> readIORef seen
            asked <- readIORef seen
            filter ("/done/" `B.isPrefixOf`) (Map.keys asked) @?= ["/done/h2/styled/8/sought/ended"]
            forM_ ["/", "/style.css", "/script.js", "/dot.svg"] $ \path -> Map.lookup path asked @?= Just (200, "HTTP/2.0", False)
            Map.lookup "/video.webm" asked @?= Just (206, "HTTP/2.0", True),
      testOn on "a browser shows a listing with a name of 250 characters within a narrow window" . withFolder $ \folder -> do
        needProgram "chromium"
        let root = folder </> "site"
        createDirectoryIfMissing True (root </> "list")
        writeFile (root </> "list" </> replicate 250 'x') "x"
        writeFile (root </> "index.html") frame
        reported <- newEmptyMVar
        withStatic defaultStaticSettings {staticListing = True} root $ \static -> do
          let app request respond = do
                forM_ (B.stripPrefix "/done/" (rawPathInfo request)) (tryPutMVar reported)
                staticApp static request respond
          withQuietServer defaultSettings app $ \_ port ->
            browsing folder ("http://127.0.0.1:" <> show port <> "/") $ do
              report <- within 150 "the page's report" (takeMVar reported)
              -- The parent's row has three cells, and the file's has three.
              report @?= "fits/6"
    ]
  where
    until' condition = condition >>= \holds -> unless holds (threadDelay 20000 >> until' condition)
    -- During the attack four other clients send requests one after the other, and each request is answered.
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

-- | Serve a site with limits. The map has, for each requested path, the status of the last response, the version of
-- HTTP, and whether a range was requested.
site :: (Limits -> Limits) -> Bool -> (IORef (Map.Map C.ByteString (Int, String, Bool)) -> Int -> IO ()) -> IO ()
site change encrypted act = withFolder $ \folder -> do
  room 4000
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
      -- The attacker's connections end.
      noConnections server

-- | The number of successful requests in h2load's output.
succeededIn :: String -> Int
succeededIn out = case [n | (n, word) <- zip <*> drop 1 $ words out, word == "succeeded,"] of
  n : _ | [(k, "")] <- reads n -> k
  _ -> 0

noting :: IORef (Map.Map C.ByteString (Int, String, Bool)) -> Middleware
noting seen app request respond = app request $ \response -> do
  let what = (statusCode (responseStatus response), show (httpVersion request), any ((== hRange) . fst) (requestHeaders request))
  when (isSecure request) (atomicModifyIORef' seen (\m -> (Map.insert (rawPathInfo request) what m, ())))
  respond response

-- | Raise the limit on open descriptors to this number, or skip the test where that is not allowed.
room :: Integer -> IO ()
room wanted = do
  limits <- getResourceLimit ResourceOpenFiles
  let atLeast limit = case limit of
        ResourceLimit n -> n >= wanted
        _ -> True
  skipUnless ("fewer than " <> show wanted <> " descriptors (ulimit -n)") (atLeast (hardLimit limits))
  unless (atLeast (softLimit limits)) (setResourceLimit ResourceOpenFiles limits {softLimit = ResourceLimit wanted})

-- | Run a program and return its output.
tool :: FilePath -> [String] -> IO String
tool name arguments = do
  needProgram name
  (code, out, err) <- within 150 name (readProcessWithExitCode name arguments "")
  case code of
    ExitSuccess -> pure (out <> err)
    ExitFailure n -> assertFailure (unlines [name <> " ended with " <> show n, out, err])

-- | The number of requests in wrk's output.
requestsIn :: String -> Int
requestsIn out = maybe 0 last' (listToMaybe [l | l <- lines out, "requests in" `isInfixOf` l])
  where
    last' l = fromMaybe 0 (readMaybe (takeWhile isDigit (dropWhile isSpace l)))

-- | Run an action while a browser shows a page. If it fails, the error has the end of what the browser has written.
browsing :: FilePath -> String -> IO a -> IO a
browsing folder address act =
  withFile (folder </> "log") WriteMode $ \out ->
    withCreateProcess (proc "chromium" arguments) {std_out = UseHandle out, std_err = UseHandle out, create_group = True} $ \_ _ _ process ->
      (act `finally` (interruptProcessGroupOf process >> waitForProcess process)) `catch` \(HUnitFailure place why) -> do
        said <- lines . C.unpack <$> B.readFile (folder </> "log")
        throwIO (HUnitFailure place (unlines (why : drop (length said - 10) said)))
  where
    arguments =
      ["--headless", "--no-sandbox", "--disable-gpu", "--mute-audio", "--autoplay-policy=no-user-gesture-required"]
        <> ["--remote-debugging-port=0", "--ignore-certificate-errors", "--user-data-dir=" <> folder </> "profile", address]

-- | A page that shows the listing in a frame of 400 pixels. It reports whether the listing is wider, and how many cells
-- end within the frame.
frame :: String
frame =
  "<!DOCTYPE html><iframe id=frame width=400 src=list/></iframe><script>\n\
  \document.getElementById('frame').onload = event => {\n\
  \  const page = event.target.contentDocument, root = page.documentElement;\n\
  \  const inside = [...page.querySelectorAll('td')].filter(cell => cell.getBoundingClientRect().right <= root.clientWidth);\n\
  \  fetch('/done/' + (root.scrollWidth <= root.clientWidth ? 'fits' : root.scrollWidth) + '/' + inside.length);\n\
  \};\n\
  \</script>\n"

-- | A page that reports its result by requesting a path below @\/done@.
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
