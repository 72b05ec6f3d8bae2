{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : @weft get@
--
-- Fetches a URL over the kernel's sockets or from a TCP/IP stack in the program. The body is written to standard
-- output or to a file as it arrives; the file gets its name when it is complete. Exit status: 0, 1 without a complete
-- response, 2 for wrong arguments, 3 if the server's status is 400 or higher (the body is written all the same).
module Weft.Tools.Get
  ( getCommand,
  )
where

import Control.Concurrent (myThreadId)
import Control.Exception
import Control.Monad (forM_, unless, void, when)
import qualified Data.ByteString as B
import Data.List (intercalate)
import GHC.Clock (getMonotonicTime)
import GHC.IO.Exception (IOException (ioe_description))
import Network.HTTP.Types (hAccept, hConnection, hUserAgent, statusCode)
import Options.Applicative
import System.Directory (removeFile, renameFile)
import System.Exit (ExitCode (..), exitWith)
import System.FilePath (takeDirectory, takeFileName)
import System.IO
import System.IO.Error (isPermissionError)
import System.Posix.Signals (Signal, installHandler, raiseSignal, sigHUP, sigTERM)
import qualified System.Posix.Signals as Signal
import Weft.Blocking (blocking)
import Weft.Dial
import Weft.Duration (Duration, seconds)
import Weft.Http.Client
import Weft.Http.Client.Connection
import Weft.Socket (AddrInfo (..), SockAddr (..), SocketType (Stream), defaultHints, getAddrInfo)
import Weft.Tcp (Address (..), tcpTransport)
import Weft.Tls (TlsClientSettings (..), Trust, defaultTlsClientSettings, tlsConnect)
import Weft.Tools.Dialled (dialled)
import Weft.Tools.Numbers (longestTime, noMoreThan, positive)
import Weft.Tools.Output (isSpecial)
import Weft.Tools.Serve.Stack
import Weft.Tools.StandardError (reportLine)
import Weft.Tools.Trust
import Weft.Transport (Instant, Transport (..), connAbort, connCloseGracefully, deadlineIn, isTimeout)
import qualified Weft.Transport as Transport

data Get = Get
  { getTarget :: Url,
    getStack :: Maybe StackChoice,
    getCapture :: Maybe FilePath,
    getOutput :: Maybe FilePath,
    getTime :: Double,
    getTrust :: Trust
  }

-- | The subcommand.
getCommand :: Mod CommandFields (IO ())
getCommand =
  command "get" $
    info
      ( fmap
          get
          ( Get
              <$> argument (eitherReader parseUrl) (metavar "URL" <> help "http://HOST[:PORT]/PATH, or https")
              <*> optional (option (eitherReader stackFrom) (long "stack" <> metavar "tun:NAME,ADDRESS" <> help "Use weft's own TCP/IP stack instead of the kernel's, with this address on this TUN device"))
              <*> optional (strOption (long "capture" <> metavar "FILE" <> help "With --stack: write the packets to a file that Wireshark and weft tcp replay read"))
              <*> optional (strOption (long "output" <> short 'o' <> metavar "FILE" <> help "Write the body to a file, which is created when the body is complete (standard output)"))
              <*> option (noMoreThan longestTime positive) (long "timeout" <> metavar "SECONDS" <> value 60 <> showDefault <> help "Time limit of the whole request")
              <*> trustOption
          )
      )
      ( progDesc "Fetch a URL, over the kernel's network or over weft's own TCP/IP stack"
          <> footer
            "Exit status: 0 success, 1 no complete response, 2 wrong arguments, 3 the server's status is 400 or higher. Redirections are \
            \not followed. Names are looked up over the kernel's network, also with --stack. Example: weft get --stack tun:weft0,10.9.0.2 http://10.9.0.1/ -o page"
          <> failureCode 2
      )

get :: Get -> IO ()
get g = terminable $ do
  when (getStack g == Nothing && getCapture g /= Nothing) $ failed 2 "--capture needs --stack (use tcpdump for packets of the kernel's network)"
  begun <- getMonotonicTime
  due <- deadlineIn (duration (getTime g))
  trust <- trustFor (getTarget g) (getTrust g) >>= either (failed 1) pure
  status <- (`catches` handlers) $ case getStack g of
    Nothing -> fetch g trust begun due (dialKernel (getTarget g))
    Just choice@(StackChoice _ address) -> withChosenStack choice (getCapture g) id $ \st -> fetch g trust begun due (dialStack (tcpTransport st) (sameVersion address) (getTarget g))
  when (status >= 400) $ failed 3 ("the server's status is " <> show status)
  where
    handlers =
      [ Handler (\e -> failed 1 (if isTimeout e then late else said e)),
        Handler $ \e -> failed 1 $ case errorCause e of
          TimedOut -> late
          ConnectionBroken why -> said why
          NotHttp _ -> "the server does not speak HTTP"
          OtherProtocol begins -> "the server does not speak HTTP: it has answered with " <> show begins
          InvalidRequest why -> why
          _ -> "the connection ended before the response did"
      ]
    late = "no complete response within " <> show (getTime g) <> " s"
    sameVersion address peer = case (address, peer) of
      (V4 _, SockAddrInet _ _) -> True
      (V6 _ _, SockAddrInet6 {}) -> True
      _ -> False

-- | Thrown to the main thread by a signal.
newtype Terminated = Terminated Signal
  deriving (Show)

instance Exception Terminated where
  toException = asyncExceptionToException
  fromException = asyncExceptionFromException

-- | Run an action that SIGTERM and SIGHUP interrupt, as SIGINT does, so that it removes its temporary files. The signal
-- then ends the program.
terminable :: IO () -> IO ()
terminable act = do
  me <- myThreadId
  forM_ [sigTERM, sigHUP] $ \signal -> do
    before <- installHandler signal (Signal.CatchOnce (throwTo me (Terminated signal))) Nothing
    case before of
      -- As by nohup(1).
      Signal.Ignore -> void (installHandler signal Signal.Ignore Nothing)
      _ -> pure ()
  act `catch` \(Terminated signal) -> installHandler signal Signal.Default Nothing >> raiseSignal signal

duration :: Double -> Duration
duration = seconds . realToFrac

-- | User errors of weft are shown without a prefix.
said :: IOException -> String
said = ioe_description

failed :: Int -> String -> IO a
failed code why = reportLine ("weft get: " <> why) >> exitWith (ExitFailure code)

-- | Fetch the URL from a server that is trusted, over a connection that the action makes before an instant, and write
-- the body. The request began at a time in seconds, and is due at an instant. Returns the response's status.
fetch :: Get -> Trust -> Double -> Instant -> (Instant -> IO Transport.Connection) -> IO Int
fetch g trust begun due connecting =
  bracketOnError (connecting due) connAbort $ \below -> do
    c <- newHttpConnection =<< if urlSecure target then secured below `catch` insecure else pure below
    (status, _) <- withSink (getOutput g) $ \sink ->
      exchange settings c due (getRequest target) {requestFields = [(hUserAgent, "weft"), (hAccept, "*/*"), (hConnection, "close")]} $ \response ->
        statusCode (responseStatus response) <$ passOn sink response
    -- The stream is ended before weft's own stack is stopped, so that the server sees a normal end.
    status <$ connCloseGracefully (seconds 1) 65536 below
  where
    target = getTarget g
    host = urlHost target
    -- The one limit is that of the whole request.
    settings = defaultClientSettings {clientSendTime = maxBound, clientAnswerTime = maxBound, clientReadTime = maxBound}
    passOn sink response = do
      piece <- responsePiece response
      unless (B.null piece) (sink piece >> passOn sink response)
    secured below = do
      spent <- subtract begun <$> getMonotonicTime
      tlsConnect defaultTlsClientSettings {tlsTrust = trust, tlsConnectTime = duration (max 0 (getTime g - spent))} host below
    insecure :: IOException -> IO Transport.Connection
    insecure e
      | isTimeout e = ioError e
      | otherwise = ioError (userError ("no TLS with " <> host <> ": " <> ioe_description e <> (if isPermissionError e then trustAdvice else "")))

-- | Connect to a URL's server over the kernel's network.
dialKernel :: Url -> Instant -> IO Transport.Connection
dialKernel target due =
  dialConnection defaultDialOptions due (Host (urlHost target) (urlPort target)) `catch` \e -> case e of
    NotFound _ why -> unknown target (show why)
    NoneConnected _ failures
      | refused@(_ : _) <- [(a, err) | (a, Refused err) <- failures] -> unreachable target [show a <> " " <> ioe_description err | (a, err) <- refused]
    _ -> dialled (throwIO e)

-- | Connect to a URL's server over another transport, which has the addresses that the function accepts. They are tried
-- one after the other, since no server may listen on some of them.
dialStack :: Transport -> (SockAddr -> Bool) -> Url -> Instant -> IO Transport.Connection
dialStack transport usable target due = do
  found <- try (blocking (getAddrInfo (Just defaultHints {addrSocketType = Stream}) (Just (urlHost target)) (Just (urlPort target))))
  addresses <- either (\e -> unknown target (ioe_description (e :: IOException))) (pure . filter usable . map addrAddress) found
  when (null addresses) $ ioError (userError (urlHost target <> " has no address of the IP version that the stack has"))
  first [] addresses
  where
    first errors [] = unreachable target (reverse errors)
    first errors (a : rest) = transportConnect transport due a `catch` \e -> if isTimeout e then ioError e else first ((show a <> " " <> ioe_description e) : errors) rest

unknown :: Url -> String -> IO a
unknown target why = ioError (userError ("no address is known for " <> urlHost target <> ": " <> why))

unreachable :: Url -> [String] -> IO a
unreachable target whys = ioError (userError ("cannot connect to " <> urlHost target <> " port " <> urlPort target <> ": " <> intercalate "; " whys))

-- | Run an action with a function that writes a piece of the body.
withSink :: Maybe FilePath -> ((B.ByteString -> IO ()) -> IO a) -> IO a
withSink output act = case output of
  Nothing -> hSetBinaryMode stdout True >> (act (B.hPut stdout) <* hFlush stdout)
  Just path -> do
    special <- isSpecial path
    if special
      then withBinaryFile path WriteMode (act . B.hPut)
      else do
        -- In the folder of the file, so that it can be renamed.
        bracketOnError (openBinaryTempFileWithDefaultPermissions (takeDirectory path) (takeFileName path <> ".part")) (\(part, h) -> hClose h `finally` removeFile part) $ \(part, h) -> do
          a <- act (B.hPut h)
          hClose h
          a <$ renameFile part path
