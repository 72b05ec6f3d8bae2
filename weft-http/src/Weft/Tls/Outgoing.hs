-- |
-- The direction of a TLS session in which bytes are sent. After the handshake, what the library encrypts is first put
-- into a queue, which never waits: an operation that receives may have to answer (a key update, a close_notify alert),
-- and must neither wait for a sender nor be cut off in the middle of an answer. Whoever holds the lock sends from the
-- queue.
module Weft.Tls.Outgoing
  ( Outgoing,
    newOutgoing,
    putMessage,
    putAnswer,
    queuedAnswers,
    locked,
    sendQueue,
    sendPromptly,
    cutOff,
    isCutOff,
    checkWhole,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Data.Maybe (isNothing)
import Foreign.C.Error (ePIPE, errnoToIOError)
import GHC.IO.Exception (IOErrorType (TimeExpired), IOException (..))
import Weft.Core.Time (until)
import Weft.Sys (now)
import Weft.Timer (within)
import Weft.Transport
import Prelude hiding (until)

-- | The queue of encrypted bytes. Any thread may use it.
data Outgoing = Outgoing
  { outgoingTo :: !Connection,
    -- | Held by the thread that sends from the queue.
    outgoingLock :: !(MVar ()),
    outgoingQueue :: !(IORef Queue)
  }

-- | @Queue -> CutOff@
data Queue
  = -- | The number of bytes of answers; all strings, the last one first; and whether they are to be sent as soon as the
    -- lock is free.
    Queue !Int ![ByteString] !Bool
  | -- | A send was interrupted or failed: the peer cannot decrypt what would follow. Nothing more is sent.
    CutOff

-- | An empty queue for that connection.
newOutgoing :: Connection -> IO Outgoing
newOutgoing to = Outgoing to <$> newMVar () <*> newIORef empty
  where
    empty = Queue 0 [] False

-- | Append a string: part of a message, or an answer.
putMessage, putAnswer :: Outgoing -> ByteString -> IO ()
putMessage = append (const 0)
putAnswer = append B.length

append :: (ByteString -> Int) -> Outgoing -> ByteString -> IO ()
append answered o bytes = atomicModifyIORef' (outgoingQueue o) $ \queue -> case queue of
  Queue answers strings urgent -> (Queue (answers + answered bytes) (bytes : strings) urgent, ())
  CutOff -> (CutOff, ())

-- | The number of bytes of answers that are not sent yet.
queuedAnswers :: Outgoing -> IO Int
queuedAnswers o = sizeOf <$> readIORef (outgoingQueue o)
  where
    sizeOf (Queue answers _ _) = answers
    sizeOf CutOff = 0

-- | Send nothing more.
cutOff :: Outgoing -> IO ()
cutOff o = atomicWriteIORef (outgoingQueue o) CutOff

-- | Throw @EPIPE@ if sending was cut off.
checkWhole :: Outgoing -> IO ()
checkWhole o = do
  cut <- isCutOff o
  when cut (ioError broken {ioe_description = "an earlier send was cut off after a part: this connection can send nothing more"})
  where
    broken = errnoToIOError "Weft.Tls.connSend" ePIPE Nothing Nothing

-- | Whether sending was cut off.
isCutOff :: Outgoing -> IO Bool
isCutOff o = cut <$> readIORef (outgoingQueue o)
  where
    cut CutOff = True
    cut Queue {} = False

-- | Run an action with the lock. Throws an error that satisfies 'isTimeout' if another thread has it at the deadline.
locked :: Outgoing -> Instant -> IO a -> IO a
locked o deadline act = mask_ $ do
  free <- tryTakeMVar (outgoingLock o)
  when (isNothing free) acquire
  r <- (act `finally` putMVar (outgoingLock o) ()) `onException` (now >>= afterwards o)
  r <$ afterwards o deadline
  where
    acquire
      | deadline == noDeadline = takeMVar (outgoingLock o)
      | otherwise = do
        t <- now
        got <- within (deadline `until` t) (takeMVar (outgoingLock o))
        when (isNothing got) (ioError (IOError Nothing TimeExpired "Weft.Tls" "another thread is sending" Nothing Nothing))

-- | With the lock: send all that is in the queue, and what others put there meanwhile. If it throws, sending is cut off;
-- if it was before, it throws @EPIPE@.
sendQueue :: Outgoing -> Instant -> IO ()
sendQueue o deadline = do
  checkWhole o
  strings <- atomicModifyIORef' (outgoingQueue o) $ \queue -> case queue of
    Queue _ strings _ -> (Queue 0 [] False, reverse strings)
    CutOff -> (CutOff, [])
  case strings of
    [] -> pure ()
    [bytes] -> (connSendBytes (outgoingTo o) deadline bytes `onException` cutOff o) >> sendQueue o deadline
    _ -> (connSendMany (outgoingTo o) deadline strings `onException` cutOff o) >> sendQueue o deadline

-- | Without the lock: send from the queue what the connection takes without waiting. If it does not take all, sending is
-- cut off. If another thread has the lock, that one sends it. Throws no 'IOException'.
sendPromptly :: Outgoing -> IO ()
sendPromptly o = do
  atomicModifyIORef' (outgoingQueue o) $ \queue -> case queue of
    Queue answers strings _ -> (Queue answers strings (answers > 0), ())
    CutOff -> (CutOff, ())
  now >>= afterwards o

-- | Send what is urgent, if the lock is free. The thread that has the lock does it when it has released it.
afterwards :: Outgoing -> Instant -> IO ()
afterwards o deadline = do
  wanted <- urgent <$> readIORef (outgoingQueue o)
  when wanted $ do
    sent <- mask_ $ do
      free <- tryTakeMVar (outgoingLock o)
      case free of
        Nothing -> pure False
        Just () -> True <$ (void (try (sendQueue o deadline) :: IO (Either IOException ())) `finally` putMVar (outgoingLock o) ())
    when sent (afterwards o deadline)
  where
    urgent (Queue _ _ u) = u
    urgent CutOff = False
