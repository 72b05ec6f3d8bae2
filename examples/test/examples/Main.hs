-- |
-- Each example is started on a port that the system chooses, and talked to.
module Main (main) where

import Control.Exception (bracket)
import Curl (curl)
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf)
import FirewallTest (firewall)
import Frameworks (frameworks)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import Running
import ShopTest (shop)
import System.Directory (createDirectory, getTemporaryDirectory, removePathForcibly)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Info (os)
import System.Process
import System.Timeout (timeout)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Weft.Test.Main (defaultMain)
import qualified Weft.Test.Skip as Skip

main :: IO ()
main =
  defaultMain . localOption (mkTimeout 150000000) . testGroup "examples" $
    [Skip.testCase "hybrid-web and hybrid-load" web | os == "linux"]
      <> [Skip.testCase "hybrid-web on a TCP stack in the program" webOnStack | os == "linux"]
      <> [firewall (runningWith "firewall") | os == "linux"]
      <> [ talk "pong" (B.pack "GET / HTTP/1.1\r\nHost: x\r\n\r\n") (B.isSuffixOf (B.pack "Pong!")),
           talk "file" (B.pack "GET / HTTP/1.1\r\nHost: x\r\n\r\n") (\answer -> B.length (body answer) == 4332),
           talk "SimpleServer" (B.pack "0123456789abcdef") (== B.pack "sixteen bytes...\n"),
           talk "echo" (B.pack "hello") (== B.pack "hello"),
           talk "events" (B.pack "hello") (== B.pack "hello"),
           testCase "deadline" deadline,
           frameworks,
           Skip.testCase "shop" shop
         ]
  where
    body = B.drop 4 . snd . B.breakSubstring (B.pack "\r\n\r\n")

-- | Twenty clients, one after the other; each answer has to satisfy the predicate
-- once it is complete.
talk :: String -> B.ByteString -> (B.ByteString -> Bool) -> TestTree
talk name request complete = testCase name . running name $ \port ->
  mapM_ (const (client port)) [1 .. 20 :: Int]
  where
    client port = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
      connect s (SockAddrInet port (tupleToHostAddress (127, 0, 0, 1)))
      sendAll s request
      answer <- timeout 30000000 (collect s B.empty)
      assertBool ("answer: " <> show answer) (maybe False complete answer)
    collect s got
      | complete got = pure got
      | otherwise = do
        more <- recv s 65536
        if B.null more then pure got else collect s (got <> more)

-- | A filter, one that takes too long, and one that does not exist.
deadline :: Assertion
deadline = do
  program <- built "deadline"
  readProcessWithExitCode program ["60", "sort", "-n"] "10\n9\n" >>= (@?= (ExitSuccess, "9\n10\n", ""))
  readProcessWithExitCode program ["60", "sh", "-c", "exit 3"] "" >>= (@?= (ExitFailure 3, "", ""))
  (late, _, _) <- readProcessWithExitCode program ["0.05", "sleep", "60"] ""
  late @?= ExitFailure 124
  (ended, _, _) <- readProcessWithExitCode "sh" ["-c", program <> " 60 sleep 60 & sleep 0.5; kill $!; wait $!"] ""
  ended @?= ExitFailure 143
  (missing, _, _) <- readProcessWithExitCode program ["60", "weft-no-such-program"] ""
  missing @?= ExitFailure 127

-- | The web server, asked by curl, and by the load generator.
web :: Assertion
web = withFolder $ \folder -> do
  let small = B.replicate 5000 'x'
      large = B.concat (replicate 60000 (B.pack "many bytes, in order "))
  createDirectory (folder </> "in")
  B.writeFile (folder </> "small") small
  B.writeFile (folder </> "large") large
  B.writeFile (folder </> "in" </> "index.html") (B.pack "index")
  runningWith "hybrid-web" [folder </> "in" </> "..", "--port", "0"] $ \port -> do
    let asked arguments path = curl (["--path-as-is"] <> arguments <> ["http://127.0.0.1:" <> show port <> path])
        gives status arguments path = asked (["-o", "/dev/null", "-w", "%{http_code}"] <> arguments) path >>= (@?= status)
    mapM_ (\_ -> asked [] "/small" >>= (@?= B.unpack small)) "twice"
    asked [] "/large" >>= (@?= B.unpack large)
    asked [] "/in" >>= (@?= "index")
    asked [] "/%69n/index.html?query" >>= (@?= "index")
    headers <- asked ["-I"] "/small"
    assertBool headers ("Content-Length: 5000" `isInfixOf` headers)
    gives "404" [] "/nothing"
    gives "404" [] ("/../" <> reverse (takeWhile (/= '/') (reverse folder)) <> "/small")
    gives "404" [] "/%2e%2e/%2e%2e/etc/passwd"
    gives "400" [] "/%00"
    gives "405" ["-X", "DELETE"] "/small"
    gives "413" ["-X", "GET", "-d", "a body"] "/small"
    gives "414" [] ('/' : replicate 9000 'a')
    gives "431" ["-H", "Field: " <> replicate 40000 'a'] "/small"
    load <- built "hybrid-load"
    writeFile (folder </> "list") "/small\n/in/index.html\n"
    (code, said, problems) <- readProcessWithExitCode load ["--port", show port, "--connections", "50", "--seconds", "1", "--list", folder </> "list", "/large"] ""
    assertEqual problems ExitSuccess code
    assertBool said (", 0 errors" `isInfixOf` said && "requests/s" `isInfixOf` said && "p99 " `isInfixOf` said)
    (code', said', _) <- readProcessWithExitCode load ["--port", show port, "--connections", "2", "--seconds", "1", "/nothing"] ""
    code' @?= ExitSuccess
    assertBool said' ("/nothing was refused" `isInfixOf` said')
    -- It serves on when a client has gone in the middle of an answer.
    bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
      connect s (SockAddrInet port (tupleToHostAddress (127, 0, 0, 1)))
      sendAll s (B.pack "GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
    asked [] "/in/" >>= (@?= "index")

withFolder :: (FilePath -> IO a) -> IO a
withFolder act = do
  temporary <- getTemporaryDirectory
  (path, h) <- openTempFile temporary "weft-hybrid-web"
  hClose h >> removePathForcibly path
  bracket (path <$ createDirectory path) removePathForcibly act

-- | In a network namespace, which is gone with its last process.
webOnStack :: Assertion
webOnStack = do
  mapM_ Skip.needProgram ["unshare", "ip", "curl"]
  (allowed, _, why) <- readProcessWithExitCode "unshare" ["-n", "--", "ip", "tuntap", "add", "dev", "weft0", "mode", "tun"] ""
  Skip.skipUnless ("no network namespace with a TUN device: " <> takeWhile (/= '\n') why) (allowed == ExitSuccess)
  withFolder $ \folder -> do
    let page = B.concat (replicate 60000 (B.pack "many bytes, in order "))
    B.writeFile (folder </> "page") page
    server <- built "hybrid-web"
    (code, said, problems) <- readProcessWithExitCode "unshare" ["-n", "--", "sh", "-e", "-c", script, "sh", server, folder] ""
    assertEqual problems ExitSuccess code
    assertBool "another page" (said == B.unpack page)
  where
    script =
      unlines
        [ "ip tuntap add dev weft0 mode tun && ip addr add 10.77.0.1/24 dev weft0 && ip link set weft0 up",
          "\"$1\" \"$2\" --stack tun:weft0,10.77.0.2 --port 80 +RTS -N2 >\"$2/log\" & server=$!",
          "trap 'kill $server' EXIT",
          -- Until it listens, its stack refuses connections.
          "for _ in $(seq 1200); do if grep -q serving \"$2/log\"; then break; fi; sleep 0.05; done",
          "curl -sS --noproxy '*' --max-time 60 http://10.77.0.2/page"
        ]
