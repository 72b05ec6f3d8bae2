-- |
-- The kqueue back end's translation of events, which needs no kqueue.
module Main (main) where

import KqueueEventsLaws (kqueueEventsLaws)
import Test.Tasty

main :: IO ()
main = defaultMain kqueueEventsLaws
