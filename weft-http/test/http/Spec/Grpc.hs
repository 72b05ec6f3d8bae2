{-# LANGUAGE OverloadedStrings #-}

-- |
-- gRPC, with the client of Debian's @python3-grpcio@ (@grpc_client.py@): an application that speaks it on WAI alone, by
-- trailers ("Weft.Http2"), over TLS and without.
module Spec.Grpc (tests, further) where

import Application
import Client (within)
import Configurations
import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket_, catch, throwIO)
import Control.Monad (forM_, unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Maybe (fromMaybe, isJust)
import Network.HTTP.Types
import Network.Wai
import Spec.Secure (certificate)
import System.Exit (ExitCode (..))
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http
import Weft.Http.Client (ClientProtocol (..), ClientSettings (..), Url (..), defaultClientSettings)
import Weft.Http.Proxy
import Weft.Test.Files (withFolder)
import Weft.Test.Skip (skipUnless)
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "gRPC"
    [ testOn on "the four kinds of calls" $
        asked "calls" ["unary b'hello' b''", "server 1000 b'1' b'1000'", "client b'1000 499500'", "client, nothing b'0 0'", "both True"],
      testOn on "a deadline that expires, and a call that is cancelled, interrupt the application" $
        asked "interrupted" ["deadline DEADLINE_EXCEEDED", "gone True", "runs True", "cancelled True True", "endless True", "b'still'"]
    ]

-- | What depends on no configuration.
further :: Configuration -> TestTree
further on =
  testGroup
    "gRPC, further"
    [ testOn on "messages of 3 MB in both directions" $
        asked "large" ["unary [True, True, True, True, True]", "both [True, True, True]"],
      testOn on "errors: at once, behind messages, of a method that is not there, of an application that throws" $
        asked "statuses" ["at once NOT_FOUND: no such thing", "late INTERNAL: failed late [b'one', b'two']", "unknown UNIMPLEMENTED", "throws INTERNAL", "b'still'"],
      testOn on "metadata before and behind the messages" $
        asked "metadata" ["b'some text' first last True"],
      testOn on "more calls at once than streams are allowed" $
        asked "many" ["1000"],
      testGroup
        "through the proxy, to a server of HTTP/2"
        [ testOn on scenario (throughProxy scenario expected)
          | (scenario, expected) <-
              [ ("calls", ["unary b'hello' b''", "server 1000 b'1' b'1000'", "client b'1000 499500'", "client, nothing b'0 0'", "both True"]),
                ("interrupted", ["deadline DEADLINE_EXCEEDED", "gone True", "runs True", "cancelled True True", "endless True", "b'still'"]),
                ("large", ["unary [True, True, True, True, True]", "both [True, True, True]"]),
                ("statuses", ["at once NOT_FOUND: no such thing", "late INTERNAL: failed late [b'one', b'two']", "unknown UNIMPLEMENTED", "throws INTERNAL", "b'still'"]),
                ("metadata", ["b'some text' first last True"]),
                ("many", ["1000"])
              ]
        ]
    ]

-- | The same through "Weft.Http.Proxy", to a server over TLS and one without.
throughProxy :: String -> [String] -> Assertion
throughProxy scenario expected = withFolder $ \folder -> do
  unlessInstalled
  files@(authority, _) <- certificate folder "test"
  tls <- uncurry loadTls files
  forM_ [Nothing, Just tls] $ \secure -> do
    running <- newIORef 0
    let settings = quiet (setHost "127.0.0.1" (setPort 0 (setHTTP2Cleartext True defaultSettings)))
        toServer = defaultProxySettings {proxyClient = defaultClientSettings {clientProtocol = OnlyHttp2, clientTls = defaultTlsClientSettings {tlsTrust = TrustAuthorities authority}}}
    withServerWith defaultOptions {optionTls = secure} settings (service running) $ \server ->
      withProxy toServer [Url "localhost" (show (portOf (serverAddress server))) Nothing "/" (isJust secure)] $ \passing ->
        withServerWith defaultOptions settings passing $ \proxy -> do
          (code, out, err) <- within 150 scenario (readProcessWithExitCode python ["test/http/grpc_client.py", show (portOf (serverAddress proxy)), scenario] "")
          (lines out, code, if code == ExitSuccess then "" else err) @?= (expected, ExitSuccess, "")

-- | Run a scenario over TLS and without, which has to print these lines. The server must not refuse anything.
asked :: String -> [String] -> Assertion
asked scenario expected = withFolder $ \folder -> do
  unlessInstalled
  files@(authority, _) <- certificate folder "test"
  tls <- uncurry loadTls files
  forM_ [(Nothing, []), (Just tls, [authority])] $ \(secure, more) -> do
    running <- newIORef 0
    refusals <- newIORef []
    let options = defaultOptions {optionTls = secure, optionOnRefused = \_ refusal -> atomicModifyIORef' refusals (\rs -> (refusal : rs, ()))}
        settings = quiet (setHost "127.0.0.1" (setPort 0 (setHTTP2Cleartext True defaultSettings)))
    withServerWith options settings (service running) $ \server -> do
      let port = show (portOf (serverAddress server))
      (code, out, err) <- within 150 scenario (readProcessWithExitCode python (["test/http/grpc_client.py", port, scenario] <> more) "")
      (lines out, code, if code == ExitSuccess then "" else err) @?= (expected, ExitSuccess, "")
      readIORef refusals >>= (@?= [])

-- | Skip the test if there is no client.
unlessInstalled :: IO ()
unlessInstalled = do
  found <- readProcessWithExitCode python ["-c", "import grpc"] "" `catch` \e -> const (pure (ExitFailure 1, "", "")) (e :: IOException)
  skipUnless "python3-grpcio is not installed" (case found of (code, _, _) -> code == ExitSuccess)

python :: FilePath
python = "/usr/bin/python3"

-- The service ----------------------------------------------------------------------------

-- | Each call runs with functions that read the next message, and send one; it returns the status.
type Call = IO (Maybe ByteString) -> (ByteString -> IO ()) -> IO Outcome

-- | A status of gRPC, and its message.
data Outcome = Outcome Int ByteString

ok :: Outcome
ok = Outcome 0 ""

-- | The service @weft.Test@. The reference has the number of calls that run, besides those that ask for it.
service :: IORef Int -> Application
service running request respond
  | lookup hContentType (requestHeaders request) /= Just "application/grpc" = respond (responseLBS unsupportedMediaType415 [] "")
  | otherwise = case C.split '/' (rawPathInfo request) of
    ["", "weft.Test", "Metadata"] -> do
      let own name = fromMaybe "" (lookup name (requestHeaders request))
      trailers [("grpc-status", "0"), ("x-last", "last"), ("x-last-bin", own "x-own-bin")]
      respond (responseStream ok200 (("x-first", "first") : grpc) (\write _ -> message write (own "x-own")))
    -- Nothing but a head, which has the status.
    ["", "weft.Test", "Fail"] -> respond (responseLBS ok200 ([("grpc-status", "5"), ("grpc-message", "no such thing")] <> grpc) "")
    ["", "weft.Test", name] | Just method <- lookup name methods -> do
      ended <- newIORef ok
      receive <- messages request
      let status = do
            Outcome code why <- readIORef ended
            pure ([("grpc-status", C.pack (show code))] <> [("grpc-message", why) | not (B.null why)])
          -- The status is known when the method has returned.
          maker part = case part of
            Just _ -> pure (NextTrailersMaker maker)
            Nothing -> Trailers <$> status
      setHTTP2Data request (Just defaultHTTP2Data {http2dataTrailers = maker})
      counted name . respond . responseStream ok200 grpc $ \write flush ->
        method receive (\m -> message write m >> flush) >>= writeIORef ended
    _ -> respond (responseLBS ok200 (("grpc-status", "12") : grpc) "")
  where
    grpc = [(hContentType, "application/grpc")]
    trailers fields = setHTTP2Data request (Just defaultHTTP2Data {http2dataTrailers = constantTrailers fields})
    message write m = write (word8 0 <> word32BE (fromIntegral (B.length m)) <> byteString m)
    counted name act
      | name == "Running" = act
      | otherwise = bracket_ (count 1) (count (-1)) act
    count n = atomicModifyIORef' running (\k -> (k + n, ()))
    methods =
      [ ("Echo", \receive send -> receive >>= mapM_ send >> pure ok),
        ("Count", \receive send -> receive >>= \n -> forM_ [1 .. maybe 0 fst (n >>= C.readInt)] (send . C.pack . show) >> pure ok),
        ("Sum", summing),
        ("Talk", \receive send -> let go = receive >>= mapM_ (\m -> send m >> go) in go >> pure ok),
        ("FailLate", \_ send -> send "one" >> send "two" >> pure (Outcome 13 "failed late")),
        ("Throw", \_ send -> send "one" >> throwIO (userError "thrown")),
        ("Sleep", \_ _ -> threadDelay 60000000 >> pure ok),
        ("Endless", \_ send -> let go n = send (B.replicate n 120) >> go n in go 1000),
        ("Running", \_ send -> readIORef running >>= send . C.pack . show >> pure ok)
      ] ::
        [(ByteString, Call)]

-- | The number of messages and of their bytes.
summing :: Call
summing receive send = go (0 :: Int) (0 :: Int)
  where
    go n size = receive >>= maybe (send (C.pack (show n <> " " <> show size)) >> pure ok) (\m -> go (n + 1) (size + B.length m))

-- | Reads the messages of a request, one after the other: a flag, a length of four bytes, and the bytes.
messages :: Request -> IO (IO (Maybe ByteString))
messages request = do
  rest <- newIORef B.empty
  let taking n have pieces
        | have >= n = do
          let whole = B.concat (reverse pieces)
          Just (B.take n whole) <$ writeIORef rest (B.drop n whole)
        | otherwise = do
          piece <- getRequestBodyChunk request
          if B.null piece then pure Nothing else taking n (have + B.length piece) (piece : pieces)
      bytes n = readIORef rest >>= \before -> taking n (B.length before) [before]
  pure $ do
    prefix <- bytes 5
    case B.unpack <$> prefix of
      Just (compressed : size) -> do
        when (compressed /= 0) (throwIO (userError "a compressed message"))
        whole <- bytes (foldl (\n byte -> 256 * n + fromIntegral byte) 0 size)
        maybe (throwIO (userError "a message that is cut off")) (pure . Just) whole
      _ -> do
        left <- readIORef rest
        Nothing <$ unless (B.null left) (throwIO (userError "a message that is cut off"))
