{-# LANGUAGE OverloadedStrings #-}

-- |
-- The flusher of a connection: it takes what applications have handed over, asks the core what to send, and sends it.
-- See "Weft.Http2.Engine".
module Weft.Http2.Flush
  ( flush,
    obey,
    afterwards,
  )
where

import Control.Concurrent (forkIO)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.CaseInsensitive as CI
import Data.Foldable (foldl', foldlM)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (isJust)
import Data.Sequence (ViewL (..), viewl, (<|), (|>))
import GHC.Conc (labelThread)
import Weft.Core.Time (until)
import Weft.Http.Limits (Refusal)
import Weft.Http.Linger
import Weft.Http.SendTime
import Weft.Http2.Core
import Weft.Http2.Crew
import Weft.Http2.Encoding
import Weft.Http2.Engine
import Weft.Http2.Exchange (exchange)
import Weft.Http2.Frame (ErrorCode (..))
import Weft.Http2.Settings
import Weft.Runtime.IdleTimer (during)
import Weft.Sys (addWord, casWord, now, readWord, writeWord)
import qualified Weft.Timer as Timer
import Weft.Transport
import Prelude hiding (until)

-- Actions ----------------------------------------------------------------------------

-- | What remains to be done when the turn is over.
data Later = Run' !Job | Report (IO ()) | End !Refusal !ErrorCode String

-- | By who has the turn: do what the core says, as far as it does not wait. Returns what remains, in reverse order.
obey :: Http2 -> Shared -> [Action] -> IO (Shared, [Later])
obey h shared0 = foldlM one (shared0, [])
  where
    one (shared, later) action = case action of
      Start n found final -> do
        s <- newStream n final
        pure (shared {sharedStreams = IntMap.insert n s (sharedStreams shared)}, Run' (Job (streamRun s) True (exchange h s found final)) : later)
      Deliver n bytes -> (shared, later) <$ on n (\s -> deliver s bytes BodyOpen)
      DeliverEnd n trailers -> (shared, later) <$ on n (\s -> deliver s B.empty (BodyComplete trailers))
      Opened n -> (shared, later) <$ on n (\s -> tryPutMVar (streamOpened s) ())
      Stop n _ -> do
        on n (\s -> cancelRun (streamRun s) >> breakBody s)
        pure (shared {sharedStreams = IntMap.delete n (sharedStreams shared)}, later)
      Refuse _ refusal code why -> pure (shared, Report (refused refusal code why) : later)
      Close refusal code why -> do
        -- Only those that are not answered are in the table.
        forM_ (IntMap.elems (sharedStreams shared)) (\s -> cancelRun (streamRun s) >> breakBody s)
        pure (shared {sharedStreams = IntMap.empty}, End refusal code why : later)
      where
        on n act = mapM_ act (IntMap.lookup n (sharedStreams shared))
    refused = http2OnRefused (http2Settings h) (connPeer (http2Below h))

-- | Do the rest. By who had the turn.
afterwards :: Http2 -> [Later] -> IO ()
afterwards _ [] = pure ()
afterwards h later = do
  addJobs (http2Crew h) (reverse [job | Run' job <- later])
  forM_ (reverse later) $ \what -> case what of
    Run' _ -> pure ()
    Report act -> act
    End refusal code why -> do
      when (code /= NoError) (http2OnRefused (http2Settings h) (connPeer (http2Below h)) refusal code why)
      ending h code

-- | Close the connection when its client has had time to take what was sent ("Weft.Http.Linger"), or abort it after an
-- error. Who receives drops what comes meanwhile. A client that does not take the last frames after an error
-- waits for them in vain after half a second.
ending :: Http2 -> ErrorCode -> IO ()
ending h code = forkIO (lasting `finally` close (http2Below h)) >>= (`labelThread` "weft http/2 end")
  where
    limit = limitFrame (http2Limits (http2Settings h))
    close = if code == NoError then connClose else connAbort
    lasting = do
      void (Timer.within (if code == NoError then limit else Timer.milliseconds 500) (readMVar (http2Sent h)))
      untilTaken limit (pure ()) hear (readIORef (http2Draining h)) (http2Below h)
    -- Who receives has the bytes.
    hear deadline = do
      t <- now
      Timer.sleep (deadline `until` t)
      heard <- readIORef (http2Heard h)
      pure (if heard >= t then HeardBytes else HeardNothing)

-- Flushing ---------------------------------------------------------------------------

-- | Send until there is nothing left. Masked. By one thread at a time, which 'ring' sees to. An exception that somebody
-- throws to the thread is for a request that it has run before. So a turn and a send cannot be interrupted; a send that
-- takes too long is ended by the abort of its connection.
flush :: Http2 -> IO ()
flush h = go `catch` failed
  where
    go = do
      writeWord (http2Flushing h) 0 1
      given <- atomicModifyIORef' (http2Inbox h) ((,) [])
      t <- now
      (outs, over, more, later) <- uninterruptibleMask_ . withTurn h $ \shared0 -> do
        inputs <- concat <$> mapM taken (reverse given)
        let (actions, core1) = stepAll t inputs (sharedCore shared0)
            (frames, more', core) = takeFrames t mostData core1
        -- The bytes first: an action that ends the connection drops what is known of its streams.
        (shared1, outs) <- bytesOf shared0 {sharedCore = core} frames
        (shared2, later) <- obey h shared1 (actions <> more')
        let shared = foldl' abandoned shared2 inputs
        -- What its fields are part of may be large, and the connection idle.
        when (IntMap.null (sharedStreams shared)) (writeIORef (http2LastHead h) NoHead)
        pure (shared, (outs, isEnded core, hasFrames core, later))
      afterwards h later
      unless (null outs) $ do
        uninterruptibleMask_ (encode h outs >>= send h)
        mapM_ sent outs
      if over
        then unless (null outs) (finish >> void (tryPutMVar (http2Sent h) ()))
        else do
          -- Whatever comes after the look above rings.
          seen <- if more && not (null outs) then pure 2 else casWord (http2Flushing h) 0 1 0
          when (seen == 2) go
    finish = do
      deadline <- deadlineIn (Timer.seconds 1)
      connShutdownSend (http2Below h) deadline `catch` \e -> const (pure ()) (e :: IOException)
    -- The rest of what was to be sent is lost.
    failed :: SomeException -> IO ()
    failed _ = connAbort (http2Below h)

-- | What was handed over, as inputs of the core. By who has the turn, in the order in which it was handed over.
taken :: Given -> IO [Input]
taken given = case given of
  Tell input -> pure [input]
  Part s answer hd pieces size end -> do
    goes <- case hd of
      Nothing -> (== answerTaken) <$> readWord (answerWords answer) 0
      Just _ -> (== answerGiven) <$> casWord (answerWords answer) 0 answerGiven answerTaken
    if not goes
      then pure []
      else do
        unless (size == 0) (modifyIORef' (answerPieces answer) (\before -> foldl (|>) before pieces))
        pure (inputs (streamId s) hd size end)
  where
    inputs n (Just fields) size (Just trailers) = [Whole n fields size trailers]
    inputs n hd size end = [Respond n fields | Just fields <- [hd]] <> [Offer n size | size > 0] <> [Finish n trailers | Just trailers <- [end]]

-- | A stream whose response cannot be completed is not answered any more.
abandoned :: Shared -> Input -> Shared
abandoned shared input = case input of
  Abandon n _ -> shared {sharedStreams = IntMap.delete n (sharedStreams shared)}
  _ -> shared

answerGiven, answerTaken :: Int
answerGiven = 0
answerTaken = 1

-- | A frame to send. Data come with their bytes, and with the response to which they belong. The number is 1 if the
-- frame ends the response.
data Out = Out !Frame | Data !StreamId ![ByteString] !Int !Bool !Answer | Last !Frame !Answer

-- | By who has the turn: find the bytes of the frames, and forget the streams that are answered.
bytesOf :: Shared -> [Frame] -> IO (Shared, [Out])
bytesOf shared0 frames = fmap reverse <$> foldlM one (shared0, []) frames
  where
    one (shared, outs) f = case f of
      SendData n size final -> withAnswer n (\_ answer -> (\pieces -> Data n pieces size final answer) <$> takePieces answer size) final
      SendHeaders n _ True -> withAnswer n (\_ answer -> pure (Last f answer)) True
      _ -> pure (shared, Out f : outs)
      where
        withAnswer n make final = case IntMap.lookup n (sharedStreams shared) of
          Nothing -> pure (shared, Out f : outs)
          Just s -> do
            found <- readIORef (streamAnswer s)
            case found of
              Nothing -> pure (shared, Out f : outs)
              Just answer -> do
                out <- make s answer
                when final (answeredRun (streamRun s) >> breakBody s)
                pure (if final then shared {sharedStreams = IntMap.delete n (sharedStreams shared)} else shared, out : outs)

-- | Take that many bytes.
takePieces :: Answer -> Int -> IO [ByteString]
takePieces answer = go
  where
    go 0 = pure []
    go n = do
      pieces <- readIORef (answerPieces answer)
      case viewl pieces of
        EmptyL -> pure []
        piece :< rest
          | B.length piece <= n -> writeIORef (answerPieces answer) rest >> (piece :) <$> go (n - B.length piece)
          | otherwise -> [B.take n piece] <$ writeIORef (answerPieces answer) (B.drop n piece <| rest)

-- | It was sent: tell the application.
sent :: Out -> IO ()
sent out = case out of
  Out _ -> pure ()
  Data _ _ size final answer -> do
    when (size > 0) (void (addWord (answerWords answer) 1 (negate size)))
    over final answer
  Last _ answer -> over True answer
  where
    over final answer = do
      when final (writeWord (answerWords answer) 2 1)
      void (tryPutMVar (answerSent answer) ())
      when final (answerReport answer)

-- Frames as bytes --------------------------------------------------------------------

-- | The bytes of frames, in which a head that is followed by an empty end has it itself.
encode :: Http2 -> [Out] -> IO [ByteString]
encode h outs = case outs of
  [] -> pure []
  Out (SendHeaders n fields False) : Data m _ 0 True _ : rest | n == m -> (<>) <$> with (encodeHeaders n fields True) <*> encode h rest
  Data n pieces size final _ : rest -> ((dataHead n final size : pieces) <>) <$> encode h rest
  Last f _ : rest -> (<>) <$> one f <*> encode h rest
  Out f : rest -> (<>) <$> one f <*> encode h rest
  where
    one f = case f of
      -- A refusal of the core's.
      SendHeaders n fields@((":status", _) : _) True -> do
        more <- http2Fields (http2Settings h)
        with (encodeHeaders n (fields <> [(CI.foldedCase name, value) | (name, value) <- more]) True)
      _ -> with (encodeFrame f)
    with step' = do
      (strings, encoder) <- evaluate . step' =<< readIORef (http2Encoder h)
      writeIORef (http2Encoder h) $! encoder
      pure strings

-- | Send strings. Small ones are joined, unless the transport copies them into its records.
send :: Http2 -> [ByteString] -> IO ()
send h strings = do
  beginSend (http2Sending h) 0
  during (http2Timer h) (limitFrame (http2Limits (http2Settings h))) (connSendMany (http2Below h) noDeadline given)
  endSend (http2Sending h) 0
  where
    given = if isJust (connSecurity (http2Below h)) then strings else joinSmall strings
