-- |
-- Programs as children of this process, and their pipes: the calls of @cbits/process.c@, which has the reasons. They
-- return a result or @-errno@. None waits, except that starting a program, which is @safe@, reads it from the disk. The
-- policy is in "Weft.Process".
module Weft.FFI.Process
  ( cProcessStart,
    cProcessStatus,
    cProcessSignal,
    cPipeRead,
    cPipeWrite,
    cPipeWriteV,
  )
where

import Data.Word (Word8)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Ptr (Ptr)
import System.Posix.Types (CPid (..), CSsize (..))
import Weft.FFI.Socket (IoVec)

-- | Paths, arguments, environment, folder, three streams, whether it gets a group; the results are the ends of pipes,
-- the pidfd and the step that has failed.
foreign import ccall safe "weft_process_start"
  cProcessStart ::
    Ptr CString -> Ptr CString -> Ptr CString -> CString -> Ptr CInt -> CInt -> Ptr CInt -> Ptr CInt -> Ptr CInt -> IO CPid

foreign import ccall unsafe "weft_process_status" cProcessStatus :: CPid -> CInt -> CInt -> Ptr CInt -> IO CInt

foreign import ccall unsafe "weft_process_signal" cProcessSignal :: CPid -> CInt -> CInt -> CInt -> IO CInt

foreign import ccall unsafe "weft_pipe_read" cPipeRead :: CInt -> Ptr Word8 -> CSize -> IO CSsize

foreign import ccall unsafe "weft_pipe_write" cPipeWrite :: CInt -> Ptr Word8 -> CSize -> IO CSsize

foreign import ccall unsafe "weft_pipe_writev" cPipeWriteV :: CInt -> Ptr IoVec -> CInt -> IO CSsize
