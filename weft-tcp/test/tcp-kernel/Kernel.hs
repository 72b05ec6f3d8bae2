-- |
-- Tests with the kernel's TCP as the peer: the test program runs in its own network namespace, with a TUN device
-- between the kernel's stack and ours.
module Kernel
  ( Setup (..),
    plainSetup,
    withKernel,
    kernelAddress,
    ourAddress,
    kernelAddress6,
    ourAddress6,
    peer,
    startPeer,
    tcpCounters,
    sysctl,
    patternFrom,
    checkPattern,
    runCommand,
  )
where

import Control.Exception (bracket, finally, throwIO)
import Control.Monad (unless, when, (>=>))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.Maybe (fromJust, fromMaybe)
import System.Environment (lookupEnv)
import System.Exit (ExitCode (..))
import System.IO (hGetLine)
import System.Process hiding (runCommand)
import Test.Tasty.HUnit (assertFailure)
import Weft.Duration (seconds)
import Weft.Tcp
import Weft.Tcp.Capture
import Weft.Tcp.Device
import Weft.Tcp.Device.Tap
import Weft.Tcp.Device.Tun

data Setup = Setup
  { mtu :: Int,
    offload :: Bool,
    queues :: Int,
    -- | Use a TAP device instead of a TUN device.
    tap :: Bool,
    adjust :: StackSettings -> StackSettings,
    -- | Applied to the device before the stack uses it.
    around :: Device -> IO Device
  }

plainSetup :: Setup
plainSetup = Setup 1500 True 1 False id pure

kernelAddress, ourAddress, kernelAddress6, ourAddress6 :: String
kernelAddress = "10.99.0.1"
ourAddress = "10.99.0.2"
kernelAddress6 = "fd99::1"
ourAddress6 = "fd99::2"

-- | Run a stack on a device of the kernel. If @WEFT_TCP_CAPTURE@ is set, it is the path of a packet log of the stack.
withKernel :: Setup -> (Stack -> IO a) -> IO a
withKernel s act = do
  log' <- lookupEnv "WEFT_TCP_CAPTURE"
  case log' of
    Nothing -> bracket up down (around s >=> \d -> withStack chosen d act)
    Just path -> bracket (captureTo path throwIO) snd $ \(see, _) ->
      bracket up down (around s >=> \d -> withStack chosen {stackTap = Just see} d act)
  where
    several = if queues s > 1 then " multi_queue" else ""
    ours = map (fromJust . parseAddress) [ourAddress, ourAddress6]
    chosen = adjust s (defaultSettings ours)
    up = do
      runCommand ("ip tuntap add dev weft0 mode " ++ (if tap s then "tap" else "tun") ++ several)
      runCommand ("ip link set weft0 mtu " ++ show (mtu s) ++ " up")
      runCommand ("ip addr add " ++ kernelAddress ++ "/24 dev weft0")
      when (mtu s >= 1280) (runCommand ("ip -6 addr add " ++ kernelAddress6 ++ "/64 dev weft0 nodad"))
      if tap s then openTap (tapNamed "weft0" ours) {tapReachableTime = seconds 2, tapOffload = offload s} else openTun (TunSettings "weft0" (offload s) (queues s))
    down d = deviceClose d `finally` runCommand "ip link del weft0"

runCommand :: String -> IO ()
runCommand line = do
  (code, out, err) <- readCreateProcessWithExitCode (shell line) ""
  unless (code == ExitSuccess) (assertFailure (line ++ ": " ++ out ++ err))

-- | Run the peer with arguments, for at most 250 seconds. Fails if the peer fails.
peer :: [String] -> IO ()
peer args = do
  (code, out, err) <- readProcessWithExitCode "timeout" (["250", "python3", "test/tcp-kernel/peer.py"] ++ args) ""
  unless (code == ExitSuccess) (assertFailure (unwords args ++ ": " ++ show code ++ " " ++ out ++ err))

-- | During an action, run a peer in the background. The action starts when the peer is ready.
startPeer :: [String] -> IO a -> IO a
startPeer args act = bracket start stop (const act)
  where
    start = do
      (_, out, _, h) <- createProcess (proc "timeout" (["250", "python3", "test/tcp-kernel/peer.py"] ++ args)) {std_out = CreatePipe}
      _ <- hGetLine (fromJust out)
      pure h
    stop h = terminateProcess h >> waitForProcess h

-- | The kernel's TCP counters of bad segments, resets and retransmissions.
tcpCounters :: IO [(String, Int)]
tcpCounters = do
  text <- C.readFile "/proc/net/snmp"
  let rows = [C.words l | l <- C.lines text, C.pack "Tcp:" `B.isPrefixOf` l]
      table = case rows of
        [names, values] -> zip (map C.unpack names) values
        _ -> []
  pure [(n, maybe 0 fst (C.readInt (fromMaybe C.empty (lookup n table)))) | n <- ["InErrs", "InCsumErrors", "OutRsts", "EstabResets", "RetransSegs"]]

-- | During an action, set a sysctl of this namespace.
sysctl :: String -> String -> IO a -> IO a
sysctl name value act = bracket (readFile path >>= \v -> length v `seq` pure v) (writeFile path) (const (writeFile path value >> act))
  where
    path = "/proc/sys/net/ipv4/" ++ name

block :: ByteString
block = B.pack [fromIntegral ((i * 7 + i `div` 251) `mod` 256) | i <- [0 .. 251 * 256 - 1 :: Int]]

-- | Bytes of the pattern from an offset on: at most the given number, and at least one unless that is 0.
patternFrom :: Int -> Int -> ByteString
patternFrom at n = B.take n (B.drop (at `mod` B.length block) block)

-- | Whether a string equals the pattern from an offset on.
checkPattern :: Int -> ByteString -> Bool
checkPattern at b
  | B.null b = True
  | otherwise = let p = patternFrom at (B.length b) in p == B.take (B.length p) b && checkPattern (at + B.length p) (B.drop (B.length p) b)
