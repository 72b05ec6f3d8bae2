-- |
-- Counts the users of a resource that is to be closed when nobody uses it any more. Any thread may call these functions.
--
-- Each capability counts in an array of its own, on cache lines of its own, so that requests on different cores share
-- nothing that is written. ("Weft.Core.UseCount" has one word, for descriptors.) The states, and their successors:
--
-- @
--   Open      users may begin              -> Closing ('closeUnused')
--   Closing   no user begins any more      -> Closed  (by whoever finds that all counts are zero)
--   Closed    the closing action has run, or runs
-- @
--
-- A user first adds one to a count, and then reads the state. So a user that has found Open is seen by everybody who
-- reads the counts after the change to Closing, until it has ended; and a user that ends after that change finds Closing
-- and looks at the counts itself.
module Weft.Static.Users
  ( Users,
    newUsers,
    using,
    closeUnused,
  )
where

import Control.Exception (mask, mask_, onException)
import Control.Monad (join, when)
import Data.Bits ((.&.))
import Data.IORef
import Weft.Sys (AtomicWords, BoxedArray, addWord, casWord, myCapability, newAtomicWords, newBoxedArray, readBoxedArray, readWord, writeBoxedArray)

-- | The state, the counts by capability (modulo 'places'), and the closing action.
data Users = Users !AtomicWords !(BoxedArray AtomicWords) !(IORef (IO ()))

-- | The same count.
instance Eq Users where
  Users _ _ a == Users _ _ b = a == b

-- | No users, and the closing action. It runs once, masked, on the thread that closes or on that of the last user.
newUsers :: IO () -> IO Users
newUsers close = do
  counts <- newAtomicWords countSize >>= newBoxedArray places
  mapM_ (\place -> newAtomicWords countSize >>= writeBoxedArray counts place) [1 .. places - 1]
  Users <$> newAtomicWords 1 <*> pure counts <*> newIORef close

-- | Run an action, during which the resource stays open. 'Nothing', without running it, if the resource is to be closed.
using :: Users -> IO a -> IO (Maybe a)
using users@(Users state counts _) act = mask $ \restore -> do
  -- Taken off where it was added: the thread may move to another capability.
  count <- readBoxedArray counts . (.&. (places - 1)) =<< myCapability
  _ <- addWord count 0 1
  found <- readWord state 0
  if found == open
    then do
      a <- restore act `onException` leave users count
      Just a <$ leave users count
    else Nothing <$ leave users count

leave :: Users -> AtomicWords -> IO ()
leave users@(Users state _ _) count = do
  _ <- addWord count 0 (-1)
  found <- readWord state 0
  when (found == closing) (settle users)

-- | Close the resource as soon as nobody uses it. Further calls have no effect.
closeUnused :: Users -> IO ()
closeUnused users@(Users state _ _) = mask_ $ do
  _ <- casWord state 0 open closing
  settle users

settle :: Users -> IO ()
settle (Users state counts close) = do
  present <- sum <$> mapM (\place -> readBoxedArray counts place >>= \count -> readWord count 0) [0 .. places - 1]
  when (present == 0) $ do
    found <- casWord state 0 closing closed
    when (found == closing) (join (readIORef close))

-- | The states.
open, closing, closed :: Int
open = 0
closing = 1
closed = 2

-- | The number of counts; capabilities share one if there are more of them. A power of two.
places :: Int
places = 16

-- | The words of a count's array, of which the first one is used: two cache lines, as processors fetch lines in pairs.
countSize :: Int
countSize = 16
