-- |
-- Counts the users of a resource that is to be closed when nobody uses it any more. Any thread may call these
-- functions.
--
-- Each capability counts in a word on cache lines of its own, so that requests on different cores share
-- nothing that is written. ("Weft.Core.UseCount" has one word, for descriptors.) The states, and their successors:
--
-- @
--   Open      users may begin              -> Closing ('closeUnused')
--   Closing   no user begins any more      -> Closed  (by whoever finds that all counts are zero)
--   Closed    the closing action has run, or runs
-- @
--
-- A user first adds one to a count, and then reads the state. So a user that has found Open is seen by everybody who
-- reads the counts after the change to Closing, until it has ended; and a user that ends after that change finds
-- Closing and looks at the counts itself.
module Weft.Static.Users
  ( Users,
    newUsers,
    using,
    closeUnused,
  )
where

import Control.Exception (mask, mask_, onException)
import Control.Monad (join, when)
import Data.IORef
import Weft.Core.Each (Each, everyOne, newEach, own)
import Weft.Sys (WordArray, addWord, casWord, newOwnWords, readWord)

-- | The state, the counts, and the closing action.
data Users = Users !WordArray !(Each WordArray) !(IORef (IO ()))

-- | The same count.
instance Eq Users where
  Users _ _ a == Users _ _ b = a == b

-- | No users, and the closing action. It runs once, masked, on the thread that closes or on that of the last user.
newUsers :: IO () -> IO Users
newUsers close = Users <$> newOwnWords 1 <*> newEach (newOwnWords 1) <*> newIORef close

-- | Run an action, during which the resource stays open. 'Nothing', without running it, if the resource is to be
-- closed.
using :: Users -> IO a -> IO (Maybe a)
using users@(Users state counts _) act = mask $ \restore -> do
  -- Taken off where it was added: the thread may move to another capability.
  count <- own counts
  _ <- addWord count 0 1
  found <- readWord state 0
  if found == open
    then do
      a <- restore act `onException` leave users count
      Just a <$ leave users count
    else Nothing <$ leave users count

leave :: Users -> WordArray -> IO ()
leave users@(Users state _ _) count = do
  _ <- addWord count 0 (-1)
  found <- readWord state 0
  when (found == closing) (closeIfUnused users)

-- | Close the resource as soon as nobody uses it. Further calls have no effect.
closeUnused :: Users -> IO ()
closeUnused users@(Users state _ _) = mask_ $ do
  _ <- casWord state 0 open closing
  closeIfUnused users

closeIfUnused :: Users -> IO ()
closeIfUnused (Users state counts close) = do
  present <- sum <$> (everyOne counts >>= mapM (`readWord` 0))
  when (present == 0) $ do
    found <- casWord state 0 closing closed
    when (found == closing) (join (readIORef close))

-- | The states.
open, closing, closed :: Int
open = 0
closing = 1
closed = 2
