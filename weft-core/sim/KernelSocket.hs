-- |
-- System calls on the model kernel's stream sockets: TCP over the loopback interface, as far as a program can observe
-- it. As on Linux, a receive returns everything that has arrived, up to the size asked for, and a send takes as much as
-- there is room for (epoll(7): a short count means that the program has to wait for the rest). Accepting may fail for
-- lack of descriptors ('faultShort'). Errors are negated Linux error numbers.
module KernelSocket
  ( newSocket,
    newSocketPair,
    bindSocket,
    listenSocket,
    listens,
    refuseNewSocket,
    acceptSocket,
    connectSocket,
    receiveSocket,
    sendSocket,
    shutdownSocket,
    abortAtClose,
    socketPorts,
    sendingProgress,

    -- * For threads that are no part of the program
    canReceive,
    canSend,
    wasReset,
    allReceived,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Kernel
import KernelStream
import Simulation

eAgain, eBadf, eInval, eConnRefused, ePipe, eConnReset, eMfile, eNotConn :: Int
eAgain = -11
eBadf = -9
eInval = -22
eConnRefused = -111
ePipe = -32
eConnReset = -104
eMfile = -24
eNotConn = -107

-- | Run an action with a descriptor's socket: its number, and its state.
withStream :: Int -> r -> (Int -> Stream -> IO r) -> IO r
withStream n closed f = streamOf n >>= maybe closed' (uncurry f)
  where
    closed' = closed <$ note "it is no open socket"

newSocket :: IO Int
newSocket = kernelCall "socket" >> installStream (newStream 0)

-- | Two sockets that are connected to each other.
newSocketPair :: IO (Int, Int)
newSocketPair = do
  kernelCall "socketpair"
  a <- newFile (newStream 0)
  b <- newFile (newStream 0) {streamPeer = Just a}
  streamNumbered a >>= mapM_ (\s -> putStream a s {streamPeer = Just b})
  (,) <$> installNumber a <*> installNumber b

bindSocket :: Int -> Int -> IO Int
bindSocket n port = kernelCall ("bind(" <> show n <> ", " <> show port <> ")") >> withStream n eBadf (\i s -> 0 <$ putStream i s {streamPort = if port == 0 then 8000 else port})

listenSocket :: Int -> Int -> IO Int
listenSocket n backlog = kernelCall ("listen(" <> show n <> ")") >> withStream n eBadf (\i s -> 0 <$ putStream i s {streamBacklog = Just (max 1 backlog)})

listens :: Int -> IO Int
listens n = withStream n eBadf (\_ s -> pure (maybe 0 (const 1) (streamBacklog s)))

-- | Refuse connections from now on, and keep those that wait.
refuseNewSocket :: Int -> IO Int
refuseNewSocket n = kernelCall ("setsockopt(" <> show n <> ", SO_ATTACH_FILTER)") >> withStream n eBadf (\i s -> 0 <$ putStream i s {streamRefuses = True})

-- | Accept a connection: its descriptor, and the peer's port.
acceptSocket :: Int -> IO (Either Int (Int, Int))
acceptSocket n = do
  kernelCall ("accept(" <> show n <> ")")
  r <- withStream n (Left eBadf) $ \i s -> case (streamBacklog s, streamQueue s) of
    (Nothing, _) -> pure (Left eInval)
    (_, []) -> pure (Left eAgain)
    (_, c : others) -> do
      refused <- kernelMay faultShort (\x f -> f {faultShort = x})
      if refused
        then pure (Left eMfile)
        else do
          putStream i s {streamQueue = others}
          number <- installNumber c
          remote <- maybe 0 streamRemote <$> streamNumbered c
          pure (Right (number, remote))
  r <$ note ("accept gives " <> show r)

-- | Connect to the socket that listens on that port. The connection is established at once, unless the queue is full.
connectSocket :: Int -> Int -> IO Int
connectSocket n port = do
  kernelCall ("connect(" <> show n <> ", " <> show port <> ")")
  r <- withStream n eBadf $ \i s -> do
    found <- allStreams
    case [(l, ls) | (l, ls) <- found, streamPort ls == port, not (streamRefuses ls), Just most <- [streamBacklog ls], length (streamQueue ls) < most] of
      [] -> pure eConnRefused
      (l, ls) : _ -> do
        let from = 50000 + i
        other <- newFile (newStream port) {streamPeer = Just i, streamRemote = from}
        putStream i s {streamPeer = Just other, streamPort = from, streamRemote = port}
        putStream l ls {streamQueue = streamQueue ls <> [other]}
        happenedTo l
        pure 0
  r <$ note ("connect gives " <> show r)

-- | Receive at most the given number of bytes; none at the end of the stream.
receiveSocket :: Int -> Int -> IO (Either Int ByteString)
receiveSocket n most = do
  kernelCall ("recv(" <> show n <> ")")
  r <- withStream n (Left eBadf) $ \i s -> case () of
    _
      | streamReset s && not (streamResetTold s) -> Left eConnReset <$ putStream i s {streamResetTold = True, streamArrived = B.empty}
      | streamReset s -> pure (Right B.empty)
      | not (B.null (streamArrived s)) -> do
        let (got, rest) = B.splitAt most (streamArrived s)
            full = roomIn s == 0
        putStream i s {streamArrived = rest}
        mapM_ (if full then happenedTo else const (pure ())) (streamPeer s)
        pure (Right got)
      | streamEnded s -> pure (Right B.empty)
      | streamPeer s == Nothing -> pure (Left eNotConn)
      | otherwise -> pure (Left eAgain)
  r <$ note ("recv gives " <> either show (\b -> show (B.length b) <> " bytes: " <> show (B.take 30 b)) r)

-- | Send; returns the number of bytes taken.
sendSocket :: Int -> ByteString -> IO Int
sendSocket n bytes = do
  kernelCall ("send(" <> show n <> ", " <> show (B.length bytes) <> " bytes)")
  r <- withStream n eBadf $ \i s -> case streamPeer s of
    Nothing -> pure eNotConn
    Just _ | streamReset s || streamShut s -> pure ePipe
    Just p -> do
      peer <- streamNumbered p
      case peer of
        -- The first send to a socket that was closed succeeds, and is answered by a reset.
        Nothing -> B.length bytes <$ (putStream i s {streamReset = True} >> happenedTo i)
        Just ps
          | roomIn ps == 0 -> pure eAgain
          | otherwise -> do
            let taken = B.take (roomIn ps) bytes
            putStream i s {streamSent = streamSent s + B.length taken}
            putStream p ps {streamArrived = streamArrived ps <> taken}
            B.length taken <$ happenedTo p
  r <$ note ("send gives " <> show r)

-- | Shut down the sending direction.
shutdownSocket :: Int -> IO Int
shutdownSocket n = do
  kernelCall ("shutdown(" <> show n <> ")")
  withStream n eBadf $ \i s -> case streamPeer s of
    Nothing -> pure eNotConn
    Just _ | streamReset s -> pure eNotConn
    Just p -> do
      putStream i s {streamShut = True}
      peer <- streamNumbered p
      mapM_ (\ps -> putStream p ps {streamEnded = True} >> happenedTo p) peer
      pure 0

-- | Make a later close reset the connection.
abortAtClose :: Int -> IO Int
abortAtClose n = withStream n eBadf (\i s -> 0 <$ putStream i s {streamAborts = True})

-- | The ports of this side and of the peer.
socketPorts :: Int -> IO (Maybe (Int, Int))
socketPorts n = withStream n Nothing (\_ s -> pure (Just (streamPort s, streamRemote s)))

-- | The number of bytes that the peer has received, whether the send buffer is full, and whether there are bytes that
-- it has not received.
sendingProgress :: Int -> IO (Either Int (Int, Bool, Bool))
sendingProgress n = withStream n (Left eBadf) $ \_ s -> do
  peer <- maybe (pure Nothing) streamNumbered (streamPeer s)
  let left = maybe 0 (B.length . streamArrived) peer
  pure (Right (streamSent s - left, maybe False ((== 0) . roomIn) peer, left > 0))

-- | Whether receiving or sending would not block; whether the peer has reset. Not a step; for conditions.
canReceive, canSend, wasReset :: Int -> IO Bool
canReceive n = maybe True (readable . snd) <$> streamOf n
canSend n = streamOf n >>= maybe (pure True) (\(_, s) -> writable s <$> maybe (pure Nothing) streamNumbered (streamPeer s))
wasReset n = maybe True (streamReset . snd) <$> streamOf n

-- | Whether the peer has received all that was sent to it. Not a step; for conditions.
allReceived :: Int -> IO Bool
allReceived n = withStream n True $ \_ s -> maybe (pure True) (fmap (maybe True (B.null . streamArrived)) . streamNumbered) (streamPeer s)
