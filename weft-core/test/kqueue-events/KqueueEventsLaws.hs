-- |
-- Laws of "Weft.Backend.KqueueEvents", for systems with kqueue or without.
module KqueueEventsLaws
  ( kqueueEventsLaws,
  )
where

import Data.List (nub, (\\))
import Test.Tasty
import Test.Tasty.QuickCheck
import Weft.Backend.KqueueEvents
import Weft.Core.Events

newtype Asked = Asked Events deriving (Show)

instance Arbitrary Asked where
  arbitrary = Asked . mconcat <$> sublistOf [evtRead, evtWrite, evtPeerClosed, evtUrgent]

newtype When = When Trigger deriving (Show)

instance Arbitrary When where
  arbitrary = When <$> elements [Once, Level, Edge]

newtype Said = Said FilterEvent deriving (Show)

instance Arbitrary Said where
  arbitrary = Said <$> (FilterEvent <$> elements [minBound .. maxBound] <*> arbitrary <*> arbitrary)

-- | The translation, without a kernel.
kqueueEventsLaws :: TestTree
kqueueEventsLaws =
  testGroup
    "kqueue's events"
    [ testProperty "there is always a filter, and none twice" $ \x (When t) (Asked evs) ->
        let fs = filters (watch x t evs) in not (null fs) && nub fs == fs,
      testProperty "what is asked for has its filter" $ \(When t) (Asked evs) ->
        let fs = filters (watch True t evs)
         in and
              [ not (evs `includes` e) || f `elem` fs
                | (e, f) <- [(evtRead, ReadFilter), (evtWrite, WriteFilter), (evtPeerClosed, ReadFilter), (evtUrgent, ExceptFilter)]
              ],
      testProperty "only what was asked for is reported, and hang-ups" $ \(Asked evs) (Said delivered) ->
        let m = meaning evs delivered
         in m `includes` evtHangup || (evs <> urgentRead evs) `includes` m,
      testProperty "hang-ups are reported unasked, with both directions" $ \(Asked evs) failed ->
        meaning evs (FilterEvent WriteFilter True failed) `includes` (evtHangup <> evtRead <> evtWrite)
          && meaning evs (FilterEvent ReadFilter True True) `includes` (evtHangup <> evtRead <> evtWrite),
      testProperty "a half-close is no hang-up" $ \(Asked evs) ->
        not (meaning evs (FilterEvent ReadFilter True False) `overlaps` evtHangup),
      testProperty "Once leaves no filter behind" $ \(Asked evs) -> forAll (deliveredFor Once evs) $ \delivered ->
        let registered = filters (watch True Once evs)
            single = [f | FilterEvent f _ _ <- delivered, Change f Single `elem` watch True Once evs]
            removed = [f | Change f Remove <- afterwards Once evs registered delivered]
         in null (registered \\ (single <> removed)) && null [() | f <- removed, f `elem` single],
      testProperty "a replacement removes before it adds" $ \(When t) (Asked evs) (When t') (Asked evs') ->
        let before = filters (watch True t evs)
            changes = replace before (watch True t' evs')
            (removing, adding) = span (\(Change _ m) -> m == Remove) changes
         in filters removing == before && adding == watch True t' evs'
    ]
  where
    filters changes = [f | Change f _ <- changes]
    urgentRead evs = if evs `includes` evtUrgent then evtRead else mempty
    deliveredFor t evs = do
      some <- sublistOf (filters (watch True t evs)) `suchThat` (not . null)
      traverse (\f -> FilterEvent f <$> arbitrary <*> arbitrary) some
