-- |
-- "Weft.Thread" on descriptors: the meaning of waiting, beside GHC's own
-- functions, which the same tests run on where that is safe.
module Spec.Thread
  ( Api (..),
    weft,
    ghc,
    tests,
  )
where

import Control.Concurrent.STM (STM)
import qualified GHC.Conc as G
import Harness
import System.Posix.IO (closeFd, createPipe, fdWrite)
import System.Posix.Types (Fd)
import Test.Tasty
import Test.Tasty.HUnit
import qualified Weft.Thread as W

-- | One way to wait.
data Api = Api
  { apiName :: String,
    waitRead :: Fd -> IO (),
    waitWrite :: Fd -> IO (),
    waitReadSTM :: Fd -> IO (STM (), IO ()),
    closeWith :: (Fd -> IO ()) -> Fd -> IO ()
  }

weft, ghc :: Api
weft = Api "Weft" W.threadWaitRead W.threadWaitWrite W.threadWaitReadSTM W.closeFdWith
ghc = Api "GHC" G.threadWaitRead G.threadWaitWrite G.threadWaitReadSTM G.closeFdWith

tests :: Api -> TestTree
tests api =
  testGroup
    ("threads, " <> apiName api)
    [ testCase "a pipe that has data can be read" $ do
        (r, w) <- createPipe
        _ <- fdWrite w "x"
        finishes "wait" (waitRead api r)
        closeFd r
        closeFd w
    ]
