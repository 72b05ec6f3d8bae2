-- |
-- Who is to be told about which descriptor: the registrations of callbacks, and
-- the channels. One registry is shared by all managers that serve one set of
-- descriptors (the dispatchers of a program share one), so that closing a
-- descriptor looks in one place, however many capabilities there are.
--
-- Registrations are striped by descriptor (2013, 3.2): a stripe's lock is held
-- over the change of its map and the system call that goes with it, so that both
-- happen in the same order. That lock is also what keeps a manager's back end in
-- being while it is used here: a manager that stops first says so, then passes
-- through every stripe ('abandon'), and only then closes its back end, and whoever
-- holds a stripe's lock looks whether the manager is alive before using it.
-- Channels are looked up without a lock.
--
-- Type parameter: the manager, of which this module knows only 'Host'.
module Weft.Core.Registry
  ( Registry,
    newRegistry,
    Host (..),

    -- * Callbacks
    Registration (..),
    Callback,
    Placed (..),
    register,
    unregister,
    dispatch,

    -- * Channels
    openChannel,
    attach,
    deliverTo,
    wakeChannels,

    -- * Both
    closeDescriptor,
    abandon,
    registeredCount,
  )
where

import Control.Monad (forM, forM_, unless, void, when)
import Data.Bits ((.&.))
import qualified Data.IntMap.Strict as IntMap
import Data.List (partition)
import System.Posix.Types (Fd)
import Weft.Core.Backend
import Weft.Core.Channel
import Weft.Core.Events
import Weft.Sys

-- | What the registry needs of a manager.
data Host m = Host
  { hostBackend :: m -> Backend,
    -- | May it be given registrations: is it of this process, and not stopped?
    hostAlive :: m -> IO Bool,
    hostSame :: m -> m -> Bool,
    -- | Make sure that it sees what was armed.
    hostNudge :: m -> IO ()
  }

-- | What is called, with the events that concern it.
type Callback = Events -> IO ()

-- | A registered callback.
data Registration = Registration
  { -- | Unique within the registry.
    registrationKey :: !Int,
    registrationEvents :: !Events,
    registrationLifetime :: !Lifetime,
    registrationCallback :: !Callback
  }

-- | The registrations of one descriptor; at least one.
data Entry m = Entry
  { -- | Of the last arming; an event with another is stale.
    entryGeneration :: !Int,
    -- | The manager whose kernel object the descriptor is armed in.
    entryManager :: !m,
    entryRegistrations :: [Registration]
  }

-- | A channel and the manager that reports its events.
data Slot m = Vacant | Attached !Channel !m

-- | The table. Stripes: under their locks. Slots: written under the lock of the
-- descriptor's stripe and 'slotsLock', read by anyone.
data Registry m = Registry
  { host :: !(Host m),
    stripes :: !(Slots (MVar (IntMap.IntMap (Entry m)))),
    slots :: !(Ref (Slots (Slot m))),
    slotsLock :: !(MVar ()),
    -- | Cell 0: generations and keys handed out. Cell 1: descriptors known.
    numbers :: !Cells
  }

stripeCount, firstSlots :: Int
stripeCount = 32
firstSlots = 256

-- | An empty one.
newRegistry :: Host m -> IO (Registry m)
newRegistry h = do
  locks <- newSlots stripeCount =<< newMVar IntMap.empty
  forM_ [0 .. stripeCount - 1] $ \i -> writeSlot locks i =<< newMVar IntMap.empty
  counts <- newCells 2
  -- A forked child starts its numbers elsewhere than its parent: it inherits
  -- channels that carry the parent's.
  generation <- forkGeneration
  writeCell counts 0 (generation * 0x1000000)
  Registry h locks <$> (newRef =<< newSlots firstSlots Vacant) <*> newMVar () <*> pure counts

stripe :: Registry m -> Fd -> IO (MVar (IntMap.IntMap (Entry m)))
stripe r fd = readSlot (stripes r) (fromIntegral fd .&. (stripeCount - 1))

nextNumber :: Registry m -> IO Int
nextNumber r = (.&. 0x3fffffff) <$> addCell (numbers r) 0 1

-- | How many descriptors have registrations or an attached channel.
registeredCount :: Registry m -> IO Int
registeredCount r = peekCell (numbers r) 1

known :: Registry m -> Int -> IO ()
known r n = void (addCell (numbers r) 1 n)

-- Callbacks --------------------------------------------------------------------

-- | What became of a registration.
data Placed
  = -- | Registered under this key.
    Placed !Int
  | -- | Not registered: the manager has been stopped.
    ManagerGone
  | -- | Not registered: the descriptor is always ready, and the caller is to run
    -- the callback itself, at once.
    Ready

-- | Register a callback for a descriptor with a manager, or with the manager that
-- has registrations of the descriptor already. O(log n) in the descriptors of a
-- stripe, one system call at most two. Throws what 'backendArm' throws, and has
-- then registered nothing.
register :: Registry m -> m -> Fd -> Events -> Lifetime -> (Int -> Callback) -> IO Placed
register r m fd evs lifetime callback = do
  lock <- stripe r fd
  key <- nextNumber r
  let reg = Registration key evs lifetime (callback key)
  modifyMVar lock $ \table -> do
    old <- livingEntry r table fd
    let home = maybe m entryManager old
        regs = reg : maybe [] entryRegistrations old
    alive <- hostAlive (host r) home
    if not alive
      then pure (table, ManagerGone)
      else do
        (gen, armed) <- armEntry r home fd regs
        case armed of
          AlwaysReady -> pure (table, Ready)
          Armed -> do
            when (null (maybe [] entryRegistrations old)) (known r 1)
            pure (IntMap.insert (fromIntegral fd) (Entry gen home regs) table, Placed key)

-- | The descriptor's entry, unless its manager is gone.
livingEntry :: Registry m -> IntMap.IntMap (Entry m) -> Fd -> IO (Maybe (Entry m))
livingEntry r table fd = case IntMap.lookup (fromIntegral fd) table of
  Nothing -> pure Nothing
  Just e -> do
    alive <- hostAlive (host r) (entryManager e)
    pure (if alive then Just e else Nothing)

-- | Tell the kernel what the registrations of a descriptor want. Under the
-- stripe's lock. Where a channel has the descriptor in the same kernel object its
-- standing registration serves: arming it again reports the present state.
armEntry :: Registry m -> m -> Fd -> [Registration] -> IO (Int, Armed)
armEntry r m fd regs = do
  gen <- nextNumber r
  slot <- lookupSlot r fd
  let h = host r
      backend = hostBackend h m
  armed <- case slot of
    Attached ch m' | hostSame h m m' -> do
      setShared ch
      backendArm backend fd (channelToken fd (channelGeneration ch)) Edge channelEvents
    _ -> backendArm backend fd (tableToken fd gen) trigger (foldMap registrationEvents regs)
  when (backendDeferred backend && armed == Armed) (hostNudge h m)
  pure (gen, armed)
  where
    trigger = if any ((== MultiShot) . registrationLifetime) regs then Level else Once

-- | Take a registration back; 'False' when it had fired or was taken back
-- already. Afterwards its callback is not started any more, though one that the
-- dispatcher has begun may still be running.
unregister :: Registry m -> Fd -> Int -> IO Bool
unregister r fd key = do
  lock <- stripe r fd
  modifyMVar lock $ \table -> case IntMap.lookup (fromIntegral fd) table of
    Just e | (gone@(_ : _), kept) <- partition ((== key) . registrationKey) (entryRegistrations e) -> do
      table' <- settle r table fd e kept (any ((== MultiShot) . registrationLifetime) gone)
      pure (table', True)
    _ -> pure (table, False)

-- | Store what is left of an entry, and make the kernel agree: with nothing left
-- an armed descriptor is forgotten, with something left it is armed anew when
-- that is needed.
settle ::
  Registry m ->
  IntMap.IntMap (Entry m) ->
  Fd ->
  Entry m ->
  [Registration] ->
  Bool ->
  IO (IntMap.IntMap (Entry m))
settle r table fd e kept rearm
  | null kept = do
    known r (-1)
    alive <- hostAlive (host r) (entryManager e)
    shared <- sharesChannel r fd (entryManager e)
    when (alive && not shared) (forget r (entryManager e) fd)
    pure (IntMap.delete (fromIntegral fd) table)
  | rearm = do
    (gen, _) <- armEntry r (entryManager e) fd kept
    pure (IntMap.insert (fromIntegral fd) e {entryGeneration = gen, entryRegistrations = kept} table)
  | otherwise = pure (IntMap.insert (fromIntegral fd) e {entryRegistrations = kept} table)

sharesChannel :: Registry m -> Fd -> m -> IO Bool
sharesChannel r fd m = do
  slot <- lookupSlot r fd
  pure $ case slot of
    Attached _ m' -> hostSame (host r) m m'
    Vacant -> False

-- | An event for the table: run the callbacks that it concerns. On the manager's
-- thread. One-shot registrations are gone before their callback runs. With a
-- generation, a stale event does nothing.
dispatch :: Registry m -> Fd -> Maybe Int -> Events -> IO ()
dispatch r fd gen evs = do
  lock <- stripe r fd
  due <- modifyMVar lock $ \table -> case IntMap.lookup (fromIntegral fd) table of
    Just e | maybe True (== entryGeneration e) gen -> do
      let (due, others) = partition concerned (entryRegistrations e)
          kept = filter ((== MultiShot) . registrationLifetime) due <> others
      shared <- sharesChannel r fd (entryManager e)
      table' <-
        if null kept
          then IntMap.delete (fromIntegral fd) table <$ known r (-1)
          else settle r table fd e kept (shared || needsArming due kept)
      pure (table', due)
    _ -> pure (table, [])
  forM_ due $ \reg ->
    guarded (registrationCallback reg (evs `common` (registrationEvents reg <> always)))
  where
    always = evtHangup <> evtClose
    concerned reg = evs `overlaps` (registrationEvents reg <> always)
    -- What the kernel was asked for has been used up when only one-shots are left,
    -- and is too much when a level-triggered request included one that is done.
    needsArming due kept = any oneShot due || all oneShot kept
    oneShot = (== OneShot) . registrationLifetime

-- Channels -----------------------------------------------------------------------

-- | All that a channel wants to hear of.
channelEvents :: Events
channelEvents = evtRead <> evtWrite <> evtPeerClosed <> evtUrgent

-- | A channel for a descriptor, known to no manager yet.
openChannel :: Registry m -> Fd -> IO Channel
openChannel r fd = newChannel fd =<< nextNumber r

-- | Have a manager report a channel's events from now on, beginning with the
-- present state. The caller is inside the channel ('enter'). One system call.
-- When another manager does it already nothing is changed. Returns the manager
-- that serves it; 'Nothing' when the one given has been stopped.
attach :: Registry m -> m -> Channel -> IO (Maybe m)
attach r m ch = do
  lock <- stripe r fd
  withMVar lock $ \table -> do
    slot <- lookupSlot r fd
    current <- case slot of
      Attached ch' m' | channelGeneration ch' == channelGeneration ch -> do
        alive <- hostAlive (host r) m'
        pure (if alive then Just m' else Nothing)
      _ -> pure Nothing
    alive <- hostAlive (host r) m
    case current of
      Just _ -> pure current
      Nothing | not alive -> pure Nothing
      Nothing -> do
        let backend = hostBackend (host r) m
        when (IntMap.member (fromIntegral fd) table) (setShared ch)
        setSlot r fd (Attached ch m)
        void (backendArm backend fd (channelToken fd (channelGeneration ch)) Edge channelEvents)
          `onException` setSlot r fd Vacant
        when (backendDeferred backend) (hostNudge (host r) m)
        case slot of
          Vacant -> known r 1
          Attached _ _ -> pure ()
        pure (Just m)
  where
    fd = channelFd ch

-- | An event for a channel. On a manager's thread. Without a lock.
deliverTo :: Registry m -> Token -> Events -> IO ()
deliverTo r tok evs = do
  slot <- lookupSlot r fd
  case slot of
    Attached ch _ | channelGeneration ch == tokenGeneration tok -> do
      deliver ch evs
      shared <- isShared ch
      when shared (dispatch r fd Nothing evs)
    _ -> pure ()
  where
    fd = tokenFd tok
{-# INLINE deliverTo #-}

-- | Let every channel's waiters try again, and find a living manager.
wakeChannels :: Registry m -> IO ()
wakeChannels r = do
  arr <- readRef (slots r)
  forM_ [0 .. sizeSlots arr - 1] $ \i -> do
    slot <- readSlot arr i
    case slot of
      Attached ch _ -> wakeAll ch
      Vacant -> pure ()

lookupSlot :: Registry m -> Fd -> IO (Slot m)
lookupSlot r fd = do
  arr <- readRef (slots r)
  let i = fromIntegral fd
  if i >= 0 && i < sizeSlots arr then readSlot arr i else pure Vacant
{-# INLINE lookupSlot #-}

setSlot :: Registry m -> Fd -> Slot m -> IO ()
setSlot r fd slot = withMVar (slotsLock r) $ \() -> do
  arr <- readRef (slots r)
  let i = fromIntegral fd
  if i < sizeSlots arr
    then writeSlot arr i slot
    else do
      bigger <- newSlots (max (2 * sizeSlots arr) (i + 1)) Vacant
      copySlots arr bigger
      writeSlot bigger i slot
      writeRef (slots r) bigger

-- Both -----------------------------------------------------------------------------

-- | Close a descriptor: nobody can register it meanwhile; its registrations and
-- its channel go, in the kernel too; then the given action closes it; then the
-- callbacks run with 'evtClose'. O(log n), independent of how many managers
-- there are. What the action throws is thrown at the end.
closeDescriptor :: Registry m -> Fd -> IO a -> IO a
closeDescriptor r fd close = do
  lock <- stripe r fd
  told <- newRef []
  result <-
    modifyMVar lock (retire told)
      `finally` (readRef told >>= mapM_ (\reg -> guarded (registrationCallback reg evtClose)))
  result
  where
    retire told table = do
      let entry = IntMap.lookup (fromIntegral fd) table
      slot <- lookupSlot r fd
      forM_ entry $ \e -> do
        writeRef told (entryRegistrations e)
        known r (-1)
        retired (entryManager e)
      case slot of
        Attached ch m -> do
          disown ch
          setSlot r fd Vacant
          known r (-1)
          unless (any (hostSame (host r) m . entryManager) entry) (retired m)
        Vacant -> pure ()
      -- A close that fails must not bring the registrations back, so its outcome
      -- is carried out of the lock as a value.
      outcome <- attempt close
      pure (IntMap.delete (fromIntegral fd) table, outcome)
    retired m = do
      alive <- hostAlive (host r) m
      when alive (forget r m fd)

-- | Have a living manager's back end forget a descriptor.
forget :: Registry m -> m -> Fd -> IO ()
forget r = backendForget . hostBackend (host r)

-- | A manager is gone: take out its registrations and return them, for their
-- callbacks to be told.
abandon :: Registry m -> m -> IO [Registration]
abandon r m = fmap concat . forM [0 .. stripeCount - 1] $ \i -> do
  lock <- readSlot (stripes r) i
  modifyMVar lock $ \table -> do
    let (gone, kept) = IntMap.partition (hostSame (host r) m . entryManager) table
    known r (negate (IntMap.size gone))
    pure (kept, concatMap entryRegistrations (IntMap.elems gone))
