{-# LANGUAGE OverloadedStrings #-}

-- |
-- TLS: Open vSwitch with a certificate is served, a client without one is not.
module Spec.Secure (tests) where

import Control.Exception (onException)
import Control.Monad (forM_, void)
import qualified Data.ByteString as B
import Data.List (isInfixOf)
import qualified Data.Map.Strict as Map
import Peer
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.App (Flooding (..))
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Topology (flooding)
import Weft.OpenFlow.Types
import Weft.Test.OpenVSwitch
import Weft.Test.Skip (needProgram, testCase)
import Weft.Tls

tests :: TestTree
tests = testGroup "TLS" [certificates]

certificates :: TestTree
certificates = testCase "a switch with a certificate is served, one without is not" $ do
  needOvs
  needProgram "openssl"
  withOvs Dummy $ \ovs -> do
    let dir = ovsDirectory ovs
        file name = dir </> name
    openssl ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority", "-keyout", file "ca.key", "-out", file "ca.pem"]
    writeFile (file "extensions") "basicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth,serverAuth\n"
    forM_ ["controller", "switch"] $ \name -> do
      openssl ["req", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=" <> name, "-keyout", file (name <> ".key"), "-out", file (name <> ".csr")]
      openssl ["x509", "-req", "-in", file (name <> ".csr"), "-CA", file "ca.pem", "-CAkey", file "ca.key", "-CAcreateserial", "-extfile", file "extensions", "-days", "2", "-out", file (name <> ".pem")]
    server <-
      newTlsServer
        defaultTlsServerSettings
          { tlsCertificates = [CertificateFiles (file "controller.pem") (file "controller.key")],
            tlsProtocols = [],
            tlsClientCertificates = RequiredClientCertificates (file "ca.pem")
          }
    let settings = defaultSettings {settingsPortStats = Nothing, settingsUpgrade = tlsAccept server}
    withTestController settings $ \c address -> do
      void (vsctl ovs ["set-ssl", file "switch.key", file "switch.pem", file "ca.pem"])
      dummyBridge ovs (protocolName V13) "br0" 1 ("ssl:" <> show address)
      forM_ [1, 2] $ \n -> dummyPort ovs "br0" ("p" <> show n) n
      eventually "the switch is connected" (Map.member (DatapathId 1) <$> connectedSwitches c) `onException` (ovsLog ovs >>= putStrLn . unlines . filter (\l -> any (`isInfixOf` l) ["ssl", "rconn"]) . lines)
      -- A client without TLS, and one without a certificate.
      withPeer address $ \p -> sendBytes p (B.pack [4, 0, 0, 8, 0, 0, 0, 1]) >> rawEnd p
      (_, out, err) <- readProcessWithExitCode "timeout" ["30", "openssl", "s_client", "-connect", show address] ""
      assertBool (out <> err) (not (null (out <> err)))
      known <- connectedSwitches c
      Map.keys known @?= [DatapathId 1]
      eventually "the ports have settled" (settled . flooding (DatapathId 1) <$> controllerNetwork c)
      receive ovs "p1" 1 2
      eventually "the packet is flooded" (not . null <$> sentFrames ovs "p2")
  where
    settled f = case f of
      FloodTo ports _ -> all (`elem` ports) [PortNo 1, PortNo 2]
      FloodByItself -> False
    openssl arguments = do
      (code, _, why) <- readProcessWithExitCode "openssl" arguments ""
      assertEqual why ExitSuccess code
