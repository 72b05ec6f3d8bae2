-- |
-- The user's calls (RFC 9293, sections 3.10.2 to 3.10.5), as changes of a connection.
--
-- @since 0.1.0
module Weft.Tcp.Core.User
  ( send,
    receive,
    shutdown,
    closeBoth,
    abort,
    choose,
    urgentTo,
  )
where

import Data.ByteString (ByteString)
import Weft.Tcp.Core.Buffer
import Weft.Tcp.Core.Config
import Weft.Tcp.Core.Emit
import Weft.Tcp.Core.State
import Weft.Tcp.Core.Time
import Weft.Tcp.Wire.Segment (Segment)

-- | SEND: queue strings without copying them. Ignored once the sending side is closed. The caller checks first how much
-- fits ('sendSpace').
send :: [ByteString] -> Conn -> Conn
send bytes c
  | finQueued (sendSide c) || isClosed (state c) || state c == TimeWait = c
  | otherwise = modifySend (\s -> s {sndBuffer = foldl (flip append) (sndBuffer s) bytes}) c

isClosed :: State -> Bool
isClosed (Closed _) = True
isClosed _ = False

-- | The data sent so far is urgent (section 3.8.5).
urgentTo :: Conn -> Conn
urgentTo = modifySend (\s -> s {sndUp = bufferEnd (sndBuffer s)})

-- | RECEIVE: take at most the given number of received bytes. The window update is sent when it is worth a segment.
receive :: Env -> Int -> Conn -> (Conn, [ByteString])
receive env n c
  | windowUpdateWorthwhile (config env) c' && open = (modifyReceive (\r -> r {ackNow = True}) c', bytes)
  | otherwise = (c', bytes)
  where
    (bytes, rest) = takeFront n (rcvQueue (receiveSide c))
    c' = modifyReceive (\r -> r {rcvQueue = rest}) c
    open = state c `elem` [Established, FinWait1, FinWait2]

-- | Close the sending side. Receiving continues.
shutdown :: Conn -> Conn
shutdown c
  | finQueued (sendSide c) = c
  | otherwise = case state c of
    SynSent -> c {state = Closed Finished, timers = noTimers}
    -- The FIN waits for ESTABLISHED.
    SynReceived -> fin' SynReceived
    Established -> fin' FinWait1
    CloseWait -> fin' LastAck
    _ -> c
  where
    fin' st = modifySend (\s -> s {finQueued = True}) c {state = st}

-- | CLOSE: close both directions. If there is unread data, or if data arrives later, a reset tells the peer that it was
-- not received by the user (section 3.6.1, SHLD-3).
closeBoth :: Env -> Conn -> (Conn, [Segment])
closeBoth env c
  | unread && isSynchronized (state c) && state c /= TimeWait = abort env c
  | otherwise = (ending (shutdown (modifyReceive (\r -> r {rcvShut = True}) c)), [])
  where
    -- Received data that nobody will read, also behind a gap, where a peer could leave it.
    unread = readable c > 0 || not (isNoHeld (rcvHeld (receiveSide c)))
    ending x
      | stateEndsAt (timers x) /= never = x
      | state x == FinWait2 = endsAfter (finWaitTime (config env)) x
      | isOrphan x = endsAfter (orphanTime (config env)) x
      | otherwise = x
    endsAfter d = modifyTimers (\t -> t {stateEndsAt = now env `after` d})

-- | ABORT: send a reset if the peer may know the connection, and close it at once.
abort :: Env -> Conn -> (Conn, [Segment])
abort env c = (gone, [emitReset env c | tell])
  where
    -- In the RFC's CLOSING and LAST-ACK all data and the FIN have been sent. Here they may still be queued.
    tell = state c `elem` [SynReceived, Established, FinWait1, FinWait2, CloseWait] || (state c `elem` [Closing, LastAck] && queuedToSend c > 0)
    why = case state c of
      Closed w -> w
      TimeWait -> Finished
      _ -> Aborted
    gone =
      c
        { state = Closed why,
          timers = noTimers,
          loss = noLoss,
          sendSide = (sendSide c) {sndBuffer = emptyAt (dataEnd c)},
          receiveSide = (receiveSide c) {rcvQueue = emptyAt (bufferEnd (rcvQueue (receiveSide c))), rcvHeld = noHeld, rcvShut = True, ackNow = False}
        }

-- | Nagle's algorithm, delayed acknowledgments, keep-alives.
choose :: Env -> (Choices -> Choices) -> Conn -> Conn
choose env f c = modifyTimers (\t -> t {keepAliveAt = keep}) c {choices = new}
  where
    new = let n = f (choices c) in n {useKeepAlive = sensible <$> useKeepAlive n}
    sensible (KeepAlive idle interval probes) = KeepAlive (max (millis 1) idle) (max (millis 1) interval) (max 1 probes)
    keep
      | not (isSynchronized (state c)) = never
      | otherwise = maybe never (\k -> now env `after` keepAliveIdle k) (useKeepAlive new)
