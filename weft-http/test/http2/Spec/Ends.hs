{-# LANGUAGE OverloadedStrings #-}

-- | Every end of an HTTP\/2 connection (the table in @doc\/http.md@) while an answer is still in the kernel's buffer
-- and the client goes on sending: it gets the whole answer.
module Spec.Ends
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Network.HTTP.Types (ok200)
import Network.Wai (responseLBS)
import Spec.Http2 (withFolder)
import System.Exit
import System.FilePath ((</>))
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (milliseconds, seconds)
import Weft.Http2 (Http2Control (..), Http2Limits (limitIdle), Http2Settings (..), defaultHttp2Limits, defaultHttp2Settings, serveHttp2)
import Weft.Http2.Frame
import qualified Weft.Socket as W
import Weft.Timer (within)
import Weft.Tls
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Weft.Http2, ends of connections with an answer under way"
    [ testGroup
        name
        [ testCase "clear text" (arrives (pure, pure) limits end more),
          testCase "TLS" (overTls (\secure -> arrives secure limits end more))
        ]
      | (name, limits, end, more) <- ends
    ]
  where
    usual = defaultHttp2Limits
    ends =
      [ ("a drain", usual, \control _ -> controlShutdown control, True),
        ("the idle time", usual {limitIdle = milliseconds 300}, \_ _ -> threadDelay 1000000, True),
        ("an error of the protocol", usual, \_ c -> connSendBytes c noDeadline (frame typeData 0 0 "data of no stream"), True),
        ("too many frames of a kind", usual, \_ c -> connSendMany c noDeadline (replicate 3000 ping), True),
        ("the client's end of its sending side", usual, \_ c -> connShutdownSend c noDeadline, False)
      ]

ping :: B.ByteString
ping = frame typePing 0 0 (B.replicate 8 0)

-- | How a client makes its connection secure, and how a server does.
type Secure = (Connection -> IO Connection, Connection -> IO Connection)

overTls :: (Secure -> IO a) -> IO a
overTls act = withFolder $ \folder -> do
  let (key, chain) = (folder </> "key", folder </> "chain")
  (made, _, why) <- readProcessWithExitCode "openssl" ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-keyout", key, "-out", chain] ""
  when (made /= ExitSuccess) (assertFailure why)
  server <- newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateFiles chain key]}
  act (tlsConnect defaultTlsClientSettings {tlsTrust = TrustAnything} "localhost", tlsAccept server)

-- | A client requests an answer that fits into the kernel's buffers, and takes it slowly. When the server has sent it,
-- the connection ends. The client then goes on sending frames, if the flag says so.
arrives :: Secure -> Http2Limits -> (Http2Control -> Connection -> IO ()) -> Bool -> Assertion
arrives (ofClient, ofServer) limits end goesOn = do
  l <- transportListen socketTransport (address 0)
  (control, sent, ended) <- (,,) <$> newEmptyMVar <*> newEmptyMVar <*> newEmptyMVar
  let settings = defaultHttp2Settings {http2Limits = limits, http2OnResponse = \_ _ _ -> void (tryPutMVar sent ())}
  _ <- forkIO . (`finally` putMVar ended ()) $ do
    c <- listenerAccept l >>= ofServer
    serveHttp2 settings (putMVar control) c (\_ respond -> respond (responseLBS ok200 [] (L.replicate (fromIntegral size) 120)))
  mine <- narrow (listenerAddress l) >>= ofClient
  -- The windows are as large as the answer.
  connSendMany mine noDeadline [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 10000000)]), frame typeWindowUpdate 0 0 (B.pack [0, 0x98, 0, 0]), request 1]
  sender <- forkIO $ do
    readMVar sent
    takeMVar control >>= \server -> end server mine
    when goesOn . forM_ [3, 5 ..] $ \n -> do
      r <- try (connSendMany mine noDeadline [ping, request n, frame typeWindowUpdate 0 0 (B.pack [0, 0, 1, 0])])
      threadDelay (either (\e -> const 1000000 (e :: IOException)) (const 20000) r)
  heard <- newIORef []
  within (seconds 120) (slowly mine heard 0) >>= (@?= Just ())
  killThread sender
  found <- framesOf . B.concat . reverse <$> readIORef heard
  (sum [frameLength h | (h, _) <- found, frameStream h == 1, frameType h == typeData], or [hasFlag flagEndStream h | (h, _) <- found, frameStream h == 1]) @?= (size, True)
  connClose mine
  within (seconds 60) (takeMVar ended) >>= (@?= Just ())
  listenerClose l
  where
    address port = W.SockAddrInet port (W.tupleToHostAddress (127, 0, 0, 1))
    narrow to = do
      sock <- W.socket W.AF_INET W.Stream W.defaultProtocol
      W.setSocketOption sock W.RecvBuffer 65536
      W.connect sock to
      pure (socketConnection sock to)
    slowly :: Connection -> IORef [B.ByteString] -> Int -> IO ()
    slowly c heard n = when (n < size) $ do
      bytes <- connReceive c noDeadline 65536 `catch` \e -> const (pure B.empty) (e :: IOException)
      modifyIORef' heard (bytes :)
      unless (B.null bytes) (threadDelay 50000 >> slowly c heard (n + C.count 'x' bytes))
    -- GET, http, / and a literal authority.
    request :: Int -> B.ByteString
    request n = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61])

-- | The frames that were received completely.
framesOf :: B.ByteString -> [(FrameHeader, B.ByteString)]
framesOf bytes = case parseFrameHeader bytes of
  Just h | B.length bytes >= 9 + frameLength h -> (h, B.take (frameLength h) (B.drop 9 bytes)) : framesOf (B.drop (9 + frameLength h) bytes)
  _ -> []

size :: Int
size = 1500000
