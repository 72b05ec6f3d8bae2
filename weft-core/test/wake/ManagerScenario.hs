-- |
-- A whole manager on the simulated machine: production source of the manager, the registry, readiness, descriptors, timers
-- and two back ends, over the model kernel. Thread 0 is a dispatcher in each scenario.
module ManagerScenario
  ( managerTests,
  )
where

import Control.Exception (AsyncException (ThreadKilled), SomeException)
import Control.Monad
import Data.Either (fromRight)
import Data.IORef
import Data.List (sort, (\\))
import Foreign.C.Types (CUInt)
import Kernel
import Search
import Simulation (Scenario (..), blockUntil)
import System.Posix.Types (Fd)
import Test.Tasty
import qualified Weft.Backend.Epoll as Epoll
import qualified Weft.Backend.Poll as Poll
import qualified Weft.Backend.Uring as Uring
import Weft.Core.Backend
import Weft.Core.Descriptor
import Weft.Core.Events
import Weft.Core.Manager
import Weft.Core.Readiness (sawHangup)
import Weft.Core.Registry
import Weft.Core.Time (Instant (..), never)
import Weft.Core.Timer (Expiry (..), cancelTimer)
import Weft.Core.Timer.Search (newSearchQueue)
import Weft.FFI.RingEntries (preferRingEntries)
import Weft.Sys

-- | The machine of one run.
data Machine = Machine
  { theRegistry :: Registry Manager,
    -- | The first that is alive serves.
    theManagers :: [Manager],
    -- | An error that was observed during the run.
    blamed :: IORef (Maybe String)
  }

-- | A back end by name, and how often the kernel misbehaves.
data Setting = Setting {settingBackend :: IO Backend, settingFaults :: Faults}

onEpoll, onPoll :: Setting
onEpoll = Setting Epoll.new noFaults
onPoll = Setting Poll.new noFaults

-- | Rings with this many entries, and a completion queue of as many.
onUring :: CUInt -> Setting
onUring entries = Setting (preferRingEntries (Just entries) >> Uring.new) noFaults

-- | This many managers that share a registry.
machine :: Setting -> Int -> IO Machine
machine setting n = do
  bootKernel (settingFaults setting)
  registry <- registryFor
  ms <- forM [0 .. n - 1] $ \i -> do
    queue <- newSearchQueue
    newManager i registry queue (\_ _ -> pure ()) =<< settingBackend setting
  Machine registry ms <$> newIORef Nothing

blame :: Machine -> String -> IO ()
blame x = writeIORef (blamed x) . Just

firstManager :: Machine -> Manager
firstManager = foldr const (error "ManagerScenario: no manager") . theManagers

-- | The dispatcher of that manager.
dispatcher :: Machine -> Int -> IO ()
dispatcher x i = mask_ $ do
  ok <- initialize m
  when ok (loop m)
  where
    m = theManagers x !! i

alive :: Machine -> IO Manager
alive x = go (theManagers x)
  where
    go [m] = pure m
    go (m : ms) = isAlive m >>= \ok -> if ok then pure m else go ms
    go [] = ioError (userError "no manager")

-- | Take charge of a number.
owned :: Machine -> Int -> IO Descriptor
owned x n = newDescriptor (pure (theRegistry x)) (alive x) (fromIntegral n) $ do
  r <- closeNumber n
  when (r < 0) (blame x ("closed twice: " <> show n))
  pure (pure ())

-- | Read at most this many bytes, as sockets do.
reading :: Machine -> Descriptor -> Instant -> Int -> IO (Outcome [Int])
reading x d deadline most = perform d Reading deadline (operation x most (readBytes (number d) most))

number :: Descriptor -> Int
number = fromIntegral . descriptorFd

operation :: Machine -> Int -> IO (Either Int [Int]) -> IO (Attempt [Int])
operation x most call = do
  r <- call
  case r of
    Right bytes
      | length bytes < most -> pure (Drained bytes)
      | otherwise -> pure (Done bytes)
    Left (-11) -> pure NotYet
    Left e -> do
      when (e == -9) (blame x "a system call on a closed descriptor")
      pure (Failed (fromIntegral (negate e)))

-- | The threads, and which of them may be stuck at the end; what must hold then.
finally' :: Machine -> [Int] -> [IO ()] -> IO (Maybe String) -> Scenario
finally' x mayBeStuck threads check =
  Scenario threads $ \stuck -> do
    wrong <- readIORef (blamed x)
    case (wrong, stuck \\ mayBeStuck) of
      (Just why, _) -> pure (Just why)
      (_, lost@(_ : _)) -> pure (Just ("never woken: threads " <> show lost))
      _ -> check

holdsThat :: [(Bool, String)] -> Maybe String
holdsThat claims = case [why | (False, why) <- claims] of
  why : _ -> Just why
  [] -> Nothing

-- Waiting ---------------------------------------------------------------------------

-- | This many readers of one pipe, and as many writes of a byte.
readers :: Int -> Setting -> IO Scenario
readers n setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  d <- owned x r
  got <- newIORef []
  let reader = reading x d never 1 >>= \o -> modifyIORef got (o :)
      writer i = void (writeBytes w [i])
  pure . finally' x [0] ([dispatcher x 0] <> replicate n reader <> map writer [1 .. n]) $ do
    outcomes <- readIORef got
    pure (holdsThat [(sort [b | Completed [b] <- outcomes] == [1 .. n], "the readers got " <> show outcomes)])

-- | A reader with a deadline and one without, and two writes.
deadlines :: Setting -> IO Scenario
deadlines setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  d <- owned x r
  got <- newIORef []
  let reader deadline = do
        o <- reading x d deadline 1
        t <- now
        when (o == DeadlinePassed && t < deadline) (blame x "a deadline passed early")
        modifyIORef got (o :)
      writer = forM_ [1, 2] (\i -> writeBytes w [i])
  pure . finally' x [0] [dispatcher x 0, reader (Instant 50), reader never, writer] $ do
    outcomes <- readIORef got
    left <- readBytes r 2
    let all' = concat [b | Completed b <- outcomes] <> fromRight [] left
    pure (holdsThat [(sort all' == [1, 2], "bytes are lost: " <> show (outcomes, left))])

-- | A reader with a deadline beside one without, and nothing to read: it comes back.
nothingCame :: Setting -> IO Scenario
nothingCame setting = do
  x <- machine setting 1
  (r, _) <- newPipe
  d <- owned x r
  got <- newIORef []
  let patient = void (reading x d never 1)
      brief = reading x d (Instant 50) 1 >>= \o -> modifyIORef got (o :)
  pure . finally' x [0, 1] [dispatcher x 0, patient, brief] $ do
    outcomes <- readIORef got
    pure (holdsThat [(outcomes == [DeadlinePassed], "it got " <> show outcomes)])

-- | A reader that is thrown at, at any moment, another one, and two writes.
killed :: Instant -> Setting -> IO Scenario
killed deadline setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  d <- owned x r
  got <- newIORef []
  victim <- newIORef Nothing
  let doomed = do
        me <- myThreadId
        writeIORef victim (Just me)
        o <- tryAll (reading x d deadline 1 >>= \o -> modifyIORef got (o :))
        either (const (pure ()) :: SomeException -> IO ()) pure o
      reader = reading x d never 1 >>= \o -> modifyIORef got (o :)
      writer = forM_ [1, 2] (\i -> writeBytes w [i])
      killer = do
        blockUntil (maybe False (const True) <$> readIORef victim)
        readIORef victim >>= mapM_ (`throwToThread` ThreadKilled)
  pure . finally' x [0] [dispatcher x 0, doomed, reader, writer, killer] $ do
    outcomes <- readIORef got
    left <- readBytes r 2
    let count = length (concat [b | Completed b <- outcomes]) + either (const 0) length left
    -- The exception may arrive between the reading and the note of it.
    pure (holdsThat [(count >= 1, "bytes are lost: " <> show (outcomes, left))])

-- Closing -----------------------------------------------------------------------------

-- | A reader whose peer writes and goes, and a close, after which the number is in use again.
closing :: Setting -> IO Scenario
closing setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  before <- openNumbers
  d <- owned x r
  got <- newIORef []
  let reader = reading x d never 1 >>= \o -> modifyIORef got ((0 :: Int, o) :)
      ender = writeBytes w [7] >> void (closeNumber w)
      closer = do
        ok <- closeDescriptor d
        unless ok (blame x "the close was not the first")
        -- The last operation gives the number back.
        blockUntil (notElem r <$> openNumbers)
        (r', w') <- newPipe
        d' <- owned x r'
        o <- reading x d' (Instant 50) 1
        unless (o == DeadlinePassed) (blame x ("the new owner was given " <> show o))
        _ <- writeBytes w' [8]
        hung <- sawHangup (descriptorReadiness d')
        when hung (blame x "the new owner was told of the old one's end")
        o' <- reading x d' never 1
        modifyIORef got ((1, o') :)
        _ <- closeDescriptor d'
        void (closeNumber w')
  pure . finally' x [0] [dispatcher x 0, reader, ender, closer] $ do
    outcomes <- readIORef got
    now' <- openNumbers
    known <- registeredCount (theRegistry x)
    pure . holdsThat $
      [ ([o | (1, o) <- outcomes] == [Completed [8]], "the new owner got " <> show outcomes),
        (all (`elem` [DescriptorClosed, Completed [7], Completed []]) [o | (0, o) <- outcomes], "the reader got " <> show outcomes),
        (sort now' == sort (before \\ [r, w]), "open are " <> show now' <> ", and before were " <> show before),
        (known == 0, "descriptors known: " <> show known)
      ]

-- | The other end notices a close as soon as the number has been released.
heard :: Setting -> IO Scenario
heard setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  d <- owned x r
  let reader = void (reading x d never 1)
      closer = do
        _ <- closeDescriptor d
        blockUntil (notElem r <$> openNumbers)
        told <- writeBytes w [1]
        unless (told == -32) (blame x ("a write to the other end gave " <> show told))
  pure . finally' x [0] [dispatcher x 0, reader, closer] $ pure Nothing

-- | As 'heard', for the second owner of a number; the first was closed just after it was registered.
heardOfSecond :: Setting -> IO Scenario
heardOfSecond setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  let m = firstManager x
      registered n = void (register (theRegistry x) m (fd n) evtRead OneShot (\_ _ -> pure ()))
      closes n = closeRegistered (theRegistry x) (fd n) (void (closeNumber n))
      owner = do
        registered r
        closes r
        (r', w') <- newPipe
        registered r'
        closes r'
        told <- mapM (\n -> writeBytes n [1]) [w, w']
        unless (told == [-32, -32]) (blame x ("writes to the other ends gave " <> show told))
  pure . finally' x [0] [dispatcher x 0, owner] $ pure Nothing

-- | Readers of a descriptor that is closed under them, or before they come.
closedUnder :: Setting -> IO Scenario
closedUnder setting = do
  x <- machine setting 1
  (r, _) <- newPipe
  d <- owned x r
  got <- newIORef []
  let reader = reading x d never 1 >>= \o -> modifyIORef got (o :)
  pure . finally' x [0] [dispatcher x 0, reader, reader, void (closeDescriptor d)] $ do
    outcomes <- readIORef got
    left <- openNumbers
    pure . holdsThat $
      [ (outcomes == [DescriptorClosed, DescriptorClosed], "the readers got " <> show outcomes),
        (r `notElem` left, "it is still open")
      ]

-- | The descriptor is closed by its number, by a thread that does not own it. A thread that has not waited before gets
-- @EBADF@ from the kernel.
closedByNumber :: Setting -> IO Scenario
closedByNumber setting = do
  x <- machine setting 1
  (r, _) <- newPipe
  d <- owned x r
  came <- newIORef (0 :: Int)
  let reader = do
        o <- tryAll . perform d Reading never $ do
          found <- readBytes r 1
          pure $ case found of
            Right bytes -> Done bytes
            Left (-11) -> NotYet
            Left e -> Failed (fromIntegral (negate e))
        case o of
          Right (Completed bytes) -> blame x ("a reader got " <> show bytes)
          _ -> modifyIORef' came (+ 1)
      closer = closeRegistered (theRegistry x) (fd r) (void (closeNumber r))
  pure . finally' x [0] [dispatcher x 0, reader, reader, closer] $ do
    n <- readIORef came
    pure (holdsThat [(n == 2, "came back: " <> show n)])

-- | A callback, its event, and its unregistration.
unregistering :: Lifetime -> Setting -> IO Scenario
unregistering lifetime setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  calls <- newIORef (0 :: Int)
  gone <- newIORef False
  placed <- newEmptyMVar
  let m = firstManager x
      callback _ _ = do
        late <- readIORef gone
        when late (blame x "a callback began after it was unregistered")
        modifyIORef' calls (+ 1)
        when (lifetime == MultiShot) (void (readBytes r 1))
      registrar = do
        p <- register (theRegistry x) m (fd r) evtRead lifetime callback
        putMVar placed p
      remover = do
        p <- takeMVar placed
        case p of
          Placed key -> unregister (theRegistry x) (fd r) key >>= \ok -> when (ok && lifetime == OneShot) (modifyIORef' calls (+ 1))
          _ -> blame x "it was not placed"
      writer = void (writeBytes w [1])
  pure . finally' x [0] [dispatcher x 0, registrar, remover, writer] $ do
    n <- readIORef calls
    known <- registeredCount (theRegistry x)
    pure . holdsThat $
      [ (lifetime == MultiShot || n == 1, "called or unregistered " <> show n <> " times"),
        (known == 0, "registrations are left: " <> show known)
      ]

-- | A callback that stays, and a byte after it has read one.
staying :: Setting -> IO Scenario
staying setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  got <- newIORef []
  let m = firstManager x
      registrar = void (register (theRegistry x) m (fd r) evtRead MultiShot (\_ _ -> readBytes r 1 >>= either (const (pure ())) (\bytes -> modifyIORef got (<> bytes))))
      writer = do
        _ <- writeBytes w [1]
        blockUntil ((== [1]) <$> readIORef got)
        void (writeBytes w [2])
  pure . finally' x [0] [dispatcher x 0, registrar, writer] $ do
    bytes <- readIORef got
    pure (holdsThat [(bytes == [1, 2], "the callback read " <> show bytes)])

-- | Two callbacks of one descriptor for different events, of which one has happened already.
several :: Setting -> IO Scenario
several setting = do
  x <- machine setting 1
  n <- newEventFd
  calls <- newIORef []
  let m = firstManager x
      registrar evs = void (register (theRegistry x) m (fd n) evs OneShot (\_ found -> modifyIORef calls (found :)))
      writer = void (writeBytes n [1])
  pure . finally' x [0] [dispatcher x 0, registrar evtRead, registrar evtWrite, writer] $ do
    found <- readIORef calls
    pure (holdsThat [(length found == 2 && evtRead `elem` found && evtWrite `elem` found, "called with " <> show found)])

-- | Registering against closing.
registering :: Setting -> IO Scenario
registering setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  calls <- newIORef []
  refused <- newIORef (0 :: Int)
  let m = firstManager x
      registrar = do
        p <- tryAll (register (theRegistry x) m (fd r) evtRead OneShot (\_ evs -> modifyIORef calls (evs :)))
        case p of
          Right (Placed _) -> pure ()
          _ -> modifyIORef' refused (+ 1)
      closer = closeRegistered (theRegistry x) (fd r) (closeNumber r >>= \c -> when (c < 0) (blame x "closed twice"))
      writer = void (writeBytes w [1])
  pure . finally' x [0] [dispatcher x 0, registrar, registrar, closer, writer] $ do
    told <- readIORef calls
    no <- readIORef refused
    known <- registeredCount (theRegistry x)
    pure . holdsThat $
      [ (length told + no == 2, "told " <> show told <> ", refused " <> show no),
        (known == 0, "registrations are left: " <> show known)
      ]

-- Stopping ----------------------------------------------------------------------------

-- | The manager of a waiting reader stops, or its thread is killed; another one takes over.
stopping :: Bool -> Setting -> IO Scenario
stopping killing setting = do
  x <- machine setting 2
  (r, w) <- newPipe
  d <- owned x r
  got <- newIORef []
  runner <- newIORef Nothing
  told <- newIORef (0 :: Int)
  before <- openNumbers
  let first = firstManager x
      doomed = do
        me <- myThreadId
        writeIORef runner (Just me)
        void (tryAll (dispatcher x 0))
      reader = reading x d never 1 >>= \o -> modifyIORef got (o :)
      writer = void (writeBytes w [1])
      stopper
        | killing = do
          blockUntil (maybe False (const True) <$> readIORef runner)
          readIORef runner >>= mapM_ (`throwAside` ThreadKilled)
          wakeManager first
        | otherwise = shutdown first
      setter = void (addTimer first (Instant 1000) (\_ -> modifyIORef' told (+ 1)))
  pure . finally' x ([1] <> [0 | killing]) [doomed, dispatcher x 1, reader, writer, stopper, setter] $ do
    outcomes <- readIORef got
    n <- readIORef told
    now' <- openNumbers
    stillRuns <- isAlive first
    pure . holdsThat $
      [ (outcomes == [Completed [1]], "the reader got " <> show outcomes),
        (n == 1, "the timer's action ran " <> show n <> " times"),
        (stillRuns || not (any ((`elem` now') . fromIntegral) (backendDescriptors (managerBackend first))), "its descriptors are left"),
        (length now' <= length before, "descriptors are left")
      ]

-- | Callbacks of a manager that is stopped are notified, once.
orphans :: Setting -> IO Scenario
orphans setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  calls <- newIORef []
  refused <- newIORef (0 :: Int)
  let m = firstManager x
      registrar = do
        p <- register (theRegistry x) m (fd r) evtRead OneShot (\_ evs -> modifyIORef calls (evs :))
        case p of
          Placed _ -> pure ()
          _ -> modifyIORef' refused (+ 1)
      writer = void (writeBytes w [1])
  pure . finally' x [] [dispatcher x 0, registrar, writer, shutdown m] $ do
    told <- readIORef calls
    no <- readIORef refused
    now' <- openNumbers
    pure . holdsThat $
      [ (length told + no == 1, "told " <> show told <> ", refused " <> show no),
        (sort now' == sort [r, w], "open are " <> show now')
      ]

-- | It is woken by a thread that is slow, while it stops for another reason.
wokenLate :: Setting -> IO Scenario
wokenLate setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  let m = firstManager x
      stopper = do
        requestStop m
        _ <- writeBytes w [1]
        shutdown m
  _ <- register (theRegistry x) m (fd r) evtRead OneShot (\_ _ -> pure ())
  pure . finally' x [] [dispatcher x 0, wakeManager m, stopper] $ do
    now' <- openNumbers
    pure (holdsThat [(sort now' == sort [r, w], "open are " <> show now')])

-- Timers ------------------------------------------------------------------------------

-- | Timers that are set while the manager sleeps, one of them cancelled.
timing :: Setting -> IO Scenario
timing setting = do
  x <- machine setting 1
  fired <- newIORef []
  cancelled <- newIORef []
  let m = firstManager x
      setTo t = addTimer m (Instant t) $ \why -> do
        Instant time <- now
        when (why == Due && time < t) (blame x ("the timer of " <> show t <> " fired at " <> show time))
        modifyIORef fired (t :)
      setter = void (setTo 30)
      fickle = do
        t <- setTo 50
        won <- cancelTimer t
        when won (modifyIORef cancelled (50 :))
  pure . finally' x [0] [dispatcher x 0, setter, fickle] $ do
    f <- readIORef fired
    c <- readIORef cancelled
    pure (holdsThat [(sort (f <> c) == [30, 50], "fired " <> show f <> ", cancelled " <> show c)])

-- | One that is dropped by the thread that set it, as deadlines of operations are, beside one that stays.
dropping :: Setting -> IO Scenario
dropping setting = do
  x <- machine setting 1
  fired <- newIORef []
  let m = firstManager x
      setter = do
        t <- addFresh m (Instant 30) (\_ -> modifyIORef fired ((30 :: Int) :))
        won <- dropFresh m t
        when won (modifyIORef fired (30 :))
      other = void (addPlainTimer m (Instant 20) (modifyIORef fired (20 :)))
  pure . finally' x [0] [dispatcher x 0, setter, other] $ do
    f <- readIORef fired
    pure (holdsThat [(sort f == [20, 30], "fired or dropped " <> show f)])

fd :: Int -> Fd
fd = fromIntegral

managerTests :: IO TestTree
managerTests =
  pure . testGroup "a manager on a model of the kernel" $
    [ testGroup "epoll" (searches onEpoll),
      testGroup "poll" (searches onPoll),
      testGroup "epoll, and a kernel that misbehaves" (searches onEpoll {settingFaults = allFaults}),
      testGroup "io_uring" (cheaper holdsWithin (onUring 8)),
      testGroup "io_uring with one entry, and a kernel that misbehaves" (cheaper holdsWithin (onUring 1) {settingFaults = allFaults {faultRefuse = 1}}),
      testGroup "epoll, on ARM" (cheaper holdsOnArm onEpoll),
      testGroup "io_uring, on ARM" (cheaper holdsOnArm (onUring 8))
    ]
  where
    searches setting = [holdsWithin bound name (make setting) | (bound, name, make) <- scenarios]
    -- One departure less where there are ten thousand schedules.
    cheaper :: (Int -> String -> IO Scenario -> TestTree) -> Setting -> [TestTree]
    cheaper search setting = [search (if name `elem` long then 1 else bound) name (make setting) | (bound, name, make) <- scenarios]
    long = ["a one-shot callback is unregistered", "a callback is unregistered", "two callbacks of a descriptor"]
    -- Short scenarios may depart from the ordinary schedule twice.
    scenarios =
      [ (2, "one reader", readers 1),
        (1, "two readers", readers 2),
        (1, "a deadline", deadlines),
        (1, "a deadline, and nothing comes", nothingCame),
        (1, "a reader that is killed", killed never),
        (1, "a reader with a deadline that is killed", killed (Instant 50)),
        (1, "two readers and a close", closedUnder),
        (1, "two readers, and a close of the number", closedByNumber),
        (1, "a close, and the number in use again", closing),
        (2, "a one-shot callback is unregistered", unregistering OneShot),
        (2, "a callback is unregistered", unregistering MultiShot),
        (1, "a callback that stays is called again", staying),
        (2, "two callbacks of a descriptor", several),
        (1, "a close, and the other end", heard),
        (1, "a second close of a number, and the other end", heardOfSecond),
        (1, "closing against registering", registering),
        (1, "the manager is stopped", stopping False),
        (1, "the manager's thread is killed", stopping True),
        (1, "callbacks of a manager that is stopped", orphans),
        (2, "the manager is woken while it stops", wokenLate),
        (2, "timers", timing),
        (2, "a timer that is dropped", dropping)
      ]
