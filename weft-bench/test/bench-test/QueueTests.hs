-- |
-- Description : Tests of the queues of @weft serve@ for costly work, and of how it divides descriptors
module QueueTests (queues, descriptors) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.Char (toLower)
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
      testCase "groups are served in turn, and in a group its clients" $ do
        q <- busy 8 100
        asked <- mapM (ask q) [('a', 1), ('a', 2), ('A', 1), ('A', 2), ('b', 1), ('b', 2), ('b', 3)]
        release q
        mapM_ result asked
        done q >>= (@?= [('a', 1), ('b', 1), ('A', 1), ('b', 2), ('a', 2), ('b', 3), ('A', 2)]),
      testCase "work beyond the limits is refused at once, and accepted when there is room again" $ do
        q <- busy 2 3
        asked <- mapM (ask q) [('a', 1), ('b', 1), ('b', 2)]
        answer q ('b', 3) >>= (@?= Left ClientFull)
        answer q ('a', 2) >>= (@?= Left AllFull)
        release q
        mapM result asked >>= (@?= map Right [('a', 1), ('b', 1), ('b', 2)])
        forM_ [('b', 3), ('a', 2)] $ \name -> answer q name >>= (@?= Right name),
      testCase "if all places are taken, a client takes one of the group with the most, until it has as many" $ do
        q <- busy 3 6
        asked <- mapM (ask q) [('a', 1), ('a', 2), ('a', 3), ('A', 1), ('A', 2), ('b', 1)]
        c <- mapM (ask q) [('c', 1), ('c', 2)]
        -- Of the client with more, the newest.
        mapM result (take 2 (drop 1 asked)) >>= (@?= [Left AllFull, Left AllFull])
        forM_ [('c', 3), ('a', 4)] $ \name -> answer q name >>= (@?= Left AllFull)
        b <- ask q ('b', 2)
        result (asked !! 4) >>= (@?= Left AllFull)
        release q
        mapM result (take 1 asked <> [asked !! 3, asked !! 5, b] <> c) >>= (@?= map Right [('a', 1), ('A', 1), ('b', 1), ('b', 2), ('c', 1), ('c', 2)])
        done q >>= (@?= [('a', 1), ('b', 1), ('c', 1), ('A', 1), ('b', 2), ('c', 2)]),
      testCase "of a thousand places, 128 attackers with all the work that they may have take none from others" $ do
        q <- busyFor id 8 1000
        mapM_ (ask q) [(attacker, n) | n <- [1 .. 8], attacker <- [1 .. 128 :: Int]]
        others <- mapM (\client -> ask q (client, 1)) [1001 .. 1020]
        release q
        mapM result others >>= (@?= [Right (client, 1) | client <- [1001 .. 1020]]),
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
type Name client = (client, Int)

-- | A queue whose thread is busy with another client's work until it is released.
data Busy client = Busy {queue :: FairQueue client client Int (Name client), release :: IO (), history :: IORef [Name client]}

-- | A letter's group is that of the small one.
busy :: Int -> Int -> IO (Busy Char)
busy = busyFor toLower

busyFor :: (Ord client, Enum client) => (client -> client) -> Int -> Int -> IO (Busy client)
busyFor groupOf ofClient ofAll = do
  q <- newFairQueue groupOf ofClient ofAll
  began <- newEmptyMVar
  gate <- newEmptyMVar
  _ <- forkIO (void (askFor q (toEnum 0) 0 (putMVar began () >> takeMVar gate >> pure (toEnum 0, 0))))
  takeMVar began
  Busy q (putMVar gate ()) <$> newIORef []

-- | What was done, in order, after the queue was released.
done :: Busy client -> IO [Name client]
done q = reverse <$> readIORef (history q)

answer :: Ord client => Busy client -> Name client -> IO (Either Refusal (Name client))
answer q name@(client, key) = askFor (queue q) client key (name <$ modifyIORef' (history q) (name :))

-- | Ask in a thread. Returns when the work is in the queue.
ask :: Ord client => Busy client -> Name client -> IO (ThreadId, MVar (Either SomeException (Either Refusal (Name client))))
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
