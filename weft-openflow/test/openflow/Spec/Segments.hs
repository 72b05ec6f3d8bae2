{-# LANGUAGE OverloadedStrings #-}

-- |
-- Networks in which bridges that are not controlled join the ports of switches.
module Spec.Segments (tests) where

import Control.Monad (forM_)
import Data.List (foldl')
import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Test.QuickCheck
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import Weft.OpenFlow.App (Flooding (..), Millis)
import Weft.OpenFlow.Lldp (Path (..))
import Weft.OpenFlow.Message
import Weft.OpenFlow.SpanningTree
import Weft.OpenFlow.Topology
import Weft.OpenFlow.Types

tests :: TestTree
tests = testGroup "segments" [onlySegment, besideCable, sameSwitch, cableAfterAll, oneWayCable, oneWayCopy, directionLost, floodedOnce]

place :: Int -> Int -> Place
place d p = (DatapathId (fromIntegral d), PortNo (fromIntegral p))

-- | Switches with settled ports.
network :: [Int] -> [Int] -> Topology
network switches ports = fst (timePassed 5000 (foldl' join (emptyTopology defaultTopologySettings) switches))
  where
    join t d = fst (switchJoined 0 (DatapathId (fromIntegral d)) V13 (map port ports) t)
    port n = Port (PortNo (fromIntegral n)) (MacAddress 1) "p" 0 0 (0, 0, 0, 0) (0, 0)

-- | Each of these ports receives the probes of all others.
joins :: Path -> [Place] -> Topology -> Topology
joins path places t = foldl' (\u (a, b) -> fst (linkSeen 6000 path a b u)) t [(a, b) | a <- places, b <- places, a /= b]

flood :: Topology -> Place -> Bool
flood t (d, p) = case flooding d t of
  FloodTo ports _ -> p `elem` ports
  FloodByItself -> True

onlySegment :: TestTree
onlySegment = testCase "all ports at the only segment flood" $ do
  let ports = [place d 1 | d <- [1 .. 3]]
      t = joins AnyPath ports (network [1 .. 3] [1, 2])
  map (flood t) ports @?= [True, True, True]
  map (`isBlocked` t) ports @?= [False, False, False]
  length (topologyLinks t) @?= 6

-- | Two switches with a cable, and a bridge between other ports of them.
besideCable :: TestTree
besideCable = testCase "beside a cable, one port at a bridge floods, and the other is blocked" $ do
  let t = joins AnyPath [place 1 2, place 2 2] (joins Cable [place 1 1, place 2 1] (network [1, 2] [1, 2]))
  [flood t (place d p) | d <- [1, 2], p <- [1, 2]] @?= [True, True, True, False]
  [isBlocked (place d p) t | d <- [1, 2], p <- [1, 2]] @?= [False, False, False, True]
  -- The cable is lost: the bridge becomes the only path.
  let t' = fst (portRemoved (DatapathId 2) (PortNo 1) t)
  [flood t' (place d p) | (d, p) <- [(1, 2), (2, 2)]] @?= [True, True]

sameSwitch :: TestTree
sameSwitch = testCase "of two ports of a switch at one bridge, one floods" $ do
  let t = joins AnyPath [place 1 1, place 1 2] (network [1] [1, 2, 3])
  [flood t (place 1 p) | p <- [1 .. 3]] @?= [True, False, True]

-- | The LLDP frame is late.
cableAfterAll :: TestTree
cableAfterAll = testCase "nothing is flooded into a second cable, once its LLDP frames are seen" $ do
  let second = [place 1 2, place 2 2]
      t = joins AnyPath second (joins Cable [place 1 1, place 2 1] (network [1, 2] [1, 2]))
      t' = joins Cable second t
  map (flood t') second @?= [False, False]
  -- The LLDP frames get lost from now on, and the other probes do not.
  let (t1, _) = timePassed 12000 (foldl' (\u (a, b) -> fst (linkSeen 12000 AnyPath a b u)) t' [(place a i, place b i) | i <- [1, 2], (a, b) <- [(1, 2), (2, 1)]])
      (t2, _) = timePassed 23000 t1
  map (flood t1) second @?= [False, False]
  map (flood t2) second @?= [True, False]

-- | The probes of these ports arrive at the other ones, and none in the other direction.
arrive :: Path -> Millis -> [(Place, Place)] -> Topology -> Topology
arrive path time pairs t = foldl' (\u (a, b) -> fst (linkSeen time path a b u)) t pairs

-- | Of three switches the first and the third have a fibre that carries only one direction. The root of the tree is the
-- first, so a tree of all links would use the fibre, and block the cable between the second and the third.
oneWayCable :: TestTree
oneWayCable = testCase "a link that is known in one direction is not used, and blocks no other" . forM_ [(place 1 3, place 3 3), (place 3 3, place 1 3)] $ \fibre@(from, to) -> do
  let t = arrive Cable 6000 [fibre] (joins Cable [place 2 2, place 3 2] (joins Cable [place 1 1, place 2 1] (network [1 .. 3] [1 .. 4])))
  map (flood t) [place 1 1, place 2 1, place 2 2, place 3 2] @?= [True, True, True, True]
  -- Nothing is sent into the fibre, and what arrives there is dropped.
  map (flood t) [from, to] @?= [False, False]
  map (`isBlocked` t) [from, to] @?= [True, True]
  isTwoWay t fibre @?= False
  -- The other direction is seen, so the fibre is in the tree now, and the cable that closes the loop is not.
  let t' = arrive Cable 7000 [(to, from)] t
  map (flood t') [from, to, place 2 2, place 3 2] @?= [True, True, False, False]
  isTwoWay t' fibre @?= True

-- | A copy of what the third switch sends (a mirror port) arrives at the end of an intact cable.
oneWayCopy :: TestTree
oneWayCopy = testCase "a copy that arrives at an intact cable changes nothing there" $ do
  let line = joins Cable [place 2 2, place 3 2] (joins Cable [place 1 1, place 2 1] (network [1 .. 3] [1 .. 4]))
      t = arrive AnyPath 6000 [(place 3 3, place 1 1)] line
  map (flood t) [place 1 1, place 2 1, place 2 2, place 3 2] @?= [True, True, True, True]
  topologyTree t @?= topologyTree line
  flood t (place 3 3) @?= False

-- | A fibre of two that breaks.
directionLost :: TestTree
directionLost = testCase "a link leaves the tree when one direction has not been seen for its life, and comes back" $ do
  let back = (place 2 1, place 1 1)
      there = (place 1 1, place 2 1)
      t0 = joins Cable [place 1 1, place 2 1] (network [1, 2] [1, 2])
      t1 = fst (timePassed 21999 (arrive Cable 20000 [there] t0))
      (t2, changed) = timePassed 22000 t1
  map (flood t1) [fst there, snd there] @?= [True, True]
  map (flood t2) [fst there, snd there] @?= [False, False]
  (topologyLinks t2, changed) @?= ([there], map DatapathId [1, 2])
  map (flood (arrive Cable 23000 [back] t2)) [fst there, snd there] @?= [True, True]
  -- Nor is the other direction seen: the ports are edge ports again.
  map (flood (fst (timePassed 36000 t2))) [fst there, snd there] @?= [True, True]

-- | Cables and segments with up to four ports, each port at one of them.
genSegments :: Gen [(Path, [Place])]
genSegments = do
  kinds <- choose (1, 12) >>= (`vectorOf` ((,) <$> arbitrary <*> (choose (2, 4) >>= (`vectorOf` choose (1, 7)))))
  pure [(if cable then Cable else AnyPath, [place d (10 * i + j) | (j, d) <- zip [0 ..] (if cable then take 2 ds else ds)]) | (i, (cable, ds)) <- zip [1 ..] kinds]

-- | A flood follows the tree: packets that arrive at blocked ports are dropped.
floodedOnce :: TestTree
floodedOnce = testProperty "a flooded packet reaches each switch and each bridge once" . withMaxSuccess 1000 . forAll genSegments $ \segments ->
  let t = foldl' (\u (path, places) -> joins path places u) (network [1 .. 7] [10 .. 129]) segments
      open = Map.fromListWith (<>) [(d, [(p, i)]) | (i, (_, places)) <- zip [0 :: Int ..] segments, p@(d, _) <- places, flood t p]
      -- The switches and the bridges that a packet reaches which enters at a switch, with repetitions.
      reach :: Int -> DatapathId -> Maybe Place -> ([DatapathId], [Int])
      reach 0 d _ = ([d, d], [])
      reach fuel d from = mconcat (([d], []) : [through fuel p i | (p, i) <- Map.findWithDefault [] d open, Just p /= from])
      through fuel p i = mconcat (([], [i]) : [reach (fuel - 1) (fst q) (Just q) | q <- snd (segments !! i), q /= p, not (isBlocked q t)])
      bridges = [i | (i, (AnyPath, _)) <- zip [0 ..] segments] ++ [i | (i, (Cable, places)) <- zip [0 ..] segments, length places > 2]
      component d = connected (Set.singleton d)
      connected ds =
        let more = Set.unions (ds : [s | (_, places) <- segments, let s = Set.fromList (map fst places), not (Set.disjoint s ds)])
         in if more == ds then ds else connected more
   in conjoin
        [ counterexample (show d) (Set.fromList switches === component d .&&. length switches === Set.size (component d) .&&. length passed === Set.size (Set.fromList passed) .&&. Set.fromList passed === Set.fromList [i | i <- bridges, any ((`Set.member` component d) . fst) (snd (segments !! i))])
          | d <- map (DatapathId . fromIntegral) [1 .. 7 :: Int],
            let (switches, entered) = reach 40 d Nothing,
            let passed = filter (`elem` bridges) entered
        ]
