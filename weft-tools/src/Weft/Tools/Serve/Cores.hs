-- |
-- Description : How many cores a process may use
--
-- The number of processors that it may run on (sched_getaffinity(2)), at most the quota of its control groups
-- ("Weft.Tools.Cgroup"): a container with a quota of two on a machine with 64 processors needs two capabilities.
module Weft.Tools.Serve.Cores
  ( availableCores,
    coresWithin,
  )
where

import GHC.Conc (getNumProcessors)
import Weft.Tools.Cgroup

-- | The number of cores that this process may use.
availableCores :: IO Int
availableCores = coresWithin <$> getNumProcessors <*> cpuQuota "/sys/fs/cgroup" "/proc/self"

-- | The number of cores to use: this many processors, at most the quota rounded up, at least one.
coresWithin :: Int -> Quota -> Int
coresWithin processors quota = case quota of
  Processors q -> max 1 (min processors (ceiling q))
  _ -> processors
