{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- "Weft.Hybrid.Scope": the laws of "Weft.Scope", when hybrid threads return, throw, are killed, mask exceptions or
-- ignore them, in many orders; and programs that use scopes.
module Spec.Scope
  ( tests,
  )
where

import qualified Control.Concurrent as GHC
import qualified Control.Exception as E
import Control.Monad
import Control.Monad.Catch (uninterruptibleMask_)
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.List (sort, sortOn)
import GHC.Stats (gc, gcdetails_live_bytes, getRTSStats)
import Support
import System.IO.Error (isUserError)
import System.Mem (performMajorGC)
import System.Posix.IO (closeFd, createPipe)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid hiding (fork)
import qualified Weft.Hybrid as H
import Weft.Hybrid.Monad (getMask)
import qualified Weft.Hybrid.STM as STM
import Weft.Hybrid.Scheduler (startScheduler, stopScheduler)
import Weft.Hybrid.Scope
import Weft.Hybrid.Trace (Mask (..))
import qualified Weft.Socket as Weft

newtype Own = Own Int
  deriving (Eq, Show)

instance E.Exception Own

-- | Tests with the given number of loops.
tests :: Int -> IO Scheduler -> TestTree
tests loops scheduler =
  testGroup
    "scope"
    [ test "results; the end waits for work, and kills daemons" $ do
        [worked, cleaned] <- replicateM 2 (new False)
        r <- withScope $ \scope -> do
          _ <- fork scope (sleep (milliseconds 20) >> write worked True)
          _ <- forkDaemon scope (forever (sleep (seconds 60)) `finally` (sleep (milliseconds 5) >> write cleaned True))
          a <- fork scope (pure (1 :: Int))
          b <- forkOn 1 scope (pure 2)
          sleep (milliseconds 5)
          (+) <$> await a <*> await b
        r =?= 3
        look worked >>= (=?= True)
        look cleaned >>= (=?= True),
      test "a daemon that returns ends nothing" $
        withScope (\scope -> forkDaemon scope (pure 'x') >>= await) >>= (=?= 'x'),
      test "forkOn: threads begin on their loops" $ do
        places <- withScope $ \scope -> do
          tasks <- forM [0 .. 2 * loops - 1] (\c -> forkOn c scope here)
          mapM await tasks
        places =?= [c `mod` loops | c <- [0 .. 2 * loops - 1]],
      test "threads are unmasked, also if the one that forks is not; they inherit thread-local values" $ do
        local <- nonBlocking (newLocal 'a')
        setLocal local 'b'
        state <- uninterruptibleMask_ (withScope (\scope -> fork scope ((,) <$> getMask <*> getLocal local) >>= await))
        state =?= (Unmasked, 'b'),
      test "an exception of a thread ends the scope, whatever the owner does" . replicateM_ (times 100) $
        forM_ [await >=> pure, const (forever (sleep (seconds 60))), const (pure ()), const (forever yield), const (forever (nonBlocking (pure ()) >> yield))] $ \owner -> do
          (running, note) <- counting
          r <- try . withScope $ \scope -> do
            replicateM_ 3 (note (fork scope) (forever (sleep (seconds 60)) :: Hybrid ()))
            _ <- note (forkDaemon scope) (sleep (seconds 60))
            t <- note (fork scope) (yield >> throwM (Own 1))
            owner t
          r =?= (Left (Own 1) :: Either Own ())
          running >>= (=?= 0),
      test "an exception of the owner ends the scope" . replicateM_ (times 100) $ do
        (running, note) <- counting
        r <- try (withScope (\scope -> replicateM_ 5 (note (fork scope) (sleep (seconds 60))) >> throwM (Own 2)))
        r =?= (Left (Own 2) :: Either Own ())
        running >>= (=?= 0),
      test "an exception of pure code is one like others" $ do
        r <- try (withScope (\scope -> fork scope (yield >> if div 1 (0 :: Int) > 0 then pure 1 else pure 2) >>= await))
        r =?= (Left E.DivideByZero :: Either E.ArithException Int),
      test "an owner that swallows exceptions does not hide that of a thread" $ do
        r <- try . withScope $ \scope -> do
          t <- fork scope (throwM (Own 3) :: Hybrid ())
          forM_ [1 .. 3 :: Int] (\_ -> (void (awaitCatch t) >> sleep (milliseconds 2)) `catch` \(_ :: E.SomeException) -> pure ())
        r =?= Left (Own 3),
      test "an owner that cannot be interrupted learns of a failure" $ do
        let failing = throwM (Own 4) :: Hybrid ()
            uninterrupted act = try (uninterruptibleMask_ act) >>= (=?= Left (Own 4))
        uninterrupted (withScope (\scope -> void (fork scope failing)))
        uninterrupted (withScope (\scope -> fork scope failing >>= await))
        uninterrupted (void (concurrently failing (pure ())))
        replicateM_ (times 100) (uninterrupted (void (race failing (sleep (seconds 3600)))))
        replicateM_ (times 100) (uninterrupted (void (race (sleep (seconds 3600)) failing))),
      testCase "no exception is lost: the first is thrown, later ones are reported, with their labels" . finishes "no exception" . replicateM_ (times 20) $ do
        (r, said) <- reporting $ \s -> E.try . runIn s . withScope $ \scope -> do
          begun <- newSemaphore 0
          forM_ [1 .. 4 :: Int] $ \i ->
            forkUsing work {childLabel = Just (show i), childPlace = On i} scope ((release begun 1 >> sleep (seconds 60)) `onException` throwM (Own i))
          -- One that is told to end before it has begun throws nothing of its own.
          acquire begun 4
          _ <- fork scope (throwM (Own 0) :: Hybrid ())
          sleep (seconds 60)
        r @?= (Left (Own 0) :: Either Own ())
        sort said @?= [(Just (show i), show (Own i)) | i <- [1 .. 4]],
      test "an exception while a daemon is ended is thrown" $ do
        begun <- newEmptyMVar
        r <- try (withScope (\scope -> void (forkDaemon scope ((putMVar begun () >> sleep (seconds 60)) `onException` throwM (Own 5))) >> takeMVar begun))
        r =?= Left (Own 5),
      test "exceptions from outside, at any moment, reach owner and threads" . forM_ [0 .. times 400] $ \n -> do
        (running, note) <- counting
        (owner, r) <- elsewhere 0 . withScope $ \scope -> do
          ts <- replicateM 3 (note (forkOn n scope) (replicateM_ 20 yield))
          _ <- note (forkDaemon scope) (forever yield)
          mapM_ await ts
          withScope $ \inner -> replicateM_ 2 (note (fork inner) (replicateM_ 20 yield)) >> replicateM_ 20 yield
        replicateM_ (n `mod` 60) yield
        killThread owner
        r >>= either (\e -> show e =?= show E.ThreadKilled) pure
        running >>= (=?= 0),
      test "a scope in a scope of another thread: killing the outer owner ends both" . forM_ [0 .. times 100] $ \n -> do
        (running, note) <- counting
        begun <- newEmptyMVar
        (owner, r) <- elsewhere 1 . withScope $ \outer -> do
          _ <- note (fork outer) . withScope $ \inner -> do
            _ <- note (forkOn n inner) (forever (sleep (seconds 60)))
            _ <- note (forkDaemon inner) (putMVar begun () >> forever yield)
            sleep (seconds 60)
          sleep (seconds 60)
        takeMVar begun
        killThread owner
        r >>= either (\e -> show e =?= show E.ThreadKilled) pure
        running >>= (=?= 0),
      test "when the scope has ended, no interruption of its threads comes any more" . forM_ [0 .. times 2000] $ \n -> do
        go <- new False
        r <- try . withScope $ \scope -> do
          _ <- forkOn (n + 1) scope (replicateM_ (n `mod` 7) yield >> write go True >> throwM (Own 6))
          uninterruptibleMask_ (untilTrue go)
          replicateM_ (n `mod` 5) (nonBlocking (pure ()))
        r =?= (Left (Own 6) :: Either Own ())
        -- It would arrive here.
        replicateM_ 5 yield
        mask_ yield,
      testCase "an exception from outside is thrown after a failure, and neither is lost" . finishes "outside" . forM_ [0 .. times 200] $ \n -> do
        (owner, said) <- reporting $ \s -> runIn s $ do
          go <- newEmptyMVar
          (owner, r) <- elsewhere 0 (withScope (\scope -> forkOn n scope (readMVar go >> throwM (Own 6)) >>= await) :: Hybrid ())
          yield
          putMVar go ()
          replicateM_ (n `mod` 5) yield
          killThread owner
          r
        case owner of
          Left e
            | Just (Own 6) <- E.fromException e -> pure ()
            | Just E.ThreadKilled <- E.fromException e -> assertBool (show said) (all ((== show (Own 6)) . snd) said)
          other -> assertFailure (show other),
      testCase "an exception of a thread is reported if the owner is killed while it waits for the end" . finishes "killed" . replicateM_ (times 50) $ do
        (r, said) <- reporting $ \s -> runIn s $ do
          [begun, cleaning, gate] <- replicateM 3 newEmptyMVar
          (owner, r) <- elsewhere 0 . withScope $ \scope -> do
            _ <- fork scope ((putMVar begun () >> sleep (seconds 60)) `finally` (putMVar cleaning () >> takeMVar gate))
            _ <- fork scope (takeMVar begun >> throwM (Own 1) :: Hybrid ())
            sleep (seconds 60)
          takeMVar cleaning
          killThread owner
          putMVar gate ()
          r
        either show (const "") r @?= show E.ThreadKilled
        said @?= [(Nothing, show (Own 1))],
      test "masked threads are awaited; all others are told meanwhile" $ do
        [entered, gate] <- replicateM 2 newEmptyMVar
        told <- new (0 :: Int)
        over <- new False
        (_, r) <- elsewhere 0 $ do
          withScope $ \scope -> do
            _ <- forkDaemon scope (uninterruptibleMask_ (putMVar entered () >> takeMVar gate))
            begun <- newSemaphore 0
            replicateM_ 10 (forkDaemon scope ((release begun 1 >> sleep (seconds 60)) `finally` bump told))
            takeMVar entered
            acquire begun 10
          write over True
        until' ((== 10) <$> look told)
        sleep (milliseconds 5)
        look over >>= (=?= False)
        putMVar gate ()
        r >>= either throwM pure
        look over >>= (=?= True),
      test "a thread that masks ends where it waits, and one that never waits at the end of its turn" $ do
        (running, note) <- counting
        begun <- newSemaphore 0
        withScope $ \scope -> do
          _ <- note (forkDaemon scope) (mask_ (release begun 1 >> forever (sleep (milliseconds 1))))
          _ <- note (forkDaemon scope) (release begun 1 >> forever (nonBlocking (pure ())))
          acquire begun 2
        running >>= (=?= 0),
      test "a step is not interrupted: the scope waits for its end" . replicateM_ (times 10) $ do
        [begun, go, ended'] <- replicateM 3 (new False)
        -- A GHC thread, as the step holds its loop.
        _ <- nonBlocking (GHC.forkIO (untilIO begun >> pause 2 >> writeIORef go True))
        withScope $ \scope -> do
          _ <- forkUsing daemon {childPlace = On 1} scope (nonBlocking (writeIORef begun True >> untilIO go >> writeIORef ended' True))
          untilTrue begun
        look ended' >>= (=?= True),
      test "threads that do not end are named, and left if the program says so" $ do
        [entered, gate] <- replicateM 2 newEmptyMVar
        asked <- new []
        let settings' = defaultScopeSettings {scopePatience = milliseconds 30, scopeOnOverdue = \left -> Leave <$ modifyIORef asked (left :)}
            stubborn = uninterruptibleMask_ (putMVar entered () >> readMVar gate)
        withScopeUsing settings' $ \scope -> do
          _ <- forkDaemon scope (sleep (seconds 60))
          _ <- forkUsing daemon {childLabel = Just "stubborn"} scope stubborn
          takeMVar entered
        look asked >>= (=?= [["stubborn (hybrid thread 1 of its scope)"]])
        -- The same, and it waits on.
        over <- new False
        (_, r) <- elsewhere 0 $ do
          withScopeUsing settings' {scopeOnOverdue = \left -> WaitOn <$ modifyIORef asked (left :)} $ \scope -> do
            _ <- forkDaemon scope stubborn
            takeMVar entered
          write over True
        until' ((== 2) . length <$> look asked)
        sleep (milliseconds 5)
        look over >>= (=?= False)
        putMVar gate ()
        r >>= either throwM pure
        look over >>= (=?= True)
        -- What it throws, the scope throws.
        gate2 <- newEmptyMVar
        thrown <- try . withScopeUsing settings' {scopeOnOverdue = \_ -> E.throwIO (Own 13)} $ \scope -> do
          _ <- forkDaemon scope (uninterruptibleMask_ (putMVar entered () >> readMVar gate2))
          takeMVar entered
        putMVar gate2 ()
        thrown =?= Left (Own 13),
      testCase "the scheduler reports exceptions of threads that were left" . finishes "left" $ do
        (_, said) <- reporting $ \s -> runIn s $ do
          [entered, gate] <- replicateM 2 newEmptyMVar
          left <- withScopeUsing defaultScopeSettings {scopePatience = milliseconds 5, scopeOnOverdue = const (pure Leave)} $ \scope -> do
            t <- forkDaemon scope (uninterruptibleMask_ (putMVar entered () >> readMVar gate) >> throwM (Own 14))
            -- It swallows the kill.
            u <- forkDaemon scope ((putMVar entered () >> sleep (seconds 60)) `catch` \(_ :: E.AsyncException) -> uninterruptibleMask_ (readMVar gate) >> throwM (Own 15))
            [t, u] <$ replicateM_ 2 (takeMVar entered)
          putMVar gate ()
          mapM awaitCatch (left :: [Task ()])
        map snd said @?= [show (Own 15)],
      test "nothing can be forked after the end" $ do
        scope <- withScope pure
        r <- try (fork scope (pure ()) >>= await)
        r =?= Left ScopeEnded,
      test "forking while the scope ends: the thread ends, or is not forked" . forM_ [0 .. times 300] $ \n -> do
        (running, note) <- counting
        shared <- newEmptyMVar
        (_, other) <- elsewhere 1 $ do
          scope <- takeMVar shared
          replicateM 20 (try (note (forkOn n scope) (sleep (seconds 60))))
        r <- try . withScope $ \scope -> putMVar shared scope >> replicateM_ (n `mod` 40) yield >> throwM (Own 7)
        r =?= (Left (Own 7) :: Either Own ())
        running >>= (=?= 0)
        forked <- other >>= either throwM pure
        claim "another exception" (and [e == ScopeEnded | Left e <- forked]),
      test "cancelTask ends one thread, and waits for it" $ do
        cleaned <- new False
        begun <- newEmptyMVar
        r <- withScope $ \scope -> do
          t <- fork scope ((putMVar begun () >> sleep (seconds 60)) `finally` (sleep (milliseconds 5) >> write cleaned True))
          takeMVar begun
          cancelTask t
          look cleaned >>= (=?= True)
          try (await t)
        r =?= Left ScopeEnded
        -- A thread that cancels itself.
        withScope (\scope -> newEmptyMVar >>= \box -> fork scope (takeMVar box >>= cancelTask) >>= \t -> putMVar box t >> try (await t)) >>= (=?= Left ScopeEnded),
      test "cancelling in every order" . forM_ (permutationsOf 4) $ \order ->
        withScope $ \scope -> do
          ts <- forM [0 .. 3] (\c -> forkOn c scope (sleep (seconds 60)))
          forM_ order (\i -> mapM_ cancelTask (take 1 (drop i ts)))
          forM_ ts (try . await >=> (=?= Left ScopeEnded)),
      test "a thread that is told to end does so wherever it waits" $ do
        (running, note) <- counting
        (readEnd, writeEnd) <- nonBlocking createPipe
        d <- nonBlocking (adopt readEnd)
        sem <- newSemaphore 0
        begun <- newSemaphore 0
        box <- newEmptyMVar
        full <- newMVar ()
        channel <- newChannel
        var <- nonBlocking (STM.newTVarIO False)
        t <- forkThread (sleep (seconds 3600))
        idle <- nonBlocking GHC.newEmptyMVar
        let waits =
              [ takeMVar box,
                putMVar full (),
                void (readMVar box),
                sleep (seconds 3600),
                acquire sem 1,
                readChannel channel,
                STM.atomically (STM.readTVar var >>= STM.check),
                waitReadable d,
                onGhcThread (GHC.takeMVar idle),
                H.wait t,
                void (within (seconds 3600) (sleep (seconds 3600))),
                forever yield
              ]
        withScope $ \scope -> do
          forM_ waits (\w -> note (forkDaemon scope) (release begun 1 >> w))
          acquire begun (length waits)
          replicateM_ 3 yield
        running >>= (=?= 0)
        killThread t
        nonBlocking (void (closeDescriptor d) >> closeFd writeEnd >> GHC.putMVar idle ()),
      test "a thread that ends by ret has no result: that is its exception" . replicateM_ (times 100) $ do
        (running, note) <- counting
        r <- try . withScope $ \scope -> do
          _ <- note (fork scope) (sleep (seconds 60))
          t <- fork scope (yield >> ret)
          await t :: Hybrid ()
        claim (show r) (either isUserError (const False) r)
        running >>= (=?= 0)
        r2 <- try (forConcurrently 2 [1 .. 5 :: Int] (\i -> if i == 3 then ret else pure i))
        claim (show r2) (either isUserError (const False) r2),
      test "deep nesting: an exception passes through all scopes, and all threads have ended" . replicateM_ (times 20) $ do
        (running, note) <- counting
        let nested :: Int -> Hybrid ()
            nested 0 = throwM (Own 8)
            nested n = withScope $ \scope -> do
              _ <- note (forkDaemon scope) (forever (sleep (seconds 60)))
              note (forkOn n scope) (nested (n - 1)) >>= await
        r <- try (nested 50)
        r =?= Left (Own 8)
        running >>= (=?= 0),
      test "a deadlock of a thread is thrown as its own, not to those that wait for it" . collecting $ do
        r <- try . withScope $ \scope -> do
          t <- fork scope ((newEmptyMVar >>= takeMVar :: Hybrid ()) `catch` \E.BlockedIndefinitelyOnMVar -> throwM (Own 9))
          u <- fork scope (awaitCatch t)
          void (await u)
        r =?= Left (Own 9)
        -- One that survives it.
        withScope (\scope -> fork scope ((newEmptyMVar >>= takeMVar) `catch` \E.BlockedIndefinitelyOnMVar -> pure 'x') >>= await) >>= (=?= 'x')
        -- An owner that waits for the end of such a thread has nothing left of it.
        withScope (\scope -> void (fork scope ((newEmptyMVar >>= takeMVar :: Hybrid ()) `catch` \E.BlockedIndefinitelyOnMVar -> pure ())))
        [entered, gone] <- replicateM 2 newEmptyMVar
        withScope $ \scope -> do
          _ <- forkDaemon scope (uninterruptibleMask_ (putMVar entered () >> sleep (milliseconds 20) >> putMVar gone ()))
          takeMVar entered
        takeMVar gone
        replicateM_ 5 yield,
      test "threads that wait for each other find out" . collecting $ do
        r <- try . withScope $ \scope -> do
          box <- newEmptyMVar
          t <- fork scope (readMVar box >>= await :: Hybrid ())
          putMVar box t
          await t
        either (\E.BlockedIndefinitelyOnMVar -> pure ()) pure r,
      test "waiting for a timer is no deadlock" . collecting $
        withScope (\scope -> fork scope (sleep (milliseconds 30) >> pure 'x') >>= await) >>= (=?= 'x'),
      test "race: the first one's result; the other has ended" . replicateM_ (times 100) $ do
        ended' <- new False
        begun <- newEmptyMVar
        r <- race ((putMVar begun () >> sleep (seconds 60)) `finally` write ended' True) (takeMVar begun >> pure 'x')
        r =?= Right 'x'
        look ended' >>= (=?= True)
        e <- try (race (sleep (seconds 60)) (throwM (Own 10) :: Hybrid ()))
        e =?= Left (Own 10),
      test "concurrently: both results, or an exception of either" . replicateM_ (times 100) $ do
        concurrently (pure 'a') (pure 'b') >>= (=?= ('a', 'b'))
        forM_ [concurrently (throwM (Own 11)) (sleep (seconds 60)), concurrently (sleep (seconds 60)) (throwM (Own 11))] $ \act ->
          try act >>= (=?= (Left (Own 11) :: Either Own ((), ()))),
      test "forConcurrently: results in order, at most so many at once; an exception stops further ones" $ do
        [running, most, begun] <- replicateM 3 (new (0 :: Int))
        let change d = nonBlocking (atomicModifyIORef' running (\n -> (n + d, n + d)) >>= \n -> atomicModifyIORef' most (\m -> (max n m, ())))
        r <- forConcurrently 3 [1 .. 50 :: Int] (\i -> bracket_ (change 1) (change (-1)) (2 * i <$ replicateM_ (i `mod` 7) yield))
        r =?= map (2 *) [1 .. 50]
        look most >>= (=?= 3)
        forConcurrently 3 ([] :: [Int]) pure >>= (=?= [])
        forConcurrently 0 (Just 'x') pure >>= (=?= Just 'x')
        let act i = do
              bump begun
              when (i == 5) (throwM (Own 12))
              when (i > 5) (sleep (seconds 60))
        e <- try (forConcurrently_ 2 [1 .. 1000 :: Int] act)
        e =?= Left (Own 12)
        look begun >>= \n -> claim (show n) (n <= 6),
      test "a time limit around a scope ends it, and takes precedence over a failure" . forM_ [0 .. times 50] $ \n -> do
        (running, note) <- counting
        r <- within (microseconds (100 * (n `mod` 20) + 1)) (withScope (\scope -> note (fork scope) (sleep (seconds 60)) >>= await))
        r =?= Nothing
        running >>= (=?= 0)
        -- The thread fails because it is told to end.
        begun <- newEmptyMVar
        (_, r2) <- elsewhere 0 . within (milliseconds 2) . withScope $ \scope -> do
          t <- fork scope ((putMVar begun () >> sleep (seconds 60)) `onException` throwM (Own 16))
          takeMVar begun >> await t
        r2 >>= either (\e -> show e =?= "no exception") (=?= Nothing),
      testCase "a scheduler that is stopped ends its scopes: all finalizers run" . finishes "stopped" . forM_ [0 .. times 20] $ \n -> do
        ended' <- newIORef (0 :: Int)
        begun <- newIORef (0 :: Int)
        let more ref = nonBlocking (atomicModifyIORef' ref (\k -> (k + 1, ())))
            thread act = (more begun >> act) `finally` more ended'
        s <- startScheduler (quiet loops)
        forM_ [0 .. 2] $ \i -> forkFromIn s . thread . withScope $ \scope -> do
          _ <- forkOn (n + i) scope (thread (forever (sleep (seconds 60))))
          _ <- forkDaemon scope (thread (withScope (\inner -> fork inner (thread (newEmptyMVar >>= takeMVar)) >>= await) :: Hybrid ()))
          sleep (seconds 60)
        eventually "all have begun" ((== 12) <$> readIORef begun)
        stopScheduler s
        readIORef ended' >>= (@?= 12),
      test "many threads: all are told and awaited; nothing is kept of those that have ended" $ do
        ended' <- new (0 :: Int)
        begun <- newSemaphore 0
        withScope $ \scope -> do
          replicateM_ 5000 (forkDaemon scope ((release begun 1 >> sleep (seconds 60)) `finally` bump ended'))
          acquire begun 5000
        look ended' >>= (=?= 5000)
        withScope $ \scope -> do
          let round' = replicateM 1000 (fork scope (pure ())) >>= mapM_ await
          round'
          before <- live
          replicateM_ 10 round'
          after' <- live
          claim (show (before, after')) (after' <= before + 300000),
      testGroup "programs" (map (uncurry test) (programs loops))
    ]
  where
    test name act = testCase name (finishes name (scheduler >>= \s -> runIn s act))
    untilTrue ref = until' (look ref)
    untilIO ref = readIORef ref >>= \ok -> unless ok (GHC.threadDelay 100 >> untilIO ref)
    until' ok = ok >>= \b -> unless b (sleep (microseconds 50) >> until' ok)
    here = nonBlocking (fst <$> (GHC.myThreadId >>= GHC.threadCapability))
    live = nonBlocking (performMajorGC >> performMajorGC >> gcdetails_live_bytes . gc <$> getRTSStats)

-- | Programs as others would write them.
programs :: Int -> [(String, Hybrid ())]
programs loops =
  [ ( "a server whose connections belong to its scope",
      do
        open <- new (0 :: Int)
        (listening, address) <- nonBlocking $ do
          l <- Weft.socket Weft.AF_INET Weft.Stream Weft.defaultProtocol
          Weft.bind l (Weft.SockAddrInet 0 (Weft.tupleToHostAddress (127, 0, 0, 1)))
          Weft.listen l 64
          (,) l <$> Weft.getSocketName l
        listener <- fromSocket listening
        let handler sock = recv sock 100 >>= \bytes -> unless (C.null bytes) (sendAll sock bytes >> handler sock)
            acceptor scope = forever $
              mask_ $ do
                (sock, _) <- accept listener
                forkDaemon scope (bracket_ (bump open) (add open (-1)) (handler sock) `finally` close sock)
            client i = do
              sock <- nonBlocking (Weft.socket Weft.AF_INET Weft.Stream Weft.defaultProtocol) >>= fromSocket
              connect sock address
              sendAll sock (C.pack (show i))
              r <- recv sock 100
              -- Every second client leaves its connection open.
              when (even i) (close sock)
              pure (C.unpack r, sock)
        answers <- withScope $ \scope -> do
          _ <- forkDaemon scope (acceptor scope)
          forConcurrently 8 [1 .. 40 :: Int] client
        map fst answers =?= map show [1 .. 40 :: Int]
        look open >>= (=?= 0)
        -- The handlers have closed the connections.
        forM_ [sock | ((_, sock), i) <- zip answers [1 :: Int ..], odd i] (\sock -> (recv sock 1 >>= (=?= C.empty)) `finally` close sock)
        close listener
    ),
    ( "a pipeline: a producer, workers, a collector; a worker that fails ends it",
      forM_ [Nothing, Just 70] $ \bad -> do
        jobs <- newChannel
        results <- newChannel
        r <- try . withScope $ \scope -> do
          _ <- forkDaemon scope (mapM_ (writeChannel jobs) [1 .. 100 :: Int] >> forever yield)
          forM_ [1 .. 4] $ \w -> forkUsing daemon {childPlace = On w, childLabel = Just ("worker " <> show w)} scope . forever $ do
            n <- readChannel jobs
            when (Just n == bad) (throwM (Own n))
            writeChannel results (n, n * n)
          collected <- fork scope (replicateM 100 (readChannel results))
          await collected
        case bad of
          Nothing -> fmap (map snd . sortOn fst) r =?= Right [n * n | n <- [1 .. 100]]
          Just n -> fmap length r =?= Left (Own n)
    ),
    ( "a supervisor: a service that fails is begun again with fresh helpers",
      do
        attempts <- new (0 :: Int)
        alive <- new (0 :: Int)
        let helper = bracket_ (bump alive) (add alive (-1)) (forever (sleep (milliseconds 1)))
            service = withScope $ \scope -> do
              replicateM_ 5 (forkDaemon scope helper)
              bump attempts
              n <- look attempts
              t <- fork scope (sleep (microseconds 300) >> if n < 4 then throwM (Own n) else pure n)
              await t
            supervised = try service >>= either (\(Own _) -> look alive >>= (=?= 0) >> supervised) pure
        supervised >>= (=?= 4)
        look alive >>= (=?= 0)
    ),
    ( "the fastest of many, with a deadline for all",
      replicateM_ (times 10) $ do
        let fastest = foldr1 (\x y -> either id id <$> race x y)
        r <- fastest [sleep (seconds (60 + fromIntegral i)) >> pure i | i <- [1 .. 10 :: Int]] `orElse` fastest [(if i == 7 then pure () else sleep (seconds 60)) >> pure i | i <- [1 .. 10 + loops]]
        r =?= 7
    )
  ]
  where
    orElse act other = within (milliseconds 1) act >>= maybe other pure

-- | How many threads are between their beginning and their end, and a function around the forking of such threads. A
-- thread counts from its first step.
counting :: Hybrid (Hybrid Int, (Hybrid a -> Hybrid (Task a)) -> Hybrid a -> Hybrid (Task a))
counting = do
  running <- new 0
  pure (look running, \how act -> how (mask (\restore -> bump running >> restore act `finally` (yield >> add running (-1)))))

-- | Run an action in a hybrid thread that begins on the given loop: the thread, and what waits for its end.
elsewhere :: Int -> Hybrid a -> Hybrid (Thread, Hybrid (Either E.SomeException a))
elsewhere c act = do
  box <- newEmptyMVar
  t <- forkThread ((replicateM_ c yield >> (Right <$> act)) `catch` (pure . Left) >>= putMVar box)
  -- It may be killed outside of the handler.
  pure (t, waitCatch t >>= either (pure . Left) (const (takeMVar box)))

-- | Run an action with a scheduler of its own; the labels and exceptions that it reported until it was stopped.
reporting :: (Scheduler -> IO a) -> IO (a, [(Maybe String, String)])
reporting act = do
  said <- newIORef []
  let settings = (quiet 2) {settingsOnException = \name e -> atomicModifyIORef' said (\es -> ((name, maybe (show e) show (own e)) : es, ()))}
  a <- withScheduler settings act
  (,) a <$> readIORef said
  where
    -- Newer compilers display an exception with a backtrace.
    own :: E.SomeException -> Maybe Own
    own = E.fromException

quiet :: Int -> Settings
quiet n = defaultSettings {settingsLoops = Just n, settingsOnException = \_ _ -> pure (), settingsOnStall = \_ _ -> pure ()}

-- | Run a hybrid thread while the collector runs.
collecting :: Hybrid a -> Hybrid a
collecting act = nonBlocking (GHC.forkIO (forever (performMajorGC >> pause 2))) >>= \t -> act `finally` nonBlocking (GHC.killThread t)

new :: a -> Hybrid (IORef a)
new = nonBlocking . newIORef

look :: IORef a -> Hybrid a
look = nonBlocking . readIORef

write :: IORef a -> a -> Hybrid ()
write ref = nonBlocking . atomicWriteIORef ref

bump :: IORef Int -> Hybrid ()
bump ref = add ref 1

add :: IORef Int -> Int -> Hybrid ()
add ref d = nonBlocking (atomicModifyIORef' ref (\n -> (n + d, ())))

infix 1 =?=

(=?=) :: (Eq a, Show a) => a -> a -> Hybrid ()
a =?= b = nonBlocking (a @?= b)

claim :: String -> Bool -> Hybrid ()
claim why ok = nonBlocking (assertBool why ok)

permutationsOf :: Int -> [[Int]]
permutationsOf n = go [0 .. n - 1]
  where
    go [] = [[]]
    go xs = [x : rest | x <- xs, rest <- go (filter (/= x) xs)]
