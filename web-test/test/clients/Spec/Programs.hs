-- |
-- Programs that people use: curl, Python's @http.client@ and @requests@, Go's @net\/http@, h2load.
module Spec.Programs
  ( tests,
  )
where

import Control.Exception (bracket_)
import Control.Monad (forM_)
import Data.IORef
import Data.List (isInfixOf, isPrefixOf)
import Process
import System.Directory (removeFile)
import System.FilePath ((</>))
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (needProgram, testCase)

tests :: TestTree
tests =
  testGroup
    "programs"
    [ testCase "curl: 1 GiB in both directions, hashed, through bounded memory" . withLarge 1024 $ \file hash -> withServer file 5 $ \server -> do
        -- Twice as much as one more copy of a receive on each of the two cores would be noise; a gibibyte would not.
        settled <- peakOf server
        forM_ [[], ["-H", "Transfer-Encoding: chunked"]] $ \more ->
          curl (["-T", file, "-X", "POST"] <> more <> [address server "/hash"]) >>= (@?= hash)
        out <- program "bash" ["-c", "curl -sS --noproxy '*' --max-time 90 " <> address server "/file" <> " | sha256sum"]
        takeWhile (/= ' ') out @?= hash
        peak <- peakOf server
        assertBool ("KiB before and at most: " <> show (settled, peak)) (peak - settled < 65536)
        noExceptions server,
      testCase "curl: 64 MiB in both directions over TLS, by HTTP/1.1 and HTTP/2" . withLarge 64 $ \file hash -> withFolder $ \folder -> do
        pair <- certificate folder
        withTlsServer file 5 pair $ \server -> forM_ ["--http1.1", "--http2"] $ \version -> do
          curl ["-k", version, "-T", file, "-X", "POST", address server "/hash"] >>= (@?= hash)
          out <- program "bash" ["-c", "curl -sS -k --noproxy '*' " <> version <> " --max-time 90 " <> address server "/file" <> " | sha256sum"]
          takeWhile (/= ' ') out @?= hash
          noExceptions server,
      testCase "curl: a response while the request is sent" . withLarge 16 $ \file hash -> withServer file 5 $ \server -> do
        out <- program "bash" ["-c", "curl -sS --noproxy '*' --max-time 60 -H Expect: -H 'Transfer-Encoding: chunked' -T " <> file <> " -X POST " <> address server "/echo" <> " | sha256sum"]
        takeWhile (/= ' ') out @?= hash,
      testCase "h2load: large bodies, nothing is lost" . withLarge 8 $ \file _ -> withFolder $ \folder -> do
        pair <- certificate folder
        withTlsServer file 10 pair $ \server -> forM_ [("/file", "60", "6", "5"), ("/large?n=3000000", "100", "10", "5"), ("/stream?n=3000000", "100", "10", "5")] $ \(path, n, c, m) -> do
          out <- program "h2load" ["-n", n, "-c", c, "-m", m, address server path]
          assertBool out ((n <> " succeeded, 0 failed, 0 errored, 0 timeout") `isInfixOf` out && "Application protocol: h2" `isInfixOf` out)
          noExceptions server,
      testCase "Python: http.client" . served $ \server -> python "client.py" [show (serverPort server), "http_client"] >>= saysOk server,
      testCase "Python: requests" . served $ \server -> needModule "requests" >> python "client.py" [show (serverPort server), "requests"] >>= saysOk server,
      compiling . testCase "Go: net/http" . withGo $ \go -> served $ \server -> go [address server ""] >>= saysOk server,
      compiling . testCase "Go: net/http over TLS, by HTTP/1.1 and HTTP/2" . withGo $ \go -> withFolder $ \folder -> do
        pair <- certificate folder
        let file = folder </> "file"
        writeFile file (replicate 3000000 'x')
        withTlsServer file 5 pair $ \server -> forM_ ["1", "2"] $ \version -> go [address server "", version] >>= saysOk server
    ]
  where
    curl arguments = program "curl" (["-sS", "--noproxy", "*", "--max-time", "90", "-H", "Expect:"] <> arguments)
    served act = withFolder $ \folder -> do
      let file = folder </> "file"
      writeFile file (replicate 3000000 'x')
      withServer file 5 act
    saysOk server out = do
      lines out @?= ["ok"]
      noExceptions server
    -- Where Go has not compiled its own libraries yet, it does that first.
    compiling = localOption (mkTimeout 600000000)

-- | Requests by Go's client.
withGo :: (([String] -> IO String) -> IO a) -> IO a
withGo act = withFolder $ \folder -> do
  needProgram "go"
  let client = folder </> "client"
  _ <- programWithin 500 "env" ["GO111MODULE=off", "GOFLAGS=", "go", "build", "-o", client, "test/clients/client.go"]
  act (program client)

-- | The server has printed no exception.
noExceptions :: Server -> Assertion
noExceptions server = readIORef (serverSaid server) >>= \said -> filter ("exception" `isPrefixOf`) said @?= []

-- | Run an action with a file of the given size in MiB, which cannot be compressed, and its SHA-256.
withLarge :: Int -> (FilePath -> String -> IO a) -> IO a
withLarge size act = withFolder $ \folder -> do
  let file = folder </> "large"
      make = program "bash" ["-c", "head -c " <> show size <> "M /dev/zero | openssl enc -aes-128-ctr -pass pass:weft -nosalt -pbkdf2 > " <> file]
  needProgram "curl" >> needProgram "openssl"
  bracket_ (() <$ make) (removeFile file) $ do
    hash <- takeWhile (/= ' ') <$> program "sha256sum" [file]
    act file hash
