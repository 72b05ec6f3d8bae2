-- |
-- The time in which this process could run (@cbits/own_time.c@), so that limits do not depend on what else the machine does; and
-- what it has used of the processors.
module Workload.OwnTime
  ( startOwnTime,
    ownTime,
    longestDelay,
    processorTime,
  )
where

-- | Begin to count; once in a process.
foreign import ccall unsafe "own_time_start" startOwnTime :: IO ()

-- | Seconds in which it could run.
foreign import ccall unsafe "own_time" ownTime :: IO Double

-- | By how many seconds a thread that only sleeps was woken late, at most, since the last call.
foreign import ccall unsafe "own_time_longest_delay" longestDelay :: IO Double

-- | Seconds of processors that it has used, with its children that have ended.
foreign import ccall unsafe "own_time_processor" processorTime :: IO Double
