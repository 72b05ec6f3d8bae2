{-# LANGUAGE OverloadedStrings #-}

-- |
-- @weft controller@ with Open vSwitch, with a switch that connects in a loop, and what its log says of etcd and of
-- certificates.
module Controlled (tests) where

import Control.Concurrent (forkIO, killThread, threadDelay)
import Control.Exception (bracket, finally)
import Control.Monad (forM, forM_, forever, replicateM_, unless, void)
import qualified Data.ByteString as B
import Data.List (isInfixOf, isPrefixOf, partition)
import Data.Maybe (mapMaybe)
import Data.String (fromString)
import GHC.Clock (getMonotonicTime)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import Numeric (showHex, showOct)
import System.Directory (listDirectory)
import System.Exit (ExitCode (..))
import System.IO (IOMode (AppendMode), hGetContents, hGetLine, withFile)
import System.Process (CreateProcess (std_err, std_out), StdStream (UseHandle), getPid, proc, readProcessWithExitCode, waitForProcess, withCreateProcess)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Text.Read (readMaybe)
import Weft.Test.Files (withFolder)
import Weft.Test.OpenVSwitch
import Weft.Test.Program
import Weft.Test.Skip (needProgram, testCase)

tests :: FilePath -> TestTree
tests program = testGroup "controller" (log' program : unwritableLog program : unreadLog program : manyReaders program : noEtcd program : unauthorised program : slow program : secureEtcd program : rejected program : boundCertificates program : badCertificates program : map (killed program) ["OpenFlow10", "OpenFlow13"])

-- | Each of 300 connections of the same switch is three events.
log' :: FilePath -> TestTree
log' program = testCase "of a switch that connects in a loop the log has ten lines a second" . weft program [] ["controller", "--listen", "127.0.0.1:0"] $ \p -> do
  port <- read . reverse . takeWhile (/= ':') . reverse <$> hGetLine (output p)
  begun <- getMonotonicTime
  replicateM_ 300 . connected port $ \s -> do
    -- HELLO, and FEATURES_REPLY without ports (1.0.1, 5.3.1).
    sendAll s (B.pack [1, 0, 0, 8, 0, 0, 0, 1] <> B.pack ([1, 6, 0, 32, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7] <> replicate 16 0))
    -- ECHO_REQUEST; its reply comes after HELLO, FEATURES_REQUEST and SET_CONFIG.
    sendAll s (B.pack [1, 2, 0, 8, 0, 0, 0, 9])
    let reply bytes = unless (B.pack [1, 3, 0, 8, 0, 0, 0, 9] `B.isInfixOf` bytes) $ do
          more <- recv s 4096
          if B.null more then assertFailure "the controller closed the connection" else reply (bytes <> more)
    reply ""
  over <- getMonotonicTime
  -- The number of the last second's others is logged within 1.2 seconds.
  threadDelay 3000000
  send' 15 p
  found <- lines <$> hGetContents (errors p)
  let many = length found
      (others, events) = partition ("weft: not logged: " `isPrefixOf`) found
  assertBool (unlines (take 3 events)) ("weft: switch 0000000000000007 is connected" `elem` events && "weft: the connection of switch 0000000000000007 ended: the switch closed its connection" `elem` events)
  assertBool (show many) (many <= 11 * (ceiling (over - begun) + 2))
  assertBool (unlines others) (length events + sum [n | l <- others, n : _ <- [mapMaybe readMaybe (words l)]] >= (600 :: Int))

-- | Writing to the standard error fails from the start.
unwritableLog :: FilePath -> TestTree
unwritableLog program = testCase "switches stay connected if the log cannot be written" . started [] (proc "sh" ["-c", "exec \"$0\" \"$@\" 2>/dev/full", program, "controller", "--listen", "127.0.0.1:0"]) $ \p -> do
  port <- read . reverse . takeWhile (/= ':') . reverse <$> hGetLine (output p)
  answersSwitch port
  send' 15 p
  waitForProcess (process p) >>= (@?= ExitSuccess)

-- | The standard error is a pipe that is full, and nobody reads it.
unreadLog :: FilePath -> TestTree
unreadLog program = testCase "a log that nobody reads delays no switch, and not the end" . started [] (proc "sh" ["-c", "timeout 10 head -c 65536 /dev/zero >&2; exec \"$0\" \"$@\"", program, "controller", "--listen", "127.0.0.1:0"]) $ \p -> do
  port <- read . reverse . takeWhile (/= ':') . reverse <$> hGetLine (output p)
  replicateM_ 3 (answersSwitch port)
  send' 15 p
  ended <- timeout 60000000 (waitForProcess (process p))
  ended @?= Just ExitSuccess

-- | Clients of the northbound interface may take an eighth of the descriptors, and no more: with 256, 32 and a few that
-- are about to be refused. The listening sockets and managers take some, too.
manyReaders :: FilePath -> TestTree
manyReaders program = testCase "silent clients of the northbound interface leave descriptors to switches" . started [] (proc "sh" ["-c", "ulimit -n 256; exec \"$0\" \"$@\"", program, "controller", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]) $ \p -> do
  port <- portAfter <$> hGetLine (output p)
  http <- portAfter . init <$> hGetLine (output p)
  let among :: Int -> [Socket] -> ([Socket] -> IO ()) -> IO ()
      among 0 sockets act = act sockets
      among n sockets act = connected http (\s -> among (n - 1) (s : sockets) act)
  among 300 [] $ \_ -> do
    threadDelay 1000000
    pid <- maybe (assertFailure "no process") pure =<< getPid (process p)
    open <- length <$> listDirectory ("/proc/" <> show pid <> "/fd")
    assertBool (show open) (open <= 128)
    answersSwitch port
  where
    portAfter :: String -> PortNumber
    portAfter = read . reverse . takeWhile (/= ':') . reverse

-- | A switch of 1.0 without ports connects, and sends an ERROR message. The controller then answers an echo request.
answersSwitch :: PortNumber -> Assertion
answersSwitch port = connected port $ \s -> do
  sendAll s (B.pack [1, 0, 0, 8, 0, 0, 0, 1] <> B.pack ([1, 6, 0, 32, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7] <> replicate 16 0))
  sendAll s (B.pack [1, 1, 0, 12, 0, 0, 0, 3, 0, 1, 0, 1] <> B.pack [1, 2, 0, 8, 0, 0, 0, 9])
  let reply bytes = unless (B.pack [1, 3, 0, 8, 0, 0, 0, 9] `B.isInfixOf` bytes) $ do
        more <- timeout 60000000 (recv s 4096)
        case more of
          Nothing -> assertFailure "no answer to an echo request within a minute"
          Just "" -> assertFailure "the controller closed the connection"
          Just new -> reply (bytes <> new)
  reply ""

-- | Nothing listens at the address of etcd.
noEtcd :: FilePath -> TestTree
noEtcd program = testCase "the reason why etcd does not answer is logged in words" $ do
  url <- withEtcd (const (pure ())) pure
  weft program [] ["controller", "--listen", "127.0.0.1:0", "--etcd", url] $ \p -> do
    line <- hGetLine (errors p)
    contains line (url <> ": etcd does not answer: Connection refused")

-- | Something answers at the address of etcd, but not with success. A slash at the end of the URL is no path.
unauthorised :: FilePath -> TestTree
unauthorised program = testCase "the status with which etcd answers is logged, and its reason" . withEtcd answer $ \url ->
  weft program [] ["controller", "--listen", "127.0.0.1:0", "--etcd", url <> "/"] $ \p -> do
    line <- hGetLine (errors p)
    contains line (url <> ": etcd answered 401 Unauthorized: user name is empty")
    assertBool line (not (any (`isInfixOf` line) ["does not answer", "StatusCodeException"]))
  where
    answer s = do
      asked <- recv s 65536
      let body' = if "POST /v3/" `B.isPrefixOf` asked then "{\"error\":\"user name is empty\",\"code\":3}" else "{}"
      sendAll s ("HTTP/1.1 401 Unauthorized\r\nConnection: close\r\nContent-Length: " <> fromString (show (B.length body')) <> "\r\n\r\n" <> body')

-- | What accepts connections at the address of etcd answers nothing.
slow :: FilePath -> TestTree
slow program = testCase "the time in which etcd has to answer is logged" . withEtcd untilClosed $ \url ->
  weft program [] ["controller", "--listen", "127.0.0.1:0", "--etcd", url] $ \p -> do
    line <- hGetLine (errors p)
    contains line (url <> ": etcd did not answer a request within 1.25 s")
  where
    untilClosed s = recv s 65536 >>= \bytes -> unless (B.null bytes) (untilClosed s)

-- | etcd's certificate is its own authority. The file with the password has a wrong one at first.
secureEtcd :: FilePath -> TestTree
secureEtcd program = testCase "etcd with TLS and a user; the password is read again" $ do
  mapM_ needProgram ["etcd", "openssl", "curl"]
  withFolder $ \folder -> do
    let file name = folder <> "/" <> name
        run name arguments = do
          (code, out, why) <- readProcessWithExitCode "timeout" ("60" : name : arguments) ""
          assertEqual (unwords (name : arguments) <> out <> why) ExitSuccess code
    run "openssl" ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/O=etcd", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", file "etcd.key", "-out", file "etcd.pem"]
    writeFile (file "password") "wrong\n"
    [client, peer] <- forM [(), ()] (const (withEtcd (const (pure ())) pure))
    let url = "https" <> drop 4 client
        asked rpc body' = run "curl" ["-sS", "--fail-with-body", "--max-time", "50", "--cacert", file "etcd.pem", "-d", body', url <> rpc]
        etcd = proc "etcd" ["--data-dir", file "data", "--listen-client-urls", url, "--advertise-client-urls", url, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" <> peer, "--cert-file", file "etcd.pem", "--key-file", file "etcd.key", "--bcrypt-cost", "4"]
    withFile (file "log") AppendMode $ \to -> withCreateProcess etcd {std_out = UseHandle to, std_err = UseHandle to} $ \_ _ _ _ -> do
      run "curl" ["-sS", "--fail", "--retry", "100", "--retry-delay", "1", "--retry-connrefused", "--max-time", "50", "--cacert", file "etcd.pem", url <> "/health"]
      asked "/v3/auth/user/add" "{\"name\":\"root\",\"password\":\"right\"}"
      asked "/v3/auth/role/add" "{\"name\":\"root\"}"
      asked "/v3/auth/user/grant" "{\"user\":\"root\",\"role\":\"root\"}"
      asked "/v3/auth/enable" "{}"
      -- etcd has 1.25 seconds, which may be too short for a busy machine.
      let untilAnswered :: Int -> Assertion
          untilAnswered tries = do
            inTime <- weft program [] ["controller", "--listen", "127.0.0.1:0", "--etcd", url, "--etcd-ca", file "etcd.pem", "--etcd-user", "root", "--etcd-password-file", file "password"] $ \p -> do
              line <- hGetLine (errors p)
              if "did not answer a request" `isInfixOf` line
                then pure False
                else do
                  contains line (url <> ": the log-in of user \"root\" failed: etcd answered 400 Bad Request: ")
                  writeFile (file "password") "right\r\n"
                  again <- hGetLine (errors p)
                  True <$ (again @?= "weft: etcd answers")
            unless inTime (if tries > 0 then untilAnswered (tries - 1) else assertFailure "etcd did not answer in time")
      untilAnswered 20

-- | Run an action with the URL of a server that handles one connection at a time.
withEtcd :: (Socket -> IO ()) -> (String -> IO a) -> IO a
withEtcd serve act = bracket listener close $ \l -> do
  port <- socketPort l
  bracket (forkIO (forever (accept l >>= \(s, _) -> serve s `finally` close s))) killThread (const (act ("http://127.0.0.1:" <> show port)))
  where
    listener = do
      l <- socket AF_INET Stream defaultProtocol
      bind l (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
      l <$ listen l 8

-- | Run openssl(1), and return what it prints.
openssl :: [String] -> IO String
openssl arguments = do
  (code, out, why) <- readProcessWithExitCode "timeout" ("60" : "openssl" : arguments) ""
  assertEqual why ExitSuccess code
  pure out

-- | A certificate of a subject that is its own authority, and its key: NAME.pem and NAME.key in the folder.
ownAuthority :: FilePath -> String -> String -> IO ()
ownAuthority folder subject name =
  void (openssl (words "req -x509 -newkey rsa:2048 -nodes -days 2" <> ["-subj", "/CN=" <> subject, "-keyout", file ".key", "-out", file ".pem"]))
  where
    file suffix = folder <> "/" <> name <> suffix

-- | OpenSSL 3.0 makes a certificate of version 1 if it is given no extensions.
rejected :: FilePath -> TestTree
rejected program = testCase "the log says why a switch's certificate is rejected" $ do
  needProgram "openssl"
  withFolder $ \folder -> do
    let file name = folder <> "/" <> name
    ownAuthority folder "authority" "ca"
    -- Its authority is itself.
    ownAuthority folder "switch" "switch"
    weft program [] ["controller", "--listen", "127.0.0.1:0", "--certificate", file "ca.pem", "--key", file "ca.key", "--switch-authorities", file "ca.pem"] $ \p -> do
      address <- last . words <$> hGetLine (output p)
      _ <- readProcessWithExitCode "timeout" ["60", "openssl", "s_client", "-connect", address, "-cert", file "switch.pem", "-key", file "switch.key"] ""
      line <- hGetLine (errors p)
      let expected = ["weft: the connection of 127.0.0.1:", " before its handshake ended: TLS: certificate rejected: self-signed certificate"]
      assertBool line (all (`isInfixOf` line) expected)

-- | Two switches with certificates of the same authority, each bound to a datapath ID.
boundCertificates :: FilePath -> TestTree
boundCertificates program = testCase "a datapath ID can be claimed with its certificate only" $ do
  needProgram "openssl"
  withFolder $ \folder -> do
    let file name = folder <> "/" <> name
    ownAuthority folder "authority" "ca"
    writeFile (file "extensions") "basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n"
    prints <- forM ["a", "b"] $ \name -> do
      _ <- openssl ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" <> name, "-keyout", file (name <> ".key"), "-out", file (name <> ".csr")]
      _ <- openssl ["x509", "-req", "-in", file (name <> ".csr"), "-CA", file "ca.pem", "-CAkey", file "ca.key", "-CAcreateserial", "-extfile", file "extensions", "-days", "2", "-out", file (name <> ".pem")]
      takeWhile (/= '\n') . drop 1 . dropWhile (/= '=') <$> openssl ["x509", "-noout", "-fingerprint", "-sha256", "-in", file (name <> ".pem")]
    -- The second one without colons, and for two IDs.
    case prints of
      [a, b] -> writeFile (file "bindings") (unlines ["# switches", "1 " <> a, "", "0000000000000002 " <> filter (/= ':') b, "000000000000000a " <> b, "000000000000000a " <> a])
      _ -> assertFailure "two fingerprints"
    weft program [] ["controller", "--listen", "127.0.0.1:0", "--certificate", file "ca.pem", "--key", file "ca.key", "--switch-authorities", file "ca.pem", "--switch-certificates", file "bindings"] $ \p -> do
      address <- last . words <$> hGetLine (output p)
      -- HELLO, and FEATURES_REPLY with this datapath ID (1.0.1, 5.3.1). The end of the input ends the connection.
      let claim name d = do
            let bytes = [1, 0, 0, 8, 0, 0, 0, 1] <> [1, 6, 0, 32, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, d] <> replicate 16 (0 :: Int)
                said = concatMap (\b -> '\\' : showOct b "") bytes
            readProcessWithExitCode "sh" ["-c", "(printf '" <> said <> "'; sleep 1) | timeout 60 openssl s_client -quiet -no_ign_eof -connect " <> address <> " -cert " <> file (name <> ".pem") <> " -key " <> file (name <> ".key") <> " >/dev/null 2>&1"] ""
          untilLine text = hGetLine (errors p) >>= \line -> if text `isInfixOf` line then pure line else assertBool line (not ("is connected" `isInfixOf` line)) >> untilLine text
          served name d = claim name d >> untilLine "is connected" >>= \line -> contains line ("switch 000000000000000" <> showHex d " is connected") >> void (untilLine "is gone")
          refused name d why = claim name d >> untilLine why >>= \line -> contains line ("000000000000000" <> showHex d "")
      served "a" 1
      refused "b" 1 "may not claim datapath ID"
      served "b" 2
      refused "a" 2 "may not claim datapath ID"
      served "a" 10
      served "b" 10
      refused "a" 3 "no certificate may claim datapath ID"

-- | Without them every switch would be refused, or the binding would not be what the operator means.
badCertificates :: FilePath -> TestTree
badCertificates program = testCase "a file of certificates with a wrong line, or with none, is refused" . withFolder $ \folder -> do
  let file = folder <> "/bindings"
  forM_ [("1 00", "line 1 "), ("\n1 " <> replicate 63 'a' <> "g", "line 2 "), ("10000000000000000 " <> replicate 64 'a', "line 1 "), ("# none\n", "no datapath ID")] $ \(text, why) -> do
    writeFile file text
    (code, _, err) <- readProcessWithExitCode program ["controller", "--listen", "127.0.0.1:0", "--certificate", "c", "--key", "k", "--switch-authorities", "a", "--switch-certificates", file] ""
    (text, code) @?= (text, ExitFailure 2)
    contains err why

killed :: FilePath -> String -> TestTree
killed program version = testCase (version <> ": killed (SIGKILL) and started again: flows forward meanwhile, and new hosts are learned") $ do
  needOvs
  withOvs Dummy $ \ovs -> do
    let arrives what port act = do
          before <- length <$> sentFrames ovs port
          let again = do
                () <- act
                threadDelay 100000
                now <- length <$> sentFrames ovs port
                if now > before then pure () else again
          timeout 100000000 again >>= maybe (assertFailure ("no frame at " <> port <> ": " <> what)) pure
    address <- weft program [] ["controller", "--listen", "127.0.0.1:0", "--quiet"] $ \p -> do
      address <- last . words <$> hGetLine (output p)
      dummyBridge ovs version "br0" 1 ("tcp:" <> address)
      forM_ [1, 2] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
      arrives "a flooded one" "p2" (receive ovs "p1" 1 2)
      arrives "one to a host that was learned" "p1" (receive ovs "p2" 2 1)
      send' 9 p
      address <$ waitForProcess (process p)
    arrives "without a controller" "p1" (receive ovs "p2" 2 1)
    weft program [] ["controller", "--listen", address, "--quiet"] $ \p -> do
      void (hGetLine (output p))
      arrives "from a new host" "p2" (receive ovs "p1" 3 2)
      arrives "to the new host" "p1" (receive ovs "p2" 2 3)
    complaints <- filter ("OFPT_ERROR" `isInfixOf`) . lines <$> ovsLog ovs
    take 3 complaints @?= []
