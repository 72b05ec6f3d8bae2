-- |
-- Description : @weft tcp replay@
--
-- Replays a packet log into "Weft.Tcp.Core" and prints the connection's state after each packet. Exit status: 0, 1 if
-- the file cannot be read, or has no connection, or not the one that is asked for, 2 for wrong arguments, 3 if an
-- invariant of the core was violated.
module Weft.Tools.Tcp.Replay
  ( replayCommand,
  )
where

import Control.Exception (IOException, try)
import Control.Monad (forM_, unless, when)
import Data.Either (lefts, rights)
import Data.List (intercalate)
import GHC.IO.Exception (IOException (ioe_description))
import Options.Applicative
import System.Exit (ExitCode (..), exitWith)
import Weft.Tcp
import Weft.Tcp.Capture (readCapture)
import Weft.Tcp.Core (Instant (..), describe, since)
import Weft.Tcp.Replay
import Weft.Tcp.Wire.Segment (Segment (..), payloadLength)
import Weft.Tools.StandardError (reportLine)
import Weft.Tools.Subcommand (Subcommand, subcommand)

-- | The subcommand.
replayCommand :: Subcommand
replayCommand =
  subcommand "replay" $
    info
      ( run <$> strArgument (metavar "FILE" <> help "A packet log in pcap format, with raw IP packets or Ethernet frames")
          <*> optional (option (eitherReader address) (long "side" <> metavar "ADDRESS" <> help "Replay the side with this address (the side that accepted the connection)"))
          <*> optional (option auto (long "connection" <> metavar "N" <> help "Replay only the Nth connection of the log"))
          <*> switch (long "summary" <> help "Print only the last state of each connection")
      )
      ( progDesc "Replay a packet log into weft's TCP, with the state of the connection at each step"
          <> footer
            "Each line has the time in seconds; < for a packet to the replayed side, > for one from it; flags, relative sequence numbers, acknowledgment, \
            \window as on the wire; then the state after the packet. 'core:' marks what weft's TCP sent at that step, 'not yet' what the log has before weft's TCP would have sent it. \
            \Logs are written by weft get --capture, and by tcpdump -w."
          <> failureCode 2
      )
  where
    address text = maybe (Left (text <> " is not an IP address")) Right (parseAddress text)

run :: FilePath -> Maybe Address -> Maybe Int -> Bool -> IO ()
run path side wanted brief = do
  found <- try (readCapture path)
  (link, records, rest) <- case found of
    Left e -> failed (path <> ": " <> ioe_description (e :: IOException))
    Right (Left _) -> failed (path <> " is no pcap file of IP packets or Ethernet frames; editcap -F pcap converts others, and tcpdump -i NAME writes one of a single interface")
    Right (Right r) -> pure r
  let seen = seenIn link records
      unread = length (lefts seen)
      connectionsThere = zip [1 :: Int ..] (replay side (rights seen))
  when (rest > 0) $ reportLine ("weft tcp replay: warning: " <> path <> " ends within a packet: its last " <> show rest <> " bytes are left out")
  when (unread > 0) $ putStrLn (show unread <> " packets could not be read: fragments, or cut off")
  when (null connectionsThere) $ failed (path <> " has no TCP segments")
  forM_ side $ \a ->
    unless (or [a == fst end | s <- rights seen, end <- [seenFrom s, seenTo s]]) $ failed (showAddress a <> " is not in " <> path)
  forM_ wanted $ \n ->
    unless (n `elem` map fst connectionsThere) $ failed (path <> " has " <> show (length connectionsThere) <> (if length connectionsThere == 1 then " connection" else " connections") <> ", and none is number " <> show n)
  broken <- or <$> mapM (uncurry (shown brief)) [c | c@(n, _) <- connectionsThere, maybe True (== n) wanted]
  when broken (exitWith (ExitFailure 3))
  where
    failed why = reportLine ("weft tcp replay: " <> why) >> exitWith (ExitFailure 1)

-- | Print a replayed connection. Returns true if an invariant was violated.
shown :: Bool -> Int -> Replayed -> IO Bool
shown brief n r = do
  putStrLn ("connection " <> show n <> ": " <> place (localAddress f) (localPort f) <> " (played) and " <> place (remoteAddress f) (remotePort f))
  case replayedSteps r of
    Nothing -> False <$ putStrLn "  its beginning is not in the log"
    Just (steps, totals) -> do
      forM_ (if brief then lastOf steps else steps) $ \s -> putStrLn ("  " <> lineOf (first steps) s)
      putStrLn ("  segments with data: " <> show (loggedSegments totals) <> " in the log, " <> show (loggedAgain totals) <> " of them again; " <> show (coreSegments totals) <> " by the core, " <> show (coreAgain totals) <> " again; sent before the core would have: " <> show (disagreements totals) <> concat ["; acknowledgments of what is not in the log: " <> show (holes totals) | holes totals > 0] <> concat ["; numbers too far ahead of the log to be right: " <> show (implausible totals) | implausible totals > 0])
      let broken = concatMap stepBroken steps
      unless (null broken) (putStrLn ("  BROKEN: " <> intercalate ", " (take 5 broken)))
      pure (not (null broken))
  where
    f = replayedFlow r
    place a p = (case a of V4 _ -> showAddress a; V6 _ _ -> "[" <> showAddress a <> "]") <> ":" <> show p
    first steps = case steps of
      s : _ -> stepAt s
      [] -> Instant 0
    lastOf steps = drop (length steps - 1) steps

lineOf :: Instant -> Step -> String
lineOf begun s = padded 44 (time <> arrow <> packet) <> " | " <> describe (stepState s) <> concat [" | core: " <> intercalate ", " (map sentAs (stepSent s)) | not (null (stepSent s))] <> (if stepAgrees s then "" else " | not yet")
  where
    time = let micros = fromIntegral (stepAt s `since` begun) :: Int in show (micros `div` 1000000) <> "." <> drop 1 (show (1000000 + micros `mod` 1000000))
    arrow = if stepDirection s == In then " < " else " > "
    x = stepSegment s
    packet = show (flags x) <> " " <> show from <> (if size > 0 then ":" <> show (from + size) else "") <> " ack " <> show acked <> " win " <> show (window x)
    (from, acked) = stepNumbers s
    size = payloadLength x
    sentAs y = show (flags y) <> (if payloadLength y > 0 then " " <> show (payloadLength y) <> " B" else "")
    padded n text = text <> replicate (n - length text) ' '
