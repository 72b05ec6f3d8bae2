-- |
-- Waiting for descriptors as GHC's tests have it: several waiters, level triggering,
-- closing, the STM forms.
module Main (main) where

import Control.Concurrent
import Control.Concurrent.STM
import Control.Exception
import Control.Monad
import qualified GHC.Conc as C
import System.Environment (getExecutablePath)
import System.IO (IOMode (ReadMode), openFile)
import System.IO.Error (ioeGetErrorString)
import System.Posix.IO
import System.Posix.Types (Fd)
import System.Timeout

main :: IO ()
main = do
  withPipe $ \r w -> do
    timeout 20000 (threadWaitRead r) >>= say "nothing to read"
    timeout 2000000 (threadWaitWrite w) >>= say "room to write"
    put w "abc"
    -- Level-triggered: what was not read is reported again.
    replicateM_ 3 (timeout 2000000 (threadWaitRead r) >>= say "still to read")
    get r 1 >>= say "read"
    timeout 2000000 (threadWaitRead r) >>= say "the rest"
    get r 10 >>= say "read"
    timeout 20000 (threadWaitRead r) >>= say "nothing any more"
  withPipe $ \r w -> do
    waiters <- replicateM 10 (background (threadWaitRead r))
    threadDelay 20000
    put w "x"
    mapM takeMVar waiters >>= say "ten waiters" . map shown
  withPipe $ \r w -> do
    v <- background (threadWaitRead r)
    threadDelay 20000
    closeFd w
    takeMVar v >>= say "the other end was closed" . shown
    reopen w
  forM_ [threadWaitRead, C.threadWaitRead] $ \wait -> do
    (r, w) <- createPipe
    waiters <- replicateM 3 (background (wait r))
    threadDelay 20000
    C.closeFdWith closeFd r
    mapM takeMVar waiters >>= say "closed while waiting" . map shown
    closeFd w
  e <- try (threadWaitRead 9999) :: IO (Either IOException ())
  say "not a descriptor" (either ioeGetErrorString show e)
  withPipe $ \r w -> do
    (wait, cancel) <- threadWaitReadSTM r
    before <- atomically ((True <$ wait) `orElse` pure False)
    say "STM, before" before
    put w "x"
    timeout 2000000 (atomically wait) >>= say "STM, after"
    cancel
    (wait2, cancel2) <- threadWaitWriteSTM w
    timeout 2000000 (atomically wait2) >>= say "STM, writing"
    cancel2
  withPipe $ \r _ -> do
    (wait, cancel) <- threadWaitReadSTM r
    expired <- registerDelay 20000
    first <- atomically (("read" <$ wait) `orElse` ("late" <$ (readTVar expired >>= check)))
    say "STM, a delay comes first" first
    cancel
  -- Waiters that are killed leave nothing that keeps others waiting.
  withPipe $ \r w -> do
    ts <- replicateM 50 (forkIO (threadWaitRead r))
    threadDelay 10000
    mapM_ killThread ts
    v <- background (threadWaitRead r)
    threadDelay 10000
    put w "x"
    takeMVar v >>= say "after fifty killed" . shown
  -- A byte to and fro.
  withPipe $ \r w -> withPipe $ \r' w' -> do
    v <- background (replicateM_ 2000 (threadWaitRead r >> get r 1 >>= put w'))
    replicateM_ 2000 (put w "p" >> threadWaitRead r' >> get r' 1)
    takeMVar v >>= say "to and fro" . shown
  -- The whole text of each error, with the place where it arose.
  forM_ [False, True] $ \writing -> do
    closedDuring writing (if writing then threadWaitWrite else threadWaitRead) >>= say "closed while waiting" . text
    closedDuring writing ((if writing then threadWaitWriteSTM else threadWaitReadSTM) >=> atomically . fst) >>= say "closed while waiting, STM" . text
  -- These come last: GHC keeps some of the registrations that were refused, and then cannot close the number.
  unused <- createPipe >>= \(r, w) -> r <$ closeFd r <* closeFd w
  forM_ [("closed", unused), ("out of range", 9999), ("negative", -1), ("largest", maxBound), ("smallest", minBound)] refusals
  bracket (getExecutablePath >>= \path -> openFile path ReadMode >>= handleToFd) closeFd $ \file ->
    -- A number that no pipe had before: the back end io_uring looks at those once.
    bracket (dupTo file 500) closeFd $ \fresh -> refusals ("regular file", fresh)
  where
    refusals (what, fd) = do
      forM_ [threadWaitRead, threadWaitWrite, C.threadWaitRead, C.threadWaitWrite] $ \wait -> try (wait fd) >>= say what . text
      -- The registration throws, not the transaction.
      forM_ [threadWaitReadSTM, threadWaitWriteSTM] $ \wait -> try (void (wait fd)) >>= say (what <> ", STM") . text
    closedDuring writing wait = do
      (r, w) <- createPipe
      setFdOption w NonBlockingRead True
      when writing (ignoring (forever (put w (replicate 4096 'x'))))
      let (waited, other) = if writing then (w, r) else (r, w)
      v <- background (wait waited)
      threadDelay 20000
      C.closeFdWith closeFd waited
      takeMVar v <* closeFd other
    text = either (show :: IOException -> String) (const "ready")
    say what x = putStrLn (what <> ": " <> show x)
    withPipe act = bracket createPipe (\(r, w) -> ignoring (closeFd r) >> ignoring (closeFd w)) (uncurry act)
    -- Its number is closed once more by 'withPipe'.
    reopen w = void (dupTo stdOutput w)
    ignoring act = act `catch` \x -> const (pure ()) (x :: IOException)
    shown = either (\x -> ioeGetErrorString (x :: IOException)) (const "woken")

put :: Fd -> String -> IO ()
put fd text = void (fdWrite fd text)

get :: Fd -> Int -> IO String
get fd n = fst <$> fdRead fd (fromIntegral n)

background :: IO () -> IO (MVar (Either IOException ()))
background act = do
  v <- newEmptyMVar
  v <$ forkIO (try act >>= putMVar v)
