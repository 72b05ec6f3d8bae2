-- | Features of @weft serve@ beyond files: header fields, error pages, redirects, several addresses, virtual
-- hosts and compression.
module Answering (tests, serving, getWith, freePort) where

import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import Operating (callSilently, config, has, inFolder, overUnix, until', warned)
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Posix.Signals (sigHUP, sigTERM)
import System.Process
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "answering"
    [ pages program,
      redirecting program,
      addresses program,
      checking program,
      hosts program,
      compressing program
    ]

serving :: FilePath -> FilePath -> [String] -> (PortNumber -> IO a) -> IO a
serving program folder options act = weft program [] (["serve", folder, "--port", "0"] <> options) (portOf >=> act)

-- | A GET with these fields.
getWith :: [String] -> PortNumber -> String -> IO B.ByteString
getWith fields port path = exchange port (B.pack ("GET " <> path <> " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" <> concatMap (<> "\r\n") fields <> "\r\n"))

hasNot :: String -> B.ByteString -> Assertion
hasNot part answer = assertBool (part <> " in " <> show (B.take 400 answer)) (not (B.isInfixOf (B.pack part) answer))

pages :: FilePath -> TestTree
pages program =
  testGroup
    "pages"
    [ testCase "--header adds a field to every response" . inFolder $ \folder -> serving program folder ["--header", "X-One: 1"] $ \port -> do
        found <- get port "/"
        has "X-One: 1" found
        let tag = takeWhile (/= '\r') (B.unpack (B.drop 6 (snd (B.breakSubstring (B.pack "ETag: ") found))))
        same <- getWith ["If-None-Match: " <> tag] port "/"
        status same @?= 304
        has "X-One: 1" same
        missing <- get port "/nothing"
        status missing @?= 404
        has "X-One: 1" missing
        refused <- exchange port (request "POST" "/" "close")
        status refused @?= 405
        has "X-One: 1" refused,
      testCase "--header: what lets a file be kept is not added to errors and redirects, and what is for security is" . inFolder $ \folder -> do
        let keep = "Cache-Control: max-age=31536000, immutable"
            about = [keep, "Expires: Thu, 01 Jan 2099 00:00:00 GMT", "Content-Type: text/x-own", "Content-Disposition: inline", "Content-Language: de", "CDN-Cache-Control: max-age=60"]
            always = ["Strict-Transport-Security: max-age=31536000", "X-Frame-Options: DENY", "Content-Security-Policy: default-src 'self'"]
            options = concat [["--header", field] | field <- about <> always] <> ["--redirect", "/old=/new"]
        writeFile (folder </> "text.txt") "0123456789"
        -- One that is sent from the disk.
        B.writeFile (folder </> "large.txt") (B.replicate 1000000 'x')
        serving program folder options $ \port -> forM_ ["/text.txt", "/large.txt"] $ \file -> do
          tag <- B.takeWhile (/= '\r') . snd . B.breakSubstring (B.pack "ETag: ") <$> exchange port (request "HEAD" file "close")
          let ask fields path code = do
                answer <- getWith fields port path
                status answer @?= code
                pure answer
              known = "If-None-Match: " <> B.unpack (B.drop 6 tag)
          forM_ [([], file, 200), (["Range: bytes=0-3"], file, 206), ([known], file, 304)] $ \(fields, path, code) -> do
            answer <- ask fields path code
            mapM_ (`has` answer) (keep : always)
          forM_ [([], "/nothing", 404), ([], "/sub", 301), ([], "/old", 302), (["If-Match: \"other\""], file, 412), (["Range: bytes=9999999-"], file, 416)] $ \(fields, path, code) -> do
            answer <- ask fields path code
            mapM_ (`has` answer) always
            mapM_ (`hasNot` answer) about
          posted <- exchange port (request "POST" file "close")
          status posted @?= 405
          mapM_ (`hasNot` posted) about,
      testCase "--header: a Cache-Control that forbids keeping is on every response" . inFolder $ \folder ->
        forM_ ["no-store", "private, No-Cache"] $ \value -> serving program folder ["--header", "Cache-Control: " <> value] $ \port ->
          forM_ ["/", "/nothing"] $ \path -> get port path >>= has ("Cache-Control: " <> value),
      testCase "--header replaces fields that a response has once, and adds to lists" . inFolder $ \folder -> serving program folder ["--header", "Content-Type: text/plain", "--header", "Server: mine", "--header", "Vary: Origin", "--compress"] $ \port -> do
        writeFile (folder </> "text.css") (replicate 2000 'x')
        page <- getWith ["Accept-Encoding: gzip"] port "/text.css"
        mapM_ (`has` page) ["Content-Type: text/plain", "Server: mine", "Vary: Accept-Encoding", "Vary: Origin"]
        map (`count` page) ["Content-Type:", "Server:"] @?= [1, 1],
      testCase "media types of today, and --type" . inFolder $ \folder -> do
        let rows = [("avif", "image/avif"), ("webmanifest", "application/manifest+json"), ("geojson", "application/geo+json"), ("js.map", "application/json; charset=utf-8"), ("yaml", "application/yaml"), ("toml", "application/toml"), ("glb", "model/gltf-binary"), ("jxl", "image/jxl"), ("heic", "image/heic"), ("zst", "application/zstd"), ("wasm", "application/wasm"), ("tar.gz", "application/x-tgz"), ("HTML", "text/html; charset=utf-8"), ("unknown", "application/octet-stream")]
            typed port (suffix, expected) = get port ("/%C3%A9." <> suffix) >>= has ("Content-Type: " <> expected)
            own = [("unknown", "text/x-own; charset=utf-8"), ("toml", "text/plain; charset=latin1"), ("js.map", "application/x-map")]
        forM_ rows $ \(suffix, _) -> writeFile (folder </> ("\233." <> suffix)) "content"
        serving program folder [] $ \port -> mapM_ (typed port) rows
        serving program folder ["--type", "Unknown=text/x-own", "--type", "toml=text/plain; charset=latin1", "--type", "map=application/x-map"] $ \port ->
          mapM_ (typed port) (own <> filter ((`notElem` map fst own) . fst) rows),
      testCase "hidden files are not served, except those of /.well-known" . inFolder $ \folder -> do
        forM_ [".git", ".well-known"] $ \name -> createDirectory (folder </> name) >> writeFile (folder </> name </> "file") "content"
        writeFile (folder </> ".users") "secret"
        serving program folder ["--listing"] $ \port -> do
          forM_ ["/.users", "/.git/file", "/.git/", "/sub/../.users", "/%2eusers"] $ \path -> get port path >>= (@?= 404) . status
          get port "/.well-known/file" >>= answered 200 "content",
      testCase "--error-page: its text, the original status, no validators; HEAD has no body; a missing page changes nothing" . inFolder $ \folder -> do
        writeFile (folder </> "404.html") "<p>lost</p>"
        serving program folder ["--error-page", "404=/404.html", "--error-page", "405=/none.html"] $ \port -> do
          page <- get port "/nothing"
          (status page, body page) @?= (404, B.pack "<p>lost</p>")
          has "Content-Type: text/html; charset=utf-8" page
          mapM_ (`hasNot` page) ["ETag", "Last-Modified", "Accept-Ranges: bytes"]
          -- Conditions apply to the requested path, not to the error page.
          conditional <- getWith ["If-None-Match: *", "Range: bytes=0-1"] port "/nothing"
          (status conditional, body conditional) @?= (404, B.pack "<p>lost</p>")
          headOnly <- exchange port (request "HEAD" "/nothing" "close")
          (status headOnly, body headOnly) @?= (404, B.empty)
          has "Content-Length: 11" headOnly
          other <- exchange port (request "DELETE" "/" "close")
          status other @?= 405
          has "Allow: GET, HEAD, OPTIONS" other,
      testCase "--error-page: a large page is whole, and no range of it can be asked for" . inFolder $ \folder -> do
        writeFile (folder </> "404.html") (replicate 400000 'x')
        serving program folder ["--error-page", "404=/404.html"] $ \port -> do
          page <- getWith ["Range: bytes=0-1"] port "/nothing"
          (status page, B.length (body page)) @?= (404, 400000)
          hasNot "Accept-Ranges: bytes" page,
      testCase "--fallback: a path that does not exist gets that page, with status 200" . inFolder $ \folder -> serving program folder ["--fallback", "/index.html"] $ \port -> do
        get port "/a/deep/path?x=1" >>= answered 200 "<p>home</p>"
        -- A certificate authority must not take the page for the answer to its challenge.
        get port "/.well-known/acme-challenge/none" >>= (@?= 404) . status
        exchange port (request "POST" "/a" "close") >>= (@?= 405) . status
        get port "/../../etc/passwd" >>= hasNot "root:",
      testCase "--cors-origin: the given origin and no other; preflight requests" . inFolder $ \folder -> serving program folder ["--cors-origin", "https://a.example"] $ \port -> do
        mine <- getWith ["Origin: https://a.example"] port "/"
        has "Access-Control-Allow-Origin: https://a.example" mine
        has "Vary: Origin" mine
        other <- getWith ["Origin: https://b.example"] port "/"
        hasNot "Access-Control" other
        has "Vary: Origin" other
        preflight <- exchange port (B.pack "OPTIONS / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: x-y\r\n\r\n")
        status preflight @?= 204
        has "Access-Control-Allow-Methods: GET, HEAD, OPTIONS" preflight
        has "Access-Control-Allow-Headers: x-y" preflight,
      testCase "--cors-origin '*'" . inFolder $ \folder -> serving program folder ["--cors-origin", "*"] $ \port ->
        get port "/" >>= has "Access-Control-Allow-Origin: *"
    ]

redirecting :: FilePath -> TestTree
redirecting program =
  testGroup
    "redirects and TLS"
    [ testCase "--redirect: a path, a status, a prefix, a URL; the query is kept; no other host can be reached" . inFolder $ \folder ->
        serving program folder ["--redirect", "/old=/new 301", "--redirect", "/blog/*=https://blog.example/*", "--redirect", "/up/*=/*", "--redirect", "/q=/r?a=1", "--redirect", "/part=/r#a?b", "--redirect", "/both=/r?a=1#b"] $ \port -> do
          let leads path code target = do
                answer <- get port path
                status answer @?= code
                has ("Location: " <> target) answer
          leads "/old" 301 "/new"
          leads "/old?x=1" 301 "/new?x=1"
          leads "/blog/a/b" 302 "https://blog.example/a/b"
          leads "/q?b=2" 302 "/r?a=1"
          leads "/part?q=1" 302 "/r?q=1#a?b"
          leads "/both?q=1" 302 "/r?a=1#b"
          leads "/up//evil.example/" 302 "/evil.example/"
          leads "/up/\\evil.example/" 302 "/evil.example/"
          get port "/older" >>= (@?= 404) . status,
      testCase "--https-redirect: to the port of HTTPS, except ACME challenges; no HTTP/2 with --no-http2" . inFolder $ \folder -> do
        let file name = folder </> name
        _ <- callSilently "openssl" ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", file "key.pem", "-out", file "chain.pem"]
        createDirectoryIfMissing True (folder </> ".well-known" </> "acme-challenge")
        writeFile (folder </> ".well-known" </> "acme-challenge" </> "token") "proof"
        plain <- freePort
        let options = ["--host", "localhost", "--certificate", file "chain.pem", "--key", file "key.pem", "--https-redirect", "127.0.0.1:" <> show plain, "--no-http2", "--fallback", "/index.html"]
        weft program [] (["serve", folder, "--port", "0"] <> options) $ \p -> do
          line <- hGetLine (output p)
          let port = takeWhile (`elem` ['0' .. '9']) (drop 18 (head' (filter ("https://localhost:" `isInfixOf`) (words line))))
          answer <- exchange plain (B.pack "GET /a?b=1 HTTP/1.1\r\nHost: localhost:99\r\nConnection: close\r\n\r\n")
          status answer @?= 308
          has ("Location: https://localhost:" <> port <> "/a?b=1") answer
          asterisk <- exchange plain (B.pack "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
          has ("Location: https://localhost:" <> port <> "/") asterisk
          get plain "/.well-known/acme-challenge/token" >>= answered 200 "proof"
          get plain "/.well-known/acme-challenge/none" >>= (@?= 404) . status
          version <- callSilently "curl" ["-sS", "--noproxy", "*", "--max-time", "20", "-o", "/dev/null", "-w", "%{http_version}", "--cacert", file "chain.pem", "https://localhost:" <> port <> "/"]
          version @?= "1.1",
      testCase "a certificate of a host and none of the server: HTTPS, which the line at the start says" . inFolder $ \folder -> do
        let file name = folder </> name
        _ <- callSilently "openssl" ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", file "key.pem", "-out", file "chain.pem"]
        config folder ["hosts:", "  localhost: {folder: " <> file "sub" <> ", certificate: " <> file "chain.pem" <> ", key: " <> file "key.pem" <> "}"]
        writeFile (folder </> "sub" </> "index.html") "of the host"
        weft program [] ["serve", folder, "--port", "0", "--config", file "weft.yaml"] $ \p -> do
          line <- hGetLine (output p)
          assertBool line ("https://127.0.0.1:" `isInfixOf` line)
          port <- portIn line
          page <- callSilently "curl" ["-sS", "--noproxy", "*", "--max-time", "20", "--cacert", file "chain.pem", "https://localhost:" <> show port <> "/"]
          page @?= "of the host",
      testCase "--head-timeout is the time of a TLS handshake, also above ten seconds" . inFolder $ \folder -> do
        let file name = folder </> name
        _ <- callSilently "openssl" ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", file "key.pem", "-out", file "chain.pem"]
        serving program folder ["--certificate", file "chain.pem", "--key", file "key.pem", "--head-timeout", "60"] $ \port -> connected port $ \s -> do
          -- The first byte of a handshake record.
          sendAll s (B.pack "\x16")
          ended <- timeout 10500000 (recv s 100)
          ended @?= Nothing
    ]
  where
    head' list = case list of
      x : _ -> x
      [] -> ""

addresses :: FilePath -> TestTree
addresses program =
  testGroup
    "addresses"
    [ testCase "--listen: several ports and a Unix socket, which is removed at the end; a stale socket file is replaced" . inFolder $ \folder -> do
        other <- freePort
        let path = folder </> "socket"
            run = weft program [] ["serve", folder, "--listen", "127.0.0.1:0", "--listen", "127.0.0.1:" <> show other, "--listen", "unix:" <> path]
        forM_ [9, sigTERM] $ \signal -> run $ \p -> do
          line <- hGetLine (output p)
          assertBool line (all (`isInfixOf` line) ["http://127.0.0.1:" <> show other <> "/", "unix:" <> path])
          replicateM_ 8 (get other "/" >>= answered 200 "<p>home</p>")
          replicateM_ 8 (overUnix path (request "GET" "/" "close") >>= answered 200 "<p>home</p>")
          send' signal p
          void (waitForProcess (process p))
        doesPathExist path >>= (@?= False),
      testCase "--listen unix: a server that ends leaves the socket of its successor" . inFolder $ \folder -> do
        B.writeFile (folder </> "large") (B.replicate 20000000 'x')
        let path = folder </> "socket"
            run = weft program [] ["serve", folder, "--listen", "unix:" <> path, "--listen", "127.0.0.1:0", "--drain", "100"]
        run $ \old -> do
          port <- portOf old
          connected port $ \s -> do
            sendAll s (request "GET" "/large" "close")
            recv s 1000 >>= (@?= 200) . status
            send' sigTERM old
            until' (either (\e -> const True (e :: IOException)) (const False) <$> try (overUnix path B.empty))
            run $ \new -> do
              _ <- hGetLine (output new)
              void (recvAll s)
              waitForProcess (process old) >>= (@?= ExitSuccess)
              overUnix path (request "GET" "/" "close") >>= answered 200 "<p>home</p>",
      testCase "an address that is in use is named in the error" . inFolder $ \folder -> serving program folder [] $ \port -> do
        (code, out) <- outcome program [] ["serve", folder, "--listen", "127.0.0.1:" <> show port]
        code @?= ExitFailure 1
        assertBool out (("cannot listen on 127.0.0.1 port " <> show port <> ": it is in use") `isInfixOf` out),
      testCase "two servers that are started at the same moment at one address: at most one serves" . inFolder $ \folder ->
        forM_ ["--port", "--listen"] $ \flag -> replicateM_ 20 $ do
          port <- freePort
          let run = weft program [] ["serve", folder, "--cores", "2", flag, (if flag == "--listen" then "127.0.0.1:" else "") <> show port]
              listens p = either (\e -> const False (e :: IOException)) (const True) <$> try (hGetLine (output p))
          found <- run $ \a -> run $ \b -> mapM listens [a, b]
          assertBool "both serve" (found /= [True, True]),
      testGroup
        "wrong values are reported with the option and the expected value"
        [ testCase flag . inFolder $ \folder -> do
            (code, out) <- outcome program [] ["serve", folder, "--" <> flag, value]
            code @?= ExitFailure 2
            assertBool out (("--" <> flag) `isInfixOf` out && part `isInfixOf` out)
          | (flag, value, part) <-
              [ ("listen", "foo", "host:port"),
                ("listen", "unix:foo", "absolute path"),
                ("listen", "unix:/" <> replicate 54 '\233', "at most 107 bytes"),
                ("https-redirect", "localhost", "host:port"),
                ("error-page", "200=/x", "404=/404.html"),
                ("fallback", "index.html", "begins with /"),
                ("redirect", "/a", "/old=/new"),
                ("redirect", "/a=/b 200", "301, 302"),
                ("redirect", "/a*=https://b.example*", "/old=/new"),
                ("trusted-proxy", "10.0.0.0/99", "10.0.0.0/8"),
                ("proxy-protocol", "maybe", "optional"),
                ("proxy-half-closed", "-1", "at least 0"),
                ("cors-origin", "example.org", "https://example.org"),
                ("compress-type", "text", "text/css"),
                ("compress-type", "text/c*", "*+json"),
                ("header", "nothing", "Name: value"),
                ("header", "etag: x", "etag is set by the server"),
                ("header", "Location: /", "Location is set by the server")
              ]
        ],
      testCase "--version" $ do
        (code, out) <- outcome program [] ["serve", "--version"]
        (code, takeWhile (/= ' ') out) @?= (ExitSuccess, "weft")
        outcome program [] ["--version"] >>= (@?= (code, out))
    ]

checking :: FilePath -> TestTree
checking program =
  testGroup
    "--check"
    [ testCase "a configuration without errors" . inFolder $ \folder -> do
        config folder ["port: 0", "log: " <> folder </> "log", "hosts:", "  a.example: {folder: " <> folder </> "sub}"]
        checked folder >>= (@?= ExitSuccess) . fst
        -- --check has not created the log.
        doesPathExist (folder </> "log") >>= (@?= False),
      testGroup
        "errors: status 2, with the file, the line and the key"
        [ testCase name . inFolder $ \folder -> do
            config folder content
            (code, out) <- checked folder
            code @?= ExitFailure 2
            assertBool out (part `isInfixOf` out)
          | (name, content, part) <-
              [ ("a value", ["port: 0", "# one", "error-page: nothing"], "weft.yaml:3: error-page: "),
                ("a value of a host", ["port: 0", "hosts:", "  a.example:", "    folder: /tmp", "    redirect: x"], "weft.yaml:5: hosts.a.example.redirect: "),
                ("a setting that hosts cannot have", ["hosts:", "  a.example:", "    port: 1"], "weft.yaml:3: hosts.a.example.port: this setting is for the whole server"),
                ("a host with a port", ["hosts:", "  a.example:8080:", "    folder: /tmp"], "hosts.a.example:8080: expected a host name without a port"),
                ("a host twice", ["hosts:", "  a.example:", "    folder: /tmp", "  A.example.:", "    folder: /"], "hosts: A.example. and a.example are the same host"),
                ("a folder of a host", ["hosts:", "  a.example:", "    folder: /nonexistent"], "/nonexistent does not exist"),
                ("a certificate", ["certificate: /nonexistent.pem", "key: /nonexistent.key"], "/nonexistent.pem"),
                ("a host's certificate without a key", ["hosts:", "  a.example: {folder: /tmp, certificate: /etc/hostname}"], "hosts.a.example: a certificate needs its key"),
                ("a host's key without a certificate", ["hosts:", "  a.example: {folder: /tmp, key: /etc/hostname}"], "hosts.a.example: a key needs its certificate"),
                ("a redirect to HTTPS, hosts, and no certificate", ["https-redirect: ':80'", "hosts:", "  a.example: {folder: /tmp}"], "--https-redirect needs a certificate"),
                ("passwords", ["basic-auth: /etc/hostname"], "line 1 of /etc/hostname"),
                ("a log in a folder that does not exist", ["log: /nonexistent/x.log"], "log: /nonexistent does not exist"),
                ("a log that is a folder", ["log: /tmp"], "log: /tmp is a folder"),
                ("an error page", ["error-page: 404=/nope.html"], "error-page: the site has no file /nope.html"),
                ("an error page whose name is not ASCII", ["error-page: 404=/\233"], "error-page: the site has no file /\233\n"),
                ("a fallback", ["fallback: /nope"], "fallback: the site has no file /nope"),
                ("a fallback of a host", ["fallback: /index.html", "hosts:", "  a.example: {folder: /etc, fallback: /nope}"], "hosts.a.example.fallback: the site has no file /nope")
              ]
        ],
      testCase "all errors of files are reported" . inFolder $ \folder -> do
        let host name = "  " <> name <> ".example: {certificate: /nonexistent/" <> name <> ".pem, key: /etc/hostname}"
        config folder ["basic-auth: /nonexistent/users", "log: /nonexistent/log", "hosts:", host "a", host "b", "  c.example: {folder: /nonexistent/c}"]
        (code, out) <- checked folder
        code @?= ExitFailure 2
        mapM_ (contains out) ["/nonexistent/users", "log: /nonexistent", "/nonexistent/a.pem", "/nonexistent/b.pem", "/nonexistent/c does not exist"],
      testCase "hosts may inherit an error page that only some folders have, or that is the page of a folder" . inFolder $ \folder -> do
        writeFile (folder </> "sub" </> "404.html") "lost"
        config folder ["error-page: 404=/404.html", "fallback: /", "hosts:", "  a.example: {folder: " <> folder </> "sub}"]
        (code, out) <- checked folder
        (code, out) @?= (ExitSuccess, "weft: the configuration has no errors\n")
    ]
  where
    checked folder = outcome program [] ["serve", folder, "--config", folder </> "weft.yaml", "--check"]

hosts :: FilePath -> TestTree
hosts program = testCase "virtual hosts with their own settings, and a reload" . inFolder $ \folder -> do
  forM_ ["a", "b", "c"] $ \name -> do
    createDirectory (folder </> name)
    writeFile (folder </> name </> "index.html") name
  let settings b = ["port: 0", "header: 'X-All: 1'", "hosts:", "  a.example: {folder: " <> folder </> "a, header: 'X-A: 1'}", "  '*.b.example':", "    folder: " <> folder </> b]
      ask port name = exchange port (B.pack ("GET / HTTP/1.1\r\nHost: " <> name <> "\r\nConnection: close\r\n\r\n"))
  config folder (settings "b")
  weft program [] ["serve", folder, "--config", folder </> "weft.yaml"] $ \p -> do
    port <- portOf p
    a <- ask port "A.example:80"
    answered 200 "a" a
    has "X-A: 1" a
    hasNot "X-All" a
    forM_ ["x.b.example", "y.x.B.Example."] $ \name -> do
      b <- ask port name
      answered 200 "b" b
      has "X-All: 1" b
    forM_ ["other.example", "b.example"] $ \name -> ask port name >>= answered 200 "<p>home</p>"
    config folder (settings "c")
    send' sigHUP p
    hGetLine (output p) >>= (@?= "weft: reloaded")
    ask port "x.b.example" >>= answered 200 "c"
    config folder (settings "none")
    send' sigHUP p
    warned p "; the settings stay as they were"
    ask port "x.b.example" >>= answered 200 "c"
  config folder (settings "b")
  weft program [] ["serve", "--config", folder </> "weft.yaml"] $ \p -> do
    port <- portOf p
    ask port "other.example" >>= (@?= 421) . status
    ask port "a.example" >>= answered 200 "a"

compressing :: FilePath -> TestTree
compressing program = testCase "--compress: text files, with their own entity tags; not pictures and small files" . inFolder $ \folder -> do
  let text = concatMap show [1 :: Int .. 30000]
  writeFile (folder </> "text.txt") text
  writeFile (folder </> "other.txt") text
  writeFile (folder </> "picture.png") text
  serving program folder ["--compress"] $ \port -> do
    plain <- get port "/text.txt"
    body plain @?= B.pack text
    has "Vary: Accept-Encoding" plain
    -- The first answer is not compressed.
    let gzipped = getWith ["Accept-Encoding: gzip"] port
    until' ((B.pack "Content-Encoding: gzip" `B.isInfixOf`) <$> gzipped "/text.txt")
    small <- gzipped "/text.txt"
    has "Content-Encoding: gzip" small
    has "Vary: Accept-Encoding" small
    assertBool (show (B.length small)) (B.length small < B.length plain `div` 2)
    assertBool "one tag for both" (tagOf plain /= tagOf small && not (B.null (tagOf small)))
    curled <- callSilently "curl" ["-sS", "--noproxy", "*", "--max-time", "20", "--compressed", "http://127.0.0.1:" <> show port <> "/text.txt"]
    curled @?= text
    forM_ ["/picture.png", "/"] $ \path -> getWith ["Accept-Encoding: gzip"] port path >>= hasNot "Content-Encoding"
    -- The file changes, and a precompressed variant appears beside it.
    writeFile (folder </> "text.txt") (reverse text)
    until' ((== B.pack (reverse text)) . body <$> get port "/text.txt")
    writeFile (folder </> "text.txt.gz") "beside it"
    until' ((== B.pack "beside it") . body <$> gzipped "/text.txt")
  -- Other types.
  serving program folder ["--compress", "--compress-type", "image/*", "--compress-type", "*+json"] $ \port -> do
    until' ((B.pack "Content-Encoding: gzip" `B.isInfixOf`) <$> getWith ["Accept-Encoding: gzip"] port "/picture.png")
    getWith ["Accept-Encoding: gzip"] port "/other.txt" >>= hasNot "Content-Encoding"
  where
    tagOf = B.takeWhile (/= '\r') . snd . B.breakSubstring (B.pack "ETag: ")

-- | A port that was free a moment ago.
freePort :: IO PortNumber
freePort = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  socketPort s
