-- |
-- Peers that do not behave like a kernel: segments made by scapy, and unusual programs on the kernel's sockets.
module Strange (tests) where

import Control.Concurrent
import Control.Exception (SomeException, bracket, finally, try)
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Kernel
import System.Exit (ExitCode (..))
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Tcp
import Weft.Test.Skip (skip, testCase)
import Weft.Transport (noDeadline)

tests :: [TestTree]
tests =
  [ testGroup
      "strange peers"
      [ testCase what (scapyCase name)
        | (what, name) <-
            [ ("2,000 connections opened and reset", "resets"),
              ("20,000 segments of one byte", "single_bytes"),
              ("an MSS option of 1", "tiny_mss"),
              ("data with a FIN, before the data in front of it", "fin_first"),
              ("RST, SYN and data by guess", "blind"),
              ("fragments that overlap, then right ones in another order, some of them twice", "fragments"),
              ("a flood of datagrams beside connections", "datagrams"),
              ("a window of zero is probed, and opens", "zero_window"),
              ("2,000 acknowledgments of what was not sent", "acknowledgments"),
              ("ICMP says that the path takes 68 bytes", "small_path"),
              ("a reset in every state", "reset_states"),
              ("SACK games: lies about what was received", "sack_games"),
              ("200 clients that read nothing", "slow_readers"),
              ("20,000 packets of random bytes", "garbage")
            ]
      ]
  ]

-- | Run a case of @strange.py@ against a stack without offload, with the system's Python, for which Debian packages
-- scapy.
scapyCase :: String -> Assertion
scapyCase name = do
  (found, _, _) <- python []
  if found /= ExitSuccess
    then skip "no scapy for /usr/bin/python3"
    else withServer $ do
      (code, out, err) <- python [name]
      unless (code == ExitSuccess) (assertFailure (out ++ err))
  where
    python args = readProcessWithExitCode "timeout" (["250", "/usr/bin/python3", "test/tcp-kernel/strange.py"] ++ args) ""

-- | Serve echo (7), a count of the received bytes (9), and a source (19).
withServer :: IO a -> IO a
withServer act = withKernel plainSetup {offload = False} $ \st ->
  bracket (mapM (start st) [(7, echo), (9, count 0), (19, source)]) (mapM_ killThread) (const act)
  where
    start st (port, serve) = do
      l <- listen st Nothing port
      forkIO . forever $ do
        c <- accept l
        forkIO (void (try (serve c) :: IO (Either SomeException ())) `finally` close c)

echo, source :: Socket -> IO ()
echo c = recv c noDeadline 65536 >>= \b -> unless (B.null b) (send c noDeadline b >> echo c)
source c = recv c noDeadline 100 >>= \line -> forM_ (C.readInt line) (\(n, _) -> send c noDeadline (B.replicate n 65))

count :: Int -> Socket -> IO ()
count n c = do
  b <- recv c noDeadline 65536
  if B.null b then send c noDeadline (C.pack (show n)) else count (n + B.length b) c
