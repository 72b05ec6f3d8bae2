{-# LANGUAGE OverloadedStrings #-}

-- | Rules for paths of @weft serve@: fields, types, addresses without a suffix, networks, methods, rates and bodies,
-- for files and behind @--proxy@; and the spellings of a path by which a client could try to get past them.
module Ruled (tests) where

import Answering (getWith, serving)
import qualified BodyRules
import Control.Exception (IOException, try)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.Char (isSpace)
import Data.IORef
import Data.List (dropWhileEnd, isInfixOf, isPrefixOf)
import Network.Socket.ByteString (sendAll)
import Operating (callSilently, config, has, inFolder, selfSigned)
import qualified RuleLaws
import System.Directory (createDirectory)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hGetLine)
import System.Posix.Signals (sigHUP)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Peer (Conversation, hearBytes, hearRequest, say, withPeer)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "rules"
    [ RuleLaws.tests,
      BodyRules.tests,
      testGroup "fields, types and addresses" (answers program),
      testGroup "restrictions" (restrictions program),
      testGroup "no spelling of a path gets past a rule" (spellings program),
      testGroup "configuration" (configurations program)
    ]

-- Answers --------------------------------------------------------------------------------

answers :: FilePath -> [TestTree]
answers program =
  [ testCase "--header: of each name the first path that matches; about files on 2xx and 304 only, for security on errors of every kind" . inFolder $ \folder -> do
      createDirectory (folder </> "assets")
      writeFile (folder </> "assets" </> "a.js") "script"
      let keep = "Cache-Control: max-age=31536000, immutable"
          options =
            concat
              [ ["--header", rule]
                | rule <- ["Cache-Control: max-age=60", "X-Frame-Options: DENY", "/assets/old.js=Cache-Control: no-store", "/assets/*=" <> keep, "/assets/*=Link: </a>", "/assets/*=Link: </b>", "/*=Referrer-Policy: no-referrer"]
              ]
      dead <- withPeer (\_ _ -> pure ()) pure
      withPeer (const (forever . saying "200 OK" "proxied")) $ \up ->
        serving program folder (options <> ["--fallback", "/index.html", "--proxy", "/assets/up/=" <> at up, "--proxy", "/assets/dead/=" <> at dead, "--deny", "/assets/no/*=all"]) $ \port -> do
          let ask fields path code = do
                answer <- getWith fields port path
                status answer @?= code
                has "X-Frame-Options: DENY" answer
                has "Referrer-Policy: no-referrer" answer
                pure answer
          found <- ask [] "/assets/a.js" 200
          mapM_ (`has` found) [keep, "Link: </a>", "Link: </b>"]
          lacks "max-age=60" found
          let tag = B.unpack (B.takeWhile (/= '\r') (B.drop 6 (snd (B.breakSubstring "ETag: " found))))
          ask ["If-None-Match: " <> tag] "/assets/a.js" 304 >>= has keep
          ask ["Range: bytes=0-1"] "/%61ssets//a.js" 206 >>= has keep
          ask [] "/" 200 >>= has "Cache-Control: max-age=60"
          ask [] "/assets/up/x" 200 >>= has keep
          -- A fallback page is another file.
          page <- ask [] "/assets/none.js" 200
          has "Cache-Control: max-age=60" page
          lacks "immutable" page
          forM_ [("/assets/dead/x", 502), ("/assets/no/x", 403)] $ \(path, code) -> do
            answer <- ask [] path code
            lacks "immutable" answer
            has "Link: </a>" answer
          ask [] "/assets/old.js" 200 >>= has "Cache-Control: no-store",
    testCase "--header Content-Type does not replace that of several ranges, which says where they begin" . inFolder $ \folder -> do
      writeFile (folder </> "a.txt") "0123456789"
      forM_ ["Content-Type: text/x-own", "/*.txt=Content-Type: text/x-own"] $ \rule -> serving program folder ["--header", rule] $ \port -> do
        getWith ["Range: bytes=0-0,2-2"] port "/a.txt" >>= \answer -> do
          (status answer, count "\r\nContent-Type: multipart/byteranges; boundary=" answer) @?= (206, 1)
        getWith ["Range: bytes=0-0"] port "/a.txt" >>= has "Content-Type: text/x-own",
    testCase "--type for paths, with charsets; a suffix comes after them" . inFolder $ \folder -> do
      createDirectory (folder </> "old")
      forM_ ["old/a.html", "feed.xml", "a.html", "x.map", "sub/x.map"] $ \name -> writeFile (folder </> name) "text"
      serving program folder (concat [["--type", rule] | rule <- ["map=text/x-map", "/old/*=text/html; charset=iso-8859-1", "/feed.xml=application/atom+xml", "/sub/*.map=text/x-other"]]) $ \port ->
        forM_ [("/old/a.html", "text/html; charset=iso-8859-1"), ("//old/%61.html", "text/html; charset=iso-8859-1"), ("/feed.xml", "application/atom+xml"), ("/a.html", "text/html; charset=utf-8"), ("/x.map", "text/x-map; charset=utf-8"), ("/sub/x.map", "text/x-other; charset=utf-8")] $ \(path, expected) ->
          get port path >>= has ("Content-Type: " <> expected),
    testCase "--clean-urls: a page without its suffix, also as an error page and below folders; folders and files come as they are" . inFolder $ \folder -> do
      createDirectory (folder </> "team")
      forM_ [("about.html", "about"), ("plain", "plain"), ("plain.html", "not this"), ("sub.html", "page of sub"), ("sub/index.html", "index of sub"), ("team/a.html", "a"), ("team/v1.2.html", "1.2"), ("x.css.html", "not this"), ("404.html", "not here")] $ \(name, text) -> writeFile (folder </> name) text
      serving program folder ["--clean-urls", "--error-page", "404=/404"] $ \port -> do
        forM_ [("/about", "about"), ("/ab%6Fut?q=1", "about"), ("/about.html", "about"), ("/plain", "plain"), ("/sub", "page of sub"), ("/sub/", "index of sub"), ("/team/a", "a"), ("/team/v1.2", "1.2")] $ \(path, text) -> replicateM_ 2 (get port path >>= answered 200 text)
        forM_ ["/nothing", "/about/", "/team/", "/%2ehidden", "/x.css", "/x.css.htm", "/about.html.html"] $ \path -> get port path >>= answered 404 "not here"
        moved <- get port "/team"
        status moved @?= 301
        has "Location: ./team/" moved
        exchange port (request "HEAD" "/about" "close") >>= has "Content-Length: 5"
      serving program folder [] $ \port -> get port "/about" >>= (@?= 404) . status
      (code, out) <- outcome program [] ["serve", folder, "--check", "--clean-urls", "--error-page", "404=/404"]
      (code, out) @?= (ExitSuccess, "weft: the configuration has no errors\n")
  ]

-- Restrictions ---------------------------------------------------------------------------

restrictions :: FilePath -> [TestTree]
restrictions program =
  [ testCase "--allow and --deny: by the client's address, from X-Forwarded-For of trusted proxies" . inFolder $ \folder -> do
      writeFile (folder </> "sub" </> "a") "text"
      writeFile (folder </> "403.html") "not for you"
      serving program folder ["--trusted-proxy", "127.0.0.1", "--allow", "/sub/*=192.0.2.0/24, 2001:db8::/32", "--allow", "/sub/*=198.51.100.7", "--deny", "/*=192.0.2.66", "--deny", "2001:db8:bad::/48", "--error-page", "403=/403.html"] $ \port -> do
        let from client = getWith ["X-Forwarded-For: " <> client] port
        forM_ ["192.0.2.1", "::ffff:192.0.2.2", "2001:db8::1", "198.51.100.7", "203.0.113.1, 192.0.2.1"] $ \client -> from client "/sub/a" >>= answered 200 "text"
        forM_ ["203.0.113.1", "192.0.2.66", "2001:db8:bad::1", "192.0.2.1, 203.0.113.1", "::1"] $ \client -> from client "/sub/a" >>= answered 403 "not for you"
        from "203.0.113.1" "/" >>= answered 200 "<p>home</p>"
        forM_ ["192.0.2.66", "::ffff:192.0.2.66"] $ \client -> from client "/" >>= (@?= 403) . status
        -- Whom the proxy does not name is in no network.
        forM_ [[], ["X-Forwarded-For: unknown"], ["X-Forwarded-For: 192.0.2.1, unknown"], ["X-Forwarded-For: unknown, 127.0.0.1"]] $ \fields ->
          forM_ ["/sub/a", "/"] $ \path -> getWith fields port path >>= (@?= 403) . status,
    testCase "--allow: an untrusted client cannot choose its address; a first rule opens what a later one closes" . inFolder $ \folder -> do
      writeFile (folder </> "sub" </> "a") "text"
      serving program folder ["--allow", "10.0.0.0/8", "--allow", "/sub/*=all"] $ \port -> do
        getWith ["X-Forwarded-For: 10.0.0.1"] port "/" >>= (@?= 403) . status
        get port "/sub/a" >>= answered 200 "text"
        get port "/healthz" >>= (@?= 200) . status
      serving program folder ["--allow", "127.0.0.0/8"] $ \port -> get port "/" >>= (@?= 200) . status,
    testCase "--allow: the client that the PROXY protocol names" . inFolder $ \folder ->
      serving program folder ["--proxy-protocol", "required", "--trusted-proxy", "0.0.0.0/0", "--allow", "192.0.2.0/24"] $ \port -> do
        let from client = exchange port ("PROXY TCP4 " <> client <> " 127.0.0.1 4000 80\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        from "192.0.2.1" >>= answered 200 "<p>home</p>"
        from "198.51.100.1" >>= (@?= 403) . status,
    testCase "--methods: 405 with Allow; GET allows HEAD; for files and proxies, and before the server behind hears of it" . inFolder $ \folder -> do
      heard <- newIORef (0 :: Int)
      withPeer (const (forever . (>> modifyIORef' heard (+ 1)) . saying "200 OK" "done")) $ \up ->
        serving program folder ["--proxy", "/api/=" <> at up, "--methods", "/api/read/*=GET", "--methods", "/api/*=GET,POST", "--methods", "/sub/*=HEAD"] $ \port -> do
          let ask method path = exchange port (request method path "close")
          ask "GET" "/api/read/x" >>= answered 200 "done"
          ask "POST" "/api/x" >>= answered 200 "done"
          ask "HEAD" "/api/read/x" >>= (@?= 200) . status
          before <- readIORef heard
          forM_ [("POST", "/api/read/x", "GET, HEAD"), ("DELETE", "/api/x", "GET, HEAD, POST"), ("get", "/api/x", "GET, HEAD, POST"), ("OPTIONS", "/api/read", "GET, HEAD"), ("GET", "/sub/", "HEAD")] $ \(method, path, expected) -> do
            answer <- ask method path
            status answer @?= 405
            has ("Allow: " <> expected) answer
          readIORef heard >>= (@?= before)
          ask "GET" "/" >>= answered 200 "<p>home</p>",
    testCase "--max-body: 413, with a length at once, in chunks where it becomes too long; and the server behind never gets a whole request" . inFolder $ \folder -> do
      whole <- newIORef (0 :: Int)
      let reading :: Conversation -> IO ()
          reading c = do
            h <- hearRequest c
            got <- if "chunked" `B.isInfixOf` h then chunksOf c else maybe (pure "") (hearBytes c . fst) (B.readInt (B.drop 16 (snd (B.breakSubstring "Content-Length: " h))))
            modifyIORef' whole (+ 1)
            say c ("HTTP/1.1 200 OK\r\nContent-Length: " <> B.pack (show (length (show (B.length got)))) <> "\r\n\r\n" <> B.pack (show (B.length got)))
          chunksOf c = do
            line <- lineOf c
            case reads ("0x" <> B.unpack line) of
              [(n, "")] | n > (0 :: Int) -> (<>) <$> hearBytes c n <* hearBytes c 2 <*> chunksOf c
              _ -> "" <$ hearBytes c 2
          lineOf c = do
            b <- hearBytes c 1
            if b == "\r" then "" <$ hearBytes c 1 else (b <>) <$> lineOf c
          sized n = "POST /up/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " <> B.pack (show n) <> "\r\n\r\n" <> B.replicate n 'x'
          chunked n = "POST /up/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n" <> B.concat (replicate n ("3e8\r\n" <> B.replicate 1000 'x' <> "\r\n")) <> "0\r\n\r\n"
      withPeer (const (forever . reading)) $ \up ->
        serving program folder ["--proxy", "/up/=" <> at up, "--max-body", "/up/large/*=1M", "--max-body", "/up/*=100k"] $ \port -> do
          exchange port (sized 100000) >>= answered 200 "100000"
          exchange port (chunked 100) >>= answered 200 "100000"
          readIORef whole >>= (@?= 2)
          exchange port (sized 100001) >>= (@?= 413) . status
          exchange port (chunked 101) >>= (@?= 413) . status
          exchange port (chunked 3000) >>= (@?= 413) . status
          -- Nothing is asked for that would be refused.
          connected port $ \s -> do
            sendAll s "POST /up/x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 100001\r\n\r\n"
            answer <- recvUntil s (B.isInfixOf "\r\n\r\n")
            status answer @?= 413
          readIORef whole >>= (@?= 2)
          exchange port (B.concat ["POST /up/large/x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 200000\r\n\r\n", B.replicate 200000 'x']) >>= answered 200 "200000",
    testCase "--rate: 429 with Retry-After, for each client and rule; a reload forgets nobody, and changes the limit" . inFolder $ \folder -> do
      let file = folder </> "weft.yaml"
          rules more = config folder (["trusted-proxy: 127.0.0.1", "rate: [/index.html=2/h, /sub/*=1/h burst 3]", "hosts:", "  other.example: {folder: " <> folder <> ", rate: []}"] <> more)
      writeFile (folder </> "sub" </> "a") "text"
      rules []
      weft program [] ["serve", folder, "--port", "0", "--config", file] $ \p -> do
        port <- portOf p
        let from client = getWith ["X-Forwarded-For: " <> client] port
            statuses n client path = replicateM n (status <$> from client path)
        -- The folder and its index file are one place.
        (<>) <$> statuses 1 "192.0.2.1" "/index.html" <*> statuses 2 "192.0.2.1" "/" >>= (@?= [200, 200, 429])
        answer <- from "192.0.2.1" "/"
        let wait = B.readInt (B.drop 15 (snd (B.breakSubstring "\r\nRetry-After: " answer)))
        assertBool (show answer) (maybe False (\(n, _) -> n > 1000 && n <= 1800) wait)
        statuses 3 "192.0.2.2" "/%69ndex.html" >>= (@?= [200, 200, 429])
        statuses 4 "192.0.2.1" "/sub/a" >>= (@?= [200, 200, 200, 429])
        -- A network of IPv6 is one client.
        (<>) <$> statuses 2 "2001:db8::1" "/" <*> statuses 1 "2001:db8::2" "/" >>= (@?= [200, 200, 429])
        other <- exchange port "GET / HTTP/1.1\r\nHost: other.example\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n"
        status other @?= 200
        rules ["header: 'X-A: b'"]
        send' sigHUP p
        hGetLine (output p) >>= (@?= "weft: reloaded")
        statuses 1 "192.0.2.1" "/" >>= (@?= [429])
        config folder ["trusted-proxy: 127.0.0.1"]
        send' sigHUP p
        hGetLine (output p) >>= (@?= "weft: reloaded")
        statuses 1 "192.0.2.1" "/" >>= (@?= [200]),
    testCase "HTTP/2 and HTTP/1.1 have the same rules: curl, over TLS" . inFolder $ \folder -> do
      selfSigned folder "localhost" ".key" ".pem"
      writeFile (folder </> "sub" </> "a") "text"
      writeFile (folder </> "about.html") "about"
      withPeer (const (forever . reading')) $ \up ->
        weft program [] (["serve", folder, "--port", "0", "--certificate", folder </> ".pem", "--key", folder </> ".key", "--clean-urls", "--proxy", "/up/=" <> at up] <> concat [["--deny", "/sub/*=all"], ["--methods", "/up/*=POST"], ["--max-body", "/up/*=1k"], ["--header", "/about=Cache-Control: max-age=7"], ["--rate", "/index.html=2/h"]]) $ \p -> do
          port <- portOf p
          let ask version options path = callSilently "curl" (["-sk", "--noproxy", "*", "--max-time", "60", "--path-as-is", version, "-o", folder </> "out", "-w", "%{http_version} %{http_code} %header{cache-control}%header{allow}%header{retry-after}"] <> options <> ["https://127.0.0.1:" <> show port <> path])
          writeFile (folder </> "body") (replicate 1001 'x')
          forM_ [("--http1.1", "1.1"), ("--http2", "2")] $ \(flag, version) -> do
            let gives options path expected = ask flag options path >>= (@?= version <> " " <> expected) . dropWhileEnd isSpace
            gives [] "/about" "200 max-age=7"
            forM_ ["/sub/a", "//sub/a", "/s%75b/a", "/sub;x/a", "/sub%2fa"] $ \path -> gives [] path "403"
            gives [] "/up/x" "405 POST"
            gives ["--data-binary", "@" <> folder </> "body"] "/up/x" "413"
            gives ["-H", "Transfer-Encoding: chunked", "-T", folder </> "body", "-X", "POST"] "/up/x" "413"
            gives ["-d", "x"] "/up/x" "200"
          -- The limit is one for both.
          codes <- mapM (\flag -> (!! 1) . words <$> ask flag [] "/") ["--http2", "--http1.1", "--http2", "--http1.1"]
          codes @?= ["200", "200", "429", "429"]
  ]
  where
    reading' c = do
      h <- hearRequest c
      _ <- maybe (pure "") (hearBytes c . fst) (B.readInt (B.drop 16 (snd (B.breakSubstring "Content-Length: " h))))
      say c "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nup"

-- Spellings ------------------------------------------------------------------------------

-- | Spellings of @\/admin\/key@, and of paths that some server could take for it.
disguises :: [String]
disguises =
  [ "/admin/key",
    "//admin/key",
    "/admin//key",
    "///admin///key",
    "/%61dmin/key",
    "/%61%64%6d%69%6e/key",
    "/%61%64%6D%69%6E/key",
    "/admin/%6bey",
    "/admin%2fkey",
    "/admin%2Fkey",
    "/%2fadmin/key",
    "/admin\\key",
    "/admin%5ckey",
    "\\admin\\key",
    "/admin;/key",
    "/admin;a=b/key",
    "/admin;a=b%2fc/key",
    "/admin%3bx/key",
    "/;/admin/key",
    "/;x=y/admin/key",
    "/./admin/key",
    "/%2e/admin/key",
    "/%2E/admin/key",
    "/admin/./key",
    "/admin/%2e/key",
    "/x/../admin/key",
    "/x/%2e%2e/admin/key",
    "/x/%2E./admin/key",
    "/x/.%2e/admin/key",
    "/x/..;/admin/key",
    "/x/..;a=b/admin/key",
    "/x/%2e%2e;/admin/key",
    "/x/..%3b/admin/key",
    "/x/..%2fadmin/key",
    "/x%2f..%2fadmin/key",
    "/x/..\\admin/key",
    "/x/..%5cadmin/key",
    "/.;/admin/key",
    "/admin/x/../key",
    "/admin/key?a=/x",
    "/admin/key/",
    "/admin/key/.",
    "/admin/key;x",
    "/admin/key%3fx",
    "/admin/",
    "/admin",
    "/admin?",
    "/admin;",
    "/admin/..;/admin/key",
    "http://localhost/admin/key",
    "http://localhost//admin/key",
    "HTTP://localhost/%61dmin/key"
  ]

spellings :: FilePath -> [TestTree]
spellings program =
  [ testCase "of a file: by deny, by allow, by methods" . inFolder $ \folder -> do
      createDirectory (folder </> "admin")
      createDirectory (folder </> "x")
      writeFile (folder </> "admin" </> "key") "secret"
      writeFile (folder </> "admin" </> "index.html") "secret"
      forM_ [["--deny", "/admin/*=all"], ["--allow", "/admin/*=192.0.2.1"], ["--methods", "/admin/*=POST"], ["--deny", "/%61dmin//*=127.0.0.1"], ["--allow", "/x/*=all", "--allow", "192.0.2.1"]] $ \options -> serving program folder options $ \port ->
        forM_ disguises $ \path -> do
          answer <- ask port "GET" path
          assertBool (unwords options <> ": " <> path <> ": " <> B.unpack (B.take 200 answer)) (status answer `elem` [400, 403, 404, 405] && not ("secret" `B.isInfixOf` answer)),
    testCase "of a path behind a proxy: none is passed on, whatever the server behind makes of it" . inFolder $ \folder -> do
      heard <- newIORef []
      let hears c = do
            h <- hearRequest c
            modifyIORef' heard (B.takeWhile (/= '\r') h :)
            say c "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nsecret"
      withPeer (const (forever . hears)) $ \up ->
        forM_ [["--deny", "/admin/*=all"], ["--allow", "/admin/*=192.0.2.1"], ["--methods", "/admin/*=PUT"], ["--allow", "/x/*=all", "--allow", "192.0.2.1"]] $ \options -> serving program folder (["--proxy", "/=" <> at up] <> options) $ \port -> do
          forM_ disguises $ \path -> forM_ ["GET", "POST"] $ \method -> do
            answer <- ask port method path
            assertBool (unwords options <> ": " <> path <> ": " <> B.unpack (B.take 200 answer)) (status answer `elem` [400, 403, 404, 405])
          readIORef heard >>= (@?= [])
          -- What only looks like it is passed on.
          when (take 1 options /= ["--allow"] || take 6 (options !! 1) == "/admin") . forM_ ["/administrator", "/x/admin/key", "/a?/admin/key"] $ \path ->
            get port path >>= answered 200 "secret"
          writeIORef heard [],
    testCase "an index file has two names, and with --clean-urls a page: rules for either hold for both" . inFolder $ \folder -> do
      writeFile (folder </> "about.html") "secret"
      writeFile (folder </> "sub" </> "index.htm") "secret"
      serving program folder ["--clean-urls", "--deny", "/about.html=all", "--deny", "/sub/index.htm=all"] $ \port -> do
        forM_ ["/about", "/about.html", "/ab%6fut", "/about.htm%6c", "/sub/", "/sub/index.htm", "/sub//", "/sub/index"] $ \path -> do
          answer <- get port path
          assertBool (path <> ": " <> show answer) (not ("secret" `B.isInfixOf` answer))
        get port "/" >>= answered 200 "<p>home</p>"
      serving program folder ["--clean-urls", "--deny", "/*.htm=all", "--allow", "/about=all", "--allow", "/*.html=192.0.2.1"] $ \port ->
        forM_ ["/about", "/sub/", "/"] $ \path -> get port path >>= (@?= 403) . status
      -- A rule for pages is not one for other files.
      writeFile (folder </> "a.css") "style"
      serving program folder ["--clean-urls", "--deny", "/*.html=all"] $ \port -> do
        get port "/a.css" >>= answered 200 "style"
        get port "/about" >>= (@?= 403) . status
      serving program folder ["--clean-urls", "--deny", "/about=all", "--deny", "/=all", "--methods", "/sub/=POST"] $ \port -> do
        forM_ ["/", "/about", "/about.html", "/index.html", "/index", "http://localhost", "http://localhost?x", "/%69ndex"] $ \path -> ask port "GET" path >>= (@?= 403) . status
        forM_ ["/sub", "/sub/", "/sub/index.htm"] $ \path -> get port path >>= (@?= 405) . status
  ]
  where
    ask port method path = either (\e -> const "closed 400" (e :: IOException)) id <$> try (exchange port (request method path "close"))

-- Configuration --------------------------------------------------------------------------

configurations :: FilePath -> [TestTree]
configurations program =
  [ testGroup
      "--check says what is wrong"
      [ testCase (name <> ": " <> show values) . inFolder $ \folder -> do
          let answers' (code, out) = (code, part `isInfixOf` unwords (words out), out) @?= (if null part then ExitSuccess else ExitFailure 2, True, out)
              check content options = config folder content >> outcome program [] (["serve", folder, "--config", folder </> "weft.yaml", "--check"] <> options)
          check [name <> ": " <> show values] [] >>= answers'
          check ["hosts:", "  a.example:", "    folder: " <> folder, "    " <> name <> ": " <> show values] [] >>= answers'
          check [] (concat [["--" <> name, value] | value <- values]) >>= answers'
        | (name, values, part) <-
            [ ("allow", ["/a/*=10.0.0.0/33"], "expected an address, a network such as 10.0.0.0/8, or unix, not \"10.0.0.0/33\""),
              ("deny", ["10.0.0.1,example.com"], "not \"example.com\""),
              ("deny", ["::ffff:10.0.0.0/104"], "instead of the IPv4-mapped"),
              ("allow", [""], "expected an address"),
              ("deny", ["/a"], "expected a path, = and a value, not \"/a\""),
              ("deny", ["a=all"], "expected an address"),
              ("allow", ["/a/../b=all"], "without the segments . and .."),
              ("allow", ["/a%=all"], "two hexadecimal digits"),
              ("allow", ["/a%00*=all"], "without the byte zero"),
              ("allow", ["/a b=all"], "without blanks"),
              ("allow", ["/a?b=all"], "without a query"),
              ("allow", ["/*=all", "/a/*=::1"], "\"/*=all\" and \"/a/*=::1\": the second one never counts"),
              ("allow", ["/a/*=::1", "/*=all", "127.0.0.1", "::1"], ""),
              ("allow", ["/a/*=::1", "/a/*=::2"], ""),
              ("deny", ["/*=::1", "/a/*=::2"], ""),
              ("methods", ["/a/*=GET,PO ST"], "expected methods, separated by commas"),
              ("methods", ["/a/*=GET", "/a/b=POST"], "the second one never counts"),
              ("rate", ["/a=10"], "expected a number of requests in a second"),
              ("rate", ["/a=0/s"], "expected a number of requests"),
              ("rate", ["/a=10/d"], "expected a number of requests"),
              ("rate", ["/a=10/s burst 0"], "expected a number from 1"),
              ("rate", ["/a=10/s", "/%61=20/s"], "the second one never counts"),
              ("rate", ["/*.php=10/s", "/x/*.php=20/s burst 50"], "the second one never counts"),
              ("rate", ["/x/*.php=20/s burst 50", "/*.php=10/m", "1000/h"], ""),
              ("max-body", ["/a=10X"], "expected a number of bytes"),
              ("max-body", ["10M", "/a=1G", "/b=0"], ""),
              ("max-body", ["10M", "1G"], "the second one never counts"),
              ("header", ["/a=X"], "expected 'Name: value'"),
              ("header", ["/a/*=ETag: \"x\""], "ETag is set by the server"),
              ("header", ["/a*=A: b", "/a/b=A: c"], "the second one never counts"),
              ("header", ["/a*=A: b", "/a/b=B: c", "A: x", "A: y", "/a*=A: d"], ""),
              ("type", ["/a=text"], "expected a media type"),
              ("type", ["/a/*=text/plain", "/a/b.html=text/html"], "the second one never counts"),
              ("type", ["html=text/plain", "/a/*=text/html"], "")
            ]
      ],
    testCase "a host has rules of its own; a reload changes them" . inFolder $ \folder -> do
      let ask port name path = exchange port (B.pack ("GET " <> path <> " HTTP/1.1\r\nHost: " <> name <> "\r\nConnection: close\r\n\r\n"))
      config folder ["deny: /*=all", "header: '/*=X-A: whole'", "hosts:", "  a.example:", "    deny: []", "    methods: /sub/*=POST", "    header: ['/index.html=X-A: host']"]
      weft program [] ["serve", folder, "--port", "0", "--config", folder </> "weft.yaml"] $ \p -> do
        port <- portOf p
        ask port "x" "/" >>= \answer -> (status answer @?= 403) >> has "X-A: whole" answer
        ask port "a.example" "/" >>= \answer -> (status answer @?= 200) >> has "X-A: host" answer
        ask port "a.example" "/sub/" >>= (@?= 405) . status
        config folder ["deny: /sub/*=all"]
        send' sigHUP p
        hGetLine (output p) >>= (@?= "weft: reloaded")
        ask port "x" "/" >>= answered 200 "<p>home</p>"
        ask port "x" "/sub/" >>= (@?= 403) . status,
    testCase "the example of doc/http.md does what it says" . inFolder $ \folder -> do
      text <- readFile "../doc/http.md"
      let section = takeWhile (not . ("## " `isPrefixOf`)) (drop 1 (dropWhile (/= "## Rules for paths: `weft serve`") (lines text)))
          example = takeWhile (\l -> "    " `isPrefixOf` l || null l) (dropWhile (not . ("    clean-urls:" `isPrefixOf`)) section)
      assertBool (unlines section) (length example > 10)
      createDirectory (folder </> "assets")
      createDirectory (folder </> "admin")
      forM_ [("about.html", "about"), ("assets/a.js", "script"), ("admin/index.html", "admin"), ("feed.xml", "<feed/>")] $ \(name, content) -> writeFile (folder </> name) content
      withPeer (const (forever . saying "200 OK" "done")) $ \up -> do
        config folder (map (drop 4) example <> ["trusted-proxy: 127.0.0.1"])
        serving program folder ["--config", folder </> "weft.yaml", "--proxy", "/api/=" <> at up, "--proxy", "/login=" <> at up] $ \port -> do
          let from client = getWith ["X-Forwarded-For: " <> client] port
              post path n = exchange port (B.concat ["POST ", path, " HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\nContent-Length: ", B.pack (show n), "\r\n\r\n", B.replicate n 'x'])
          from "192.0.2.1" "/about" >>= \answer -> answered 200 "about" answer >> has "Cache-Control: max-age=60" answer
          from "192.0.2.1" "/assets/a.js" >>= has "Cache-Control: max-age=31536000, immutable"
          from "192.0.2.1" "/feed.xml" >>= has "Content-Type: application/atom+xml"
          from "192.0.2.1" "/admin/" >>= (@?= 403) . status
          from "10.1.2.3" "/admin/" >>= answered 200 "admin"
          from "203.0.113.9" "/" >>= (@?= 403) . status
          post "/api/x" 10 >>= (@?= 200) . status
          post "/api/x" 1000001 >>= (@?= 413) . status
          exchange port "DELETE /api/x HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\nConnection: close\r\n\r\n" >>= (@?= 405) . status
          logins <- replicateM 10 (status <$> post "/login" 1)
          logins @?= replicate 10 200
          -- One more every six seconds is allowed.
          more <- replicateM 30 (status <$> post "/login" 1)
          assertBool (show more) (429 `elem` more)
  ]

at :: Int -> String
at port = "http://127.0.0.1:" <> show port

-- | Answer one request, whatever it is.
saying :: B.ByteString -> B.ByteString -> Conversation -> IO ()
saying line text c = do
  h <- hearRequest c
  _ <- maybe (pure "") (hearBytes c . fst) (B.readInt (B.drop 16 (snd (B.breakSubstring "Content-Length: " h))))
  say c ("HTTP/1.1 " <> line <> "\r\nContent-Length: " <> B.pack (show (B.length text)) <> "\r\n\r\n" <> (if "HEAD" `B.isPrefixOf` h then "" else text))

lacks :: B.ByteString -> B.ByteString -> Assertion
lacks part answer = assertBool (show part <> " in " <> show (B.take 400 answer)) (not (part `B.isInfixOf` answer))
