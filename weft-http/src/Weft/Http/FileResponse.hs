{-# LANGUAGE OverloadedStrings #-}

-- |
-- Responses from files: opening the file, evaluating the request's conditional and range fields
-- (RFC 9110, 13 and 14), and sending.
--
-- An application that already has the file open can pass its descriptor by 'withOpenFile'; the file is not opened
-- again.
module Weft.Http.FileResponse
  ( -- * For applications
    withOpenFile,

    -- * For the engine
    FileAnswer (..),
    withFileFor,
    validPart,
    rangeFields,
    chosenBy,
    sendFileSlices,
  )
where

import Control.Exception (bracket, bracket_, catch, onException, try)
import Control.Monad (when)
import Data.ByteString.Builder (Builder)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Internal as B (fromForeignPtr)
import Data.IORef
import Data.Int (Int64)
import Data.Maybe (fromMaybe, isJust)
import Data.Word (Word8)
import Foreign.ForeignPtr (ForeignPtr)
import GHC.IO.Exception (IOErrorType (..))
import Network.HTTP.Date (formatHTTPDate)
import Network.HTTP.Types
import Network.HTTP.Types.Header
import Network.Wai (FilePart (..), Request, requestHeaderRange, requestHeaders, requestMethod)
import System.IO.Error (ioeGetErrorType, ioeSetFileName, isEOFError)
import System.Posix.Files (fileSize, getFdStatus, isRegularFile, modificationTime)
import System.Posix.Time (epochTime)
import System.Posix.Types (EpochTime, Fd (..))
import Weft.Blocking (blockingOr)
import Weft.FFI.Errno (throwIfNegative)
import Weft.FFI.Path (withPath)
import Weft.FFI.Socket (cCloseFile, cOpenRead)
import Weft.Http.Conditional
import Weft.Http.DateForms (dateOf)
import Weft.Http.Request (requestOrigin)
import Weft.Http.Timeouts
import Weft.Http.Types
import Weft.Transport

-- Open files -----------------------------------------------------------------------------

-- | Run an action that responds with a part of the file at a path ('Network.Wai.responseFile' with a
-- 'FilePart'). The response is sent from the given descriptor, which has to stay open in the meantime, and the path
-- is not opened. The action's argument says whether the server supports this; it does not if another
-- server is running the application.
withOpenFile :: Request -> FilePath -> Fd -> (Bool -> IO a) -> IO a
withOpenFile request path fd act = case originFile <$> requestOrigin request of
  Nothing -> act False
  Just ref -> bracket_ (writeIORef ref (OpenFile path fd)) (writeIORef ref NoFile) (act True)

-- Answers --------------------------------------------------------------------------------

-- | A part of an open file, or an answer without the file.
data FileAnswer
  = FileAnswer !Status !ResponseHeaders !Fd !FilePart
  | OtherAnswer !Status !ResponseHeaders !Builder

-- | Open a file and decide on the response. If the application asks for a part, that part is sent. For a whole file
-- with status 200, the request's conditions and range decide. The response is 404 if the file cannot be opened, unless
-- the reason is the server's own: then it throws the 'IOError'. Throws 'Control.Exception.ErrorCall' if the part is
-- invalid or goes beyond the end of the file.
withFileFor :: Request -> Status -> ResponseHeaders -> FilePath -> Maybe FilePart -> (FileAnswer -> IO a) -> IO a
withFileFor request status fields path part act = bracket (openRegular path) (mapM_ closeOpened) $ \opened -> act $ case opened of
  Nothing -> OtherAnswer notFound404 [(hContentType, "text/plain; charset=utf-8")] "File not found"
  Just (Opened fd size changed) -> case part of
    Just range@(FilePart offset count _)
      | validPart range && offset + count <= size -> FileAnswer status fields fd range
      | otherwise -> error "Weft.Http: a part of a file with a negative offset or length, or beyond the end of the file"
    Nothing -> wholeFile request status fields fd size changed

-- | A part's offset and length are not negative.
validPart :: FilePart -> Bool
validPart (FilePart offset count _) = offset >= 0 && count >= 0

-- | An open file, its size and its modification time.
data Opened = Opened !Fd !Integer !EpochTime

closeOpened :: Opened -> IO ()
closeOpened (Opened (Fd fd) _ _) = cCloseFile fd

-- | Open a file for reading, on the pool of threads that may block. 'Nothing' if that fails because of the file. Throws
-- an 'IOError' if the process has no descriptors or memory left, or if the disk or its server fails: a 404 would tell
-- clients and caches that the file is gone.
openRegular :: FilePath -> IO (Maybe Opened)
openRegular path = try (blockingOr closeOpened open) >>= either failed (pure . Just)
  where
    failed e
      | ioeGetErrorType e `elem` [ResourceExhausted, HardwareFault, ResourceVanished, TimeExpired] = ioError (ioeSetFileName e path)
      | otherwise = pure Nothing
    open = withPath "Weft.Http: open" path $ \p -> do
      fd <- throwIfNegative "Weft.Http: open" (cOpenRead p)
      (`onException` cCloseFile fd) $ do
        found <- getFdStatus (Fd fd)
        if isRegularFile found
          then -- No date in the future (RFC 9110, 8.8.2.1).
            Opened (Fd fd) (toInteger (fileSize found)) . min (modificationTime found) <$> epochTime
          else ioError (userError "not a regular file")

-- | RFC 9110, 13.2.2: evaluate the conditions in their order, then the range. A single range is honoured. For several
-- ranges in the file the whole file is sent, which 14.2 allows.
wholeFile :: Request -> Status -> ResponseHeaders -> Fd -> Integer -> EpochTime -> FileAnswer
wholeFile request status fields fd size changed
  | status /= ok200 || requestMethod request `notElem` [methodGet, methodHead] = whole
  | otherwise = case verdict (requestHeaders request) (Validators tag (Just date)) of
    PreconditionFailed -> OtherAnswer preconditionFailed412 (chosenBy fields) mempty
    NotModified -> OtherAnswer notModified304 dated mempty
    -- Ranges are for GET only (14.2).
    Proceed True | requestMethod request == methodGet -> case ranges (requestHeaderRange request) size of
      Part (Extent from count) -> FileAnswer partialContent206 dated fd (FilePart from count size)
      Unsatisfiable -> OtherAnswer requestedRangeNotSatisfiable416 ((hContentRange, "bytes */" <> C.pack (show size)) : chosenBy fields) mempty
      _ -> whole
    Proceed _ -> whole
  where
    whole = FileAnswer status dated fd (FilePart 0 size size)
    -- The application's date, which is the one that clients get.
    date = fromMaybe (fileDate changed) (lookup hLastModified fields >>= dateOf)
    dated = if isJust (lookup hLastModified fields) then fields else (hLastModified, formatHTTPDate date) : fields
    -- The application's tag.
    tag = maybe NoTag entityTag (lookup hETag fields)

-- | Of the fields of a file's response, those that an answer without the file has as well: a cache has to know which
-- fields of the request chose the file that was compared or was too short (RFC 9110, 12.5.5).
chosenBy :: ResponseHeaders -> ResponseHeaders
chosenBy = filter ((== hVary) . fst)

-- | A response's fields, with those that describe a part of a file added if the application did not set them. A length
-- that the application has set to another number is replaced. No @Content-Range@ can describe an empty part (RFC 9110,
-- 14.4).
rangeFields :: ResponseHeaders -> FilePart -> ResponseHeaders
rangeFields fields (FilePart offset count size) =
  add hContentLength (number count)
    . filter (\(name, value) -> name /= hContentLength || value == number count)
    . (if count == size || count == 0 then id else add hContentRange (C.concat ["bytes ", number offset, "-", number (offset + count - 1), "/", number size]))
    . add hAcceptRanges "bytes"
    $ fields
  where
    add name value given = if isJust (lookup name given) then given else (name, value) : given
    number = C.pack . show

-- Sending --------------------------------------------------------------------------------

-- | Send the given number of bytes of memory and then a part of a file, in slices. For each slice the client gets the
-- full time limit. The caller keeps ownership of the memory. The path is for the error if the file has become shorter
-- than the range.
--
-- A system call for each 'sliceSize' bytes costs more than sending them. If the transport knows how much the client has
-- acknowledged, that shows whether a client makes progress within a slice, so slices can be large.
sendFileSlices :: Client -> FilePath -> ForeignPtr Word8 -> Int -> FileRange -> IO ()
sendFileSlices client path memory n (FileRange fd from size) = begin `catch` named
  where
    named e = ioError (if isEOFError e then ioeSetFileName e path else e)
    small = fromIntegral sliceSize
    begin = do
      send [B.fromForeignPtr memory 0 n] from (min size small)
      when (size > small) $ do
        known <- connSendProgress (clientConnection client)
        go (if isJust known then largeSlice else small) (from + small) (size - small)
    go slice offset left = do
      send [] offset (min left slice)
      when (left > slice) (go slice (offset + slice) (left - slice))
    send strings offset count = sendWithin client (connSendFile (clientConnection client) noDeadline strings (FileRange fd offset count))

-- | The most that one call of the kernel's sockets sends ("Weft.Socket.File"): 2 MiB.
largeSlice :: Int64
largeSlice = 2097152
