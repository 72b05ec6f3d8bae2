-- |
-- The suite @tcp-kernel@: our stack against the kernel's, over a TUN device in a network
-- namespace that lives as long as the suite. Needs root and @\/dev\/net\/tun@; without them
-- it says so, and every test counts as skipped. @WEFT_TCP_LARGE=1@ adds transfers of 1 GB.
module Main (main) where

import Data.List (intercalate)
import qualified Devices
import Kernel (runCommand)
import qualified Strange
import System.Directory (doesPathExist, findExecutable)
import System.Environment (getArgs, getExecutablePath, lookupEnv, setEnv)
import System.Exit (exitWith)
import System.Posix.User (getEffectiveUserID)
import System.Process (rawSystem)
import Test.Tasty
import qualified Transfers
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  inside <- lookupEnv "WEFT_TCP_NAMESPACE"
  case inside of
    Just _ -> do
      setEnv "TASTY_NUM_THREADS" "1"
      runCommand "ip link set lo up"
      large <- lookupEnv "WEFT_TCP_LARGE"
      defaultMain . localOption (mkTimeout 120000000) $ testGroup "tcp-kernel" (Transfers.tests (large /= Nothing) ++ Devices.tests ++ Strange.tests)
    Nothing -> do
      reasons <- missing
      if null reasons
        then do
          self <- getExecutablePath
          args <- getArgs
          setEnv "WEFT_TCP_NAMESPACE" "1"
          rawSystem "unshare" (["-n", "--", self] ++ args) >>= exitWith
        else defaultMain (skipAll "tcp-kernel" (intercalate ", " reasons) (testGroup "tcp-kernel" (Transfers.tests False ++ Devices.tests ++ Strange.tests)))

-- | Why the suite cannot run here.
missing :: IO [String]
missing = do
  uid <- getEffectiveUserID
  tun <- doesPathExist "/dev/net/tun"
  tools <- mapM (\t -> (,) t <$> findExecutable t) ["unshare", "ip", "python3", "timeout", "curl"]
  pure (["not root" | uid /= 0] ++ ["no /dev/net/tun" | not tun] ++ ["no program " ++ t | (t, Nothing) <- tools])
