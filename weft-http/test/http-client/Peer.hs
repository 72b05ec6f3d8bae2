{-# LANGUAGE OverloadedStrings #-}

-- |
-- Scripted servers that do not use Weft: each connection runs a script, with the number of the connection.
module Peer
  ( -- * Servers
    withPeer,
    Conversation,
    hearRequest,
    hearBytes,
    say,
    hangUp,
    reset,
    heardEnd,

    -- * Clients
    url,
    soon,
    gives,
    causeOf,
    within,
    eventually,
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
import System.Timeout (timeout)
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http.Client
import Weft.Transport (Instant, deadlineIn)

-- | A connection, and bytes that were received and not consumed.
data Conversation = Conversation Socket (IORef ByteString)

-- | Run an action with the port of a server. Connections are numbered from zero; each is closed at the end of its script.
-- The scripts' exceptions are dropped.
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

say :: Conversation -> ByteString -> IO ()
say (Conversation s _) = N.sendAll s

hangUp :: Conversation -> IO ()
hangUp (Conversation s _) = close s

reset :: Conversation -> IO ()
reset (Conversation s _) = setSockOpt s Linger (StructLinger 1 0) >> close s

-- | A URL of a server on this port.
url :: Int -> ByteString -> Url
url port path = Url "127.0.0.1" (show port) Nothing path False

-- | A deadline that no test reaches.
soon :: IO Instant
soon = deadlineIn (seconds 80)

-- | The action's result is this.
gives :: (Eq a, Show a) => IO a -> a -> IO ()
gives act expected = act >>= (@?= expected)

-- | The phase and the cause of a request's failure.
causeOf :: IO a -> IO (Phase, Cause)
causeOf act = do
  r <- try act
  case r of
    Left e -> pure (errorPhase e, errorCause e)
    Right _ -> assertFailure "the request succeeded"

within :: IO a -> IO a
within act = timeout 80000000 act >>= maybe (assertFailure "no end within 80 seconds") pure

-- | Wait until the condition holds.
eventually :: String -> IO Bool -> IO ()
eventually what condition = go (2000 :: Int)
  where
    go 0 = assertFailure what
    go n = do
      holds <- condition
      unless holds (threadDelay 20000 >> go (n - 1))
