-- |
-- Buffered reading from a 'Connection' of any kind: lines, a number of bytes, up to a delimiter, by an incremental
-- parser, to the end.
--
-- > reader <- newReader connection
-- > soon <- deadlineIn (seconds 5)
-- > greeting <- readLine reader soon
-- > body <- readExactly reader soon 512
--
-- /No byte is lost./ Bytes leave the reader only with the result of a function. If it throws instead, because its
-- deadline has passed, a limit is exceeded, the stream ends too early or an asynchronous exception interrupts it, the
-- reader still has all of them, and the next function begins where that one began. (An asynchronous exception may also
-- come as a function returns, and take its result away. A thread that goes on after such exceptions masks them; all
-- functions are interruptible while they wait. A deadline does not have this problem.)
--
-- /Memory is bounded./ What a peer sends makes a reader hold at most its limit, or the number given to 'readExactly' or
-- 'readToEnd' if that is more, and what one receive brings (64 KiB at most); twice that while strings are joined. It
-- does not matter how small the pieces are in which they come. A reader without bytes holds no buffer.
--
-- Results may share memory with what was received together with them: use 'Data.ByteString.copy' for a small string
-- that is kept for long.
--
-- Deadlines are those of "Weft.Transport": if one passes, the error satisfies 'Weft.Transport.isTimeout', and what has
-- arrived in time is still returned if it is enough. Other errors of 'connReceive' are passed on. One thread at a time
-- may use a reader. Others may use the connection to send, and to close it; one that receives from it directly takes
-- bytes that the reader expects.
--
-- @since 0.1.0
module Weft.Reader
  ( -- * Readers
    Reader,
    newReader,
    newReaderWith,
    defaultReaderLimit,
    readerConnection,

    -- * Reading
    readSome,
    readExactly,
    readLine,
    readUntil,
    readToEnd,
    LimitExceeded (..),

    -- * Parsers
    readParsed,
    Step (..),

    -- * What has been received already
    readerHeld,
    putBack,
    leaveReader,
  )
where

import Control.Exception (Exception, mask_, throwIO)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.Foldable (foldl')
import Data.IORef
import Foreign.C.Error (eINVAL)
import GHC.IO.Exception (IOErrorType (EOF))
import System.IO.Error (mkIOError)
import Weft.Deadline (Instant)
import Weft.Reader.Pieces (Pieces)
import qualified Weft.Reader.Pieces as Pieces
import Weft.Socket.Types (socketError)
import Weft.Transport.Types

-- | A connection, and the bytes that were received from it and not yet read.
data Reader = Reader
  { -- | The connection that it reads from.
    readerConnection :: !Connection,
    -- | The longest line, part or parsed value, in bytes.
    readerLimit :: !Int,
    -- | Written by the thread that reads.
    readerPieces :: !(IORef Pieces)
  }

-- | A function would have to hold more than this many bytes. They are still there.
newtype LimitExceeded = LimitExceeded Int
  deriving (Eq, Show)

instance Exception LimitExceeded

-- | A reader with 'defaultReaderLimit'. It need not be closed; the connection is the caller's.
newReader :: Connection -> IO Reader
newReader = newReaderWith defaultReaderLimit

-- | A reader that holds at most this many bytes to find the end of a line, of a part or of a parsed value.
newReaderWith :: Int -> Connection -> IO Reader
newReaderWith limit c = Reader c (max 0 limit) <$> newIORef Pieces.empty

-- | 64 KiB.
defaultReaderLimit :: Int
defaultReaderLimit = 65536

-- Receiving --------------------------------------------------------------------------

-- | Receive once, and keep the bytes. They are also returned; empty at the end of the stream. Masked, so that no
-- exception comes between the two.
fill :: Reader -> Instant -> Int -> IO ByteString
fill r deadline n = mask_ $ do
  bytes <- connReceive (readerConnection r) deadline n
  bytes <$ modifyIORef' (readerPieces r) (Pieces.append bytes)

-- | How many bytes a receive asks for.
usual, largest :: Int
usual = 32768
largest = 65536

-- | Take this many bytes that are there.
consume :: Reader -> Int -> IO ByteString
consume r n = do
  (taken, rest) <- Pieces.split n <$> readIORef (readerPieces r)
  taken <$ writeIORef (readerPieces r) rest

-- | All bytes that are there, in one string. They stay.
view :: Reader -> IO ByteString
view r = do
  modifyIORef' (readerPieces r) Pieces.flatten
  Pieces.whole <$> readIORef (readerPieces r)

endOfFile :: String -> IO a
endOfFile name = ioError (mkIOError EOF ("Weft.Reader." <> name <> ": the stream ended before") Nothing Nothing)

invalid :: String -> IO a
invalid name = ioError (socketError ("Weft.Reader." <> name) eINVAL)

-- Reading ----------------------------------------------------------------------------

-- | What there is: at least one byte, and empty at the end of the stream. Receives only if the reader has no bytes.
readSome :: Reader -> Instant -> IO ByteString
readSome r deadline = do
  held <- Pieces.size <$> readIORef (readerPieces r)
  when (held == 0) (() <$ fill r deadline usual)
  found <- Pieces.size <$> readIORef (readerPieces r)
  consume r found

-- | Exactly this many bytes. If the stream ends before, it throws an error that satisfies
-- 'System.IO.Error.isEOFError'. The caller answers for the number: the reader's limit does not apply. O(n).
readExactly :: Reader -> Instant -> Int -> IO ByteString
readExactly r deadline n
  | n < 0 = invalid "readExactly"
  | otherwise = go
  where
    go = do
      held <- Pieces.size <$> readIORef (readerPieces r)
      if held >= n
        then consume r n
        else do
          new <- fill r deadline (max usual (min (n - held) largest))
          if B.null new then endOfFile "readExactly" else go

-- | The bytes before the next delimiter. The delimiter is taken too. Throws 'LimitExceeded' if more bytes than the
-- reader's limit come before it, and an error that satisfies 'System.IO.Error.isEOFError' if the stream ends before
-- it. The delimiter is at least one byte. Each byte is searched once in a call.
readUntil :: Reader -> Instant -> ByteString -> IO ByteString
readUntil r deadline delimiter
  | B.null delimiter = invalid "readUntil"
  | otherwise = upTo r deadline delimiter >>= maybe (endOfFile "readUntil") pure

-- | The next line, without its end (LF or CRLF). 'Nothing' if the stream has ended; if it ends within a line,
-- it throws an error that satisfies 'System.IO.Error.isEOFError', and 'readToEnd' gets that part. Throws
-- 'LimitExceeded' if the line, with its CR, is longer than the reader's limit.
readLine :: Reader -> Instant -> IO (Maybe ByteString)
readLine r deadline = do
  line <- upTo r deadline (B.singleton 10)
  left <- Pieces.size <$> readIORef (readerPieces r)
  case line of
    Nothing | left > 0 -> endOfFile "readLine"
    _ -> pure (withoutReturn <$> line)
  where
    withoutReturn line = case B8.unsnoc line of
      Just (before, '\r') -> before
      _ -> line

-- | The bytes before the next delimiter, which is taken too; 'Nothing' if the stream ends first.
upTo :: Reader -> Instant -> ByteString -> IO (Maybe ByteString)
upTo r deadline delimiter = view r >>= search 0
  where
    overlap = B.length delimiter - 1
    -- The string is the end of what there is, and what comes before it has been searched.
    search before new = case B.breakSubstring delimiter new of
      (part, found)
        | not (B.null found) -> do
          let n = before + B.length part
          when (n > readerLimit r) exceeded
          Just . B.take n <$> consume r (n + B.length delimiter)
        | otherwise -> do
          let n = before + B.length new
              kept = min overlap (B.length new)
          when (n - overlap > readerLimit r) exceeded
          more <- fill r deadline usual
          if B.null more then pure Nothing else search (n - kept) (B.drop (B.length new - kept) new <> more)
    exceeded = throwIO (LimitExceeded (readerLimit r))

-- | All bytes to the end of the stream, at most this many. Throws 'LimitExceeded' as soon as more have arrived.
readToEnd :: Reader -> Instant -> Int -> IO ByteString
readToEnd r deadline most = go
  where
    go = do
      held <- Pieces.size <$> readIORef (readerPieces r)
      when (held > most) (throwIO (LimitExceeded most))
      new <- fill r deadline usual
      if B.null new then consume r held else go

-- Parsers ----------------------------------------------------------------------------

-- | How far an incremental parser has come. @r@ is its own type of results.
data Step r e a
  = -- | It goes on with more bytes; an empty string means that there are no more.
    NeedsMore (ByteString -> r)
  | -- | It has a value, and these bytes are left.
    Parsed ByteString a
  | -- | The bytes are not what it accepts.
    Unparsable e

-- | Read a value by an incremental parser. The first argument says what a result of the parser means, the second one
-- begins to parse what the reader has, which may be an empty string: only in 'NeedsMore' that means the end. For
-- attoparsec:
--
-- > readParsed step (parse parser) reader deadline
-- >   where
-- >     step (Partial go) = NeedsMore go
-- >     step (Done rest a) = Parsed rest a
-- >     step (Fail _ _ e) = Unparsable e
--
-- A parser that wants more at the end of the stream is told so, and throws an end-of-file error if it still wants more.
-- If the parser has not ended after more bytes than the reader's limit, this throws 'LimitExceeded'. Only a value takes
-- bytes out of the reader: after 'Left' or an exception, the next call begins with the same bytes.
readParsed :: (r -> Step r e a) -> (ByteString -> r) -> Reader -> Instant -> IO (Either e a)
readParsed step begin r deadline = do
  held <- view r
  go False (begin held)
  where
    go ended result = case step result of
      Unparsable e -> pure (Left e)
      Parsed rest a -> do
        held <- Pieces.size <$> readIORef (readerPieces r)
        Right a <$ consume r (held - B.length rest)
      NeedsMore next -> more ended next
    more True _ = endOfFile "readParsed"
    more False next = do
      held <- Pieces.size <$> readIORef (readerPieces r)
      when (held > readerLimit r) (throwIO (LimitExceeded (readerLimit r)))
      new <- fill r deadline usual
      go (B.null new) (next new)

-- What has been received already -----------------------------------------------------

-- | The number of bytes that have been received and not read.
readerHeld :: Reader -> IO Int
readerHeld r = Pieces.size <$> readIORef (readerPieces r)

-- | Bytes to be read first, before all others.
putBack :: Reader -> ByteString -> IO ()
putBack r bytes = modifyIORef' (readerPieces r) (foldl' (flip Pieces.append) (Pieces.append bytes Pieces.empty) . Pieces.pieces)

-- | The connection, from which the bytes that the reader has are received first. The reader has none afterwards. For a
-- program that goes on with another protocol.
leaveReader :: Reader -> IO Connection
leaveReader r = mask_ $ do
  held <- Pieces.whole <$> readIORef (readerPieces r)
  writeIORef (readerPieces r) Pieces.empty
  withReceived held (readerConnection r)
