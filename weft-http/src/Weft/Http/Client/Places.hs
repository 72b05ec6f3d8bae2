-- |
-- Connections that are shared: which one of a server's gets the next request, who waits for a place on one, and when
-- another connection is made.
--
-- A connection has as many places as it says ('setPlaces'). A request takes one on the oldest connection that has any.
-- If there is none, it waits in line, and a connection is made, one at a time, as long as there are fewer than allowed.
-- If it cannot be made and there is no other one, all who wait get the error.
--
-- Any thread may call these functions.
module Weft.Http.Client.Places
  ( Places,
    newPlaces,

    -- * Places
    Grant (..),
    takePlace,
    leavePlace,

    -- * Connections
    connectionMade,
    connectionFailed,
    connectionGone,
    setPlaces,

    -- * All of them
    isVacant,
    placesCounts,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.IORef
import qualified Data.Map.Strict as Map
import Data.Maybe (isNothing)
import Weft.Deadline (Instant, untilDeadline)
import Weft.Timer (within)

-- | The connections to a server: changed atomically, and then those who have been granted something are told.
data Places c = Places
  { -- | The most connections.
    placesMost :: !Int,
    -- | Begins to make a connection, of this number: to be ended by 'connectionMade' or 'connectionFailed'. Must not
    -- wait.
    placesConnect :: Int -> IO (),
    placesBooks :: !(IORef (Books c))
  }

instance Eq (Places c) where
  a == b = placesBooks a == placesBooks b

-- | Invariant, outside of a change: while somebody waits, no connection has a place, and one is being made or there are
-- as many as allowed.
data Books c = Books
  { -- | The connections, by their numbers.
    booksMembers :: !(Map.Map Int (Member c)),
    -- | The one that is being made, or has not said yet how many places it has.
    booksMaking :: !(Maybe Int),
    -- | Those who wait, by their tickets, which are given out in order. Each variable is filled once.
    booksLine :: !(Map.Map Int (MVar (Grant c))),
    -- | The next ticket, and the next number.
    booksTicket :: !Int,
    booksNumber :: !Int,
    -- | Nothing is granted any more: another 'Places' has taken its place.
    booksClosed :: !Bool
  }

-- | A connection, how many places it has, and how many of them are taken.
data Member c = Member !c !Int !Int

-- | What one who needs a place gets.
data Grant c
  = -- | A place on the connection of this number.
    Placed !Int !c
  | -- | The connection for which all have waited could not be made.
    Failed !SomeException
  | -- | These places are used no more.
    Vacated

-- | No connections, and at most so many; and what begins to make one.
newPlaces :: Int -> (Int -> IO ()) -> IO (Places c)
newPlaces most connect = Places (max 1 most) connect <$> newIORef (Books Map.empty Nothing Map.empty 0 0 False)

-- | Change the books, grant what can be granted then, and tell those who are. With the flag, the books are closed if
-- nothing is left.
change :: Bool -> Places c -> (Books c -> (Books c, a)) -> IO a
change closing places f = mask_ $ do
  (grants, connects, a) <- atomicModifyIORef' (placesBooks places) $ \books ->
    let (before, a) = f books
        (settled, grants) = settle before
        needed = isNothing (booksMaking settled) && not (Map.null (booksLine settled)) && Map.size (booksMembers settled) < placesMost places
        number = booksNumber settled
        after'
          | needed = settled {booksMaking = Just number, booksNumber = number + 1}
          | otherwise = settled {booksClosed = booksClosed settled || (closing && Map.null (booksMembers settled) && isNothing (booksMaking settled))}
     in (after', (grants, [number | needed], a))
  -- Each variable has one grant: this does not wait.
  forM_ grants (uncurry putMVar)
  a <$ mapM_ (placesConnect places) connects

-- | Give what places there are to those who wait.
settle :: Books c -> (Books c, [(MVar (Grant c), Grant c)])
settle books = case Map.minView (booksLine books) of
  Just (waiter, rest) | Just (books', grant) <- granted books {booksLine = rest} -> ((waiter, grant) :) <$> settle books'
  _ -> (books, [])

-- | A place, if there is one.
granted :: Books c -> Maybe (Books c, Grant c)
granted books = case [m | m@(_, Member _ has used) <- Map.toList (booksMembers books), used < has] of
  (number, Member c has used) : _ -> Just (books {booksMembers = Map.insert number (Member c has (used + 1)) (booksMembers books)}, Placed number c)
  [] -> Nothing

-- | Take a place before the deadline; 'Nothing' if it has passed. Interruptible where it waits, and to be called
-- masked: a place has to be left.
takePlace :: Instant -> Places c -> IO (Maybe (Grant c))
takePlace due places = do
  waiter <- newEmptyMVar
  found <- change False places $ \books -> case granted books of
    _ | booksClosed books -> (books, Right Vacated)
    -- While there are places, nobody waits.
    Just (books', grant) -> (books', Right grant)
    Nothing ->
      let ticket = booksTicket books
       in (books {booksLine = Map.insert ticket waiter (booksLine books), booksTicket = ticket + 1}, Left ticket)
  case found of
    Right grant -> pure (Just grant)
    Left ticket -> do
      left <- untilDeadline due
      grant <- within left (readMVar waiter) `onException` (withdraw ticket waiter >>= mapM_ giveBack)
      maybe (withdraw ticket waiter) (pure . Just) grant
  where
    -- What was granted just before.
    withdraw ticket waiter = do
      waits <- change False places $ \books -> (books {booksLine = Map.delete ticket (booksLine books)}, Map.member ticket (booksLine books))
      -- Whoever has taken the waiter out of the line is about to fill it.
      if waits then pure Nothing else Just <$> uninterruptibleMask_ (readMVar waiter)
    giveBack grant = case grant of
      Placed number _ -> leavePlace places number
      _ -> pure ()

-- | A place on the connection of this number is free again.
leavePlace :: Places c -> Int -> IO ()
leavePlace places number = change False places $ \books ->
  (books {booksMembers = Map.adjust (\(Member c has used) -> Member c has (used - 1)) number (booksMembers books)}, ())

-- | The connection of this number was made. It has one place until it says more; before that, no other one is made.
connectionMade :: Places c -> Int -> c -> IO ()
connectionMade places number c = change False places $ \books ->
  (books {booksMembers = Map.insert number (Member c 1 0) (booksMembers books)}, ())

-- | No connection was made, for a reason that concerns all who wait, if there is no other connection. Closes the books
-- if nothing is left.
connectionFailed :: Places c -> SomeException -> IO ()
connectionFailed places why = mask_ $ do
  waiters <- change True places $ \books ->
    let books' = books {booksMaking = Nothing}
     in if Map.null (booksMembers books) then (books' {booksLine = Map.empty}, Map.elems (booksLine books)) else (books', [])
  forM_ waiters (`putMVar` Failed why)

-- | The connection of this number has ended. Closes the books if nothing is left.
connectionGone :: Places c -> Int -> IO ()
connectionGone places number = change True places $ \books -> ((said number books) {booksMembers = Map.delete number (booksMembers books)}, ())

-- | The connection of this number has so many places.
setPlaces :: Places c -> Int -> Int -> IO ()
setPlaces places number has = change False places $ \books ->
  ((said number books) {booksMembers = Map.adjust (\(Member c _ used) -> Member c has used) number (booksMembers books)}, ())

-- | How many places the connection of this number has is known.
said :: Int -> Books c -> Books c
said number books
  | booksMaking books == Just number = books {booksMaking = Nothing}
  | otherwise = books

-- | Whether the books are closed.
isVacant :: Places c -> IO Bool
isVacant places = booksClosed <$> readIORef (placesBooks places)

-- | The connections, those without a request, and the requests that wait.
placesCounts :: Places c -> IO (Int, Int, Int)
placesCounts places = do
  books <- readIORef (placesBooks places)
  let members = Map.elems (booksMembers books)
  pure (length members + fromEnum (maybe False (`Map.notMember` booksMembers books) (booksMaking books)), length [() | Member _ _ 0 <- members], Map.size (booksLine books))
