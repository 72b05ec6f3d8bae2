-- |
-- The suite @unthreaded@, linked without @-threaded@: a thread that waits stops no other, whatever back end is
-- asked for, and files are read without rings.
module Main
  ( main,
  )
where

import Control.Concurrent (forkIO, killThread, newEmptyMVar, putMVar, rtsSupportsBoundThreads, takeMVar, yield)
import Control.Exception (bracket)
import Control.Monad (forM_, forever)
import qualified Data.ByteString.Char8 as C
import Data.IORef
import GHC.Clock (getMonotonicTime)
import System.Environment (setEnv)
import System.Posix.IO (closeFd, createPipe, fdWrite)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Weft.Backend
import Weft.File (FileEngine (..), filesChoice, readAt, reading, withFile)
import Weft.Process (ExitStatus (..), program, readProcess)
import Weft.Runtime (stopManagers)
import Weft.Socket
import Weft.Socket.ByteString
import Weft.Test.Main (defaultMain)
import Weft.Thread

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  defaultMain . localOption (mkTimeout 30000000) . testGroup "unthreaded" $
    testCase "it is linked so" (rtsSupportsBoundThreads @?= False) : map asked ["epoll", "io_uring", "poll"]

asked :: String -> TestTree
asked name =
  withResource (preferBackend name >> stopManagers) (const stopManagers) $ \_ ->
    testGroup
      name
      [ testCase "an unavailable back end is refused, with the reason" $ do
          choice <- backendChoice
          choiceBackend choice @?= "epoll"
          fmap fst (choiceRefused choice) @?= (if name == "epoll" then Nothing else Just name),
        testCase "a waiting thread does not stop one that computes" beside,
        testCase "delays are not too short, and end" . forM_ [1, 500, 20000] $ \us -> do
          t0 <- getMonotonicTime
          threadDelay us
          t1 <- getMonotonicTime
          assertBool (show (t1 - t0)) (t1 - t0 >= fromIntegral us / 1e6),
        testCase "a time limit ends a wait for a pipe" . withPipe $ \(r, _) ->
          timeout 3000 (threadWaitRead r) >>= (@?= Nothing),
        testCase "sockets" echo,
        testCase "programs" $ do
          soon <- deadlineIn (seconds 20)
          readProcess (program "cat" []) soon 200000 (C.replicate 100000 'x') >>= (@?= (Exited 0, C.replicate 100000 'x', C.empty)),
        testCase "files, without rings" $ do
          (engine, _) <- filesChoice
          engine @?= Threads
          bytes <- withFile reading "/proc/self/comm" (\file -> readAt file 0 100)
          assertBool (show bytes) (not (C.null bytes))
      ]
  where
    withPipe = bracket createPipe (\(r, w) -> closeFd r >> closeFd w)
    beside = withPipe $ \(r, w) -> do
      turns <- newIORef (0 :: Int)
      done <- newEmptyMVar
      busy <- forkIO (forever (modifyIORef' turns (+ 1) >> yield))
      _ <- forkIO (threadWaitRead r >> putMVar done ())
      threadDelay 50000
      before <- readIORef turns
      -- Long enough for a machine that runs this process half of the time, in slices.
      threadDelay 500000
      later <- readIORef turns
      _ <- fdWrite w "x"
      takeMVar done
      killThread busy
      -- A call that blocks lets the other run once in some milliseconds.
      assertBool (show (later - before) <> " turns in 500 ms") (later - before > 1000)
    echo = do
      (a, b) <- socketPair AF_UNIX Stream defaultProtocol
      got <- newEmptyMVar
      _ <- forkIO (recv b 10 >>= putMVar got)
      threadDelay 1000
      sendAll a (C.pack "ping")
      takeMVar got >>= (@?= C.pack "ping")
      mapM_ close [a, b]
