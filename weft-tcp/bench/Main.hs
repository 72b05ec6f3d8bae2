-- |
-- What the stack costs. @idle N@: bytes of memory for each of N established connections
-- that do nothing. @serve NAME ADDRESS@: on a TUN device that exists, a source on port 19
-- and a sink on port 9, for measuring with a client on the other end; see doc/tcp.md.
module Main (main) where

import Control.Concurrent
import Control.Exception (SomeException, finally, try)
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.IORef
import Data.Maybe (fromJust)
import GHC.Stats
import System.Environment (getArgs)
import System.Mem (performMajorGC)
import Weft.Tcp
import Weft.Tcp.Device
import Weft.Tcp.Device.Tun
import Weft.Tcp.Stack.Input (arriveBatch)
import Weft.Tcp.Wire.Options
import qualified Weft.Tcp.Wire.Packet as Packet
import Weft.Tcp.Wire.Segment (Segment (..))
import qualified Weft.Tcp.Wire.Segment as Segment
import Weft.Transport (noDeadline)

main :: IO ()
main = do
  args <- getArgs
  case args of
    ["idle", n] -> idle (read n)
    ["serve", name, address, "plain"] -> serve name address False
    ["serve", name, address] -> serve name address True
    _ -> putStrLn "idle N | serve NAME ADDRESS [plain]"

idle :: Int -> IO ()
idle n = do
  out <- newIORef []
  blocked <- newEmptyMVar
  let ours = V4 0x0a000002
      device = Device "none" 1500 False [Queue (takeMVar blocked) (\_ parts -> modifyIORef' out (B.concat parts :))] (pure ())
      everything = Policy "all" (\_ _ -> Remember) False
  withStack (defaultSettings [ours]) {stackPolicy = everything} device $ \st -> do
    l <- listen st Nothing 80
    performMajorGC
    before <- gcdetails_live_bytes . gc <$> getRTSStats
    socks <- forM [1 .. n] $ \i -> do
      let src = V4 (0x0b000000 + fromIntegral (i `div` 50000))
          port = fromIntegral (1024 + i `mod` 50000)
          packet s = Incoming (Packet.encode (Packet.Packet src ours 6 (Segment.encode src ours port 80 s))) True True
          options' o = o {timestamps = Just (Timestamps 7 0)}
      arriveBatch st [packet (Segment 1000 0 Segment.syn 65535 0 (options' (Options (Just 1460) (Just 7) True Nothing [])) [])]
      [answer] <- atomicModifyIORef' out (\x -> ([], x))
      case Packet.decode answer of
        Right (Packet.Whole p) | Right v <- Segment.view (Packet.packetBody p) -> do
          let isn = seqNumber (Segment.segment v)
          arriveBatch st [packet (Segment 1001 (isn + 1) Segment.ack 500 0 (options' noOptions) [])]
        _ -> fail "no answer"
      accept l
    performMajorGC
    after' <- gcdetails_live_bytes . gc <$> getRTSStats
    size <- tableSize st
    putStrLn (show size ++ " connections, " ++ show ((after' - before) `div` fromIntegral n) ++ " bytes each")
    mapM_ (\s -> s `seq` pure ()) socks

serve :: String -> String -> Bool -> IO ()
serve name address offload = do
  device <- openTun (TunSettings name offload 1)
  withStack (defaultSettings [fromJust (parseAddress address)]) device $ \st -> do
    forM_ [(9, sink), (19, source), (7, echo)] $ \(p, act) -> do
      l <- listen st Nothing p
      forkIO . forever $ do
        c <- accept l
        forkIO (void (try (act c) :: IO (Either SomeException ())) `finally` close c)
    putStrLn "ready"
    forever (threadDelay 1000000)

sink, source, echo :: Socket -> IO ()
sink c = go (0 :: Int)
  where
    go n = do
      b <- recv c noDeadline 1048576
      if B.null b then send c noDeadline (C.pack (show n)) else go (n + B.length b)
source c = do
  line <- recv c noDeadline 100
  forM_ (C.readInt line) $ \(n, _) -> go n
  where
    block = B.replicate 262144 65
    go n = when (n > 0) $ send c noDeadline (B.take n block) >> go (n - B.length block)
echo c = do
  b <- recv c noDeadline 65536
  unless (B.null b) (send c noDeadline b >> echo c)
