-- |
-- What is sent to a switch. The switch's own thread sends its answers itself and waits while the switch does not take
-- them, so that it reads no more meanwhile. Other threads never wait: what they send is kept, up to a bound, and sent
-- by a thread that lasts as long as there is something.
module Weft.OpenFlow.Controller.Outlet
  ( Outlet,
    newOutlet,
    outletConnection,
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

import Control.Concurrent (forkIO, myThreadId)
import Control.Concurrent.MVar
import Control.Exception (SomeException, catch)
import Control.Monad (join, unless, void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr, mallocByteString)
import Data.IORef
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr)
import Foreign.Ptr (Ptr, plusPtr)
import GHC.Conc (labelThread)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Weft.Duration (Duration)
import Weft.OpenFlow.Message (Message (FlowModMessage))
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.OpenFlow.Wire.Encode (pokeUsualFlow, usualFlowSize)
import Weft.Sys (AtomicWords, newAtomicWords, peekWord, pokeWord)
import Weft.Transport

-- | The sending side of a connection.
data Outlet = Outlet
  { -- | The connection.
    outletConnection :: !Connection,
    -- | For how long a switch may take nothing of what is sent to it.
    outletPatience :: !Duration,
    -- | Held while something is sent, so that messages stay whole.
    outletLock :: !(MVar ()),
    -- | Changed atomically by any thread.
    outletPending :: !(IORef Pending)
  }

-- | How many bytes wait, the strings that hold them, the last one first, and whether a sender thread exists.
--
-- @
--   Pending 0 [] False    nothing waits, no sender
--   Pending n ss  True    the sender exists; it sends what it took before, or has not taken ss yet
-- @
--
-- 'post' (any thread) appends; from False it goes to True and forks the sender ('drain'). Only the sender takes
-- strings out, and it goes to False only in the step that finds none. So strings never wait without a sender. The sender
-- and the switch's own thread ('sendHere') write to the connection under 'outletLock', a whole batch at a time, and each sends what
-- it brought: nothing is left for the next holder of the lock. A sender that fails aborts the connection, and the state
-- stays True.
data Pending = Pending !Int [ByteString] !Bool

-- | Bytes that may wait for a switch that does not read: 1 MiB. With more its connection is dropped.
pendingLimit :: Int
pendingLimit = 1048576

-- | For a connection; the time is how long a switch may take nothing.
newOutlet :: Duration -> Connection -> IO Outlet
newOutlet patience connection = Outlet connection patience <$> newMVar () <*> newIORef (Pending 0 [] False)

-- | Send from the switch's own thread, waiting while the switch takes nothing. Throws as 'connSendMany'.
sendHere :: Outlet -> [ByteString] -> IO ()
sendHere o strings = unless (null strings) . withMVar (outletLock o) $ \_ -> do
  deadline <- deadlineIn (outletPatience o)
  case strings of
    [s] -> connSendBytes (outletConnection o) deadline s
    _ -> connSendMany (outletConnection o) deadline strings

-- | Send whole messages from any thread, without waiting and without an exception.
post :: Outlet -> [ByteString] -> IO ()
post _ [] = pure ()
post o strings = join . atomicModifyIORef' (outletPending o) $ \(Pending n waiting sending) ->
  let n' = n + sum (map B.length strings)
   in if n' > pendingLimit
        then (Pending n waiting sending, connAbort (outletConnection o))
        else (Pending n' (reverse strings ++ waiting) True, if sending then pure () else void (forkIO (drain o)))

-- | Send what waits until nothing does. If that fails the connection is at its end.
drain :: Outlet -> IO ()
drain o = do
  t <- myThreadId
  labelThread t "weft openflow sender"
  go `catch` failed
  where
    go = do
      waiting <- atomicModifyIORef' (outletPending o) $ \(Pending _ waiting _) ->
        (Pending 0 [] (not (null waiting)), waiting)
      unless (null waiting) (sendHere o (reverse waiting) >> go)
    failed :: SomeException -> IO ()
    failed _ = connAbort (outletConnection o)

-- Buffers -------------------------------------------------------------------------------

-- | Messages one behind the other, and how many of what there were. Of one thread; nothing is allocated for a message.
data Out = Out
  { -- | How much of the buffer is used, its size, then the counts.
    outCells :: !AtomicWords,
    outBuffer :: !(IORef (ForeignPtr Word8)),
    -- | Full ones before it, the last one first.
    outFull :: !(IORef [ByteString])
  }

-- | What is counted while messages are handled.
data Count = CountPacket | CountReply | CountFault
  deriving (Enum)

cellUsed, cellSize, cellCounts :: Int
cellUsed = 0
cellSize = 1
cellCounts = 2

-- | Room for that many bytes, to begin with.
newOut :: Int -> IO Out
newOut size = do
  cells <- newAtomicWords 5
  pokeWord cells cellUsed 0
  pokeWord cells cellSize size
  mapM_ (\i -> pokeWord cells i 0) [cellCounts .. 4]
  Out cells <$> (B.mallocByteString size >>= newIORef) <*> newIORef []

-- | One more.
count :: Out -> Count -> IO ()
count o what = peekWord (outCells o) i >>= pokeWord (outCells o) i . (+ 1)
  where
    i = cellCounts + fromEnum what
{-# INLINE count #-}

-- | How many there were.
counted :: Out -> Count -> IO Int
counted o what = peekWord (outCells o) (cellCounts + fromEnum what)

-- | Append a message. 'False': the version has no encoding for it, and nothing was appended.
writeMessage :: Out -> Version -> Xid -> Message -> IO Bool
writeMessage o version xid message = case message of
  FlowModMessage f | n > 0 -> True <$ append o n (pokeUsualFlow version xid f n)
    where
      n = usualFlowSize version f
  _ -> writePut o (putMessage version xid message)

-- | Append what was made with 'putMessage'.
writePut :: Out -> Put -> IO Bool
writePut o message = case putSize message of
  Nothing -> pure False
  Just n -> True <$ append o n (pokePut message)

-- | Append that many bytes.
append :: Out -> Int -> (Ptr Word8 -> IO ()) -> IO ()
append o n write = do
  used <- peekWord (outCells o) cellUsed
  size <- peekWord (outCells o) cellSize
  at <- if used + n <= size then pure used else 0 <$ anotherBuffer o n
  p <- readIORef (outBuffer o)
  unsafeWithForeignPtr p (\start -> write (start `plusPtr` at))
  pokeWord (outCells o) cellUsed (at + n)
{-# INLINE append #-}

-- | Begin a buffer with room for that many bytes.
anotherBuffer :: Out -> Int -> IO ()
anotherBuffer o n = do
  used <- peekWord (outCells o) cellUsed
  p <- readIORef (outBuffer o)
  modifyIORef' (outFull o) (B.fromForeignPtr p 0 used :)
  B.mallocByteString size >>= writeIORef (outBuffer o)
  pokeWord (outCells o) cellSize size
  pokeWord (outCells o) cellUsed 0
  where
    size = max 65536 n

-- | What was written. Nothing is written afterwards.
finishOut :: Out -> IO [ByteString]
finishOut o = do
  used <- peekWord (outCells o) cellUsed
  p <- readIORef (outBuffer o)
  full <- readIORef (outFull o)
  pure (reverse ([B.fromForeignPtr p 0 used | used > 0] ++ filter (not . B.null) full))
