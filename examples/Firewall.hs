-- |
-- A controller of learning switches with a firewall: packets to the TCP ports that the command line names are dropped.
-- @firewall 6653 23 25@ listens on port 6653 (0: one that the system chooses), and refuses telnet and mail. See
-- @doc\/openflow.md@.
module Main (main) where

import Data.Word (Word16)
import System.Environment (getArgs)
import System.IO
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning (learningSwitch)
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message (PacketIn (..))
import Weft.OpenFlow.Packet (ethernet, ipv4Addresses)
import Weft.OpenFlow.Types (Version (..))
import Weft.Socket (ServerSettings (..), defaultServerSettings)

main :: IO ()
main = do
  args <- getArgs
  case args of
    port : refused -> do
      hSetBuffering stdout LineBuffering
      let server = defaultServerSettings {serverPort = port, serverOnListen = \address -> putStrLn ("listening on " <> show address)}
      runController settings server (perSwitch (firewall (map read refused) `andThen` learningSwitch))
    [] -> putStrLn "usage: firewall PORT REFUSED..."
  where
    settings = defaultSettings {settingsOnSwitch = \d here -> putStrLn (show d <> (if here then " is here" else " is gone"))}

-- | Drop the packets to refused ports: by flows that are installed when a switch connects, and in this application
-- until they are installed.
firewall :: [Word16] -> App ()
firewall refused = App () $ \context event () -> case event of
  SwitchUp _ -> ((), [Send (addFlow 1000 0 [EthType t, IpProtocol 6, TcpDst port] []) | t <- internet context, port <- refused])
  Packet p | Just port <- tcpPort (packetInData p), port `elem` refused -> ((), release p [] ++ [Stop])
  _ -> ((), [])
  where
    -- IPv4 and IPv6. OpenFlow 1.0 has no fields of IPv6.
    internet context = 0x0800 : [0x86dd | contextVersion context == V13]
    tcpPort bytes = do
      frame <- ethernet bytes
      (6, _, _, _, port) <- ipv4Addresses frame bytes
      pure port
