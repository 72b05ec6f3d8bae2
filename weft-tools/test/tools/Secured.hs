-- | @weft serve@ over TLS: what clients make it hold, clients' certificates, and versions.
module Secured (tests) where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (forConcurrently)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Network.Socket (PortNumber, SockAddr (..), SocketOption (RecvBuffer), tupleToHostAddress)
import Operating (callSilently, inFolder)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Posix.Signals (sigHUP)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Duration (seconds)
import qualified Weft.Socket as S
import Weft.Test.Program hiding (connected)
import Weft.Test.Skip (testCase)
import Weft.Tls
import Weft.Transport

tests :: FilePath -> TestTree
tests program =
  testGroup
    "TLS"
    [ testCase "600 idle connections hold at most 40 KiB each" . inFolder $ \folder ->
        secured program folder [] $ \p port -> do
          -- What the first ones allocate stays for others.
          first <- forConcurrently [1 .. 4 :: Int] (const (replicateM 50 (served port "/")))
          each <- growth p 600 $ forConcurrently [1 .. 4 :: Int] (const (replicateM 150 (served port "/")))
          assertBool (show each <> " bytes each") (each < 40960)
          mapM_ (mapM_ connClose) first,
      testCase "150 clients that do not read hold at most 160 KiB each, and others are served" . inFolder $ \folder -> do
        B.writeFile (folder </> "large") (B.concat (replicate 100000 (B.pack "weft keeps few bytes for a client that does not read. 64 bytes")))
        secured program folder ["--send-buffer", "131072", "--cache", "0"] $ \p port -> do
          let slowly = do
                c <- opened port
                c <$ sendRequest c "/large"
          first <- replicateM 30 slowly
          threadDelay 1000000
          each <- growth p 150 (replicateM 150 slowly)
          assertBool (show each <> " bytes each") (each < 163840)
          served port "/" >>= connClose
          mapM_ connClose first,
      testCase "20 clients of HTTP/2 that ask for 100 files each, and do not read, hold at most 6 MiB each, and others are served" . inFolder $ \folder -> do
        B.writeFile (folder </> "large") (B.concat (replicate 20000 (B.pack "weft keeps few bytes for a client that does not read. 64 bytes")))
        secured program folder ["--send-buffer", "131072"] $ \p port -> do
          let slowly = do
                c <- openedFor [B.pack "h2"] port
                c <$ connSendBytes c noDeadline (B.concat (opening : [frame 1 5 n (askFor "/large") | n <- take 100 [1, 3 ..]]))
          first <- replicateM 5 slowly
          threadDelay 1000000
          each <- growth p 20 (replicateM 20 slowly)
          assertBool (show each <> " bytes each") (each < 6144 * 1024)
          served port "/" >>= connClose
          mapM_ connClose first,
      testCase "--client-ca: only clients with a certificate of its authorities, which a reload reads again" . inFolder $ \folder -> do
        forM_ ["a", "b"] $ \name -> do
          issued folder name
        callSilently "cp" [folder </> "a.pem", folder </> "authorities.pem"] >>= (@?= "")
        let with name = ["--cert", folder </> name <> ".pem", "--key", folder </> name <> ".key"]
        secured program folder ["--client-ca", folder </> "authorities.pem"] $ \p port -> do
          fetched port [] >>= refused
          fetched port (with "a") >>= page
          fetched port (with "b") >>= refused
          callSilently "cp" [folder </> "b.pem", folder </> "authorities.pem"] >>= (@?= "")
          send' sigHUP p
          hGetLine (output p) >>= (@?= "weft: reloaded")
          fetched port (with "a") >>= refused
          fetched port (with "b") >>= page,
      testCase "--client-ca-optional: clients without a certificate too, but none with a wrong one" . inFolder $ \folder -> do
        forM_ ["a", "b"] (issued folder)
        let with name = ["--cert", folder </> name <> ".pem", "--key", folder </> name <> ".key"]
        secured program folder ["--client-ca", folder </> "a.pem", "--client-ca-optional"] $ \_ port -> do
          fetched port [] >>= page
          fetched port (with "a") >>= page
          fetched port (with "b") >>= refused,
      testCase "--tls-min 1.3: no client with TLS 1.2" . inFolder $ \folder ->
        secured program folder ["--tls-min", "1.3"] $ \_ port -> do
          fetched port ["--tls-max", "1.2"] >>= refused
          fetched port ["--tlsv1.3"] >>= page,
      testCase "TLS 1.2 without --tls-min" . inFolder $ \folder ->
        secured program folder [] $ \_ port -> fetched port ["--tls-max", "1.2"] >>= page,
      testGroup
        "settings that need others: status 2"
        [ testCase name . inFolder $ \folder -> do
            (code, out) <- outcome program [] (["serve", folder, "--port", "0", "--check"] <> options)
            code @?= ExitFailure 2
            contains out part
          | (name, options, part) <-
              [ ("--client-ca without a certificate", ["--client-ca", "/etc/hostname"], "--client-ca needs a certificate"),
                ("--client-ca-optional without --client-ca", ["--client-ca-optional"], "--client-ca-optional needs --client-ca")
              ]
        ],
      testCase "--check reads the file of --client-ca" . inFolder $ \folder -> do
        issued folder "site"
        (code, out) <- outcome program [] ["serve", folder, "--check", "--certificate", folder </> "site.pem", "--key", folder </> "site.key", "--client-ca", "/etc/hostname"]
        code @?= ExitFailure 2
        contains out "/etc/hostname holds no certificate in PEM"
    ]
  where
    page (code, out) = (code, out) @?= (ExitSuccess, "<p>home</p>")
    refused (code, out) = do
      assertBool (show code) (code /= ExitSuccess)
      out @?= ""

-- | Serve a folder with a certificate of its own.
secured :: FilePath -> FilePath -> [String] -> (Running -> PortNumber -> IO a) -> IO a
secured program folder options act = do
  issued folder "site"
  weft program [] (["serve", folder, "--port", "0", "--cores", "1", "--certificate", folder </> "site.pem", "--key", folder </> "site.key"] <> options) $ \p -> portOf p >>= act p

-- | A certificate for localhost that is its own authority, and its key, @NAME.pem@ and @NAME.key@.
issued :: FilePath -> String -> IO ()
issued folder name =
  void (callSilently "openssl" ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", folder </> name <> ".key", "-out", folder </> name <> ".pem"])

-- | The page of the site, by curl.
fetched :: PortNumber -> [String] -> IO (ExitCode, String)
fetched port options = do
  (code, out, _) <- readProcessWithExitCode "curl" (["-sk", "--noproxy", "*", "--max-time", "60"] <> options <> ["https://127.0.0.1:" <> show port <> "/"]) ""
  pure (code, out)

-- | A connection after its handshake. It receives 4 KiB at a time.
opened :: PortNumber -> IO Connection
opened = openedFor []

-- | As 'opened', for these application protocols.
openedFor :: [B.ByteString] -> PortNumber -> IO Connection
openedFor protocols port = do
  s <- S.socket S.AF_INET S.Stream 0
  S.setSocketOption s RecvBuffer 4096
  let address = SockAddrInet port (tupleToHostAddress (127, 0, 0, 1))
  (`onException` S.close s) $ do
    S.connect s address
    tlsConnect defaultTlsClientSettings {tlsTrust = TrustAnything, tlsOffer = protocols, tlsConnectTime = seconds 60} "localhost" (socketConnection s address)

sendRequest :: Connection -> String -> IO ()
sendRequest c path = connSendBytes c noDeadline (request "GET" path "keep-alive")

-- | The beginning of a connection of HTTP\/2 (RFC 9113, 3.4), with the largest windows.
opening :: B.ByteString
opening = B.pack "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" <> frame 4 0 0 (bytes [0, 4, 0x7f, 0xff, 0xff, 0xff]) <> frame 8 0 0 (bytes [0x7f, 0xff, 0, 0])

-- | A frame: its type, its flags, its stream and what is in it.
frame :: Int -> Int -> Int -> B.ByteString -> B.ByteString
frame kind flags stream inside = bytes [0, B.length inside `div` 256, B.length inside `mod` 256, kind, flags, 0, 0, stream `div` 256, stream `mod` 256] <> inside

-- | The header block of a GET (RFC 7541, 6.1 and 6.2.2).
askFor :: String -> B.ByteString
askFor path = bytes [0x82, 0x87] <> literal 4 path <> literal 1 "localhost"
  where
    literal name value = bytes [name, length value] <> B.pack value

bytes :: [Int] -> B.ByteString
bytes = B.pack . map toEnum

-- | A connection that has got an answer, and keeps waiting.
served :: PortNumber -> String -> IO Connection
served port path = do
  c <- opened port
  sendRequest c path
  deadline <- deadlineIn (seconds 60)
  answer <- connReceive c deadline 4096
  c <$ assertBool (show answer) (B.pack "HTTP/1.1 200" `B.isPrefixOf` answer)

-- | The resident bytes for each of the things that an action makes and returns, once they do not grow any more.
growth :: Running -> Int -> IO a -> IO Int
growth p n act = do
  before <- resident p
  made <- act
  grown <- settled =<< resident p
  _ <- evaluate made
  pure ((grown - before) `div` n)
  where
    settled last' = do
      threadDelay 1000000
      now' <- resident p
      if now' <= last' then pure now' else settled now'

resident :: Running -> IO Int
resident p = do
  pid <- getPid (process p)
  status' <- maybe (pure "") (\n -> readFile ("/proc/" <> show n <> "/status")) pid
  case [read w | l <- lines status', ("VmRSS:" : w : _) <- [words l]] of
    [kilobytes] -> pure (1024 * kilobytes)
    _ -> assertFailure "the server has ended"
