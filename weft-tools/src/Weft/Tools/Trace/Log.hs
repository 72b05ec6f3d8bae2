{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Reading GHC's event log
--
-- Extracts the events that a timeline needs from a file that @+RTS -l@ wrote, by the library @ghc-events@. If the
-- program was killed, or the file was cut off or damaged, the log is read up to there. "Weft.Tools.Trace.Sequence" says
-- which damages are found.
module Weft.Tools.Trace.Log
  ( Recording (..),
    Entry (..),
    What (..),
    Marker (..),
    End (..),
    readLog,
    checkLog,
    markerOf,
  )
where

import Control.Exception (IOException, SomeAsyncException, SomeException, evaluate, finally, fromException, try, tryJust)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy as L
import Data.Int (Int64)
import Data.List (isInfixOf, sortOn)
import Data.Text (Text)
import qualified Data.Text as T
import qualified GHC.RTS.Events as G
import qualified GHC.RTS.Events.Incremental as G
import System.Directory (getFileSize)
import System.IO (Handle, IOMode (ReadMode), hClose, openBinaryFile)
import Text.Read (readMaybe)
import Weft.Tools.Trace.Sequence
import Weft.Tools.Trace.Texts

-- | What a log says: the entries in order of time, and how it ends.
data Recording = Recording
  { recordingEntries :: [Entry],
    recordingEnd :: !End
  }

-- | How a log ends.
data End
  = -- | With the mark that the run-time system writes last.
    Complete
  | -- | Without it: the program was killed, or the file was cut off.
    CutOff
  | -- | The block at this byte is damaged. Neither the rest of it nor what follows is read.
    DamagedAt !Int64
  deriving (Eq, Show)

-- | Read a log; returns the reason if nothing can be read.
readLog :: FilePath -> IO (Either Text Recording)
readLog file = fmap recording <$> foldLog (flip (:)) [] file
  where
    recording (latestFirst, end) = Recording (sortOn entryTime (reverse latestFirst)) end

-- | How a log ends, without keeping its entries; returns the reason if nothing can be read.
checkLog :: FilePath -> IO (Either Text End)
checkLog file = fmap snd <$> foldLog const () file

-- | Combine the entries in the order of the file. Its data are blocks, each with events of one capability in order of
-- time, and a mark behind the last one (rts/EventLogFormat.h). The library reads each block by itself, since it may end
-- in silence where bytes are damaged.
foldLog :: (a -> Entry -> a) -> a -> FilePath -> IO (Either Text (a, End))
foldLog step start file = fmap (\((a, _), end) -> (a, end)) <$> foldBlocks combine (start, nothingKnown) file
  where
    combine (a, known) found = do
      known' <- follows known found
      let a' = step a found
      a' `seq` known' `seq` Just (a', known')

-- | 'foldLog' with a function that gives 'Nothing' for an entry that cannot be right.
foldBlocks :: (a -> Entry -> Maybe a) -> a -> FilePath -> IO (Either Text (a, End))
foldBlocks combine initial file = do
  opened <- try (openBinaryFile file ReadMode)
  either (\e -> pure (Left (T.pack (show (e :: IOException))))) (\handle -> foldHandle combine initial file handle `finally` hClose handle) opened

foldHandle :: (a -> Entry -> Maybe a) -> a -> FilePath -> Handle -> IO (Either Text (a, End))
foldHandle combine initial file handle = do
  header <- caught (L.hGetContents handle >>= evaluate . G.readHeader)
  case header of
    Left e -> pure (Left (maybe (notOne "its head is damaged") (T.pack . show) (fromException e :: Maybe IOException)))
    Right (Left why)
      | "not enough bytes" `isInfixOf` why -> pure (Left "no complete log: it ends before its first event, as if its program had been killed, had replaced itself by another (execve), or the disk were full")
      | otherwise -> pure (Left (notOne (T.pack (takeWhile (/= '\n') why))))
    Right (Right (kinds, bytes)) -> Right <$> blocks (sizesOf kinds) (G.decodeEvents kinds) initial bytes
  where
    notOne = ("not an event log of GHC: " <>)
    blocks sizes decoder seen bytes
      | bytes == endMark = pure (seen, Complete)
      | L.length marker < 24 = pure (seen, CutOff)
      | number 0 2 marker /= 18 || size < 24 = damaged seen
      | otherwise = do
        let (block, rest) = L.splitAt size bytes
            cut = L.length block < size
            decode content = foldEvents combine (number 14 8 marker) decoder seen (L.toChunks content <> [probe | not cut])
        first <- decode block
        -- The library fails at text that is not in UTF-8, such as an argument of the program.
        (seen', reached) <- case (first, inUtf8 sizes block) of
          ((_, Lost), Just readable) -> decode readable
          _ -> pure first
        case reached of
          Lost -> damaged seen'
          -- The logs of newer compilers have the mark in their last block.
          _ | not cut, L.null rest, endMark `L.isSuffixOf` block -> pure (seen', Complete)
          Whole | not cut -> blocks sizes decoder seen' rest
          Unfinished | cut, not (endMark `L.isSuffixOf` block) -> pure (seen', CutOff)
          _ -> damaged seen'
      where
        -- Type, time, size of the block, time of its end, capability.
        marker = L.take 24 bytes
        size = number 10 4 marker
        -- Evaluated while the file is open, since it is read lazily.
        damaged seen' = getFileSize file >>= fmap ((,) seen' . DamagedAt) . evaluate . subtract (L.length bytes) . fromIntegral
    number :: Int64 -> Int64 -> L.ByteString -> Int64
    number from count = L.foldl' (\n byte -> 256 * n + fromIntegral byte) 0 . L.take count . L.drop from
    endMark = L.pack [0xff, 0xff]
    -- The start of a collection, at an impossible time. Behind a block, it is an event only if the block ends with one.
    probe = B.pack ([0, 9] <> replicate 8 0xff)

-- | The events of a block, up to its end, whose time is given; the last one of its chunks may be a probe behind it.
foldEvents :: (a -> Entry -> Maybe a) -> Int64 -> G.Decoder G.Event -> a -> [B.ByteString] -> IO (a, Reached)
foldEvents combine end = go
  where
    go decoder seen chunks = do
      next <- caught (evaluate decoder)
      case (next, chunks) of
        (Right (G.Produce event decoder'), _)
          | time >= 0,
            time <= end + second -> do
            found <- caught (traverse evaluate (entry event))
            case maybe (Just seen) (combine seen) <$> found of
              Right (Just seen') -> go decoder' seen' chunks
              _ -> pure (seen, Lost)
          | time == -1, null chunks -> pure (seen, Whole)
          where
            time = fromIntegral (G.evTime event)
        (Right (G.Consume more), chunk : chunks') -> go (more chunk) seen chunks'
        (Right (G.Consume _), []) -> pure (seen, Unfinished)
        (Right (G.Done _), _) -> pure (seen, Unfinished)
        _ -> pure (seen, Lost)
    -- A block's end is noted after its events; their times may be adjusted.
    second = 1000000000

-- | How the decoding of a block ended: behind its last event, where more bytes were needed or the log's mark was, or at
-- an error.
data Reached = Whole | Unfinished | Lost

-- | The library's errors, and not Ctrl-C.
caught :: IO a -> IO (Either SomeException a)
caught = tryJust $ \e -> maybe (Just e) (\other -> const Nothing (other :: SomeAsyncException)) (fromException e)

entry :: G.Event -> Maybe Entry
entry event = Entry (fromIntegral (G.evTime event)) (maybe 0 id (G.evCap event)) <$> what (G.evSpec event)

what :: G.EventInfo -> Maybe What
what info = case info of
  G.RunThread {G.thread = t} -> Just (Runs (fromIntegral t))
  G.StopThread {G.thread = t} -> Just (Stops (fromIntegral t))
  G.WakeupThread {G.thread = t, G.otherCap = c} -> Just (Wakes (fromIntegral t) c)
  G.ThreadLabel {G.thread = t, G.threadlabel = l} -> Just (Labelled (fromIntegral t) l)
  G.StartGC -> Just CollectionBegins
  G.EndGC -> Just CollectionEnds
  G.UserMessage {G.msg = m} -> Marked <$> markerOf m
  _ -> Nothing

-- | The marker in a user message; 'Nothing' for messages of other code.
markerOf :: Text -> Maybe Marker
markerOf message = do
  text <- T.stripPrefix "weft:" message
  case T.words text of
    ["sleep"] -> Just Sleeping
    ["wait"] -> Just Waited
    [word, number] -> do
      n <- readMaybe (T.unpack number)
      make <- lookup word [("woken", Woken), ("handed", Handed), ("fired", Fired), ("signal", Signalled), ("submit", Submitted), ("done", Finished)]
      Just (make n)
    _ -> Nothing
