-- |
-- Applications of web frameworks, asked by curl.
module Frameworks
  ( frameworks,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (IOException, bracket, finally, try)
import Control.Monad (forM_)
import Curl (curl)
import Data.List (isInfixOf, sort)
import Network.Socket
import System.Directory (createDirectory, doesFileExist, findExecutable, getTemporaryDirectory, removeFile, removePathForcibly)
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), hClose, openTempFile, withFile)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (skip, testCase)

frameworks :: TestTree
frameworks = testGroup "web frameworks" [testCase "Scotty" scotty, testCase "Servant" servant, testCase "Yesod" yesod]

scotty :: Assertion
scotty = withFolder $ \folder -> serving "scotty" folder $ \port -> do
  asked port [] "/" >>= (@?= "<p>notes</p>")
  forM_ ["one", "two and \228"] $ \note -> statusOf port ["--data-urlencode", "text=" <> note] "/notes" >>= (@?= "201")
  asked port [] "/notes" >>= (@?= "[\"one\",\"two and \228\"]")
  answer <- asked port ["-i"] "/greet/ada"
  assertBool answer ("X-Greeted: ada" `isInfixOf` answer && "hello, ada" `isInfixOf` answer && "Content-Length: 10" `isInfixOf` answer)
  writeFile (folder </> "upload") (replicate 3000000 'x')
  asked port ["--data-binary", "@" <> (folder </> "upload")] "/length" >>= (@?= "3000000")
  asked port ["-H", "Transfer-Encoding: chunked", "--data-binary", "@" <> (folder </> "upload")] "/length" >>= (@?= "3000000")
  statusOf port [] "/fail" >>= (@?= "500")
  statusOf port [] "/nothing" >>= (@?= "404")
  statusOf port ["-I"] "/greet/ada" >>= (`elem'` ["200", "404"])
  keptAlive port "/greet/ada"

servant :: Assertion
servant = withFolder $ \folder -> serving "servant" folder $ \port -> do
  asked port [] "/points" >>= (@?= "[]")
  statusOf port (json "{\"x\":3,\"y\":4}") "/points" >>= (@?= "201")
  asked port (json "{\"x\":5,\"y\":6}") "/points" >>= (@?= "1")
  asked port [] "/points/1" >>= (@?= "{\"x\":5,\"y\":6}")
  statusOf port [] "/points/9" >>= (@?= "404")
  statusOf port (json "{\"x\":5") "/points" >>= (@?= "400")
  statusOf port ["-d", "x=5"] "/points" >>= (@?= "415")
  asked port [] "/sum?n=1&n=20&n=300" >>= (@?= "321")
  asked port [] "/count/2000" >>= (@?= concatMap ((<> "\n") . show) [1 .. 2000 :: Int])
  statusOf port [] "/secret" >>= (@?= "401")
  asked port ["-u", "ada:engine"] "/secret" >>= (@?= "hello, ada")
  keptAlive port "/points"
  where
    json text = ["-H", "Content-Type: application/json", "-d", text]

yesod :: Assertion
yesod = withFolder $ \folder -> serving "yesod" folder $ \port -> do
  page <- asked port [] "/"
  assertBool page (("hello from http://127.0.0.1:" <> show port) `isInfixOf` page || "hello from /" `isInfixOf` page)
  asked port [] "/add/20/22" >>= (@?= "{\"sum\":42}")
  let jar = folder </> "cookies"
  visits <- mapM (const (asked port ["-b", jar, "-c", jar] "/visits")) "four"
  visits @?= ["1", "2", "3", "4"]
  asked port ["-d", "word=weft"] "/say" >>= (@?= "weft")
  statusOf port ["-d", "sentence=weft"] "/say" >>= (@?= "400")
  statusOf port ["-X", "DELETE"] "/say" >>= (@?= "405")
  statusOf port [] "/nothing" >>= (@?= "404")
  keptAlive port "/add/1/2"

-- | Twenty requests of one client take one connection.
keptAlive :: Int -> String -> Assertion
keptAlive port path = do
  out <- curl (["-w", "%{num_connects} %{http_code}\n"] <> concat (replicate 20 ["-o", "/dev/null", url port path]))
  sort (lines out) @?= replicate 19 "0 200" <> ["1 200"]

asked :: Int -> [String] -> String -> IO String
asked port arguments path = curl (arguments <> [url port path])

statusOf :: Int -> [String] -> String -> IO String
statusOf port arguments = asked port (["-o", "/dev/null", "-w", "%{http_code}"] <> arguments)

elem' :: String -> [String] -> Assertion
elem' found wanted = assertBool found (found `elem` wanted)

url :: Int -> String -> String
url port path = "http://127.0.0.1:" <> show port <> path

-- | Run a program on a free port, with a folder of its own.
serving :: String -> FilePath -> (Int -> IO a) -> IO a
serving name folder act = do
  let there = "../bin/examples/" <> name
  found <- doesFileExist there >>= \here -> if here then pure (Just there) else findExecutable name
  program <- maybe (skip ("the example " <> name <> " is not built: its framework's Debian package is not installed")) pure found
  port <- freePort
  let said = folder </> "log"
  withFile said WriteMode $ \out -> do
    let started = (proc program [show port, folder, "+RTS", "-N2"]) {std_out = UseHandle out, std_err = UseHandle out}
    withCreateProcess started $ \_ _ _ process -> (awaitPort process said port >> act port) `finally` (terminateProcess process >> waitForProcess process)

freePort :: IO Int
freePort = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  fromIntegral <$> socketPort s

-- | Wait until the program listens there. If it has ended, or does not listen within a minute, the error has what it
-- has written to the file.
awaitPort :: ProcessHandle -> FilePath -> Int -> Assertion
awaitPort process said port = go (3000 :: Int)
  where
    go n = do
      ended <- getProcessExitCode process
      there <- try . bracket (socket AF_INET Stream defaultProtocol) close $ \s ->
        connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
      case there of
        Right () -> pure ()
        Left e
          | n > 0 && null ended -> threadDelay 20000 >> go (n - 1)
          | otherwise -> readFile said >>= \text -> assertFailure (unlines ["nobody listens: " <> show (e :: IOException), maybe "it runs" show ended, text])

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removePathForcibly
  where
    make = do
      temporary <- getTemporaryDirectory
      (path, h) <- openTempFile temporary "weft-frameworks"
      hClose h >> removeFile path >> createDirectory path
      pure path
