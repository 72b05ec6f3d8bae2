{-# LANGUAGE OverloadedStrings #-}

-- |
-- What clients on Weft are tested in: names that only Weft's resolver knows, addresses that are silent, an nginx with
-- TLS and an authority of its own, and peers that stop in each phase of a request.
module Library.Surroundings
  ( -- * Names and addresses
    withNames,
    withSilent,

    -- * Servers
    withNginxBefore,
    withAuthority,
    Authority (..),

    -- * Limits on time
    Stop (..),
    stops,
    limit,

    -- * Descriptors
    closesAll,
  )
where

import qualified Codec.Compression.GZip as GZip
import Control.Concurrent (threadDelay)
import Control.Exception
import Control.Monad (forM_, void, when)
import qualified Data.ByteString as B
import Data.ByteString.Builder (intDec, toLazyByteString)
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (stripPrefix)
import Data.Maybe (mapMaybe)
import Network.HTTP.Client (ResponseTimeout, responseTimeoutMicro)
import Numeric (readHex)
import Process (eventually, program, withFolder)
import System.Directory (listDirectory)
import System.FilePath ((</>))
import System.Mem (performMajorGC)
import System.Posix.Files (readSymbolicLink)
import Weft.Dial
import Weft.Duration
import Weft.Resolver
import Weft.Socket (SockAddr (..), SocketType (..), deadlineIn, isTimeout, tupleToHostAddress)
import qualified Weft.Socket as S
import Weft.Test.Peer hiding (eventually)
import Weft.Test.Services (freePort, withNginxServing)

-- | Run an action with a resolver that knows these names and no others: it has a file of hosts of its own, and a name
-- server that does not answer.
withNames :: [(String, [String])] -> (DialOptions -> IO a) -> IO a
withNames names act = withFolder $ \folder ->
  bracket (S.socket S.AF_INET Datagram 0) S.close $ \s -> do
    S.bind s (loopback 1 0)
    server <- S.getSocketName s
    let file = folder </> "hosts"
    writeFile file (unlines [address <> " " <> name | (name, addresses) <- names, address <- addresses])
    resolver <- newResolver defaultResolverSettings {resolverHosts = Just file, resolverServers = [server]}
    act defaultDialOptions {dialResolver = Just resolver}

loopback :: Int -> S.PortNumber -> SockAddr
loopback n port = SockAddrInet port (tupleToHostAddress (127, 0, 0, fromIntegral n))

-- | Run an action while 127.0.0.2 does not answer on this port: its backlog is full.
withSilent :: Int -> IO a -> IO a
withSilent port act = bracket (S.socket S.AF_INET Stream 0) S.close $ \l -> do
  let address = loopback 2 (fromIntegral port)
  S.bind l address
  S.listen l 0
  fillers <- newIORef []
  -- Until two have found no room: one alone may have been late for another reason.
  let fill n full = when (n > (0 :: Int) && full < (2 :: Int)) $ do
        s <- S.socket S.AF_INET Stream 0
        modifyIORef' fillers (s :)
        soon <- deadlineIn (milliseconds 150)
        r <- try (S.connect (S.withDeadline soon s) address)
        case r of
          Right () -> fill (n - 1) 0
          Left e | isTimeout e -> fill (n - 1) (full + 1)
          Left e -> throwIO e
  (fill 50 0 >> act) `finally` (readIORef fillers >>= mapM_ S.close)

-- | The files of an authority, and of a certificate of it for a name, with its key.
data Authority = Authority {authorityFile, chainFile, keyFile :: FilePath}

-- | Run an action with an authority and a certificate for the name.
withAuthority :: String -> (Authority -> IO a) -> IO a
withAuthority name act = withFolder $ \folder -> do
  let at = (folder </>)
      made = program "openssl" . words
      ec = " -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"
  writeFile (at "extension") ("subjectAltName=DNS:" <> name <> "\n")
  _ <- made ("req -x509 -days 2 -subj /CN=authority" <> ec <> " -keyout " <> at "ca.key" <> " -out " <> at "ca.pem")
  _ <- made ("req -subj /CN=" <> name <> ec <> " -keyout " <> at "key.pem" <> " -out " <> at "request.pem")
  _ <- made ("x509 -req -days 2 -set_serial 2 -in " <> at "request.pem" <> " -CA " <> at "ca.pem" <> " -CAkey " <> at "ca.key" <> " -extfile " <> at "extension" <> " -out " <> at "cert.pem")
  act (Authority (at "ca.pem") (at "cert.pem") (at "key.pem"))

-- | Run an action with the port of an nginx that speaks TLS, and passes requests on to a server on the other port.
withNginxBefore :: Authority -> Int -> (Int -> IO a) -> IO a
withNginxBefore authority behind = withNginxServing $ \port ->
  [ "listen 127.0.0.1:" <> show port <> " ssl;",
    "ssl_certificate " <> chainFile authority <> "; ssl_certificate_key " <> keyFile authority <> ";",
    "location / { proxy_pass http://127.0.0.1:" <> show behind <> "; proxy_set_header Host $host; }"
  ]

-- | A server that stops: in which phase, its address, and the size of a request's body that makes it stop there.
data Stop = Stop {stopsIn :: String, stopAddress :: String, stopBody :: Int}

-- | Run an action with each server that stops.
stops :: (DialOptions -> Stop -> IO ()) -> IO ()
stops act = withNames [] $ \options -> do
  let peer phase scheme size script = withPeer (\_ c -> void (script c) >> heardEnd c) $ \port ->
        act options (Stop phase (scheme <> "://127.0.0.1:" <> show port) size)
      answered bytes c = hearRequest c >> say c bytes
  act options (Stop "the look-up of the name" "http://unknown.weft.test" 0)
  silent <- freePort
  withSilent silent (act options (Stop "connecting" ("http://127.0.0.2:" <> show silent) 0))
  peer "the handshake of TLS" "https" 0 (const (pure ()))
  withPeer (\_ _ -> threadDelay 80000000) $ \port ->
    act options (Stop "sending the request" ("http://127.0.0.1:" <> show port) 50000000)
  peer "waiting for the head" "http" 0 (void . hearRequest)
  peer "the head" "http" 0 (answered "HTTP/1.1 200 OK\r\nContent-Type: application")
  peer "the body" "http" 0 (answered "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n1234")
  let packed = L.toStrict (GZip.compress (L.replicate 1000000 0))
      size = L.toStrict (toLazyByteString (intDec (B.length packed)))
  -- More bytes are read of it than its length says.
  peer "a compressed body" "http" 0 (answered ("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: " <> size <> "\r\n\r\n" <> B.take (B.length packed `div` 2) packed))
  peer "a body in chunks" "http" 0 (answered "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n1234\r\n2")

-- | The limit that such requests have.
limit :: ResponseTimeout
limit = responseTimeoutMicro 300000

-- | Run an action; behind it, this process has no connection to any of these ports left once unused managers have been
-- collected.
closesAll :: [Int] -> IO a -> IO a
closesAll ports act = do
  a <- act
  forM_ ports $ \port -> eventually ("connections to port " <> show port <> " are left") (performMajorGC >> (== 0) <$> connectionsTo port)
  pure a

-- | How many sockets of this process are connected to a port, or connect (proc(5), @/proc/net/tcp@).
connectionsTo :: Int -> IO Int
connectionsTo port = do
  descriptors <- listDirectory "/proc/self/fd"
  links <- mapM (\fd -> readSymbolicLink ("/proc/self/fd" </> fd) `catch` closedMeanwhile) descriptors
  let own = mapMaybe (fmap (takeWhile (/= ']')) . stripPrefix "socket:[") links
  table <- readFile "/proc/net/tcp"
  pure (length [() | _ : _ : remote : rest <- map words (drop 1 (lines table)), to remote == [port], take 1 (drop 6 rest) `elem` map pure own])
  where
    closedMeanwhile :: IOException -> IO FilePath
    closedMeanwhile _ = pure ""
    to remote = [n | (n, "") <- readHex (drop 1 (dropWhile (/= ':') remote))]
