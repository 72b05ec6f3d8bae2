-- |
-- The neighbour cache: the lifetimes of its entries, the requests that it sends, and its limits.
module Spec.Neighbours (tests) where

import Data.List (foldl')
import Test.Tasty hiding (after)
import Test.Tasty.HUnit
import Weft.Core.Time
import Weft.Tcp.Device.Neighbours
import Weft.Tcp.Wire.Address

tests :: TestTree
tests =
  testGroup
    "neighbours"
    [ testCase "packets wait for the answer, four at most, and one request is sent" $ do
        let (n, ds) = sending "abcdefg" 0 none
        ds @?= Waits (Just Broadcast) : replicate 6 (Waits Nothing)
        snd (answered holds (at 0.3) a hw n) @?= "defg",
      testCase "three requests without an answer: the queued packets are dropped" $ do
        let (n1, q1) = expire (at 1) (fst (sending "x" 0 none))
            (n2, q2) = expire (at 2) n1
            (n3, q3) = expire (at 3) n2
        [q1, q2, q3] @?= [([(own, a, Broadcast)], True), ([(own, a, Broadcast)], True), ([], False)]
        neighbourCount n3 @?= 0,
      testCase "an answer is valid for 30 seconds; then two requests go to the neighbour, and one to all nodes" $ do
        let (n1, d1) = sending "x" 29.9 confirmed
            (n2, d2) = sending "xy" 30.1 n1
            (n3, q3) = expire (at 31.2) n2
            (n4, q4) = expire (at 32.3) n3
            (_, d4) = sending "z" 32.4 n4
            (n5, q5) = expire (at 33.4) n4
        (d1, d2, d4) @?= ([SendTo hw Nothing], [SendTo hw (Just (Unicast hw)), SendTo hw Nothing], [SendTo hw Nothing])
        map fst [q3, q4, q5] @?= [[(own, a, Unicast hw)], [(own, a, Broadcast)], []]
        neighbourCount n5 @?= 0,
      testCase "an answer to a probe confirms the entry again" $ do
        let n = fst (answered holds (at 30.2) a hw (fst (sending "x" 30.1 confirmed)))
        snd (sending "x" 60 n) @?= [SendTo hw Nothing]
        snd (expire (at 40) n) @?= ([], False),
      testCase "an advertisement that answers a probe may leave out the address (RFC 4861, section 7.2.4)" $ do
        let (n, used) = advertised holds (at 30.2) (Advertisement True False a Nothing) (fst (sending "x" 30.1 confirmed))
        used @?= Just (hw, "")
        snd (sending "x" 60 n) @?= [SendTo hw Nothing],
      testCase "an advertisement of another address that does not override: the known one is probed (section 7.2.5)" $ do
        let (n, used) = advertised holds (at 1) (Advertisement True False a (Just other)) confirmed
        used @?= Nothing
        snd (sending "x" 1.1 n) @?= [SendTo hw (Just (Unicast hw))]
        hardwareOf a (fst (advertised holds (at 1) (Advertisement True True a (Just other)) confirmed)) @?= Just other
        snd (advertised holds (at 0.5) (Advertisement True False a (Just hw)) (fst (sending "xy" 0 none))) @?= Just (hw, "xy"),
      testCase "a new address that is announced is used, and probed with the next packet" $ do
        let n = fst (announced False (at 1) a other confirmed)
        snd (sending "xy" 1.1 n) @?= [SendTo other (Just (Unicast other)), SendTo other Nothing],
      testCase "packets queued for a neighbour are sent when it announces its address" $
        snd (announced False (at 0.5) a hw (fst (sending "xy" 0 none))) @?= "xy",
      testCase "unsolicited answers and announcements add no entry; a request to us does" $ do
        neighbourCount (fst (answered holds (at 0) a hw none)) @?= 0
        neighbourCount (fst (announced False (at 0) a hw none)) @?= 0
        neighbourCount (fst (announced True (at 0) a hw none)) @?= 1,
      testCase "an unused entry is removed after ten minutes" $ do
        let n = fst (expire (at 31) confirmed)
        neighbourCount n @?= 1
        neighbourCount (fst (expire (at 632) n)) @?= 0,
      testCase "a scan of 100,000 addresses keeps 1,024 of them, and the neighbours that answered" $ do
        let scanned = foldl' (\n i -> fst (forPacket (at 1) own (V4 (0x0a010000 + i)) 'x' n)) confirmed [1 .. 100000]
        neighbourCount scanned @?= maxNeighbours
        hardwareOf a scanned @?= Just hw,
      testCase "10,000 strangers that ask for us push out neither a neighbour in use nor one that is sought (RFC 6583, section 7.1)" $ do
        let (sought, _) = sendingTo b "x" 1 confirmed
            crowded = strangers 1 10000 sought
        (neighbourCount crowded, hardwareOf a crowded) @?= (maxNeighbours, Just hw)
        snd (answered holds (at 1.5) b other crowded) @?= "x",
      testCase "nor do they push out a neighbour that was in use, and will be again" $ do
        let crowded = strangers 40 10000 confirmed
        snd (sending "x" 41 crowded) @?= [SendTo hw (Just (Unicast hw))],
      testCase "an idle neighbour makes room for one that is sought, also if its time has ended unnoticed" $ do
        let full = foldl' (\n i -> fst (answered holds (at 0) (host i) hw (fst (sendingTo (host i) "x" 0 n)))) none [1 .. maxNeighbours]
            (first, _) = sendingTo b "x" 31 full
            (second, _) = sendingTo a "y" 31 first
        neighbourCount second @?= maxNeighbours
        snd (answered holds (at 31.1) b other second) @?= "x",
      testCase "where all neighbours are in use, 256 can be sought at the same time" $ do
        let full = foldl' (\n i -> fst (answered holds (at 0) (host i) hw (fst (sendingTo (host i) "x" 0 n)))) none [1 .. maxNeighbours]
            scanned = foldl' (\n i -> fst (sendingTo (host (2000 + i)) "x" 1 n)) full [1 .. 1000]
        length [i | i <- [1 .. 1000], snd (answered holds (at 1.1) (host (2000 + i)) other scanned) == "x"] @?= 256
        length [i | i <- [1 .. maxNeighbours], hardwareOf (host i) scanned == Just hw] @?= maxNeighbours - 256
    ]
  where
    none = noNeighbours :: Neighbours Char
    confirmed = fst (answered holds (at 0) a hw (fst (sending "x" 0 none)))
    holds = seconds 30
    own = V4 0x0a0000fe
    a = V4 0x0a000001
    hw = HardwareAddress 0x020000000001
    other = HardwareAddress 0x020000000002
    at s = after (seconds s) (Instant 0)
    sending = sendingTo a
    sendingTo to ps t n = foldl' (\(m, ds) p -> let (m', d) = forPacket (at t) own to p m in (m', ds ++ [d])) (n, []) ps
    b = V4 0x0a000002
    host i = V4 (0x0a010000 + fromIntegral (i :: Int))
    -- Stations that ask for us, each from another address, a thousand in a second.
    strangers begin many n = foldl' (\m i -> fst (announced True (at (begin + fromIntegral i / 1000)) (V4 (0x0a200000 + fromIntegral i)) other m)) n [1 .. many :: Int]
