-- |
-- A controller of learning switches that tell VLANs apart: the same MAC address may be at one port in one VLAN and at
-- another port in another. @vlans 6653@ listens on port 6653. See @doc\/openflow.md@.
module Main (main) where

import Data.Bits ((.&.))
import qualified Data.ByteString as B
import qualified Data.Map.Strict as Map
import Data.Word (Word16)
import System.Environment (getArgs)
import Weft.OpenFlow.App
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Match
import Weft.OpenFlow.Message (PacketIn (..), Port (..))
import Weft.OpenFlow.Packet (Frame (..), etherTypeLldp, ethernet)
import Weft.OpenFlow.Types
import Weft.Socket (ServerSettings (..), defaultServerSettings)

main :: IO ()
main = do
  args <- getArgs
  case args of
    [port] -> runController defaultSettings defaultServerSettings {serverPort = port} (perSwitch vlanSwitch)
    _ -> putStrLn "usage: vlans PORT"

-- | The ports of the addresses in each VLAN; 0: packets without a tag.
type Ports = Map.Map (Word16, MacAddress) PortNo

-- | Learn the ports of 65,536 addresses at most, and then begin again. For a packet to a known address, install a flow
-- that matches the VLAN, too; flood other packets. If the switch itself does not separate VLANs, that is to all ports.
vlanSwitch :: App Ports
vlanSwitch = App Map.empty $ \context event ports -> case event of
  Packet p -> case ethernet (packetInData p) of
    Just frame | frameType frame /= etherTypeLldp -> forward context p frame (learn p frame ports)
    _ -> (ports, release p [])
  -- Hosts at such a port may be elsewhere afterwards.
  PortChanged _ port -> (Map.filter (/= portNumber port) ports, [])
  TreeChanged -> (Map.empty, [])
  _ -> (ports, [])

learn :: PacketIn -> Frame -> Ports -> Ports
learn p frame ports
  | isMulticast (frameSrc frame) = ports
  | otherwise = Map.insert (vlanOf p, frameSrc frame) (packetInPort p) (if Map.size ports < 65536 then ports else Map.empty)

forward :: Context -> PacketIn -> Frame -> Ports -> (Ports, [Reply])
forward context p frame ports = case Map.lookup (vlan, frameDst frame) ports of
  Just to
    | to == port -> (ports, release p [])
    | otherwise -> (ports, Send (addFlow 100 60 match [output to]) : release p [output to])
  Nothing -> (ports, release p (floodActions context port))
  where
    port = packetInPort p
    vlan = vlanOf p
    match = [InPort port, EthSrc (frameSrc frame), EthDst (frameDst frame), VlanId (if vlan == 0 then Untagged else Tagged vlan)]

-- | The VLAN in the tag behind the two addresses of a packet (IEEE 802.1Q).
vlanOf :: PacketIn -> Word16
vlanOf p = case B.unpack (B.take 4 (B.drop 12 (packetInData p))) of
  [0x81, 0, high, low] -> (fromIntegral high .&. 15) * 256 + fromIntegral low
  _ -> 0
