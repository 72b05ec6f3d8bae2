-- |
-- The state of a response's body, for HTTP\/1 and HTTP\/2: one write at a time, none after one that was broken off, and
-- none after the end. Any thread may call these functions; WAI does not say that an application may write from several
-- threads at once, so a write that overlaps with another one is an error. It would be lost in a response that looks
-- complete if the response could still end, so that is an error, too, and the client sees a response that is broken
-- off.
--
-- The states, in a word that begins with zero, and their successors:
--
-- @
--   Idle         between two writes             -> Busy, Ended ('finishing')
--   Busy         a write is in progress         -> Idle, Interrupted (by the writing thread)
--                                               -> Overlapped (by another thread that writes or ends the body)
--   Interrupted  a write threw: bytes may be missing
--   Overlapped   two writes overlapped: one is missing
--   Ended        the last write has begun, or the response was given up ('closeBody', from any state)
-- @
--
-- Changes are atomic, and order what one thread has written into the response's buffer before the next thread's write.
module Weft.Http.BodyState
  ( writing,
    finishing,
    closeBody,
  )
where

import Control.Exception (onException)
import Control.Monad (unless, void)
import Weft.Sys (WordArray, casWord, writeWord)

idle, busy, interrupted, overlapped, ended :: Int
idle = 0
busy = 1
interrupted = 2
overlapped = 3
ended = 4

-- | Run a write, given the module that an error names, and the state's place. Throws an 'IOError' if another write is
-- in progress or was broken off, or if the response has ended. Not masked, to cost little: a thread that is interrupted
-- exactly before or after its write leaves Busy, and the next error then speaks of two threads.
writing :: String -> WordArray -> Int -> IO () -> IO ()
writing server cells cell write = do
  begin server cells cell busy
  write `onException` casWord cells cell busy interrupted
  void (casWord cells cell busy idle)
{-# INLINE writing #-}

-- | Run the last write. Throws as 'writing' does.
finishing :: String -> WordArray -> Int -> IO () -> IO ()
finishing server cells cell write = begin server cells cell ended >> write
{-# INLINE finishing #-}

begin :: String -> WordArray -> Int -> Int -> IO ()
begin server cells cell next = do
  found <- casWord cells cell idle next
  unless (found == idle) (refuse server cells cell next found)
{-# INLINE begin #-}

-- | The state that was found is not Idle.
refuse :: String -> WordArray -> Int -> Int -> Int -> IO ()
refuse server cells cell next found
  | found == busy = do
    seen <- casWord cells cell busy overlapped
    if seen == idle then begin server cells cell next else refuse server cells cell next (if seen == busy then overlapped else seen)
  | found == overlapped = failed "two threads write the body of a response at the same time"
  | found == interrupted = failed "an earlier write of this response was interrupted"
  | otherwise = failed "this response has ended"
  where
    failed why = ioError (userError (server <> ": " <> why))
{-# NOINLINE refuse #-}

-- | The response is given up: later writes throw.
closeBody :: WordArray -> Int -> IO ()
closeBody cells cell = writeWord cells cell ended
