{-# LANGUAGE OverloadedStrings #-}

-- |
-- Test clients that do not use Weft. Every operation fails after a time limit.
module Client
  ( -- * Sockets
    Client,
    withClient,
    withNarrowClient,
    connectTo,
    hangUp,
    reset,
    say,
    hear,
    hearEnd,
    hearEndOrReset,
    gather,
    finishSaying,

    -- * Answers
    Answer (..),
    hearAnswer,
    hearAnswerToHead,
    ask,
    get,
    header,
    statusesIn,

    -- * curl
    curl,

    -- * Waiting
    within,
    eventually,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket, onException, try)
import Control.Monad (unless)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Char (toLower)
import Data.IORef
import GHC.IO.Exception (IOErrorType (ResourceVanished), IOException (ioe_type))
import Network.Socket
import qualified Network.Socket.ByteString as N
import System.Exit (ExitCode (..))
import System.Process (readProcessWithExitCode)
import Test.Tasty.HUnit
import Weft.Test.Limits (within)

-- | A connection, and the bytes that were received and not consumed yet.
data Client = Client Socket (IORef ByteString)

withClient :: Int -> (Client -> IO a) -> IO a
withClient port = bracket (connectTo port) hangUp

connectTo :: Int -> IO Client
connectTo = connectAfter (const (pure ()))

-- | Connect with a receive buffer of the given size, so that the TCP window reopens after a small read.
withNarrowClient :: Int -> Int -> (Client -> IO a) -> IO a
withNarrowClient size port = bracket (connectAfter (\s -> setSocketOption s RecvBuffer size) port) hangUp

connectAfter :: (Socket -> IO ()) -> Int -> IO Client
connectAfter prepare port = do
  s <- socket AF_INET Stream defaultProtocol
  (`onException` close s) . within 30 "connecting" $ do
    prepare s
    connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
    setSocketOption s NoDelay 1
    Client s <$> newIORef B.empty

hangUp :: Client -> IO ()
hangUp (Client s _) = close s

-- | Close the connection with a reset.
reset :: Client -> IO ()
reset (Client s _) = setSockOpt s Linger (StructLinger 1 0) >> close s

-- | Send bytes.
say :: Client -> ByteString -> IO ()
say (Client s _) = within 20 "sending" . N.sendAll s

-- | Close the sending side.
finishSaying :: Client -> IO ()
finishSaying (Client s _) = shutdown s ShutdownSend

-- | The next bytes; empty at the end of the stream.
hear :: Client -> IO ByteString
hear (Client s ref) = do
  kept <- readIORef ref
  if B.null kept then within 20 "receiving" (N.recv s 65536) else kept <$ writeIORef ref B.empty

-- | All bytes up to the end of the stream.
hearEnd :: Client -> IO ByteString
hearEnd client = B.concat <$> go
  where
    go = do
      bytes <- hear client
      if B.null bytes then pure [] else (bytes :) <$> go

-- | All bytes up to the end of the stream or a reset, which a client may get if it goes on sending after the last
-- response.
hearEndOrReset :: Client -> IO ByteString
hearEndOrReset client = B.concat <$> go
  where
    go = do
      heard <- try (hear client)
      case heard of
        Left e | ioe_type e == ResourceVanished -> pure []
        Left e -> ioError e
        Right bytes -> if B.null bytes then pure [] else (bytes :) <$> go

-- | Receive until the function finds what it looks for. It returns that and the bytes after it, which are kept.
gather :: Client -> (ByteString -> Maybe (a, ByteString)) -> IO a
gather client@(Client _ ref) split = readIORef ref >>= \kept -> writeIORef ref B.empty >> go kept
  where
    go have = case split have of
      Just (a, rest) -> a <$ writeIORef ref rest
      Nothing -> do
        more <- hear client
        if B.null more
          then assertFailure ("the stream ended after " <> show (C.take 200 have))
          else go (have <> more)

-- Answers --------------------------------------------------------------------------------

-- | A response: its status, its header fields with names in lower case, and its body.
data Answer = Answer
  { answerStatus :: Int,
    answerHeaders :: [(ByteString, ByteString)],
    answerBody :: ByteString
  }
  deriving (Eq, Show)

header :: ByteString -> Answer -> Maybe ByteString
header name = lookup name . answerHeaders

-- | Receive one response, with @Content-Length@ or in chunks.
hearAnswer :: Client -> IO Answer
hearAnswer client = do
  answer <- hearAnswerToHead client
  body <- case (header "content-length" answer, header "transfer-encoding" answer) of
    (Just n, _) | Just (size, _) <- C.readInt n -> gather client (exactly size)
    (_, Just "chunked") -> chunks
    _ | answerStatus answer `elem` [204, 304] || answerStatus answer < 200 -> pure B.empty
    _ -> hearEnd client
  pure answer {answerBody = body}
  where
    exactly n bytes = if B.length bytes >= n then Just (B.splitAt n bytes) else Nothing
    line bytes = case B.breakSubstring "\r\n" bytes of
      (_, "") -> Nothing
      (l, rest) -> Just (l, B.drop 2 rest)
    chunks = do
      size <- gather client line
      n <- case reads ("0x" <> C.unpack size) of
        [(n, "")] -> pure n
        _ -> assertFailure ("not the size of a chunk: " <> show size)
      chunk <- gather client (exactly n)
      end <- gather client line
      assertEqual "end of a chunk" "" end
      if n == 0 then pure B.empty else (chunk <>) <$> chunks

-- | Receive the head of a response. There is no body, as in a response to HEAD.
hearAnswerToHead :: Client -> IO Answer
hearAnswerToHead client = do
  bytes <- gather client $ \have -> case B.breakSubstring "\r\n\r\n" have of
    (_, "") -> Nothing
    (found, rest) -> Just (found, B.drop 4 rest)
  case map (C.filter (/= '\r')) (C.lines bytes) of
    status : fields | [_, code] <- take 2 (C.words status), Just (n, "") <- C.readInt code -> pure (Answer n (map field fields) B.empty)
    _ -> assertFailure ("not a response: " <> show bytes)
  where
    field l = let (name, value) = C.break (== ':') l in (C.map toLower name, C.dropWhile (== ' ') (C.drop 1 value))

-- | Send a GET for a path, with extra header lines.
ask :: Client -> ByteString -> [ByteString] -> IO ()
ask client path fields =
  say client (B.concat (["GET ", path, " HTTP/1.1\r\nHost: test\r\n"] <> map (<> "\r\n") fields <> ["\r\n"]))

-- | Send a GET for a path and receive the response.
get :: Client -> ByteString -> IO Answer
get client path = ask client path [] >> hearAnswer client

-- curl -------------------------------------------------------------------------------------

-- | Run curl and return its standard output. Fails if curl fails.
curl :: [String] -> IO String
curl arguments = do
  (code, out, err) <-
    within 130 "curl" (readProcessWithExitCode "curl" (["-sS", "--noproxy", "*", "--max-time", "120"] <> arguments) "")
  case code of
    ExitSuccess -> pure out
    ExitFailure n -> assertFailure ("curl ended with " <> show n <> ": " <> err)

-- Waiting ----------------------------------------------------------------------------------

-- | Fail unless the condition becomes true within twenty seconds, which are fewer than the default timeout of a
-- connection.
eventually :: String -> IO Bool -> Assertion
eventually what condition = within 20 what go
  where
    go = do
      holds <- condition
      unless holds (threadDelay 5000 >> go)

-- | The statuses of the responses in a stream.
statusesIn :: ByteString -> [Int]
statusesIn bytes = case B.breakSubstring "HTTP/1.1 " bytes of
  (_, "") -> []
  (_, rest) -> maybe 0 fst (C.readInt (B.drop 9 rest)) : statusesIn (B.drop 9 rest)
