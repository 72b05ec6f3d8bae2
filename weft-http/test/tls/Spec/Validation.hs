-- |
-- Which certificates clients and servers accept: extensions of the certificate and of the authorities above it (RFC
-- 5280, 4.2), and names.
module Spec.Validation
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.List (isInfixOf)
import Support
import System.FilePath
import System.IO.Error (isPermissionError)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tls
import Weft.Transport

tests :: TestTree
tests = withFiles $ \made -> withResource (made >>= \files -> files <$ makeAll (folderOf files)) (const (pure ())) $ \get ->
  testGroup
    "validation"
    [ testGroup
        "a client rejects a server's certificate"
        [ testCase name $ do
            files <- get
            r <- connectTo (settingsFor files [file]) (clientFor files) "leaf.test"
            case r of
              Left e -> do
                assertBool (show e) (why `isInfixOf` show e)
                assertBool (show e) (isPermissionError e)
              Right _ -> assertFailure "accepted"
          | (name, file, why) <-
              [ ("for clients only", "for-clients", wrongUse),
                ("for any use but not by name", "for-any", wrongUse),
                ("with an unreadable extended key usage", "unreadable", "certificate rejected: "),
                ("without a subjectAltName, though the common name is right", "common-name", "it is not for this name")
              ]
                <> bothWays "server"
        ],
      testGroup
        "a server rejects a client's certificate"
        [ testCase name $ do
            files <- get
            r <- showing files file
            either (\e -> assertBool (show e) (why `isInfixOf` show e)) (const (assertFailure "accepted")) r
          | (name, file, why) <- ("for servers only", "for-servers", wrongUse) : bothWays "client"
        ],
      testGroup
        "accepted by both"
        [ testCase name $ do
            files <- get
            connectTo (settingsFor files [file]) (clientFor files) {tlsTrust = TrustAuthorities (folderOf files </> "ca.pem")} "leaf.test"
              >>= either (assertFailure . show) (const (pure ()))
            showing files file >>= either (assertFailure . show) (const (pure ()))
          | (name, file) <-
              [ ("the usual extensions, many of them critical, below an authority that is not trusted itself", "usual"),
                ("an unknown extension that is not critical", "not-critical"),
                ("name constraints that are not critical", "loose"),
                ("alternative names of kinds that the library does not know", "other-names")
              ]
        ],
      testCase "a name with a dot at its end is sent and compared without it (RFC 6066, 3)" $ do
        files <- get
        let asked certificates name = either (const Nothing) (\(c, s) -> Just (map securityOf [c, s])) <$> connectTo (settingsFor files certificates) (clientFor files) name
            securityOf c = connSecurity c >>= securityServerName
            both = Just . replicate 2
        mapM (asked ["one", "two"]) ["two.test.", "TWO.test", "other.test."] >>= (@?= [both (Just (B8.pack "two.test")), both (Just (B8.pack "TWO.test")), Nothing])
        -- The second has the address as a DNS name.
        mapM (\certificate -> asked [certificate] "127.0.0.1.") ["address", "disguised"] >>= (@?= [both Nothing, Nothing])
    ]
  where
    bothWays kind =
      [ ("with an unknown critical extension", "critical", unknown),
        ("with policy constraints", "policies", unknown),
        ("below an authority with an unknown critical extension", "below-critical", unknown),
        ("below an authority with name constraints that do not permit its name", "below-names", "permitted subtree violation"),
        ("below an authority for another use", "below-" <> kind, wrongUse)
      ]
    wrongUse = "its key usage or extended key usage, or that of an authority, does not allow this use"
    unknown = "unhandled critical extension"

-- | What a server says to a client with this certificate.
showing :: Files -> String -> IO (Either IOException Connection)
showing files name = do
  server <- newTlsServer (settingsFor files ["one"]) {tlsClientCertificates = RequiredClientCertificates (folderOf files </> "ca.pem")}
  (a, b) <- inMemory
  _ <- forkIO (void (try (tlsConnect (clientFor files) {tlsClientCertificate = Just (sourceOf files name)} "one.test" a) :: IO (Either IOException Connection)))
  try (tlsAccept server b)

makeAll :: FilePath -> IO ()
makeAll folder = do
  let leaf ca name cn = issueWith ca "CA:FALSE" name cn . ("subjectAltName=DNS:leaf.test" :)
      authority name = issueWith "ca" "critical,CA:TRUE" name name
      issueWith ca constraints name cn extensions = issue folder ca constraints name cn (concatMap (<> "\n") extensions) "-days 30"
      purposes = "extendedKeyUsage=serverAuth,clientAuth"
      unknown = "1.2.3.4.5=critical,DER:0500"
      names = "nameConstraints=critical,permitted;DNS:good.test"
      -- The files of a leaf with the certificate above it.
      below ca name = do
        [own, above] <- mapM (B.readFile . (folder </>) . (<> ".pem")) [name, ca]
        B.writeFile (folder </> name <> ".pem") (own <> above)
  leaf "ca" "for-clients" "leaf" ["extendedKeyUsage=critical,clientAuth"]
  leaf "ca" "for-servers" "leaf" ["extendedKeyUsage=serverAuth"]
  leaf "ca" "for-any" "leaf" ["extendedKeyUsage=anyExtendedKeyUsage"]
  leaf "ca" "unreadable" "leaf" ["2.5.29.37=DER:0500"]
  issueWith "ca" "CA:FALSE" "common-name" "leaf.test" ["extendedKeyUsage=serverAuth"]
  leaf "ca" "critical" "leaf" [unknown]
  leaf "ca" "policies" "leaf" ["policyConstraints=critical,requireExplicitPolicy:0"]
  leaf "ca" "not-critical" "leaf" ["1.2.3.4.5=DER:0500"]
  issueWith "ca" "CA:FALSE" "other-names" "leaf" ["subjectAltName=critical,otherName:1.2.3.4;UTF8:x,RID:1.2.3,DNS:leaf.test"]
  forM_ [("critical", [unknown]), ("names", [names]), ("server", ["extendedKeyUsage=clientAuth"]), ("client", ["extendedKeyUsage=serverAuth"])] $ \(name, extensions) -> do
    authority ("authority-" <> name) extensions
    leaf ("authority-" <> name) ("below-" <> name) "leaf" []
    below ("authority-" <> name) ("below-" <> name)
  let identifiers = ["subjectKeyIdentifier=hash", "authorityKeyIdentifier=keyid", "certificatePolicies=1.2.3.4"]
  issueWith "ca" "critical,CA:TRUE,pathlen:0" "middle" "middle" (["keyUsage=critical,keyCertSign,cRLSign", purposes] <> identifiers)
  issueWith "middle" "critical,CA:FALSE" "usual" "" (["subjectAltName=critical,DNS:leaf.test", "keyUsage=critical,digitalSignature,keyEncipherment", "extendedKeyUsage=critical,serverAuth,clientAuth"] <> identifiers)
  below "middle" "usual"
  authority "loose-authority" ["nameConstraints=permitted;DNS:leaf.test"]
  leaf "loose-authority" "loose" "leaf" []
  below "loose-authority" "loose"
