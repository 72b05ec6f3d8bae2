-- |
-- Scenarios of closing descriptors and of callbacks, on the simulated machine. Thread 0 is a dispatcher in each.
module ClosingScenario
  ( -- * Closing
    closing,
    heard,
    heardOfSecond,
    released,
    releasedCallback,
    closedUnder,
    closedByNumber,

    -- * Callbacks
    unregistering,
    together,
    staying,
    several,
    registering,
  )
where

import Control.Monad
import Data.IORef
import Data.List (sort, (\\))
import Kernel
import ManagerMachine
import Simulation (Scenario, blockUntil)
import Weft.Core.Descriptor
import Weft.Core.Events
import Weft.Core.Readiness (sawHangup)
import Weft.Core.Registry
import Weft.Core.Time (Instant (..), never)
import Weft.Sys

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
      closes n = closeRegistered (theRegistry x) (fd n) (const (void (closeNumber n)))
      owner = do
        registered r
        closes r
        (r', w') <- newPipe
        registered r'
        closes r'
        told <- mapM (\n -> writeBytes n [1]) [w, w']
        unless (told == [-32, -32]) (blame x ("writes to the other ends gave " <> show told))
  pure . finally' x [0] [dispatcher x 0, owner] $ pure Nothing

-- | When a close has finished, the file is released: the other end knows of it, even if a request of the back end could
-- not be ended before the number was given back.
released :: Setting -> IO Scenario
released setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  d <- ownedBy x r (closesAndTells x r w)
  let reader = void (reading x d never 1)
      closer = void (closeDescriptor d)
  pure . finally' x [0] [dispatcher x 0, reader, closer] $ pure Nothing

-- | As 'released', for a descriptor with a callback.
releasedCallback :: Setting -> IO Scenario
releasedCallback setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  let owner = do
        void (register (theRegistry x) (firstManager x) (fd r) evtRead MultiShot (\_ _ -> pure ()))
        join (closeRegistered (theRegistry x) (fd r) (closesAndTells x r w))
  pure . finally' x [0] [dispatcher x 0, owner] $ pure Nothing

-- | Close a number; the action that finishes the close looks at the other end.
closesAndTells :: Machine -> Int -> Int -> IO () -> IO (IO ())
closesAndTells x r w awaitRelease = do
  void (closeNumber r)
  pure $ do
    awaitRelease
    told <- writeBytes w [1]
    unless (told == -32) (blame x ("a write to the other end gave " <> show told))

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
      closer = closeRegistered (theRegistry x) (fd r) (const (void (closeNumber r)))
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

-- | Two one-shot callbacks that are due together, of which one is unregistered, and the descriptor is closed: each is
-- called once, unless it was unregistered.
together :: Setting -> IO Scenario
together setting = do
  x <- machine setting 1
  (r, w) <- newPipe
  ends <- newIORef []
  placed <- newEmptyMVar
  let m = firstManager x
      ended name = modifyIORef' ends (name :)
      registrar = do
        -- The callback of the later registration runs first.
        waiting <- register (theRegistry x) m (fd r) evtRead OneShot (\_ _ -> ended 'b')
        _ <- register (theRegistry x) m (fd r) evtRead OneShot (\_ _ -> ended 'a')
        void (writeBytes w [1])
        putMVar placed waiting
      remover = do
        p <- takeMVar placed
        case p of
          Placed key -> unregister (theRegistry x) (fd r) key >>= \ok -> when ok (ended 'b')
          _ -> blame x "it was not placed"
      closer = closeRegistered (theRegistry x) (fd r) (const (void (closeNumber r)))
  pure . finally' x [0] [dispatcher x 0, registrar >> closer, remover] $ do
    names <- readIORef ends
    known <- registeredCount (theRegistry x)
    pure . holdsThat $
      [ (length (filter (== 'a') names) == 1 && length (filter (== 'b') names) == 1, "ended: " <> names),
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
      closer = closeRegistered (theRegistry x) (fd r) (\_ -> closeNumber r >>= \c -> when (c < 0) (blame x "closed twice"))
      writer = void (writeBytes w [1])
  pure . finally' x [0] [dispatcher x 0, registrar, closer, registrar, writer] $ do
    told <- readIORef calls
    no <- readIORef refused
    known <- registeredCount (theRegistry x)
    pure . holdsThat $
      [ (length told + no == 2, "told " <> show told <> ", refused " <> show no),
        (known == 0, "registrations are left: " <> show known)
      ]
