-- | @weft serve@: hosts by name, with certificates and redirects to HTTPS.
module Names (tests) where

import Answering (freePort)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf)
import Operating (config, has, homeOf, inFolder, selfSigned, warned)
import System.Directory (createDirectoryIfMissing)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.Signals (sigHUP)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "names"
    [ testCase "a host's certificate that is not for its name: a warning at the start and at a reload, an error of --check" . inFolder $ \folder -> do
        certified folder ["a.example", "b.example"]
        config folder ["hosts:", hostOf folder "a.example" "a.example", hostOf folder "c.example" "b.example"]
        let expected = "hosts.c.example: clients do not get its certificate " <> folder </> "b.example.pem, which is not for this name but for b.example"
        check folder >>= refused expected
        weft program [] ["serve", "--config", folder </> "weft.yaml", "--port", "0"] $ \p -> do
          warned p expected
          port <- portOf p
          homeOf folder "a.example.pem" "a.example" port >>= (@?= "<p>home</p>")
          send' sigHUP p
          warned p expected,
      testCase "a host's certificate that comes after another one for its name" . inFolder $ \folder -> do
        certified folder ["*.example", "a.example"]
        config folder (["certificate: '" <> folder </> "*.example.pem'", "key: '" <> folder </> "*.example.key'"] <> ["hosts:", hostOf folder "a.example" "a.example"])
        check folder >>= refused ("hosts.a.example: clients do not get its certificate " <> folder </> "a.example.pem: they get " <> folder </> "*.example.pem, which is for this name too and comes first"),
      testGroup
        "certificates that are for a host's name, as --check finds"
        [ testCase (name <> " with one for " <> certificate) . inFolder $ \folder -> do
            certified folder ["other.test", certificate]
            config folder ["certificate: " <> folder </> "other.test.pem", "key: " <> folder </> "other.test.key", "hosts:", hostOf folder name certificate]
            (code, out) <- check folder
            (code == ExitSuccess, "clients do not get" `isInfixOf` out) @?= (fits, not fits)
          | (name, certificate, fits) <-
              [ ("a.example", "A.Example", True),
                ("a.example", "*.example", True),
                ("b.a.example", "*.example", False),
                ("example", "*.example", False),
                ("*.b.example", "*.b.example", True),
                ("*.b.example", "x.b.example", True),
                ("*.b.example", "b.example", False)
              ]
        ],
      testCase "--https-redirect: a host that is not known gets 421 and no redirect" . inFolder $ \folder -> do
        certified folder ["a.example"]
        plain <- freePort
        config folder ["https-redirect: 127.0.0.1:" <> show plain, "hosts:", hostOf folder "a.example" "a.example"]
        createDirectoryIfMissing True (folder </> ".well-known" </> "acme-challenge")
        writeFile (folder </> ".well-known" </> "acme-challenge" </> "token") "proof"
        weft program [] ["serve", "--config", folder </> "weft.yaml", "--port", "0"] $ \p -> do
          port <- portOf p
          let ask path name = exchange plain (B.pack ("GET " <> path <> " HTTP/1.1\r\nHost: " <> name <> "\r\nConnection: close\r\n\r\n"))
          forM_ ["a.example", "A.example.:80"] $ \name -> ask "/x" name >>= (@?= 308) . status
          ask "/x" "a.example" >>= has ("Location: https://a.example:" <> show port <> "/x")
          ask "/.well-known/acme-challenge/token" "a.example" >>= answered 200 "proof"
          forM_ ["/x", "/.well-known/acme-challenge/token"] $ \path -> forM_ ["evil.example", "a.example.evil.example", "127.0.0.1"] $ \name -> do
            answer <- ask path name
            status answer @?= 421
            assertBool (B.unpack answer) (not (B.isInfixOf (B.pack "Location:") answer))
    ]
  where
    check folder = outcome program [] ["serve", "--config", folder </> "weft.yaml", "--check"]
    refused expected (code, out) = do
      contains out expected
      code @?= ExitFailure 2
    certified folder = mapM_ (\name -> selfSigned folder name (name <> ".key") (name <> ".pem"))
    hostOf folder name certificate = "  '" <> name <> "': {folder: " <> folder <> ", certificate: '" <> folder </> (certificate <> ".pem") <> "', key: '" <> folder </> (certificate <> ".key") <> "'}"
