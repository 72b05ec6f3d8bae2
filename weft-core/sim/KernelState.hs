{-# LANGUAGE PackageImports #-}

-- | The state of the model kernel of the simulated machine ("Kernel"): descriptors, the files to which they refer, what
-- may go wrong, and what is ready. For the modules that implement system calls. Nothing here is a step of a schedule,
-- except for 'call' and 'blockingCall', with which a system call begins, and for the choice in 'may'.
module KernelState
  ( -- * The kernel
    Faults (..),
    noFaults,
    allFaults,
    Kernel (..),
    theKernel,
    bootKernel,
    openNumbers,
    may,

    -- * Steps
    call,
    blockingCall,

    -- * Descriptors and files
    File (..),
    Interest (..),
    Pipe (..),
    install,
    addFile,
    installNumber,
    isOpenNumber,
    fileOf,
    setPipe,
    setFile,
    letGo,

    -- * Events
    capacity,
    levels,
    happened,
    happenedTo,
    bitIn,
    bitOut,
    bitErr,
    bitHup,
    bitNval,
    bitRdHup,
    bitEt,
    bitOneShot,
    showBits,

    -- * Sockets
    streamIn,
    streamOf,
    streamNumbered,
    putStream,
  )
where

import Control.Monad (forM_)
import Data.Bits
import "base" Data.IORef
import Data.Int (Int64)
import qualified Data.IntMap.Strict as IntMap
import Data.Word (Word32)
import KernelRing (Ring)
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
    faultRefuse :: Int,
    -- | Synchronous cancelling of an io_uring request gives up (@EBUSY@), as the thread that submitted it does not run.
    -- The request refers to its file until it is cancelled again, or the kernel is entered for completions.
    faultUnfinished :: Int
  }

noFaults, allFaults :: Faults
noFaults = Faults 0 0 0 0 0 0
allFaults = Faults 1 1 1 1 0 0

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

isOpenNumber :: Int -> IO Bool
isOpenNumber n = IntMap.member n . kernelNumbers <$> readIORef theKernel

fileOf :: Kernel -> Int -> Maybe (Int, File)
fileOf k n = do
  i <- IntMap.lookup n (kernelNumbers k)
  (,) i <$> IntMap.lookup i (kernelFiles k)

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
        Socket s -> do
          mapM_ (partFrom s) (streamPeer s)
          forM_ (streamQueue s) $ \waiting -> streamNumbered waiting >>= mapM_ (\w -> putStream waiting w {streamAborts = True})
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

showBits :: Word32 -> String
showBits w = unwords ([name | (b, name) <- names, w .&. b /= 0])
  where
    names = [(bitIn, "in"), (bitOut, "out"), (bitErr, "err"), (bitHup, "hup"), (bitRdHup, "rdhup"), (bitEt, "edge"), (bitOneShot, "once"), (bitNval, "nval")]
