-- |
-- "Weft.Datagram": that many datagrams by one call are those that were sent, one by one, whatever the kernel joins and
-- cuts.
module Spec.DatagramBatches
  ( tests,
  )
where

import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Foreign.C.Error
import Harness
import System.Directory (getTemporaryDirectory, removeFile)
import System.FilePath ((</>))
import System.Posix.Process (getProcessID)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Datagram hiding (Datagram (..))
import qualified Weft.Datagram as Batch
import Weft.Duration
import Weft.Socket
import Weft.Socket.ByteString (recv, sendAll)
import qualified Weft.Test.Skip as Skip

tests :: TestTree
tests =
  testGroup "datagrams in batches" $
    [ testGroup
        ("offload " <> show offload)
        [ test "datagrams of all sizes from two senders, in order, with their addresses" . forM_ [v4, v6] $ \local ->
            withBound local $ \to -> withBound local $ \one -> withBound local $ \other -> do
              receiver <- newReceiver settings {receiverLargest = 3000, receiverOffload = offload} to
              [target, first, second] <- mapM getSocketName [to, one, other]
              forM_ [(one, first), (other, second)] $ \(from, name) -> do
                deadline <- generous
                sendDatagramsTo from deadline [(target, bytes) | bytes <- mixed]
                got <- receiving receiver (length mixed)
                map Batch.datagramBytes got @?= mixed
                map Batch.datagramPeer got @?= map (const name) mixed
                map Batch.datagramTruncated got @?= map (const False) mixed,
          test "runs of one size, and the shorter one at their end" . withBound v4 $ \to -> withBound v4 $ \from -> do
            getSocketName to >>= connect from
            receiver <- newReceiver settings {receiverOffload = offload} to
            forM_ [1, 2, 63, 64, 65, 130] $ \n -> do
              let behind = [C.replicate 99 'b', C.replicate 100 'c', B.empty, B.empty, C.pack "d"]
                  sent = replicate n (C.replicate 100 'a') <> behind
              deadline <- generous
              sendDatagrams from deadline sent
              got <- receiving receiver (length sent)
              map Batch.datagramBytes got @?= sent,
          test "longer ones are truncated" . withBound v4 $ \to -> withBound v4 $ \from -> do
            getSocketName to >>= connect from
            receiver <- newReceiver settings {receiverLargest = 10, receiverOffload = offload} to
            deadline <- generous
            sendDatagrams from deadline (map (`C.replicate` 'x') [9, 10, 11, 11, 11, 1000])
            got <- receiving receiver 6
            map (B.length . Batch.datagramBytes) got @?= [9, 10, 10, 10, 10, 10]
            map Batch.datagramTruncated got @?= [False, False, True, True, True, True]
        ]
      | offload <- [False, True]
    ]
      <> [ test "what the kernel does not cut is sent one by one" . withBound v4 $ \to -> withBound v4 $ \from -> do
             -- Linux cuts only where it computes checksums.
             setSockOpt from (SockOpt 1 11) (1 :: Int)
             getSocketName to >>= connect from
             receiver <- newReceiver settings to
             deadline <- generous
             sendDatagrams from deadline (replicate 100 (C.replicate 100 'a'))
             got <- receiving receiver 100
             map Batch.datagramBytes got @?= replicate 100 (C.replicate 100 'a'),
           test "one that is too long is an error, and those before it are sent" . withBound v4 $ \to -> withBound v4 $ \from -> do
             getSocketName to >>= connect from
             receiver <- newReceiver settings to
             deadline <- generous
             let sent = [C.pack "a", C.pack "bc", B.replicate 70000 1, C.pack "d"]
             failsWith "too long" eMSGSIZE (sendDatagrams from deadline sent)
             got <- receiving receiver 2
             map Batch.datagramBytes got @?= map C.pack ["a", "bc"]
             none receiver,
           test "no more than was asked for comes by a call" . withBound v4 $ \to -> withBound v4 $ \from -> do
             getSocketName to >>= connect from
             receiver <- newReceiver settings {receiverMost = 3} to
             deadline <- generous
             sendDatagrams from deadline (replicate 10 (C.pack "a"))
             counts <- replicateM 4 (length <$> receiveDatagrams receiver deadline)
             counts @?= [3, 3, 3, 1]
             none receiver,
           test "Unix datagrams of one size stay apart, and a full queue is waited for" . withPair $ \a b -> do
             receiver <- newReceiver settings {receiverOffload = True} b
             deadline <- generous
             sending <- start (sendDatagrams a deadline (replicate 3000 (C.pack "ab")))
             got <- receiving receiver 3000
             result "sending" sending
             map Batch.datagramBytes got @?= replicate 3000 (C.pack "ab"),
           test "to the addresses of Unix sockets" $ do
             folder <- getTemporaryDirectory
             me <- getProcessID
             let path = folder </> ("weft-datagrams-" <> show me)
             flip finally (removeFile path) . withSocket AF_UNIX $ \to -> withSocket AF_UNIX $ \from -> do
               bind to (SockAddrUnix path)
               receiver <- newReceiver settings to
               deadline <- generous
               sending <- start (sendDatagramsTo from deadline (replicate 2000 (SockAddrUnix path, C.pack "ab")))
               got <- receiving receiver 2000
               result "sending" sending
               got @?= replicate 2000 (Batch.Datagram (SockAddrUnix "") (C.pack "ab") False),
           Skip.testCase "the kernel cuts and joins" . finishes "cutting" . withBound v4 $ \to -> withBound v4 $ \from -> do
             getSocketName to >>= connect from
             receiver <- newReceiver settings {receiverMost = 1, receiverOffload = True} to
             deadline <- generous
             sendDatagrams from deadline (replicate 50 (C.replicate 100 'a'))
             count <- length <$> receiveDatagrams receiver deadline
             when (count == 1) (Skip.skip "this kernel does neither")
             count @?= 50,
           test "an error of the network is thrown" . withBound v4 $ \from -> do
             gone <- withBound v4 getSocketName
             connect from gone
             receiver <- newReceiver settings from
             deadline <- generous
             sendAll from (C.pack "a")
             failsWith "nobody there" eCONNREFUSED (receiveDatagrams receiver deadline),
           test "a wait has a deadline, is interrupted, and ends when the socket is closed" . withBound v4 $ \to -> do
             receiver <- newReceiver settings to
             none receiver
             waiting <- start (receiveDatagrams receiver noDeadline)
             blocked waiting >>= assertBool "it waits"
             stop waiting
             again <- start (receiveDatagrams receiver noDeadline)
             blocked again >>= assertBool "it waits"
             close to
             failsWith "closed" eBADF (result "closed" again)
             failsWith "closed" eBADF (sendDatagrams to noDeadline (replicate 2 (C.pack "a"))),
           test "the ordinary functions go on beside it" . withBound v4 $ \to -> withBound v4 $ \from -> do
             getSocketName to >>= connect from
             receiver <- newReceiver settings to
             deadline <- generous
             sendDatagrams from deadline [C.pack "a", C.pack "b"]
             recv to 10 >>= (@?= C.pack "a")
             sendDatagrams from deadline []
             got <- receiving receiver 1
             map Batch.datagramBytes got @?= [C.pack "b"]
         ]
  where
    settings = defaultReceiverSettings

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

v4, v6 :: SockAddr
v4 = SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1))
v6 = SockAddrInet6 0 0 (0, 0, 0, 1) 0

withSocket :: Family -> (Socket -> IO a) -> IO a
withSocket family = bracket (socket family Datagram defaultProtocol) close

withBound :: SockAddr -> (Socket -> IO a) -> IO a
withBound address act = withSocket family (\s -> bind s address >> act s)
  where
    family = case address of
      SockAddrInet6 {} -> AF_INET6
      _ -> AF_INET

withPair :: (Socket -> Socket -> IO a) -> IO a
withPair act = bracket (socketPair AF_UNIX Datagram defaultProtocol) (\(a, b) -> close a >> close b) (uncurry act)

-- | 150 datagrams, in runs and not, some of them empty.
mixed :: [B.ByteString]
mixed = [C.replicate (size n) (toEnum (97 + n `mod` 26)) | n <- [0 .. 149]]
  where
    size n
      | n < 50 = (n * 97) `mod` 1400
      | n < 100 = 700
      | otherwise = n `mod` 3

generous :: IO Instant
generous = deadlineIn (seconds 15)

-- | So many datagrams.
receiving :: Receiver -> Int -> IO [Batch.Datagram]
receiving receiver n
  | n <= 0 = pure []
  | otherwise = do
    got <- generous >>= receiveDatagrams receiver
    assertBool "at least one" (not (null got))
    (got <>) <$> receiving receiver (n - length got)

-- | Nothing comes.
none :: Receiver -> Assertion
none receiver = do
  short <- deadlineIn (milliseconds 10)
  e <- failure "receiving" (receiveDatagrams receiver short)
  assertBool (show e) (isTimeout e)
