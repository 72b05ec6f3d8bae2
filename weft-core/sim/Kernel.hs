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

import Control.Monad (forM_, when)
import Data.Bits
import "base" Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (fromMaybe)
import Data.Word (Word32)
import KernelRing (Completion (..), Ring, Submission (..))
import qualified KernelRing as Ring
import KernelStream
import Simulation
import System.IO.Unsafe (unsafePerformIO)

-- | How often each misbehaviour may happen in a run.
data Faults = Faults
  { -- | Events are reported in reverse order.
    faultReverse :: Int,
    -- | Only one of several events is reported.
    faultShort :: Int,
    -- | An event is reported for a registration that is not ready. With io_uring: the oldest request ends
    -- (@ECANCELED@), as if the thread that submitted it had exited.
    faultSpurious :: Int,
    -- | A wait fails with @EINTR@.
    faultInterrupt :: Int,
    -- | A registration fails with @ENOMEM@. With io_uring: entering fails with @EAGAIN@ and submits nothing;
    -- synchronous cancelling fails with @EINVAL@, as before Linux 6.0.
    faultRefuse :: Int
  }

noFaults, allFaults :: Faults
noFaults = Faults 0 0 0 0 0
allFaults = Faults 1 1 1 1 0

-- | What a descriptor refers to.
data File
  = ReadEnd !Int
  | WriteEnd !Int
  | EventFd !Int
  | Epoll !(IntMap.IntMap Interest)
  | Uring !Ring
  | Socket !Stream

-- | An epoll instance's registration of a descriptor.
data Interest = Interest
  { interestFile :: !Int,
    interestData :: !Int,
    interestBits :: !Word32,
    -- | 'False' if it is one-shot and has been reported.
    interestArmed :: !Bool,
    -- | Whether something has happened since the last report.
    interestNews :: !Bool
  }

data Pipe = Pipe {pipeBytes :: ![Int], pipeReaders :: !Int, pipeWriters :: !Int}

data Kernel = Kernel
  { kernelNumbers :: !(IntMap.IntMap Int),
    kernelFiles :: !(IntMap.IntMap File),
    kernelPipes :: !(IntMap.IntMap Pipe),
    kernelNext :: !Int,
    kernelFaults :: !Faults
  }

theKernel :: IORef Kernel
theKernel = unsafePerformIO (newIORef (booted noFaults))
{-# NOINLINE theKernel #-}

booted :: Faults -> Kernel
booted = Kernel IntMap.empty IntMap.empty IntMap.empty 0

-- | Reset the kernel, with nothing open.
bootKernel :: Faults -> IO ()
bootKernel = writeIORef theKernel . booted

-- | The open descriptors.
openNumbers :: IO [Int]
openNumbers = IntMap.keys . kernelNumbers <$> readIORef theKernel

-- | The capacity of a pipe in bytes.
capacity :: Int
capacity = 2

bitIn, bitOut, bitErr, bitHup, bitNval, bitRdHup, bitEt, bitOneShot :: Word32
bitIn = 1
bitOut = 4
bitErr = 8
bitHup = 0x10
bitNval = 0x20
bitRdHup = 0x2000
bitOneShot = 0x40000000
bitEt = 0x80000000

call :: String -> IO ()
call what = touch (Writes kernelObject) what >> synchronise kernelObject

-- | A step that blocks until the condition holds or the instant is reached.
blockingCall :: IO Bool -> Int64 -> String -> IO ()
blockingCall ready' end what = blockInKernel ready' end (Writes kernelObject) what >> synchronise kernelObject

-- | Allocate the lowest free number for a file.
install :: File -> IO Int
install f = addFile f >>= installNumber

-- | Add a file without a descriptor.
addFile :: File -> IO Int
addFile f = do
  k <- readIORef theKernel
  let file = kernelNext k
  file <$ writeIORef theKernel k {kernelFiles = IntMap.insert file f (kernelFiles k), kernelNext = file + 1}

installNumber :: Int -> IO Int
installNumber file = do
  k <- readIORef theKernel
  let number = head' [n | n <- [3 ..], n `IntMap.notMember` kernelNumbers k]
  number <$ writeIORef theKernel k {kernelNumbers = IntMap.insert number file (kernelNumbers k)}
  where
    head' = foldr const 0

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

isOpenNumber :: Int -> IO Bool
isOpenNumber n = IntMap.member n . kernelNumbers <$> readIORef theKernel

fileOf :: Kernel -> Int -> Maybe (Int, File)
fileOf k n = do
  i <- IntMap.lookup n (kernelNumbers k)
  (,) i <$> IntMap.lookup i (kernelFiles k)

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

-- | Remove those of these files to which nothing refers any more.
letGo :: [Int] -> IO ()
letGo [] = pure ()
letGo (i : others) = do
  k <- readIORef theKernel
  let held = or [i `elem` Ring.watchedFiles r | Uring r <- IntMap.elems (kernelFiles k)]
  case IntMap.lookup i (kernelFiles k) of
    Just f | not held && i `notElem` IntMap.elems (kernelNumbers k) -> do
      let forget (Epoll is) = Epoll (IntMap.filter ((/= i) . interestFile) is)
          forget g = g
          pipes = case f of
            ReadEnd p -> IntMap.adjust (\q -> q {pipeReaders = 0}) p (kernelPipes k)
            WriteEnd p -> IntMap.adjust (\q -> q {pipeWriters = 0}) p (kernelPipes k)
            _ -> kernelPipes k
      writeIORef theKernel k {kernelFiles = IntMap.map forget (IntMap.delete i (kernelFiles k)), kernelPipes = pipes}
      case f of
        ReadEnd p -> happened (\g -> case g of WriteEnd q -> q == p; _ -> False)
        WriteEnd p -> happened (\g -> case g of ReadEnd q -> q == p; _ -> False)
        Socket s -> mapM_ (partFrom s) (streamPeer s)
        _ -> pure ()
      letGo (others <> case f of Uring r -> Ring.watchedFiles r; Socket s -> streamQueue s; _ -> [])
    _ -> letGo others

-- | Tell a socket's peer that it was closed: by a reset if the socket was set to abort, has unread data, or was not
-- accepted yet.
partFrom :: Stream -> Int -> IO ()
partFrom s p = do
  peer <- streamNumbered p
  forM_ peer $ \ps -> do
    putStream p (if streamAborts s || streamArrived s /= mempty then ps {streamReset = True} else ps {streamEnded = True})
    happenedTo p

setPipe :: Int -> Pipe -> IO ()
setPipe p pipe = modifyIORef' theKernel (\k -> k {kernelPipes = IntMap.insert p pipe (kernelPipes k)})

setFile :: Int -> File -> IO ()
setFile i f = modifyIORef' theKernel (\k -> k {kernelFiles = IntMap.insert i f (kernelFiles k)})

-- | Record that something has happened to these files.
happened :: (File -> Bool) -> IO ()
happened which = do
  k <- readIORef theKernel
  mapM_ happenedTo [i | (i, f) <- IntMap.toList (kernelFiles k), which f]

happenedTo :: Int -> IO ()
happenedTo i = modifyIORef' theKernel (\k -> k {kernelFiles = IntMap.map (news k) (kernelFiles k)})
  where
    news _ (Epoll is) = Epoll (IntMap.map (\n -> if interestFile n == i then n {interestNews = True} else n) is)
    news k (Uring r) = Uring (Ring.notice i (maybe 0 (levels k) (IntMap.lookup i (kernelFiles k))) r)
    news _ f = f

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

-- | Whether the kernel misbehaves in this way now, if the scenario still allows it.
may :: (Faults -> Int) -> (Int -> Faults -> Faults) -> IO Bool
may get set = do
  left <- get . kernelFaults <$> readIORef theKernel
  if left == 0
    then pure False
    else do
      c <- choose 2
      if c == 0 then pure False else True <$ modifyIORef' theKernel (\k -> k {kernelFaults = set (left - 1) (kernelFaults k)})

-- | The events that are present for a file.
levels :: Kernel -> File -> Word32
levels k f = case f of
  ReadEnd p -> case IntMap.lookup p (kernelPipes k) of
    Just q -> (if null (pipeBytes q) then 0 else bitIn) .|. (if pipeWriters q == 0 then bitHup else 0)
    Nothing -> 0
  WriteEnd p -> case IntMap.lookup p (kernelPipes k) of
    Just q -> (if length (pipeBytes q) < capacity then bitOut else 0) .|. (if pipeReaders q == 0 then bitErr else 0)
    Nothing -> 0
  EventFd c -> bitOut .|. (if c > 0 then bitIn else 0)
  Epoll _ -> 0
  Uring _ -> 0
  Socket s ->
    (if readable s then bitIn else 0)
      .|. (if streamBacklog s == Nothing && streamPeer s /= Nothing && writable s (streamPeer s >>= streamIn k) then bitOut else 0)
      .|. (if streamEnded s || streamReset s then bitRdHup else 0)
      .|. (if streamReset s then bitErr .|. bitHup else 0)
      .|. (if streamEnded s && streamShut s then bitHup else 0)

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

streamIn :: Kernel -> Int -> Maybe Stream
streamIn k i = case IntMap.lookup i (kernelFiles k) of
  Just (Socket s) -> Just s
  _ -> Nothing

-- | The socket of a descriptor.
streamOf :: Int -> IO (Maybe (Int, Stream))
streamOf n = (\k -> fileOf k n >>= \(i, _) -> (,) i <$> streamIn k i) <$> readIORef theKernel

-- | The socket with this number among the files.
streamNumbered :: Int -> IO (Maybe Stream)
streamNumbered i = (`streamIn` i) <$> readIORef theKernel

putStream :: Int -> Stream -> IO ()
putStream i = setFile i . Socket

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

-- io_uring ---------------------------------------------------------------------------

-- | A ring with the given numbers of submission and completion entries.
newUring :: Int -> Int -> IO Int
newUring entries room = call "io_uring_setup" >> install (Uring (Ring.newRing entries room))

-- | A step on a ring, if the ring is open.
withRing :: Int -> a -> (Int -> Ring -> IO a) -> IO a
withRing n closed f = do
  k <- readIORef theKernel
  case fileOf k n of
    Just (i, Uring r) -> f i r
    _ -> closed <$ note "the ring is closed"

-- | Queue a request in shared memory: zero, or @-EAGAIN@ if the queue is full.
uringQueue :: Int -> Submission -> IO Int
uringQueue n s = do
  call ("queues " <> show s)
  withRing n (-9) $ \i r -> case Ring.enqueue s r of
    Nothing -> (-11) <$ note "the queue is full"
    Just r' -> 0 <$ setFile i (Uring r')

-- | io_uring_enter: the kernel takes the queued requests. With 'True' it also turns events into completions, and adds
-- the completions that it held back. Zero or a negated errno.
uringEnter :: Int -> Bool -> IO Int
uringEnter n bringing = do
  call ("io_uring_enter" <> if bringing then ", for completions" else "")
  withRing n (-9) $ \i _ -> do
    refused <- may faultRefuse (\x f -> f {faultRefuse = x})
    if refused
      then (-11) <$ note "it takes nothing"
      else do
        taken <- takeIn i
        when bringing (bringOut i)
        taken <$ sayRing i

-- | The kernel takes the queued requests; returns their number.
takeIn :: Int -> IO Int
takeIn i = do
  queued <- changeRing i Ring.takeQueue
  mapM_ submitted queued
  pure (length queued)
  where
    submitted s = do
      k <- readIORef theKernel
      case s of
        Watch n bits stays name -> change $ case fileOf k n of
          Nothing -> Ring.complete (Completion name (-9) False)
          Just (file, f) -> Ring.watch file bits stays name (levels k f)
        Cancel name -> do
          files <- filesOf
          -- If there is no such request, the kernel posts a completion with a name of its own.
          change (\r -> fromMaybe (Ring.complete (Completion (-1) (-2) False) r) (Ring.cancelWatch name r))
          letGo files
    change f = changeRing i ((,) () . f)
    filesOf = changeRing i (\r -> (Ring.watchedFiles r, r))

changeRing :: Int -> (Ring -> (a, Ring)) -> IO a
changeRing i f = do
  k <- readIORef theKernel
  case IntMap.lookup i (kernelFiles k) of
    Just (Uring r) -> let (a, r') = f r in a <$ setFile i (Uring r')
    _ -> ioError (userError "Kernel: no ring")

-- | Make completions of what has happened, and add those that were held back.
bringOut :: Int -> IO ()
bringOut i = do
  files <- changeRing i (\r -> (Ring.watchedFiles r, r))
  lost <- if null files then pure False else may faultSpurious (\x f -> f {faultSpurious = x})
  turned <- if length files < 2 then pure False else may faultReverse (\x f -> f {faultReverse = x})
  changeRing i (\r -> ((), Ring.bringOut turned (Ring.makeRoom (if lost then fromMaybe r (Ring.loseWatch r) else r))))
  when lost (note "the thread of its oldest request has exited")
  letGo files

sayRing :: Int -> IO ()
sayRing i = do
  k <- readIORef theKernel
  case IntMap.lookup i (kernelFiles k) of
    Just (Uring r) | (cs@(_ : _), _) <- Ring.reap maxBound r -> note ("the ring has " <> show cs)
    _ -> pure ()

-- | Enter for completions, and block until there is one; a negative time waits for ever. @-EINTR@, or @-ETIME@ if there
-- is none.
uringWait :: Int -> Int64 -> IO Int
uringWait n ns = do
  refused <- uringEnter n True
  if refused < 0
    then pure refused
    else do
      end <- if ns < 0 then pure maxBound else (+ ns) <$> virtualTime
      blockingCall some end ("io_uring_enter blocks" <> if ns < 0 then "" else ", until " <> show end)
      interrupted <- may faultInterrupt (\x f -> f {faultInterrupt = x})
      if interrupted
        then (-4) <$ note "io_uring_enter is interrupted by a signal"
        else withRing n (-9) $ \i _ -> do
          bringOut i
          sayRing i
          found <- changeRing i (\r -> (Ring.completed r, r))
          pure (if found then 0 else -62)
  where
    some = do
      k <- readIORef theKernel
      pure $ case fileOf k n of
        Just (_, Uring r) -> Ring.completed r || Ring.heldBack r || Ring.hasNews r
        _ -> True

-- | Cancel the submitted request with that name, synchronously. Zero, also if there is none; @-EINVAL@ if the kernel
-- cannot do that.
uringCancelNow :: Int -> Int -> IO Int
uringCancelNow n name = do
  call ("cancels " <> show name <> " at once")
  withRing n (-9) $ \i r -> do
    refused <- may faultRefuse (\x f -> f {faultRefuse = x})
    if refused
      then (-22) <$ note "it cannot do that"
      else do
        maybe (pure ()) (setFile i . Uring) (Ring.cancelWatch name r)
        0 <$ letGo (Ring.watchedFiles r)

-- | Whether something is queued, held back, completed, or will complete when the kernel is entered.
uringHas :: Int -> IO (Bool, Bool, Bool, Bool)
uringHas n = do
  call "looks at the ring"
  withRing n (False, False, False, False) (\_ r -> pure (Ring.isQueued r, Ring.heldBack r, Ring.completed r, Ring.hasNews r))

-- | Take at most the given number of completions.
uringReap :: Int -> Int -> IO [Completion]
uringReap n most = do
  call "takes completions"
  withRing n [] (\i r -> let (taken, r') = Ring.reap most r in taken <$ setFile i (Uring r'))

showBits :: Word32 -> String
showBits w = unwords ([name | (b, name) <- names, w .&. b /= 0])
  where
    names = [(bitIn, "in"), (bitOut, "out"), (bitErr, "err"), (bitHup, "hup"), (bitRdHup, "rdhup"), (bitEt, "edge"), (bitOneShot, "once"), (bitNval, "nval")]
