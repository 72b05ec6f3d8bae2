-- |
-- "Weft.Event": registrations of callbacks.
module Spec.Event
  ( tests,
    withManager,
    caughtUp,
    counter,
    throwing,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad (forM, forM_, forever, replicateM, replicateM_, unless, void, when, (>=>))
import Data.IORef
import Foreign.C.Error (eBADF)
import GHC.Conc (getUncaughtExceptionHandler, setUncaughtExceptionHandler)
import Harness
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Event
import Weft.Test.Descriptors

-- | With a manager that is running.
withManager :: (EventManager -> IO a) -> IO a
withManager act = bracket begin end (act . fst)
  where
    begin = do
      m <- new
      t <- start (loop m)
      pure (m, t)
    end (m, t) = do
      finishes "shutdown" (shutdown m)
      result "loop" t

-- | Wait until the manager has handled all that it had found: it finds another event afterwards.
caughtUp :: EventManager -> Fds -> IO ()
caughtUp m fds = do
  (r, w) <- pipe fds
  (put, get, _) <- mailbox
  registerFd_ m put r evtRead OneShot
  say w 1
  void get

-- | Something to count with, and the count.
counter :: IO (IO (), IO Int)
counter = do
  ref <- newIORef 0
  pure (atomicModifyIORef' ref (\n -> (n + 1, ())), readIORef ref)

-- | Run an action in which this many exceptions of callbacks are reported; they are not printed.
throwing :: Int -> IO () -> IO ()
throwing n act = do
  (hit, count) <- counter
  bracket getUncaughtExceptionHandler setUncaughtExceptionHandler $ \_ -> do
    setUncaughtExceptionHandler (const hit)
    act
    eventually "the exceptions are reported" ((>= n) <$> count)
    count >>= (@?= n)

tests :: String -> TestTree
tests backend =
  testGroup
    "events"
    [ testCase "a manager is made over the back end that was asked for" $ do
        m <- new
        managerBackendName m @?= backend
        shutdown m
        m' <- newWith =<< newBackend backend
        managerBackendName m' @?= backend
        shutdown m',
      testGroup "lifetimes" lifetimes,
      testGroup "registrations" registrations,
      testGroup "kinds of events" kinds,
      testGroup "callbacks" callbacks,
      testGroup "closing" closing
    ]

test :: String -> (EventManager -> Fds -> IO ()) -> TestTree
test name act = testCase name (finishes name (withManager (withFds . act)))

-- | A callback that hands over what it was called with.
mailbox :: IO (IOCallback, IO Events, IO Bool)
mailbox = do
  box <- newChan
  unread <- newIORef (0 :: Int)
  let put _ e = atomicModifyIORef' unread (\n -> (n + 1, ())) >> writeChan box e
      get = do
        e <- finishes "a callback" (readChan box)
        e <$ atomicModifyIORef' unread (\n -> (n - 1, ()))
  pure (put, get, (== 0) <$> readIORef unread)

lifetimes :: [TestTree]
lifetimes =
  [ test "OneShot: once, though the event holds on" $ \m fds -> do
      (r, w) <- pipe fds
      (put, get, none) <- mailbox
      registerFd_ m put r evtRead OneShot
      say w 1
      get >>= (@?= evtRead)
      stays 30 "called again" none
      registerFd_ m put r evtRead OneShot
      get >>= (@?= evtRead),
    test "MultiShot: as long as the event holds" $ \m fds -> do
      (r, w) <- pipe fds
      (hit, count) <- counter
      key <- registerFd m (\_ _ -> hit) r evtRead MultiShot
      keyFd key @?= r
      say w 1
      eventually "called ten times" ((>= 10) <$> count)
      _ <- drain r
      caughtUp m fds
      n <- count
      stays 30 "called though drained" ((== n) <$> count)
      say w 1
      eventually "called again" ((> n) <$> count)
      unregisterFd m key >>= assertBool "was not there"
      caughtUp m fds
      n' <- count
      stays 30 "called though unregistered" ((== n') <$> count),
    test "OneShot and MultiShot on one descriptor" $ \m fds -> do
      (r, w) <- pipe fds
      (once, ones) <- counter
      (many, manies) <- counter
      registerFd_ m (\_ _ -> once) r evtRead OneShot
      key <- registerFd m (\_ _ -> many) r evtRead MultiShot
      say w 1
      eventually "the MultiShot goes on" ((> 5) <$> manies)
      ones >>= (@?= 1)
      registerFd_ m (\_ _ -> once) r evtRead OneShot
      eventually "the second OneShot" ((== 2) <$> ones)
      unregisterFd_ m key
      registerFd_ m (\_ _ -> once) r evtRead OneShot
      eventually "the third OneShot" ((== 3) <$> ones)
      stays 20 "called once too often" ((== 3) <$> ones)
  ]

registrations :: [TestTree]
registrations =
  [ test "a registration that is taken back is not called" $ \m fds -> do
      (r, w) <- pipe fds
      (put, _, none) <- mailbox
      key <- registerFd m put r evtRead OneShot
      unregisterFd m key >>= assertBool "was not there"
      unregisterFd m key >>= assertBool "was there twice" . not
      say w 1
      stays 30 "called" none,
    test "taking one back leaves the others" $ \m fds -> do
      (r, w) <- pipe fds
      (put, get, none) <- mailbox
      keys <- replicateM 5 (registerFd m put r evtRead OneShot)
      forM_ (take 3 keys) (unregisterFd_ m)
      say w 1
      replicateM_ 2 get
      stays 30 "called too often" none
      forM_ keys $ \k -> unregisterFd m k >>= assertBool "was still there" . not,
    test "many descriptors: each is called once" $ \m fds -> do
      pipes <- replicateM 500 (pipe fds)
      (hit, count) <- counter
      forM_ pipes $ \(r, _) -> registerFd_ m (\_ _ -> hit) r evtRead OneShot
      forM_ pipes $ \(_, w) -> say w 1
      eventually "all were called" ((== 500) <$> count)
      stays 30 "called twice" ((== 500) <$> count),
    test "from many threads at once, while the loop runs" $ \m fds -> do
      (hit, count) <- counter
      pairs <- replicateM 8 (pipe fds)
      parallel 8 $ \i -> do
        let (r, w) = pairs !! i
        forM_ [1 .. 100 :: Int] $ \n -> do
          done <- newEmptyMVar
          registerFd_ m (\_ _ -> hit >> putMVar done ()) r evtRead OneShot
          when (n `mod` 2 == 0) yield
          say w 1
          finishes "callback" (takeMVar done)
          void (drain r)
          key <- registerFd m (\_ _ -> hit) r evtRead OneShot
          unregisterFd m key >>= assertBool "was not there"
      count >>= (@?= 800),
    testCase "many managers at once, on one descriptor and on many" . withFds $ \fds -> do
      (r, w) <- pipe fds
      (hit, count) <- counter
      ms <- replicateM 10 new
      ts <- forM ms (start . loop)
      forM_ ms $ \m -> registerFd_ m (\_ _ -> hit) r evtRead OneShot
      say w 1
      eventually "each has called" ((== 10) <$> count)
      forM_ ms shutdown
      forM_ ts (result "loop")
  ]

kinds :: [TestTree]
kinds =
  [ test "the two directions are apart" $ \m fds -> do
      (a, b) <- streamPair fds
      fill a
      (putR, getR, noneR) <- mailbox
      (putW, getW, noneW) <- mailbox
      registerFd_ m putR a evtRead OneShot
      registerFd_ m putW a evtWrite OneShot
      stays 20 "called" ((&&) <$> noneR <*> noneW)
      say b 1
      getR >>= (@?= evtRead)
      stays 20 "writable" noneW
      _ <- drain b
      getW >>= (@?= evtWrite),
    test "one registration for both" $ \m fds -> do
      (a, b) <- streamPair fds
      say b 1
      (put, get, _) <- mailbox
      registerFd_ m put a (evtRead <> evtWrite) OneShot
      get >>= (@?= evtRead <> evtWrite),
    test "half-close is the peer's, not a hang-up" $ \m fds -> do
      (a, b) <- tcpPair fds
      (put, get, none) <- mailbox
      registerFd_ m put a evtPeerClosed OneShot
      say b 1
      stays 20 "called for data" none
      finishWriting b
      get >>= (@?= evtPeerClosed),
    test "a reset is a hang-up, asked for or not" $ \m fds -> do
      (a, b) <- abruptTcpPair fds
      (put, get, none) <- mailbox
      registerFd_ m put a mempty OneShot
      say b 1
      stays 20 "called for data" none
      shut fds b
      e <- get
      assertBool (show e) (e `includes` evtHangup)
      registerFd_ m put a evtRead OneShot
      e' <- get
      assertBool (show e') (e' `includes` (evtRead <> evtHangup)),
    test "urgent data" $ \m fds -> do
      (a, b) <- tcpPair fds
      (put, get, none) <- mailbox
      registerFd_ m put a evtUrgent OneShot
      say b 1
      stays 20 "called for ordinary data" none
      sayUrgent b
      get >>= (@?= evtUrgent),
    testCase "a regular file is ready at once, on the calling thread, once" . withFds $ \fds -> do
      m <- new
      f <- regularFile fds
      forM_ [OneShot, MultiShot] $ \life -> do
        ref <- newIORef []
        self <- myThreadId
        key <- registerFd m (\_ e -> myThreadId >>= \t -> modifyIORef ref ((t, e) :)) f evtRead life
        readIORef ref >>= (@?= [(self, evtRead)])
        unregisterFd m key >>= assertBool "was registered" . not
      shutdown m,
    test "bad descriptors: EBADF, and nothing is registered" $ \m fds -> do
      (r, w) <- pipe fds
      mapM_ (shut fds) [r, w]
      forM_ [-1, minBound, 1000000, r] $ \fd ->
        failsWith ("register " <> show fd) eBADF (registerFd m (\_ _ -> pure ()) fd evtRead OneShot)
  ]

callbacks :: [TestTree]
callbacks =
  [ test "a callback that throws does not affect others" $ \m fds -> do
      (r, w) <- pipe fds
      (put, get, _) <- mailbox
      throwing 2 $ do
        registerFd_ m (\_ _ -> throwIO (userError "in a callback")) r evtRead OneShot
        registerFd_ m put r evtRead OneShot
        registerFd_ m (\_ _ -> throwIO Overflow) r evtRead OneShot
        say w 1
        get >>= (@?= evtRead)
        registerFd_ m put r evtRead OneShot
        get >>= (@?= evtRead),
    testCase "one that throws, of a file that is always ready" . withFds $ \fds -> do
      m <- new
      f <- regularFile fds
      throwing 1 (registerFd_ m (\_ _ -> throwIO (userError "in a callback")) f evtRead OneShot)
      shutdown m,
    test "calls from callbacks: register, take back, close, set timers" $ \m fds -> do
      (r, w) <- pipe fds
      (r2, w2) <- pipe fds
      done <- newEmptyMVar
      ends <- newEmptyMVar
      other <- registerFd m (\_ _ -> putMVar done "the one that was taken back") r2 evtRead OneShot
      registerFd_ m (\_ e -> putMVar ends e) r2 evtWrite OneShot
      let first key e = do
            e @?= evtRead
            keyFd key @?= r
            unregisterFd_ m other
            say w2 1
            void (registerTimeout m (milliseconds 1) (registerFd_ m second r evtRead OneShot))
          second _ _ = do
            closeFd m (shut fds) r2
            putMVar done "all was done"
      registerFd_ m first r evtRead OneShot
      say w 1
      finishes "callbacks" (takeMVar done) >>= (@?= "all was done")
      finishes "closing" (takeMVar ends) >>= (@?= evtClose),
    test "starvation: a descriptor that is always ready does not keep others waiting" $ \m fds -> do
      (busy, w) <- pipe fds
      say w 1
      (hit, count) <- counter
      registerFd_ m (\_ _ -> hit) busy evtRead MultiShot
      eventually "busy" ((> 100) <$> count)
      (r, w') <- pipe fds
      (put, get, _) <- mailbox
      registerFd_ m put r evtRead OneShot
      say w' 1
      get >>= (@?= evtRead)
      fired <- newEmptyMVar
      _ <- registerTimeout m (milliseconds 2) (putMVar fired ())
      finishes "timer" (takeMVar fired)
  ]

closing :: [TestTree]
closing =
  [ test "closeFd: every registration is notified, on the calling thread" $ \m fds -> do
      (a, _) <- streamPair fds
      fill a
      ref <- newIORef []
      let note _ e = myThreadId >>= \t -> modifyIORef ref ((t, e) :)
      registerFd_ m note a evtRead OneShot
      registerFd_ m note a evtRead MultiShot
      registerFd_ m note a evtPeerClosed OneShot
      closeFd m (shut fds) a
      self <- myThreadId
      readIORef ref >>= (@?= replicate 3 (self, evtClose))
      failsWith "register" eBADF (registerFd m note a evtRead OneShot),
    test "a closing action that blocks delays only users of its descriptor" $ \m fds -> do
      -- More than there are stripes, so that some share the descriptor's.
      pipes <- replicateM 40 (pipe fds)
      (r, w) <- pipe fds
      [closing', gate] <- replicateM 2 newEmptyMVar
      (put, get, _) <- mailbox
      registerFd_ m put r evtRead OneShot
      closer <- start (closeFd m (\fd -> putMVar closing' () >> takeMVar gate >> shut fds fd) r)
      finishes "the closing action" (takeMVar closing')
      forM_ pipes $ \(r', w') -> do
        (put', get', _) <- mailbox
        registerFd_ m put' r' evtRead OneShot
        say w' 1
        get' >>= (@?= evtRead)
        closeFd m (shut fds) r'
      late <- start (registerFd_ m put r evtRead OneShot)
      again <- start (closeFd m (const (pure ())) r)
      mapM_ (\t -> blocked t >>= assertBool "does not wait") [late, again]
      putMVar gate ()
      result "close" closer
      get >>= (@?= evtClose)
      failsWith "register" eBADF (result "register" late)
      result "closing it again" again
      say w 1 `catch` \e -> const (pure ()) (e :: IOException),
    test "a closing action may use other descriptors of the same stripe" $ \m fds -> do
      pipes <- replicateM 40 (pipe fds)
      (r, _) <- pipe fds
      (put, get, _) <- mailbox
      closeFd m (\fd -> shut fds fd >> forM_ pipes (\(r', w') -> registerFd_ m put r' evtRead OneShot >> say w' 1 >> closeAfter m fds get r')) r,
    test "killed while its action blocks: the descriptor may be used again" $ \m fds -> do
      (r, w) <- pipe fds
      begun <- newEmptyMVar
      t <- start (closeFd m (\_ -> putMVar begun () >> forever (threadDelay 1000000)) r)
      finishes "the closing action" (takeMVar begun)
      stop t
      (put, get, _) <- mailbox
      registerFd_ m put r evtRead OneShot
      say w 1
      get >>= (@?= evtRead),
    test "an exception of the closing action is rethrown, and the registrations are removed" $ \m fds -> do
      (r, w) <- pipe fds
      (put, get, none) <- mailbox
      registerFd_ m put r evtRead OneShot
      e <- try (closeFd m (const (throwIO (userError "not now"))) r)
      e @?= Left (userError "not now")
      get >>= (@?= evtClose)
      say w 1
      stays 20 "called" none,
    test "descriptor reuse (ABA): an event for the old owner does not reach the new one" $ \m fds ->
      forM_ [1 .. times 200 :: Int] $ \n -> do
        (r, w) <- pipe fds
        (old, heard) <- counter
        registerFd_ m (\_ _ -> old) r evtRead (if even n then OneShot else MultiShot)
        say w 1
        inherited <- newEmptyMVar
        closeFd m (handOver fds >=> putMVar inherited) r
        w' <- takeMVar inherited
        inherits m (r, w')
        -- The loop has run a callback since, so none of the old owner's is under way.
        n1 <- heard
        if even n then n1 @?= 1 else n1 @>= 1
        inherits m (r, w')
        heard >>= (@?= n1)
        shut fds w
        closeFd m (shut fds) r
        shut fds w'
  ]

closeAfter :: EventManager -> Fds -> IO Events -> Fd -> IO ()
closeAfter m fds get fd = do
  get >>= (@?= evtRead)
  closeFd m (shut fds) fd

-- | Only its own data wakes the new owner of a number.
inherits :: EventManager -> (Fd, Fd) -> Assertion
inherits m (r, w) = do
  (put, get, none) <- mailbox
  registerFd_ m put r evtRead OneShot
  wakeManager m
  yield
  quiet <- none
  unless quiet (assertFailure "the new owner was called before it had data")
  say w 1
  get >>= (@?= evtRead)
  void (drain r)
