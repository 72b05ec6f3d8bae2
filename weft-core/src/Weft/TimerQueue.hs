-- |
-- Choosing the timer queue of a manager. The environment variable
-- @WEFT_TIMERS@ may be @wheel@, which is the default, or @psq@.
module Weft.TimerQueue
  ( newQueue,
  )
where

import System.Environment (lookupEnv)
import Weft.Core.Timer (Queue)
import Weft.Core.Timer.Search (newSearchQueue)
import Weft.Core.Timer.Wheel (newWheel)
import Weft.Sys (now)

-- | An empty queue of the chosen kind. Throws a user error if @WEFT_TIMERS@ has another
-- value.
newQueue :: IO Queue
newQueue = do
  asked <- lookupEnv "WEFT_TIMERS"
  case asked of
    Just "psq" -> newSearchQueue
    Just name
      | name `notElem` ["", "wheel"] ->
        ioError (userError ("weft: WEFT_TIMERS is wheel or psq, not " <> show name))
    _ -> newWheel =<< now
