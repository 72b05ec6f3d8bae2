{-# LANGUAGE OverloadedStrings #-}

-- |
-- A web server of hybrid threads (Li & Zdancewic 2007, section 5.2): a thread for each
-- connection, files read asynchronously, and a cache in the program. An error is an exception in the thread of the
-- connection concerned. Answers GET and HEAD requests for the files below a folder.
--
-- > hybrid-web DIR [--port PORT] [--cache MB] [--stack tun:NAME,ADDRESS] +RTS -N
--
-- With @--stack@ the connections are those of a TCP/IP stack in the program (section 4.8), on a TUN device.
module Main (main) where

import Control.Concurrent (forkOn, getNumCapabilities)
import qualified Control.Concurrent as GHC
import Control.Monad (forM, forM_, forever, unless, when)
import Data.Attoparsec.ByteString.Char8 (Parser, char, isDigit, many', parseOnly, skipWhile, string, takeWhile1)
import qualified Data.Attoparsec.ByteString.Char8 as P
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import qualified Data.ByteString.Internal as B (fromForeignPtr)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCString)
import Data.Char (isAlphaNum, isAscii, isAsciiUpper, toLower)
import Data.IORef
import Data.List (stripPrefix)
import qualified Data.Map.Strict as Map
import Data.Sequence (Seq, ViewL (..), viewl, (|>))
import Data.String (fromString)
import Foreign.ForeignPtr (mallocForeignPtrBytes, touchForeignPtr)
import Foreign.ForeignPtr.Unsafe (unsafeForeignPtrToPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (castPtr, plusPtr)
import GHC.Clock (getMonotonicTime)
import qualified GHC.Foreign as Foreign
import GHC.IO.Encoding (getFileSystemEncoding)
import Network.HTTP.Types
import Options.Applicative hiding (Parser, action, many)
import qualified Options.Applicative as O
import System.Exit (die)
import System.FilePath (takeExtension)
import System.IO (hFlush, stdout)
import System.IO.Error (isDoesNotExistError, isFullError, isPermissionError)
import Weft.Hybrid
import Weft.Hybrid.File
import qualified Weft.Socket as Weft
import Weft.Tcp (Address, parseAddress, showAddress, withStack)
import qualified Weft.Tcp as Tcp (defaultSettings)
import Weft.Tcp.Device.Tun (openTun, tunNamed)
import qualified Weft.Tcp.Hybrid as Tcp

-- Options ------------------------------------------------------------------------------

data Options = Options {folder :: FilePath, host :: String, port :: Int, cacheMB :: Int, stack :: Maybe (String, Address)}

options :: O.Parser Options
options =
  Options
    <$> strArgument (metavar "DIR" <> help "Serve the files of this folder; for a folder in it, its index.html")
    <*> strOption (long "host" <> metavar "ADDRESS" <> value "127.0.0.1" <> showDefault <> help "IPv4 address to listen on")
    <*> option auto (long "port" <> metavar "PORT" <> value 8080 <> showDefault <> help "Port; 0 lets the system choose")
    <*> option auto (long "cache" <> metavar "MB" <> value 100 <> showDefault <> help "Memory for the contents of files")
    <*> optional (option (eitherReader tunAndAddress) (long "stack" <> metavar "tun:NAME,ADDRESS" <> help "Serve from a TCP/IP stack in the program, at this address of a TUN device, instead of --host"))

tunAndAddress :: String -> Either String (String, Address)
tunAndAddress text = case break (== ',') <$> stripPrefix "tun:" text of
  Just (name, ',' : digits) | Just address <- parseAddress digits, not (null name) -> Right (name, address)
  _ -> Left ("expected tun:NAME,ADDRESS, not " <> show text)

main :: IO ()
main = do
  opts <- execParser (info (options <**> helper) (progDesc "Serve a folder over HTTP with hybrid threads; cores by +RTS -N"))
  root <- run (openDirectory (folder opts))
  site <- Site root <$> newCache (1000000 * cacheMB opts)
  maybe (onKernel opts site) (onStack opts site) (stack opts)

-- | Run an acceptor on each loop. Its connections stay on that loop while the loops are equally busy.
serve :: Options -> Site -> String -> [Hybrid (Hybrid Connection)] -> IO ()
serve opts site bound listeners = do
  putStrLn ("hybrid-web: serving " <> folder opts <> " at http://" <> bound <> "/") >> hFlush stdout
  ended <- GHC.newEmptyMVar
  forM_ (zip [0 ..] listeners) $ \(core, listening) ->
    forkOn core (run (listening >>= acceptor site) `finally` GHC.putMVar ended ())
  GHC.takeMVar ended

onStack :: Options -> Site -> (String, Address) -> IO ()
onStack opts site (name, address) = do
  cores <- getNumCapabilities
  device <- openTun (tunNamed name)
  withStack (Tcp.defaultSettings [address]) device $ \st -> do
    listener <- Tcp.listen st Nothing (fromIntegral (port opts))
    serve opts site (showAddress address <> ":" <> show (Tcp.listenerPort listener)) (replicate cores (pure (stackConnection <$> Tcp.accept listener)))

onKernel :: Options -> Site -> IO ()
onKernel opts site = do
  cores <- getNumCapabilities
  addresses <- Weft.getAddrInfo (Just numeric) (Just (host opts)) (Just (show (port opts)))
  first <- case addresses of
    address : _ -> listenOn (Weft.addrAddress address)
    [] -> die ("hybrid-web: no address: " <> host opts)
  bound <- Weft.getSocketName first
  others <- forM [2 .. cores] (const (listenOn bound))
  serve opts site (show bound) [fmap (kernelConnection . fst) . accept <$> fromSocket listening | listening <- first : others]
  where
    numeric = Weft.defaultHints {Weft.addrFlags = [Weft.AI_NUMERICHOST, Weft.AI_NUMERICSERV], Weft.addrFamily = Weft.AF_INET, Weft.addrSocketType = Weft.Stream}

-- | A listening socket that can share its address with others (SO_REUSEPORT).
listenOn :: SockAddr -> IO Weft.Socket
listenOn address = do
  s <- Weft.socket Weft.AF_INET Weft.Stream Weft.defaultProtocol
  forM_ [Weft.ReuseAddr, Weft.ReusePort] (\o -> Weft.setSocketOption s o 1)
  Weft.bind s address
  Weft.listen s 4096
  pure s

-- Connections --------------------------------------------------------------------------

data Site = Site Directory Cache

-- | The operations of a connection, of either TCP/IP stack.
data Connection = Connection
  { receiveUntil :: Instant -> Int -> Hybrid ByteString,
    sendUntil :: Instant -> ByteString -> Hybrid (),
    endSending, closeIt :: Hybrid ()
  }

kernelConnection :: Socket -> Connection
kernelConnection s = Connection (\d -> recv (withDeadline d s)) (\d -> sendAll (withDeadline d s)) (shutdown s ShutdownSend) (close s)

stackConnection :: Tcp.Socket -> Connection
stackConnection s = Connection (\d -> Tcp.recv (Tcp.withDeadline d s)) (\d -> Tcp.sendAll (Tcp.withDeadline d s)) (Tcp.shutdownSend s) (Tcp.close s)

-- | Accept connections forever. If no descriptors are left, the acceptor waits for other threads to close some.
acceptor :: Site -> Hybrid Connection -> Hybrid ()
acceptor site accepting = forever $ do
  r <- try accepting
  case r of
    Right sock -> fork (connection site sock `finally` closeIt sock)
    Left e -> when (isFullError e) (sleep (milliseconds 20)) >> yield

-- | Serve requests one after the other, until the client closes the connection or is too slow.
connection :: Site -> Connection -> Hybrid ()
connection site sock = go B.empty `catch` gone
  where
    gone :: IOError -> Hybrid ()
    gone _ = pure ()
    go before = do
      received <- readHead sock before
      case received of
        Nothing -> pure ()
        Just (Left status) -> complain sock status >> lingering sock
        Just (Right (headBytes, rest)) -> case parseRequest headBytes of
          Left status -> complain sock status >> lingering sock
          Right request -> do
            respond site sock request
            when (keepAlive request) (go rest)

-- | Read the rest of a refused request; unread data would make the kernel drop the response.
lingering :: Connection -> Hybrid ()
lingering sock = do
  endSending sock
  limit <- deadlineIn (seconds 2)
  let drain = receiveUntil sock limit 65536 >>= \bytes -> unless (B.null bytes) drain
  drain

-- | Receive the head of the next request. Returns it and the bytes received after it. The head must begin within a
-- minute, and must then be complete within ten seconds.
readHead :: Connection -> ByteString -> Hybrid (Maybe (Either Status (ByteString, ByteString)))
readHead sock before
  | B.null before = do
    limit <- deadlineIn (seconds 60)
    bytes <- receiveUntil sock limit 4096
    if B.null bytes then pure Nothing else begun bytes
  | otherwise = begun before
  where
    begun bytes = deadlineIn (seconds 10) >>= go bytes
    go bytes limit
      | B.length (B.takeWhile (/= '\n') bytes) > longestLine = pure (Just (Left requestURITooLong414))
      | not (B.null end), B.length found <= longestHead = pure (Just (Right (found <> "\r\n\r\n", B.drop 4 end)))
      | B.length found > longestHead = pure (Just (Left requestHeaderFieldsTooLarge431))
      | otherwise = do
        more <- receiveUntil sock limit 4096
        if B.null more then pure Nothing else go (bytes <> more) limit
      where
        (found, end) = B.breakSubstring "\r\n\r\n" bytes
    longestLine = 8192
    longestHead = 32768

-- | Send bytes, with a time limit of a minute for each 64 KiB.
sendSlowly :: Connection -> ByteString -> Hybrid ()
sendSlowly sock bytes = unless (B.null bytes) $ do
  limit <- deadlineIn (seconds 60)
  let (now, later) = B.splitAt 65536 bytes
  sendUntil sock limit now
  sendSlowly sock later

-- Requests -------------------------------------------------------------------------------

data Request = Request {onlyHead :: Bool, path :: ByteString, keepAlive :: Bool}

-- | Parse the head of a request (RFC 9112, sections 3 and 5). Requests with a body are refused.
parseRequest :: ByteString -> Either Status Request
parseRequest bytes = do
  (method, target, version, fields) <- either (const (Left badRequest400)) Right (parseOnly (requestHead <* P.endOfInput) bytes)
  let field name = [v | (n, v) <- fields, n == name]
      tokens = map (B.map lower . B.filter (/= ' ')) (concatMap (B.split ',') (field "Connection"))
  when (fst version /= 1) (Left httpVersionNotSupported505)
  when (version >= (1, 1) && length (field "Host") /= 1) (Left badRequest400)
  unless (null (field "Transfer-Encoding") && all (== "0") (field "Content-Length")) (Left requestEntityTooLarge413)
  onlyHead' <- case method of
    "GET" -> Right False
    "HEAD" -> Right True
    _ -> Left methodNotAllowed405
  let decoded = urlDecode False (B.takeWhile (/= '?') target)
  unless ("/" `B.isPrefixOf` target && B.notElem '\0' decoded) (Left badRequest400)
  pure (Request onlyHead' decoded (if version >= (1, 1) then "close" `notElem` tokens else "keep-alive" `elem` tokens))
  where
    lower c = if isAsciiUpper c then toLower c else c

requestHead :: Parser (ByteString, ByteString, (Int, Int), RequestHeaders)
requestHead = do
  method <- takeWhile1 isToken <* char ' '
  target <- takeWhile1 (\c -> c > ' ' && c /= '\DEL') <* string " HTTP/"
  major <- digit <* char '.'
  minor <- digit <* end
  fields <- many' ((,) . fromCI <$> takeWhile1 isToken <* char ':' <* skipWhile blank <*> P.takeWhile (\c -> c >= ' ' || c == '\t') <* end)
  (method, target, (major, minor), fields) <$ end
  where
    end = string "\r\n"
    digit = (\c -> fromEnum c - fromEnum '0') <$> P.satisfy isDigit
    blank c = c == ' ' || c == '\t'
    isToken c = isAscii c && (isAlphaNum c || c `elem` ("!#$%&'*+-.^_`|~" :: String))
    fromCI = fromString . B.unpack

-- Answers ----------------------------------------------------------------------------------

-- | Send the file, or an error after which the connection stays open.
respond :: Site -> Connection -> Request -> Hybrid ()
respond (Site root cache) sock request = do
  now <- nonBlocking getMonotonicTime
  cached <- nonBlocking (lookupCache cache now (path request))
  found <- maybe (try (load now)) (pure . Right . Whole) cached
  case found of
    Left e
      | isDoesNotExistError e -> answer notFound404
      | isPermissionError e -> answer forbidden403
      | isFullError e -> answer serviceUnavailable503
      | otherwise -> answer notFound404
    Right (Whole page) -> sendSlowly sock (wanted (pageHead page) (pageBytes page))
    Right (Parts answerHead name) -> do
      sendSlowly sock answerHead
      unless (onlyHead request) . withFileAt root fromInside name $ \file ->
        foldChunks file 0 65536 (\() bytes -> sendSlowly sock bytes) ()
  where
    wanted n bytes = if onlyHead request then B.take n bytes else bytes
    answer status = sendSlowly sock (wanted (B.length (headOf status [] body)) (headOf status [] body <> body))
      where
        body = textOf status
    load now = do
      name <- nonBlocking (fileName (path request))
      withIndex name $ \name' file size -> do
        let answerHead = headFor name' size
        if size > wholeBelow cache
          then pure (Parts answerHead name')
          else do
            page <- readBehind answerHead file size
            -- A file that has become shorter since is being written, and is not cached.
            if B.length (pageBytes page) == B.length answerHead + size
              then Whole page <$ insertCache cache now (path request) page
              else ioError' (userError "the file changes")
    ioError' = nonBlocking . ioError
    withIndex name act = withFileAt root fromInside name $ \file -> do
      let status = openedStatus file
      case statusType status of
        RegularFile -> act name file (fromIntegral (statusSize status))
        DirectoryFile | not ("index.html" `B.isSuffixOf` fromString name) -> withIndex (name <> "/index.html") act
        _ -> ioError' (userError "not a file")

-- | Read a file behind the head of its response, so that both are sent from where they are.
readBehind :: ByteString -> File -> Int -> Hybrid Page
readBehind answerHead file size = do
  memory <- nonBlocking (mallocForeignPtrBytes (start + size))
  -- It must not be collected before the kernel has written to it, not even if the thread is killed.
  (`finally` nonBlocking (touchForeignPtr memory)) $ do
    let p = unsafeForeignPtrToPtr memory
    nonBlocking (B.unsafeUseAsCString answerHead (\from -> copyBytes p (castPtr from) start))
    Count n <- readBufAt file 0 (p `plusPtr` start) (Count size)
    pure (Page (B.fromForeignPtr memory 0 (start + n)) start)
  where
    start = B.length answerHead

-- | A response in memory, with the length of its head; or a head, and the name of a file that is sent in pieces.
data Answer = Whole Page | Parts ByteString FilePath

-- | Opens nothing outside of the folder, and does not block on what is not a regular file, such as a FIFO.
fromInside :: OpenMode
fromInside = reading {openResolve = Beneath, openNonBlocking = True}

-- | The file name of a path, relative to the folder and decoded by the file system's encoding.
fileName :: ByteString -> IO FilePath
fileName bytes = do
  encoding <- getFileSystemEncoding
  B.useAsCStringLen (if B.null name then "." else name) (Foreign.peekCStringLen encoding)
  where
    name = B.dropWhile (== '/') bytes

headFor :: FilePath -> Int -> ByteString
headFor name size = "HTTP/1.1 200 OK\r\nContent-Type: " <> kind <> "\r\nContent-Length: " <> B.pack (show size) <> "\r\n\r\n"
  where
    kind = Map.findWithDefault "application/octet-stream" (takeExtension name) kinds
    kinds =
      Map.fromList
        [ (".html", "text/html; charset=utf-8"),
          (".txt", "text/plain; charset=utf-8"),
          (".css", "text/css"),
          (".js", "text/javascript"),
          (".json", "application/json"),
          (".svg", "image/svg+xml"),
          (".png", "image/png"),
          (".jpg", "image/jpeg")
        ]

headOf :: Status -> [ByteString] -> ByteString -> ByteString
headOf status fields body =
  B.concat $
    ["HTTP/1.1 ", B.pack (show (statusCode status)), " ", statusMessage status, "\r\n"]
      <> concat [[f, "\r\n"] | f <- fields]
      <> ["Content-Type: text/plain\r\nContent-Length: ", B.pack (show (B.length body)), "\r\n\r\n"]

textOf :: Status -> ByteString
textOf status = statusMessage status <> "\n"

-- | Send an error after which the connection is closed.
complain :: Connection -> Status -> Hybrid ()
complain sock status = sendSlowly sock (headOf status ("Connection: close" : allow) (textOf status) <> textOf status)
  where
    allow = ["Allow: GET, HEAD" | status == methodNotAllowed405]

-- The cache ----------------------------------------------------------------------------------

-- | Responses by path, bounded in bytes. An entry that was not requested since its last inspection is evicted first
-- (CLOCK). A lookup takes no lock; changes are made under a mutex.
data Cache = Cache
  { cacheLimit :: Int,
    cacheTurn :: Mutex,
    -- | Written by the holder of the mutex.
    cacheState :: IORef (Map.Map ByteString Entry, Seq ByteString, Int)
  }

data Page = Page {pageBytes :: !ByteString, pageHead :: !Int}

-- | A page, the time at which it was read in seconds, and whether it was requested since its last inspection. Any
-- thread may write the flag.
data Entry = Entry !Page !Double (IORef Bool)

newCache :: Int -> IO Cache
newCache limit = Cache limit <$> run newMutex <*> newIORef (Map.empty, mempty, 0)

-- | The size in bytes of the largest file that is cached.
wholeBelow :: Cache -> Int
wholeBelow cache = min 1000000 (cacheLimit cache `div` 8)

-- | Look up a page. One that is older than ten seconds is not returned, so that it is read again.
lookupCache :: Cache -> Double -> ByteString -> IO (Maybe Page)
lookupCache cache now name = do
  (entries, _, _) <- readIORef (cacheState cache)
  case Map.lookup name entries of
    Just (Entry page since used) | now - since < 10 -> Just page <$ writeIORef used True
    _ -> pure Nothing

insertCache :: Cache -> Double -> ByteString -> Page -> Hybrid ()
insertCache cache now name page = withMutex (cacheTurn cache) . nonBlocking $ do
  (entries, clock, total) <- readIORef (cacheState cache)
  fresh <- Entry page now <$> newIORef False
  let (before, entries') = Map.insertLookupWithKey (\_ new _ -> new) name fresh entries
      clock' = maybe (clock |> name) (const clock) before
  evict entries' clock' (total + size fresh - maybe 0 size before) >>= writeIORef (cacheState cache)
  where
    size (Entry p _ _) = B.length (pageBytes p) + B.length name + 200
    evict entries clock total
      | total > cacheLimit cache,
        oldest :< rest <- viewl clock =
        case Map.lookup oldest entries of
          Nothing -> evict entries rest total
          Just e@(Entry _ _ used) -> do
            again <- readIORef used
            if again
              then writeIORef used False >> evict entries (rest |> oldest) total
              else evict (Map.delete oldest entries) rest (total - size e)
      | otherwise = pure $! entries `seq` (entries, clock, total)
