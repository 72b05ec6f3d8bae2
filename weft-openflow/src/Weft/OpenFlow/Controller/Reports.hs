-- |
-- Limits the number of incidents that are reported, so that switches cannot fill the disk with log lines: a switch that
-- sends faulty messages, or one that connects again and again, each time with another datapath ID. In a second, ten
-- incidents of each source are reported, and a hundred of all; then the numbers of the others. Pure: time is an
-- argument.
module Weft.OpenFlow.Controller.Reports
  ( Reports,
    Source (..),
    noReports,
    incidentAt,
    endSecond,
    incidentsTotal,
  )
where

import qualified Data.Map.Strict as Map
import Weft.OpenFlow.App (Millis)
import Weft.OpenFlow.Types (DatapathId)

-- | What an incident concerns.
data Source
  = -- | The controller itself.
    OfController
  | -- | A connection whose switch is not known.
    OfStranger
  | -- | A switch.
    OfSwitch !DatapathId
  deriving (Eq, Ord)

-- | The number of all problems so far; and of the current second its start, the number of reported incidents, the
-- numbers of incidents by source, and the number of incidents of sources that came after the last report.
data Reports = Reports !Int !Millis !Int !(Map.Map Source Int) !Int

-- | No incidents.
noReports :: Reports
noReports = Reports 0 0 0 Map.empty 0

-- | The maximum numbers of incidents that are reported in a second: of a source, and of all.
mostOfSource, mostReports :: Int
mostOfSource = 10
mostReports = 100

-- | Count an incident, and a problem if it is one. Returns whether to report it, and the result of 'endSecond'.
incidentAt :: Millis -> Bool -> Source -> Reports -> (Reports, (Bool, [(Source, Int)]))
incidentAt time problem source before
  | n > mostOfSource = (Reports total' start reported counted others, (False, omitted))
  | reported >= mostReports = (Reports total' start reported numbers (others + 1), (False, omitted))
  | otherwise = (Reports total' start (reported + 1) counted others, (True, omitted))
  where
    (Reports total start reported numbers others, omitted) = endSecond time before
    total' = if problem then total + 1 else total
    n = Map.findWithDefault 0 source numbers + 1
    counted = Map.insert source n numbers

-- | If the current second is over, start another one. Returns the sources with incidents that were not reported, and
-- their numbers. Those that came after the last report are counted together, as 'OfStranger'.
endSecond :: Millis -> Reports -> (Reports, [(Source, Int)])
endSecond time reports@(Reports total start _ numbers others)
  | time - start < 1000 = (reports, [])
  | otherwise = (Reports total time 0 Map.empty 0, Map.toList omitted)
  where
    omitted = Map.unionWith (+) (subtract mostOfSource <$> Map.filter (> mostOfSource) numbers) (Map.fromList [(OfStranger, others) | others > 0])

-- | The number of all problems, reported or not.
incidentsTotal :: Reports -> Int
incidentsTotal (Reports total _ _ _ _) = total
