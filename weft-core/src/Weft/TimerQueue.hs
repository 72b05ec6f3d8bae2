-- |
-- Choosing how a manager keeps its timers: the only place where it is done.
-- @WEFT_TIMERS@ in the environment may be @wheel@, which is the default, or @psq@.
module Weft.TimerQueue
  ( newQueue,
  )
where

import System.Environment (lookupEnv)
import Weft.Core.Timer (Queue)
import Weft.Core.Timer.Search (newSearchQueue)
import Weft.Core.Timer.Wheel (newWheel)
import Weft.Sys (now)

-- | An empty queue of the kind that is asked for. Throws a user error for a name
-- that does not exist.
newQueue :: IO Queue
newQueue = do
  asked <- lookupEnv "WEFT_TIMERS"
  case asked of
    Just "psq" -> newSearchQueue
    Just name
      | name `notElem` ["", "wheel"] ->
        ioError (userError ("weft: WEFT_TIMERS is wheel or psq, not " <> show name))
    _ -> newWheel =<< now
