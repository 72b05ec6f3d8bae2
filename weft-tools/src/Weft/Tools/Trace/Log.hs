{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Reading GHC's event log
--
-- Extracts the events that a timeline needs from a file that @+RTS -l@ wrote, by the library @ghc-events@. If the
-- program was killed, or the file was cut off, the log is read up to where it ends.
module Weft.Tools.Trace.Log
  ( Recording (..),
    Entry (..),
    What (..),
    Marker (..),
    readLog,
    markerOf,
  )
where

import Control.Exception (SomeAsyncException, SomeException, evaluate, fromException, tryJust)
import qualified Data.ByteString as B
import Data.Int (Int64)
import Data.Maybe (mapMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified GHC.RTS.Events as G
import System.IO (IOMode (ReadMode), SeekMode (SeekFromEnd), hSeek, withBinaryFile)
import Text.Read (readMaybe)

-- | An event on a capability, with its time in nanoseconds since the start.
data Entry = Entry
  { entryTime :: !Int64,
    entryCapability :: !Int,
    entryWhat :: !What
  }
  deriving (Eq, Show)

-- | The kinds of events; threads are identified by their numbers.
data What
  = Runs !Int
  | Stops !Int
  | -- | A thread becomes ready on that capability.
    Wakes !Int !Int
  | Labelled !Int !Text
  | CollectionBegins
  | CollectionEnds
  | Marked !Marker
  deriving (Eq, Show)

-- | The markers of "Weft.Core.EventLog".
data Marker = Sleeping | Woken !Int | Handed !Int | Fired !Int | Signalled !Int | Waited | Submitted !Int | Finished !Int
  deriving (Eq, Show)

-- | What a log says: the entries in order of time, and whether it goes to the end of its program.
data Recording = Recording
  { recordingEntries :: [Entry],
    recordingWhole :: !Bool
  }

-- | Read a log; returns the reason if nothing can be read.
readLog :: FilePath -> IO (Either Text Recording)
readLog file = do
  found <- tryJust synchronous (G.readEventLogFromFile file >>= either (pure . Left . T.pack) (fmap Right . recording))
  pure $ case found of
    Left e -> Left (T.pack (takeWhile (/= '\n') (show e)))
    Right (Left why) -> Left why
    Right (Right entries) -> Right entries
  where
    -- The library's errors, and not Ctrl-C.
    synchronous :: SomeException -> Maybe SomeException
    synchronous e = maybe (Just e) (\other -> const Nothing (other :: SomeAsyncException)) (fromException e)
    recording eventLog = do
      let entries = mapMaybe entry (G.sortEvents (G.events (G.dat eventLog)))
      _ <- evaluate (length entries)
      Recording entries <$> ends
    -- The run-time system writes this last (EVENT_DATA_END of rts/EventLogFormat.h). The library ends in silence where
    -- the bytes do.
    ends = withBinaryFile file ReadMode $ \handle -> do
      hSeek handle SeekFromEnd (-2)
      (== B.pack [0xff, 0xff]) <$> B.hGet handle 2

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
