-- |
-- Running programs: a child process belongs to a block of code, and has ended when the block has.
--
-- > soon <- deadlineIn (seconds 5)
-- > (status, sorted, errors) <- readProcess (program "sort" ["-n"]) soon 1000000 numbers
--
-- What holds, whatever the child and the calling thread do, for a call of 'withProcess':
--
-- 1. /No child outlives it./ When it returns or throws, also because an exception has interrupted it, the child has
--    ended and its status was taken: there is no zombie. A child that still runs is told to end (@SIGTERM@), and
--    killed (@SIGKILL@) if it has not ended after 'programGrace'.
-- 2. /Nothing is left open/, neither pipes nor other descriptors.
-- 3. /The child gets its three standard streams/, and no other descriptor of the program, whether it was marked
--    close-on-exec or not. No signal is blocked in it, and those that the program handles have their default action.
-- 4. /What cannot be run is an error/ of 'withProcess', with the @errno@ of execve(2) and the program's name or that of
--    the folder; not an exit code.
--
-- The end of a child is an event of the manager, by a pidfd (Linux 5.3). No thread of the operating system waits for
-- it, and @SIGCHLD@ is not used, so that @System.Process@ and other libraries may use it. On other systems, and if
-- the kernel has no pidfd to give, the kernel is asked after pauses of up to 20 ms.
--
-- A program that is started costs the same however large the heap is: it is not copied (@cbits\/process.c@).
--
-- Any thread may call these functions. All but the end of 'withProcess' are interruptible while they wait. Other
-- parts of the program must not collect the status of children that are not theirs, by @waitpid(-1)@ or by ignoring
-- @SIGCHLD@: the status is lost then, and 'waitProcess' throws @ECHILD@. GHC's run-time system handles @SIGPIPE@, and
-- in a program that does not let it, a child that closes its input ends the program when it writes on.
--
-- In a child of 'System.Posix.Process.forkProcess', which has not started the program, 'waitProcess' throws @ECHILD@, and
-- 'signalProcess' has no effect: nothing keeps the number of the process for the forked child.
--
-- A child's children are not known to the kernel as ours. A program that starts others gets a group of its own
-- ('programGroup'), whose members are signalled with it.
--
-- @since 0.1.0
module Weft.Process
  ( -- * Programs
    Program (..),
    program,
    Stream (..),

    -- * Running
    withProcess,
    readProcess,

    -- * Processes
    Process,
    processId,
    processConnection,
    processErrors,
    waitProcess,
    signalProcess,
    ExitStatus (..),
    succeeded,
  )
where

import Control.Concurrent (yield)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad (msum, unless, void, when)
import Data.ByteString (ByteString)
import Data.Functor ((<&>))
import Data.Maybe (fromMaybe, isJust, isNothing)
import Foreign.C.Error (Errno (..), eBADF, eCHILD, eINVAL, ePIPE, eSRCH)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (alloca)
import Foreign.Marshal.Array (allocaArray, peekArray, withArray, withArray0)
import Foreign.Ptr (Ptr, nullPtr)
import Foreign.Storable (peek)
import GHC.IO.Exception (IOException (ioe_errno, ioe_filename))
import System.Environment (lookupEnv)
import System.Posix.Signals (Signal, sigKILL, sigTERM)
import System.Posix.Types (CPid, Fd (..))
import Weft.Core.Descriptor (descriptorFd)
import Weft.Core.Events (evtRead)
import Weft.Core.PerProcess
import Weft.Core.Time (after)
import qualified Weft.Core.Time as Time (until)
import Weft.Deadline (Instant, deadlineIn, noDeadline, timeoutError, untilDeadline)
import Weft.Duration
import Weft.FFI.Errno (errnoError, throwErrnoCode)
import Weft.FFI.Path (withPath)
import Weft.FFI.Process
import Weft.Process.Pipes
import Weft.Reader (newReader, readToEnd)
import Weft.Runtime.Managers (currentManager)
import Weft.Scope (await, fork, forkDaemon, withScope)
import Weft.Socket.Types
import Weft.StandardError (reportLine)
import Weft.Sys (now)
import Weft.Thread.Wait (waitDescriptor)
import Weft.Timer (sleep, within)
import Weft.Transport.Types

-- Programs ---------------------------------------------------------------------------

-- | What to run, and with what. Begin with 'program'.
data Program = Program
  { -- | A path, or, without a slash, the name of a program that is looked for in the folders of @PATH@, as execvp(3)
    -- does. A file in no known format is refused with @ENOEXEC@, and not given to a shell.
    programPath :: FilePath,
    -- | Its arguments, without its own name.
    programArguments :: [String],
    -- | Its environment: names, which are not empty and have no @=@ (@EINVAL@), and values. 'Nothing': that of the
    -- calling program, whose @PATH@ it is in any case where a program is looked for.
    programEnvironment :: Maybe [(String, String)],
    -- | The folder that it begins in. 'Nothing': that of the calling program. A relative 'programPath' is relative to
    -- it.
    programFolder :: Maybe FilePath,
    programInput, programOutput, programErrors :: Stream,
    -- | Whether it gets a process group of its own, to which all signals go, and of which all that is left is killed
    -- when the child has ended and 'withProcess' ends. A terminal's keys do not reach such a group, and it cannot
    -- read from the terminal.
    programGroup :: Bool,
    -- | The time between @SIGTERM@ and @SIGKILL@, when 'withProcess' ends before the child does.
    programGrace :: Duration
  }

-- | A program with its arguments: environment, folder and streams are those of the calling program, it has no group of
-- its own, and five seconds of grace.
program :: FilePath -> [String] -> Program
program path arguments =
  Program
    { programPath = path,
      programArguments = arguments,
      programEnvironment = Nothing,
      programFolder = Nothing,
      programInput = Inherit,
      programOutput = Inherit,
      programErrors = Inherit,
      programGroup = False,
      programGrace = seconds 5
    }

-- | What one of the three standard streams of a program is.
data Stream
  = -- | The stream of the calling program.
    Inherit
  | -- | @\/dev\/null@.
    Null
  | -- | A pipe: 'processConnection' and 'processErrors' have the other end. It holds 64 KiB, and the one that writes
    -- then waits for the one that reads.
    Pipe
  | -- | A copy of this open descriptor, which stays the caller's. If it is not open, starting the program fails with
    -- @EBADF@.
    Copy Fd
  deriving (Eq, Show)

-- Processes --------------------------------------------------------------------------

-- | A child that was started by 'withProcess'.
data Process = Process
  { -- | The process's number. Another process may get it after 'withProcess' has ended.
    processId :: !CPid,
    -- | The child's standard input, for what is sent, and its standard output, for what is received, where they are a
    -- 'Pipe'; what is not fails with @EBADF@. 'connShutdownSend' ends the child's input. A send throws @EPIPE@ when no
    -- process has the input open any more; a receive finds the end of the stream when none has the output open: the
    -- child may have left it to children of its own. What the child wrote before its end can be received after it.
    processConnection :: !Connection,
    -- | The child's standard error, to be received from, if it is a 'Pipe'.
    processErrors :: !Connection,
    processProgram :: !Program,
    -- | The pidfd, if there is one.
    processEvent :: !(Maybe Socket),
    -- | In a forked child it is 'Over' (@ECHILD@).
    processState :: !(PerProcess (MVar State))
  }

-- | The kernel keeps the number of a child for us until its status is taken. A signal is therefore sent with the state
-- held, and only while it is 'Ours'. Only the end of 'withProcess' changes it, once.
data State
  = -- | The child runs, or has ended and is a zombie.
    Ours
  | -- | Its status has been taken; or it was lost, and taking it has failed with that errno.
    Over !(Either CInt ExitStatus)

-- | How a child has ended.
data ExitStatus
  = -- | It has exited, with this code.
    Exited !Int
  | -- | This signal has killed it.
    Killed !Signal
  deriving (Eq, Show)

-- | Whether it has exited with the code 0.
succeeded :: ExitStatus -> Bool
succeeded = (== Exited 0)

-- | Start a program, run the action, and end the program (see the top of this module), if it has not ended by itself:
-- an action that wants it to calls 'waitProcess' last.
--
-- Throws an 'IOError' if the program cannot be started, among others @ENOENT@, @EACCES@ and @ENOEXEC@ for the program
-- or its folder, @E2BIG@ if the arguments are too long, @EMFILE@ without free descriptors. The end is not
-- interruptible. It takes as long as the child does, which is, if it cannot be stopped otherwise, the grace and the
-- moment that @SIGKILL@ takes. (A child inside a system call that cannot be interrupted, of a file system that hangs,
-- is named on standard error after ten seconds, and waited for.)
withProcess :: Program -> (Process -> IO a) -> IO a
withProcess p = bracket (start p) (uninterruptibleMask_ . end)

-- | Run a program with this input, and return how it ended, its output and what it wrote to standard error, when it has
-- ended and both streams have. All three streams are pipes. A program that reads only a part of its input is no error;
-- what no child of its own has read of it by then either is dropped.
--
-- If the deadline passes first, it throws an error that satisfies 'Weft.Deadline.isTimeout', and if one of the results
-- is longer than the given number of bytes, 'Weft.Reader.LimitExceeded'; the program is ended then. It may leave
-- children that keep its streams open, and then only the deadline ends the reading.
readProcess :: Program -> Instant -> Int -> ByteString -> IO (ExitStatus, ByteString, ByteString)
readProcess p deadline most input = do
  left <- untilDeadline deadline
  -- One limit for all: each of the threads would report its own.
  found <- withProcess piped (within left . communicate)
  maybe (ioError (timeoutError (location "readProcess" p))) pure found
  where
    piped = p {programInput = Pipe, programOutput = Pipe, programErrors = Pipe}
    communicate process = withScope $ \scope -> do
      -- Not awaited: the program may have left its input to a child that reads nothing.
      _ <- forkDaemon scope (feed (processConnection process))
      failing <- fork scope (contents (processErrors process))
      output <- contents (processConnection process)
      errors <- await failing
      ended <- waitProcess process noDeadline
      pure (ended, output, errors)
    contents connection = newReader connection >>= \r -> readToEnd r noDeadline most
    feed connection = do
      connSendBytes connection noDeadline input `catch` \e ->
        unless (fmap Errno (ioe_errno e) == Just ePIPE) (ioError e)
      connShutdownSend connection noDeadline

-- | Wait until the child has ended, and return how. It returns at once if it has. Any number of threads may wait, and
-- also after the end of 'withProcess'. If the deadline passes first, it throws an error that satisfies
-- 'Weft.Deadline.isTimeout'; the child goes on.
waitProcess :: Process -> Instant -> IO ExitStatus
waitProcess p deadline = waitUntil p deadline >>= maybe (ioError (timeoutError loc)) (either (throwErrnoCode loc) pure)
  where
    loc = location "waitProcess" (processProgram p)

-- | Send a signal ("Weft.Signal" has names) to the child, or to its group if it has one. No effect if it has ended.
-- Throws @EPERM@ if the child runs as another user, and @EINVAL@ if there is no such signal.
signalProcess :: Process -> Signal -> IO ()
signalProcess p signal = do
  r <- send p signal
  unless (r >= 0 || Errno (negate r) == eSRCH) (throwErrnoCode (location "signalProcess" (processProgram p)) (negate r))

location :: String -> Program -> String
location name p = "Weft.Process." <> name <> ": " <> programPath p

-- Starting ---------------------------------------------------------------------------

-- | Masked. If it throws, there is no child, and nothing is open.
start :: Program -> IO Process
start p = do
  when (any unopened streams) (ioError (errnoError loc badDescriptor) {ioe_filename = Just (programPath p)})
  when (any (unnamed . fst) (concat (programEnvironment p))) $
    ioError (errnoError loc invalid) {ioe_filename = Just (programPath p)}
  -- A child that nothing can wait for is not started.
  _ <- currentManager
  paths <- candidates (programPath p)
  withStrings paths $ \pathp -> withStrings (programPath p : programArguments p) $ \argumentp ->
    perhaps withStrings (map variable <$> programEnvironment p) $ \environmentp ->
      perhaps (withPath loc) (programFolder p) $ \folderp ->
        withArray (map number streams) $ \streamp ->
          allocaArray 3 $ \oursp -> alloca $ \pidfdp -> alloca $ \stepp -> do
            r <- cProcessStart pathp argumentp environmentp folderp streamp (grouped p) oursp pidfdp stepp
            if r < 0
              then peek stepp >>= ioError . failed (fromIntegral (negate r))
              else do
                ends <- peekArray 3 oursp >>= mapM (owned True)
                Process r (connectionOf (take 2 ends)) (connectionOf (drop 2 ends)) p
                  <$> (peek pidfdp >>= owned False)
                  <*> (newMVar Ours >>= newPerProcessFrom foreign')
  where
    loc = "Weft.Process.withProcess"
    streams = [programInput p, programOutput p, programErrors p]
    -- Negative numbers say something else to @cbits\/process.c@.
    unopened stream = case stream of
      Copy fd -> fd < 0
      _ -> False
    -- As setenv(3) has it: the child would see another variable.
    unnamed name = null name || '=' `elem` name
    Errno badDescriptor = eBADF
    Errno invalid = eINVAL
    withStrings strings act = go [] strings
      where
        go found [] = withArray0 nullPtr (reverse found) act
        go found (s : rest) = withPath loc s (\c -> go (c : found) rest)
    variable (name, value) = name <> "=" <> value
    owned drains fd = if fd < 0 then pure Nothing else Just <$> mkStreamSocket drains fd
    connectionOf ends = case ends of
      [input, output] -> pipesConnection input output
      others -> pipesConnection Nothing (msum others)
    failed code step = (errnoError loc code) {ioe_filename = blamed step}
    -- As @cbits\/process.c@ numbers the steps: 1 is the folder's.
    blamed step = if step == 1 then programFolder p else Just (programPath p)

-- | The state for a forked child, whose sibling the program is.
foreign' :: MVar State -> IO (MVar State)
foreign' inherited = do
  state <- tryReadMVar inherited
  newMVar $ case state of
    Just (Over r) -> Over r
    _ -> Over (Left noChild)
  where
    Errno noChild = eCHILD

-- | With a null pointer for 'Nothing'.
perhaps :: (a -> (Ptr b -> IO r) -> IO r) -> Maybe a -> (Ptr b -> IO r) -> IO r
perhaps with found act = maybe (act nullPtr) (`with` act) found

-- | As @cbits\/process.c@ has it.
number :: Stream -> CInt
number stream = case stream of
  Inherit -> -1
  Null -> -2
  Pipe -> -3
  Copy (Fd fd) -> fd

grouped :: Program -> CInt
grouped p = if programGroup p then 1 else 0

-- | The paths that a program's name stands for, in the order of @PATH@.
candidates :: FilePath -> IO [FilePath]
candidates path
  | null path || '/' `elem` path = pure [path]
  | otherwise = map inside . folders . fromMaybe "/bin:/usr/bin" <$> lookupEnv "PATH"
  where
    inside folder = if null folder then path else folder <> "/" <> path
    folders list = case break (== ':') list of
      (folder, _ : rest) -> folder : folders rest
      (folder, []) -> [folder]

-- Ending -----------------------------------------------------------------------------

-- | End the child and forget it. Not interruptible, and throws nothing.
end :: Process -> IO ()
end p = do
  connClose (processConnection p)
  connClose (processErrors p)
  running <- isNothing <$> look p
  when running (void (send p sigTERM))
  t <- now
  ended <- waitUntil p (after (programGrace (processProgram p)) t)
  when (isNothing ended) $ do
    void (send p sigKILL)
    soon <- deadlineIn (seconds 10)
    killed <- waitUntil p soon
    when (isNothing killed) $ do
      let name = programPath (processProgram p) <> " (process " <> show (processId p) <> ")"
      reportLine ("weft: killed, and still running: " <> name)
      void (waitUntil p noDeadline)
  state <- ofThisProcess (processState p)
  modifyMVar_ state $ \_ -> do
    -- The child is still a zombie, so that no other group has its number.
    when (programGroup (processProgram p)) (void (deliver p sigKILL))
    Over . fromMaybe (Left noChild) <$> status p 1
  mapM_ close (processEvent p)
  where
    Errno noChild = eCHILD

-- | Wait for the end of the child, or until the deadline.
waitUntil :: Process -> Instant -> IO (Maybe (Either CInt ExitStatus))
waitUntil p deadline = go (milliseconds 1)
  where
    go pause = do
      found <- look p
      t <- now
      if isJust found || t >= deadline
        then pure found
        else do
          noticed <- event
          if noticed then look p >>= maybe (rest pause) (pure . Just) else rest pause
    -- Without a pidfd; or it can be had and not be waited for (Linux 5.2), which says at once that the child has ended.
    rest pause = do
      t <- now
      sleep (min pause (Time.until deadline t)) `catch` \e -> const yield (e :: IOException)
      go (min (milliseconds 20) (pause <> pause))
    event = case processEvent p of
      Nothing -> pure False
      Just s ->
        try (withDescriptor s (\d -> waitDescriptor d evtRead deadline)) <&> \r -> case r of
          Left e -> const False (e :: IOException)
          Right _ -> True

withState :: Process -> (State -> IO a) -> IO a
withState p act = ofThisProcess (processState p) >>= \state -> withMVar state act

-- | How the child has ended, if it has.
look :: Process -> IO (Maybe (Either CInt ExitStatus))
look p = withState p $ \state -> case state of
  Over r -> pure (Just r)
  Ours -> status p 0

-- | Ask the kernel, with the state held; 1: take the status.
status :: Process -> CInt -> IO (Maybe (Either CInt ExitStatus))
status p taking = withEvent p $ \pidfd -> alloca $ \resultp -> do
  how <- cProcessStatus (processId p) pidfd taking resultp
  result <- peek resultp
  pure $ case how of
    0 -> Nothing
    1 -> Just (Right (Exited (fromIntegral result)))
    2 -> Just (Right (Killed result))
    _ -> Just (Left (negate how))

-- | Send a signal, unless the child has ended for us. Returns 0 or @-errno@.
send :: Process -> Signal -> IO CInt
send p signal = withState p $ \state -> case state of
  Over _ -> pure 0
  Ours -> deliver p signal

deliver :: Process -> Signal -> IO CInt
deliver p signal = withEvent p $ \pidfd ->
  cProcessSignal (processId p) pidfd (grouped (processProgram p)) signal

-- | The pidfd, which is open as long as the state is held and 'Ours', or -1.
withEvent :: Process -> (CInt -> IO a) -> IO a
withEvent p act = case processEvent p of
  Nothing -> act (-1)
  Just s -> withDescriptor s (\d -> let Fd fd = descriptorFd d in act fd)
