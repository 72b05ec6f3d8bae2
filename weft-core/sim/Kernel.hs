{-# LANGUAGE PackageImports #-}

-- |
-- A model of the kernel for the simulated machine: descriptors, of which the lowest free number is allocated next;
-- pipes and eventfds; epoll with level and edge triggering and one-shot mode; poll; io_uring ("KernelRing"). Each call
-- is one step. The modules "Weft.FFI.Epoll", "Weft.FFI.Poll", "Weft.FFI.Uring" and "Weft.FFI.Wakeup" of this directory
-- have the names and types of the real modules, so that the production source of the back ends runs on the model.
--
-- Where a real kernel has a choice, so does the model, as far as the scenario allows ('Faults'): it may report events
-- in another order or one at a time, report spurious events, be interrupted by a signal, and refuse. The schedule
-- makes each of these choices.
module Kernel
  ( -- * Setting up
    Faults (..),
    noFaults,
    allFaults,
    bootKernel,
    openNumbers,

    -- * Calls
    newPipe,
    newEventFd,
    newEpoll,
    duplicate,
    readBytes,
    writeBytes,
    closeNumber,
    epollControl,
    Control (..),
    epollCollect,
    pollCollect,
    isOpenNumber,
    presentBits,

    -- * For "KernelSocket"
    kernelCall,
    kernelMay,
    happenedTo,
    installStream,
    installNumber,
    newFile,
    streamOf,
    streamNumbered,
    putStream,
    allStreams,

    -- * io_uring
    newUring,
    uringQueue,
    uringEnter,
    uringWait,
    uringCancelNow,
    uringHas,
    uringReap,
  )
where

import Data.Bits
import "base" Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import Data.Word (Word32)
import KernelState
import KernelStream
import KernelUring
import Simulation

-- | A pipe; the reading end first.
newPipe :: IO (Int, Int)
newPipe = do
  call "pipe"
  k <- readIORef theKernel
  let p = kernelNext k
  writeIORef theKernel k {kernelPipes = IntMap.insert p (Pipe [] 1 1) (kernelPipes k), kernelNext = p + 1}
  r <- install (ReadEnd p)
  w <- install (WriteEnd p)
  note ("opens a pipe: " <> show r <> " and " <> show w)
  pure (r, w)

newEventFd, newEpoll :: IO Int
newEventFd = call "eventfd" >> install (EventFd 0)
newEpoll = call "epoll_create" >> install (Epoll IntMap.empty)

-- | A second number for the file of a descriptor, as dup(2) gives.
duplicate :: Int -> IO Int
duplicate n = do
  call ("dup(" <> show n <> ")")
  k <- readIORef theKernel
  maybe (pure (-9)) (installNumber . fst) (fileOf k n)

-- | A non-blocking read: the bytes, none at the end of the stream, or a negated errno.
readBytes :: Int -> Int -> IO (Either Int [Int])
readBytes n most = do
  call ("read(" <> show n <> ")")
  k <- readIORef theKernel
  r <- case fileOf k n of
    Just (_, ReadEnd p) | Just pipe <- IntMap.lookup p (kernelPipes k) -> case splitAt most (pipeBytes pipe) of
      ([], _) | pipeWriters pipe > 0 -> pure (Left (-11))
      (got, rest) -> do
        setPipe p pipe {pipeBytes = rest}
        happened (\f -> case f of WriteEnd q -> q == p && length (pipeBytes pipe) >= capacity; _ -> False)
        pure (Right got)
    Just (i, EventFd c) | c > 0 -> Right [c] <$ setFile i (EventFd 0)
    Just (_, EventFd _) -> pure (Left (-11))
    _ -> pure (Left (-9))
  r <$ note ("read gives " <> show r)

-- | A non-blocking write: the number of bytes written, or a negated errno.
writeBytes :: Int -> [Int] -> IO Int
writeBytes n bytes = do
  call ("write(" <> show n <> ", " <> show bytes <> ")")
  k <- readIORef theKernel
  r <- case fileOf k n of
    Just (_, WriteEnd p) | Just pipe <- IntMap.lookup p (kernelPipes k) -> do
      let room = take (capacity - length (pipeBytes pipe)) bytes
      case () of
        _
          | pipeReaders pipe == 0 -> pure (-32)
          | null room -> pure (-11)
          | otherwise -> do
            setPipe p pipe {pipeBytes = pipeBytes pipe <> room}
            happened (\f -> case f of ReadEnd q -> q == p; _ -> False)
            pure (length room)
    Just (i, EventFd c) -> do
      setFile i (EventFd (c + sum bytes))
      8 <$ happenedTo i
    _ -> pure (-9)
  r <$ note ("write gives " <> show r)

-- | Close a descriptor: zero or a negated errno. Registrations of the number end with its file, which lives as long as
-- an io_uring request refers to it.
closeNumber :: Int -> IO Int
closeNumber n = do
  call ("close(" <> show n <> ")")
  k <- readIORef theKernel
  case fileOf k n of
    Nothing -> (-9) <$ note "close: it is not open"
    Just (i, _) -> do
      writeIORef theKernel k {kernelNumbers = IntMap.delete n (kernelNumbers k)}
      0 <$ letGo [i]

data Control = Add | Modify | Delete
  deriving (Eq, Show)

-- | epoll_ctl: zero or a negated errno.
epollControl :: Int -> Control -> Int -> Word32 -> Int -> IO Int
epollControl ep op n bits user = do
  call ("epoll_ctl(" <> show op <> ", " <> show n <> ", " <> showBits bits <> ")")
  k <- readIORef theKernel
  r <- case (fileOf k ep, fileOf k n) of
    (Just (e, Epoll is), Just (i, _)) -> do
      let known = maybe False ((== i) . interestFile) (IntMap.lookup n is)
          put = 0 <$ setFile e (Epoll (IntMap.insert n (Interest i user bits True True) is))
      case op of
        Delete
          | known -> 0 <$ setFile e (Epoll (IntMap.delete n is))
          | otherwise -> pure (-2)
        Add | known -> pure (-17)
        Modify | not known -> pure (-2)
        _ -> do
          refused <- may faultRefuse (\x f -> f {faultRefuse = x})
          if refused then pure (-12) else put
    _ -> pure (-9)
  r <$ if r == 0 then pure () else note ("epoll_ctl gives " <> show r)

-- Sockets -----------------------------------------------------------------------------

-- | A step of the kernel.
kernelCall :: String -> IO ()
kernelCall = call

-- | Whether the kernel misbehaves in this way now, if the scenario still allows it.
kernelMay :: (Faults -> Int) -> (Int -> Faults -> Faults) -> IO Bool
kernelMay = may

-- | Give a socket the lowest free descriptor.
installStream :: Stream -> IO Int
installStream = install . Socket

-- | Add a socket without a descriptor; returns its number among the files.
newFile :: Stream -> IO Int
newFile = addFile . Socket

allStreams :: IO [(Int, Stream)]
allStreams = (\k -> [(i, s) | (i, Socket s) <- IntMap.toList (kernelFiles k)]) <$> readIORef theKernel

ready :: Kernel -> Interest -> Word32
ready k i
  | not (interestArmed i) = 0
  | interestBits i .&. bitEt /= 0 && not (interestNews i) = 0
  | otherwise = maybe 0 (\f -> levels k f .&. (interestBits i .|. bitErr .|. bitHup)) (IntMap.lookup (interestFile i) (kernelFiles k))

interests :: Kernel -> Int -> Maybe (Int, IntMap.IntMap Interest)
interests k ep = case fileOf k ep of
  Just (e, Epoll is) -> Just (e, is)
  _ -> Nothing

-- | epoll_wait, for at most the given number of events; returns bits and user data. 'Nothing' does not block; a
-- negative time waits for ever.
epollCollect :: Int -> Int -> Maybe Int64 -> IO (Either Int [(Word32, Int)])
epollCollect ep most wait = do
  case wait of
    Nothing -> call "epoll_wait, without blocking"
    Just ns -> do
      end <- if ns < 0 then pure maxBound else (+ ns) <$> virtualTime
      blockingCall anyReady end ("epoll_wait" <> if ns < 0 then "" else ", until " <> show end)
  k <- readIORef theKernel
  case interests k ep of
    Nothing -> pure (Left (-9))
    Just (e, is) -> do
      interrupted <- maybe (pure False) (const (may faultInterrupt (\x f -> f {faultInterrupt = x}))) wait
      if interrupted
        then Left (-4) <$ note "epoll_wait is interrupted by a signal"
        else do
          let found = [(n, i, bits) | (n, i) <- IntMap.toList is, let bits = ready k i, bits /= 0]
              quiet = [(n, i, interestBits i .&. bitIn) | (n, i) <- IntMap.toList is, interestArmed i, ready k i == 0, interestBits i .&. (bitIn .|. bitRdHup) == bitIn .|. bitRdHup]
          spurious <- if null quiet then pure False else may faultSpurious (\x f -> f {faultSpurious = x})
          turned <- if length found < 2 then pure False else may faultReverse (\x f -> f {faultReverse = x})
          short <- if length found < 2 then pure False else may faultShort (\x f -> f {faultShort = x})
          let ordered = (if turned then reverse else id) found
              taken = take (if short then 1 else most) (ordered <> (if spurious then take 1 quiet else []))
              used i = i {interestNews = False, interestArmed = interestArmed i && interestBits i .&. bitOneShot == 0}
          setFile e (Epoll (foldr (\(n, _, _) -> IntMap.adjust used n) is taken))
          note ("epoll_wait gives " <> show [(n, showBits b) | (n, _, b) <- taken])
          pure (Right [(b, interestData i) | (_, i, b) <- taken])
  where
    anyReady = do
      k <- readIORef theKernel
      pure (maybe True (any ((/= 0) . ready k) . snd) (interests k ep))

-- | poll: the present events of each number, of those asked for. It uses the files to which the numbers refer when
-- it begins.
pollCollect :: [(Int, Word32)] -> Maybe Int64 -> IO (Either Int [Word32])
pollCollect asked wait = do
  call ("poll" <> maybe ", without blocking," (const "") wait <> " of " <> show (map fst asked))
  k <- readIORef theKernel
  let held = [(fst <$> fileOf k n, bits) | (n, bits) <- asked]
      now = (\k' -> map (seen k') held) <$> readIORef theKernel
  case wait of
    Nothing -> pure ()
    Just ns -> do
      end <- if ns < 0 then pure maxBound else (+ ns) <$> virtualTime
      blockingCall (any (/= 0) <$> now) end ("poll blocks" <> if ns < 0 then "" else ", until " <> show end)
  interrupted <- maybe (pure False) (const (may faultInterrupt (\x f -> f {faultInterrupt = x}))) wait
  if interrupted
    then Left (-4) <$ note "poll is interrupted by a signal"
    else do
      found <- now
      note ("poll gives " <> show [(n, showBits b) | ((n, _), b) <- zip asked found, b /= 0])
      pure (Right found)
  where
    -- A file that is closed in the meantime has nothing to report.
    seen k (file, bits) = case file of
      Nothing -> bitNval
      Just i -> maybe 0 (\f -> levels k f .&. (bits .|. bitErr .|. bitHup)) (IntMap.lookup i (kernelFiles k))

-- | The present events of a number, of those asked for and those that are always reported.
presentBits :: Int -> Word32 -> IO Word32
presentBits n bits = do
  call ("poll, without blocking, of " <> show n)
  k <- readIORef theKernel
  pure (maybe bitNval (\(_, f) -> levels k f .&. (bits .|. bitErr .|. bitHup)) (fileOf k n))
