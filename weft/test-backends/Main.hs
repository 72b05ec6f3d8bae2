-- |
-- The laws of the back ends, run on every back end of this machine. The one that
-- the kernel refuses is left out, with the reason.
module Main (main) where

import Laws
import System.Environment (setEnv)
import Test.Tasty
import qualified Weft.Backend.Epoll as Epoll
import qualified Weft.Backend.Poll as Poll
import qualified Weft.Backend.Uring as Uring
import Weft.Core.Backend (Backend)

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  groups <-
    traverse
      group
      [ ("epoll", Epoll.available, Epoll.new),
        ("poll", Poll.available, Poll.new),
        ("io_uring", Uring.available, Uring.new)
      ]
  defaultMain (localOption (mkTimeout 120000000) (testGroup "back ends" (concat groups)))

group :: (String, IO (Maybe String), IO Backend) -> IO [TestTree]
group (name, available, new) = do
  why <- available
  case why of
    Nothing -> pure [laws name new]
    Just reason -> [] <$ putStrLn (name <> " is left out: " <> reason)
