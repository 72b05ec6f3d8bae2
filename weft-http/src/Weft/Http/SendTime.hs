-- |
-- How long a send may wait for its client. The kernel buffers megabytes of sent data, and wakes a thread that waits to
-- send only when a third of them has been acknowledged. With a slow client and a fast server that takes longer than any
-- timeout. So when the time limit of a send has passed, the kernel is asked how much the client has acknowledged.
-- Before that nothing is asked.
--
-- Each connection has a word with the state of its send:
--
-- @
--   0       nothing is being sent                   -> 1 (sender), n + 2 (checker)
--   1       a send began, not checked yet           -> 0, -1 (sender), n + 2 (checker)
--   n + 2   at the last check the client had
--           acknowledged n bytes                    -> 0, -1, 1 (sender), m + 2 (checker)
--   -1      the last send of a response has ended,
--           but its time limit still runs           -> 1 (sender), 0 (receiver), n + 2 (checker)
-- @
--
-- The sender writes plainly; the checker, which runs in the dispatcher, and threads that receive use compare-and-swap.
module Weft.Http.SendTime
  ( beginSend,
    endSend,
    allSent,
    notSent,
    Waiting (..),
    moreTime,
    leastIn,
    afterPause,
    leastRate,
    sliceSize,
  )
where

import Weft.Core.Time (Duration (..))
import Weft.Sys (WordArray, casWord, pokeWord, readWord)
import Weft.Transport

-- | A send begins. Arguments: the words, and the index of the word.
beginSend :: WordArray -> Int -> IO ()
beginSend cells cell = pokeWord cells cell 1
{-# INLINE beginSend #-}

-- | The send has ended.
endSend :: WordArray -> Int -> IO ()
endSend cells cell = pokeWord cells cell 0
{-# INLINE endSend #-}

-- | The last send of a response has ended. From now on nobody waits for the client, although the time limit still runs.
allSent :: WordArray -> Int -> IO ()
allSent cells cell = pokeWord cells cell (-1)
{-# INLINE allSent #-}

-- | The client is waited for again, to send something: end the state of 'allSent', but not that of a send in another
-- thread.
notSent :: WordArray -> Int -> IO ()
notSent cells cell = () <$ casWord cells cell (-1) 0
{-# INLINE notSent #-}

-- | What a connection waits for when its time limit has passed.
data Waiting
  = -- | For the client to take an answer or to send a body; or, after 'allSent', for the application.
    InRequest
  | -- | For the client's next request.
    ForRequest
  deriving (Eq)

-- | To be called when the time limit of a connection has passed. Returns a new time limit if nobody waits for the
-- client ('allSent' in a request), or if the client makes progress in taking what was sent. If a send waits, the first
-- check asks whether the client has acknowledged any byte since the kernel's buffer became full. If none waits, but
-- something that was sent is not acknowledged, the client makes progress at the first check in any case: its connection
-- may not end before its answer has arrived. At later checks the client has to have acknowledged 'leastIn' the time
-- limit since the check before. 'Nothing' if there was no progress or the transport does not know.
moreTime :: Connection -> WordArray -> Int -> Waiting -> Duration -> IO (Maybe Duration)
moreTime c cells cell waiting time = do
  state <- readWord cells cell
  if state < 0 && waiting == InRequest
    then pure (Just time)
    else do
      progress <- connSendProgress c
      case progress of
        Just p
          | sendOutstanding p,
            progresses state p ->
            Just time <$ casWord cells cell state (sendAcknowledged p + 2)
        _ -> pure Nothing
  where
    progresses state p
      | state == 1 = not (sendFull p)
      | state <= 0 = True
      | otherwise = sendAcknowledged p - (state - 2) >= leastIn time

-- | The bytes that a client has to take within a time limit: 'sliceSize', or 20 KiB a second if that is less.
leastIn :: Duration -> Int
leastIn (Duration ns) = min sliceSize (fromIntegral (ns `div` 48828)) -- at 20 KiB a second, a byte takes 48,828 ns

-- | The rate, in bytes a second, at which a client has to take a response with the given timeout.
leastRate :: Duration -> Int
leastRate (Duration ns) = fromIntegral (min 20480 (fromIntegral sliceSize * 1000000000 `div` max 1 ns))

-- | The number of bytes of a response that a client has to take within one timeout: 128 KiB.
sliceSize :: Int
sliceSize = 131072

-- | The time that a client gets if its time was over while the process did not run: what it has sent meanwhile is read
-- first ('Weft.Runtime.IdleTimer.ranLate').
afterPause :: Duration
afterPause = Duration 2000000000
