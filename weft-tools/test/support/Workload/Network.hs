-- |
-- The parts of the workload that use sockets: an echo server, a web server, their clients, and processes of peers that
-- reset, half-close and disappear.
module Workload.Network
  ( -- * Servers
    listening,
    echoServer,
    site,

    -- * Clients
    echoClient,
    webClient,
    content,
    endedEarly,

    -- * Peers
    peers,
    peer,
  )
where

import Control.Concurrent
import Control.Concurrent.Async (mapConcurrently_)
import Control.Exception
import Control.Monad
import Data.Bits (shiftR, (.&.))
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import qualified Data.ByteString.Lazy as L
import Data.Maybe (catMaybes, fromMaybe, listToMaybe)
import GHC.Clock (getMonotonicTime)
import Network.Wai (Application, remoteHost, responseLBS)
import System.Environment (getExecutablePath)
import System.Posix.Signals (sigKILL, signalProcess)
import qualified System.Process as P
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)
import Weft.Timer (within)
import Workload.Connections (served, serving)
import Workload.Run

-- Servers ------------------------------------------------------------------------------------

-- | A listening socket on the loopback interface, and its port.
listening :: Int -> IO (Socket, Int)
listening backlog = do
  s <- socket AF_INET Stream defaultProtocol
  setSocketOption s ReuseAddr 1
  bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  listen s backlog
  port <- socketPort s
  pure (s, fromIntegral port)

echoServer :: Run -> Socket -> IO ()
echoServer run l = forever $ do
  r <- try (accept l) :: IO (Either IOException (Socket, SockAddr))
  case r of
    Left _ -> threadDelay 1000
    Right (s, from) -> void . forkIO . void . serving (runConnections run) (portOf from) $ \state ->
      ( do
          _ <- try (setSocketOption s NoDelay 1) :: IO (Either IOException ())
          when (planStall (runPlan run) && portOf from `mod` 5 == 0) $ do
            served state "has forgotten it"
            newEmptyMVar >>= \never -> takeMVar never `finally` putMVar never ()
          serveOne state s (0 :: Int)
      )
        `finally` close s
  where
    serveOne state s n = do
      deadline <- deadlineIn (patience run)
      served state ("receives; " <> show n <> " bytes echoed")
      bytes <- recv (withDeadline deadline s) 65536
      unless (B.null bytes) $ do
        served state ("sends " <> show (B.length bytes) <> " bytes; " <> show n <> " bytes echoed")
        sendAll (withDeadline deadline s) bytes
        serveOne state s $! n + B.length bytes

portOf :: SockAddr -> Int
portOf (SockAddrInet p _) = fromIntegral p
portOf _ = 0

-- | The web application. Each request is recorded while it is answered.
site :: Run -> Application
site run request respond =
  either throwIO pure <=< serving (runConnections run) (portOf (remoteHost request)) $ \state -> do
    served state "the application answers"
    respond (responseLBS (toEnum 200) [] (L.fromStrict (BC.replicate 3000 'w'))) <* served state "the application has answered"

-- Clients -------------------------------------------------------------------------------------

-- | Connect to that port, and record the connection for the operation, if one is given.
connected :: Maybe Operation -> Int -> (Socket -> IO a) -> IO a
connected operation port = bracket opened close
  where
    opened = bracketOnError (socket AF_INET Stream defaultProtocol) close $ \s -> do
      setSocketOption s NoDelay 1
      forM_ operation (`note` "connects")
      connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
      forM_ operation $ \o -> getSocketName s >>= \from -> operationOn o (portOf from) port
      pure s

-- | The given number of bytes, determined by the second argument.
content :: Int -> Int -> B.ByteString
content n k = B.take n (B.drop (k `mod` 65521) pool)

pool :: B.ByteString
pool = fst (B.unfoldrN 400000 (\x -> Just (fromIntegral (x `shiftR` 8), (x * 1103515245 + 12345) .&. 0x7fffffff)) (7 :: Int))

-- | Some round trips, and one of several ways to end.
echoClient :: Run -> Int -> Operation -> Dice -> IO (Maybe String)
echoClient run port o d = connected (Just o) port $ \s -> do
  trips <- roll d 6
  wrong <- go s trips
  way <- roll d 5
  note o ("ends in way " <> show way)
  case way of
    0 -> setSockOpt s Linger (StructLinger 1 0)
    1 -> shutdown s ShutdownSend
    2 -> do
      -- Interrupted in the middle by a time limit.
      _ <- within (milliseconds 1) (sendAll s (B.replicate 300000 1))
      pure ()
    _ -> pure ()
  pure wrong
  where
    go _ 0 = pure Nothing
    go s n = do
      size <- (+ 1) <$> roll d 20000
      sort' <- roll d 1000000
      let bytes = content size sort'
      begin <- getMonotonicTime
      deadline <- deadlineIn (patience run)
      note o ("sends " <> show size <> " bytes, " <> show n <> " round trips to go")
      sendAll (withDeadline deadline s) bytes
      back <- receiveAll o (withDeadline deadline s) size
      getMonotonicTime >>= trip run . subtract begin
      if back == bytes then go s (n - 1 :: Int) else pure (Just ("an echo of " <> show size <> " bytes came back as " <> show (B.length back)))

-- | The server has closed the connection, as it does after a failed system call of its own.
endedEarly :: IO a
endedEarly = ioError (userError "the stream ended early")

receiveAll :: Operation -> Socket -> Int -> IO B.ByteString
receiveAll o s size = B.concat <$> go size
  where
    go 0 = pure []
    go n = do
      note o ("receives; " <> show n <> " bytes of " <> show size <> " are missing")
      b <- recv s n
      if B.null b then endedEarly else (b :) <$> go (n - B.length b)

webClient :: Run -> Int -> Operation -> Dice -> IO (Maybe String)
webClient run port o d = connected (Just o) port $ \s -> do
  n <- (+ 1) <$> roll d 4
  abandon <- roll d 4
  wrong <- forM [1 .. n] $ \k -> do
    deadline <- deadlineIn (patience run)
    note o ("sends request " <> show k <> " of " <> show n)
    sendAll (withDeadline deadline s) (BC.pack "GET /x HTTP/1.1\r\nHost: a\r\n\r\n")
    answer (withDeadline deadline s) B.empty
  when (abandon == 0) (sendAll s (BC.pack "GET /y HTTP/1.1\r\nHo") >> setSockOpt s Linger (StructLinger 1 0))
  pure (listToMaybe (catMaybes wrong))
  where
    answer s got
      | (_, rest) <- BC.breakSubstring (BC.pack "\r\n\r\n") got,
        B.length rest >= 3004 =
        pure $
          if BC.pack "HTTP/1.1 200" `B.isPrefixOf` got && B.length rest == 3004 && BC.all (== 'w') (B.drop 4 rest)
            then Nothing
            else Just ("a wrong answer: " <> show (B.take 40 got))
      | otherwise = do
        note o ("waits for an answer; has " <> show (B.length got) <> " bytes of it")
        b <- recv s 8192
        if B.null b then endedEarly else answer s (got <> b)

-- Peers -------------------------------------------------------------------------------------------

-- | A process of peers that is killed and replaced repeatedly.
peers :: Run -> Double -> Int -> Int -> Int -> Int -> IO ()
peers run end r echoPort webPort i = do
  d <- dice (planSeed (runPlan run) * 77 + r * 13 + i)
  self <- getExecutablePath
  let go k = do
        t <- getMonotonicTime
        when (t < end) $ do
          life <- roll d 1500000
          bracket (P.spawnProcess self ["peer", show echoPort, show webPort, show (planSeed (runPlan run) + k * 100 + i), if planCores (runPlan run) > 0 then "20000" else "1000"]) finish (const (threadDelay (200000 + life)))
          go (k + 1)
      finish p = do
        pid <- P.getPid p
        forM_ pid (signalProcess sigKILL)
        void (P.waitForProcess p)
  go (r * 1000 :: Int)

-- | The work of a process of peers: connections that are never read from, cut off, reset, half-closed or left alone,
-- with pauses of the given number of microseconds.
peer :: Int -> Int -> Int -> Int -> IO ()
peer echoPort webPort seed pause = mapConcurrently_ id [client i | i <- [1 .. 6]]
  where
    client i = do
      d <- dice (seed + i)
      forever $ do
        port <- (\x -> if x == 0 then echoPort else webPort) <$> roll d 2
        _ <- try (connected Nothing port (rude d)) :: IO (Either IOException ())
        threadDelay pause
    rude d s = do
      what <- roll d 5
      k <- roll d 100000
      case what of
        0 -> sendAll s (content 50000 k)
        1 -> sendAll s (content 1000 k) >> setSockOpt s Linger (StructLinger 1 0)
        2 -> sendAll s (content 100 k) >> shutdown s ShutdownSend >> void (recv s 10)
        3 -> threadDelay k
        _ -> fromMaybe () <$> within (milliseconds 20) (forever (sendAll s (content 30000 k)))
