-- |
-- Open vSwitch in a directory of its own: its database and its daemon, with dummy devices or with the userspace
-- datapath. Everything ends with the action.
--
-- Two versions of OpenFlow are named by the strings that @ovs-vsctl@ has for them: @OpenFlow10@ and @OpenFlow13@.
module Weft.Test.OpenVSwitch
  ( Ovs,
    Datapath (..),
    withOvs,
    ovsDirectory,
    vsctl,
    ofctl,
    ovsLog,
    receive,
    receivePacket,
    receiveFrame,
    dummyBridge,
    dummyPort,
    sentFrames,
    lldpFrames,
    needOvs,
    ovsEnvironment,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket, try)
import Control.Monad (unless, void)
import qualified Data.ByteString as B
import System.Directory
import System.Environment (getEnvironment)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), openFile)
import System.Process
import Test.Tasty.HUnit
import Text.Printf (printf)
import Weft.Test.Skip (needProgram)

-- | The directory that has its sockets and logs.
newtype Ovs = Ovs {ovsDirectory :: FilePath}

data Datapath = Dummy | Userspace
  deriving (Eq)

needOvs :: IO ()
needOvs = mapM_ needProgram ["ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl"]

ovsEnvironment :: Ovs -> IO [(String, String)]
ovsEnvironment (Ovs dir) = do
  inherited <- getEnvironment
  pure ([(name, dir) | name <- names] ++ filter ((`notElem` names) . fst) inherited)
  where
    names = ["OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR"]

withOvs :: Datapath -> (Ovs -> IO a) -> IO a
withOvs datapath act = bracket directory removePathForcibly $ \dir -> do
  let ovs = Ovs dir
      db = dir </> "conf.db"
  run ovs "ovsdb-tool" ["create", db, "/usr/share/openvswitch/vswitch.ovsschema"] >>= check "ovsdb-tool"
  daemon ovs "ovsdb-server" [db, "--remote=punix:" <> dir </> "db.sock", "--unixctl=" <> dir </> "ovsdb.ctl"] $ do
    patiently ovs "ovsdb-server" (vsctl ovs ["--no-wait", "init"])
    let dummy = ["--enable-dummy=override" | datapath == Dummy] ++ ["--disable-system" | datapath == Dummy]
    daemon ovs "ovs-vswitchd" (("unix:" <> dir </> "db.sock") : dummy ++ ["--unixctl=" <> dir </> "vswitchd.ctl", "--log-file=" <> dir </> "vswitchd.log"]) $ do
      patiently ovs "ovs-vswitchd" (appctl ovs ["version"])
      act ovs
  where
    -- The paths of sockets must be short.
    directory = do
      n <- readProcess "mktemp" ["-d", "/tmp/ovs.XXXXXX"] ""
      pure (takeWhile (/= '\n') n)

daemon :: Ovs -> FilePath -> [String] -> IO a -> IO a
daemon ovs program arguments act = bracket start stop (const act)
  where
    start = do
      env' <- ovsEnvironment ovs
      out <- openFile (ovsDirectory ovs </> (program <> ".out")) WriteMode
      (_, _, _, p) <- createProcess (proc program arguments) {env = Just env', std_in = NoStream, std_out = UseHandle out, std_err = UseHandle out, delegate_ctlc = False}
      pure p
    stop p = terminateProcess p >> waitForProcess p

run :: Ovs -> FilePath -> [String] -> IO (ExitCode, String, String)
run ovs program arguments = do
  env' <- ovsEnvironment ovs
  readCreateProcessWithExitCode (proc program arguments) {env = Just env'} ""

check :: String -> (ExitCode, String, String) -> IO ()
check what (code, out, err) = unless (code == ExitSuccess) (assertFailure (what <> ": " <> out <> err))

-- | Repeat an action until it succeeds, for at least a minute. Otherwise the error has the end of what the program has
-- said.
patiently :: Ovs -> FilePath -> IO a -> IO ()
patiently ovs program act = go (1200 :: Int)
  where
    go n = do
      r <- try act
      case r of
        Right _ -> pure ()
        Left (HUnitFailure _ why)
          | n == 0 -> do
            said <- readFile (ovsDirectory ovs </> (program <> ".out"))
            assertFailure (unlines ((program <> " did not start: " <> why) : lastOf 10 (lines said)))
          | otherwise -> threadDelay 50000 >> go (n - 1)
    lastOf n xs = drop (length xs - n) xs

vsctl, appctl, ofctl :: Ovs -> [String] -> IO String
vsctl ovs = command ovs "ovs-vsctl" . (["--timeout=60", "--db=unix:" <> ovsDirectory ovs </> "db.sock"] <>)
appctl ovs = command ovs "ovs-appctl" . (["--timeout=60", "-t", ovsDirectory ovs </> "vswitchd.ctl"] <>)
ofctl ovs = command ovs "ovs-ofctl" . (["--timeout=60"] <>)

command :: Ovs -> FilePath -> [String] -> IO String
command ovs program arguments = do
  r@(_, out, _) <- run ovs program arguments
  check (unwords (program : arguments)) r
  pure out

-- | The daemon's log.
ovsLog :: Ovs -> IO String
ovsLog ovs = readFile (ovsDirectory ovs </> "vswitchd.log")

-- | A bridge of dummy devices that does nothing without its controller: the protocol, the name, the number of its
-- datapath, the controller.
dummyBridge :: Ovs -> String -> String -> Int -> String -> IO ()
dummyBridge ovs protocol name number controller =
  void . vsctl ovs $
    ["--", "add-br", name, "--", "set", "bridge", name, "datapath-type=dummy", "fail-mode=secure", "protocols=" <> protocol]
      ++ ["other-config:datapath-id=" <> printf "%016x" number, "other-config:disable-in-band=true"]
      ++ ["--", "set-controller", name, controller, "--", "set", "controller", name, "max-backoff=1000"]

-- | A port whose frames are written to a file.
dummyPort :: Ovs -> String -> String -> Int -> IO ()
dummyPort ovs bridge name number =
  void . vsctl ovs $
    ["--", "add-port", bridge, name, "--", "set", "interface", name, "type=dummy", "ofport_request=" <> show number]
      ++ ["options:tx_pcap=" <> ovsDirectory ovs </> (name <> ".pcap")]

-- | A frame of UDP between two hosts, by number, arrives at a port.
receive :: Ovs -> String -> Int -> Int -> IO ()
receive ovs port source destination = receivePacket ovs port source destination "17" "udp(src=1,dst=2)"

-- | A packet between two hosts, by number, arrives at a port: the number of its protocol, and what is behind the header
-- of IPv4 in the words of @ovs-appctl@. Host 255 is everyone.
receivePacket :: Ovs -> String -> Int -> Int -> String -> String -> IO ()
receivePacket ovs port source destination protocol behind = void (appctl ovs ["netdev-dummy/receive", port, packet])
  where
    packet = "eth(src=" <> mac source <> ",dst=" <> mac destination <> "),eth_type(0x0800),ipv4(src=10.0.0." <> show source <> ",dst=10.0.0." <> show (min 254 destination) <> ",proto=" <> protocol <> ",tos=0,ttl=64,frag=no)," <> behind
    mac 255 = "ff:ff:ff:ff:ff:ff"
    mac n = printf "02:00:00:00:00:%02x" n

-- | A frame arrives at a port.
receiveFrame :: Ovs -> String -> B.ByteString -> IO ()
receiveFrame ovs port frame = void (appctl ovs ["netdev-dummy/receive", port, concatMap (printf "%02x") (B.unpack frame)])

-- | The frames that a port has sent, without the probes of link discovery.
sentFrames :: Ovs -> String -> IO [B.ByteString]
sentFrames ovs port = filter (\s -> not (isLldp s || isBridgedProbe s)) <$> allFrames ovs port

-- | The LLDP frames that a port has sent.
lldpFrames :: Ovs -> String -> IO [B.ByteString]
lldpFrames ovs port = filter isLldp <$> allFrames ovs port

isLldp, isBridgedProbe :: B.ByteString -> Bool
isLldp s = B.take 2 (B.drop 12 s) == B.pack [0x88, 0xcc]
isBridgedProbe s = B.take 2 (B.drop 12 s) == B.pack [0x88, 0xb5]

allFrames :: Ovs -> String -> IO [B.ByteString]
allFrames ovs port = frames . B.drop 24 <$> B.readFile (ovsDirectory ovs </> (port <> ".pcap"))
  where
    frames s
      | B.length s < 16 = []
      | otherwise = let n = len (B.drop 8 s) in B.take n (B.drop 16 s) : frames (B.drop (16 + n) s)
    len s = sum [fromIntegral (B.index s i) * 256 ^ i | i <- [0 .. 3 :: Int]] :: Int
