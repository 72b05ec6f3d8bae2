{-# LANGUAGE LambdaCase #-}

-- | @weft serve@: the addresses on which it listens. Files of Unix sockets and their permissions, and IPv4 beside IPv6.
module Listening (tests) where

import Answering (freePort)
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (replicateConcurrently_, wait, withAsync)
import Control.Exception
import Control.Monad
import Data.Bits ((.&.))
import Foreign.C.Error (Errno (..), eCONNREFUSED, eNOENT)
import GHC.IO.Exception (IOException (ioe_errno))
import Network.Socket
import Network.Socket.ByteString (sendAll)
import Operating (config, inFolder, overUnix)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (hGetContents, hGetLine)
import System.Posix.Files (createSymbolicLink, fileExist, fileID, fileMode, getFileStatus)
import System.Posix.Signals (sigCONT, sigKILL, sigSTOP, sigTERM)
import System.Process (proc, waitForProcess)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (skipUnless, testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "listening"
    [ testGroup
        "--listen unix: a socket that is in use stays"
        [ testCase name . inFolder $ \folder -> do
            let path = folder </> "socket"
            withSocketOf kind $ \s -> do
              bind s (SockAddrUnix path)
              when (kind /= Datagram) (listen s 0)
              before <- fileID <$> getFileStatus path
              full <- if kind == Stream then replicateM 3 (waiting path) else pure []
              weft program [] ["serve", folder, "--listen", "unix:" <> path] $ \p -> do
                line <- try (hGetLine (output p)) :: IO (Either IOException String)
                either (const (pure ())) (assertFailure . ("it serves: " <>)) line
                out <- hGetContents (errors p)
                contains out ("cannot listen on unix:" <> path <> ": another " <> part)
                waitForProcess (process p) >>= (@?= ExitFailure 1)
              getFileStatus path >>= (@?= before) . fileID
              mapM_ close full
          | (name, kind, part) <-
              [ ("a server whose queue of connections is full", Stream, "server is listening there, and its queue of connections is full"),
                ("sequenced packets", SeqPacket, "program uses the socket there, which is not a stream socket"),
                ("datagrams", Datagram, "program uses the socket there, which is not a stream socket")
              ]
        ],
      testCase "--listen unix: of servers that are started at the same moment one serves, also where one has left its socket" . inFolder $ \folder ->
        forM_ [1 .. 20 :: Int] $ \i -> do
          let path = folder </> ("socket" <> show i)
              run = weft program [] ["serve", folder, "--cores", "1", "--listen", "unix:" <> path]
          when (even i) . withSocketOf Stream $ \s -> bind s (SockAddrUnix path) >> listen s 1
          run $ \a -> run $ \b -> run $ \c -> do
            found <- forM [a, b, c] $ \p -> do
              line <- try (hGetLine (output p)) :: IO (Either IOException String)
              case line of
                Right _ -> pure True
                Left _ -> do
                  out <- hGetContents (errors p)
                  False <$ contains out ("cannot listen on unix:" <> path <> ": another server is listening there")
            length (filter id found) @?= 1
            overUnix path (request "GET" "/" "close") >>= answered 200 "<p>home</p>",
      testCase "--listen unix: a path is encoded as those of files are" . inFolder $ \folder -> do
        let path = folder </> "s\228\9731cket"
            link = folder </> "link"
        createSymbolicLink path link
        -- The second one finds the file that the first one, which is killed, leaves.
        forM_ [sigKILL, sigTERM] $ \signal -> weft program [] ["serve", folder, "--cores", "1", "--listen", "unix:" <> path] $ \p -> do
          _ <- hGetLine (output p)
          overUnix link (request "GET" "/" "close") >>= answered 200 "<p>home</p>"
          send' signal p
          void (waitForProcess (process p))
        fileExist path >>= assertBool "its file is left" . not,
      testCase "SIGTERM: no client that has connected to --listen is left without an answer" . inFolder $ \folder -> do
        writeFile (folder </> "a.txt") "a text"
        forM_ [1 .. 3 :: Int] $ \_ -> do
          weft program [] ["serve", folder, "--cores", "2", "--listen", "127.0.0.1:0"] $ \p -> do
            port <- portOf p
            noneLost p (AF_INET, SockAddrInet port (tupleToHostAddress (127, 0, 0, 1)))
          let path = folder </> "drained"
          weft program [] ["serve", folder, "--cores", "2", "--listen", "unix:" <> path] $ \p -> do
            _ <- hGetLine (output p)
            noneLost p (AF_UNIX, SockAddrUnix path),
      testCase "--listen unix: every user may connect, whatever the umask; --socket-mode says who may" . inFolder $ \folder -> do
        let path = folder </> "socket"
            -- In a shell of its own, since the umask is that of a whole process.
            serving options = started [] (proc "sh" (["-c", "umask 077; exec \"$0\" \"$@\"", program, "serve", folder, "--listen", "unix:" <> path] <> options))
            has mode p = do
              _ <- hGetLine (output p)
              getFileStatus path >>= (@?= mode) . (.&. 0o777) . fileMode
              overUnix path (request "GET" "/" "close") >>= answered 200 "<p>home</p>"
        serving [] (has 0o666)
        serving ["--socket-mode", "0640"] (has 0o640)
        config folder ["socket-mode: 0660"]
        serving ["--config", folder </> "weft.yaml"] (has 0o660),
      testCase "--socket-mode: wrong values" . inFolder $ \folder -> forM_ ["888", "66", "rw-", "1666"] $ \mode -> do
        (code, out) <- outcome program [] ["serve", folder, "--socket-mode", mode]
        code @?= ExitFailure 2
        contains out "expected permissions in octal, as 660",
      testCase "[::] is for IPv6 only beside an IPv4 address with its port, and for both alone" . inFolder $ \folder -> do
        six <- try (withSocketOf6 (const (pure ()))) :: IO (Either IOException ())
        skipUnless "no IPv6 here" (either (const False) (const True) six)
        forM_ [["0.0.0.0", "[::]"], ["[::]", "0.0.0.0"], ["127.0.0.1", "[::]"], ["[::]"], [""]] $ \hosts -> do
          port <- freePort
          let addresses = concat [["--listen", host <> ":" <> show port] | host <- hosts]
          outcome program [] (["serve", folder, "--check"] <> addresses) >>= (@?= ExitSuccess) . fst
          weft program [] (["serve", folder] <> addresses) $ \p -> do
            _ <- hGetLine (output p)
            replicateM_ 4 $ do
              get port "/" >>= answered 200 "<p>home</p>"
              withSocketOf6 (\s -> connect s (SockAddrInet6 port 0 (0, 0, 0, 1) 0) >> sendAll s (request "GET" "/" "close") >> recvAll s) >>= answered 200 "<p>home</p>",
      testCase "--check refuses addresses of which one is all of the other's kind" . inFolder $ \folder ->
        forM_ [["0.0.0.0:80", "127.0.0.1:80"], ["[::1]:80", "[::]:80"], ["[::]:80", "[0:0::]:80"], [":80", "0.0.0.0:80"]] $ \addresses -> do
          (code, out) <- outcome program [] (["serve", folder, "--check"] <> concat [["--listen", address] | address <- addresses])
          code @?= ExitFailure 2
          contains out "cannot both be listened on"
    ]
  where
    withSocketOf kind = bracket (socket AF_UNIX kind defaultProtocol) close
    withSocketOf6 = bracket (socket AF_INET6 Stream defaultProtocol >>= \s -> s <$ bind s (SockAddrInet6 0 0 (0, 0, 0, 1) 0)) close
    -- A connection that nobody accepts, or that finds the queue full.
    waiting path = do
      s <- socket AF_UNIX Stream defaultProtocol
      s <$ (try (connect s (SockAddrUnix path)) :: IO (Either IOException ()))

-- | Connections wait in the backlog of a stopped server when it is told to end, and clients go on to connect in loops:
-- each is refused, or has its answer.
noneLost :: Running -> (Family, SockAddr) -> Assertion
noneLost p (family, address) = do
  send' sigSTOP p
  bracket (replicateM 100 (connecting >>= either throwIO pure)) (mapM_ close) $ \waiting' -> do
    forM_ waiting' asking
    withAsync (replicateConcurrently_ 8 again) $ \loops -> do
      threadDelay 50000
      send' sigTERM p
      send' sigCONT p
      forM_ waiting' $ \s -> recvAll s >>= answered 200 "a text"
      wait loops
  waitForProcess (process p) >>= (@?= ExitSuccess)
  where
    asking s = sendAll s (request "GET" "/a.txt" "close")
    connecting = do
      s <- socket family Stream defaultProtocol
      outcome' <- try (connect s address)
      case outcome' of
        Right () -> pure (Right s)
        Left e -> Left (e :: IOException) <$ close s
    again =
      connecting >>= \case
        -- The file of a Unix socket is removed at the end.
        Left e -> assertBool (show e) (fmap Errno (ioe_errno e) `elem` map Just [eCONNREFUSED, eNOENT])
        Right s -> ((asking s >> recvAll s >>= answered 200 "a text") `finally` close s) >> again
