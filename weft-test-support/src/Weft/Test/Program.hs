-- |
-- Functions that run the programs @weft@ and @weft-bench@, and send requests over TCP. A run fails after four minutes.
module Weft.Test.Program
  ( -- * The program
    Running (..),
    weft,
    beside,
    started,
    limited,
    needTracing,
    send',
    portOf,
    portIn,
    outcome,
    contains,
    scratchFolder,

    -- * HTTP
    connected,
    request,
    exchange,
    get,
    recvAll,
    recvUntil,
    status,
    body,
    answered,
    count,
  )
where

import Control.Applicative ((<|>))
import Control.Exception
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf, stripPrefix)
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Directory (getTemporaryDirectory, removePathForcibly)
import System.Environment (getEnvironment)
import System.Exit (ExitCode (..))
import System.FilePath (takeDirectory, (</>))
import System.IO
import System.Posix.Signals (Signal, signalProcess)
import System.Posix.Temp (mkdtemp)
import System.Process
import System.Timeout (timeout)
import Test.Tasty.HUnit
import qualified Weft.Test.Limits as Limits
import Weft.Test.Skip (needProgram, skipUnless)

-- The program ----------------------------------------------------------------------------

data Running = Running {output :: Handle, errors :: Handle, process :: ProcessHandle}

-- | Run the program while an action runs, at most for four minutes. It is killed at the end. If the action fails, the
-- error has what the program has written on its standard error.
weft :: FilePath -> [(String, String)] -> [String] -> (Running -> IO a) -> IO a
weft program variables arguments = started variables (proc program arguments)

-- | The program of this name in the directory of another one.
beside :: FilePath -> FilePath -> FilePath
beside program name = takeDirectory program </> name

-- | As 'weft', for a given way to start the process.
started :: [(String, String)] -> CreateProcess -> (Running -> IO a) -> IO a
started variables how act = do
  inherited <- getEnvironment
  withCreateProcess how {std_out = CreatePipe, std_err = CreatePipe, env = Just (variables <> inherited)} $ \_ out err child -> case (,) <$> out <*> err of
    Just (o, e) -> explained (Running o e child) (limited (act (Running o e child))) `finally` kill child
    Nothing -> assertFailure "no output"
  where
    kill child = getPid child >>= mapM_ (signalProcess 9)
    explained p how' =
      how'
        `catches` [ Handler (\(HUnitFailure place why) -> said p why >>= throwIO . HUnitFailure place),
                    Handler (\e -> said p (displayException (e :: IOException)) >>= throwIO . HUnitFailure Nothing)
                  ]
    -- A process that it has started may still have the pipe, and the test may have read it to its end.
    said p why = do
      kill (process p)
      rest <- try (timeout 2000000 (B.hGetContents (errors p)))
      pure $ case rest of
        Right (Just text) | not (B.null text) -> why <> "\nstandard error: " <> B.unpack text
        Left e -> const why (e :: IOException)
        _ -> why

limited :: IO a -> IO a
limited = Limits.within 240 "the test"

-- | Skip the test where strace is not installed, or may not trace.
needTracing :: Assertion
needTracing = do
  needProgram "strace"
  (code, _, why) <- readProcessWithExitCode "strace" ["-qq", "-f", "-e", "trace=none", "true"] ""
  skipUnless ("strace cannot trace here: " <> takeWhile (/= '\n') why) (code == ExitSuccess)

send' :: Signal -> Running -> IO ()
send' signal p = getPid (process p) >>= mapM_ (signalProcess signal)

-- | The port in the line with which the server announces its address.
portOf :: Running -> IO PortNumber
portOf p = hGetLine (output p) >>= portIn

-- | The port in that line.
portIn :: String -> IO PortNumber
portIn line =
  case [n | word <- words line, Just rest <- [stripPrefix "http://" word <|> stripPrefix "https://" word], (n, "/") <- reads (drop 1 (dropWhile (/= ':') rest))] of
    port : _ -> pure (fromInteger port)
    [] -> assertFailure ("no port in: " <> line)

-- | Run the program to its end. Returns its exit status and its output on both streams.
outcome :: FilePath -> [(String, String)] -> [String] -> IO (ExitCode, String)
outcome program variables arguments = do
  inherited <- getEnvironment
  (code, out, err) <- limited (readCreateProcessWithExitCode (proc program arguments) {env = Just (variables <> inherited)} "")
  pure (code, out <> err)

-- | Assert that the output, the first argument, has that part.
contains :: String -> String -> Assertion
contains out part = assertBool (part <> " in:\n" <> out) (part `isInfixOf` out)

-- | A new folder with this in its name, and nothing of it afterwards.
scratchFolder :: String -> (FilePath -> IO a) -> IO a
scratchFolder name = bracket (getTemporaryDirectory >>= \temporary -> mkdtemp (temporary </> ("weft-" <> name))) removePathForcibly

-- HTTP -----------------------------------------------------------------------------------

connected :: PortNumber -> (Socket -> IO a) -> IO a
connected port act = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  connect s (SockAddrInet port (tupleToHostAddress (127, 0, 0, 1)))
  act s

request :: String -> String -> String -> B.ByteString
request method path connection =
  B.pack (method <> " " <> path <> " HTTP/1.1\r\nHost: localhost\r\nConnection: " <> connection <> "\r\n\r\n")

exchange :: PortNumber -> B.ByteString -> IO B.ByteString
exchange port bytes = connected port (\s -> sendAll s bytes >> recvAll s)

get :: PortNumber -> String -> IO B.ByteString
get port path = exchange port (request "GET" path "close")

recvAll :: Socket -> IO B.ByteString
recvAll s = B.concat <$> go
  where
    go = do
      bytes <- recv s 65536
      if B.null bytes then pure [] else (bytes :) <$> go

recvUntil :: Socket -> (B.ByteString -> Bool) -> IO B.ByteString
recvUntil s enough = go B.empty
  where
    go seen
      | enough seen = pure seen
      | otherwise = do
        bytes <- recv s 65536
        if B.null bytes then pure seen else go (seen <> bytes)

status :: B.ByteString -> Int
status answer = case map B.unpack (take 2 (B.words answer)) of
  [_, code] | [(n, "")] <- reads code -> n
  _ -> 0

body :: B.ByteString -> B.ByteString
body = B.drop 4 . snd . B.breakSubstring (B.pack "\r\n\r\n")

answered :: Int -> String -> B.ByteString -> Assertion
answered code text answer = (status answer, body answer) @?= (code, B.pack text)

-- | The number of occurrences of one string in another.
count :: String -> B.ByteString -> Int
count part bytes = case B.breakSubstring (B.pack part) bytes of
  (_, rest)
    | B.null rest -> 0
    | otherwise -> 1 + count part (B.drop (length part) rest)
