-- |
-- Description : A client that asks one connection, one request at a time
--
-- For counts that have to repeat: of instructions, bytes, and cache lines that move. A connection is used by one thread
-- at a time. Throws 'IOException' if the server closes the connection or does not answer as HTTP has it.
module Weft.Bench.Asking
  ( connecting,
    trusting,
    Asking,
    askingHttp1,
    askingHttp2,
    askingOpenFlow,
  )
where

import Control.Exception (bracket, onException)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit, toLower)
import Data.IORef
import Data.Maybe (listToMaybe)
import Weft.Socket (Family (..), SockAddr (..), SocketOption (NoDelay), SocketType (..), close, connect, defaultProtocol, setSocketOption, socket, tupleToHostAddress)
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings, tlsConnect)
import Weft.Transport (Connection, connClose, connReceive, connSendBytes, noDeadline, socketConnection)

-- | Run an action with a connection to this port of the loopback interface, over which the function may put another
-- protocol.
connecting :: Int -> (Connection -> IO Connection) -> (Connection -> IO a) -> IO a
connecting port secure = bracket (plain >>= \c -> secure c `onException` connClose c) connClose
  where
    address = SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1))
    plain = do
      s <- socket AF_INET Stream defaultProtocol
      (`onException` close s) $ do
        connect s address
        setSocketOption s NoDelay 1
        pure (socketConnection s address)

-- | Put TLS over a connection to localhost, with this file of trusted certificates, and offer one protocol (RFC 7301).
trusting :: FilePath -> String -> Connection -> IO Connection
trusting authorities protocol =
  tlsConnect defaultTlsClientSettings {tlsTrust = TrustAuthorities authorities, tlsOffer = [B.pack protocol]} "localhost"

-- | Begin to speak on a new connection. The result sends a request for this path, and waits for its whole response.
type Asking = String -> Connection -> IO (IO ())

-- | HTTP/1.1 (RFC 9112). Responses have a Content-Length.
askingHttp1 :: Asking
askingHttp1 path connection = pure (connSendBytes connection noDeadline request >> headOf B.empty)
  where
    request = B.pack ("GET " <> path <> " HTTP/1.1\r\nHost: localhost\r\n\r\n")
    headOf before = do
      bytes <- (before <>) <$> receiveSome connection
      case B.breakSubstring (B.pack "\r\n\r\n") bytes of
        (_, rest) | B.null rest -> headOf bytes
        (fields, rest) -> case listToMaybe [n | line <- B.lines fields, Just value <- [B.stripPrefix (B.pack "content-length:") (B.map toLower line)], Just (n, _) <- [B.readInt (B.dropWhile (not . isDigit) value)]] of
          Just size -> body (size - (B.length rest - 4))
          Nothing -> ioError (userError "a response has no Content-Length")
    body left = when (left > 0) (receiveSome connection >>= body . (left -) . B.length)

-- | HTTP/2 (RFC 9113): a request is a HEADERS frame with fields of HPACK's static table, the path and the name of the
-- host; the response is over with the flag END_STREAM.
askingHttp2 :: Asking
askingHttp2 path connection = do
  received <- newIORef B.empty
  next <- newIORef (1 :: Int)
  credit <- newIORef (0 :: Int)
  let exactly n = do
        have <- readIORef received
        if B.length have >= n
          then writeIORef received (B.drop n have) >> pure (B.take n have)
          else receiveSome connection >>= \more -> writeIORef received (have <> more) >> exactly n
      untilEnd = do
        header <- exactly 9
        let (size, rest) = (B.foldl' (\n c -> 256 * n + fromEnum c) 0 (B.take 3 header), B.drop 3 header)
        _ <- exactly size
        when (fromEnum (B.head rest) == frameData) (modifyIORef' credit (+ size))
        case (fromEnum (B.head rest), fromEnum (B.index rest 1)) of
          (kind, flags) | kind `elem` [frameData, frameHeaders], odd flags -> pure ()
          (kind, 0) | kind == frameSettings -> send (frame frameSettings 1 0 B.empty) >> untilEnd
          (kind, _) | kind `elem` [frameReset, frameGoAway] -> ioError (userError "the server reset a stream")
          _ -> untilEnd
  send (B.pack "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" <> frame frameSettings 0 0 B.empty)
  pure $ do
    stream <- readIORef next
    writeIORef next (stream + 2)
    taken <- readIORef credit
    -- The window of the connection begins with 65,535 bytes.
    returned <- if taken < 30000 then pure B.empty else frame frameWindow 0 0 (number 4 taken) <$ writeIORef credit 0
    send (returned <> frame frameHeaders 5 stream (B.concat [B.pack "\x82\x87", pathField, B.pack "\x41", text "localhost"]))
    untilEnd
  where
    send = connSendBytes connection noDeadline
    (frameData, frameHeaders, frameReset, frameSettings, frameGoAway, frameWindow) = (0, 1, 3, 4, 7, 8) :: (Int, Int, Int, Int, Int, Int)
    frame kind flags stream content = B.concat [number 3 (B.length content), number 1 kind, number 1 flags, number 4 stream, content]
    pathField = if path == "/" then B.pack "\x84" else B.pack "\x04" <> text path
    -- A string of HPACK, of less than 127 bytes.
    text string = B.pack (toEnum (length string) : string)

-- | A switch of OpenFlow 1.0 with this datapath identifier, which has made its handshake: a request is a packet for an
-- unknown address, for which a learning switch has an answer (PACKET_OUT or FLOW_MOD).
askingOpenFlow :: Int -> Connection -> IO (IO ())
askingOpenFlow datapath connection = do
  received <- newIORef B.empty
  let exactly n = do
        have <- readIORef received
        if B.length have >= n
          then writeIORef received (B.drop n have) >> pure (B.take n have)
          else receiveSome connection >>= \more -> writeIORef received (have <> more) >> exactly n
      -- Answer the controller until a message is of one of these types.
      untilOne wanted = do
        header <- exactly 8
        let kind = fromEnum (B.index header 1)
            xid = B.drop 4 header
        content <- exactly (256 * fromEnum (B.index header 2) + fromEnum (B.index header 3) - 8)
        mapM_ (\(reply, bytes) -> send (message reply xid bytes)) (answerTo kind (message kind xid content) content)
        when (kind `notElem` wanted) (untilOne wanted)
  send (message hello (number 4 0) B.empty)
  untilOne [featuresRequest]
  pure (send packetIn >> untilOne [packetOut, flowMod])
  where
    send = connSendBytes connection noDeadline
    (hello, failure, echoRequest, echoReply, vendor, featuresRequest) = (0, 1, 2, 3, 4, 5) :: (Int, Int, Int, Int, Int, Int)
    (configRequest, packetOut, flowMod, statsRequest, barrierRequest) = (7, 13, 14, 16, 18) :: (Int, Int, Int, Int, Int)
    answerTo kind whole content
      | kind == echoRequest = [(echoReply, content)]
      | kind == vendor = [(failure, number 2 1 <> number 2 3 <> B.take 64 whole)]
      | kind == featuresRequest = [(kind + 1, number 8 datapath <> number 4 256 <> number 4 0x02000000 <> number 4 0xc7 <> number 4 0xfff)]
      | kind == configRequest = [(kind + 1, number 2 0 <> number 2 128)]
      | kind == statsRequest = [(kind + 1, B.take 2 content <> number 2 0 <> (if B.take 2 content == number 2 0 then B.replicate 1056 '\0' else B.empty))]
      | kind == barrierRequest = [(kind + 1, B.empty)]
      | otherwise = []
    message kind xid content = B.concat [number 1 1, number 1 kind, number 2 (8 + B.length content), xid, content]
    packetIn = message 10 (number 4 0) (B.concat [number 4 0xffffffff, number 2 64, number 2 1, number 2 0, frame])
    frame = B.concat [number 6 0x020000ffffff, number 6 (0x020000000000 + datapath), number 2 0x0800, B.replicate 50 '\0']

-- | A number in network byte order.
number :: Int -> Int -> ByteString
number bytes n = B.pack [toEnum (n `div` 256 ^ i `mod` 256) | i <- [bytes - 1, bytes - 2 .. 0]]

receiveSome :: Connection -> IO ByteString
receiveSome connection = do
  bytes <- connReceive connection noDeadline 16384
  bytes <$ when (B.null bytes) (ioError (userError "the server has closed the connection"))
