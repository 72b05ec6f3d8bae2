-- |
-- Random programs ("Program") on a scheduler, compared with their meaning.
module Programs
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (AsyncException (..), Exception, SomeException, fromException)
import Control.Monad (void)
import Data.IORef
import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Program
import Test.QuickCheck
import Test.QuickCheck.Monadic
import Test.Tasty
import Test.Tasty.QuickCheck
import Weft.Hybrid
import Weft.Hybrid.Monad (catchAny, getMask, withMask)
import Weft.Hybrid.Trace (ThreadState (..), threadState)
import Weft.Sys (readRef)

tests :: IO Scheduler -> TestTree
tests scheduler =
  testProperty "random programs do what the reference interpreter allows" $
    withMaxSuccess 400 . forAllShrink genProgram shrinkProgram $ \p ->
      case outcomes p of
        Nothing -> discard
        Just allowed -> monadicIO $ do
          got <- run' p
          monitor (counterexample (show got <> "\nallowed: " <> show (Set.size allowed) <> "\n" <> unlines (map show (take 5 (Set.toList allowed)))))
          assert (Set.member got allowed)
  where
    run' p = Test.QuickCheck.Monadic.run (scheduler >>= \s -> execute s p)

newtype Raised = Raised Int
  deriving (Show)

instance Exception Raised

-- | A thread of the program: what it has seen, the latest first, and how it ended.
data Running = Running Thread (IORef [Seen]) (IORef (Maybe End))

-- | Run a program until all of its threads have ended, or wait for each other.
execute :: Scheduler -> Program -> IO Outcome
execute scheduler p = do
  vars <- mapM (const newEmptyMVarIO) [1 .. variables]
  threads <- newIORef Map.empty
  void (runIn scheduler (launch vars threads [] p))
  atRest (readIORef threads)
  found <- readIORef threads
  Map.fromList <$> mapM result (Map.toList found)
  where
    result (name, Running _ seen end) = do
      s <- readIORef seen
      e <- readIORef end
      pure (name, (reverse s, maybe Stuck id e))

-- | All threads wait or have ended, and none has done anything between two looks at all.
atRest :: IO (Map.Map Name Running) -> IO ()
atRest threads = go (0 :: Int) Nothing
  where
    go n before = do
      states <- threads >>= mapM (\(Running t _ _) -> parked <$> readRef (threadState t))
      if Just states == before && notElem Nothing states
        then pure ()
        else (if n < 3 then pure () else threadDelay 20) >> go (n + 1) (Just states)
    parked (Waiting n [] _ _) = Just n
    parked Finished = Just (-1)
    parked _ = Nothing

-- | Start a thread of the program. It is known before anything can happen to its parent.
launch :: [MVar Int] -> IORef (Map.Map Name Running) -> Name -> [Op] -> Hybrid Thread
launch vars threads name p = do
  before <- getMask
  seen <- nonBlocking (newIORef [])
  end <- nonBlocking (newIORef Nothing)
  children <- nonBlocking (newIORef [])
  let me = Me vars threads name seen children
      ended e = nonBlocking (writeIORef end (Just e))
      body = (withMask before (perform me p) >> ended Ended) `catchAny` (ended . endOf)
  mask_ $ do
    t <- forkThread body
    t <$ nonBlocking (atomicModifyIORef' threads (\m -> (Map.insert name (Running t seen end) m, ())))

-- | The state that a thread of the program has access to.
data Me = Me [MVar Int] (IORef (Map.Map Name Running)) Name (IORef [Seen]) (IORef [Thread])

endOf :: SomeException -> End
endOf e = case fromException e of
  Just (Raised k) -> Died k
  Nothing -> case fromException e of
    Just ThreadKilled -> Killed
    _ -> Died (-1)

perform :: Me -> [Op] -> Hybrid ()
perform me@(Me vars threads name seen children) = mapM_ op
  where
    var v = vars !! v
    say s = nonBlocking (modifyIORef' seen (s :))
    -- With what it saw, in one: an exception does not come in between.
    noting act = mask_ (act >>= say)
    op o = case o of
      Pass -> yield >> say Passed
      Take v -> noting (Took v <$> takeMVar (var v))
      Put v a -> noting (DidPut v <$ putMVar (var v) a)
      Read v -> noting (DidRead v <$> readMVar (var v))
      TryTake v -> noting (TriedTake v <$> tryTakeMVar (var v))
      TryPut v a -> noting (TriedPut v <$> tryPutMVar (var v) a)
      Raise k -> throwM (Raised k)
      Catch a b -> perform me a `catchAny` \e -> say (Caught (endOf e)) >> perform me b
      Finally a b -> perform me a `finally` perform me b
      Mask a -> mask_ (perform me a)
      Spawn a -> do
        n <- nonBlocking (length <$> readIORef children)
        mask_ $ do
          t <- launchHere a n
          nonBlocking (modifyIORef' children (<> [t]))
      Kill i -> nonBlocking (drop i <$> readIORef children) >>= mapM_ killThread . take 1
    launchHere a n = launch vars threads (n : name) a
