-- |
-- Description : What a client does, by Weft
--
-- Requests by "Weft.Http.Client" (@get@) and by @http-client@ on Weft's connections; look-ups of names; threads of a
-- scope whose results are awaited; and dials, of which it says how late they are: behind an address that refuses, behind one that is silent
-- for as long as the next one is held back, and beyond the deadline if all are silent.
--
-- A silent address is a listener whose backlog is full: Linux drops what else connects.
module Main (main) where

import ClientWork
import Control.Exception (bracket)
import Control.Monad (forM, forM_, when)
import qualified Data.ByteString as B
import Data.List (sort)
import GHC.Clock (getMonotonicTimeNSec)
import Measure
import Network.Socket (Family (AF_INET), SockAddr (..), SocketType (Stream), bind, close, defaultProtocol, listen, socket, socketPort, tupleToHostAddress)
import System.Exit (die)
import Weft.Dial
import Weft.Duration
import Weft.Http.Client
import Weft.Http.Client.Manager (weftManagerSettings)
import Weft.Resolver
import Weft.Scope (await, fork, withScope)
import qualified Weft.Socket as Weft
import Weft.Transport (deadlineIn)

main :: IO ()
main = modes "get|http-client PORT SIZE CONNECTIONS REQUESTS | names PORT COUNT AT-ONCE | await N | dial-refused|dial-silent|dial-dead N" $ \what ns -> case (what, ns) of
  ("get", [port, size, threads, each]) -> Just (gets port size threads each)
  ("http-client", [port, size, threads, each]) -> Just (httpClient weftManagerSettings port size threads each)
  ("names", [port, count, atOnce]) -> Just (names port count atOnce)
  ("await", [n]) -> Just (withScope (\scope -> awaited n (fork scope (pure ()) >>= await)))
  ("dial-refused", [n]) -> Just (dialling $ \good _ dead -> late n (seconds 10) 0 True [dead, good])
  ("dial-silent", [n]) -> Just (dialling $ \good silent _ -> late n (seconds 10) 0.25 True [silent, good])
  ("dial-dead", [n]) -> Just (dialling $ \_ silent _ -> late n (milliseconds 300) 0.3 False [silent, silent])
  _ -> Nothing

-- | The URL is parsed once, as @http-client@'s is.
gets :: Int -> Int -> Int -> Int -> IO ()
gets port size threads each =
  withClient defaultClientSettings {clientMostPerServer = threads} $ \client ->
    requests size threads each $ do
      soon <- deadlineIn (seconds 10)
      B.length . answerBody <$> request client soon asked
  where
    asked = getUrl ("http://127.0.0.1:" ++ show port ++ "/" ++ show size ++ "k")

-- | Look up a thousand names in turn, so many times in all and so many at once. One server knows them all.
names :: Int -> Int -> Int -> IO ()
names port count atOnce = do
  resolver <- newResolver defaultResolverSettings {resolverServers = [SockAddrInet (fromIntegral port) (tupleToHostAddress (127, 0, 0, 1))], resolverMost = atOnce}
  let run n = together atOnce $ \i -> forM_ [i, i + atOnce .. n - 1] $ \k -> do
        soon <- deadlineIn (seconds 10)
        found <- resolveHost resolver soon BothFamilies ("n" <> show (k `mod` 1000) <> ".example.test.")
        when (length found /= 2) (die "not the addresses that were expected")
  counted count (run 1000) (run count)

-- | Dial these addresses so many times, each time within a duration, and say by how much it took longer than so many
-- seconds.
late :: Int -> Duration -> Double -> Bool -> [SockAddr] -> IO ()
late n limit due succeeds addresses = do
  _ <- once
  taken <- forM [1 .. n] (const once)
  let sorted = sort taken
      us seconds' = 1e6 * (seconds' - due)
  say [("late_us", us (sorted !! (n `div` 2))), ("max_us", us (last sorted))]
  where
    once = do
      begun <- getMonotonicTimeNSec
      deadline <- deadlineIn limit
      found <- dialAddresses defaultDialOptions deadline addresses
      ended <- getMonotonicTimeNSec
      connected <- either (const (pure False)) (\(s, _) -> True <$ Weft.close s) found
      when (connected /= succeeds) (die "the dial did not end as expected")
      pure (fromIntegral (ended - begun) / 1e9 :: Double)

-- | Run an action on three addresses of the same port: one that accepts, one that is silent and one that refuses.
dialling :: (SockAddr -> SockAddr -> SockAddr -> IO ()) -> IO ()
dialling act = listening 0 (at 1) 4096 $ \port -> listening port (at 2) 0 $ \_ ->
  bracket (fill (10 :: Int) (at 2 port)) (mapM_ Weft.close) $ \_ -> act (at 1 port) (at 2 port) (at 3 port)
  where
    at n port = SockAddrInet port (tupleToHostAddress (127, 0, 0, n))
    listening port address backlog run = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
      bind s (address port)
      listen s backlog
      socketPort s >>= run
    fill left address = do
      when (left == 0) (die "the backlog of a listener is never full here")
      soon <- deadlineIn (milliseconds 200)
      found <- dialAddresses defaultDialOptions soon [address]
      either (const (pure [])) (\(s, _) -> (s :) <$> fill (left - 1) address) found
