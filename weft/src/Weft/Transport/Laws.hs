{-# LANGUAGE OverloadedStrings #-}

-- |
-- The laws of 'Connection' and 'Transport', as actions for the tests of an implementation. Each
-- action makes connections, uses them, and throws a 'Violation' if a law does not hold. They
-- fork threads and take from milliseconds to a second each.
--
-- @since 0.1.0
module Weft.Transport.Laws
  ( Law (..),
    Implementation (..),
    Violation (..),
    connectionLaws,
    networkLaws,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (fromForeignPtr)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.IORef
import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.C.Error (eADDRINUSE, eBADF, eCONNREFUSED, eINVAL)
import Foreign.ForeignPtr (mallocForeignPtrBytes, withForeignPtr)
import Foreign.Marshal.Utils (fillBytes)
import Foreign.Ptr (castPtr)
import Network.Socket (SockAddr)
import System.IO.Error (isEOFError)
import Weft.Core.Time (microseconds, milliseconds, seconds)
import Weft.Sys (now)
import Weft.Transport
import Weft.Transport.Laws.Check

-- | The laws of connections.
connectionLaws :: [Law Implementation]
connectionLaws =
  [ Law "bytes arrive in order, however they are sent" inOrder,
    Law "a receive returns at most what was asked for" atMost,
    Law "strings and part of a file arrive in order" files,
    Law "a file that ends early is an end-of-file error" shortFile,
    Law "many sends of one byte arrive" oneByOne,
    Law "memory that was sent may be written to, and strings unless the connection keeps them" reused,
    Law "both directions carry at the same time" duplex,
    Law "the end of the stream follows the last byte, again and again" endOfStream,
    Law "one direction goes on when the other has ended" halfClose,
    Law "after the end of sending nothing can be sent" sendAfterEnd,
    Law "a close wakes the thread that receives" (endsReceive connClose),
    Law "a close wakes the thread that sends" (endsSend connClose),
    Law "an abort wakes the thread that receives" (endsReceive connAbort),
    Law "an abort wakes the thread that sends" (endsSend connAbort),
    Law "an abort wakes a peer that receives" abortWakesReceiver,
    Law "an abort wakes a peer that sends" abortWakesSender,
    Law "a close delivers what was sent" closeDelivers,
    Law "a graceful close delivers although the peer's bytes were not received" gracefully,
    Law "a graceful close that is interrupted closes" gracefullyInterrupted,
    Law "closing and aborting twice is nothing" twice,
    Law "a closed connection fails with EBADF" closed,
    Law "sending ends when the peer has closed" peerClosed,
    Law "a peer that does not receive holds the sender back" backPressure,
    Law "a deadline is not early, and the error is a timeout" deadlines,
    Law "a deadline that has passed still receives what is there" passed,
    Law "deadlines lose nothing" deadlinesLoseNothing,
    Law "interruptions lose nothing" interruptionsLoseNothing,
    Law "the arrived part of an unfinished send is its beginning" partial,
    Law "a wait for the peer's end takes no bytes, and does not end while the peer may send" awaitsPeer,
    Law "a connection with something to receive does not stay quiet" staysQuiet
  ]

-- Bytes ------------------------------------------------------------------------------

inOrder :: Implementation -> IO ()
inOrder implementation = forM_ [1 .. 3] $ \seed -> bounded implementation $ \a b -> do
  let sizes = take 60 (map (`mod` 9000) (numbers seed))
      sent = sample (sum sizes)
  sending <- task $ do
    forM_ (zip3 (numbers (seed + 7)) (scanl (+) 0 sizes) sizes) $ \(choice, from, size) -> do
      let piece = B.take size (B.drop from sent)
      case choice `mod` 3 of
        0 -> connSendBytes a noDeadline piece
        1 -> connSendMany a noDeadline [B.take 3 piece, B.empty, B.drop 3 piece]
        _ -> B.unsafeUseAsCStringLen piece (\(p, n) -> connSend a noDeadline (castPtr p) n)
    connShutdownSend a noDeadline
  got <- receiveAll (map ((+ 1) . (`mod` 5000)) (numbers (seed + 3))) b
  finished sending
  same "bytes" sent got

atMost :: Implementation -> IO ()
atMost implementation = bounded implementation $ \a b -> do
  sending <- task (connSendMany a noDeadline (replicate 50 (sample 1000)))
  let go left = when (left > 0) $ do
        bytes <- connReceive b noDeadline 7
        unless (B.length bytes <= 7 && not (B.null bytes)) (violated ("received " <> show (B.length bytes)))
        go (left - B.length bytes)
  go 50000
  finished sending
  failsWith eINVAL "receiving nothing" (connReceive b noDeadline 0)
  failsWith eINVAL "receiving less than nothing" (connReceive b noDeadline (-1))

files :: Implementation -> IO ()
files implementation = forM_ [(0, 0), (5, 1), (100, 199900), (3, 65536), (70000, 65537)] $ \(from, size) ->
  bounded implementation $ \a b -> do
    let (fd, contents) = implementationFile implementation
        part = B.take (fromIntegral size) (B.drop (fromIntegral from) contents)
    sending <- task $ do
      connSendFile a noDeadline ["head", B.empty, ": "] (FileRange fd from size)
      connSendFile a noDeadline [] (FileRange fd from size)
      connSendBytes a noDeadline "tail"
      connShutdownSend a noDeadline
    got <- receiveAll (repeat 20000) b
    finished sending
    same "head and file" (B.concat ["head: ", part, part, "tail"]) got

shortFile :: Implementation -> IO ()
shortFile implementation = bounded implementation $ \a b -> do
  let (fd, contents) = implementationFile implementation
      size = fromIntegral (B.length contents) :: Int64
  sending <- task (try (connSendFile a noDeadline [] (FileRange fd (size - 10) 20)))
  got <- receiveExactly b 10
  same "what there is of the file" (B.drop (B.length contents - 10) contents) got
  r <- finished sending
  case r of
    Left e | isEOFError e -> pure ()
    Left e -> violated ("a file that ended early: " <> show e)
    Right () -> violated "a file that ended early was sent"

oneByOne :: Implementation -> IO ()
oneByOne implementation = bounded implementation $ \a b -> do
  let sent = sample 5000
  sending <- task (mapM_ (connSendBytes a noDeadline . B.singleton) (B.unpack sent) >> connShutdownSend a noDeadline)
  got <- receiveAll (repeat 100) b
  finished sending
  same "single bytes" sent got

reused :: Implementation -> IO ()
reused implementation = bounded implementation $ \a b -> do
  let size = max 1 (min 3000 (implementationBound implementation `div` 8))
      (fd, contents) = implementationFile implementation
      first = B.replicate size 1
      part = B.take 10 contents
  memory <- mallocForeignPtrBytes size
  let view = B.fromForeignPtr memory 0 size
      fill byte = withForeignPtr memory (\p -> fillBytes p (byte :: Word8) size)
      sendView act = fill 1 >> void (act :: IO ()) >> fill 2
  sending <- task $ do
    sendView (withForeignPtr memory (\p -> connSend a noDeadline p size))
    sendView (connSendBytes a noDeadline view)
    unless (connKeepsStrings a) $ do
      sendView (connSendMany a noDeadline [view, view])
      sendView (connSendFile a noDeadline [view] (FileRange fd 0 10))
    connShutdownSend a noDeadline
  -- What can be sent without a peer that receives, has been.
  threadDelay 20000
  got <- receiveAll (repeat 1000) b
  finished sending
  same "memory that was written to after it was sent" (B.concat ([first, first] <> (if connKeepsStrings a then [] else [first, first, first, part]))) got

duplex :: Implementation -> IO ()
duplex implementation = bounded implementation $ \a b -> do
  let sent = sample 500000
      send c = task (connSendBytes c noDeadline sent >> connShutdownSend c noDeadline)
  sending <- mapM send [a, b]
  receiving <- mapM (task . receiveAll (repeat 30000)) [a, b]
  mapM_ finished sending
  mapM_ (finished >=> same "two directions" sent) receiving

-- Ends -------------------------------------------------------------------------------

endOfStream :: Implementation -> IO ()
endOfStream implementation = bounded implementation $ \a b -> do
  connSendBytes a noDeadline "last words"
  connShutdownSend a noDeadline
  connShutdownSend a noDeadline
  got <- receiveAll (repeat 4) b
  same "last words" "last words" got
  replicateM_ 3 (connReceive b noDeadline 10 >>= same "after the end" B.empty)

halfClose :: Implementation -> IO ()
halfClose implementation = bounded implementation $ \a b -> do
  connShutdownSend a noDeadline
  connReceive b noDeadline 10 >>= same "the end" B.empty
  let sent = sample 300000
  sending <- task (connSendBytes b noDeadline sent >> connShutdownSend b noDeadline)
  got <- receiveAll (repeat 10000) a
  finished sending
  same "the other direction" sent got

sendAfterEnd :: Implementation -> IO ()
sendAfterEnd implementation = bounded implementation $ \a _ -> do
  connShutdownSend a noDeadline
  fails "sending after the end" (connSendBytes a noDeadline "more")

endsReceive :: (Connection -> IO ()) -> Implementation -> IO ()
endsReceive end implementation = bounded implementation $ \a _ -> do
  receiving <- task (try (connReceive a noDeadline 10))
  threadDelay 20000
  end a
  r <- finished receiving
  expectErrno eBADF "a receive that was under way" r

endsSend :: (Connection -> IO ()) -> Implementation -> IO ()
endsSend end implementation = bounded implementation $ \a _ -> do
  sending <- task (try (forever (connSendBytes a noDeadline (sample 50000))))
  threadDelay 50000
  end a
  r <- finished sending
  expectErrno eBADF "a send that was under way" (void r)

abortWakesReceiver :: Implementation -> IO ()
abortWakesReceiver implementation = bounded implementation $ \a b -> do
  receiving <- task (try (connReceive b noDeadline 10))
  threadDelay 20000
  connAbort a
  r <- finished receiving
  case r of
    Left e -> const (pure ()) (e :: IOException)
    Right bytes -> same "what comes after an abort" B.empty bytes

abortWakesSender :: Implementation -> IO ()
abortWakesSender implementation = bounded implementation $ \a b -> do
  sending <- task (try (forever (connSendBytes b noDeadline (sample 50000))))
  threadDelay 50000
  connAbort a
  r <- finished sending
  case r of
    Left e -> const (pure ()) (e :: IOException)
    Right () -> violated "sending to a peer that aborted"

closeDelivers :: Implementation -> IO ()
closeDelivers implementation = bounded implementation $ \a b -> do
  let sent = sample (min 20000 (implementationBound implementation))
  sending <- task (connSendBytes a noDeadline sent >> connShutdownSend a noDeadline >> connClose a)
  finished sending
  got <- receiveAll (repeat 3000) b
  same "what was sent before closing" sent got

gracefully :: Implementation -> IO ()
gracefully implementation = bounded implementation $ \a b -> do
  writing <- task (connSendBytes b noDeadline (sample 100000))
  connSendBytes a noDeadline "an answer"
  ending <- task (connCloseGracefully (seconds 10) 1000000 a)
  finished writing
  got <- receiveAll (repeat 100) b
  same "the answer" "an answer" got
  connClose b
  finished ending

gracefullyInterrupted :: Implementation -> IO ()
gracefullyInterrupted implementation = bounded implementation $ \a _ -> do
  ending <- task (connCloseGracefully (seconds 3600) maxBound a)
  -- The peer must not receive before the interruption: a TLS library then ends its own direction too, and the close
  -- with it.
  untilBlocked ending
  throwTo (taskThread ending) Interrupted
  r <- within "the interrupted thread" (readMVar (taskResult ending))
  case r of
    Left e | Just Interrupted <- fromException e -> failsWith eBADF "receiving" (connReceive a noDeadline 1)
    _ -> violated "the graceful close was not interrupted"

twice :: Implementation -> IO ()
twice implementation = bounded implementation $ \a b -> do
  connClose a >> connClose a >> connAbort a
  connAbort b >> connAbort b >> connClose b

closed :: Implementation -> IO ()
closed implementation = bounded implementation $ \a _ -> do
  connClose a
  failsWith eBADF "receiving" (connReceive a noDeadline 1)
  failsWith eBADF "sending" (connSendBytes a noDeadline "x")
  failsWith eBADF "sending strings" (connSendMany a noDeadline ["x"])
  failsWith eBADF "sending a file" (connSendFile a noDeadline [] (FileRange (fst (implementationFile implementation)) 0 10))
  fails "ending" (connShutdownSend a noDeadline)

peerClosed :: Implementation -> IO ()
peerClosed implementation = bounded implementation $ \a b -> do
  connClose a
  sending <- task (try (forever (connSendBytes b noDeadline (sample 50000))))
  r <- finished sending
  case r of
    Left e -> const (pure ()) (e :: IOException)
    Right () -> violated "sending to a peer that has closed"

-- Waiting ----------------------------------------------------------------------------

backPressure :: Implementation -> IO ()
backPressure implementation = bounded implementation $ \a _ -> do
  sent <- newIORef 0
  let piece = sample (max 1 (min 16384 (implementationBound implementation `div` 4)))
      go = do
        deadline <- soon (milliseconds 100)
        r <- try (connSendBytes a deadline piece)
        case r of
          Left e
            | isTimeout e -> pure ()
            | otherwise -> violated ("a sender that is held back: " <> show e)
          Right () -> do
            total <- atomicModifyIORef' sent (\n -> (n + B.length piece, n + B.length piece))
            when (total > implementationBound implementation) (violated (show total <> " bytes were taken for a peer that receives nothing"))
            go
  go

deadlines :: Implementation -> IO ()
deadlines implementation = bounded implementation $ \a b -> do
  deadline <- soon (milliseconds 60)
  r <- try (connReceive b deadline 10)
  t <- now
  case r of
    Left e
      | not (isTimeout e) -> violated ("a deadline: " <> show e)
      | t < deadline -> violated "a deadline was early"
      | otherwise -> pure ()
    Right bytes -> violated ("a deadline: " <> show bytes)
  connSendBytes a noDeadline "later"
  receiveExactly b 5 >>= same "after a deadline" "later"

passed :: Implementation -> IO ()
passed implementation = bounded implementation $ \a b -> do
  connSendBytes a noDeadline "early"
  eventuallyThere b
  where
    -- The bytes may take a moment to come.
    eventuallyThere b = do
      threadDelay 20000
      deadline <- now
      r <- try (connReceive b deadline 5)
      case r of
        Right bytes -> same "what was there" "early" bytes
        Left e
          | isTimeout e -> violated "what was there was not received after the deadline"
          | otherwise -> violated (show e)

deadlinesLoseNothing :: Implementation -> IO ()
deadlinesLoseNothing implementation = bounded implementation $ \a b -> do
  let sent = sample 800
  sending <- task $ do
    forM_ (zip (B.unpack sent) (numbers 5)) $ \(byte, n) -> do
      connSendBytes a noDeadline (B.singleton byte)
      when (n `mod` 4 == 0) (threadDelay (n `mod` 300))
    connShutdownSend a noDeadline
  let go acc (n : ns) = do
        deadline <- soon (microseconds (n `mod` 200))
        r <- try (connReceive b deadline 3)
        case r of
          Left e
            | isTimeout e -> go acc ns
            | otherwise -> violated (show e)
          Right bytes
            | B.null bytes -> pure (B.concat (reverse acc))
            | otherwise -> go (bytes : acc) ns
      go _ [] = violated "no more numbers"
  got <- go [] (numbers 11)
  finished sending
  same "what came between deadlines" sent got

-- | A receive can be interrupted only while it waits; it has taken no bytes then.
interruptionsLoseNothing :: Implementation -> IO ()
interruptionsLoseNothing implementation = bounded implementation $ \a b -> do
  let sent = sample 1500
  got <- newIORef []
  receiving <- taskMasked $ do
    let go = do
          r <- try (connReceive b noDeadline 3)
          case r of
            Left Interrupted -> go
            Right bytes
              | B.null bytes -> pure ()
              | otherwise -> modifyIORef' got (bytes :) >> go
    go
  interrupting <- task . forM_ (take 800 (numbers 3)) $ \n -> do
    over <- isDone receiving
    unless over (throwTo (taskThread receiving) Interrupted)
    when (n `mod` 3 == 0) (threadDelay (n `mod` 100))
  forM_ (zip (B.unpack sent) (numbers 5)) $ \(byte, n) -> do
    connSendBytes a noDeadline (B.singleton byte)
    when (n `mod` 4 == 0) (threadDelay (n `mod` 100))
  finished interrupting
  connShutdownSend a noDeadline
  finished receiving
  readIORef got >>= same "what came between interruptions" sent . B.concat . reverse

partial :: Implementation -> IO ()
partial implementation = bounded implementation $ \a b -> do
  let sent = sample (2 * implementationBound implementation)
  deadline <- soon (milliseconds 100)
  r <- try (connSendBytes a deadline sent)
  case r of
    Left e | isTimeout e -> pure ()
    Left e -> violated ("a send that could not end: " <> show e)
    Right () -> violated "more was taken than the bound"
  connClose a
  let go acc = do
        next <- try (connReceive b noDeadline 50000)
        case next of
          Right bytes | not (B.null bytes) -> go (bytes : acc)
          Left e -> B.concat (reverse acc) <$ const (pure ()) (e :: IOException)
          _ -> pure (B.concat (reverse acc))
  got <- go []
  unless (got `B.isPrefixOf` sent) (violated "what arrived is not the beginning")

-- Networks ---------------------------------------------------------------------------

-- | The laws of a network. It is given with an address whose port is zero, so that it chooses one.
networkLaws :: [Law (Transport, SockAddr)]
networkLaws =
  [ Law "a connection joins the one who connects and the one who accepts" $ \(net, address) -> do
      l <- transportListen net address
      (`finally` listenerClose l) $ do
        c <- transportConnect net noDeadline (listenerAddress l)
        s <- listenerAccept l
        (`finally` (connClose c >> connClose s)) $ do
          connSendBytes c noDeadline "hello"
          receiveExactly s 5 >>= same "to the server" "hello"
          connSendBytes s noDeadline "welcome"
          receiveExactly c 7 >>= same "to the client" "welcome"
          local <- connLocal c
          unless (local == connPeer s) (violated ("addresses: " <> show (local, connPeer s)))
          unless (connPeer c == listenerAddress l) (violated "the server's address"),
    Law "nobody listens: refused" $ \(net, address) -> do
      l <- transportListen net address
      listenerClose l
      failsWith eCONNREFUSED "connecting" (transportConnect net noDeadline (listenerAddress l)),
    Law "an address is listened at once" $ \(net, address) -> do
      l <- transportListen net address
      failsWith eADDRINUSE "listening again" (transportListen net (listenerAddress l)) `finally` listenerClose l,
    Law "closing a listener wakes who accepts, and connections stay" $ \(net, address) -> do
      l <- transportListen net address
      c <- transportConnect net noDeadline (listenerAddress l)
      s <- listenerAccept l
      accepting <- mapM (const (task (void <$> try (listenerAccept l)))) [1 .. 3 :: Int]
      threadDelay 20000
      listenerClose l >> listenerClose l
      forM_ accepting (finished >=> expectErrno eBADF "accepting")
      connSendBytes c noDeadline "still here"
      receiveExactly s 10 >>= same "over the connection" "still here"
      connClose c >> connClose s,
    Law "an accept that is interrupted loses no connection" $ \(net, address) -> do
      l <- transportListen net address
      (`finally` listenerClose l) . forM_ [1 .. 20 :: Int] $ \_ -> do
        accepting <- taskMasked (listenerAccept l)
        threadDelay 500
        interrupting <- task (killThread (taskThread accepting))
        c <- transportConnect net noDeadline (listenerAddress l)
        finished interrupting
        r <- readMVar (taskResult accepting)
        s <- either (const (within "accepting" (listenerAccept l))) pure r
        connClose c >> connClose s
  ]

awaitsPeer :: Implementation -> IO ()
awaitsPeer implementation = bounded implementation $ \a b -> do
  waiting <- mapM (task . connAwaitPeer b) [PeerFinished, PeerGone]
  connAwaitPeer b PeerOpen
  connSendBytes a noDeadline "early"
  threadDelay 20000
  none "a peer that may send" =<< mapM isDone waiting
  receiveExactly b 5 >>= same "what came meanwhile" "early"
  connSendBytes a noDeadline "late"
  connShutdownSend a noDeadline
  threadDelay 20000
  none "a peer that may receive" =<< mapM isDone (drop 1 waiting)
  receiveExactly b 4 >>= same "what came before the end" "late"
  connReceive b noDeadline 1 >>= same "the end" B.empty
  forM_ waiting $ \t -> throwTo (taskThread t) Interrupted
  forM_ waiting $ \t -> within "an interrupted wait" (readMVar (taskResult t))
  where
    none what over = when (or over) (violated ("a wait for the end of " <> what <> " has ended"))

staysQuiet :: Implementation -> IO ()
staysQuiet implementation = bounded implementation $ \a b -> do
  connSendBytes a noDeadline "first"
  receiveExactly b 5 >>= same "the first bytes" "first"
  connSendBytes a noDeadline "second"
  within "until there is something to receive" (untilNot (connIsQuiet b))
  receiveExactly b 6 >>= same "the next bytes" "second"
  connShutdownSend a noDeadline
  within "until the end is there" (untilNot (connIsQuiet b))
  connReceive b noDeadline 1 >>= same "the end" B.empty
  where
    untilNot condition = condition >>= \holds -> when holds (threadDelay 1000 >> untilNot condition)
