-- | The bound of the watchdog, set by the program or by the environment. "Weft.Runtime.Managers" reads the
-- environment before it starts the first dispatcher.
module Weft.Watchdog.Bound
  ( setBound,
    boundFromEnvironment,
  )
where

import Control.Monad (when)
import Foreign.C.String (withCString)
import System.Environment (lookupEnv)
import Text.Read (readMaybe)
import Weft.Core.Time (Duration (..), toSeconds)
import Weft.FFI.Errno (throwIfNegative_)
import Weft.FFI.Watchdog
import Weft.Sys (WordArray, globalWords, onException, swapWord)

-- | Not 0 when the bound was set, or was read from the environment.
decided :: WordArray
decided = globalWords "Weft.Watchdog.Bound.decided" 1
{-# NOINLINE decided #-}

-- | Use this bound from now on; 'Nothing' turns the watchdog off. Throws a user error if it is below a millisecond,
-- and an 'IOError' if the kernel refuses an OS thread.
setBound :: Maybe Duration -> IO ()
setBound bound = do
  _ <- swapWord decided 0 1
  apply bound

apply :: Maybe Duration -> IO ()
apply Nothing = throwIfNegative_ "watchdog" (watchdogSet 0)
apply (Just d@(Duration ns))
  | toSeconds d < 0.001 = ioError (userError "weft: a watchdog's bound is a millisecond or more")
  | otherwise = throwIfNegative_ "watchdog" (watchdogSet ns)

-- | Set the bound of @WEFT_WATCHDOG@, once in a process and only if the program has not set one. If it is no bound,
-- there is a warning on standard error, and no watchdog: the caller may be any thread that waits for the first time.
-- Throws an 'IOError' if the kernel refuses an OS thread.
boundFromEnvironment :: IO ()
boundFromEnvironment = do
  before <- swapWord decided 0 1
  -- After an error the next caller gets it, too: the first one may drop it.
  when (before == 0) . (`onException` swapWord decided 0 0) $ do
    set <- lookupEnv "WEFT_WATCHDOG"
    case set of
      Nothing -> pure ()
      Just text
        | text `elem` ["", "0"] -> pure ()
        | Just s <- readMaybe (leading text), s >= 0.001, s <= 1e6 -> apply (Just (Duration (round (s * 1e9 :: Double))))
        -- Not by a Handle, which may have to wait.
        | otherwise -> withCString ("weft watchdog: off, as WEFT_WATCHDOG is " <> show text <> "; it is a number of seconds from 0.001 to 1000000") watchdogWarn
  where
    -- Haskell has no numbers such as @.5@.
    leading text = case text of
      '.' : _ -> '0' : text
      _ -> text
