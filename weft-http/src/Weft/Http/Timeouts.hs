-- |
-- Client timeouts: how long a connection waits for its client. Each connection has one deadline
-- ("Weft.IdleTimer"), which runs only while something is awaited of the client; the time that an application takes
-- does not count. What a client has to do in time:
--
-- * send a head, from its first byte (the first head: from the accept) to its last, within 'limitHeadTime';
-- * begin its next request within 'limitIdle';
-- * send each 'settingsSlowlorisSize' bytes of a body within the timeout of the settings, in whatever segments;
-- * take each 'sliceSize' bytes of a response within that timeout; where the transport knows what the client has acknowledged,
--   acknowledge so many, or 20 KiB a second ("Weft.Http.SendTime");
-- * send or take anything on a raw connection within that timeout.
--
-- A client that does not has its connection closed; what was waiting for it throws an 'IOError', and
-- 'timedOut' tells why.
module Weft.Http.Timeouts
  ( -- * Heads
    awaitHead,
    awaitNext,
    headCame,
    receiveHead,
    expectLike,

    -- * Bodies
    beginBody,
    receiveBody,
    receiveSize,

    -- * Responses
    sendWithin,
    sendLast,
    sliceSize,

    -- * Raw connections
    rawWithin,

    -- * Outcome
    timedOut,
    shareOfTimeLeft,
  )
where

import Control.Exception (bracket_, onException)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Weft.Core.Time (Duration (..))
import Weft.Duration (toSeconds)
import Weft.Http.Limits
import Weft.Http.Parser.Head (Framing (..))
import Weft.Http.SendTime
import Weft.Http.Settings
import Weft.Http.Types
import Weft.IdleTimer
import Weft.Sys (AtomicWords, peekWord, pokeWord)
import Weft.Transport

-- | A head has begun, or the connection has.
awaitHead :: Client -> IO ()
awaitHead client = resetFor (clientDeadline client) (limitHeadTime (sharedLimits (clientShared client)))
{-# INLINE awaitHead #-}

-- | The client may begin its next request.
awaitNext :: Client -> IO ()
awaitNext client = resetFor (clientDeadline client) (limitIdle (sharedLimits (clientShared client)))
{-# INLINE awaitNext #-}

-- | The head is complete.
headCame :: Client -> IO ()
headCame = pause . clientDeadline
{-# INLINE headCame #-}

-- | Receive between requests: 'receiveSize', or so much that a request like the last fits into it with its body.
receiveHead :: Client -> IO ByteString
receiveHead client = do
  expected <- peekWord (clientCells client) cellExpected
  if expected == 0
    then connReceive (clientConnection client) noDeadline receiveSize
    else do
      bytes <- connReceive (clientConnection client) noDeadline expected
      -- Memory for so much is taken each time; who sends little gets it once.
      when (B.length bytes < receiveSize) (pokeWord (clientCells client) cellExpected 0)
      pure bytes

-- | A request had a head and a body of such lengths. Its client's next one is likely to be like it: if the body is not small, that is
-- received together with its head, in one call. One byte more than there should be tells that the kernel has nothing else.
expectLike :: Client -> Int -> Framing -> IO ()
expectLike client headBytes framing = pokeWord (clientCells client) cellExpected $ case framing of
  Sized n | n >= receiveSize && n <= bodyReceiveSize -> headBytes + n + 1
  _ -> 0

-- | A body is to come: its client has the whole time. Was as much received with its head as was asked for?
beginBody :: Client -> Bool -> IO ()
beginBody client fast = do
  -- What 'sendLast' has left.
  endSend (clientCells client) cellSending
  pokeWord (clientCells client) cellBodyBytes 0
  pokeWord (clientCells client) cellBodyTime (timeoutOf client)
  pokeWord (clientCells client) cellBodyFast (if fast then 1 else 0)

timeoutOf :: Client -> Int
timeoutOf client = let Duration ns = sharedTimeout (clientShared client) in fromIntegral ns

-- | Receive part of a body, of which so many bytes may come; empty at the end of the stream.
receiveBody :: Client -> Int -> IO ByteString
receiveBody client expected = do
  left <- peekWord cells cellBodyTime
  fast <- peekWord cells cellBodyFast
  -- One byte more than there should be: if it does not come, the kernel has nothing else.
  let size = if fast /= 0 then min bodyReceiveSize (max receiveSize (expected + 1)) else receiveSize
  awaiting deadline (Duration (fromIntegral left))
  bytes <- connReceive (clientConnection client) noDeadline size `onException` awaited deadline
  Duration rest <- remaining deadline
  awaited deadline
  before <- peekWord cells cellBodyBytes
  let count = before + B.length bytes
      enough = count >= settingsSlowlorisSize (sharedSettings (clientShared client))
  pokeWord cells cellBodyBytes (if enough then 0 else count)
  pokeWord cells cellBodyTime (if enough then timeoutOf client else fromIntegral rest)
  pokeWord cells cellBodyFast (if B.length bytes >= receiveSize then 1 else 0)
  pure bytes
  where
    cells = clientCells client
    deadline = clientDeadline client

-- | The most bytes of one receive between bodies, and of a body whose client has sent less than that at once: 16 KiB.
receiveSize :: Int
receiveSize = 16384

-- | The most bytes of a body in one receive.
bodyReceiveSize :: Int
bodyReceiveSize = 65536

-- | Send within the client's time.
sendWithin :: Client -> IO a -> IO a
sendWithin client = bracket_ begin done
  where
    begin = beginSend (clientCells client) cellSending >> awaiting (clientDeadline client) (sharedTimeout (clientShared client))
    done = awaited (clientDeadline client) >> endSend (clientCells client) cellSending
{-# INLINE sendWithin #-}

-- | Send the last part of a response. The deadline goes on running: what follows is the wait for the next head, or
-- the end of the wait by 'headCame'.
sendLast :: Client -> IO a -> IO a
sendLast client act = do
  beginSend (clientCells client) cellSending
  resetFor (clientDeadline client) (sharedTimeout (clientShared client))
  act
{-# INLINE sendLast #-}

-- | Receive on a raw connection.
rawWithin :: Client -> IO a -> IO a
rawWithin client = during (clientDeadline client) (sharedTimeout (clientShared client))

-- | Was the connection closed because its client was too slow?
timedOut :: Client -> IO Bool
timedOut = expired . clientDeadline

-- | How much is left of the time in which an idle client is to send, from 1 downwards. Any thread.
shareOfTimeLeft :: Limits -> AtomicWords -> IdleTimer -> IO Double
shareOfTimeLeft limits cells deadline = do
  phase <- peekWord cells cellPhase
  left <- remaining deadline
  let whole = (if phase == phaseIdle then limitIdle else limitHeadTime) limits
  pure (toSeconds left / max 0.001 (toSeconds whole))
