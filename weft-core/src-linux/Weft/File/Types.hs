-- |
-- Open files, and the units of their parts.
--
-- A file's descriptor lives by the protocol of "Weft.Core.UseCount": operations count themselves in and out, and whoever finds it
-- closed and unused first closes the number: 'closeFile' if nobody uses it, else the last to leave.
module Weft.File.Types
  ( -- * Files
    File (..),
    Kind (..),
    newFile,
    inside,
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

-- | An open file. Any number of threads may use it at once; it is closed by
-- 'closeFile' or the bracket that opened it, not by the collector.
data File = File
  { -- | The name it was opened by.
    filePath :: FilePath,
    fileFd :: !Fd,
    fileKind :: !Kind,
    -- | Its status when it was opened.
    fileOpened :: !FileStatus,
    -- | Does closing it wait for nobody, as long as it has a name?
    fileLight :: !Bool,
    -- | Word 0: who uses the descriptor.
    fileWords :: !AtomicWords,
    -- | Of a stream: what a read got whose caller had gone; the next reader has it
    -- first. Who reads a stream holds it.
    fileLeft :: !(MVar ByteString),
    -- | Of a stream: how to end the operations that wait, each with a key. Changed by
    -- compare-and-swap.
    fileWaiting :: !(Ref [(Ref (), IO ())]),
    -- | Of a stream: who writes holds it.
    fileTurn :: !(MVar ())
  }

-- | What a file can do.
data Kind
  = -- | Has offsets, and the page cache between it and the disk.
    Cached
  | -- | Has offsets, and is read past the page cache (@O_DIRECT@).
    Direct
  | -- | Has none: a pipe, a terminal.
    Stream
  deriving (Eq, Show)

instance Show File where
  showsPrec p f = showParen (p > 10) (showString "File " . showsPrec 11 (filePath f))

-- | Take charge of an open descriptor.
newFile :: FilePath -> Kind -> FileStatus -> Bool -> Fd -> IO File
newFile path kind opened light fd = File path fd kind opened light <$> newAtomicWords 1 <*> newMVar B.empty <*> newRef [] <*> newMVar ()

-- | Run something with the descriptor, by a GHC thread. Throws an
-- illegal-operation error, with the function's name, when the file is closed.
inside :: String -> File -> (Fd -> IO a) -> IO a
inside loc file act = mask $ \restore -> do
  entering loc file
  a <- restore (act (fileFd file)) `onException` leaving file
  a <$ leaving file
{-# INLINE inside #-}

useCount :: File -> UseCount
useCount file = UseCount (fileWords file) 0 0
{-# INLINE useCount #-}

entering :: String -> File -> IO ()
entering loc file = acquire (useCount file) >>= \open -> unless open (ioError (closedError loc file))

leaving :: File -> IO ()
leaving file = release (useCount file) >>= \mine -> when mine (releaseFd file)

-- | For a request: keep the descriptor open from now on, until what this returns is
-- run, once. So a request whose caller has gone cannot meet the next owner of its number. Throws as
-- 'inside' does.
hold :: String -> File -> IO (IO ())
hold loc file = leaving file <$ entering loc file

-- | The error of 'inside', if the file is closed.
demandOpen :: String -> File -> IO ()
demandOpen loc file = isFileOpen file >>= \open -> unless open (ioError (closedError loc file))

-- | Has it not been closed?
isFileOpen :: File -> IO Bool
isFileOpen = isOpen . useCount

-- | Close: no operation begins any more, reads of a stream that wait end with an
-- error, and the descriptor is closed as soon as the last operation has ended. Any
-- number of times. What the close finds out about earlier writes it does not say:
-- ask 'Weft.File.sync'.
closeFile :: File -> IO ()
closeFile file = mask_ $ do
  outcome <- shut (useCount file)
  unless (outcome == WasShut) (readRef (fileWaiting file) >>= mapM_ snd)
  when (outcome == YoursToClose) (releaseFd file)

-- | A close(2) of a file that was only read, or whose writes are in the page cache,
-- does not wait for a disk; but the last one of a file without a name gives its space
-- back, which may. The call that lets other threads run hands the capability over,
-- and comes back when another OS thread gives it up: with others to run that is
-- several futex(2) and 10 us. So what is light is closed by a plain call.
releaseFd :: File -> IO ()
releaseFd file = do
  closed <- if fileLight file then c_close_named fd else pure 0
  when (closed == 0) (() <$ c_close fd)
  where
    Fd fd = fileFd file

foreign import ccall safe "close" c_close :: CInt -> IO CInt

foreign import ccall unsafe "weft_file_close_named" c_close_named :: CInt -> IO CInt

-- | Pass a result on, or throw the error that it stands for.
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
