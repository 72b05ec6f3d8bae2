-- |
-- Random use of a back end, compared with a model of what it must and what it may
-- report.
module LawsModel
  ( modelLaw,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket)
import Control.Monad (foldM, forM, void)
import qualified Data.IntMap.Strict as IntMap
import LawsAsking
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.QuickCheck
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Test.Descriptors

-- | An operation on one of a few sockets.
data Op
  = Arm Int Trigger Events
  | Say Int
  | Drain Int
  | Fill Int
  | MakeRoom Int
  | Forget Int
  | Poll
  deriving (Show)

socketCount :: Int
socketCount = 3

instance Arbitrary Op where
  arbitrary =
    frequency
      [ (4, Arm <$> which <*> elements [Once, Level, Edge] <*> elements [evtRead, evtWrite, evtRead <> evtWrite]),
        (3, Say <$> which),
        (2, Drain <$> which),
        (2, Fill <$> which),
        (2, MakeRoom <$> which),
        (1, Forget <$> which),
        (5, pure Poll)
      ]
    where
      which = choose (0, socketCount - 1)

-- | A socket and its peer, and what is known of them.
data Model = Model
  { socket :: Fd,
    peer :: Fd,
    ready :: Events,
    generation :: Int,
    watch :: Maybe Watch
  }

data Watch = Watch
  { trigger :: Trigger,
    asked :: Events,
    -- | 'Edge': became ready and was not reported.
    changed :: Events,
    -- | Was ready at some time since it was armed; a report may be that old.
    was :: Events
  }

type World = IntMap.IntMap Model

-- | Whether the next poll must report it.
due :: Model -> Bool
due m = case watch m of
  Nothing -> False
  Just w -> overlaps (asked w) (if trigger w == Edge then changed w `common` ready m else ready m)

modelLaw :: IO Backend -> TestTree
modelLaw make = testProperty "random use agrees with the model" $ \ops ->
  ioProperty . withFds $ \fds -> bracket make backendClose $ \b -> do
    world <- forM [0 .. socketCount - 1] $ \i -> do
      (s, p) <- streamPair fds
      pure (i, Model s p evtWrite 0 Nothing)
    outcome <- foldM (next b) (Right (IntMap.fromList world)) (ops <> [Poll])
    pure (either (`counterexample` False) (const (property True)) outcome)

next :: Backend -> Either String World -> Op -> IO (Either String World)
next _ (Left e) _ = pure (Left e)
next b (Right world) op = case op of
  Arm i t evs -> change i $ \m -> do
    let g = generation m + 1
    armed b (socket m) (tableToken (socket m) g) t evs
    pure m {generation = g, watch = Just (Watch t evs (ready m) (ready m))}
  Say i -> change i $ \m -> becomes evtRead m <$ say (peer m) 1
  Drain i -> change i $ \m -> do
    void (drain (socket m))
    notReady b (socket m) evtRead
    pure m {ready = ready m `without` evtRead}
  Fill i -> change i $ \m -> do
    fill (socket m)
    notReady b (socket m) evtWrite
    pure m {ready = ready m `without` evtWrite}
  MakeRoom i -> change i $ \m -> becomes evtWrite m <$ drain (peer m)
  Forget i -> change i $ \m -> do
    forgets b (socket m)
    pure m {watch = Nothing}
  Poll -> pollUntilPaid b 1000 world
  where
    change i f = do
      m' <- f (world IntMap.! i)
      pure (Right (IntMap.insert i m' world))

becomes :: Events -> Model -> Model
becomes e m = m {ready = ready m <> e, watch = seen <$> watch m}
  where
    seen w = w {was = was w <> e, changed = changed w <> (e `without` ready m)}

-- | Poll until nothing is due. Blocks only while something is, and gives it time: a
-- poll that has something else to report need not wait for what is on its way.
pollUntilPaid :: Backend -> Int -> World -> IO (Either String World)
pollUntilPaid b tries world = do
  let owing = any due world
  got <- poll b (if owing then soon else NoWait)
  let missing = [socket m | m <- IntMap.elems world, due m, socket m `notElem` map (tokenFd . fst) got]
  case foldM account world got of
    Left e -> pure (Left e)
    Right world'
      | null missing -> pure (Right world')
      | tries > 0 -> threadDelay 1000 >> pollUntilPaid b (tries - 1) world'
      | otherwise -> pure (Left ("not reported: " <> show missing))

-- | One report.
account :: World -> Report -> Either String World
account world (tok, evs) = case [(i, m) | (i, m) <- IntMap.toList world, socket m == tokenFd tok] of
  [(i, m@Model {watch = Just w})]
    | generation m /= tokenGeneration tok -> Left ("stale token " <> show tok)
    | isNoEvent evs -> Left "an empty report"
    | not ((was w `common` asked w) `includes` evs) -> Left ("never so: " <> show (tok, evs))
    | otherwise ->
      Right . flip (IntMap.insert i) world $
        m {watch = if trigger w == Once then Nothing else Just w {changed = changed w `without` evs}}
  _ -> Left ("nobody asked: " <> show (tok, evs))
