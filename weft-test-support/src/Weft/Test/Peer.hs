{-# LANGUAGE OverloadedStrings #-}

-- |
-- Scripted servers that do not use Weft: each connection runs a script, with the number of the connection.
module Weft.Test.Peer
  ( -- * Servers
    withPeer,
    Conversation,
    hearRequest,
    hearBytes,
    say,
    hangUp,
    reset,
    heardEnd,
    relay,

    -- * Waiting
    within,
    eventually,
    gives,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Network.Socket
import qualified Network.Socket.ByteString as N
import Test.Tasty.HUnit
import qualified Weft.Test.Limits as Limits

-- | A connection, and bytes that were received and not consumed.
data Conversation = Conversation Socket (IORef ByteString)

-- | Run an action with the port of a server. Connections are numbered from zero; each is closed at the end of its
-- script. The scripts' exceptions are dropped.
withPeer :: (Int -> Conversation -> IO ()) -> (Int -> IO a) -> IO a
withPeer script act = bracket listening close $ \l -> do
  port <- socketPort l
  threads <- newMVar []
  let accepting n = do
        (s, _) <- accept l
        setSocketOption s NoDelay 1
        held <- newIORef B.empty
        t <- forkIO (void (try (script n (Conversation s held) `finally` close s) :: IO (Either SomeException ())))
        modifyMVar_ threads (pure . (t :))
        accepting (n + 1)
      end t = killThread t >> readMVar threads >>= mapM_ killThread
  bracket (forkIO (void (try (accepting 0) :: IO (Either SomeException ())))) end (const (act (fromIntegral port)))
  where
    listening = do
      s <- socket AF_INET Stream defaultProtocol
      setSocketOption s ReuseAddr 1
      bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
      s <$ listen s 1024

-- | The head of the next request, with its empty line.
hearRequest :: Conversation -> IO ByteString
hearRequest c@(Conversation _ ref) = do
  held <- readIORef ref
  case B.breakSubstring "\r\n\r\n" held of
    (_, "") -> hearMore c >> hearRequest c
    (h, rest) -> (h <> "\r\n\r\n") <$ writeIORef ref (B.drop 4 rest)

-- | This many bytes.
hearBytes :: Conversation -> Int -> IO ByteString
hearBytes c@(Conversation _ ref) n = do
  held <- readIORef ref
  if B.length held >= n then B.take n held <$ writeIORef ref (B.drop n held) else hearMore c >> hearBytes c n

hearMore :: Conversation -> IO ()
hearMore (Conversation s ref) = do
  bytes <- N.recv s 65536
  when (B.null bytes) (ioError (userError "the client has ended the connection"))
  modifyIORef' ref (<> bytes)

-- | Wait until the client has ended the connection.
heardEnd :: Conversation -> IO ()
heardEnd (Conversation s _) = go
  where
    go = do
      bytes <- try (N.recv s 65536) :: IO (Either IOException ByteString)
      unless (either (const True) B.null bytes) go

-- | Pass bytes on between the client and a server on this port, in both directions, until one of them ends.
relay :: Conversation -> Int -> IO ()
relay (Conversation s ref) port = bracket (socket AF_INET Stream defaultProtocol) close $ \other -> do
  connect other (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
  readIORef ref >>= N.sendAll other
  ended <- newEmptyMVar
  let pass from to = void (try (forward from to) :: IO (Either IOException ())) >> putMVar ended ()
      forward from to = do
        bytes <- N.recv from 65536
        unless (B.null bytes) (N.sendAll to bytes >> forward from to)
  bracket (forkIO (pass s other)) killThread $ \_ ->
    bracket (forkIO (pass other s)) killThread $ \_ -> takeMVar ended

-- | Send bytes.
say :: Conversation -> ByteString -> IO ()
say (Conversation s _) = N.sendAll s

-- | Close the connection.
hangUp :: Conversation -> IO ()
hangUp (Conversation s _) = close s

-- | Close it with a reset.
reset :: Conversation -> IO ()
reset (Conversation s _) = setSockOpt s Linger (StructLinger 1 0) >> close s

-- | The action's result is this.
gives :: (Eq a, Show a) => IO a -> a -> IO ()
gives act expected = act >>= (@?= expected)

-- | Fails if the action takes more than 80 seconds.
within :: IO a -> IO a
within = Limits.within 80 "what the test waits for"

-- | Wait until the condition holds.
eventually :: String -> IO Bool -> IO ()
eventually what condition = go (2000 :: Int)
  where
    go 0 = assertFailure what
    go n = do
      holds <- condition
      unless holds (threadDelay 20000 >> go (n - 1))
