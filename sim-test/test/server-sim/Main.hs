-- |
-- A whole web server under many interleavings, and a client with it: production source of @weft-http@'s HTTP\/1 server
-- and client, of @weft@'s sockets
-- and servers and of the manager runs on the simulated machine of @weft-core\/sim@, over a model of the kernel's
-- sockets. Modules that make system calls, and modules of @base@ for threads, exceptions and references, are replaced
-- by modules with the same names (@sim@).
module Main (main) where

import AdmissionScenario (admissionTests)
import ClientScenario (clientTests)
import CrewScenario (crewTests)
import DrainScenario (drainTests)
import IdleTimerScenario (idleTimerTests)
import PoolScenario (poolTests)
import ScopeScenario (scopeTests)
import ServerScenario (serverTests)
import SocketScenario (socketTests)
import StmScenario (stmTests)
import System.Environment (setEnv)
import Test.Tasty hiding (defaultMain)
import UsersScenario (usersTests)
import Weft.Test.Main (defaultMain)

main :: IO ()
main = do
  -- One simulation at a time.
  setEnv "TASTY_NUM_THREADS" "1"
  defaultMain (testGroup "server-sim" [serverTests, drainTests, clientTests, admissionTests, idleTimerTests, usersTests, stmTests, scopeTests, poolTests, crewTests, socketTests])
