-- |
-- Our packets are decoded by an independent program, tshark, and the results are compared.
module Spec.Oracle (tests) where

import qualified Data.ByteString as B
import Data.List (isInfixOf)
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hClose, openBinaryTempFile)
import System.Process (readProcess)
import Test.QuickCheck
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import qualified Udp
import Weft.Tcp.Wire.Address
import qualified Weft.Tcp.Wire.Packet as Packet
import qualified Weft.Tcp.Wire.Pcap as Pcap
import Weft.Tcp.Wire.Segment
import Weft.Test.Skip (needProgram, testCase)
import Wires

tests :: TestTree
tests =
  testGroup
    "oracle"
    [ testCase "tshark finds our checksums right and reads the same fields" (needProgram "tshark" >> agree "tshark"),
      testCase "tshark finds a wrong checksum wrong" (needProgram "tshark" >> disagree "tshark")
    ]

-- | Let the program decode packets. Returns a line for each, with the given fields separated by commas.
ask :: FilePath -> [String] -> [B.ByteString] -> IO [String]
ask tool fields packets = do
  tmp <- getTemporaryDirectory
  (path, h) <- openBinaryTempFile tmp "weft-tcp.pcap"
  B.hPut h (Pcap.fileHeader Pcap.RawIp <> foldMap (Pcap.encodeRecord . Pcap.Record 0) packets)
  hClose h
  out <-
    readProcess
      tool
      ( ["-r", path, "-T", "fields", "-E", "separator=,", "-E", "occurrence=f"]
          ++ concat [["-o", p ++ ".check_checksum:TRUE"] | p <- ["ip", "tcp", "udp"]]
          ++ ["-o", "tcp.relative_sequence_numbers:FALSE", "-o", "tcp.analyze_sequence_numbers:FALSE"]
          ++ concat [["-e", f] | f <- fields]
      )
      ""
  removeFile path
  pure (lines out)

agree :: FilePath -> Assertion
agree tool = do
  samples <- generate (vectorOf 500 packets)
  got <- ask tool ["ip.checksum.status", "tcp.checksum.status", "udp.checksum.status", "tcp.seq_raw", "tcp.ack_raw", "tcp.window_size_value", "tcp.len"] (map fst samples)
  length got @?= 500
  sequence_ [line @?= wanted | (line, (_, wanted)) <- zip got samples]
  where
    packets = do
      (src, dst) <- genPair
      let network = case src of V4 {} -> "1"; V6 {} -> ""
          packet proto body = Packet.encode (Packet.Packet src dst proto body)
      oneof
        [ do
            s <- genSegment
            -- tshark does not decode data for these ports.
            pure
              ( packet 6 (encode src dst 40001 40002 s),
                network ++ ",1,," ++ show (seqNumber s) ++ "," ++ show (ackNumber s) ++ "," ++ show (window s) ++ "," ++ show (payloadLength s)
              ),
          do
            b <- genBytes 300
            pure (packet 17 (Udp.encode src dst (Udp.Datagram 40001 40002 b)), network ++ ",,1,,,,")
        ]

disagree :: FilePath -> Assertion
disagree tool = do
  s <- generate genSegment
  let good = encode (V4 0x0a000001) (V4 0x0a000002) 40001 40002 s
      bad = B.take 16 good <> B.map (255 -) (B.take 2 (B.drop 16 good)) <> B.drop 18 good
  got <- ask tool ["tcp.checksum.status"] [Packet.encode (Packet.Packet (V4 0x0a000001) (V4 0x0a000002) 6 bad)]
  assertBool (show got) (any ("0" `isInfixOf`) got)
