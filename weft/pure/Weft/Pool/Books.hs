-- |
-- The books of a pool: how many resources there are, and who waits for one. Pure; "Weft.Pool" changes them atomically.
module Weft.Pool.Books
  ( Books (..),
    newBooks,

    -- * Places
    Entry (..),
    enter,
    leave,
    nextInLine,
    vacate,

    -- * The end
    close,
  )
where

import qualified Data.Map.Strict as Map

-- | Invariant: while somebody waits, all places are taken.
data Books w = Books
  { -- | Places that are taken: resources in use, idle, or being made or destroyed.
    booksTaken :: !Int,
    -- | Those who wait, by their tickets, which are given out in order.
    booksWaiting :: !(Map.Map Int w),
    booksTicket :: !Int,
    booksClosed :: !Bool
  }

-- | No places taken.
newBooks :: Books w
newBooks = Books 0 Map.empty 0 False

-- | What becomes of somebody who needs a resource when none is idle.
data Entry
  = -- | There is a place for another one.
    Place
  | -- | In line, with this ticket.
    InLine !Int
  | -- | The pool is closed.
    Shut
  deriving (Eq, Show)

-- | Take one of so many places, or stand in line.
enter :: Int -> w -> Books w -> (Books w, Entry)
enter most w books
  | booksClosed books = (books, Shut)
  | booksTaken books < most = (books {booksTaken = booksTaken books + 1}, Place)
  | otherwise =
    ( books {booksWaiting = Map.insert ticket w (booksWaiting books), booksTicket = ticket + 1},
      InLine ticket
    )
  where
    ticket = booksTicket books

-- | Leave the line. 'False': was called already.
leave :: Int -> Books w -> (Books w, Bool)
leave ticket books = (books {booksWaiting = Map.delete ticket (booksWaiting books)}, Map.member ticket (booksWaiting books))

-- | Call the one who has waited longest.
nextInLine :: Books w -> (Books w, Maybe w)
nextInLine books = case Map.minView (booksWaiting books) of
  Nothing -> (books, Nothing)
  Just (w, rest) -> (books {booksWaiting = rest}, Just w)

-- | Give a place back, or give it to the one who has waited longest.
vacate :: Books w -> (Books w, Maybe w)
vacate books = case nextInLine books of
  (_, Nothing) -> (books {booksTaken = booksTaken books - 1}, Nothing)
  called -> called

-- | Let nobody in any more; those who wait.
close :: Books w -> (Books w, [w])
close books = (books {booksClosed = True, booksWaiting = Map.empty}, Map.elems (booksWaiting books))
