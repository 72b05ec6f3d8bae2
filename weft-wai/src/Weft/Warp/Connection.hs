{-# LANGUAGE OverloadedStrings #-}

-- |
-- A connection for Warp that receives and sends on Weft.
module Weft.Warp.Connection
  ( openConnection,
  )
where

import Control.Exception (catch, finally, throwIO)
import Control.Monad (forM_, unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Unsafe as B (unsafeDrop)
import Data.IORef
import Foreign.Ptr (plusPtr)
import GHC.IO.Exception (IOErrorType (..))
import Network.HTTP.Types (Status (..), badRequest400)
import Network.Wai.Handler.Warp (InvalidRequest (ConnectionClosedByPeer))
import Network.Wai.Handler.Warp.Internal (Connection, RecvBuf, Settings (..), Transport)
import System.IO.Error (ioeGetErrorType)
import System.TimeManager (TimeoutThread)
import Weft.Duration
import Weft.Socket
import Weft.Warp.Activity
import Weft.Warp.Compat (newConnection)
import Weft.Warp.FFI (hasUnread)
import Weft.Warp.File (sendFileWith)
import Weft.Warp.Guard
import Weft.Warp.Limits
import Weft.Warp.Options
import Weft.Warp.Patience
import Weft.Warp.Stream
import Weft.Warp.TLS
import Weft.Warp.Wire

-- | Make a connection of a socket, with a TLS handshake if there is to be one, and enter
-- it in the book, under the calling thread.
openConnection :: Settings -> Options -> Book -> Socket -> SockAddr -> IO (Connection, Transport)
openConnection settings options book sock peer = do
  watch <- mapM newWatch (optionLimits options)
  known <- newIORef Nothing
  -- Told before the connection ends, which whoever counts refusals may wait for.
  patience <- newPatience settings ((readIORef known >>= mapM_ givenUp) `finally` close sock)
  forM_ watch (grant patience . limitHeadTime . watchLimits)
  let plain = plainStream sock
      entering stream = do
        activity <- newActivity sock stream watch patience
        activity <$ enter book activity
  -- In the book from the beginning: a handshake that does not end can be shown out, too.
  first <- entering plain
  activity <- maybe (pure first) (\tls -> shakeHands tls refused patience plain >>= entering) (optionTls options)
  writeIORef known (Just activity)
  connection <- newConnection (wire settings book activity)
  pure (connection, streamTransport (activityStream activity))
  where
    refused = optionOnRefused options peer
    newWatch limits = (\guard -> Watch limits guard refused) <$> newIORef newGuard

-- | What is said of a deadline that has passed. Run by the dispatcher.
givenUp :: Activity -> IO ()
givenUp activity = forM_ (activityWatch activity) $ \watch -> do
  phase <- phaseOf activity
  guard <- readIORef (watchGuard watch)
  unless (waiting guard && phase `elem` [Fresh, Idle] && not (begun guard)) $
    watchRefused watch (if begun guard then HeadTooSlow else ClientTooSlow)

-- | TLS within a stream. A handshake that fails is no error of the server's.
shakeHands :: Tls -> (Refusal -> IO ()) -> Patience -> Stream -> IO Stream
shakeHands tls refused patience plain = (within patience go `catch` failed) `catch` tooSlow
  where
    go = do
      first <- streamRecv plain
      if B.null first || looksLikeTls first
        then acceptTls tls first plain
        else do
          streamSend plain (message badRequest400 "This port speaks HTTPS: the address begins with https://\n")
          ioError (userError "no TLS")
    failed :: IOError -> IO Stream
    failed _ = refused HandshakeFailed >> throwIO ConnectionClosedByPeer
    tooSlow :: TimeoutThread -> IO Stream
    tooSlow e = refused HeadTooSlow >> throwIO e

-- | What Warp does with a connection.
wire :: Settings -> Book -> Activity -> Wire
wire settings book activity =
  Wire
    { wireSendAll = sendWhole activity,
      wireSendMany = unlessRefused activity . sent activity . sendGathered activity,
      wireSendFile = \room file offset count hook headers ->
        unlessRefused activity . sent activity $
          sendFileWith (kernel, sendSlices activity) room file offset count (hook >> progress (activityPatience activity)) headers,
      wireRecv = receive book activity,
      wireRecvBuf = fill (activityPatience activity) stream,
      wireClose = closeWell settings book activity,
      wireHttp2 = activityHttp2 activity,
      wireLocal = getSocketName sock
    }
  where
    sock = activitySocket activity
    stream = activityStream activity
    kernel = if streamFile stream then Just sock else Nothing

-- Sending --------------------------------------------------------------------------------

-- | What Warp says to a client that was refused is not sent.
unlessRefused :: Activity -> IO () -> IO ()
unlessRefused activity act = isRefused activity >>= \refused -> unless refused act

-- | Send a head, with a body if it was short, or a part of a body.
sendWhole :: Activity -> ByteString -> IO ()
sendWhole activity bytes = unlessRefused activity $ do
  cork <- readIORef (activityCork activity)
  case cork of
    Open -> whole
    -- Warp uses the memory again.
    Next | B.length bytes <= longestHead -> writeIORef (activityCork activity) (Held (B.copy bytes))
    Next -> writeIORef (activityCork activity) Open >> whole
    Held begin -> do
      let left n
            | n < B.length begin = [B.unsafeDrop n begin, bytes]
            | otherwise = [B.unsafeDrop (n - B.length begin) bytes]
      writeIORef (activityCork activity) Open
      atOnce activity (B.length begin + B.length bytes) (streamSendManyNow stream [begin, bytes]) (sendGathered activity . left)
  where
    stream = activityStream activity
    whole = atOnce activity (B.length bytes) (streamSendNow stream bytes) (\n -> sendSlices activity (B.unsafeDrop n bytes))

-- | Send so many bytes by an attempt, and what it leaves by an action within the client's time. Nearly
-- always the kernel takes all of it; then the deadline is nothing to think of.
atOnce :: Activity -> Int -> IO (Either IOError Int) -> (Int -> IO ()) -> IO ()
atOnce activity size try rest = do
  tried <- try
  case tried of
    Right n
      | n == size -> setPhase activity Answered
      | otherwise -> sent activity (rest n)
    Left e -> vanished e `catch` failing (activityPatience activity)
{-# INLINE atOnce #-}

-- | Send within the client's time.
sent :: Activity -> IO () -> IO ()
sent activity act = sending (activityPatience activity) (act `catch` vanished) >> setPhase activity Answered

sendGathered :: Activity -> [ByteString] -> IO ()
sendGathered activity chunks
  | sum (map B.length chunks) <= slice = streamSendMany (activityStream activity) chunks
  | otherwise = mapM_ (sendSlices activity) chunks

-- | The longest head of a response that is held back.
longestHead :: Int
longestHead = 4096

-- | Send in pieces, each of which gives the client its time anew.
sendSlices :: Activity -> ByteString -> IO ()
sendSlices activity bytes
  | B.length bytes <= slice = send bytes
  | otherwise = do
    send (B.take slice bytes)
    progress (activityPatience activity)
    sendSlices activity (B.drop slice bytes)
  where
    send = streamSend (activityStream activity)

-- | Warp's name for a client that went away while it was being answered.
vanished :: IOError -> IO a
vanished e
  | ioeGetErrorType e == ResourceVanished = throwIO ConnectionClosedByPeer
  | otherwise = throwIO e

-- Receiving ------------------------------------------------------------------------------

-- | What has come, at least a byte; empty at the end of the stream, after the
-- connection was closed, and, in a server that ends, when all is answered.
receive :: Book -> Activity -> IO ByteString
receive book activity = do
  phase <- phaseOf activity
  case phase of
    Answered -> do
      more <- mayReadOn book activity
      refused <- isRefused activity
      if more && not refused then setPhase activity Idle >> newTime >> next else pure B.empty
    _ -> next
  where
    patience = activityPatience activity
    next = maybe unwatched (watched book activity) (activityWatch activity)
    newTime = maybe (grantUsual patience) waits (activityWatch activity)
    -- For a head of which a part has come with the last request there is less.
    waits watch = do
      guard <- readIORef (watchGuard watch)
      grant patience ((if begun guard then limitHeadTime else limitIdle) (watchLimits watch))
    unwatched = do
      lenient <- talksFreely activity
      bytes <- receiverRun (activityReceiver activity)
      refill patience (if lenient then Always else IfMuch) (B.length bytes)
      bytes <$ came activity bytes

-- | Is it no HTTP\/1 that is spoken, so that nobody knows what is to come?
talksFreely :: Activity -> IO Bool
talksFreely activity = do
  http2 <- readIORef (activityHttp2 activity)
  if http2 then pure True else (== OnRaw) <$> holdOf activity

-- | Note what was received for Warp.
came :: Activity -> ByteString -> IO ()
came activity bytes = setPhase activity (if B.null bytes then Ended else Reading)

-- | Receive past a guard: what is in order goes on to Warp, a request's head in one
-- piece.
watched :: Book -> Activity -> Watch -> IO ByteString
watched book activity watch = do
  refused <- isRefused activity
  free <- talksFreely activity
  guard <- readIORef (watchGuard watch)
  if refused then pure B.empty else pass book activity watch (if free then through guard else guard)

-- | Hand on what the guard lets pass, when there is something.
pass :: Book -> Activity -> Watch -> Guard -> IO ByteString
pass book activity watch guard = case step limits guard of
  Deliver bytes after -> do
    writeIORef (watchGuard watch) after
    when (waiting guard) $ do
      grantUsual patience
      lastRequest book activity (limitRequests limits)
    bytes <$ came activity bytes
  Refuse refusal -> B.empty <$ refuse activity watch refusal
  More after -> do
    writeIORef (watchGuard watch) after
    free <- talksFreely activity
    bytes <- receiverRun (activityReceiver activity)
    refill patience (if free then Always else if waiting after then Never else IfMuch) (B.length bytes)
    if B.null bytes
      then bytes <$ came activity bytes
      else do
        -- The first bytes of a head, after which it has its own time.
        before <- requestsOf activity
        when (before > 0 && waiting after && not (begun after)) (grant patience (limitHeadTime limits))
        pass book activity watch (feed bytes after)
  where
    limits = watchLimits watch
    patience = activityPatience activity

-- | Tell a client why its connection is closed.
refuse :: Activity -> Watch -> Refusal -> IO ()
refuse activity watch refusal = do
  watchRefused watch refusal
  forM_ (refusalStatus refusal) $ \status -> do
    setPhase activity Answered
    sending (activityPatience activity) (streamSend (activityStream activity) (message status B.empty) `catch` vanished)
  setRefused activity

-- | A response that ends its connection.
message :: Status -> ByteString -> ByteString
message status more =
  B.concat
    [ "HTTP/1.1 ",
      line,
      "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length: ",
      C.pack (show (B.length text)),
      "\r\n\r\n",
      text
    ]
  where
    line = C.pack (show (statusCode status)) <> " " <> statusMessage status
    text = line <> "\n" <> more

-- | Fill memory; 'False' when the stream ended before.
fill :: Patience -> Stream -> RecvBuf
fill _ _ _ 0 = pure True
fill patience stream p n = do
  got <- sending patience (streamRecvBuf stream p n)
  if got == 0 then pure False else fill patience stream (p `plusPtr` got) (n - got)

-- | Close as the settings say. Where they say \"at once\" and the client has sent
-- something that nobody has read, or the server is ending, the client is given a
-- little time to take the last response, since the kernel would tell it to forget
-- what it has not read yet.
closeWell :: Settings -> Book -> Activity -> IO ()
closeWell settings book activity = do
  phase <- phaseOf activity
  http2 <- readIORef (activityHttp2 activity)
  let linger = if http2 then settingsGracefulCloseTimeout2 settings else settingsGracefulCloseTimeout1 settings
  unless (streamFile stream) (sending (activityPatience activity) (streamBye stream) `catch` given)
  if phase `notElem` [Answered, Probed]
    then close sock
    else
      if linger > 0
        then closeGracefully (milliseconds linger) maxBound sock
        else do
          draining <- isDraining book
          unread <- if draining then pure True else hasUnread sock
          if unread then closeGracefully lingerTime lingerBytes sock else close sock
  where
    stream = activityStream activity
    sock = activitySocket activity
    lingerTime = seconds 2
    lingerBytes = 1048576
    given :: TimeoutThread -> IO ()
    given _ = pure ()
