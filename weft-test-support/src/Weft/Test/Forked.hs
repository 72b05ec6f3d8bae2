-- |
-- Children of 'forkProcess', for tests of what works in them.
module Weft.Test.Forked
  ( inChild,
    inChildWhile,
  )
where

import Control.Exception
import Control.Monad (unless)
import qualified Data.ByteString.Char8 as C
import System.Exit (ExitCode (..))
import System.IO (hClose)
import System.Posix.IO (closeFd, createPipe, fdToHandle)
import System.Posix.Process (ProcessStatus (..), exitImmediately, forkProcess, getProcessStatus)
import Test.Tasty.HUnit
import Weft.Test.Limits (limited, within)

-- | Run an action in a child of 'forkProcess', and wait for the child's end. What the action throws fails the test, as
-- does one that takes longer than 15 seconds.
inChild :: IO () -> Assertion
inChild act = inChildWhile act (pure ())

-- | 'inChild', with what the parent does while the child runs.
inChildWhile :: IO () -> IO a -> IO a
inChildWhile act meanwhile = do
  (from, to) <- createPipe
  child <- forkProcess . (`finally` exitImmediately (ExitFailure 3)) $ do
    closeFd from
    outcome <- try (limited 15 act)
    out <- fdToHandle to
    case outcome of
      Right (Just ()) -> pure ()
      Right Nothing -> C.hPutStr out (C.pack "it has not ended")
      Left e -> C.hPutStr out (C.pack (displayException (e :: SomeException)))
    hClose out
    exitImmediately (either (const (ExitFailure 2)) (maybe (ExitFailure 1) (const ExitSuccess)) outcome)
  closeFd to
  report <- fdToHandle from
  a <- meanwhile
  why <- within 40 "the child's report" (C.hGetContents report)
  status <- within 20 "the child's end" (getProcessStatus True False child)
  unless (status == Just (Exited ExitSuccess)) (assertFailure ("in the child: " <> C.unpack why <> " (" <> show status <> ")"))
  pure a
