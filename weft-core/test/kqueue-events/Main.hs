-- |
-- The kqueue back end's translation of events, which needs no kqueue.
module Main (main) where

import KqueueEventsLaws (kqueueEventsLaws)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = defaultMain kqueueEventsLaws
