{-# LANGUAGE OverloadedStrings #-}

-- |
-- Writes the body of a response into a buffer and sends it: chunked, with a declared length, or delimited by the end of
-- the connection. Used by one thread at a time ("Weft.Http.BodyState").
--
-- A buffer begins with the response's head until the head has been sent. For a chunked body there is a gap after the
-- head for the size line of the following chunk. When the size is known, the head is moved up to that line, so that
-- both are sent by one system call. A writer that has nothing to send holds no buffer.
module Weft.Http.Writer
  ( -- * Framing
    BodyFraming (..),
    LengthMismatch (..),

    -- * Writers
    Writer,
    newWriter,
    adopt,
    writeBuilder,
    writeLast,
    flushWriter,
    finishWriter,
    closeWriter,

    -- * Layout
    sizeGap,
    tailRoom,
  )
where

import Control.Exception (Exception, throwIO)
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (Builder)
import Data.ByteString.Builder.Extra (BufferWriter, Next (..), runBuilder)
import qualified Data.ByteString.Internal as B (fromForeignPtr)
import Data.IORef
import Data.Word (Word8)
import Foreign.Marshal.Utils (moveBytes)
import Foreign.Ptr (Ptr, minusPtr, plusPtr)
import GHC.ForeignPtr (unsafeWithForeignPtr)
import Weft.Http.BodyState
import Weft.Http.Buffer
import Weft.Http.Render
import Weft.Http.Timeouts
import Weft.Http.Types
import Weft.Sys (WordArray, newWordArray, peekWord, pokeWord)
import Weft.Transport

-- | How a response's body is delimited (RFC 9112, 6.3).
data BodyFraming
  = InChunks
  | -- | The declared length.
    Exactly !Int
  | UntilClose

-- | An application's body does not have the length of its @Content-Length@: declared, actual. The connection is
-- aborted.
data LengthMismatch = LengthMismatch !Int !Int
  deriving (Eq, Show)

instance Exception LengthMismatch

-- | The body of a response that is being sent.
data Writer = Writer
  { writerClient :: !Client,
    -- | The number of the request.
    writerRequest :: !Int,
    writerFraming :: !BodyFraming,
    -- | The buffer, if there is one. Written by the thread that responds, like the cells.
    writerBuffer :: !(IORef (Maybe Buffer)),
    -- | The offsets of the end of the head and of the beginning and end of the data; the number of bytes of the body
    -- sent so far; the state ("Weft.Http.BodyState"), which any thread may change; and nonzero once the response is
    -- claimed.
    writerCells :: !WordArray
  }

cellHead, cellFrom, cellTo, cellSent, cellState, cellClaimed :: Int
cellHead = 0
cellFrom = 1
cellTo = 2
cellSent = 3
cellState = 4
cellClaimed = 5

-- | For errors.
name :: String
name = "Weft.Http"

-- | Bytes between a head and its first chunk's data: the longest size line of a buffer.
sizeGap :: Int
sizeGap = 10

-- | Bytes reserved after the data: for the end of a chunk and the last chunk.
tailRoom :: Int
tailRoom = 7

-- | A writer without a buffer.
newWriter :: Client -> Int -> BodyFraming -> IO Writer
newWriter client n framing = Writer client n framing <$> newIORef Nothing <*> newWordArray 6

-- | Give a writer a buffer that begins with a head: the end of the head, the beginning and the end of the data.
adopt :: Writer -> Buffer -> Int -> Int -> Int -> IO ()
adopt w buffer headEnd from to = do
  writeIORef (writerBuffer w) (Just buffer)
  pokeWord (writerCells w) cellHead headEnd
  pokeWord (writerCells w) cellFrom from
  pokeWord (writerCells w) cellTo to

-- | The writer's buffer; takes a new one if it has none.
held :: Writer -> IO Buffer
held w = readIORef (writerBuffer w) >>= maybe taken pure
  where
    taken = do
      buffer <- takeBuffer
      buffer <$ adopt w buffer 0 sizeGap sizeGap

-- | Add to the body. Sends the buffer when it is full, and long strings together with it. This and the functions below
-- throw as 'writing' and 'finishing' do.
writeBuilder :: Writer -> Builder -> IO ()
writeBuilder w = writing name (writerCells w) cellState . continueWriting w False . runBuilder

-- | Add the last part of a builder, which ends the body.
writeLast :: Writer -> BufferWriter -> IO ()
writeLast w writer = finishing name (writerCells w) cellState (continueWriting w True writer >> checkLength w)

-- | Long strings are not copied but sent together with the buffer's contents before and after them, up to
-- 'sliceSize' bytes at once. Until then they are queued in reverse order, along with their total size.
continueWriting :: Writer -> Bool -> BufferWriter -> IO ()
continueWriting w final = go [] 0
  where
    go queue !queued writer = do
      buffer <- held w
      to <- peekWord (writerCells w) cellTo
      (n, next) <- unsafeWithForeignPtr (bufferMemory buffer) (\p -> writer (p `plusPtr` to) (max 0 (bufferSize buffer - tailRoom - to)))
      pokeWord (writerCells w) cellTo (to + n)
      case next of
        Done
          | final || not (null queue) -> send queue final
          | otherwise -> pure ()
        More least more -> do
          send queue False
          let needed = sizeGap + least + tailRoom
          when (needed > standardSize) $ newBuffer needed >>= \larger -> adopt w larger 0 sizeGap sizeGap
          go [] 0 more
        Chunk bytes more
          | B.null bytes -> go queue queued more
          | B.length bytes <= min copyLimit (bufferSize buffer - tailRoom - (to + n)) -> do
            _ <- unsafeWithForeignPtr (bufferMemory buffer) (\p -> putBytes (p `plusPtr` (to + n)) bytes)
            pokeWord (writerCells w) cellTo (to + n + B.length bytes)
            go queue queued more
          | otherwise -> do
            pending <- seal w False
            account w (B.length bytes)
            let queue' = case writerFraming w of
                  InChunks -> "\r\n" : bytes : sizeLine (B.length bytes) : pending : queue
                  _ -> bytes : pending : queue
                queued' = queued + B.length pending + B.length bytes
            at <- peekWord (writerCells w) cellTo
            if queued' < sliceSize && at <= bufferSize buffer - tailRoom
              then go queue' queued' more
              else sendStrings w (reverse queue') >> go [] 0 more
    send queue end = seal w end >>= \bytes -> sendStrings w (reverse (bytes : queue))
    sizeLine n = B.concat [hex n, "\r\n"]
    hex n = B.pack (reverse (digits n))
    digits n = let (q, r) = n `quotRem` 16 in (if r < 10 then 48 + fromIntegral r else 87 + fromIntegral r) : (if q == 0 then [] else digits q)

-- | Strings up to this size are copied.
copyLimit :: Int
copyLimit = 4096

-- | Count bytes of the body before they are sent. Throws if there are more than declared.
account :: Writer -> Int -> IO ()
account w n = do
  sent <- (+ n) <$> peekWord (writerCells w) cellSent
  case writerFraming w of
    Exactly len | sent > len -> throwIO (LengthMismatch len sent)
    _ -> pokeWord (writerCells w) cellSent sent

-- | The response is given up: later operations throw.
closeWriter :: Writer -> IO ()
closeWriter w = closeBody (writerCells w) cellState

-- | Send what has been written so far.
flushWriter :: Writer -> IO ()
flushWriter w = writing name (writerCells w) cellState $ do
  found <- readIORef (writerBuffer w)
  case found of
    Nothing -> pure ()
    Just _ -> seal w False >>= \bytes -> sendStrings w [bytes]

-- | The body is complete: send the rest.
finishWriter :: Writer -> IO ()
finishWriter w = finishing name (writerCells w) cellState $ do
  bytes <- held w *> seal w True
  sendStrings w [bytes]
  checkLength w

-- | Throw unless everything that was declared has been sent.
checkLength :: Writer -> IO ()
checkLength w = do
  sent <- peekWord (writerCells w) cellSent
  case writerFraming w of
    Exactly len | sent /= len -> throwIO (LengthMismatch len sent)
    _ -> pure ()

-- | The bytes added to the buffer since the last seal, with their framing, ready to be sent. The writer keeps the
-- buffer until they are sent; further bytes are written after them.
seal :: Writer -> Bool -> IO ByteString
seal w final = do
  memory <- bufferMemory <$> held w
  headEnd <- peekWord cells cellHead
  from <- peekWord cells cellFrom
  to <- peekWord cells cellTo
  account w (to - from)
  bytes <- unsafeWithForeignPtr memory $ \p -> case writerFraming w of
    InChunks -> do
      start <- if to > from then sizeLine p headEnd from (to - from) else movedHead p headEnd from
      p1 <- if to > from then putBytes (p `plusPtr` to) "\r\n" else pure (p `plusPtr` to)
      end <- if final then putBytes p1 "0\r\n\r\n" else pure p1
      pure (view memory p start end)
    _ -> do
      start <- movedHead p headEnd from
      pure (view memory p start (p `plusPtr` to))
  let end = to + case writerFraming w of InChunks -> tailRoom + sizeGap; _ -> 0
  pokeWord cells cellHead 0
  pokeWord cells cellFrom end
  pokeWord cells cellTo end
  pure bytes
  where
    cells = writerCells w
    view memory p start end = B.fromForeignPtr memory start ((end `minusPtr` p) - start)
    sizeLine :: Ptr Word8 -> Int -> Int -> Int -> IO Int
    sizeLine p headEnd from n = do
      let digits = hexDigits n
          at = from - digits - 2
      _ <- putHex (p `plusPtr` at) digits n >>= \q -> putBytes q "\r\n"
      movedHead p headEnd at
    -- Move the head so that it ends there.
    movedHead :: Ptr Word8 -> Int -> Int -> IO Int
    movedHead p headEnd at
      | headEnd == 0 = pure at
      | headEnd == at = pure 0
      | otherwise = (at - headEnd) <$ moveBytes (p `plusPtr` (at - headEnd)) p headEnd

-- | Send strings, the first of which may be in the buffer, and release the buffer.
sendStrings :: Writer -> [ByteString] -> IO ()
sendStrings w strings = do
  let some = filter (not . B.null) strings
  unless (null some) $ do
    claimed <- peekWord (writerCells w) cellClaimed
    when (claimed == 0) (claimResponse client (writerRequest w) >> pokeWord (writerCells w) cellClaimed 1)
    sendSlices client some
  release w
  where
    client = writerClient w

release :: Writer -> IO ()
release w = do
  found <- readIORef (writerBuffer w)
  writeIORef (writerBuffer w) Nothing
  mapM_ (putSentBuffer (clientConnection (writerClient w))) found

-- | Send strings in one system call, or a long string in slices. The client's time limit restarts with each slice.
sendSlices :: Client -> [ByteString] -> IO ()
sendSlices client strings
  | sum (map B.length strings) <= sliceSize = send strings
  | otherwise = go strings
  where
    send parts = sendWithin client (connSendMany (clientConnection client) noDeadline parts)
    go parts = case takeSlice sliceSize parts of
      (now, []) -> send now
      (now, later) -> send now >> go later
    takeSlice _ [] = ([], [])
    takeSlice room (s : rest)
      | B.length s <= room = let (a, b) = takeSlice (room - B.length s) rest in (s : a, b)
      | otherwise = ([B.take room s], B.drop room s : rest)
