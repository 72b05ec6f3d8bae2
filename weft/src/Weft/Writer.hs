-- |
-- Buffered writing to a 'Connection' of any kind: small pieces are gathered, and sent together.
--
-- > writer <- newWriter connection
-- > soon <- deadlineIn (seconds 5)
-- > mapM_ (write writer soon) ["SET ", key, "\r\n"]
-- > flush writer soon
--
-- A writer holds at most its size in bytes (8 KiB, if nothing else is said) and the last string it was given. It does
-- not send by itself: what was written last is sent by 'flush', before the connection is closed too.
--
-- If a send fails or is interrupted, an unknown part has been sent. The writer then gives up what it has, and
-- all later calls throw @EPIPE@; nothing is sent a second time. Deadlines and errors are those of
-- 'Weft.Transport.connSend'. One thread at a time may use a writer; another one may receive from the connection.
--
-- @since 0.1.0
module Weft.Writer
  ( Writer,
    newWriter,
    newWriterWith,
    defaultWriterSize,
    writerConnection,
    write,
    writeMany,
    flush,
    writerHeld,
  )
where

import Control.Exception (mask_)
import Control.Monad (unless)
import Data.ByteString (ByteString)
import Data.IORef
import Foreign.C.Error (ePIPE)
import Weft.Deadline (Instant)
import Weft.Reader.Pieces (Pieces)
import qualified Weft.Reader.Pieces as Pieces
import Weft.Socket.Types (socketError)
import Weft.Transport.Types

-- | A connection, and the bytes that have been written and not yet sent.
data Writer = Writer
  { -- | The connection that it sends to.
    writerConnection :: !Connection,
    writerSize :: !Int,
    -- | Written by the thread that writes.
    writerState :: !(IORef State)
  }

-- | @
--   Gathered -> Broken      a send begins
--   Broken   -> Gathered    it has ended
-- @
--
-- A send that fails leaves the writer broken.
data State = Gathered !Pieces | Broken

-- | A writer of 'defaultWriterSize'.
newWriter :: Connection -> IO Writer
newWriter = newWriterWith defaultWriterSize

-- | A writer that sends when it has this many bytes.
newWriterWith :: Int -> Connection -> IO Writer
newWriterWith n c = Writer c (max 1 n) <$> newIORef (Gathered Pieces.empty)

-- | 8 KiB.
defaultWriterSize :: Int
defaultWriterSize = 8192

-- | Write a string: keep it, and send all if the writer then has its size or more. Waits only to send. The
-- string may be in use until the next 'flush' has returned, and, with some connections, longer
-- ('Weft.Transport.connKeepsStrings').
write :: Writer -> Instant -> ByteString -> IO ()
write w deadline bytes = do
  held <- Pieces.append bytes <$> gathered "write" w
  if Pieces.size held >= writerSize w then send w deadline held else writeIORef (writerState w) (Gathered held)

-- | 'write' for each of the strings.
writeMany :: Writer -> Instant -> [ByteString] -> IO ()
writeMany w deadline = mapM_ (write w deadline)

-- | Send all that was written. Does nothing if there is nothing.
flush :: Writer -> Instant -> IO ()
flush w deadline = do
  held <- gathered "flush" w
  unless (Pieces.size held == 0) (send w deadline held)

-- | The number of bytes that have been written and not sent.
writerHeld :: Writer -> IO Int
writerHeld w = Pieces.size <$> gathered "writerHeld" w

gathered :: String -> Writer -> IO Pieces
gathered name w = do
  st <- readIORef (writerState w)
  case st of
    Gathered held -> pure held
    Broken -> ioError (socketError ("Weft.Writer." <> name <> ": an earlier send failed") ePIPE)

-- | The send is interruptible while it waits.
send :: Writer -> Instant -> Pieces -> IO ()
send w deadline held = mask_ $ do
  writeIORef (writerState w) Broken
  case Pieces.pieces held of
    [bytes] -> connSendBytes (writerConnection w) deadline bytes
    several -> connSendMany (writerConnection w) deadline several
  writeIORef (writerState w) (Gathered Pieces.empty)
