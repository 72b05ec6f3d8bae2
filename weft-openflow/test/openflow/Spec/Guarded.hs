{-# LANGUAGE OverloadedStrings #-}

-- |
-- Controllers with an etcd that has TLS and users: what they reach, and what they say when it refuses them. Users and
-- roles are made by curl.
module Spec.Guarded (tests) where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (cancel)
import Control.Exception (bracket)
import Control.Monad (forM_)
import Data.Aeson (Value, decode, encode, object, withObject, (.:), (.=))
import Data.Aeson.Types (Pair, parseMaybe)
import qualified Data.ByteString as B
import qualified Data.ByteString.Base64 as Base64
import qualified Data.ByteString.Lazy.Char8 as LC
import Data.IORef
import Data.List (isInfixOf)
import Data.Text (Text)
import qualified Data.Text.Encoding as T
import EtcdServer
import Peer
import Spec.Cluster hiding (tests)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.Cluster
import Weft.OpenFlow.Types
import Weft.Test.Files (withFolder)
import Weft.Test.Skip (needProgram, testCase)
import Weft.Tls

tests :: TestTree
tests = localOption (mkTimeout 600000000) $ testGroup "an etcd with TLS and users" [used, refusals, expired, unconfigured]

-- | What the tests use of an etcd.
data Guarded = Guarded
  { guardedEtcd :: Running,
    -- | Where the certificates are.
    guardedFile :: FilePath -> FilePath
  }

-- | An etcd that requires certificates of its authority and has the users root, with the password @secret@, and weft,
-- who may use the keys of controllers, with the password @first@. Files: @ca.pem@, and certificates for @127.0.0.1@
-- (@server@), of a client (@client@), and of a client of another authority (@stranger@).
withGuarded :: [String] -> (Guarded -> IO a) -> IO a
withGuarded more act = do
  mapM_ needProgram ["etcd", "openssl", "curl"]
  withFolder $ \folder -> do
    let file name = folder </> name
    forM_ ["ca", "other"] $ \name ->
      openssl ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=" <> name, "-keyout", file (name <> ".key"), "-out", file (name <> ".pem")]
    -- etcd's gateway shows its server certificate to etcd itself.
    writeFile (file "extensions") "basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth,serverAuth\nsubjectAltName=IP:127.0.0.1\n"
    forM_ [("server", "ca"), ("client", "ca"), ("stranger", "other")] $ \(name, authority) -> do
      openssl ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/O=weft", "-keyout", file (name <> ".key"), "-out", file (name <> ".csr")]
      openssl ["x509", "-req", "-in", file (name <> ".csr"), "-CA", file (authority <> ".pem"), "-CAkey", file (authority <> ".key"), "-CAcreateserial", "-extfile", file "extensions", "-days", "2", "-out", file (name <> ".pem")]
    withEtcdOf "https" (["--cert-file", file "server.pem", "--key-file", file "server.key", "--client-cert-auth", "--trusted-ca-file", file "ca.pem", "--bcrypt-cost", "4"] <> more) $ \etcd -> do
      let g = Guarded etcd file
          ask = asked g []
      eventually "etcd answers" ((== ExitSuccess) . fst <$> curl g [] "/v3/kv/range" (object ["key" .= base64 "x"]))
      ask "/v3/auth/user/add" ["name" .= text "root", "password" .= text "secret"]
      ask "/v3/auth/role/add" ["name" .= text "root"]
      ask "/v3/auth/user/grant" ["user" .= text "root", "role" .= text "root"]
      ask "/v3/auth/user/add" ["name" .= text "weft", "password" .= text "first"]
      ask "/v3/auth/role/add" ["name" .= text "weft"]
      ask "/v3/auth/role/grant" ["name" .= text "weft", "perm" .= object ["permType" .= text "READWRITE", "key" .= base64 "weft/", "range_end" .= base64 "weft0"]]
      ask "/v3/auth/user/grant" ["user" .= text "weft", "role" .= text "weft"]
      ask "/v3/auth/enable" []
      act g
  where
    openssl arguments = do
      (code, _, why) <- readProcessWithExitCode "openssl" arguments ""
      assertEqual why ExitSuccess code

text :: Text -> Text
text = id

base64 :: Text -> Text
base64 = T.decodeLatin1 . Base64.encode . T.encodeUtf8

-- | A request with the client's certificate, and its answer.
curl :: Guarded -> [String] -> String -> Value -> IO (ExitCode, String)
curl g more rpc body = do
  let file = guardedFile g
  (code, out, why) <- readProcessWithExitCode "curl" (["-sS", "--fail-with-body", "--max-time", "60", "--cacert", file "ca.pem", "--cert", file "client.pem", "--key", file "client.key", "-d", LC.unpack (encode body)] <> more <> [runningUrl (guardedEtcd g) <> rpc]) ""
  pure (code, out <> why)

-- | A request that succeeds.
asked :: Guarded -> [String] -> String -> [Pair] -> Assertion
asked g more rpc fields = do
  (code, out) <- curl g more rpc (object fields)
  assertEqual (rpc <> ": " <> out) ExitSuccess code

-- | A request of the user root.
askedAsRoot :: Guarded -> String -> [Pair] -> Assertion
askedAsRoot g rpc fields = do
  (code, out) <- curl g [] "/v3/auth/authenticate" (object ["name" .= text "root", "password" .= text "secret"])
  assertEqual out ExitSuccess code
  token <- maybe (assertFailure out) pure (decode (LC.pack out) >>= parseMaybe (withObject "an answer" (.: "token")))
  asked g ["-H", "Authorization: " <> token] rpc fields

-- | Settings of the user weft with this password and the client's certificate.
settingsWith :: Guarded -> IO Text -> ClusterSettings
settingsWith g password =
  (defaultClusterSettings "one" [runningUrl (guardedEtcd g)])
    { clusterUpgrade = tlsConnect (showing g "client" "ca"),
      clusterUser = Just (EtcdUser "weft" password)
    }

-- | A client that shows this certificate, and trusts this authority.
showing :: Guarded -> String -> String -> TlsClientSettings
showing g certificate authority =
  defaultTlsClientSettings
    { tlsTrust = TrustAuthorities (guardedFile g (authority <> ".pem")),
      tlsClientCertificate = Just (CertificateFiles (guardedFile g (certificate <> ".pem")) (guardedFile g (certificate <> ".key")))
    }

-- | Run a member with leases of this length, a quarter of which is the time that etcd has to answer, and with what it
-- says of etcd, the last first.
withMember :: Int -> ClusterSettings -> (Member -> IO [Maybe String] -> IO a) -> IO a
withMember life settings act = do
  said <- newIORef []
  bracket (startMemberUntil (threadDelay maxBound) settings {clusterLease = life, clusterOnReach = \why -> modifyIORef' said (why :)}) (cancel . memberThread) $ \m ->
    act m (readIORef said)

-- | What a member says of etcd at first.
firstSaid :: ClusterSettings -> IO String
firstSaid settings = withMember 80 settings $ \_ said -> do
  eventually "it says why" (not . null <$> said)
  maybe (assertFailure "it says that etcd answers") pure . last =<< said

used :: TestTree
used = testCase "is used; a password that changes, and log-ins that etcd forgets, are no obstacle" . withGuarded [] $ \g -> do
  password <- newIORef "first"
  withMember 6 (settingsWith g (readIORef password)) $ \m said -> withPeer (memberAddress m) $ \p -> do
    switchHandshake (memberController m) V13 1 p
    let mastered = clusterMaster (memberCluster m) (DatapathId 1)
        answers = (\all' -> take 1 all' `elem` [[], [Nothing]]) <$> said
    eventually "the switch has a master" mastered
    askedAsRoot g "/v3/auth/user/changepw" ["name" .= text "weft", "password" .= text "second"]
    eventually "the old password is refused" (any (maybe False (\why -> all (`isInfixOf` why) ["the log-in of user \"weft\" failed: etcd answered 400 Bad Request: ", "authentication failed"])) <$> said)
    heard <- said
    assertBool (show heard) (not (any (maybe False (\why -> "first" `isInfixOf` why || "second" `isInfixOf` why)) heard))
    writeIORef password "second"
    eventually "etcd answers to the new one" answers
    eventually "the switch has a master again" mastered
    stopEtcd (guardedEtcd g)
    eventually "etcd does not answer" (not <$> answers)
    startEtcd (guardedEtcd g)
    eventually "etcd answers again" answers
    eventually "the switch has a master at last" mastered

refusals :: TestTree
refusals = testCase "what it refuses, and what is refused of it, is said" . withGuarded [] $ \g -> do
  let right = settingsWith g (pure "first")
      url = runningUrl (guardedEtcd g)
      plain = "http" <> drop 5 url
      named = "https://localhost" <> dropWhile (/= ':') (drop 6 url)
      with client = right {clusterUpgrade = tlsConnect client}
      cases =
        [ ("another authority", with (showing g "client" "other"), ["no TLS with etcd: certificate rejected"]),
          ("another name", right {clusterEndpoints = [named]}, [named <> ": no TLS with etcd: certificate rejected"]),
          ("no certificate", with (showing g "client" "ca") {tlsClientCertificate = Nothing}, ["no TLS with etcd: ", "certificate"]),
          ("a certificate of another authority", with (showing g "stranger" "ca"), ["no TLS with etcd: ", "certificate"]),
          ("a certificate that is not there", with (showing g "none" "ca"), [guardedFile g "none.pem: "]),
          ("a wrong password", settingsWith g (pure "SECRET"), ["the log-in of user \"weft\" failed: etcd answered 400 Bad Request: ", "authentication failed"]),
          ("a password that cannot be read", settingsWith g (T.decodeUtf8 <$> B.readFile (guardedFile g "password")), [guardedFile g "password: "]),
          ("no user", right {clusterUser = Nothing}, ["etcd answered 403 Forbidden: ", "permission denied"]),
          ("no TLS", right {clusterEndpoints = [plain]}, [plain <> ": "]),
          ("no handshake", right {clusterUpgrade = clusterUpgrade (defaultClusterSettings "one" [])}, ["these settings have no TLS"])
        ]
  forM_ cases $ \(name, settings, expected) -> do
    why <- firstSaid settings
    assertBool (name <> ": " <> why) (all (`isInfixOf` why) expected && not ("SECRET" `isInfixOf` why))

-- | Between two rounds, which are three seconds apart, etcd forgets the log-in.
expired :: TestTree
expired = testCase "a log-in that has expired is renewed, and no request fails" . withGuarded ["--auth-token-ttl", "1"] $ \g -> do
  asks <- newIORef (0 :: Int)
  withMember 12 (settingsWith g ("first" <$ modifyIORef' asks (+ 1))) $ \m said -> do
    eventually "three log-ins" ((>= 3) <$> readIORef asks)
    rounds <- clusterRounds (memberCluster m)
    eventually "another round" ((> rounds) <$> clusterRounds (memberCluster m))
    said >>= (@?= [])

unconfigured :: TestTree
unconfigured = testCase "an etcd without users refuses a log-in, and one without TLS the handshake" $ do
  mapM_ needProgram ["etcd", "curl"]
  withEtcd $ \url -> do
    eventually "etcd answers" ((\(code, _, _) -> code == ExitSuccess) <$> readProcessWithExitCode "curl" ["-sS", "--fail", "--max-time", "60", url <> "/health"] "")
    why <- firstSaid (defaultClusterSettings "one" [url]) {clusterUser = Just (EtcdUser "weft" (pure "first"))}
    assertBool why (all (`isInfixOf` why) ["the log-in of user \"weft\" failed: ", "authentication is not enabled"])
    plain <- firstSaid (defaultClusterSettings "one" ["https" <> drop 4 url]) {clusterUpgrade = tlsConnect defaultTlsClientSettings {tlsTrust = TrustAnything}}
    -- It closes the connection; the request may be on its way.
    assertBool plain (any (`isInfixOf` plain) ["no TLS with etcd: ", "etcd does not answer: "])
