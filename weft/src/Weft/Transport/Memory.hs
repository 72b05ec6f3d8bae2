-- |
-- Connections in the program's memory, for tests and for servers that are called from the same
-- program. A pair of connections is two pipes; a network is a table of addresses.
module Weft.Transport.Memory
  ( connectionPair,
    memoryTransport,
  )
where

import Control.Concurrent.STM
import Control.Exception (mask_)
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafeDrop, unsafeTake)
import Data.Foldable (for_)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)
import Data.Sequence (Seq, ViewL (..), viewl, (|>))
import qualified Data.Sequence as Seq
import Foreign.C.Error (Errno, eADDRINUSE, eBADF, eCONNREFUSED, eCONNRESET, eINVAL, ePIPE, eTIMEDOUT)
import Foreign.Ptr (castPtr, plusPtr)
import Network.Socket (SockAddr (..))
import Weft.Deadline (Instant, atomicallyUntil, noDeadline)
import Weft.Socket.Peer (PeerState (..))
import Weft.Socket.Types (socketError)
import Weft.Transport.Types

-- Pipes ------------------------------------------------------------------------------

-- | One direction of a connection. Only transactions of its two ends write the fields.
data Pipe = Pipe
  { -- | What was sent and not yet received: no piece is empty.
    pipePieces :: !(TVar (Seq ByteString)),
    -- | The number of bytes in them.
    pipeHeld :: !(TVar Int),
    pipeEnd :: !(TVar PipeEnd),
    -- | The largest number of bytes that it holds.
    pipeCapacity :: !Int
  }

-- | @Flowing -> Finished -> Broken@, or @Flowing -> Broken@. The sender finishes it; a receiver that closes, or
-- either one that aborts, breaks it.
data PipeEnd
  = Flowing
  | -- | The end of the stream follows the bytes that it holds.
    Finished
  | -- | It holds nothing and takes nothing.
    Broken
  deriving (Eq)

newPipe :: Int -> IO Pipe
newPipe capacity =
  Pipe <$> newTVarIO Seq.empty <*> newTVarIO 0 <*> newTVarIO Flowing <*> pure (max 1 capacity)

-- | The largest number of pieces that a pipe holds: many small ones are bounded too.
mostPieces :: Int
mostPieces = 1024

-- | Take at least one byte and at most that number, or none at the end.
takeFrom :: Pipe -> Int -> STM (Either Errno ByteString)
takeFrom pipe n = do
  pieces <- readTVar (pipePieces pipe)
  end <- readTVar (pipeEnd pipe)
  case viewl pieces of
    _ | end == Broken -> pure (Left eCONNRESET)
    EmptyL
      | end == Finished -> pure (Right B.empty)
      | otherwise -> retry
    piece :< rest -> do
      let taken = B.take n piece
          left = B.drop n piece
      writeTVar (pipePieces pipe) (if B.null left then rest else left Seq.<| rest)
      modifyTVar' (pipeHeld pipe) (subtract (B.length taken))
      pure (Right taken)

-- | Put as much of a string as there is room for. Returns the rest.
putInto :: Pipe -> ByteString -> STM (Either Errno ByteString)
putInto pipe bytes = do
  end <- readTVar (pipeEnd pipe)
  if end /= Flowing
    then pure (Left ePIPE)
    else do
      pieces <- readTVar (pipePieces pipe)
      held <- readTVar (pipeHeld pipe)
      let room = pipeCapacity pipe - held
          size = min room (B.length bytes)
      check (room > 0 && Seq.length pieces < mostPieces)
      writeTVar (pipePieces pipe) (pieces |> B.unsafeTake size bytes)
      writeTVar (pipeHeld pipe) (held + size)
      pure (Right (B.unsafeDrop size bytes))

finish :: Pipe -> STM ()
finish pipe = do
  end <- readTVar (pipeEnd pipe)
  when (end == Flowing) (writeTVar (pipeEnd pipe) Finished)

break' :: Pipe -> STM ()
break' pipe = do
  writeTVar (pipeEnd pipe) Broken
  writeTVar (pipePieces pipe) Seq.empty
  writeTVar (pipeHeld pipe) 0

-- Connections ------------------------------------------------------------------------

-- | One end of a pair.
data End = End
  { endIn :: !Pipe,
    endOut :: !Pipe,
    -- | Written by closing and aborting, once.
    endClosed :: !(TVar Bool),
    endLocal :: !SockAddr,
    endPeer :: !SockAddr
  }

-- | Two connections that are each other's peers. Each direction holds at most the given number of bytes (at least
-- one) in at most 1024 pieces. Strings are passed without a copy; memory is copied. The addresses are the local ones
-- of the first and of the second connection. Closing one never resets the other.
connectionPair :: Int -> SockAddr -> SockAddr -> IO (Connection, Connection)
connectionPair capacity a b = do
  there <- newPipe capacity
  back <- newPipe capacity
  first <- newTVarIO False
  second <- newTVarIO False
  pure
    ( Connection memoryOperations (End back there first a b),
      Connection memoryOperations (End there back second b a)
    )

memoryOperations :: Operations End
memoryOperations =
  Operations
    { opReceive = receive,
      opSend = sendRegion,
      opSendMany = \end deadline -> mapM_ (sendBytes end deadline),
      opSendFile = \end deadline strings range -> do
        mapM_ (sendBytes end deadline) strings
        sendFileByReading (sendBytes end deadline) range,
      opShutdownSend = \end _ -> do
        open <- atomically $ do
          closed <- readTVar (endClosed end)
          not closed <$ unless closed (finish (endOut end))
        unless open (failed "connShutdownSend" eBADF),
      opClose = \end -> ending end $ break' (endIn end) >> finish (endOut end),
      opAbort = \end -> ending end $ break' (endIn end) >> break' (endOut end),
      opPeer = endPeer,
      opLocal = \end -> do
        closed <- readTVarIO (endClosed end)
        if closed then failed "connLocal" eBADF else pure (endLocal end),
      opSendProgress = const (pure Nothing),
      opAwaitPeer = Just awaitEnd,
      opIsQuiet = const (pure False),
      opSecurity = const Nothing,
      opKeepsStrings = const True
    }

ending :: End -> STM () -> IO ()
ending end act = atomically $ do
  closed <- readTVar (endClosed end)
  unless closed (writeTVar (endClosed end) True >> act)

-- | Wait until the peer has finished or broken its direction, or, for 'PeerGone', takes nothing any more.
awaitEnd :: End -> PeerState -> IO ()
awaitEnd end state = operate "connAwaitPeer" end noDeadline $ do
  from <- readTVar (pipeEnd (endIn end))
  to <- readTVar (pipeEnd (endOut end))
  Right () <$ check (to == Broken || from == Broken || (state < PeerGone && from == Finished))

receive :: End -> Instant -> Int -> IO ByteString
receive end deadline n
  | n <= 0 = failed "connReceive" eINVAL
  | otherwise = operate "connReceive" end deadline (takeFrom (endIn end) n)

-- | The bytes are copied, since the caller may change the memory afterwards.
sendRegion :: End -> Instant -> Region -> IO ()
sendRegion end deadline (Region p n) = when (n > 0) $ do
  let size = min n (pipeCapacity (endOut end))
  piece <- B.packCStringLen (castPtr p, size)
  sendBytes end deadline piece
  sendRegion end deadline (Region (p `plusPtr` size) (n - size))

sendBytes :: End -> Instant -> ByteString -> IO ()
sendBytes end deadline bytes = unless (B.null bytes) $ do
  left <- operate "connSend" end deadline (putInto (endOut end) bytes)
  sendBytes end deadline left

-- | Run a transaction of an open end, and wait for it until the deadline. Masked, so that no exception arrives after it
-- was committed; waiting is interruptible.
operate :: String -> End -> Instant -> STM (Either Errno a) -> IO a
operate loc end deadline act = mask_ (atomicallyUntil deadline attempt) >>= either (failed loc) pure . fromMaybe (Left eTIMEDOUT)
  where
    attempt = do
      closed <- readTVar (endClosed end)
      if closed then pure (Left eBADF) else act

failed :: String -> Errno -> IO a
failed loc = ioError . socketError ("Weft.Transport." <> loc)

-- A network --------------------------------------------------------------------------

-- | A listener: the connections that have not been accepted yet, and whether it is closed.
data Bound = Bound !(TVar (Seq Connection)) !(TVar Bool)

-- | A new network in memory. Its connections hold at most the given number of bytes in each direction.
-- Addresses are only compared: any address will do that both sides use.
memoryTransport :: Int -> IO Transport
memoryTransport capacity = do
  table <- newTVarIO Map.empty
  ports <- newTVarIO 49152
  pure (Transport (listenAt table ports) (connectTo capacity table ports))

type Table = TVar (Map.Map SockAddr Bound)

listenAt :: Table -> TVar Int -> SockAddr -> IO Listener
listenAt table ports wanted = do
  found <- atomically $ do
    address <- withPort ports wanted
    bound <- readTVar table
    if Map.member address bound
      then pure Nothing
      else do
        listening <- Bound <$> newTVar Seq.empty <*> newTVar False
        writeTVar table (Map.insert address listening bound)
        pure (Just (address, listening))
  case found of
    Nothing -> failed "transportListen" eADDRINUSE
    Just (address, Bound waiting closed) ->
      pure
        Listener
          { listenerAccept = acceptFrom waiting closed,
            listenerAddress = address,
            listenerClose = closeListener address waiting closed
          }
  where
    closeListener address waiting closed = do
      left <- atomically $ do
        before <- readTVar closed
        unless before $ do
          writeTVar closed True
          modifyTVar' table (Map.delete address)
        swapTVar waiting Seq.empty
      for_ left connAbort

acceptFrom :: TVar (Seq Connection) -> TVar Bool -> IO Connection
acceptFrom waiting closed = do
  r <- mask_ . atomically $ do
    over <- readTVar closed
    queue <- readTVar waiting
    case viewl queue of
      _ | over -> pure Nothing
      EmptyL -> retry
      c :< rest -> Just c <$ writeTVar waiting rest
  maybe (failed "listenerAccept" eBADF) pure r

connectTo :: Int -> Table -> TVar Int -> Instant -> SockAddr -> IO Connection
connectTo capacity table ports deadline address = mask_ $ do
  own <- atomically (withPort ports (unported address))
  (mine, theirs) <- connectionPair capacity own address
  r <- atomicallyUntil deadline $ do
    bound <- Map.lookup address <$> readTVar table
    case bound of
      Nothing -> pure (Left eCONNREFUSED)
      Just (Bound waiting _) -> do
        queue <- readTVar waiting
        check (Seq.length queue < backlog)
        Right mine <$ writeTVar waiting (queue |> theirs)
  either (failed "transportConnect") pure (fromMaybe (Left eTIMEDOUT) r)
  where
    backlog = 128

-- | The address, with a fresh port instead of port 0.
withPort :: TVar Int -> SockAddr -> STM SockAddr
withPort ports address = case address of
  SockAddrInet 0 host -> (`SockAddrInet` host) <$> next
  SockAddrInet6 0 flow host scope -> (\p -> SockAddrInet6 p flow host scope) <$> next
  _ -> pure address
  where
    next = do
      p <- readTVar ports
      writeTVar ports (if p == 65535 then 49152 else p + 1)
      pure (fromIntegral p)

-- | The client's address: the host of the server, and port 0.
unported :: SockAddr -> SockAddr
unported address = case address of
  SockAddrInet _ host -> SockAddrInet 0 host
  SockAddrInet6 _ flow host scope -> SockAddrInet6 0 flow host scope
  SockAddrUnix _ -> SockAddrUnix ""
