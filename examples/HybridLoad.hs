{-# LANGUAGE OverloadedStrings #-}

-- |
-- A load generator of hybrid threads (Li & Zdancewic 2007, section 5.2). Each client is a
-- thread with a connection. It requests random files of a list from a web server, each one as soon as the
-- one before has arrived.
--
-- > hybrid-load --port PORT --connections N --seconds T [--list FILE] [PATH...] +RTS -N
module Main (main) where

import Control.Monad (when)
import Data.Array (Array, bounds, listArray, (!))
import Data.Bits (countLeadingZeros, finiteBitSize, shiftL, shiftR, xor, (.&.))
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.Char (toLower)
import Data.IORef
import qualified Data.IntMap.Strict as IntMap
import Data.Word (Word64)
import GHC.Clock (getMonotonicTimeNSec)
import Options.Applicative hiding (action)
import System.Exit (die, exitFailure)
import System.IO.Error (ioeSetErrorString)
import Text.Printf (printf)
import Weft.Hybrid
import Weft.Socket (tupleToHostAddress)

-- Options ------------------------------------------------------------------------------

data Options = Options {port :: Int, clients :: Int, time :: Int, list :: Maybe FilePath, given :: [String]}

options :: Parser Options
options =
  Options
    <$> option auto (long "port" <> metavar "PORT" <> value 8080 <> showDefault <> help "Port on 127.0.0.1")
    <*> option auto (long "connections" <> metavar "N" <> value 64 <> showDefault <> help "Clients, with a connection each")
    <*> option auto (long "seconds" <> metavar "T" <> value 10 <> showDefault <> help "How long")
    <*> optional (strOption (long "list" <> metavar "FILE" <> help "Paths to ask for, one a line"))
    <*> many (strArgument (metavar "PATH..." <> help "Further paths"))

main :: IO ()
main = do
  opts <- execParser (info (options <**> helper) (progDesc "Ask a web server for random files of a list" <> footer "Exits with 1 when nothing was answered."))
  listed <- maybe (pure []) (fmap B.lines . B.readFile) (list opts)
  let paths = map B.pack (given opts) <> filter (not . B.null) listed
  when (null paths || clients opts < 1) (die "hybrid-load: at least one path, and one client")
  begun <- getMonotonicTimeNSec
  let target = Target (port opts) (listArray (0, length paths - 1) paths) (begun + fromIntegral (time opts) * 1000000000)
  tally <- run $ do
    total <- newMVar mempty
    threads <- mapM (\i -> forkThread (client target i >>= \t -> modifyMVar_ total (\sum' -> pure $! sum' <> t))) [1 .. clients opts]
    mapM_ wait threads
    takeMVar total
  ended <- getMonotonicTimeNSec
  report (fromIntegral (ended - begun) / 1e9) tally
  when (answers tally == 0) exitFailure

-- Figures ------------------------------------------------------------------------------

-- | The results. Latencies are counted by class ('classOf').
data Tally = Tally {answers, received, errors :: !Int, latencies :: !(IntMap.IntMap Int), firstError :: !(Maybe String)}

instance Semigroup Tally where
  Tally a b c ls e <> Tally a' b' c' ls' e' = Tally (a + a') (b + b') (c + c') (IntMap.unionWith (+) ls ls') (e <|> e')

instance Monoid Tally where
  mempty = Tally 0 0 0 IntMap.empty Nothing

-- | The class of a latency in nanoseconds. A class is a 32nd of its power of two wide. 'upperEnd' is the upper end of a
-- class in nanoseconds.
classOf :: Word64 -> Int
classOf ns
  | ns < 32 = fromIntegral ns
  | otherwise = 32 * (power - 4) + fromIntegral ((ns `shiftR` (power - 5)) .&. 31)
  where
    power = finiteBitSize ns - 1 - countLeadingZeros ns

upperEnd :: Int -> Double
upperEnd c
  | c < 32 = fromIntegral c
  | otherwise = fromIntegral (33 + c .&. 31) * 2 ^^ (c `shiftR` 5 - 1)

percentile :: Double -> Tally -> Double
percentile p tally = go 0 (IntMap.toAscList (latencies tally))
  where
    rank = ceiling (p * fromIntegral (answers tally) / 100) :: Int
    go _ [] = 0
    go seen ((c, n) : rest)
      | seen + n >= rank = upperEnd c / 1e6
      | otherwise = go (seen + n) rest

report :: Double -> Tally -> IO ()
report seconds' tally = do
  printf "%d answers in %.2f s, %d errors%s\n" (answers tally) seconds' (errors tally) (maybe "" (": " <>) (firstError tally))
  printf "%.0f requests/s, %.2f MB/s\n" (fromIntegral (answers tally) / seconds') (fromIntegral (received tally) / seconds' / 1e6)
  printf "latency, ms: %s\n" (unwords [printf "p%s %.3f" name (percentile p tally) | (name, p) <- [("50", 50), ("90", 90), ("99", 99), ("99.9", 99.9), ("100", 100)] :: [(String, Double)]])

-- Clients ------------------------------------------------------------------------------

-- | The server's port, the paths to request, and the time to end (nanoseconds of the monotonic clock).
data Target = Target Int (Array Int ByteString) Word64

-- | Open one connection after the other until the end. A connection is closed after an error, or by the server.
client :: Target -> Int -> Hybrid Tally
client target@(Target number _ end) i = do
  tally <- nonBlocking (newIORef mempty)
  numbers <- nonBlocking (newIORef (fromIntegral i * 0x9e3779b97f4a7c15))
  let go = do
        now <- nonBlocking getMonotonicTimeNSec
        if now >= end
          then nonBlocking (readIORef tally)
          else do
            r <- try (bracket (connectTo address) close (requests target tally numbers))
            either failed pure r
            go
      failed e = do
        nonBlocking (modifyIORef' tally (<> mempty {errors = 1, firstError = Just (show (e :: IOError))}))
        sleep (milliseconds 10)
  go
  where
    address = SockAddrInet (fromIntegral number) (tupleToHostAddress (127, 0, 0, 1))

-- | Send requests one after the other on a connection, until the end or until the server closes it. No other client
-- uses the references.
requests :: Target -> IORef Tally -> IORef Word64 -> Socket -> Hybrid ()
requests (Target _ paths end) tally numbers sock = go
  where
    go = do
      begun <- nonBlocking getMonotonicTimeNSec
      when (begun < end) $ do
        number <- nonBlocking (modifyIORef' numbers next >> readIORef numbers)
        let path = paths ! (fromIntegral (number `shiftR` 33) `mod` (snd (bounds paths) + 1))
        limit <- deadlineIn (seconds 30)
        let sock' = withDeadline limit sock
        sendAll sock' ("GET " <> path <> " HTTP/1.1\r\nHost: localhost\r\n\r\n")
        (good, size, stays) <- answerOn sock'
        ended <- nonBlocking getMonotonicTimeNSec
        let one = IntMap.singleton (classOf (ended - begun)) 1
        nonBlocking . modifyIORef' tally $ \t ->
          t <> if good then Tally 1 size 0 one Nothing else Tally 1 size 1 one (Just (B.unpack path <> " was refused"))
        when stays go

-- | Read a response: whether its status is 200, the length of its body, and whether the connection persists.
answerOn :: Socket -> Hybrid (Bool, Int, Bool)
answerOn sock = readHead B.empty
  where
    readHead before = do
      bytes <- recv sock 65536
      when (B.null bytes) (broken "the server closed the connection")
      let have = before <> bytes
          (found, rest) = B.breakSubstring "\r\n\r\n" have
      if B.null rest
        then if B.length have > 65536 then broken "a head without an end" else readHead have
        else do
          let fields = B.lines (B.map toLower found)
          size <- maybe (broken "an answer without Content-Length") pure (lengthIn fields)
          skip (size - (B.length rest - 4))
          pure (" 200" `B.isPrefixOf` B.drop 8 found, size, not (any ("connection: close" `B.isPrefixOf`) fields))
    skip n
      | n == 0 = pure ()
      | n < 0 = broken "more than was announced"
      | otherwise = do
        bytes <- recv sock (min n 65536)
        when (B.null bytes) (broken "the server closed the connection")
        skip (n - B.length bytes)
    lengthIn fields = case [B.dropWhile (== ' ') (B.drop 15 f) | f <- fields, "content-length:" `B.isPrefixOf` f] of
      [digits] | Just (n, _) <- B.readInt digits -> Just n
      _ -> Nothing
    broken why = throwM (userError why `ioeSetErrorString` why)

-- | A step of the xorshift generator.
next :: Word64 -> Word64
next x0 = x2 `xor` (x2 `shiftL` 17)
  where
    x1 = x0 `xor` (x0 `shiftL` 13)
    x2 = x1 `xor` (x1 `shiftR` 7)
