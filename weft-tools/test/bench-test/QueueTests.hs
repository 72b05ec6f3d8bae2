-- |
-- Description : Tests of the queues of @weft serve@ for costly work, and of how it divides descriptors
module QueueTests (queues, descriptors) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.IORef
import GHC.Conc (BlockReason (BlockedOnMVar), ThreadStatus (..), threadStatus)
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Tools.Serve.Descriptors (greatest)
import Weft.Tools.Serve.FairQueue

queues :: TestTree
queues =
  testGroup
    "costly work"
    [ testCase "clients are served in turn" $ do
        q <- busy 8 100
        asked <- mapM (ask q) [('a', 1), ('a', 2), ('a', 3), ('b', 1), ('b', 2), ('c', 1)]
        release q
        mapM_ result asked
        done q >>= (@?= [('a', 1), ('b', 1), ('c', 1), ('a', 2), ('b', 2), ('a', 3)]),
      testCase "work beyond the limits is refused at once, and accepted when there is room again" $ do
        q <- busy 2 3
        asked <- mapM (ask q) [('a', 1), ('a', 2), ('b', 1)]
        answer q ('a', 3) >>= (@?= Left ClientFull)
        answer q ('b', 2) >>= (@?= Left AllFull)
        answer q ('c', 1) >>= (@?= Left AllFull)
        release q
        mapM result asked >>= (@?= map Right [('a', 1), ('a', 2), ('b', 1)])
        forM_ [('a', 3), ('b', 2), ('c', 1)] $ \name -> answer q name >>= (@?= Right name),
      testCase "the same work of a client is done once, and takes one place" $ do
        q <- busy 1 100
        asked <- replicateM 5 (ask q ('a', 1))
        other <- ask q ('b', 1)
        release q
        mapM result asked >>= (@?= replicate 5 (Right ('a', 1)))
        result other >>= (@?= Right ('b', 1))
        done q >>= (@?= [('a', 1), ('b', 1)])
        -- Not the same any more when it has been done.
        answer q ('a', 1) >>= (@?= Right ('a', 1))
        done q >>= (@?= [('a', 1), ('b', 1), ('a', 1)]),
      testCase "work that throws, and a caller that is killed, keep no other from its result" $ do
        q <- busy 8 100
        killed <- ask q ('a', 1)
        killThread (fst killed)
        throws <- waiting (askFor (queue q) 'a' 2 (throwIO (ErrorCall "no")))
        other <- ask q ('a', 3)
        release q
        failed <- try (result throws)
        failed @?= Left (ErrorCall "no")
        result other >>= (@?= Right ('a', 3))
        done q >>= (@?= [('a', 1), ('a', 3)])
    ]

descriptors :: TestTree
descriptors =
  testGroup
    "descriptors"
    [ testCase "the greatest number of connections that fits, as by trying one after the other" $
        forM_ [(fits, high) | fits <- [0 .. 40], high <- [1 .. 20]] $ \(fits, high) ->
          greatest (\n -> sockets n <= fits) high @?= until (\n -> n <= 1 || sockets n <= fits) (subtract 1) high,
      testCase "2^60 descriptors need no search of them all" $ do
        found <- timeout 60000000 (evaluate (greatest (\n -> sockets n <= 2 ^ (60 :: Int)) (2 ^ (60 :: Int))))
        (\n -> (sockets n <= 2 ^ (60 :: Int), sockets (n + 1) <= 2 ^ (60 :: Int))) <$> found @?= Just (True, False)
    ]
  where
    sockets n = n + max 3 (n `div` 16) :: Int

-- | A client and the key of its work.
type Name = (Char, Int)

-- | A queue whose thread is busy with another client's work until it is released.
data Busy = Busy {queue :: FairQueue Char Int Name, release :: IO (), history :: IORef [Name]}

busy :: Int -> Int -> IO Busy
busy ofClient ofAll = do
  q <- newFairQueue ofClient ofAll
  began <- newEmptyMVar
  gate <- newEmptyMVar
  _ <- forkIO (void (askFor q 'z' 0 (putMVar began () >> takeMVar gate >> pure ('z', 0))))
  takeMVar began
  Busy q (putMVar gate ()) <$> newIORef []

-- | What was done, in order, after the queue was released.
done :: Busy -> IO [Name]
done q = reverse <$> readIORef (history q)

answer :: Busy -> Name -> IO (Either Refusal Name)
answer q name@(client, key) = askFor (queue q) client key (name <$ modifyIORef' (history q) (name :))

-- | Ask in a thread. Returns when the work is in the queue.
ask :: Busy -> Name -> IO (ThreadId, MVar (Either SomeException (Either Refusal Name)))
ask q = waiting . answer q

waiting :: IO a -> IO (ThreadId, MVar (Either SomeException a))
waiting act = do
  box <- newEmptyMVar
  t <- mask $ \restore -> forkIO (try (restore act) >>= putMVar box)
  let settled =
        threadStatus t >>= \status -> case status of
          ThreadBlocked BlockedOnMVar -> pure ()
          ThreadFinished -> pure ()
          _ -> threadDelay 100 >> settled
  (t, box) <$ settled

result :: (ThreadId, MVar (Either SomeException a)) -> IO a
result (_, box) = takeMVar box >>= either throwIO pure
