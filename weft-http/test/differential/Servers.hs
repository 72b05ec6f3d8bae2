{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The servers that are compared, and what they did
--
-- nginx, HAProxy, h2o, Node's http, Go's net\/http and hyper, each answering every request when it has read the body;
-- started on a free port of the loopback interface and ended by the bracket.
module Servers
  ( -- * Peers
    Peer (..),
    peers,
    withPeer,

    -- * What they do
    Observed (..),
    observe,
    accepted,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, try)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (isAsciiUpper, isDigit)
import Data.Maybe (catMaybes)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Directory (doesFileExist, findExecutable, removePathForcibly)
import System.FilePath ((</>))
import System.IO (hGetLine)
import System.Posix.Temp (mkdtemp)
import System.Posix.User (getEffectiveUserID)
import System.Process
import System.Timeout (timeout)

-- | A server that Weft is compared with.
data Peer = Peer
  { peerName :: String,
    -- | Nothing is compared without it. The others join where they are.
    peerNeeded :: Bool,
    -- | Why it cannot run here, or how it is started on a port, with a folder of its own.
    peerCommand :: IO (Either String (Int -> FilePath -> IO CreateProcess))
  }

-- | The known peers. Those that are needed come from Debian.
peers :: [Peer]
peers =
  [Peer name True start | (name, start) <- [("nginx", nginx), ("haproxy", haproxy), ("h2o", h2o), ("node", node)]]
    ++ [Peer "go" False (built "go-http"), Peer "hyper" False (built "hyper-pong")]

-- | Run a peer while an action runs, which gets the peer's port.
withPeer :: Peer -> (Int -> IO a) -> IO (Either String a)
withPeer peer act =
  peerCommand peer >>= either (pure . Left) run
  where
    run command = bracket (mkdtemp "/tmp/weft-differential-") removePathForcibly $ \folder -> do
      port <- freePort
      process <- command port folder
      bracket (createProcess process {std_out = CreatePipe}) end $ \(_, out, _, _) -> do
        ready <- timeout 60000000 (maybe (pure ()) (\h -> () <$ hGetLine h) out `orElse` pure () >> until' port)
        case ready of
          Nothing -> pure (Left (peerName peer <> " does not listen"))
          Just () -> Right <$> act port
    end (_, _, _, handle) = terminateProcess handle >> () <$ waitForProcess handle
    orElse a b = (try a :: IO (Either IOException ())) >>= either (const b) pure
    until' port = do
      there <- try (withConnection port (const (pure ()))) :: IO (Either IOException ())
      either (const (threadDelay 50000 >> until' port)) pure there

-- | A server with a configuration file, from its name, its arguments but for the file, and the file's text.
configured :: String -> [String] -> (Int -> FilePath -> String) -> IO (Either String (Int -> FilePath -> IO CreateProcess))
configured name arguments text = do
  found <- mapM existing ["/usr/sbin/" <> name, "/usr/local/sbin/" <> name]
  path <- findExecutable name
  pure $ case catMaybes (path : found) of
    [] -> Left (name <> " is not installed")
    program : _ -> Right $ \port folder -> do
      writeFile (folder </> "configuration") (text port folder)
      -- It does not report when it is ready.
      pure (proc "sh" (["-c", "echo starting; exec \"$@\" 2>/dev/null", "-", program] ++ arguments ++ [folder </> "configuration"]))
  where
    existing p = (\there -> if there then Just p else Nothing) <$> doesFileExist p

nginx :: IO (Either String (Int -> FilePath -> IO CreateProcess))
nginx = configured "nginx" ["-c"] nginxConfiguration

nginxConfiguration :: Int -> FilePath -> String
nginxConfiguration port folder =
  unlines
    [ "daemon off; master_process off; pid " <> folder <> "/pid; error_log " <> folder <> "/errors crit;",
      "events { worker_connections 1024; }",
      "http {",
      "  access_log off;",
      unlines ["  " <> kind <> "_temp_path " <> folder <> "/" <> kind <> ";" | kind <- ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]],
      "  server { listen 127.0.0.1:" <> show port <> "; location / { return 200 'Pong!'; } }",
      "}"
    ]

haproxy :: IO (Either String (Int -> FilePath -> IO CreateProcess))
haproxy = configured "haproxy" ["-db", "-f"] $ \port _ ->
  unlines
    [ "global",
      "  maxconn 1000",
      "defaults",
      "  mode http",
      "  timeout client 10s",
      "frontend pong",
      "  bind 127.0.0.1:" <> show port,
      "  http-request wait-for-body time 10s",
      "  http-request return status 200 content-type text/plain string Pong!"
    ]

h2o :: IO (Either String (Int -> FilePath -> IO CreateProcess))
h2o = do
  root <- (== 0) <$> getEffectiveUserID
  configured "h2o" ["-c"] $ \port folder ->
    unlines $
      -- Started by root, it becomes another user, who cannot write into the folder.
      ["user: root" | root]
        ++ [ "listen: {host: 127.0.0.1, port: " <> show port <> "}",
             "num-threads: 1",
             "pid-file: " <> folder <> "/pid",
             "error-log: " <> folder <> "/errors",
             "hosts:",
             "  default:",
             "    paths:",
             "      /:",
             "        mruby.handler: |",
             "          Proc.new do |request|",
             "            request['rack.input'].read if request['rack.input']",
             "            [200, {}, ['Pong!']]",
             "          end"
           ]

node :: IO (Either String (Int -> FilePath -> IO CreateProcess))
node = do
  path <- findExecutable "node"
  pure $ case path of
    Nothing -> Left "node is not installed"
    Just program -> Right $ \port _ -> pure (proc program ["-e", script port])
  where
    script port =
      "require('http').createServer((q, s) => { q.on('error', () => {}); q.resume(); q.on('end', () => s.end('Pong!')); })"
        <> ".listen({port: "
        <> show port
        <> ", host: '127.0.0.1', backlog: 1024}, () => console.log('listening'))"

-- | A program of @make bench-peers@.
built :: FilePath -> IO (Either String (Int -> FilePath -> IO CreateProcess))
built name = do
  found <- filter snd <$> mapM (\p -> (,) p <$> doesFileExist p) [up </> "bin" </> "peers" </> name | up <- ["..", "."]]
  pure $ case found of
    [] -> Left (name <> " is not built (make bench-peers)")
    (program, _) : _ -> Right (\port _ -> pure (proc program ["--port", show port]))

freePort :: IO Int
freePort = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  fromIntegral <$> socketPort s

withConnection :: Int -> (Socket -> IO a) -> IO a
withConnection port act = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
  act s

-- What they do ---------------------------------------------------------------------------

-- | The responses of a server to some bytes.
data Observed = Observed
  { -- | The final answers' statuses, in order.
    observedStatuses :: ![Int],
    -- | Did it end the connection?
    observedClosed :: !Bool
  }
  deriving (Eq, Ord)

instance Show Observed where
  show (Observed seen closed) = unwords (map show seen) <> (if closed then " closed" else " kept")

-- | The number of requests that the server accepted.
accepted :: Observed -> Int
accepted = length . filter (\s -> s < 400) . observedStatuses

-- | Send bytes that contain at most this many requests. Returns the responses received until there are that many, the
-- connection has ended, or nothing was received for the given number of microseconds.
observe :: Int -> Int -> Int -> ByteString -> IO Observed
observe port most quiet bytes = withConnection port $ \s -> do
  _ <- try (sendAll s bytes) :: IO (Either IOException ())
  go s B.empty
  where
    go s have
      | length (statuses have) >= most = Observed (statuses have) <$> endsSoon s
      | otherwise = do
        more <- timeout quiet (try (recv s 65536))
        case more of
          Nothing -> pure (Observed (statuses have) False)
          Just (Left e) -> let _ = e :: IOException in pure (Observed (statuses have) True)
          Just (Right piece)
            | B.null piece -> pure (Observed (statuses have) True)
            | otherwise -> go s (have <> piece)
    -- After the last answer: an end that was announced follows at once.
    endsSoon s = do
      more <- timeout 30000 (try (recv s 65536)) :: IO (Maybe (Either IOException ByteString))
      pure (maybe False (either (const True) B.null) more)

-- | The statuses of the answers that are complete in a stream: interim ones do not count.
statuses :: ByteString -> [Int]
statuses bytes
  | not ("HTTP/1." `B.isPrefixOf` bytes) = []
  | B.null after = []
  | status < 200 = statuses (B.drop 4 after)
  | otherwise = status : maybe [] statuses (B.stripPrefix (B.take size rest) rest)
  where
    (headBytes, after) = B.breakSubstring "\r\n\r\n" bytes
    rest = B.drop 4 after
    status = maybe 0 fst (C.readInt (C.takeWhile isDigit (C.drop 9 headBytes)))
    fields = map (C.map lower) (C.lines headBytes)
    size = case [v | f <- fields, Just v <- [B.stripPrefix "content-length:" f]] of
      v : _ -> maybe 0 fst (C.readInt (C.dropWhile (== ' ') v))
      [] | any ("transfer-encoding: chunked" `B.isPrefixOf`) fields -> chunkedSize rest
      [] -> B.length rest
    lower c = if isAsciiUpper c then toEnum (fromEnum c + 32) else c

-- | The length of a chunked body, without trailers.
chunkedSize :: ByteString -> Int
chunkedSize = go 0
  where
    go n bytes = case C.breakSubstring "\r\n" bytes of
      (line, end)
        | B.null end -> n + B.length bytes
        | hex line == 0 -> n + B.length line + 4
        | otherwise -> let k = B.length line + 4 + hex line in go (n + k) (B.drop k bytes)
    hex = C.foldl' (\a c -> a * 16 + digit c) 0 . C.takeWhile (/= ';')
    digit c
      | isDigit c = fromEnum c - 48
      | otherwise = max 0 (fromEnum c `mod` 32 + 9) `mod` 16
