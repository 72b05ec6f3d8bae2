-- |
-- The suite @tcp-kernel@: our stack against the kernel's, over a TUN or TAP device, in a network namespace that
-- exists only for the suite. It needs root and @\/dev\/net\/tun@; without them it reports that, and every test counts
-- as skipped. @WEFT_TCP_LARGE=1@ adds transfers of 1 GB and a reader that stops for 150 seconds.
module Main (main) where

import Data.List (intercalate)
import qualified Devices
import qualified Downloads
import Kernel (runCommand)
import qualified Simultaneous
import qualified Strange
import System.Directory (doesPathExist, findExecutable)
import System.Environment (getArgs, getExecutablePath, lookupEnv, setEnv)
import System.Exit (ExitCode (..), exitWith)
import System.Posix.User (getEffectiveUserID)
import System.Process (rawSystem, readProcessWithExitCode)
import Test.Tasty hiding (defaultMain)
import qualified Transfers
import Weft.Test.Main (defaultMain)
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  inside <- lookupEnv "WEFT_TCP_NAMESPACE"
  case inside of
    Just _ -> do
      setEnv "TASTY_NUM_THREADS" "1"
      runCommand "ip link set lo up"
      large <- lookupEnv "WEFT_TCP_LARGE"
      defaultMain . localOption (mkTimeout 280000000) $ testGroup "tcp-kernel" (tests (large /= Nothing))
    Nothing -> do
      reasons <- missing
      if null reasons
        then do
          self <- getExecutablePath
          args <- getArgs
          setEnv "WEFT_TCP_NAMESPACE" "1"
          rawSystem "unshare" (["-n", "--", self] ++ args) >>= exitWith
        else defaultMain (skipAll "tcp-kernel" (intercalate ", " reasons) (testGroup "tcp-kernel" (tests False)))

tests :: Bool -> [TestTree]
tests large = Transfers.tests large ++ Downloads.tests large ++ Simultaneous.tests ++ Devices.tests ++ Strange.tests

-- | The reasons for which the suite cannot run here.
missing :: IO [String]
missing = do
  uid <- getEffectiveUserID
  tun <- doesPathExist "/dev/net/tun"
  tools <- mapM (\t -> (,) t <$> findExecutable t) ["unshare", "ip", "python3", "timeout", "curl"]
  let reasons = ["not root" | uid /= 0] ++ ["no /dev/net/tun" | not tun] ++ ["no program " ++ t | (t, Nothing) <- tools]
  if null reasons then refused else pure reasons

-- | What root may not do here: in a container it may lack rights, and IPv6 may be off.
refused :: IO [String]
refused = do
  (code, out, err) <- readProcessWithExitCode "unshare" ["-n", "--", "sh", "-e", "-c", script] ""
  pure [takeWhile (/= '\n') (err ++ out ++ show code) | code /= ExitSuccess]
  where
    script = "ip link set lo up; ip tuntap add dev weft0 mode tun; ip link set weft0 up; ip -6 addr add fd99::1/64 dev weft0 nodad; test -w /proc/sys/net/ipv4/tcp_sack || { echo /proc/sys cannot be written >&2; exit 1; }"
