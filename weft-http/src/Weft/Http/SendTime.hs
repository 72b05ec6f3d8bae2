-- |
-- How long a send may wait for its client. The kernel holds megabytes of what was sent, and wakes a thread that waits to send
-- when a third of them is gone: for a slow client on a fast server that takes longer than any timeout. So when the time of
-- a send is over the kernel is asked how much the client has acknowledged; until then nothing is done, and nothing is asked.
--
-- A word for each connection tells how far its send is:
--
-- @
--   0       nothing is being sent              -> 1 (the sender)
--   1       since less than the time           -> 0 (the sender), n + 2 (who judges)
--   n + 2   the client had acknowledged n bytes
--           when it was judged last            -> 0, 1 (the sender), m + 2 (who judges)
-- @
--
-- The sender writes; who judges, the dispatcher, moves by compare-and-swap.
module Weft.Http.SendTime
  ( beginSend,
    endSend,
    moreTime,
    sliceSize,
  )
where

import Weft.Core.Time (Duration (..))
import Weft.Sys (AtomicWords, casWord, pokeWord, readWord)
import Weft.Transport

-- | A send begins: the words and the index of the word.
beginSend :: AtomicWords -> Int -> IO ()
beginSend cells cell = pokeWord cells cell 1
{-# INLINE beginSend #-}

-- | It has ended.
endSend :: AtomicWords -> Int -> IO ()
endSend cells cell = pokeWord cells cell 0
{-# INLINE endSend #-}

-- | The time of a connection is over. The result is the time that its client gets again, if a send waits and the client makes progress.
-- The first time, that means that it has acknowledged any byte since the kernel's buffer was full; after that, in each
-- such time, 'sliceSize' bytes, or 20 KiB a second if that is less. 'Nothing' if the transport does not know.
moreTime :: Connection -> AtomicWords -> Int -> Duration -> IO (Maybe Duration)
moreTime c cells cell time@(Duration ns) = do
  state <- readWord cells cell
  progress <- if state == 0 then pure Nothing else connSendProgress c
  case progress of
    Just (SendProgress acknowledged full)
      | if state == 1 then not full else acknowledged - (state - 2) >= least ->
        Just time <$ casWord cells cell state (acknowledged + 2)
    _ -> pure Nothing
  where
    -- 48,828 ns are a byte's time at 20 KiB a second.
    least = min sliceSize (fromIntegral (ns `div` 48828))

-- | Bytes of a response for which a client has the whole time: 128 KiB.
sliceSize :: Int
sliceSize = 131072
