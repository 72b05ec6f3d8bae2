-- |
-- The time in which this process could run (@cbits\/own_time.c@), so that limits do not depend on the machine's other
-- load; and its use of the processors.
module Workload.OwnTime
  ( startOwnTime,
    ownTime,
    stillRuns,
    longestDelay,
    processorTime,
  )
where

-- | Start the clock; to be called once in a process.
foreign import ccall unsafe "own_time_start" startOwnTime :: IO ()

-- | Seconds in which the process could run.
foreign import ccall unsafe "own_time" ownTime :: IO Double

-- | Say that the program runs. If it does not for 15 seconds in which it could, its threads are reported on the
-- standard error.
foreign import ccall unsafe "own_time_beat" stillRuns :: IO ()

-- | The longest delay, in seconds, with which a thread that only sleeps has woken up since the last call.
foreign import ccall unsafe "own_time_longest_delay" longestDelay :: IO Double

-- | CPU seconds that the process has used, including children that have ended.
foreign import ccall unsafe "own_time_processor" processorTime :: IO Double
