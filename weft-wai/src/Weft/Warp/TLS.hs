{-# LANGUAGE OverloadedStrings #-}

-- |
-- TLS under Warp: the protocol is the @tls@ package's, the bytes travel on Weft.
-- HTTP\/2 is offered by ALPN (RFC 7301). TLS 1.2 and 1.3, with ciphers that have forward
-- secrecy and authenticate what they encrypt.
module Weft.Warp.TLS
  ( Tls,
    loadTls,
    reloadTls,
    acceptTls,
    looksLikeTls,
  )
where

import Control.Concurrent (forkIO, killThread)
import Control.Concurrent.Chan
import Control.Exception (Handler (..), IOException, SomeException, bracket, catch, catches, displayException, handle, try)
import Control.Monad (unless, void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy as L
import qualified Data.ByteString.Unsafe as B
import Data.Default.Class (def)
import Data.IORef
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (castPtr)
import Network.TLS
import Network.TLS.Extra.Cipher (ciphersuite_strong)
import qualified Network.Wai.Handler.Warp.Internal as Warp
import Weft.Blocking (blocking)
import Weft.Duration (seconds)
import Weft.Thread (timeoutFor)
import Weft.Warp.Stream

-- | A certificate with its key, and where they came from.
data Tls = Tls !FilePath !FilePath !(IORef Credential)

-- | Load a certificate, followed by those that lead to a known authority, and its key,
-- in PEM, and see whether they belong together. Throws an 'IOError' that says which file is
-- wrong, and how.
loadTls :: FilePath -> FilePath -> IO Tls
loadTls chain key = Tls chain key <$> (newIORef =<< load chain key)

-- | Load the files again, for the connections from now on. When that fails it throws,
-- and what was there before stays.
reloadTls :: Tls -> IO ()
reloadTls (Tls chain key ref) = load chain key >>= writeIORef ref

load :: FilePath -> FilePath -> IO Credential
load chain key = do
  -- The library says little of a file that cannot be read, or is something else.
  holds chain "CERTIFICATE-----" "certificate"
  holds key "PRIVATE KEY-----" "private key without a password"
  loaded <- blocking (try (credentialLoadX509 chain key))
  case loaded of
    Left e -> wrong key (" cannot be understood: " <> firstLine (displayException (e :: SomeException)))
    Right (Left why) -> wrong key (" cannot be understood: " <> firstLine why)
    Right (Right credential) -> do
      proved <- proves credential
      unless proved (wrong key (" is not the key of the certificate in " <> chain))
      pure credential
  where
    holds file mark what = do
      text <- blocking (B.readFile file)
      unless (mark `B.isInfixOf` text) (wrong file (" holds no " <> what <> " in PEM"))
    wrong file what = ioError (userError (file <> what))
    firstLine = takeWhile (/= '\n')

-- | Can a server with this be talked to? Found out by a handshake with ourselves.
proves :: Credential -> IO Bool
proves credential = do
  there <- newChan
  back <- newChan
  server <- end there back >>= \backend -> contextNew backend (parameters credential)
  client <- end back there >>= \backend -> contextNew backend trusting
  bracket (forkIO (void (tells (handshake server)))) killThread $ \_ ->
    (== Just True) <$> timeoutFor (seconds 10) (tells (handshake client))
  where
    end from to = do
      left <- newIORef B.empty
      pure (Backend (pure ()) (pure ()) (writeChan to) (exactly (readChan from) left))
    trusting =
      (defaultParamsClient "localhost" B.empty)
        { clientSupported = supported,
          clientShared = def {sharedValidationCache = ValidationCache (\_ _ _ -> pure ValidationCachePass) (\_ _ _ -> pure ())}
        }

-- | Does a connection that begins so speak TLS? RFC 8446, 5.1: the first record is a
-- handshake's.
looksLikeTls :: ByteString -> Bool
looksLikeTls bytes = B.take 1 bytes == "\x16"

-- | Shake hands over a stream, of which that has come already: a stream within. Throws
-- an 'IOError' when that fails, and so do the operations of the new stream.
acceptTls :: Tls -> ByteString -> Stream -> IO Stream
acceptTls (Tls _ _ ref) come raw = do
  credential <- readIORef ref
  left <- newIORef come
  context <- contextNew (Backend (pure ()) (pure ()) (streamSend raw) (exactly (streamRecv raw) left)) (parameters credential)
  handshake context `catch` failure
  protocol <- getNegotiatedProtocol context
  information <- contextGetInformation context
  certificates <- getClientCertificateChain context
  decrypted <- newIORef B.empty
  let (minor, cipher) = maybe (3, 0) (\i -> (if infoVersion i == TLS13 then 4 else 3, cipherID (infoCipher i))) information
      receive = do
        have <- readIORef decrypted
        if B.null have then ended (recvData context) else have <$ writeIORef decrypted B.empty
  pure
    Stream
      { streamRecv = receive,
        streamRecvBuf = \p n -> do
          have <- receive
          let count = min n (B.length have)
          B.unsafeUseAsCString have (\from -> copyBytes p (castPtr from) count)
          count <$ writeIORef decrypted (B.drop count have),
        streamSend = sendData context . L.fromStrict,
        streamSendNow = \_ -> pure (Right 0),
        streamSendMany = sendData context . L.fromChunks,
        streamSendManyNow = \_ -> pure (Right 0),
        streamFile = False,
        streamBye = void (tells (bye context)),
        streamTransport =
          Warp.TLS
            { Warp.tlsMajorVersion = 3,
              Warp.tlsMinorVersion = minor,
              Warp.tlsNegotiatedProtocol = protocol,
              Warp.tlsChiperID = cipher,
              Warp.tlsClientCertificate = certificates
            }
      }
  where
    -- A peer that goes without a word has ended its stream.
    ended = handle endOrFailure
    endOrFailure e
      | Terminated _ _ Error_EOF <- e = pure B.empty
      | otherwise = failure e
    failure :: TLSException -> IO a
    failure e = ioError (userError (show e))

-- | Did it go well?
tells :: IO () -> IO Bool
tells act = (True <$ act) `catches` [Handler library, Handler system]
  where
    library :: TLSException -> IO Bool
    library _ = pure False
    system :: IOException -> IO Bool
    system _ = pure False

-- | So many bytes, fewer only at the end of the stream, from an action that receives and
-- what is left of what it received: how the library asks for them.
exactly :: IO ByteString -> IORef ByteString -> Int -> IO ByteString
exactly receive left = go []
  where
    go acc n = do
      have <- readIORef left
      more <- if B.null have then receive else pure have
      if B.null more || B.length more >= n
        then do
          writeIORef left (B.drop n more)
          pure (if null acc then B.take n more else B.concat (reverse (B.take n more : acc)))
        else writeIORef left B.empty >> go (more : acc) (n - B.length more)

-- | What the server offers.
parameters :: Credential -> ServerParams
parameters credential =
  def
    { serverShared = def {sharedCredentials = Credentials [credential]},
      serverSupported = supported,
      serverHooks = def {onALPNClientSuggest = Just (pure . preferred)}
    }
  where
    -- RFC 7301, 3.2: without one in common the library ends the handshake.
    preferred offered = case filter (`elem` offered) ["h2", "http/1.1"] of
      protocol : _ -> protocol
      [] -> B.empty

supported :: Supported
supported =
  def
    { supportedVersions = [TLS13, TLS12],
      supportedCiphers = ciphersuite_strong,
      supportedClientInitiatedRenegotiation = False
    }
