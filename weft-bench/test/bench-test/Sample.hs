{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Made-up runs for the tests
module Sample
  ( sixtyFour,
    fourHundred,
    run,
    sample,
    ratio,
  )
where

import qualified Data.Map.Strict as M
import Data.Text (Text)
import Weft.Bench.Bounds (on)
import Weft.Bench.Types

sixtyFour, fourHundred :: Params
sixtyFour = [("connections", Count 64), ("capabilities", Count 1)]
fourHundred = [("connections", Count 400), ("capabilities", Count 1)]

run :: Text -> Params -> Text -> [Double] -> Run
run subject given name values = Run subject given (M.fromList (zip [0 ..] (map (M.singleton name) values)))

sample :: [Run]
sample =
  [ run "weft" sixtyFour "cpu_us_per_op" [6, 12, 9],
    run "c-epoll" sixtyFour "cpu_us_per_op" [5, 12, 6],
    run "weft" fourHundred "cpu_us_per_op" [8, 8, 8]
  ]

ratio :: Figure
ratio = on "weft" sixtyFour "cpu_us_per_op" `Over` on "c-epoll" sixtyFour "cpu_us_per_op"
