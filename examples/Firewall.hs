-- |
-- A network of learning switches with a firewall: hosts may not reach each other on the ports of TCP that the command
-- line names. @firewall 6653 23 25@ listens on port 6653 (0: one that the system chooses), and refuses telnet and mail.
-- See @doc\/openflow.md@.
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

-- | Packets to a refused port are dropped: by the flows that a switch gets when it connects, and here until it has them.
firewall :: [Word16] -> App ()
firewall refused = App () $ \_ event () -> case event of
  SwitchUp _ -> ((), [Send (addFlow 1000 0 [EthType 0x0800, IpProtocol 6, TcpDst port] []) | port <- refused])
  Packet p | Just port <- tcpPort (packetInData p), port `elem` refused -> ((), release p [] ++ [Stop])
  _ -> ((), [])
  where
    tcpPort bytes = do
      frame <- ethernet bytes
      (6, _, _, _, port) <- ipv4Addresses frame bytes
      pure port
