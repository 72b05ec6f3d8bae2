-- |
-- Certificates, and connections in memory and over TCP, for the suite @tls@.
module Support
  ( Files (..),
    withFiles,
    shell',
    settingsFor,
    sourceOf,
    clientFor,
    inMemory,
    overTcp,
    loopback,
    connectTo,
    clientHello,

    -- * Servers
    serving,
    at,
    run,
    issue,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.IORef
import Network.Socket (Family (AF_INET), SockAddr (..), SocketOption (..), SocketType (Stream), tupleToHostAddress)
import System.Directory
import System.Exit
import System.FilePath
import System.IO
import System.Posix.IO (closeFd, handleToFd)
import System.Posix.Types (Fd)
import System.Process
import Test.Tasty
import Weft.Duration (seconds)
import qualified Weft.Socket as S
import Weft.Tls
import Weft.Transport

-- | Certificates and keys, made once by openssl.
data Files = Files
  { folderOf :: FilePath,
    contentsOf :: (Fd, B.ByteString)
  }

-- | Tests that use them.
withFiles :: (IO Files -> TestTree) -> TestTree
withFiles = withResource makeFiles (\f -> closeFd (fst (contentsOf f)) >> removeDirectoryRecursive (folderOf f))

settingsFor :: Files -> [String] -> TlsServerSettings
settingsFor files names =
  defaultTlsServerSettings {tlsCertificates = map (sourceOf files) names, tlsProtocols = map B8.pack ["h2", "http/1.1"]}

sourceOf :: Files -> String -> CertificateSource
sourceOf files name = CertificateFiles (folderOf files </> name <> ".pem") (folderOf files </> name <> ".key")

clientFor :: Files -> TlsClientSettings
clientFor files = defaultTlsClientSettings {tlsTrust = TrustAuthorities (folderOf files </> "ca.pem")}

-- Connections ------------------------------------------------------------------------

inMemory, overTcp :: IO (Connection, Connection)
inMemory = connectionPair 65536 (SockAddrInet 1 0) (SockAddrInet 2 0)
-- Both buffers have a fixed size: the kernel would let them grow to what the machine is configured for.
overTcp = bracket (open loopback) S.close $ \l -> do
  S.listen l 1
  address <- S.getSocketName l
  c <- open loopback
  S.connect c address
  (s, peer) <- S.accept l
  pure (socketConnection c address, socketConnection s peer)
  where
    open address = do
      s <- S.socket AF_INET Stream 0
      S.setSocketOption s RecvBuffer 200000
      S.setSocketOption s SendBuffer 200000
      s <$ S.bind s address

loopback :: SockAddr
loopback = SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))

-- | A client's connection in memory, and the server's, or the client's error.
connectTo :: TlsServerSettings -> TlsClientSettings -> String -> IO (Either IOException (Connection, Connection))
connectTo serverSettings clientSettings name = do
  server <- newTlsServer serverSettings
  (a, b) <- inMemory
  accepted <- newEmptyMVar
  _ <- forkIO (try (tlsAccept server b) >>= putMVar accepted)
  connected <- try (tlsConnect clientSettings name a)
  ended <- takeMVar accepted
  pure ((,) <$> connected <*> ended)

-- | What a client sends first.
clientHello :: Files -> IO B.ByteString
clientHello files = do
  (ours, theirs) <- inMemory
  client <- forkIO (void (try (tlsConnect (clientFor files) "one.test" ours) :: IO (Either IOException Connection)))
  bytes <- connReceive theirs noDeadline 16384
  bytes <$ (killThread client >> connClose theirs)

-- Servers ----------------------------------------------------------------------------

-- | Run a server that answers an HTTP request, and echoes anything else. The action gets its port, the clients'
-- security data and the errors, the last one first.
serving :: TlsServerSettings -> (Int -> IORef [Security] -> IORef [IOException] -> IO a) -> IO a
serving settings act = do
  server <- newTlsServer settings
  seen <- newIORef []
  errors <- newIORef []
  l <- transportListen socketTransport loopback
  let handle' below = do
        r <- try (tlsAccept server below)
        case r of
          Left e -> atomicModifyIORef' errors (\es -> (e : es, ()))
          Right c -> do
            forM_ (connSecurity c) (\s -> atomicModifyIORef' seen (\ss -> (s : ss, ())))
            void (try (answer c) :: IO (Either IOException ()))
            connClose c
      answer c = do
        deadline <- deadlineIn (seconds 3)
        bytes <- connReceive c deadline 4096
        unless (B.null bytes) $ do
          connSendMany c deadline $
            if B8.pack "GET" `B.isPrefixOf` bytes
              then [B8.pack "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n", B8.pack "Connection: close\r\n\r\nhello"]
              else [bytes]
        connShutdownSend c deadline
  t <- forkIO (forever (listenerAccept l >>= forkIO . handle'))
  act (portOf (listenerAddress l)) seen errors `finally` (killThread t >> listenerClose l)
  where
    portOf address = case address of
      SockAddrInet p _ -> fromIntegral p
      _ -> 0

at :: Int -> String
at port = "127.0.0.1:" <> show port

-- | Run a program to its end, for at most 90 seconds.
run :: FilePath -> [String] -> String -> IO (ExitCode, String, String)
run program arguments = readProcessWithExitCode "timeout" ("90" : program : arguments)

-- Files ------------------------------------------------------------------------------

makeFiles :: IO Files
makeFiles = do
  temporary <- getTemporaryDirectory
  (path, h) <- openBinaryTempFile temporary "weft-tls"
  hClose h >> removeFile path
  createDirectory path
  let contents = B8.pack (take 200000 (concatMap show [1 :: Int ..]))
  B.writeFile (path </> "contents") contents
  fd <- openBinaryFile (path </> "contents") ReadMode >>= handleToFd
  forM_ ["ca", "ca2"] $ \ca ->
    shell' path ("openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=" <> ca <> " -keyout " <> ca <> ".key -out " <> ca <> ".pem")
  let issue' ca = issue path ca "CA:FALSE"
  issue' "ca" "one" "one.test" "subjectAltName=DNS:one.test" "-days 30"
  issue' "ca" "two" "two.test" "subjectAltName=DNS:two.test,DNS:*.wild.test" "-days 30"
  issue' "ca" "address" "127.0.0.2" "subjectAltName=IP:127.0.0.1,IP:::1,DNS:one.test" "-days 30"
  issue' "ca" "disguised" "disguised" "subjectAltName=DNS:127.0.0.1" "-days 30"
  issue' "ca" "common" "127.0.0.1" "extendedKeyUsage=serverAuth" "-days 30"
  issue' "ca" "client" "client" "extendedKeyUsage=clientAuth" "-days 30"
  issue' "ca" "expired" "expired" "extendedKeyUsage=clientAuth" "-days 0"
  issue' "ca2" "foreign" "foreign" "extendedKeyUsage=clientAuth" "-days 30"
  -- A certificate is valid for all of its last second.
  threadDelay 1100000
  pure (Files path (fd, contents))

-- | A certificate with its key: the folder, the authority, the basic constraints, the files' name, the common name,
-- another extension, and the time for which it is valid.
issue :: FilePath -> String -> String -> String -> String -> String -> String -> IO ()
issue folder ca constraints name cn extension days = do
  writeFile (folder </> name <> ".ext") (extension <> "\nbasicConstraints=" <> constraints <> "\n")
  shell' folder ("openssl req -newkey rsa:2048 -nodes -subj /CN=" <> cn <> " -keyout " <> name <> ".key -out " <> name <> ".csr")
  shell' folder $
    "openssl x509 -req -in " <> name <> ".csr -CA " <> ca <> ".pem -CAkey " <> ca <> ".key -CAcreateserial -extfile " <> name <> ".ext " <> days <> " -out " <> name <> ".pem"

shell' :: FilePath -> String -> IO ()
shell' folder command = do
  (code, out, err) <- readCreateProcessWithExitCode (shell command) {cwd = Just folder} ""
  when (code /= ExitSuccess) (ioError (userError (command <> ": " <> out <> err)))
