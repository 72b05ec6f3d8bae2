-- |
-- The parts of the workload that use no sockets: files, timers, hybrid threads, pipes whose readers are killed, forks,
-- and changes of the number of capabilities.
module Workload.Local
  ( diskUser,
    timerUser,
    hybridUser,
    pipeUser,
    forker,
    cycling,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.IORef
import Data.List (intercalate)
import Data.Maybe (isJust, isNothing)
import Foreign.ForeignPtr (withForeignPtr)
import Foreign.Marshal.Utils (copyBytes)
import Foreign.Ptr (castPtr)
import GHC.Clock (getMonotonicTime)
import System.Directory (listDirectory)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.IO (closeFd, createPipe, fdRead, fdWrite)
import System.Posix.Process (exitImmediately, forkProcess, getProcessStatus)
import System.Posix.Signals (sigKILL, signalProcess)
import System.Posix.Types (ProcessID)
import Weft.File
import qualified Weft.Hybrid as H
import Weft.Socket
import Weft.Test.Capabilities (changeCapabilities)
import qualified Weft.Thread as T
import Weft.Timer (cancel, schedule, sleep, within)
import Workload.Network (content, endedEarly)
import Workload.OwnTime (ownTime)
import Workload.Run

diskUser :: FilePath -> Int -> Operation -> Dice -> IO (Maybe String)
diskUser place i o d = do
  direct <- (== 0) <$> roll d 3
  if direct then directUser place i o d else cachedUser place i o d

-- | Whole blocks, past the page cache.
directUser :: FilePath -> Int -> Operation -> Dice -> IO (Maybe String)
directUser place i o d = do
  let path = place </> ("blocks" <> show i)
  size <- (* 4096) . (+ 1) <$> roll d 16
  at <- (* 4096) <$> roll d 256
  k <- roll d 1000000
  note o ("writes and reads " <> show size <> " bytes at " <> show at <> " past the page cache")
  let bytes = content size k
  memory <- alignedBuffer (Count size)
  withFile reading {openAccess = ReadWrite, openCreation = CreateIfMissing 0o600, openDirect = True} path $ \f -> do
    withForeignPtr memory $ \p -> do
      B.unsafeUseAsCStringLen bytes $ \(from, n) -> copyBytes p (castPtr from) n
      writeBufAt f (Offset (fromIntegral at)) p (Count size)
    interrupted <- roll d 8
    when (interrupted == 0) (void (within (milliseconds 1) (replicateM_ 50 (readAt f (Offset (fromIntegral at)) (Count size)))))
    back <- readAt f (Offset (fromIntegral at)) (Count size)
    pure (if back == bytes then Nothing else Just ("a file gave back " <> show (B.length back) <> " other bytes of " <> show size <> " past the page cache"))

cachedUser :: FilePath -> Int -> Operation -> Dice -> IO (Maybe String)
cachedUser place i o d = do
  let path = place </> ("file" <> show i)
  size <- (+ 1) <$> roll d 100000
  at <- roll d 1000000
  k <- roll d 1000000
  interrupted <- roll d 8
  let bytes = content size k
  note o ("writes and reads " <> show size <> " bytes at " <> show at <> if interrupted == 0 then ", reads that are cut short in between" else "")
  withFile reading {openAccess = ReadWrite, openCreation = CreateIfMissing 0o600} path $ \f -> do
    writeAt f (Offset (fromIntegral at)) bytes
    when (interrupted == 0) (void (within (milliseconds 1) (replicateM_ 50 (readAt f (Offset (fromIntegral at)) (Count size)))))
    back <- readAt f (Offset (fromIntegral at)) (Count size)
    pure (if back == bytes then Nothing else Just ("a file gave back " <> show (B.length back) <> " other bytes of " <> show size))

timerUser :: Operation -> Dice -> IO (Maybe String)
timerUser o d = do
  us <- roll d 20000
  note o ("a delay of " <> show us <> " us")
  begin <- getMonotonicTime
  T.threadDelay us
  end <- getMonotonicTime
  note o "sets and cancels fifty timers"
  fired <- newIORef (0 :: Int)
  set <- replicateM 50 (roll d 60000000 >>= \n -> schedule (milliseconds (1000 + n `div` 1000)) (atomicModifyIORef' fired (\x -> (x + 1, ()))))
  gone <- mapM cancel set
  late <- readIORef fired
  note o "cuts an endless delay short"
  over <- within (milliseconds 1) (sleep (milliseconds 1000000))
  pure $ case () of
    _
      | end - begin < fromIntegral us / 1e6 -> Just ("a delay of " <> show us <> " us took " <> show (end - begin) <> " s")
      | length (filter not gone) /= late -> Just "a timer was neither cancelled nor fired, or both"
      | isJust over -> Just "an endless delay ended"
      | otherwise -> Nothing

hybridUser :: Run -> Int -> Bool -> Operation -> Dice -> IO (Maybe String)
hybridUser run port echoes o d = do
  n <- (+ 2) <$> roll d 40
  size <- (+ 1) <$> roll d 5000
  doomed <- roll d 3
  note o ("a chain of " <> show n <> " hybrid threads")
  sum' <- H.run $ do
    first <- H.newEmptyMVar
    final <- chain n first
    when (doomed == 0) $ do
      t <- H.forkThread (H.sleep (milliseconds 1000000))
      H.sleep (milliseconds 1)
      H.killThread t
    H.putMVar first (1 :: Int)
    H.takeMVar final
  back <-
    if not echoes
      then pure (Just (content size n))
      else H.run . H.within (patience run) $
        H.bracket (H.nonBlocking (note o "a hybrid echo: connects" >> opened) >>= H.fromSocket) H.close $ \s -> do
          H.connect s (SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1)))
          H.nonBlocking (note o ("a hybrid echo: sends " <> show size <> " bytes"))
          H.sendAll s (content size n)
          H.nonBlocking (note o ("a hybrid echo: receives " <> show size <> " bytes"))
          B.concat <$> receive s size
  pure $ case () of
    _
      | sum' /= n + 1 -> Just ("a chain of " <> show n <> " hybrid threads gave " <> show sum')
      | isNothing back -> Just "a hybrid echo reached its time limit"
      | back /= Just (content size n) -> Just "a hybrid echo came back wrong"
      | otherwise -> Nothing
  where
    opened = socket AF_INET Stream defaultProtocol
    chain 0 v = pure v
    chain n v = do
      w <- H.newEmptyMVar
      H.fork (H.takeMVar v >>= \x -> H.yield >> H.putMVar w (x + 1))
      chain (n - 1 :: Int) w
    receive _ 0 = pure []
    receive s n = do
      b <- H.recv s n
      if B.null b then H.nonBlocking endedEarly else (b :) <$> receive s (n - B.length b)

-- | Readers of a pipe. Some are killed; the others receive what is written.
pipeUser :: Run -> Operation -> Dice -> IO (Maybe String)
pipeUser run o d = bracket createPipe (\(r, w) -> mapM_ (T.closeFdWith closeFd) [r, w]) $ \(r, w) -> do
  n <- (+ 1) <$> roll d 3
  doomed <- replicateM n (forkIO (T.threadWaitRead r))
  pause <- roll d 300
  threadDelay pause
  got <- newEmptyMVar
  survivor <- forkIO ((try (T.threadWaitRead r >> fst <$> fdRead r 1) :: IO (Either IOException String)) >>= putMVar got)
  note o ("kills " <> show n <> " readers of a pipe after " <> show pause <> " us")
  mapM_ killThread doomed
  _ <- fdWrite w "x"
  note o "a reader of a pipe that was written to"
  answer <- within (patience run) (takeMVar got >>= either ioError pure)
  killThread survivor
  pure (if answer == Just "x" then Nothing else Just ("a reader of a pipe got " <> show answer))

-- | A child process that waits in every way, and ends.
forker :: Operation -> Dice -> IO (Maybe String)
forker o d = do
  pause <- roll d 1000000
  note o "a delay before it forks"
  T.threadDelay pause
  note o "forks"
  child <- forkProcess $ do
    ok <- try body :: IO (Either SomeException Bool)
    exitImmediately (either (const (ExitFailure 4)) (\fine -> if fine then ExitSuccess else ExitFailure 3) ok)
  note o ("waits for its child, process " <> show child)
  begin <- ownTime
  ended <- await child begin `onException` (signalProcess sigKILL child >> getProcessStatus True False child)
  case ended of
    Just status -> pure (if status == "Just (Exited ExitSuccess)" then Nothing else Just ("a child ended with " <> status))
    Nothing -> do
      state <- processState child
      signalProcess sigKILL child
      _ <- getProcessStatus True False child
      pure (Just ("a child was still running after 25 s of the process's own time: " <> state))
  where
    await child begin = do
      status <- getProcessStatus False False child
      own <- ownTime
      case status of
        Just s -> pure (Just (show (Just s)))
        Nothing
          | own - begin > 25 -> pure Nothing
          | otherwise -> threadDelay 10000 >> await child begin
    -- Without time limits, except the parent's, whose clock takes the machine's load into account.
    body = do
      (r, w) <- createPipe
      T.threadDelay 1000
      got <- newEmptyMVar
      _ <- forkIO (T.threadWaitRead r >> putMVar got ())
      _ <- fdWrite w "x"
      came <- T.timeout 600000000 (takeMVar got)
      sum' <- H.run (H.sleep (milliseconds 1) >> pure (7 :: Int))
      pure (came == Just () && sum' == 7)

-- | The state of each thread of a process.
processState :: ProcessID -> IO String
processState p = do
  threads <- orNone (listDirectory tasks)
  intercalate "; " <$> forM threads (\t -> unwords . (("thread " <> t) :) <$> mapM (\f -> ((f <> ":") <>) <$> orNone (whole (tasks </> t </> f))) ["wchan", "syscall"])
  where
    tasks = "/proc" </> show p </> "task"
    whole f = readFile f >>= \s -> takeWhile (/= '\n') s <$ evaluate (length s)
    orNone act = either none id <$> try act
    none :: Monoid a => IOException -> a
    none _ = mempty

-- | Increase and decrease the number of capabilities in turn; the result stops that.
cycling :: IO (IO ())
cycling = do
  before <- getNumCapabilities
  t <- forkIO . forever $ forM_ [1, 2, 4, 3] (\n -> changeCapabilities n >> threadDelay 200000)
  pure (killThread t >> changeCapabilities before)
