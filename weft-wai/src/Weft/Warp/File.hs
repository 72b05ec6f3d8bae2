-- |
-- Responses from files.
module Weft.Warp.File
  ( sendFileWith,
  )
where

import Control.Exception (bracket)
import Control.Monad (foldM_, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafePackCStringLen, unsafeUseAsCStringLen)
import Data.IORef
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (castPtr, plusPtr)
import Network.Wai.Handler.Warp.Internal (Fd, FileId (..), SendFile, closeFile, openFile)
import System.IO.Error (eofErrorType, mkIOError)
import Weft.Blocking (blockingOr)
import Weft.Socket (Socket, sendFileRangeWith)
import Weft.Warp.FFI (readAt)
import Weft.Warp.Patience (slice)
import Weft.Warp.Wire (WriteRoom)

-- | Send a head and a part of a file. The head and the beginning of the file go
-- through the write buffer, so that a small file leaves in one call and one
-- packet; the rest goes from the kernel's cache to the socket. The hook runs after
-- each slice that was taken, to say that the client is still reading.
--
-- Throws an end-of-file error when the file has become shorter than Warp was told:
-- the client has then got a part, and the connection is to be closed.
--
-- Where the kernel cannot send (TLS), there is no socket for it to send on, and all goes
-- through the buffer.
sendFileWith :: (Maybe Socket, ByteString -> IO ()) -> WriteRoom -> SendFile
sendFileWith (kernel, send) room file offset count hook headers = withOpen file $ \fd -> do
  (buffer, size) <- room
  let headLength = sum (map B.length headers)
      first = fromInteger (min (toInteger (size - headLength)) count)
  if headLength > size
    then mapM_ send headers >> hook >> rest fd offset count
    else do
      foldM_ copyTo buffer headers
      n <- if first > 0 then readAt fd (buffer `plusPtr` headLength) first (fromInteger offset) else pure 0
      send =<< B.unsafePackCStringLen (castPtr buffer, headLength + n)
      hook
      rest fd (offset + toInteger n) (count - toInteger n)
  where
    copyTo p bytes = B.unsafeUseAsCStringLen bytes $ \(from, n) ->
      (p `plusPtr` n) <$ copyBytes p (castPtr from) n
    rest fd from left = when (left > 0) $ maybe (copied fd from left) (sent fd from left) kernel
    sent fd from left sock = do
      since <- newIORef 0
      let told n = do
            have <- (+ n) <$> readIORef since
            if have < slice then writeIORef since have else writeIORef since 0 >> hook
      sendFileRangeWith told sock fd (fromInteger from) (fromInteger left)
      hook
    copied fd from left = when (left > 0) $ do
      (buffer, size) <- room
      n <- readAt fd buffer (fromInteger (min left (toInteger size))) (fromInteger from)
      when (n == 0) (ioError (mkIOError eofErrorType "the file became shorter" Nothing Nothing))
      send =<< B.unsafePackCStringLen (castPtr buffer, n)
      hook
      copied fd (from + toInteger n) (left - toInteger n)

-- | Use the descriptor that Warp's cache has, or one of our own.
withOpen :: FileId -> (Fd -> IO a) -> IO a
withOpen file = case fileIdFd file of
  Just fd -> ($ fd)
  Nothing -> bracket (blockingOr closeFile (openFile (fileIdPath file))) closeFile
