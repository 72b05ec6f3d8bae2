{-# LANGUAGE OverloadedStrings #-}

-- |
-- WAI middlewares and applications of other packages, unmodified, on "Weft.Http".
module Library.Middleware
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Monad (forM_, when)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import qualified Data.ByteString.Lazy.Char8 as LC
import Data.IORef
import Data.List (isInfixOf, sort)
import Network.HTTP.Types
import Network.Wai
import Network.Wai.Application.Static (defaultFileServerSettings, defaultWebAppSettings, staticApp)
import Network.Wai.EventSource
import Network.Wai.Middleware.Autohead (autohead)
import Network.Wai.Middleware.Gzip
import Network.Wai.Middleware.HttpAuth (basicAuth)
import Network.Wai.Middleware.MethodOverridePost (methodOverridePost)
import Network.Wai.Middleware.RealIp (realIp)
import Network.Wai.Middleware.RequestLogger
import Network.Wai.Middleware.Timeout (timeout)
import Network.Wai.Parse (FileInfo (..), lbsBackEnd, parseRequestBody)
import Process (program, withFolder)
import System.Directory (createDirectory)
import System.FilePath ((</>))
import System.Log.FastLogger (fromLogStr)
import Test.Tasty.HUnit
import Weft.Http

-- | The tests by the names that "Libraries" lists.
tests :: [(String, IO ())]
tests =
  [ ("wai-extra: gzip", gzipped),
    ("wai-extra: request logger", logged),
    ("wai-extra: basic authentication", authenticated),
    ("wai-extra: autohead, method override, real address", small),
    ("wai-extra: uploads of forms", forms),
    ("wai-extra: events", events),
    ("wai-extra: time limit", limited),
    ("wai-app-static: files, ranges and conditions", files)
  ]

curl :: Int -> [String] -> String -> IO String
curl port arguments path = program "curl" (["-sS", "--noproxy", "*", "--max-time", "20"] <> arguments <> ["http://127.0.0.1:" <> show port <> path])

serving :: Application -> (Int -> IO a) -> IO a
serving app = testWithApplication (pure app)

gzipped :: Assertion
gzipped = withFolder $ \folder -> do
  B.writeFile (folder </> "page.html") page
  let app request respond = case pathInfo request of
        ["builder"] -> respond (responseLBS ok200 html (L.fromStrict page))
        ["stream"] -> respond (responseStream ok200 html (\send flush -> forM_ [0 .. 9] (\i -> send (byteString (B.take 5000 (B.drop (5000 * i) page))) >> flush)))
        _ -> respond (responseFile ok200 html (folder </> "page.html") Nothing)
  serving (gzip def {gzipFiles = GzipCompress} app) $ \port -> forM_ ["/builder", "/stream", "/file"] $ \path -> do
    curl port [] path >>= (@?= C.unpack page)
    curl port ["--compressed"] path >>= (@?= C.unpack page)
    -- Compressed it is a fraction, and the connection goes on behind it.
    out <- curl port ["-H", "Accept-Encoding: gzip", "-o", "/dev/null", "-o", "/dev/null", "-w", "%{num_connects} %{size_download}\n", "http://127.0.0.1:" <> show port <> path] path
    case map words (lines out) of
      [[first, size], [second, size']] -> do
        (first, second) @?= ("1", "0")
        assertBool out (all ((< (5000 :: Int)) . read) [size, size'])
      _ -> assertFailure out
  where
    html = [(hContentType, "text/html")]
    page = B.take 50000 (C.concat (replicate 5000 "<p>a paragraph</p>\n"))

logged :: Assertion
logged = do
  written <- newIORef []
  logger <- mkRequestLogger def {destination = Callback (\text -> atomicModifyIORef' written (\ls -> (fromLogStr text : ls, ()))), outputFormat = Apache FromSocket}
  development <- mkRequestLogger def {destination = Callback (const (pure ())), outputFormat = Detailed False}
  let app request respond = do
        body <- strictRequestBody request
        respond (responseLBS (if rawPathInfo request == "/nothing" then notFound404 else ok200) [] body)
  serving (logger (development app)) $ \port -> do
    curl port ["-d", "a=b"] "/form" >>= (@?= "a=b")
    _ <- curl port [] "/nothing"
    pure ()
  found <- C.unlines . reverse <$> readIORef written
  forM_ ["\"POST /form HTTP/1.1\" 200", "\"GET /nothing HTTP/1.1\" 404", "127.0.0.1"] $ \part -> assertBool (C.unpack found) (part `B.isInfixOf` found)

authenticated :: Assertion
authenticated = serving (basicAuth (\name word -> pure (name == "ada" && word == "engine")) "weft" app) $ \port -> do
  curl port ["-o", "/dev/null", "-w", "%{http_code}"] "/" >>= (@?= "401")
  curl port ["-u", "ada:wrong", "-o", "/dev/null", "-w", "%{http_code}"] "/" >>= (@?= "401")
  curl port ["-u", "ada:engine"] "/" >>= (@?= "in")
  -- Refused before the body is read.
  curl port ["-d", replicate 20000 'x', "-o", "/dev/null", "-w", "%{http_code}"] "/" >>= (@?= "401")
  where
    app _ respond = respond (responseLBS ok200 [] "in")

small :: Assertion
small = serving (autohead (methodOverridePost (realIp app))) $ \port -> do
  curl port ["-I", "-o", "/dev/null", "-w", "%{http_code} %{size_download}"] "/" >>= (@?= "200 0")
  curl port ["-d", "_method=DELETE"] "/" >>= (@?= "DELETE 127.0.0.1")
  -- The proxy is one of the private addresses.
  curl port ["-H", "X-Forwarded-For: 203.0.113.7"] "/" >>= (@?= "GET 203.0.113.7")
  where
    app request respond
      | requestMethod request == methodHead = respond (responseLBS methodNotAllowed405 [] "")
      | otherwise = respond (responseLBS ok200 [] (L.fromStrict (requestMethod request <> " " <> C.takeWhile (/= ':') (C.pack (show (remoteHost request))))))

forms :: Assertion
forms = withFolder $ \folder -> do
  B.writeFile (folder </> "photo") (B.replicate 3000000 7)
  let app request respond = do
        (fields, uploads) <- parseRequestBody lbsBackEnd request
        respond (responseLBS ok200 [] (LC.pack (show (sort fields, [(name, fileName file, L.length (fileContent file)) | (name, file) <- uploads]))))
  serving app $ \port -> do
    curl port ["-F", "name=ada", "-F", "photo=@" <> (folder </> "photo")] "/" >>= (@?= "([(\"name\",\"ada\")],[(\"photo\",\"photo\",3000000)])")
    curl port ["-d", "a=1&b=two+words"] "/" >>= (@?= "([(\"a\",\"1\"),(\"b\",\"two words\")],[])")

-- | Server-sent events, and the end of the response behind them.
events :: Assertion
events = do
  left <- newIORef [ServerEvent Nothing (Just "1") ["one"], CommentEvent "between", ServerEvent (Just "kind") Nothing ["two"]]
  let next = atomicModifyIORef' left (\es -> case es of e : more -> (more, e); [] -> ([], CloseEvent))
  serving (eventSourceAppIO next) $ \port -> do
    out <- curl port ["-N"] "/"
    filter (not . null) (lines out) @?= ["id:1", "data:one", ":between", "event:kind", "data:two"]

limited :: Assertion
limited = serving (timeout 1 app) $ \port -> do
  curl port [] "/fast" >>= (@?= "fast")
  curl port ["-o", "/dev/null", "-w", "%{http_code}"] "/slow" >>= (@?= "503")
  curl port [] "/fast" >>= (@?= "fast")
  where
    app request respond = do
      when (pathInfo request == ["slow"]) (threadDelay 20000000)
      respond (responseLBS ok200 [] "fast")

files :: Assertion
files = withFolder $ \folder -> do
  createDirectory (folder </> "in")
  B.writeFile (folder </> "page.html") "<p>page</p>"
  B.writeFile (folder </> "in" </> "index.html") "index"
  B.writeFile (folder </> "large") (B.replicate 5000000 9)
  serving (staticApp (defaultWebAppSettings folder)) $ \port -> do
    curl port [] "/page.html" >>= (@?= "<p>page</p>")
    curl port ["-o", "/dev/null", "-w", "%{http_code} %{size_download}"] "/large" >>= (@?= "200 5000000")
    curl port ["-o", "/dev/null", "-w", "%{http_code} %{size_download}", "-r", "100-299"] "/large" >>= (@?= "206 200")
    curl port ["-o", "/dev/null", "-w", "%{http_code}"] "/nothing" >>= (@?= "404")
    outside <- curl port ["--path-as-is", "-o", "/dev/null", "-w", "%{http_code}"] "/../etc/passwd"
    assertBool outside (outside `elem` ["403", "404"])
    curl port ["--etag-save", folder </> "tag", "-o", "/dev/null", "-w", "%{http_code}"] "/page.html" >>= (@?= "200")
    curl port ["--etag-compare", folder </> "tag", "-o", "/dev/null", "-w", "%{http_code}"] "/page.html" >>= (@?= "304")
    fields <- curl port ["-I"] "/page.html"
    assertBool fields ("text/html" `isInfixOf` fields)
  serving (staticApp (defaultFileServerSettings folder)) $ \port -> do
    curl port ["-L"] "/in" >>= (@?= "index")
    listing <- curl port [] "/"
    assertBool listing ("page.html" `isInfixOf` listing)
