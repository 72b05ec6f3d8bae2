-- |
-- How threads wake one that blocks in the kernel, with as few system
-- calls as possible: a signal is sent only if the sleeper would otherwise wake
-- too late.
--
-- One word holds the whole state. The sleeper is one thread, the owner; wakers
-- are any number of threads.
--
-- @
--   Awake     (0)    the owner is running and will check its inboxes before it sleeps
--   Notified  (1)    a waker wants the owner to take a turn; it will not sleep before that
--   Asleep t  (>1)   the owner may be blocked, and will wake by itself at t
--
--   owner:  Awake -> Asleep t     'announce', then it checks its inboxes once more
--           Notified -> Awake     'announce' refused: take another turn
--           any -> Awake          'retract', after blocking or instead of it
--   waker:  Awake -> Notified     'notify'
--           Asleep t -> Notified  'notify', or 'notifyBefore' something due before t;
--                                 the waker that makes this move sends the signal
-- @
--
-- A waker first publishes its work and then reads the word; the owner first
-- writes the word and then looks for work. Both are sequentially consistent, so
-- one of them sees the other: work is never left behind a sleeping owner.
-- The suite @wake@ runs this module under every interleaving of one
-- sleeper and two wakers.
module Weft.Core.Wake
  ( Wake,
    newWake,

    -- * The owner
    announce,
    retract,

    -- * Wakers
    notify,
    notifyBefore,
  )
where

import Weft.Core.Time (Instant (..))
import Weft.Sys

-- | The word. Written by the owner and by wakers, as above.
newtype Wake = Wake WordArray

-- | Awake.
newWake :: IO Wake
newWake = Wake <$> newOwnWords 1

asAwake, asNotified :: Int
asAwake = 0
asNotified = 1

asAsleep :: Instant -> Int
asAsleep (Instant t) = max 2 (fromIntegral t)

-- | The owner is about to block until that instant at the latest (@never@ means
-- without a limit). 'False': it must take another turn instead. 'True':
-- it checks its inboxes, blocks if they are empty, and then calls 'retract'.
announce :: Wake -> Instant -> IO Bool
announce (Wake w) t = do
  found <- casWord w 0 asAwake (asAsleep t)
  if found == asAwake
    then pure True
    else False <$ writeWord w 0 asAwake

-- | The owner runs again.
retract :: Wake -> IO ()
retract (Wake w) = writeWord w 0 asAwake

-- | Make the owner take a turn. If 'True', the caller has to send the signal.
notify :: Wake -> IO Bool
notify (Wake w) = (> asNotified) <$> swapWord w 0 asNotified

-- | Make sure that the owner takes a turn no later than that instant, for work
-- that is in an inbox already. If 'True', the caller has to send the signal.
notifyBefore :: Wake -> Instant -> IO Bool
notifyBefore (Wake w) due = go =<< readWord w 0
  where
    go s
      | s <= asNotified || s <= asAsleep due = pure False
      | otherwise = do
        found <- casWord w 0 s asNotified
        if found == s then pure True else go found
