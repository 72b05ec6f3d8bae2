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

newtype Said = Said Told deriving (Show)

instance Arbitrary Said where
  arbitrary = Said <$> (Told <$> elements [minBound .. maxBound] <*> arbitrary <*> arbitrary)

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
      testProperty "only what was asked for is reported, and hang-ups" $ \(Asked evs) (Said told) ->
        let m = meaning evs told
         in m `includes` evtHangup || (evs <> urgentRead evs) `includes` m,
      testProperty "hang-ups are reported unasked, with both directions" $ \(Asked evs) failed ->
        meaning evs (Told WriteFilter True failed) `includes` (evtHangup <> evtRead <> evtWrite)
          && meaning evs (Told ReadFilter True True) `includes` (evtHangup <> evtRead <> evtWrite),
      testProperty "a half-close is no hang-up" $ \(Asked evs) ->
        not (meaning evs (Told ReadFilter True False) `overlaps` evtHangup),
      testProperty "Once leaves no filter behind" $ \(Asked evs) -> forAll (toldOf Once evs) $ \told ->
        let registered = filters (watch True Once evs)
            single = [f | Told f _ _ <- told, Change f Single `elem` watch True Once evs]
            removed = [f | Change f Remove <- afterwards Once evs registered told]
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
    toldOf t evs = do
      some <- sublistOf (filters (watch True t evs)) `suchThat` (not . null)
      traverse (\f -> Told f <$> arbitrary <*> arbitrary) some
