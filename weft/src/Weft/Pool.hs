-- |
-- Bounded pools of anything that is expensive to make: connections to a database, handles, processes.
--
-- > withPool (poolOf connect disconnect) {poolMost = 10} $ \pool ->
-- >   serve settings $ \sock _ -> do
-- >     soon <- deadlineIn (seconds 2)
-- >     withResource pool soon $ \connection -> ...
--
-- What holds:
--
-- 1. At most 'poolMost' resources exist at a time, those that are being made or destroyed included. Each one is
--    destroyed once. Those that were taken out of the pool ('detach') count no more, and are the caller's.
-- 2. A resource has one user at a time. If the user's action throws, the resource is destroyed, as nobody knows its
--    state.
-- 3. If all are in use, callers wait in the order in which they came, up to their deadlines. A resource that is
--    given back goes to the first one in line. A caller who comes just then may take it before; he gives it back in
--    turn.
-- 4. Interruptions lose no resource and no place.
--
-- Each capability has idle resources of its own: what a thread gives back is taken by the next thread there, the latest
-- first, and neither writes to memory that another capability uses. Before a new resource is made, one of
-- another capability is taken.
--
-- A child of 'System.Posix.Process.forkProcess' begins with an empty pool, of the same settings: the resources that the
-- parent has at the fork remain the parent's alone, as two processes that used one connection would read each other's
-- answers. The child neither uses nor destroys them ('release', 'discard' and 'detach' of a lease from before the fork
-- do nothing there). The end of 'withPool' concerns the process that called it; in the child the pool stays open.
--
-- Any thread may use a pool. All functions are interruptible.
--
-- @since 0.1.0
module Weft.Pool
  ( -- * Pools
    Pool,
    withPool,
    PoolSettings (..),
    poolOf,
    PoolClosed (..),

    -- * Using resources
    withResource,
    acquire,
    release,
    discard,
    detach,
    Lease,
    leased,

    -- * Counts
    poolCounts,
    PoolCounts (..),
  )
where

import Control.Concurrent (forkIOWithUnmask)
import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.IORef
import qualified Data.Map.Strict as Map
import GHC.Conc (labelThread)
import Weft.Core.Each
import Weft.Core.PerProcess
import Weft.Core.Time (Duration (..), Instant (..), after)
import Weft.Deadline (timeoutError, untilDeadline)
import Weft.Duration
import Weft.Pool.Books
import Weft.Scope (forkDaemon, withScope)
import Weft.Sys
  ( OwnRef,
    WordArray,
    addWord,
    forkGeneration,
    newOwnRef,
    newOwnWords,
    now,
    readOwnRef,
    readWord,
    updateOwnRef,
  )
import Weft.Timer (sleep, within)

-- | How resources are made, kept and destroyed. Begin with 'poolOf'.
data PoolSettings a = PoolSettings
  { -- | Make a resource, before the deadline of the one who needs it.
    poolCreate :: Instant -> IO a,
    -- | Destroy a resource. It runs masked. An 'IOError' is ignored. Another exception is thrown by the function that
    -- destroys the resource; for one that was idle for too long, it ends 'withPool'. The resource counts as destroyed, and
    -- the others are destroyed in any case.
    poolDestroy :: a -> IO (),
    -- | The most resources at a time, at least one.
    poolMost :: !Int,
    -- | An idle resource is destroyed after this time.
    poolIdleTime :: !Duration,
    -- | A resource is not used again when it is older than this. Each one's age is up to a tenth less, so that those
    -- that were made together are not all made again together.
    poolMaximalAge :: !Duration,
    -- | Whether a resource can be used again, before the deadline of the one who needs it; asked if it has been idle for
    -- 'poolValidateAfter'. An exception means that it cannot (asynchronous ones pass through, and the resource is
    -- destroyed).
    poolValidate :: Instant -> a -> IO Bool,
    poolValidateAfter :: !Duration
  }

-- | Settings from how to make and to destroy a resource: 16 of them, each idle for a minute and half an hour old at
-- most, and not validated.
poolOf :: (Instant -> IO a) -> (a -> IO ()) -> PoolSettings a
poolOf creating destroying =
  PoolSettings
    { poolCreate = creating,
      poolDestroy = destroying,
      poolMost = 16,
      poolIdleTime = seconds 60,
      poolMaximalAge = seconds 1800,
      poolValidate = \_ _ -> pure True,
      poolValidateAfter = milliseconds 500
    }

-- | A resource, and since when it is idle.
data Item a = Item {itemMade :: !(Made a), itemSince :: !Instant}

-- | A resource, when its life ends, and the process that has made it ('forkGeneration').
data Made a = Made {madeValue :: !a, madeEnd :: !Instant, madeGeneration :: !Int}

itemValue :: Item a -> a
itemValue = madeValue . itemMade

itemEnd :: Item a -> Instant
itemEnd = madeEnd . itemMade

-- | What a capability writes: its idle resources, the latest first, and how often one was taken from here by its own
-- threads and by others.
data Shelf a = Shelf {shelfItems :: ![Item a], shelfReused :: !Int, shelfBorrowed :: !Int}

-- | What one who waits is given.
data Grant a = Given !(Item a) | MayCreate | Closed

-- | A pool: what each process has of it.
newtype Pool a = Pool (PerProcess (Stock a))

-- | A pool, in one process.
--
-- One who gives an item back puts it on a shelf, then reads the attention and the books. One who waits raises the
-- attention, enters the line, and then looks at all shelves. Both write to the shelf, and these writes are in an order:
-- either the one who waits finds the item, or the one who gives finds him in line. The same holds for the end of the
-- pool, which raises the attention, closes the books and clears all shelves.
data Stock a = Stock
  { poolSettings :: !(PoolSettings a),
    -- | Written by threads of the capability, by those of others who find theirs empty, and by the sweeper.
    poolShelves :: !(Each (OwnRef (Shelf a))),
    -- | Not zero if somebody waits or the pool is closed. Raised by each one before he enters the line, and lowered
    -- after he is taken out of it, by who takes him out: never less than the number of those in line. Read by all who
    -- give back.
    poolAttention :: !WordArray,
    -- | Written when a resource is made or destroyed, and by those who wait.
    poolBooks :: !(IORef (Books (MVar (Grant a)))),
    poolTally :: !(IORef Tally)
  }

-- | Created, destroyed, waits and timeouts. Written where the books are.
data Tally = Tally !Int !Int !Int !Int

-- | The pool is closed, or is being closed.
data PoolClosed = PoolClosed
  deriving (Eq, Show)

instance Exception PoolClosed

-- | A resource in use.
newtype Lease a = Lease (Item a)

-- | The resource.
leased :: Lease a -> a
leased (Lease item) = itemValue item

-- | Run an action with a new pool, and close the pool at its end: idle resources are destroyed, those who wait get
-- 'PoolClosed', and a resource that is still in use is destroyed when it is given back. Threads of a "Weft.Scope" in
-- the action have ended by then.
withPool :: PoolSettings a -> (Pool a -> IO b) -> IO b
withPool settings act = bracket create end $ \stock -> withScope $ \scope -> do
  when (isSwept stock) (void (forkDaemon scope (sweeping stock)))
  newPerProcessFrom renewed stock >>= act . Pool
  where
    create = newStock settings {poolMost = max 1 (poolMost settings)} newBooks
    end pool = do
      attention pool 1
      waiting <- atomicModifyIORef' (poolBooks pool) close
      attention pool (negate (length waiting))
      mapM_ (`putMVar` Closed) waiting
      clear pool

newStock :: PoolSettings a -> Books (MVar (Grant a)) -> IO (Stock a)
newStock settings books =
  Stock settings
    <$> newEach (newOwnRef (Shelf [] 0 0))
    <*> newOwnWords 1
    <*> newIORef books
    <*> newIORef (Tally 0 0 0 0)

-- | That of a forked child, with a thread that sweeps it: that of 'withPool' is its parent's.
renewed :: Stock a -> IO (Stock a)
renewed inherited = do
  closed <- booksClosed <$> readIORef (poolBooks inherited)
  stock <- newStock (poolSettings inherited) (if closed then fst (close newBooks) else newBooks)
  -- Who gives back or waits looks at the books of a closed pool.
  when closed (attention stock 1)
  when (isSwept stock && not closed) $ do
    thread <- forkIOWithUnmask (\unmask -> unmask (sweeping stock))
    labelThread thread "weft pool"
  pure stock

-- | What a process has of the pool.
stockOf :: Pool a -> IO (Stock a)
stockOf (Pool stocks) = ofThisProcess stocks
{-# INLINE stockOf #-}

-- Using resources --------------------------------------------------------------------

-- | Use a resource, and give it back; if the action throws, destroy it. Throws what 'acquire' throws.
withResource :: Pool a -> Instant -> (a -> IO b) -> IO b
withResource pool deadline act = mask $ \restore -> do
  lease <- acquire pool deadline
  b <- restore (act (leased lease)) `onException` discard pool lease
  b <$ release pool lease

-- | Take a resource: an idle one, or a new one, or one that another thread gives back. Throws an error that satisfies
-- 'Weft.Transport.isTimeout' if it would have to wait beyond the deadline, 'PoolClosed', and what 'poolCreate' throws.
-- Give it back by 'release' or 'discard', once. To be called masked, as in a 'bracket'.
acquire :: Pool a -> Instant -> IO (Lease a)
acquire pools deadline = mask_ $ stockOf pools >>= \pool -> acquireFrom pool deadline

acquireFrom :: Stock a -> Instant -> IO (Lease a)
acquireFrom pool deadline = takeIdle pool >>= maybe enterLine (vetted pool deadline)
  where
    enterLine = do
      box <- newEmptyMVar
      attention pool 1
      entry <- atomicModifyIORef' (poolBooks pool) (enter (poolMost (poolSettings pool)) box)
      case entry of
        Shut -> attention pool (-1) >> throwIO PoolClosed
        Place -> attention pool (-1) >> make pool deadline
        InLine ticket -> do
          found <- takeIdle pool
          case found of
            Just item -> withdraw box ticket >> vetted pool deadline item
            Nothing -> do
              tally pool (Tally 0 0 1 0)
              wait box ticket
    wait box ticket = do
      left <- untilDeadline deadline
      granted <- within left (takeMVar box) `onException` withdraw box ticket
      case granted of
        Just grant -> accept grant
        Nothing -> do
          inLine <- leaveLine ticket
          if inLine
            then tally pool (Tally 0 0 0 1) >> ioError (timeoutError "Weft.Pool.acquire")
            else uninterruptibleMask_ (takeMVar box) >>= accept
    accept grant = case grant of
      Given item -> vetted pool deadline item
      MayCreate -> make pool deadline
      Closed -> throwIO PoolClosed
    leaveLine ticket = do
      inLine <- atomicModifyIORef' (poolBooks pool) (leave ticket)
      inLine <$ when inLine (attention pool (-1))
    -- Who was called already is given something, at once, and passes it on.
    withdraw box ticket = uninterruptibleMask_ $ do
      inLine <- leaveLine ticket
      unless inLine $ do
        grant <- takeMVar box
        case grant of
          Given item -> putIdle pool item
          MayCreate -> givePlace pool
          Closed -> pure ()

-- | Give a resource back.
release :: Pool a -> Lease a -> IO ()
release pools lease = mask_ . withOwn pools lease $ \pool item -> do
  t <- now
  if t >= itemEnd item then destroy pool item else putIdle pool item {itemSince = t}

-- | Destroy a resource instead of giving it back.
discard :: Pool a -> Lease a -> IO ()
discard pools lease = mask_ (withOwn pools lease destroy)

-- | Take a resource out of the pool, which neither destroys it nor counts it any more. Instead of 'release', once.
detach :: Pool a -> Lease a -> IO ()
detach pools lease = mask_ . withOwn pools lease $ \pool _ -> tally pool (Tally 0 1 0 0) >> givePlace pool

-- | Run an action with a resource that this process has made. One of the parent's has no place in the child's pool.
withOwn :: Pool a -> Lease a -> (Stock a -> Item a -> IO ()) -> IO ()
withOwn pools (Lease item) act = do
  generation <- forkGeneration
  when (madeGeneration (itemMade item) == generation) (stockOf pools >>= \pool -> act pool item)
{-# INLINE withOwn #-}

-- | Make a resource, with a place.
make :: Stock a -> Instant -> IO (Lease a)
make pool deadline = do
  a <- poolCreate (poolSettings pool) deadline `onException` givePlace pool
  t <- now
  tally pool (Tally 1 0 0 0)
  generation <- forkGeneration
  pure (Lease (Item (Made a (after (jittered t) t) generation) t))
  where
    jittered (Instant ns) = case poolMaximalAge (poolSettings pool) of
      Duration age
        | age == maxBound -> maxBound
        | otherwise -> Duration (age - age `div` 1000 * (ns `mod` 101))

-- | An idle resource that may be used again, or a new one in its place.
vetted :: Stock a -> Instant -> Item a -> IO (Lease a)
vetted pool deadline item = do
  t <- now
  case () of
    _
      | t >= itemEnd item || t >= after (poolIdleTime settings) (itemSince item) -> another
      | t < after (poolValidateAfter settings) (itemSince item) -> pure (Lease item)
      -- There is no time to ask, and nothing against it.
      | t >= deadline -> do
        putIdle pool item
        tally pool (Tally 0 0 0 1)
        ioError (timeoutError "Weft.Pool.acquire")
      | otherwise -> do
        fit <- (poolValidate settings deadline (itemValue item) `catch` unfit) `onException` destroy pool item
        if fit then pure (Lease item) else another
  where
    settings = poolSettings pool
    another = do
      destroyed pool item `onException` givePlace pool
      make pool deadline
    unfit e = case fromException e of
      Just (SomeAsyncException _) -> throwIO e
      Nothing -> pure False

-- | Destroy a resource, and give its place back.
destroy :: Stock a -> Item a -> IO ()
destroy pool item = destroyed pool item `finally` givePlace pool

destroyed :: Stock a -> Item a -> IO ()
destroyed pool item = do
  tally pool (Tally 0 1 0 0)
  poolDestroy (poolSettings pool) (itemValue item) `catch` \e -> const (pure ()) (e :: IOException)

givePlace :: Stock a -> IO ()
givePlace pool = do
  called <- atomicModifyIORef' (poolBooks pool) vacate
  forM_ called $ \box -> putMVar box MayCreate >> attention pool (-1)

tally :: Stock a -> Tally -> IO ()
tally pool (Tally a b c d) =
  atomicModifyIORef' (poolTally pool) (\(Tally w x y z) -> (Tally (w + a) (x + b) (y + c) (z + d), ()))

-- Shelves ----------------------------------------------------------------------------

-- | An idle resource: of this capability, or else of another one.
takeIdle :: Stock a -> IO (Maybe (Item a))
takeIdle pool = do
  mine <- own (poolShelves pool)
  found <- takeFrom (\shelf -> shelf {shelfReused = shelfReused shelf + 1}) mine
  case found of
    Just _ -> pure found
    Nothing -> everyOne (poolShelves pool) >>= others
  where
    others shelves = case shelves of
      [] -> pure Nothing
      shelf : rest -> do
        found <- takeFrom (\s -> s {shelfBorrowed = shelfBorrowed s + 1}) shelf
        maybe (others rest) (pure . Just) found

-- | Take the latest one, and count it. The shelf is written to even if it is empty: that orders this after what the
-- thread has done before, for all threads.
takeFrom :: (Shelf a -> Shelf a) -> OwnRef (Shelf a) -> IO (Maybe (Item a))
takeFrom count ref = do
  before <- updateOwnRef ref $ \shelf -> case shelfItems shelf of
    [] -> shelf
    _ : rest -> count shelf {shelfItems = rest}
  pure $ case shelfItems before of
    [] -> Nothing
    item : _ -> Just item

-- | Put a resource on this capability's shelf, and see to those who wait.
putIdle :: Stock a -> Item a -> IO ()
putIdle pool item = do
  mine <- own (poolShelves pool)
  put mine item
  where
    put mine i = do
      _ <- updateOwnRef mine (\shelf -> shelf {shelfItems = i : shelfItems shelf})
      someone <- readWord (poolAttention pool) 0
      when (someone /= 0) (attend mine)
    attend mine = do
      books <- readIORef (poolBooks pool)
      if booksClosed books
        then clear pool
        else unless (Map.null (booksWaiting books)) $ do
          found <- takeFrom id mine
          forM_ found $ \i -> do
            called <- atomicModifyIORef' (poolBooks pool) nextInLine
            case called of
              Just box -> putMVar box (Given i) >> attention pool (-1)
              -- Another one may have begun to wait while it was not on the shelf.
              Nothing -> put mine i

attention :: Stock a -> Int -> IO ()
attention pool n = void (addWord (poolAttention pool) 0 n)

-- | Whether time ends resources.
isSwept :: Stock a -> Bool
isSwept stock = shortestLife (poolSettings stock) < maxBound

shortestLife :: PoolSettings a -> Duration
shortestLife settings = min (poolIdleTime settings) (poolMaximalAge settings)

-- | The loop of the thread that destroys them.
sweeping :: Stock a -> IO ()
sweeping stock = forever (sleep (max (milliseconds 10) (quarter (shortestLife (poolSettings stock)))) >> sweep stock)
  where
    quarter (Duration ns) = Duration (ns `div` 4)

-- | Destroy idle resources whose time is over.
sweep :: Stock a -> IO ()
sweep pool = do
  t <- now
  let over item = t >= itemEnd item || t >= after (poolIdleTime (poolSettings pool)) (itemSince item)
  shelves <- everyOne (poolShelves pool)
  forM_ shelves $ \ref -> do
    shelf <- readOwnRef ref
    when (any over (shelfItems shelf)) (clearShelf pool over ref)

-- | Destroy all idle resources.
clear :: Stock a -> IO ()
clear pool = everyOne (poolShelves pool) >>= foldr (finally . clearShelf pool (const True)) (pure ())

-- | Destroy these resources of a shelf.
clearShelf :: Stock a -> (Item a -> Bool) -> OwnRef (Shelf a) -> IO ()
clearShelf pool which ref = mask_ $ do
  before <- updateOwnRef ref (\s -> s {shelfItems = filter (not . which) (shelfItems s)})
  foldr (finally . destroy pool) (pure ()) (filter which (shelfItems before))

-- Counts -----------------------------------------------------------------------------

-- | The state of a pool, and what has happened in it. The numbers are read one after the other.
data PoolCounts = PoolCounts
  { -- | Resources that exist, are being made or are being destroyed.
    countTotal :: !Int,
    countIdle :: !Int,
    -- | Threads that wait for a resource.
    countWaiting :: !Int,
    -- | How often an idle resource was taken by a thread of the capability where it was given back.
    countReused :: !Int,
    -- | How often one was taken by a thread of another capability.
    countBorrowed :: !Int,
    countCreated :: !Int,
    -- | Those that were taken out included.
    countDestroyed :: !Int,
    -- | How often a thread had to wait.
    countWaits :: !Int,
    -- | How often one waited until its deadline.
    countTimeouts :: !Int
  }
  deriving (Eq, Show)

-- | Read the counts.
poolCounts :: Pool a -> IO PoolCounts
poolCounts pools = do
  pool <- stockOf pools
  shelves <- everyOne (poolShelves pool) >>= mapM readOwnRef
  books <- readIORef (poolBooks pool)
  Tally created gone waits timeouts <- readIORef (poolTally pool)
  pure
    PoolCounts
      { countTotal = booksTaken books,
        countIdle = sum (map (length . shelfItems) shelves),
        countWaiting = Map.size (booksWaiting books),
        countReused = sum (map shelfReused shelves),
        countBorrowed = sum (map shelfBorrowed shelves),
        countCreated = created,
        countDestroyed = gone,
        countWaits = waits,
        countTimeouts = timeouts
      }
