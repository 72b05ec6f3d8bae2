-- |
-- Open files, and the units of their parts.
--
-- A file's descriptor follows the protocol of "Weft.Core.UseCount": operations count themselves in and out.
-- 'closeFile' closes the number if no operation uses it; otherwise the last operation does.
module Weft.File.Types
  ( -- * Files
    File (..),
    Kind (..),
    StreamState (..),
    streamState,
    newFile,
    withDescriptor,
    hold,
    demandOpen,
    isFileOpen,
    closeFile,

    -- * Errors
    check,
    fileError,
    closedError,
  )
where

import Control.Exception (mask)
import Control.Monad (unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Foreign.C.Error (Errno (..), errnoToIOError)
import Foreign.C.Types (CInt (..))
import GHC.IO.Exception (IOErrorType (IllegalOperation))
import System.IO.Error (ioeSetErrorString, mkIOError)
import System.Posix.Types (Fd (..))
import Weft.Core.UseCount
import Weft.File.Attributes (FileStatus)
import Weft.Sys

-- | An open file. Any number of threads may use it at once. It is closed by
-- 'closeFile' or by the function that opened it, not by the garbage collector.
data File = File
  { -- | The name it was opened by.
    filePath :: FilePath,
    fileFd :: !Fd,
    fileKind :: !Kind,
    -- | The file's status when it was opened.
    fileOpened :: !FileStatus,
    -- | Whether close(2) cannot block as long as the file has a name: a file on a local file system that was opened for
    -- reading.
    fileLight :: !Bool,
    -- | Word 0: the use count of the descriptor.
    fileWords :: !WordArray,
    -- | Replaced in a forked child, by compare-and-swap ('streamState').
    fileState :: !(Ref StreamState)
  }

-- | What the threads of a process do with a stream.
data StreamState = StreamState
  { -- | The 'forkGeneration' of the process.
    streamProcess :: !Int,
    -- | Bytes of a read whose caller was interrupted; the next read returns them first. A thread that reads holds the
    -- MVar.
    streamLeft :: !(MVar ByteString),
    -- | Actions that end the operations which wait, each with a key. Changed by compare-and-swap.
    streamWaiting :: !(Ref [(Ref (), IO ())]),
    -- | Held by a thread that writes.
    streamTurn :: !(MVar ())
  }

-- | Kinds of files.
data Kind
  = -- | With offsets, by the page cache.
    Cached
  | -- | With offsets, bypassing the page cache (@O_DIRECT@).
    Direct
  | -- | Without offsets: a pipe, a terminal.
    Stream
  deriving (Eq, Show)

instance Show File where
  showsPrec p f = showParen (p > 10) (showString "File " . showsPrec 11 (filePath f))

-- | Take ownership of an open descriptor.
newFile :: FilePath -> Kind -> FileStatus -> Bool -> Fd -> IO File
newFile path kind opened light fd = File path fd kind opened light <$> newWordArray 1 <*> (newStreamState >>= newRef)

newStreamState :: IO StreamState
newStreamState = StreamState <$> forkGeneration <*> newMVar B.empty <*> newRef [] <*> newMVar ()

-- | The state of a stream. A forked child begins with a new one: threads of the parent may hold the locks. What the
-- parent has taken out of the stream stays with the parent.
streamState :: File -> IO StreamState
streamState file = do
  st <- readRef (fileState file)
  process <- forkGeneration
  if streamProcess st == process then pure st else renew st
  where
    renew old = do
      fresh <- newStreamState
      _ <- casRef (fileState file) old fresh
      streamState file

-- | Run an action with the descriptor, on a GHC thread. Throws an
-- illegal-operation error, with the function's name, if the file is closed.
withDescriptor :: String -> File -> (Fd -> IO a) -> IO a
withDescriptor loc file act = mask $ \restore -> do
  entering loc file
  a <- restore (act (fileFd file)) `onException` leaving file
  a <$ leaving file
{-# INLINE withDescriptor #-}

useCount :: File -> IO UseCount
useCount = soleOwner 0 . fileWords
{-# INLINE useCount #-}

entering :: String -> File -> IO ()
entering loc file = useCount file >>= acquire >>= \open -> unless open (ioError (closedError loc file))

leaving :: File -> IO ()
leaving file = useCount file >>= release >>= \mine -> when mine (releaseFd file)

-- | For a request: keep the descriptor open until the action that is returned has run; it must run once. So a request
-- whose caller was interrupted cannot use another file of the same number. Throws as 'withDescriptor' does.
hold :: String -> File -> IO (IO ())
hold loc file = leaving file <$ entering loc file

-- | Throw the error of 'withDescriptor' if the file is closed.
demandOpen :: String -> File -> IO ()
demandOpen loc file = isFileOpen file >>= \open -> unless open (ioError (closedError loc file))

-- | Whether it has not been closed.
isFileOpen :: File -> IO Bool
isFileOpen file = useCount file >>= isOpen

-- | Close a file: no operation begins any more, reads of a stream that wait end with an
-- error, and the descriptor is closed when the last operation has ended. May be
-- repeated. Errors of earlier writes are not reported: use 'Weft.File.sync' for
-- that.
closeFile :: File -> IO ()
closeFile file = mask_ $ do
  outcome <- useCount file >>= shut
  unless (outcome == WasShut) (streamState file >>= readRef . streamWaiting >>= mapM_ snd)
  when (outcome == YoursToClose) (releaseFd file)

-- | A close(2) of a file that was only read, or whose writes are in the page cache,
-- does not wait for a disk. But the last one of a file without a name frees its space,
-- which may wait. A @safe@ call releases the capability and has to get it back: if other
-- threads are ready, that is several futex(2) and 10 us. So a file whose close cannot block ('fileLight') is closed by
-- an @unsafe@ call.
releaseFd :: File -> IO ()
releaseFd file = do
  closed <- if fileLight file then c_close_named fd else pure 0
  when (closed == 0) (() <$ c_close fd)
  where
    Fd fd = fileFd file

foreign import ccall safe "close" c_close :: CInt -> IO CInt

foreign import ccall unsafe "weft_file_close_named" c_close_named :: CInt -> IO CInt

-- | Return a result, or throw the error if it is @-errno@.
check :: String -> FilePath -> CInt -> IO Int
check loc path r
  | r >= 0 = pure (fromIntegral r)
  | otherwise = ioError (fileError loc path r)
{-# INLINE check #-}

-- | The exception for @-errno@.
fileError :: String -> FilePath -> CInt -> IOError
fileError loc path r = errnoToIOError loc (Errno (negate r)) Nothing (Just path)

-- | The exception for a closed file.
closedError :: String -> File -> IOError
closedError loc file =
  mkIOError IllegalOperation loc Nothing (Just (filePath file)) `ioeSetErrorString` "file is closed"
