{-# LANGUAGE OverloadedStrings #-}

-- |
-- Raw responses over HTTP\/2 (RFC 8441), with the client of Debian's @python3-h2@ (@tunnel_client.py@). The rules are
-- in the suites @http2@ and @http2-core@.
module Spec.Tunnels (tests) where

import Application
import Client (eventually, within)
import Configurations
import Control.Exception (IOException, bracket_, catch)
import Control.Monad (forever, unless)
import qualified Data.ByteString as B
import Data.IORef
import Network.HTTP.Types
import Network.Wai
import System.Exit (ExitCode (..))
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http
import Weft.Test.Skip (skipUnless)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "tunnels"
    [ testOn on "tunnels that end on either side, are reset, flood, and are left: no application is left over" $ do
        (found, _, _) <- readProcessWithExitCode python ["-c", "import h2"] "" `catch` \e -> const (pure (ExitFailure 1, "", "")) (e :: IOException)
        skipUnless "python3-h2 is not installed" (found == ExitSuccess)
        running <- newIORef (0 :: Int)
        let count n = atomicModifyIORef' running (\k -> (k + n, ()))
            application' request respond = bracket_ (count 1) (count (-1)) (respond (responseRaw (tunnel (rawPathInfo request)) (responseLBS badRequest400 [] "")))
        withQuietServer (setHTTP2Cleartext True defaultSettings) application' $ \server port -> do
          (code, out, err) <- within 150 "the client" (readProcessWithExitCode python ["test/http/tunnel_client.py", show port] "")
          (lines out, code, if code == ExitSuccess then "" else err) @?= (["echo 200 True", "hello 200 b'hello'", "many 0", "still"], ExitSuccess, "")
          eventually "all applications have ended" ((== 0) <$> readIORef running)
          noConnections server
    ]
  where
    python = "/usr/bin/python3"

tunnel :: B.ByteString -> IO B.ByteString -> (B.ByteString -> IO ()) -> IO ()
tunnel path receive send = do
  send "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
  case path of
    "/hello" -> send "hello"
    "/flood" -> forever (send (B.replicate 10000 120))
    _ -> echo
  where
    echo = receive >>= \bytes -> unless (B.null bytes) (send bytes >> echo)
