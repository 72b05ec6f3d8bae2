-- | @weft serve@ with clients that do not read: descriptors, kernel memory, truncated files, and the shutdown.
module NotReading (tests) where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (forConcurrently, forConcurrently_)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import Operating (inFolder, until', warned)
import System.Directory
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO
import System.Posix.Resource
import System.Posix.Signals (sigTERM)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (skipUnless, testCase)

tests :: FilePath -> TestTree
tests program =
  testGroup
    "clients that do not read"
    [ testCase "150 of them, with 256 descriptors: others are served, and none is cut off" . inFolder $ \folder -> do
        -- Half of them want one file, the others a file each.
        let name i = if even i then "large" else "large" <> show i
        forM_ [1 .. 150 :: Int] $ \i -> do
          there <- doesPathExist (folder </> name i)
          unless there (B.writeFile (folder </> name i) large)
        -- The send buffer is smaller than a file, so that no connection can end.
        started [] (proc "bash" ["-c", "ulimit -n 256; exec \"$@\"", "bash", program, "serve", folder, "--port", "0", "--send-buffer", "131072"]) $ \p -> do
          warned p "256 descriptors"
          port <- portOf p
          slow <- forM [1 .. 150 :: Int] (slowly port . name)
          pid <- getPid (process p)
          let opened = maybe (pure 0) (\n -> length <$> listDirectory ("/proc/" <> show n <> "/fd")) pid
          -- All have been accepted.
          until' ((>= 150) <$> opened)
          threadDelay 500000
          replicateM_ 20 (get port "/" >>= answered 200 "<p>home</p>")
          get port "/large" >>= assertBool "a good client's file" . (== large) . body
          n <- opened
          assertBool (show n) (n < 250 && n >= 150)
          forM_ slow $ \s -> do
            setSocketOption s RecvBuffer 1000000
            answer <- recvAll s
            assertBool (show (B.length answer)) (body answer == large)
            close s
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
          said <- hGetContents (errors p)
          assertBool said (null said),
      testCase "100 clients that connect again and again, with 128 descriptors: no request fails for want of one" . inFolder $ \folder -> do
        let pages = ["page" <> show i | i <- [1 .. 40 :: Int]]
        forM_ pages $ \page -> B.writeFile (folder </> page) (B.pack page)
        started [] (proc "bash" ["-c", "ulimit -n 128; exec \"$@\"", "bash", program, "serve", folder, "--port", "0"]) $ \p -> do
          warned p "128 descriptors"
          port <- portOf p
          answers <- forConcurrently [1 .. 100 :: Int] $ \i ->
            forM (take 150 (drop i (cycle pages))) $ \page -> try (connected port (\s -> sendAll s (request "GET" ("/" <> page) "keep-alive") >> recv s 2000)) :: IO (Either IOException B.ByteString)
          -- Connections that are refused or evicted get no answer.
          let others = [a | Right a <- concat answers, not (B.null a), status a /= 200]
          assertEqual "other answers than 200" [] (take 3 others)
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
          said <- hGetContents (errors p)
          assertBool said (null said),
      testCase "--send-buffer bounds what the kernel holds for them" . inFolder $ \folder -> do
        B.writeFile (folder </> "large") large
        weft program [] ["serve", folder, "--port", "0", "--send-buffer", "131072"] $ \p -> do
          port <- portOf p
          slow <- replicateM 10 (slowly port "large")
          beginnings <- mapM (`recv` 1000) slow
          threadDelay 500000
          -- The kernel sends what it has taken, although the server is gone.
          send' 9 p
          _ <- waitForProcess (process p)
          forM_ (zip slow beginnings) $ \(s, beginning) -> do
            n <- (B.length beginning +) . B.length <$> recvAll s
            close s
            -- 2 x 128 KiB, and the client's own buffer.
            assertBool (show n) (n > 0 && n < 600000),
      testCase "100, and the file is truncated: each is cut off, and a line of its own names the file, whose name has a line feed and letters that are not ASCII" . inFolder $ \folder -> do
        B.writeFile (folder </> "gro\223\nfile") large
        weft program [] ["serve", folder, "--port", "0", "--send-buffer", "131072"] $ \p -> do
          port <- portOf p
          slow <- replicateM 100 (slowly port "gro%C3%9F%0Afile")
          -- The server has begun to answer each of them.
          forM_ slow $ \s -> recv s 1000 >>= assertBool "an early end" . not . B.null
          threadDelay 500000
          withFile (folder </> "gro\223\nfile") ReadWriteMode (`hSetFileSize` 1000)
          forConcurrently_ slow $ \s -> do
            setSocketOption s RecvBuffer 1000000
            n <- B.length <$> recvAll s
            close s
            assertBool (show n) (n < B.length large)
          get port "/" >>= answered 200 "<p>home</p>"
          send' sigTERM p
          waitForProcess (process p) >>= (@?= ExitSuccess)
          said <- lines <$> hGetContents (errors p)
          assertBool (unlines said) (length said == 100 && all (== head' said) said && "gro\223 file" `isInfixOf` head' said),
      testCase "SIGTERM with 1,000 idle connections and 100 of them: the idle ones are closed, the others get their whole response" . inFolder $ \folder -> do
        allowed <- getResourceLimit ResourceOpenFiles
        skipUnless "fewer than 2,000 descriptors (ulimit -n)" (case hardLimit allowed of ResourceLimit n -> n >= 2000; _ -> True)
        setResourceLimit ResourceOpenFiles allowed {softLimit = hardLimit allowed}
        B.writeFile (folder </> "large") large
        weft program [] ["serve", folder, "--port", "0", "--send-buffer", "131072", "--drain", "50"] $ \p -> do
          port <- portOf p
          idle <- replicateM 1000 (to port "/" "keep-alive")
          forM_ idle $ \s -> recvUntil s (B.isSuffixOf (B.pack "<p>home</p>")) >>= (@?= 200) . status
          busy <- replicateM 100 (slowly port "large")
          beginnings <- mapM (`recv` 1000) busy
          send' sigTERM p
          forM_ idle $ \s -> recv s 100 >>= (@?= B.empty) >> close s
          until' (either (\e -> const True (e :: IOException)) (const False) <$> try (get port "/"))
          forM_ (zip busy beginnings) $ \(s, beginning) -> do
            setSocketOption s RecvBuffer 1000000
            rest <- recvAll s
            assertBool (show (B.length rest)) (body (beginning <> rest) == large)
            close s
          waitForProcess (process p) >>= (@?= ExitSuccess)
    ]
  where
    large = B.concat (replicate 20000 (B.pack "weft keeps no file open for a client that does not read it. 64 bytes"))
    slowly port path = to port ("/" <> path) "close"
    to port path connection = do
      s <- socket AF_INET Stream defaultProtocol
      setSocketOption s RecvBuffer 4096
      connect s (SockAddrInet port (tupleToHostAddress (127, 0, 0, 1)))
      s <$ sendAll s (request "GET" path connection)
    head' list = case list of
      x : _ -> x
      [] -> ""
