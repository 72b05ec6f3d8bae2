-- |
-- HTTP downloads from our stack and uploads to it, by curl and wget.
module Downloads (tests) where

import Control.Concurrent
import Control.Exception (bracket, finally)
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (toLower)
import Kernel
import System.Directory (findExecutable, getTemporaryDirectory, removeFile)
import System.Exit (ExitCode (..))
import System.IO
import System.IO.Error (tryIOError)
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Transfers (clean)
import Weft.Tcp
import Weft.Test.Skip (skip, testCase)
import Weft.Transport (noDeadline)

-- | The argument adds transfers of 1 GB.
tests :: Bool -> [TestTree]
tests large =
  [ testGroup
      "files by HTTP"
      [ testCase (unwords [program, direction, show n, "bytes,", version]) (act host n)
        | (version, host) <- [("IPv4", ourAddress), ("IPv6", "[" ++ ourAddress6 ++ "]")],
          (program, direction, act) <- [("curl", "downloads", curlDown), ("curl", "uploads", curlUp), ("wget", "downloads", wgetDown), ("wget", "uploads", wgetUp)],
          n <- [1, 100000, 100000000] ++ [1000000000 | large]
      ]
  ]

curlDown, curlUp, wgetDown, wgetUp :: String -> Int -> Assertion
curlDown host n = download n $ \path -> client "curl" ["-sf", "--max-time", "250", "-o", path, url host n]
curlUp host n = upload n $ \path -> client "curl" ["-sf", "--max-time", "250", "-T", path, url host n]
wgetDown host n = download n $ \path -> client "wget" ["-q", "-t", "1", "-T", "60", "-O", path, url host n]
wgetUp host n = upload n $ \path -> client "wget" ["-q", "-t", "1", "-T", "60", "-O", "-", "--method=PUT", "--body-file=" ++ path, url host n]

url :: String -> Int -> String
url host n = "http://" ++ host ++ "/" ++ show n

-- | Run a client and return its output.
client :: String -> [String] -> IO String
client program args = do
  found <- findExecutable program
  when (found == Nothing) (skip ("no program " ++ program))
  (code, out, err) <- readProcessWithExitCode program args ""
  unless (code == ExitSuccess) (assertFailure (unwords (program : args) ++ ": " ++ show code ++ " " ++ out ++ err))
  pure out

-- | Download with a client, and compare the file with the pattern.
download :: Int -> (FilePath -> IO String) -> Assertion
download n act = withSite . withTemporary $ \path h -> do
  hClose h
  _ <- clean (act path)
  withBinaryFile path ReadMode (checkFrom 0) >>= (@?= n)
  where
    checkFrom at h = do
      b <- B.hGetSome h 1048576
      if B.null b then pure at else assertBool ("other bytes at " ++ show at) (checkPattern at b) >> checkFrom (at + B.length b) h

-- | Upload with a client. The server compares the data with the pattern, and answers with its size.
upload :: Int -> (FilePath -> IO String) -> Assertion
upload n act = withSite . withTemporary $ \path h -> do
  let write at = when (at < n) $ let b = patternFrom at (n - at) in B.hPut h b >> write (at + B.length b)
  write 0
  hClose h
  clean (act path) >>= (@?= show n)

withTemporary :: (FilePath -> Handle -> IO a) -> IO a
withTemporary act = do
  tmp <- getTemporaryDirectory
  bracket (openBinaryTempFile tmp "weft-http") (removeFile . fst) (uncurry act)

-- | A server on port 80.
withSite :: IO a -> IO a
withSite act = withKernel plainSetup $ \st -> do
  l <- listen st Nothing 80
  bracket (forkIO (forever (accept l >>= \c -> forkIO (void (tryIOError (serve c)) `finally` close c)))) killThread (const act)

-- | Serve one request: answer GET of @/N@ with N bytes of the pattern, and PUT with the number of received bytes.
serve :: Socket -> IO ()
serve c = do
  (headers, rest) <- receiveHead B.empty
  let field name = [C.dropWhile (== ' ') (B.drop (length name + 1) l) | l <- C.lines headers, C.map toLower (C.takeWhile (/= ':') l) == C.pack name]
      wanted = maybe 0 fst (C.readInt (B.drop 1 (C.dropWhile (/= '/') headers)))
  case [n | v <- field "content-length", Just (n, _) <- [C.readInt v]] of
    n : _ -> do
      unless (null (field "expect")) (send c noDeadline (C.pack "HTTP/1.1 100 Continue\r\n\r\n"))
      arrived <- receiveBody n 0 rest
      let answer = C.pack (show arrived)
      send c noDeadline (response (B.length answer) <> answer)
    [] -> send c noDeadline (response wanted) >> sendFrom wanted 0
  shutdownSend c
  void (recv c noDeadline 10)
  where
    response n = C.pack ("HTTP/1.1 200 OK\r\nContent-Length: " ++ show n ++ "\r\nConnection: close\r\n\r\n")
    receiveHead got = case B.breakSubstring (C.pack "\r\n\r\n") got of
      (headers, rest) | not (B.null rest) -> pure (headers, B.drop 4 rest)
      _ -> recv c noDeadline 4096 >>= \b -> if B.null b then fail "no request" else receiveHead (got <> b)
    receiveBody n at b
      | not (checkPattern at b) = abort c >> fail "wrong bytes"
      | at + B.length b >= n = pure (at + B.length b)
      | otherwise = recv c noDeadline 262144 >>= \more -> if B.null more then pure (at + B.length b) else receiveBody n (at + B.length b) more
    sendFrom n at = when (at < n) $ do
      let b = patternFrom at (min 65536 (n - at))
      send c noDeadline b
      sendFrom n (at + B.length b)
