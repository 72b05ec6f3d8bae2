-- |
-- The sending side of a connection. The switch's own thread sends its replies itself. It waits while the switch does
-- not receive them, and reads nothing meanwhile. Other threads never wait: their messages are queued, up to a limit,
-- and sent by a thread that exists while the queue is not empty.
module Weft.OpenFlow.Controller.SendQueue
  ( SendQueue,
    newSendQueue,
    sendQueueConnection,
    abortFor,
    sendHere,
    post,

    -- * Buffers
    Out,
    newOut,
    writeMessage,
    writePut,
    finishOut,
    Count (..),
    count,
    counted,
  )
where

import Control.Concurrent.MVar
import Control.Exception (AsyncException (ThreadKilled), SomeException, catch, displayException, fromException, mask_, onException, throwIO)
import Control.Monad (forM_, join, unless, void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import Data.IORef
import Data.Maybe (fromMaybe)
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr)
import Foreign.Ptr (Ptr, plusPtr)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Weft.Duration (Duration)
import Weft.OpenFlow.Message (Message (FlowModMessage))
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.OpenFlow.Wire.Encode (pokeUsualFlow, usualFlowSize)
import Weft.Scope (Child (..), Scope, ScopeEnded (..), daemon, forkUsing)
import Weft.Sys (WordArray, newWordArray, peekWord, pokeWord)
import Weft.Transport

-- | The sending side of a connection.
data SendQueue = SendQueue
  { -- | The connection.
    sendQueueConnection :: !Connection,
    -- | The scope of the connection: its sender ends with it.
    outletScope :: !Scope,
    -- | The maximum time for which a switch may receive nothing of what is sent to it.
    outletPatience :: !Duration,
    -- | Held while messages are sent, so that they are not interleaved.
    outletLock :: !(MVar ()),
    -- | Changed atomically by any thread.
    outletPending :: !(IORef Pending),
    -- | Why the controller aborted the connection. Set once, by any thread; read by the switch's own thread.
    outletAborted :: !(IORef (Maybe String))
  }

-- | The number of queued bytes, the queued strings, the last one first, and whether the sender thread exists.
--
-- @
--   Pending 0 [] False    the queue is empty, and there is no sender
--   Pending n ss  True    the sender exists; it sends strings that it took before, or has not taken ss yet
-- @
--
-- 'post' (any thread) appends strings. If there is no sender, it sets True and forks one ('drain'). Only the sender
-- removes strings. It sets False only in the step that finds none, so strings never wait without a sender. The sender
-- and the switch's own thread ('sendHere') write to the connection while they hold 'outletLock', a whole batch at a
-- time. A sender that fails aborts the connection, and the state stays True. So it does when the connection ends, which
-- ends the sender, or in the middle of which none is forked any more: nothing is sent then.
data Pending = Pending !Int [ByteString] !Bool

-- | The maximum number of queued bytes, 1 MiB. If there are more, the connection is closed.
pendingLimit :: Int
pendingLimit = 1048576

-- | Create the sending side of a connection, in the connection's scope. The time is the value of 'outletPatience', the
-- variable that of 'outletAborted'.
newSendQueue :: Scope -> Duration -> IORef (Maybe String) -> Connection -> IO SendQueue
newSendQueue scope patience aborted connection = do
  lock <- newMVar ()
  pending <- newIORef (Pending 0 [] False)
  pure (SendQueue connection scope patience lock pending aborted)

-- | Abort the connection from any thread, without waiting. The switch's own thread then fails with an error of its
-- socket, so the reason is kept for its report; the first one, if there are several.
abortFor :: String -> SendQueue -> IO ()
abortFor why o = do
  atomicModifyIORef' (outletAborted o) (\before -> (Just (fromMaybe why before), ()))
  connAbort (sendQueueConnection o)

-- | Send from the switch's own thread. Waits while the switch receives nothing. Throws as 'connSendMany', and the
-- connection is aborted then: another thread's message must not follow a part of one.
sendHere :: SendQueue -> [ByteString] -> IO ()
sendHere o strings = unless (null strings) . withMVar (outletLock o) $ \_ -> (`onException` connAbort (sendQueueConnection o)) . forM_ (parts strings) $ \part -> do
  deadline <- deadlineIn (outletPatience o)
  case part of
    [s] -> connSendBytes (sendQueueConnection o) deadline s
    _ -> connSendMany (sendQueueConnection o) deadline part

-- | Parts of at most 64 KiB. Each has a deadline of its own, so a switch that is slow, but receives, is not given up.
parts :: [ByteString] -> [[ByteString]]
parts [] = []
parts [s] | B.length s <= partLimit = [[s]]
parts strings = case fitting partLimit strings of
  ([], s : rest) | (part, left) <- B.splitAt partLimit s -> [part] : parts (left : rest)
  (part, rest) -> part : parts rest
  where
    fitting room (s : rest) | B.length s <= room, (more, others) <- fitting (room - B.length s) rest = (s : more, others)
    fitting _ rest = ([], rest)

partLimit :: Int
partLimit = 65536

-- | Send complete messages from any thread. Neither waits nor throws. Masked: a thread that is killed before it forks
-- the sender would leave a queue that nobody empties.
post :: SendQueue -> [ByteString] -> IO ()
post _ [] = pure ()
post o strings = mask_ . join . atomicModifyIORef' (outletPending o) $ \(Pending n waiting sending) ->
  let n' = n + sum (map B.length strings)
   in if n' > pendingLimit
        then (Pending n waiting sending, abortFor "more than 1 MiB of messages waited for the switch" o)
        else (Pending n' (reverse strings ++ waiting) True, if sending then pure () else begin)
  where
    begin = void (forkUsing sender (outletScope o) (drain o)) `catch` \ScopeEnded -> pure ()

-- | The thread that sends queued strings.
sender :: Child
sender = daemon {childLabel = Just "weft openflow sender"}

-- | Send queued strings until there are none. If that fails, the connection is aborted.
drain :: SendQueue -> IO ()
drain o = go `catch` failed
  where
    go = do
      waiting <- atomicModifyIORef' (outletPending o) $ \(Pending _ waiting _) ->
        (Pending 0 [] (not (null waiting)), waiting)
      unless (null waiting) (sendHere o (reverse waiting) >> go)
    failed :: SomeException -> IO ()
    failed e = case fromException e of
      -- The connection ends, and has a reason for it.
      Just ThreadKilled -> throwIO ThreadKilled
      _ -> abortFor (displayException e) o

-- Buffers -------------------------------------------------------------------------------

-- | A buffer of messages, and counters. Used by one thread. Appending a message allocates nothing.
data Out = Out
  { -- | The number of bytes used, the size of the buffer, and the counters.
    outWords :: !WordArray,
    outBuffer :: !(IORef (ForeignPtr Word8)),
    -- | Full buffers before this one, the last one first.
    outFull :: !(IORef [ByteString])
  }

-- | The counters.
data Count = CountPacket | CountReply | CountFault | CountForged
  deriving (Enum)

wordUsed, wordSize, wordCounts :: Int
wordUsed = 0
wordSize = 1
wordCounts = 2

-- | An empty buffer of that many bytes. It grows when needed.
newOut :: Int -> IO Out
newOut size = do
  ws <- newWordArray 6
  pokeWord ws wordUsed 0
  pokeWord ws wordSize size
  mapM_ (\i -> pokeWord ws i 0) [wordCounts .. 5]
  Out ws <$> (B.mallocByteString size >>= newIORef) <*> newIORef []

-- | Increment a counter.
count :: Out -> Count -> IO ()
count o what = peekWord (outWords o) i >>= pokeWord (outWords o) i . (+ 1)
  where
    i = wordCounts + fromEnum what
{-# INLINE count #-}

-- | The value of a counter.
counted :: Out -> Count -> IO Int
counted o what = peekWord (outWords o) (wordCounts + fromEnum what)

-- | Append a message. 'False' if the version has no encoding for it; then nothing was appended.
writeMessage :: Out -> Version -> Xid -> Message -> IO Bool
writeMessage o version xid message = case message of
  FlowModMessage f | n > 0 -> True <$ append o n (pokeUsualFlow version xid f n)
    where
      n = usualFlowSize version f
  _ -> writePut o (putMessage version xid message)

-- | Append the result of 'putMessage'. 'False' as for 'writeMessage'.
writePut :: Out -> Put -> IO Bool
writePut o message = case putSize message of
  Nothing -> pure False
  Just n -> True <$ append o n (pokePut message)

-- | Append the given number of bytes, which the action writes.
append :: Out -> Int -> (Ptr Word8 -> IO ()) -> IO ()
append o n write = do
  used <- peekWord (outWords o) wordUsed
  size <- peekWord (outWords o) wordSize
  at <- if used + n <= size then pure used else 0 <$ anotherBuffer o n
  p <- readIORef (outBuffer o)
  unsafeWithForeignPtr p (\start -> write (start `plusPtr` at))
  pokeWord (outWords o) wordUsed (at + n)
{-# INLINE append #-}

-- | Start another buffer, with room for at least that many bytes.
anotherBuffer :: Out -> Int -> IO ()
anotherBuffer o n = do
  used <- peekWord (outWords o) wordUsed
  p <- readIORef (outBuffer o)
  modifyIORef' (outFull o) (B.fromForeignPtr p 0 used :)
  B.mallocByteString size >>= writeIORef (outBuffer o)
  pokeWord (outWords o) wordSize size
  pokeWord (outWords o) wordUsed 0
  where
    size = max 65536 n

-- | The messages in the buffer, as strings to send. The buffer must not be used afterwards.
finishOut :: Out -> IO [ByteString]
finishOut o = do
  used <- peekWord (outWords o) wordUsed
  p <- readIORef (outBuffer o)
  full <- readIORef (outFull o)
  pure (reverse ([B.fromForeignPtr p 0 used | used > 0] ++ filter (not . B.null) full))
