-- |
-- Certificate chains: a certificate of an authority that itself has its certificate from the trusted one, as most
-- servers on the Internet have. In what order a file may have them, and in what order they are sent.
module Spec.Chains
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Char (isAlphaNum)
import Data.List (isInfixOf)
import Support
import System.Exit
import System.FilePath
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip
import Weft.Tls
import Weft.Transport

tests :: TestTree
tests = withFiles $ \made -> withResource (made >>= \files -> files <$ makeChain (folderOf files)) (const (pure ())) $ \get ->
  testGroup
    "chains"
    [ testGroup
        "the leaf comes first in the file and on the wire"
        [ testCase name $ do
            files <- get
            sent <- mapM (B.readFile . (folderOf files </>)) certificates
            sources <- mapM ($ sourceOf files source) [pure, inMemorySource]
            forM_ sources $ \s -> do
              (c, _) <- connectTo (defaultTlsServerSettings {tlsCertificates = [s]}) (trusting files) "leaf.test" >>= either throwIO pure
              fmap securityPeerCertificates (connSecurity c) @?= Just sent
          | (name, source, certificates, trusting) <-
              [ ("with its authority", "full", ["leaf.der", "middle.der"], clientFor),
                ("with the whole chain", "whole", ["leaf.der", "middle.der", "ca.der"], clientFor),
                ("between other text, with the key", "commented", ["leaf.der", "middle.der"], clientFor),
                ("alone", "leaf", ["leaf.der"], \files -> (clientFor files) {tlsTrust = TrustAuthorities (folderOf files </> "middle.pem")})
              ]
        ],
      testCase "openssl and curl accept it, trusting the root only" $ do
        needProgram "curl"
        files <- get
        let ca = folderOf files </> "ca.pem"
        serving (settingsFor files ["full"]) $ \port _ _ -> forM_ ["-tls1_2", "-tls1_3"] $ \version -> do
          (code, out, _) <- run "openssl" ["s_client", "-connect", at port, "-servername", "leaf.test", "-verify_return_error", "-CAfile", ca, version] ""
          (code, "Verify return code: 0 (ok)" `isInfixOf` out) @?= (ExitSuccess, True)
          let url = "https://leaf.test:" <> show port <> "/"
          (code', page, err) <- run "curl" ["-sS", "--noproxy", "*", "--http1.1", "--cacert", ca, "--resolve", "leaf.test:" <> show port <> ":127.0.0.1", url] ""
          (code', page, err) @?= (ExitSuccess, "hello", ""),
      testCase "a client's chain" $ do
        files <- get
        sent <- mapM (B.readFile . (folderOf files </>)) ["leaf.der", "middle.der"]
        let asking = (settingsFor files ["one"]) {tlsClientCertificates = RequiredClientCertificates (folderOf files </> "ca.pem")}
            showing name = fmap snd <$> connectTo asking (clientFor files) {tlsClientCertificate = Just (sourceOf files name)} "one.test"
        s <- showing "full" >>= either throwIO pure
        fmap securityPeerCertificates (connSecurity s) @?= Just sent
        -- The server does not know the authority between.
        showing "leaf" >>= assertBool "accepted" . either (const True) (const False),
      testGroup
        "errors"
        [ testCase name $ do
            files <- get
            let path = folderOf files </> source
            fromFiles <- refused (sourceOf files source)
            assertBool fromFiles (message (path <> ".pem") (path <> ".key") `isInfixOf` fromFiles)
            fromMemory <- inMemorySource (sourceOf files source) >>= refused
            assertBool fromMemory (message "the certificate in memory" "the key in memory" `isInfixOf` fromMemory)
          | (name, source, message) <-
              [ ("the leaf is last", "reversed", \chain key -> key <> " is the key of certificate 2 in " <> chain <> "; the certificate of the key must be the first"),
                ("a key of no certificate", "strange", \chain key -> key <> " is not the key of the certificate in " <> chain),
                ("a key with a password", "locked", \_ key -> key <> " holds no private key without a password"),
                ("a key with a password, in the older form", "locked-before", \_ key -> key <> " holds no private key without a password"),
                ("a key that may not sign", "no-signature", \chain _ -> "certificate 1 in " <> chain <> " is for a key that may not sign (key usage)"),
                ("a key of another kind", "another-kind", \chain key -> key <> " is not the key of the certificate in " <> chain),
                ("a key on another curve", "another-curve", \chain key -> key <> " is not the key of the certificate in " <> chain),
                ("a certificate that is damaged", "damaged", \chain _ -> "certificate 2 in " <> chain <> " cannot be understood")
              ]
        ],
      testGroup
        "each kind of key works, or the error says that it cannot be used"
        [ testCase what $ do
            files <- get
            -- The tests may run at the same time, in one folder.
            let kind = "kind-" <> filter isAlphaNum what
            shell' (folderOf files) ("openssl req -x509 -nodes -days 30 -subj /CN=leaf.test -addext subjectAltName=DNS:leaf.test " <> options <> " -keyout " <> kind <> ".key -out " <> kind <> ".pem 2>&1")
            loaded <- try (newTlsServer (settingsFor files [kind]))
            case (loaded, unusable) of
              (Left e, Just why) -> assertBool (show e) (((folderOf files </> kind <> why) `isInfixOf` show (e :: IOException)) && "cannot be used" `isInfixOf` show e)
              (Left e, Nothing) -> throwIO e
              (Right _, Just _) -> assertFailure "loaded"
              (Right _, Nothing) -> do
                r <- connectTo (settingsFor files [kind]) (clientFor files) {tlsTrust = TrustAuthorities (folderOf files </> kind <> ".pem")} "leaf.test"
                either (assertFailure . show) (const (pure ())) r
          | (what, options, unusable) <-
              [ ("RSA", "-newkey rsa:3072", Nothing),
                ("RSA of 512 bits", "-newkey rsa:512 -sha256", Just ".pem"),
                ("ECDSA with P-256", onCurve <> "P-256", Nothing),
                ("ECDSA with P-384", onCurve <> "P-384", Nothing),
                ("ECDSA with P-521", onCurve <> "P-521", Nothing),
                ("ECDSA with SEC_p256k1", onCurve <> "secp256k1", Just ".key"),
                ("Ed25519", "-newkey ed25519", Nothing),
                ("Ed448", "-newkey ed448", Nothing)
              ]
        ],
      testCase "a reload" $ do
        files <- get
        let live name = forM_ [".pem", ".key"] $ \end -> B.readFile (folderOf files </> (name <> end)) >>= B.writeFile (folderOf files </> ("live" <> end))
        live "leaf"
        server <- newTlsServer (settingsFor files ["live"])
        let shown = do
              (a, b) <- inMemory
              _ <- forkIO (void (try (tlsAccept server b) :: IO (Either IOException Connection)))
              c <- tlsConnect (clientFor files) {tlsTrust = TrustAnything} "leaf.test" a
              maybe [] securityPeerCertificates (connSecurity c) <$ connAbort c
        sent <- mapM (B.readFile . (folderOf files </>)) ["leaf.der", "middle.der"]
        shown >>= (@?= take 1 sent)
        live "full"
        reloadTlsServer server >>= (@?= [])
        shown >>= (@?= sent)
        live "reversed"
        failed <- reloadTlsServer server
        map (("must be the first" `isInfixOf`) . show) failed @?= [True]
        shown >>= (@?= sent)
    ]

onCurve :: String
onCurve = "-newkey ec -pkeyopt ec_paramgen_curve:"

-- | The error with which a certificate is refused.
refused :: CertificateSource -> IO String
refused source = do
  r <- try (newTlsServer defaultTlsServerSettings {tlsCertificates = [source]})
  either (\e -> pure (show (e :: IOException))) (const (assertFailure "it was loaded")) r

inMemorySource :: CertificateSource -> IO CertificateSource
inMemorySource source = case source of
  CertificateFiles chain key -> CertificateMemory <$> B.readFile chain <*> B.readFile key
  CertificateMemory _ _ -> pure source

-- | The certificate @leaf@ of the authority @middle@, whose certificate is from @ca@, in files with others.
makeChain :: FilePath -> IO ()
makeChain folder = do
  issue folder "ca" "critical,CA:TRUE" "middle" "middle" "keyUsage=critical,keyCertSign" "-days 30"
  issue folder "middle" "CA:FALSE" "leaf" "leaf.test" "subjectAltName=DNS:leaf.test" "-days 30"
  forM_ ["leaf", "middle", "ca"] $ \name -> shell' folder ("openssl x509 -in " <> name <> ".pem -outform DER -out " <> name <> ".der")
  [leaf, middle, ca, key, other] <- mapM (B.readFile . (folder </>)) ["leaf.pem", "middle.pem", "ca.pem", "leaf.key", "one.key"]
  let chain name contents with = B.writeFile (folder </> (name <> ".pem")) (B.concat contents) >> B.writeFile (folder </> (name <> ".key")) with
  chain "full" [leaf, middle] key
  chain "whole" [leaf, middle, ca] key
  chain "commented" [B8.pack "The server's:\r\n", leaf, key, B8.pack "subject=middle\n", middle] key
  chain "reversed" [middle, leaf] key
  chain "strange" [leaf, middle] other
  chain "damaged" [leaf, B8.pack "-----BEGIN CERTIFICATE-----\nTWlkZGxl\n-----END CERTIFICATE-----\n"] key
  issue folder "ca" "CA:FALSE" "no-signature" "leaf.test" "keyUsage=critical,keyEncipherment" "-days 30"
  locked <- mapM protected ["pkcs8 -topk8 -passout pass:x -in leaf.key", "rsa -traditional -aes256 -passout pass:x -in leaf.key"]
  zipWithM_ (\name -> chain name [leaf, middle]) ["locked", "locked-before"] locked
  forM_ [("p256", "P-256"), ("p384", "P-384")] $ \(name, curve) ->
    shell' folder ("openssl req -x509 -nodes -days 30 -subj /CN=leaf.test " <> onCurve <> curve <> " -keyout " <> name <> ".key -out " <> name <> ".pem")
  [p256, p384] <- mapM (B.readFile . (folder </>)) ["p256.pem", "p384.key"]
  chain "another-kind" [p256] key
  chain "another-curve" [p256] p384
  where
    protected command = shell' folder ("openssl " <> command <> " -out protected.key") >> B.readFile (folder </> "protected.key")
