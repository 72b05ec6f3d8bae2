-- |
-- Limits the number of incidents that are reported, so that a switch that sends faulty messages cannot fill the disk
-- with log lines. Of each source, ten incidents a second are reported, and then the number of the others. Pure: time is
-- an argument.
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

-- | The number of all incidents so far, the start of the current second, and its number of incidents by source.
data Reports = Reports !Int !Millis !(Map.Map Source Int)

-- | No incidents.
noReports :: Reports
noReports = Reports 0 0 Map.empty

-- | The maximum number of incidents of a source that are reported in a second.
mostReports :: Int
mostReports = 10

-- | Count an incident. Returns whether to report it, and the result of 'endSecond'.
incidentAt :: Millis -> Source -> Reports -> (Reports, (Bool, [(Source, Int)]))
incidentAt time source before = (Reports (total + 1) start (Map.insert source n numbers), (n <= mostReports, omitted))
  where
    (Reports total start numbers, omitted) = endSecond time before
    n = Map.findWithDefault 0 source numbers + 1

-- | If the current second is over, start another one. Returns the sources with incidents that were not reported, and
-- their numbers.
endSecond :: Millis -> Reports -> (Reports, [(Source, Int)])
endSecond time reports@(Reports total start numbers)
  | time - start < 1000 = (reports, [])
  | otherwise = (Reports total time Map.empty, [(source, n - mostReports) | (source, n) <- Map.toList numbers, n > mostReports])

-- | The number of all incidents, reported or not.
incidentsTotal :: Reports -> Int
incidentsTotal (Reports total _ _) = total
