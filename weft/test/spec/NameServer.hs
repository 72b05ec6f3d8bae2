-- |
-- A name server on loopback, by UDP and TCP on one port, for tests: what it answers, and how badly, is a function of
-- the question (RFC 1035, section 4).
module NameServer
  ( NameServer,
    Question (..),
    Reply (..),
    withNameServer,
    serverAt,
    questions,
    v4,
    v6,
  )
where

import Control.Concurrent (forkIO, threadDelay)
import Control.Exception
import Control.Monad
import Data.Bits (shiftR, (.&.))
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Char (toLower)
import Data.IORef
import Data.List (intercalate)
import Network.Socket (Family (..), SockAddr (..), SocketType (..), tupleToHostAddress)
import Weft.Scope
import qualified Weft.Socket as S
import Weft.Socket.ByteString

-- | A name in lower case, the type of a record (1 or 28), and whether it was asked by TCP.
data Question = Question {askedName :: String, askedType :: Int, askedByTcp :: Bool}
  deriving (Eq, Show)

data Reply
  = -- | These addresses, each of 4 or 16 octets, of a name that is another name for the one in the question.
    Addresses [[Int]]
  | Alias String [[Int]]
  | -- | An error (RCODE), with no records.
    Code Int
  | Truncated
  | -- | With another identification.
    Foreign [[Int]]
  | Garbage
  | -- | After milliseconds.
    Later Int Reply

-- | Where it is, and what it was asked, the latest first.
data NameServer = NameServer {serverAt :: SockAddr, asked :: IORef [Question]}

-- | All questions so far.
questions :: NameServer -> IO [Question]
questions = readIORef . asked

-- | Addresses of a family: the loopback with a last octet.
v4, v6 :: Int -> [Int]
v4 n = [127, 0, 0, n]
v6 n = replicate 15 0 ++ [n]

-- | Run a server that gives these replies.
withNameServer :: (Question -> [Reply]) -> (NameServer -> IO a) -> IO a
withNameServer answers act = bracket (open (20 :: Int)) (\(u, t) -> S.close u >> S.close t) $ \(u, t) -> do
  address <- S.getSocketName u
  seen <- newIORef []
  withScope $ \scope -> do
    _ <- forkDaemon scope (forever (byUdp seen u) `catch` closed)
    _ <- forkDaemon scope (forever (S.accept t >>= \(c, _) -> forkIO (byTcp seen c `finally` S.close c)) `catch` closed)
    act (NameServer address seen)
  where
    loopback port = SockAddrInet port (tupleToHostAddress (127, 0, 0, 1))
    closed :: IOException -> IO ()
    closed _ = pure ()
    -- A port that is free for both.
    open n = do
      u <- S.socket AF_INET Datagram 0
      S.setSocketOption u S.RecvBuffer 4000000
      S.bind u (loopback 0)
      port <- S.socketPort u
      t <- S.socket AF_INET Stream 0
      r <- try (S.bind t (loopback port) >> S.listen t 1000)
      case r of
        Right () -> pure (u, t)
        Left e -> do
          S.close u >> S.close t
          if n == 0 then throwIO (e :: IOException) else open (n - 1)
    byUdp seen u = do
      (message, from) <- recvFrom u 4096
      reply seen False message (\bytes -> void (sendTo u bytes from) `catch` closed)
    byTcp seen c = (`catch` closed) . forever $ do
      size <- exactly c 2
      message <- exactly c (fromInteger (number size))
      reply seen True message (\bytes -> sendAll c (word (B.length bytes) <> bytes))
    exactly c n = go n []
      where
        go 0 got = pure (B.concat (reverse got))
        go left got = do
          bytes <- recv c left
          when (B.null bytes) (ioError (userError "the end"))
          go (left - B.length bytes) (bytes : got)
    number = B.foldl' (\acc b -> 256 * acc + fromIntegral b) 0
    reply seen tcp message put = do
      let (name, rest) = labels (B.drop 12 message)
          kind = fromInteger (number (B.take 2 rest))
          question = Question (map toLower name) kind tcp
          section = B.take (B.length message - 12 - B.length rest + 4) (B.drop 12 message)
      atomicModifyIORef' seen (\before -> (question : before, ()))
      forM_ (answers question) (deliver (B.take 2 message) section kind put)
    deliver identity section kind put r = case r of
      Later ms r' -> void . forkIO $ threadDelay (1000 * ms) >> deliver identity section kind put r' `catch` closed
      Addresses found -> put (response identity 0 section (map (record (B.pack [0xc0, 12]) kind) found))
      Alias other found ->
        let name = encode other
         in put (response identity 0 section (cname name : map (record name kind) found))
      Code n -> put (response identity n section [])
      Truncated -> put (response identity 0x200 section [])
      Foreign found -> put (response (B.map (+ 1) identity) 0 section (map (record (B.pack [0xc0, 12]) kind) found))
      Garbage -> put (identity <> B8.pack "\x81\x80nonsense")

response :: B.ByteString -> Int -> B.ByteString -> [B.ByteString] -> B.ByteString
response identity flags section records =
  B.concat ([identity, word (0x8180 + flags), word 1, word (length records), word 0, word 0, section] ++ records)

record :: B.ByteString -> Int -> [Int] -> B.ByteString
record name kind octets =
  B.concat [name, word kind, word 1, word 0, word 60, word (length octets), B.pack (map fromIntegral octets)]

cname :: B.ByteString -> B.ByteString
cname name = B.concat [B.pack [0xc0, 12], word 5, word 1, word 0, word 60, word (B.length name), name]

word :: Int -> B.ByteString
word n = B.pack [fromIntegral (n `shiftR` 8), fromIntegral (n .&. 255)]

encode :: String -> B.ByteString
encode name = B.concat (map label (B8.split '.' (B8.pack name)) ++ [B.singleton 0])
  where
    label s = B.cons (fromIntegral (B.length s)) s

labels :: B.ByteString -> (String, B.ByteString)
labels = go []
  where
    go found bytes = case B.uncons bytes of
      Just (n, rest) | n > 0 -> go (B8.unpack (B.take (fromIntegral n) rest) : found) (B.drop (fromIntegral n) rest)
      Just (_, rest) -> (intercalate "." (reverse found), rest)
      Nothing -> (intercalate "." (reverse found), bytes)
