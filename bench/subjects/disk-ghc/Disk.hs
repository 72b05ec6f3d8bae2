{-# LANGUAGE CApiFFI #-}
-- For O_DIRECT.
{-# OPTIONS_GHC -optc-D_GNU_SOURCE #-}

-- |
-- Description : Reading a file as Haskell programs can without a library
--
-- A safe foreign call of pread(2): the OS thread blocks, others run.
module Disk
  ( withDisk,
    Thread,
    plain,
    startAll,
  )
where

import Control.Concurrent (forkOn)
import Control.Exception (bracket)
import Control.Monad (zipWithM_)
import Data.Bits ((.|.))
import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.C.String (CString, withCString)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Ptr (Ptr)
import System.Posix.Types (CMode (..), COff (..), CSsize (..))

foreign import capi safe "unistd.h pread" c_pread :: CInt -> Ptr Word8 -> CSize -> COff -> IO CSsize

foreign import capi unsafe "fcntl.h open" c_open :: CString -> CInt -> CMode -> IO CInt

foreign import capi unsafe "unistd.h close" c_close :: CInt -> IO CInt

foreign import capi "fcntl.h value O_CLOEXEC" oCloseOnExec :: CInt

-- | Its value depends on the processor.
foreign import capi "fcntl.h value O_DIRECT" oDirect :: CInt

type Thread = IO

-- | An action that does not wait.
plain :: IO a -> Thread a
plain = id

-- | Pinned, as on Weft; here it makes no difference.
startAll :: [Thread ()] -> IO ()
startAll = zipWithM_ forkOn [0 ..]

-- | Run with a function that reads from an offset into a buffer, past the page cache: how many bytes, or -1.
withDisk :: FilePath -> ((Int64 -> Ptr Word8 -> Int -> Thread Int) -> IO a) -> IO a
withDisk file act = bracket open c_close $ \fd -> act (\at p n -> fromIntegral <$> c_pread fd p (fromIntegral n) (fromIntegral at))
  where
    open = do
      fd <- withCString file (\path -> c_open path (oCloseOnExec .|. oDirect) 0)
      if fd < 0 then ioError (userError ("cannot open " ++ file ++ " with O_DIRECT")) else pure fd
