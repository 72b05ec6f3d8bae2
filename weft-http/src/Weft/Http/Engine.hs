{-# LANGUAGE OverloadedStrings #-}

-- |
-- The HTTP\/1 engine: one loop for each connection, on the calling thread. It receives and parses a request, runs the
-- application, which responds, and continues with the next request. Between requests it holds no buffer.
--
-- The parser determines where a request ends; the loop passes the remaining bytes on to the next request.
module Weft.Http.Engine
  ( serveClient,
    leaveIdle,
    receiveSize,
  )
where

import Control.Exception
import Control.Monad (forM_, unless, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B
import Network.Wai (Application)
import Weft.Core.Time (Instant (..))
import Weft.Http.Body
import Weft.Http.Gather
import Weft.Http.Limits
import Weft.Http.Parser.Head
import Weft.Http.Render (refusalMessage)
import Weft.Http.Request
import Weft.Http.Respond
import Weft.Http.Settings
import Weft.Http.Table (EndIdle (..), stopWaiting)
import Weft.Http.Timeouts
import Weft.Http.Types
import Weft.Sys (peekWord, pokeWord)
import Weft.Transport

-- | Serve a connection to its end; the caller closes it. The string was received already. The last argument
-- takes over connections that begin with the HTTP\/2 preface, if HTTP\/2 is supported. Throws an 'IOError' if the
-- connection fails.
--
-- The loop runs masked, except for the application, so that 'EndIdle' arrives only where the loop waits for bytes,
-- never between receiving a request and 'leaveIdle'. A connection that is told to end while its client sends a request
-- therefore either has not received that request, or answers it.
serveClient :: Client -> Application -> Maybe (ByteString -> IO ()) -> ByteString -> IO ()
serveClient client app http2 have = mask_ $ do
  -- Built once, so that the handler costs nothing per request.
  let receive = bytesOf `catch` handler
      bytesOf = receiveHead client
      {-# NOINLINE bytesOf #-}
      handler = endIdle client
      {-# NOINLINE handler #-}
      loop = Loop client app receive
  awaitHead client
  bytes <- if B.null have then receive else pure have
  maybe (parse loop start bytes) (\serve -> parseFirst loop serve bytes) http2

-- | The parts of a connection's loop: the client, the application, and the action that receives between requests.
data Loop = Loop !Client !Application !(IO ByteString)

-- Between requests -----------------------------------------------------------------------

-- | The connection was told to end: take what its client has sent in the meantime, if anything. If there are too many
-- connections in that case, this one is reset, as if that had not been received. If nothing has come, the client may
-- still be taking its last answer.
endIdle :: Client -> EndIdle -> IO ByteString
endIdle client EndIdle = do
  lastOne client
  bytes <- connReceive (clientConnection client) (Instant 0) receiveSize `catch` nothing
  if B.null bytes
    then B.empty <$ lingerUnlessTaken client
    else (\continues -> if continues then bytes else B.empty) <$> mayContinue client
  where
    nothing :: IOException -> IO ByteString
    nothing _ = pure B.empty

-- | Whether a connection that was told to end may answer what it has received. If not, it is reset.
mayContinue :: Client -> IO Bool
mayContinue client = do
  continues <- sharedContinues (clientShared client) (clientCells client)
  continues <$ unless continues (connAbort (clientConnection client))

-- | The connection was told to end, but its thread continues in order to answer one more request.
lastOne :: Client -> IO ()
lastOne client = setPhase client phaseBusy >> pokeWord (clientCells client) cellFinal 1

-- | Continue after a request.
next :: Loop -> ByteString -> IO ()
next loop@(Loop client _ receive) have
  -- In this order: threads that make room compare the times that are left to idle clients.
  | B.null have = awaitNext client >> setPhase client phaseIdle >> receive >>= parse loop start
  | otherwise = setPhase client phaseIdle >> parse loop start have

-- | A head is complete, or was refused. From now on no other thread ends the connection. Ends it if it was evicted
-- before, and there are too many connections.
leaveIdle :: Client -> IO ()
leaveIdle client = do
  headCame client
  told <- stopWaiting (clientCells client)
  when told $ do
    lastOne client
    continues <- mayContinue client
    unless continues (throwIO EndIdle)

-- Heads ----------------------------------------------------------------------------------

-- | Parse the first head of a connection, which may be the preface of HTTP\/2.
parseFirst :: Loop -> (ByteString -> IO ()) -> ByteString -> IO ()
parseFirst loop@(Loop client _ receive) serve have
  | preface `B.isPrefixOf` have = leaveIdle client >> interruptible (serve have)
  | not (B.null have) && have `B.isPrefixOf` preface = do
    bytes <- receive
    if B.null bytes then pure () else parseFirst loop serve (have <> bytes)
  | otherwise = parse loop start have

-- | RFC 9113, 3.4.
preface :: ByteString
preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

-- | Parse a head, given all or part of its bytes. An empty string means the end of the stream.
parse :: Loop -> Resume -> ByteString -> IO ()
parse loop@(Loop client _ _) resume have
  | B.null have = pure ()
  | otherwise = case resumeHead (limitsOf client) resume have of
    Complete h -> leaveIdle client >> answer loop h (if headEnd h == B.length have then B.empty else B.unsafeDrop (headEnd h) have)
    Incomplete resume' -> do
      -- The time limit of a connection's first head began with the connection.
      before <- peekWord (clientCells client) cellRequests
      when (before > 0) (awaitHead client)
      pokeWord (clientCells client) cellBegun 1
      gathered have >>= partial loop resume'
    Refused refusal -> leaveIdle client >> refuse client refusal
    Preface -> leaveIdle client >> refuse client BadRequest

-- | Receive the rest of a head.
partial :: Loop -> Resume -> Gathered -> IO ()
partial loop@(Loop client _ receive) resume have = do
  bytes <- receive
  if B.null bytes
    then pure ()
    else do
      more <- gather have bytes
      let whole = gatheredBytes more
      case resumeHead (limitsOf client) resume whole of
        Incomplete resume' -> partial loop resume' more
        _ -> do
          pokeWord (clientCells client) cellBegun 0
          parse loop start whole

limitsOf :: Client -> Limits
limitsOf = sharedLimits . clientShared
{-# INLINE limitsOf #-}

-- Requests -------------------------------------------------------------------------------

-- | Run the application for a request; the string is what was received after its head.
answer :: Loop -> Head -> ByteString -> IO ()
answer loop@(Loop client app _) h !rest = do
  let cells = clientCells client
      limit = limitRequests (limitsOf client)
  n <- (+ 1) <$> peekWord cells cellRequests
  pokeWord cells cellRequests n
  openResponse client n
  when (limit > 0 && n >= limit) (pokeWord cells cellFinal 1)
  case headFraming h of
    NoBody -> do
      runApplication app (Exchange client n h Nothing rest (requestOf client h noBody))
      state <- responseState client
      if state == responseKeep then next loop rest else end client (B.null rest && saidLast) state
    framing -> do
      body <- newBody client (isSet flagExpect (headFlags h)) framing (headEnd h + B.length rest >= receiveSize) rest
      runApplication app (Exchange client n h (Just body) B.empty (requestOf client h (readBody body)))
      state <- responseState client
      if state == responseKeep
        then do
          expectLike client (headEnd h) framing
          finishBody body >>= maybe (end client False responseClose) (next loop)
        else end client False state
  where
    -- The client has sent its last request (RFC 9112, 9.6); HTTP/1.0 closes by default (9.3).
    saidLast = isSet flagClose flags || (isSet flagOld flags && not (isSet flagKeepAlive flags))
    flags = headFlags h

noBody :: IO ByteString
noBody = pure B.empty

-- | Run the application for a request. If it returns or throws before it has responded, the client gets a response to
-- an exception.
runApplication :: Application -> Exchange -> IO ()
runApplication app exchange@(Exchange client n h _ _ request) = interruptible ((app request answered >> responded) `catch` failed)
  where
    answered = respond exchange
    {-# NOINLINE answered #-}
    settings = sharedSettings (clientShared client)
    responded = do
      state <- responseState client
      when (state == responseNone) (throwIO NoResponse)
    failed e
      | Just (SomeAsyncException _) <- fromException e = responseState client >>= breakOff >> throwIO e
      | otherwise = do
        state <- responseState client
        late <- timedOut client
        if state /= responseNone
          then breakOff state >> report late e
          else case fromException e of
            Just (BodyInvalid refusal) -> tryClaimResponse client n >>= \ours -> when ours (refuse client refusal)
            Just BodyIncomplete -> void (tryClaimResponse client n)
            Nothing
              | late -> void (tryClaimResponse client n)
              | otherwise -> do
                report late e
                () <$ answered (settingsOnExceptionResponse settings e)
    -- HTTP/1.0: the body ends where the connection ends, so an orderly close would make it look complete (RFC 9112, 8).
    breakOff state = when (state == responseBegun && isSet flagOld (headFlags h)) (connAbort (clientConnection client))
    report late e = if late then pure () else settingsOnException settings (Just request) e

-- Ends -----------------------------------------------------------------------------------

-- | End the connection after a response, which may have been broken off. The flag says that the client sends nothing
-- more. Otherwise it gets some time to take the response: the kernel would reset the connection, and the client would
-- lose the response.
end :: Client -> Bool -> Int -> IO ()
end client silent state
  | state == responseBegun = lingerBroken client
  | silent = when (clientSecure client) farewell
  | otherwise = linger client
  where
    -- RFC 8446, 6.1: without a close_notify alert, a TLS client assumes a truncation.
    farewell = depart client >> sendWithin client (connShutdownSend (clientConnection client) noDeadline)

-- | Tell a client why its connection is closed.
refuse :: Client -> Refusal -> IO ()
refuse client refusal = do
  sharedOnRefused (clientShared client) (clientPeer client) refusal
  forM_ (refusalStatus refusal) $ \status -> do
    message <- refusalMessage (clientShared client) status B.empty
    sendWithin client (connSendBytes (clientConnection client) noDeadline message)
    linger client
