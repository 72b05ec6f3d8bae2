-- |
-- A thread is killed inside every system call that waits. It ends there; what it waited
-- for works as before.
module Spec.Interrupted
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import qualified Control.Concurrent as GHC
import Control.Monad (replicateM_, void, when)
import qualified Data.ByteString as B
import Data.IORef
import Support
import System.Posix.IO (createPipe)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid
import Weft.Hybrid.Datagram
import Weft.Hybrid.Flag
import qualified Weft.Hybrid.STM as STM
import qualified Weft.Socket as Weft

-- | Prepares; gives what waits, and what shows that all is well afterwards.
type Case = Hybrid (Hybrid (), Hybrid Bool)

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup "killed in" [testCase name (finishes name (mapM_ (\d -> scheduler >>= \s -> killed s d c) delays)) | (name, c) <- cases]
  where
    -- At once, when it has just begun to wait, and while it waits.
    delays = replicate (times 20) (replicateM_ 1 yield) <> replicate (times 5) (replicateM_ 3 yield) <> [pure (), sleep (milliseconds 3)]

killed :: Scheduler -> Hybrid () -> Case -> Assertion
killed s delay c = do
  cleaned <- newIORef False
  (end, fine) <- runIn s $ do
    (waits, check) <- c
    t <- forkThread (waits `finally` nonBlocking (writeIORef cleaned True))
    delay
    killThread t
    end <- waitCatch t
    (,) end <$> check
  began <- readIORef cleaned
  when began (isKilled end @? ("ended otherwise: " <> show end))
  isKilled end @? show end
  fine @? "does not work any more"

cases :: [(String, Case)]
cases =
  [ ("yield", pure (yield >> sleep (seconds 100), pure True)),
    ( "takeMVar",
      do
        m <- newEmptyMVar
        pure (void (takeMVar m), putMVar m 'x' >> (== 'x') <$> takeMVar m)
    ),
    ( "readMVar",
      do
        m <- newEmptyMVar
        pure (void (readMVar m), putMVar m 'x' >> (== 'x') <$> takeMVar m)
    ),
    ( "putMVar",
      do
        m <- newMVar 'x'
        pure (putMVar m 'y', (\a b -> a == 'x' && b == Nothing) <$> takeMVar m <*> tryTakeMVar m)
    ),
    ( "modifyMVar",
      do
        m <- newMVar 'x'
        pure (modifyMVar_ m (\x -> x <$ sleep (seconds 100)), (== 'x') <$> takeMVar m)
    ),
    ( "acquire",
      do
        q <- newSemaphore 0
        pure (acquire q 2, release q 1 >> acquire q 1 >> pure True)
    ),
    ( "withMutex",
      do
        m <- newMutex
        pure (withMutex m (sleep (seconds 100)), withMutex m (pure True))
    ),
    ( "readChannel",
      do
        ch <- newChannel
        pure (void (readChannel ch), writeChannel ch 'x' >> (== 'x') <$> readChannel ch)
    ),
    ( "writeBounded",
      do
        ch <- newBoundedChannel 1
        writeBounded ch 'x'
        pure (writeBounded ch 'y', readBounded ch >>= \x -> writeBounded ch 'z' >> (\z -> [x, z] == "xz") <$> readBounded ch)
    ),
    ( "awaitFlag",
      do
        flag <- nonBlocking newFlag
        pure (awaitFlag flag, nonBlocking (raiseFlag flag) >> awaitFlag flag >> pure True)
    ),
    ( "awaitFlagUntil",
      do
        flag <- nonBlocking newFlag
        pure (deadlineIn (seconds 100) >>= \d -> void (awaitFlagUntil d flag), nonBlocking (raiseFlag flag) >> awaitFlag flag >> pure True)
    ),
    ("sleep", pure (sleep (seconds 100), pure True)),
    ("timeout", pure (void (within (seconds 100) (sleep (seconds 200))), pure True)),
    ( "atomically",
      do
        v <- nonBlocking (STM.newTVarIO False)
        let act = STM.atomically (STM.readTVar v >>= STM.check)
        pure (act, STM.atomically (STM.writeTVar v True) >> act >> pure True)
    ),
    ("blocking", pure (blocking (threadDelay 30000) >> sleep (seconds 100), blocking (pure True))),
    ( "onGhcThread",
      do
        box <- nonBlocking GHC.newEmptyMVar
        pure (onGhcThread (GHC.takeMVar box), onGhcThread (GHC.putMVar box () >> pure True))
    ),
    ( "wait",
      do
        t <- forkThread (sleep (seconds 100))
        pure (void (waitCatch t), killThread t >> isKilled <$> waitCatch t)
    ),
    ("recv", withPair $ \a b -> (void (recv a 10), sendAll b (B.pack [7]) >> (== B.pack [7]) <$> recv a 10)),
    ( "recv with a deadline",
      withPair $ \a b ->
        ( deadlineIn (seconds 100) >>= \d -> void (recv (withDeadline d a) 10),
          sendAll b (B.pack [7]) >> (== B.pack [7]) <$> recv a 10
        )
    ),
    ( "sendAll",
      withPair $ \a b ->
        ( sendAll a (B.replicate 10000000 0),
          do
            fork (sendAll a (B.pack [9]) `finally` shutdown a ShutdownSend)
            let go = recv b 65536 >>= \x -> if B.null x then pure False else if B.last x == 9 then pure True else go
            go
        )
    ),
    ( "receiveDatagrams",
      withDatagrams $ \a b -> do
        receiver <- newReceiver defaultReceiverSettings a
        pure
          ( void (receiveDatagrams receiver noDeadline),
            do
              sendDatagrams b noDeadline [B.pack [7]]
              (== [B.pack [7]]) . map datagramBytes <$> receiveDatagrams receiver noDeadline
          )
    ),
    ( "sendDatagrams",
      withDatagrams $ \a b -> do
        receiver <- newReceiver defaultReceiverSettings b
        pure
          ( sendDatagrams a noDeadline (replicate 100000 (B.pack [0])),
            do
              fork (sendDatagrams a noDeadline [B.pack [9]])
              let go = receiveDatagrams receiver noDeadline >>= \got -> if any ((== B.pack [9]) . datagramBytes) got then pure True else go
              go
          )
    ),
    ( "accept",
      do
        (l, addr) <- listener
        pure
          ( void (accept l),
            do
              c <- connectTo addr
              (x, _) <- accept l
              sendAll c (B.pack [1])
              (== B.pack [1]) <$> recv x 1
          )
    ),
    ( "waitReadable",
      do
        (r, w) <- nonBlocking createPipe
        r' <- nonBlocking (adopt r)
        w' <- nonBlocking (adopt w)
        pure
          ( waitReadable r' >> waitReadable r',
            do
              writeBytes w' (B.pack [3])
              x <- readBytes r' 10
              nonBlocking (mapM_ closeDescriptor [r', w'])
              pure (x == B.pack [3])
          )
    )
  ]

withPair :: (Socket -> Socket -> (Hybrid (), Hybrid Bool)) -> Case
withPair f = withPairOf Weft.Stream (\a b -> pure (f a b))

withDatagrams :: (Socket -> Socket -> Case) -> Case
withDatagrams = withPairOf Weft.Datagram

withPairOf :: Weft.SocketType -> (Socket -> Socket -> Case) -> Case
withPairOf kind f = do
  (a, b) <- nonBlocking (Weft.socketPair Weft.AF_UNIX kind 0)
  a' <- fromSocket a
  b' <- fromSocket b
  (waits, check) <- f a' b'
  pure (waits, check `finally` (close a' >> close b'))

listener :: Hybrid (Socket, SockAddr)
listener = do
  (l, addr) <- nonBlocking $ do
    l <- Weft.socket Weft.AF_INET Weft.Stream 0
    Weft.bind l (SockAddrInet 0 (Weft.tupleToHostAddress (127, 0, 0, 1)))
    Weft.listen l 10
    (,) l <$> Weft.getSocketName l
  l' <- fromSocket l
  pure (l', addr)
