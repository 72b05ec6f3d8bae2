-- |
-- Description : The program @weft-bench@
--
-- All of it is in "Weft.Bench".
module Main (main) where

import Weft.Bench (benchProgram)
import Weft.Tools.Program (runProgram)

main :: IO ()
main = runProgram "weft-bench" (const benchProgram)
