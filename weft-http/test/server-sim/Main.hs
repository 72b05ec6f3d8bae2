-- |
-- A whole web server under many interleavings: the production source of @weft-http@'s HTTP\/1 server, of @weft@'s sockets and servers and of the manager runs on the
-- simulated machine of @weft-core\/sim@, over a model of the kernel's sockets. Modules of @base@ that it uses for threads, exceptions and references are replaced
-- by modules of the same names (@sim@), and so is what makes system calls.
module Main (main) where

import IdleTimerScenario (idleTimerTests)
import ServerScenario (serverTests)
import System.Environment (setEnv)
import Test.Tasty

main :: IO ()
main = do
  -- One simulation at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  defaultMain (testGroup "server-sim" [serverTests, idleTimerTests])
