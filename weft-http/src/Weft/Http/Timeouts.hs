-- |
-- Client timeouts: how long a connection waits for its client. Each connection has one idle timer
-- ("Weft.IdleTimer"), which runs only while the server waits for the client. The application's time
-- does not count. A client has to:
--
-- * send a PROXY header, from the accept, within 'limitHeadTime';
-- * complete a TLS handshake, from then on, within 'limitHeadTime' (the action of 'setOnOpen', which runs before it,
--   does not count);
-- * send a head, from its first byte (the first head: from the accept, or from what is named before) to its last,
--   within 'limitHeadTime';
-- * begin its next request within 'limitIdle';
-- * send each 'settingsSlowlorisSize' bytes of a body within the timeout of the settings, in segments of any size;
-- * take each 'sliceSize' bytes of a response within that timeout; if the transport knows what the client has
--   acknowledged, the client has to acknowledge that many bytes, or 20 KiB a second ("Weft.Http.SendTime");
-- * send or take anything on a raw connection within that timeout;
-- * after the last response, take it and close the connection in time ("Weft.Http.Linger").
--
-- While a client takes what it was answered before, it is not too late with the next request or its body
-- ("Weft.Http.SendTime"). Otherwise its connection is closed. The operation that was waiting for the client throws an
-- 'IOException', and 'timedOut' tells why. On a raw connection the error satisfies 'isTimeout'.
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
    rawReceive,
    rawSend,

    -- * The last response
    linger,
    lingerBroken,
    lingerUnlessTaken,
    hasLingered,

    -- * Outcome
    timedOut,
    shareOfTimeLeft,
    shareOfIdleTimeLeft,
  )
where

import Control.Exception (IOException, bracket_, catch, finally, onException, throwIO)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import GHC.IO.Exception (IOErrorType (TimeExpired), IOException (..))
import Weft.Core.Time (Duration (..), Instant (..))
import Weft.Duration (toSeconds)
import Weft.Http.Limits
import Weft.Http.Linger
import Weft.Http.Parser.Head (Framing (..))
import Weft.Http.SendTime
import Weft.Http.Settings
import Weft.Http.Types
import Weft.Runtime.IdleTimer
import Weft.Sys (WordArray, peekWord, pokeWord)
import Weft.Transport hiding (Instant)

-- | A head has begun, or the connection has: start the time limit of a head.
awaitHead :: Client -> IO ()
awaitHead client = resetFor (clientIdleTimer client) (limitHeadTime (sharedLimits (clientShared client)))
{-# INLINE awaitHead #-}

-- | Start the time limit for the client's next request.
awaitNext :: Client -> IO ()
awaitNext client = resetFor (clientIdleTimer client) (limitIdle (sharedLimits (clientShared client)))
{-# INLINE awaitNext #-}

-- | The head is complete: stop the timer.
headCame :: Client -> IO ()
headCame = pause . clientIdleTimer
{-# INLINE headCame #-}

-- | Receive between requests, at most 'receiveSize' or, after a larger request, enough for a similar one with its body.
receiveHead :: Client -> IO ByteString
receiveHead client = do
  expected <- peekWord (clientCells client) cellExpected
  if expected == 0
    then connReceive (clientConnection client) noDeadline receiveSize
    else do
      bytes <- connReceive (clientConnection client) noDeadline expected
      -- The receive allocates this much memory each time; after a short receive, go back to the usual size.
      when (B.length bytes < receiveSize) (pokeWord (clientCells client) cellExpected 0)
      pure bytes

-- | Remember the size of a request's head and body, since the client's next request is probably similar. If the body is
-- not small, it is then received together with its head, in one call. The receive asks for one byte more than expected,
-- so a result without that byte shows that the kernel has nothing else.
expectLike :: Client -> Int -> Framing -> IO ()
expectLike client headBytes framing = pokeWord (clientCells client) cellExpected $ case framing of
  Sized n | n >= receiveSize && n <= bodyReceiveSize -> headBytes + n + 1
  _ -> 0

-- | A body begins, and its client gets the full time limit. The flag says whether the receive of the head filled its
-- buffer.
beginBody :: Client -> Bool -> IO ()
beginBody client fast = do
  pokeWord (clientCells client) cellBodyBytes 0
  pokeWord (clientCells client) cellBodyTime (timeoutOf client)
  pokeWord (clientCells client) cellBodyFast (if fast then 1 else 0)

timeoutOf :: Client -> Int
timeoutOf client = let Duration ns = sharedTimeout (clientShared client) in fromIntegral ns

-- | Receive part of a body, given how many bytes are left; empty at the end of the stream.
receiveBody :: Client -> Int -> IO ByteString
receiveBody client expected = do
  left <- peekWord cells cellBodyTime
  fast <- peekWord cells cellBodyFast
  -- One byte more than expected: if the result lacks it, the kernel has nothing else.
  let size = if fast /= 0 then max receiveSize (min (bodyReceiveSize - 1) expected + 1) else receiveSize
  notSent cells cellSending
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
    deadline = clientIdleTimer client

-- | The most bytes of one receive: 16 KiB. Within a body it becomes larger after a receive of that many bytes.
receiveSize :: Int
receiveSize = 16384

-- | The most bytes of one receive of a body.
bodyReceiveSize :: Int
bodyReceiveSize = 65536

-- | Run a send, within the client's time limit.
sendWithin :: Client -> IO a -> IO a
sendWithin client = bracket_ begin done
  where
    begin = beginSend (clientCells client) cellSending >> awaiting (clientIdleTimer client) (sharedTimeout (clientShared client))
    done = awaited (clientIdleTimer client) >> endSend (clientCells client) cellSending
{-# INLINE sendWithin #-}

-- | Send the last part of a response. The timer keeps running afterwards, without an effect while the application goes
-- on: the wait for the next head resets it, or 'headCame' stops it.
sendLast :: Client -> IO a -> IO a
sendLast client act = do
  beginSend (clientCells client) cellSending
  resetFor (clientIdleTimer client) (sharedTimeout (clientShared client))
  result <- act
  result <$ allSent (clientCells client) cellSending
{-# INLINE sendLast #-}

-- | Receive on a raw connection.
rawReceive :: Client -> IO a -> IO a
rawReceive client act = orTimeOver client $ do
  notSent (clientCells client) cellSending
  during (clientIdleTimer client) (sharedTimeout (clientShared client)) act

-- | Send on a raw connection.
rawSend :: Client -> IO a -> IO a
rawSend client = orTimeOver client . sendWithin client

-- | When the client's time is over its connection is closed, so that operations on it fail with @EBADF@. The
-- application is told of the timeout instead.
orTimeOver :: Client -> IO a -> IO a
orTimeOver client act =
  act `catch` \e -> do
    late <- timedOut client
    throwIO (if late then timeOver else e)
  where
    timeOver = IOError Nothing TimeExpired "Weft.Http" "the client has neither sent nor taken anything within the timeout" Nothing Nothing

-- | Close a connection after the last response, when the client has taken it, although it may still be sending: end the
-- sending direction, and receive and drop until then ("Weft.Http.Linger"). Clients read the response only when they
-- have sent their whole body, whatever its size, so only time is limited. The bytes of a TLS connection are not
-- decrypted.
--
-- A lingering connection can be ended at any time ('phaseLingering'), as one that waits for a request.
linger :: Client -> IO ()
linger client = lingerAfter client (sendWithin client (connShutdownSend (clientConnection client) noDeadline))

-- | As 'linger', after a response that was broken off: a TLS session does not end, so that the client does not take it
-- for complete (RFC 8446, 6.1).
lingerBroken :: Client -> IO ()
lingerBroken client = lingerAfter client (connShutdownSend (clientBelow client) noDeadline)

-- | As 'linger', if the client has not acknowledged all that was sent; otherwise nothing.
lingerUnlessTaken :: Client -> IO ()
lingerUnlessTaken client = connSendProgress (clientBelow client) >>= mapM_ (\p -> when (sendOutstanding p) (linger client))

lingerAfter :: Client -> IO () -> IO ()
lingerAfter client ending = (ignoring ending >> drop') `finally` (depart client >> connClose (clientConnection client))
  where
    drop' = do
      resetTime
      setPhase client phaseLingering
      untilTaken (sharedTimeout (clientShared client)) resetTime hear (pure False) (clientBelow client)
    -- A shutdown and evictions see that time.
    resetTime = resetFor (clientIdleTimer client) lingerTime
    hear deadline =
      (heardBytes <$> connReceive (clientBelow client) deadline (2 * receiveSize)) `catch` \e -> pure (if isTimeout e then HeardNothing else HeardEnd)
    heardBytes bytes = if B.null bytes then HeardEnd else HeardBytes
    ignoring act = act `catch` \e -> const (pure ()) (e :: IOException)

-- | Whether a lingering connection has had 'drainLinger' since its client has taken everything. Any thread may call it.
hasLingered :: IdleTimer -> IO Bool
hasLingered deadline = (\left -> toSeconds lingerTime - toSeconds left >= toSeconds drainLinger) <$> remaining deadline

-- | Was the connection closed because its client was too slow?
timedOut :: Client -> IO Bool
timedOut = expired . clientIdleTimer

-- | The share of an idle client's time that is left at an instant, from 1 downwards. Any thread may call it.
shareOfTimeLeft :: Limits -> Instant -> WordArray -> IdleTimer -> IO Double
shareOfTimeLeft limits at cells deadline = do
  phase <- peekWord cells cellPhase
  left <- remainingAt at deadline
  let whole
        | phase == phaseIdle = limitIdle limits
        | phase == phaseLingering = lingerTime
        | otherwise = limitHeadTime limits
  pure (toSeconds left / max 0.001 (toSeconds whole))

-- | The share of a client's time that is left at an instant, from 1 downwards, if it has been idle since another.
shareOfIdleTimeLeft :: Limits -> Instant -> Instant -> Double
shareOfIdleTimeLeft limits (Instant at) (Instant since) =
  1 - toSeconds (Duration (at - since)) / max 0.001 (toSeconds (limitIdle limits))
