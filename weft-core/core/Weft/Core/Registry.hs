-- |
-- Who is to be told about which descriptor: the registrations of callbacks, and
-- the tracked descriptors. One registry is shared by all managers that serve one set of
-- descriptors (the dispatchers of a program share one), so that closing a
-- descriptor looks in one place, however many capabilities there are.
--
-- Registrations are striped by descriptor (2013, 3.2): a stripe's lock is held
-- over the change of its map and the system call that goes with it, so that both
-- happen in the same order. That lock is also what keeps a manager's back end in
-- being while it is used here: a manager that stops first says so, then passes
-- through every stripe ('abandon'), and only then closes its back end, and whoever
-- holds a stripe's lock looks whether the manager is alive before using it. The action that closes a descriptor, which is the
-- caller's and may block, runs outside of the lock: the dispatchers need that. Meanwhile
-- the descriptor is marked, and whoever wants to use it waits for the end.
-- Tracked descriptors are looked up without a lock.
--
-- Type parameter: the manager, of which this module knows only 'ManagerOps'.
module Weft.Core.Registry
  ( Registry,
    newRegistry,
    ManagerOps (..),

    -- * Callbacks
    Registration (..),
    Callback,
    Placed (..),
    register,
    unregister,
    dispatch,

    -- * Tracked descriptors
    trackReadiness,
    attach,
    Attachment (..),
    deliverTo,
    wakeReadiness,

    -- * Both
    closeRegistered,
    reserve,
    unreserve,
    abandon,
    registeredCount,
  )
where

import Control.Monad (forM, forM_, unless, void, when)
import Data.Bits ((.&.))
import qualified Data.IntMap.Strict as IntMap
import Data.List (partition)
import Data.Maybe (isJust)
import Foreign.C.Error (eBADF, errnoToIOError)
import System.Posix.Types (Fd)
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Readiness
import Weft.Sys

-- | What the registry needs of a manager.
data ManagerOps m = ManagerOps
  { opsBackend :: m -> Backend,
    -- | May it be given registrations: is it of this process, and not stopped?
    opsAlive :: m -> IO Bool,
    opsSame :: m -> m -> Bool,
    -- | Make sure that it sees what was armed.
    opsWake :: m -> IO (),
    -- | It reports the events of so many descriptors more, or fewer.
    opsCount :: m -> Int -> IO ()
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

-- | What a stripe knows of a descriptor.
data Known m
  = Registered !(Entry m)
  | -- | It is being closed; full when that is over.
    Closing !(MVar ())
  | -- | A manager's own descriptor ('reserve').
    Reserved

-- | The registrations of one descriptor; at least one.
data Entry m = Entry
  { -- | Of the last arming; an event with another is stale.
    entryGeneration :: !Int,
    -- | The manager whose kernel object the descriptor is armed in.
    entryManager :: !m,
    entryRegistrations :: [Registration]
  }

-- | A tracked descriptor and the manager that reports its events.
data Slot m = Vacant | Attached !Readiness !m

-- | The table. Stripes: under their locks. BoxedArray: written under the lock of the
-- descriptor's stripe and 'slotsLock', read by anyone.
data Registry m = Registry
  { host :: !(ManagerOps m),
    stripes :: !(BoxedArray (MVar (IntMap.IntMap (Known m)))),
    slots :: !(Ref (BoxedArray (Slot m))),
    slotsLock :: !(MVar ()),
    -- | Word 0: generations and keys handed out. Word 1: descriptors known.
    numbers :: !AtomicWords
  }

stripeCount, firstSlots :: Int
stripeCount = 32
firstSlots = 256

-- | An empty one.
newRegistry :: ManagerOps m -> IO (Registry m)
newRegistry h = do
  locks <- newBoxedArray stripeCount =<< newMVar IntMap.empty
  forM_ [0 .. stripeCount - 1] $ \i -> writeBoxedArray locks i =<< newMVar IntMap.empty
  counts <- newAtomicWords 2
  -- A forked child starts its numbers elsewhere than its parent: it inherits
  -- tracked descriptors that carry the parent's.
  generation <- forkGeneration
  writeWord counts 0 (generation * 0x1000000)
  Registry h locks <$> (newRef =<< newBoxedArray firstSlots Vacant) <*> newMVar () <*> pure counts

stripe :: Registry m -> Fd -> IO (MVar (IntMap.IntMap (Known m)))
stripe r fd = readBoxedArray (stripes r) (fromIntegral fd .&. (stripeCount - 1))

nextNumber :: Registry m -> IO Int
nextNumber r = (.&. 0x3fffffff) <$> addWord (numbers r) 0 1

-- | How many descriptors have registrations or an attached tracked descriptor.
registeredCount :: Registry m -> IO Int
registeredCount r = peekWord (numbers r) 1

-- | So many more, or fewer, are known, and reported by that manager.
known :: Registry m -> m -> Int -> IO ()
known r m n = void (addWord (numbers r) 1 n) >> opsCount (host r) m n

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
  outcome <- modifyMVar lock $ \table -> case IntMap.lookup (fromIntegral fd) table of
    Just (Closing over) -> pure (table, Left over)
    Just Reserved -> notOpen "register"
    Just (Registered e) -> do
      alive <- opsAlive (host r) (entryManager e)
      place table reg (if alive then Just e else Nothing)
    Nothing -> place table reg Nothing
  either (\over -> readMVar over >> register r m fd evs lifetime callback) pure outcome
  where
    -- With the descriptor's entry, unless its manager is gone.
    place table reg old = do
      let serving = maybe m entryManager old
          regs = reg : maybe [] entryRegistrations old
      alive <- opsAlive (host r) serving
      if not alive
        then pure (table, Right ManagerGone)
        else do
          (gen, armed) <- armEntry r serving fd regs
          case armed of
            AlwaysReady -> pure (table, Right Ready)
            Armed -> do
              when (null (maybe [] entryRegistrations old)) (known r serving 1)
              pure (inserted fd (Entry gen serving regs) table, Right (Placed (registrationKey reg)))

inserted :: Fd -> Entry m -> IntMap.IntMap (Known m) -> IntMap.IntMap (Known m)
inserted fd = IntMap.insert (fromIntegral fd) . Registered

-- | Tell the kernel what the registrations of a descriptor want. Under the
-- stripe's lock. Where a tracked descriptor has the descriptor in the same kernel object its
-- standing registration serves: arming it again reports the present state.
armEntry :: Registry m -> m -> Fd -> [Registration] -> IO (Int, Armed)
armEntry r m fd regs = do
  gen <- nextNumber r
  slot <- lookupSlot r fd
  let h = host r
      backend = opsBackend h m
  armed <- case slot of
    Attached rd m' | opsSame h m m' -> do
      setShared rd
      backendArm backend fd (readinessToken fd (readinessGeneration rd)) Edge readinessEvents
    _ -> backendArm backend fd (tableToken fd gen) trigger (foldMap registrationEvents regs)
  when (backendDeferred backend && armed == Armed) (opsWake h m)
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
    Just (Registered e) | (gone@(_ : _), kept) <- partition ((== key) . registrationKey) (entryRegistrations e) -> do
      table' <- settle r table fd e kept (any ((== MultiShot) . registrationLifetime) gone)
      pure (table', True)
    _ -> pure (table, False)

-- | Store what is left of an entry, and make the kernel agree: with nothing left
-- an armed descriptor is forgotten, with something left it is armed anew when
-- that is needed.
settle ::
  Registry m ->
  IntMap.IntMap (Known m) ->
  Fd ->
  Entry m ->
  [Registration] ->
  Bool ->
  IO (IntMap.IntMap (Known m))
settle r table fd e kept rearm
  | null kept = do
    known r (entryManager e) (-1)
    alive <- opsAlive (host r) (entryManager e)
    shared <- sharesReadiness r fd (entryManager e)
    when (alive && not shared) (forget r (entryManager e) fd)
    pure (IntMap.delete (fromIntegral fd) table)
  | rearm = do
    (gen, _) <- armEntry r (entryManager e) fd kept
    pure (inserted fd e {entryGeneration = gen, entryRegistrations = kept} table)
  | otherwise = pure (inserted fd e {entryRegistrations = kept} table)

sharesReadiness :: Registry m -> Fd -> m -> IO Bool
sharesReadiness r fd m = do
  slot <- lookupSlot r fd
  pure $ case slot of
    Attached _ m' -> opsSame (host r) m m'
    Vacant -> False

-- | An event for the table: run the callbacks that it concerns. On the manager's
-- thread. One-shot registrations are gone before their callback runs. With a
-- generation, a stale event does nothing.
dispatch :: Registry m -> Fd -> Maybe Int -> Events -> IO ()
dispatch r fd gen evs = do
  lock <- stripe r fd
  due <- modifyMVar lock $ \table -> case IntMap.lookup (fromIntegral fd) table of
    Just (Registered e) | maybe True (== entryGeneration e) gen -> do
      let (due, others) = partition concerned (entryRegistrations e)
          kept = filter ((== MultiShot) . registrationLifetime) due <> others
      shared <- sharesReadiness r fd (entryManager e)
      table' <-
        if null kept
          then IntMap.delete (fromIntegral fd) table <$ known r (entryManager e) (-1)
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

-- Tracked descriptors -----------------------------------------------------------------------

-- | All that a tracked descriptor wants to hear of.
readinessEvents :: Events
readinessEvents = evtRead <> evtWrite <> evtPeerClosed <> evtUrgent

-- | A tracked descriptor for a descriptor, known to no manager yet.
trackReadiness :: Registry m -> Fd -> IO Readiness
trackReadiness r fd = newReadiness fd =<< nextNumber r

-- | What became of 'attach'.
data Attachment m
  = -- | The manager that reports the events.
    Serving !m
  | -- | Nothing: the manager given has been stopped.
    ManagerStopped
  | -- | Nothing: the number is being closed, until this is full.
    BeingClosed !(MVar ())

-- | Have a manager report a descriptor's events from now on, beginning with the
-- present state. The caller is inside the tracked descriptor ('acquire'). One system call.
-- When another manager does it already nothing is changed. Throws nothing: what it would throw the action does that is returned.
--
-- It is called once in the life of a connection, but where its stack is deepest: one handler, or a thread's first stack, of 1 KiB, does
-- not suffice, and then all that it holds moves to the next, of 32, for good.
attach :: Registry m -> m -> Readiness -> IO (IO (Attachment m))
attach r m rd = uninterruptibleMask_ $ do
  lock <- stripe r fd
  table <- takeMVar lock
  outcome <- attempt (attachIn (IntMap.lookup (fromIntegral fd) table))
  outcome <$ putMVar lock table
  where
    fd = readinessFd rd
    attachIn known' = case known' of
      Just (Closing over) -> pure (BeingClosed over)
      Just Reserved -> notOpen "attach"
      found -> attachBeside (isJust found)
    attachBeside registered = do
      slot <- lookupSlot r fd
      current <- case slot of
        Attached rd' m' | readinessGeneration rd' == readinessGeneration rd -> do
          alive <- opsAlive (host r) m'
          pure (if alive then Just m' else Nothing)
        _ -> pure Nothing
      alive <- opsAlive (host r) m
      case current of
        Just serving -> pure (Serving serving)
        Nothing | not alive -> pure ManagerStopped
        Nothing -> do
          let backend = opsBackend (host r) m
          when registered (setShared rd)
          setSlot r fd (Attached rd m)
          void (backendArm backend fd (readinessToken fd (readinessGeneration rd)) Edge readinessEvents)
            `onException` setSlot r fd Vacant
          when (backendDeferred backend) (opsWake (host r) m)
          case slot of
            Vacant -> known r m 1
            Attached _ gone -> opsCount (host r) gone (-1) >> opsCount (host r) m 1
          pure (Serving m)

-- | An event for a tracked descriptor, with its stamp. On a manager's thread. Without a lock.
deliverTo :: Registry m -> Stamp -> Token -> Events -> IO ()
deliverTo r stamp tok evs = do
  slot <- lookupSlot r fd
  case slot of
    Attached rd _ | readinessGeneration rd == tokenGeneration tok -> do
      deliver rd stamp evs
      shared <- isShared rd
      when shared (dispatch r fd Nothing evs)
    _ -> pure ()
  where
    fd = tokenFd tok
{-# INLINE deliverTo #-}

-- | Let every tracked descriptor's waiters try again, and find a living manager.
wakeReadiness :: Registry m -> IO ()
wakeReadiness r = do
  arr <- readRef (slots r)
  forM_ [0 .. sizeBoxedArray arr - 1] $ \i -> do
    slot <- readBoxedArray arr i
    case slot of
      Attached rd _ -> wakeAll rd
      Vacant -> pure ()

lookupSlot :: Registry m -> Fd -> IO (Slot m)
lookupSlot r fd = do
  arr <- readRef (slots r)
  let i = fromIntegral fd
  if i >= 0 && i < sizeBoxedArray arr then readBoxedArray arr i else pure Vacant
{-# INLINE lookupSlot #-}

-- | Masked; nothing in it throws.
setSlot :: Registry m -> Fd -> Slot m -> IO ()
setSlot r fd slot = do
  takeMVar (slotsLock r)
  arr <- readRef (slots r)
  let i = fromIntegral fd
  if i < sizeBoxedArray arr
    then writeBoxedArray arr i slot
    else do
      bigger <- newBoxedArray (max (2 * sizeBoxedArray arr) (i + 1)) Vacant
      copyBoxedArray arr bigger
      writeBoxedArray bigger i slot
      writeRef (slots r) bigger
  putMVar (slotsLock r) ()

-- Both -----------------------------------------------------------------------------

-- | Close a descriptor: nobody can register it meanwhile; its registrations and
-- its tracked descriptor go, in the kernel too; then the given action, masked, closes it; then the
-- callbacks run with 'evtClose'. O(log n), independent of how many managers
-- there are. What the action throws is thrown at the end. The action may use other descriptors; it may block, and then those wait
-- who want to register or close this one. For a reserved number the action is not run: the program closed its own
-- descriptor of that number before (@EBADF@).
closeRegistered :: Registry m -> Fd -> IO a -> IO a
closeRegistered r fd = retire r fd (notOpen "close") Nothing

-- | From now on these numbers are a manager's own descriptors. The program may have closed one of
-- them just before the manager opened it, and a thread may still wait for the number, or begin to: all
-- of them get @EBADF@, or 'evtClose', as if the number were free.
reserve :: Registry m -> [Fd] -> IO ()
reserve r = mapM_ (\fd -> retire r fd (pure ()) (Just Reserved) (pure ()))

-- | The manager is about to close them.
unreserve :: Registry m -> [Fd] -> IO ()
unreserve r fds = forM_ fds $ \fd -> do
  lock <- stripe r fd
  modifyMVar_ lock (pure . IntMap.delete (fromIntegral fd))

-- | Take out what is known of a number and run an action outside of the stripe's lock; what is known afterwards is the second
-- to last argument. A number that is reserved already gets the first action instead.
retire :: Registry m -> Fd -> IO a -> Maybe (Known m) -> IO a -> IO a
retire r fd refused next close = mask_ $ do
  lock <- stripe r fd
  over <- newEmptyMVar
  begun <- uninterruptibleMask_ (modifyMVar lock (takeOut over))
  case begun of
    Left (Just earlier) -> readMVar earlier >> retire r fd refused next close
    Left Nothing -> refused
    Right told -> do
      -- A close that fails must not bring the registrations back, so its outcome is a value until the end.
      outcome <- attempt close
      uninterruptibleMask_ $ do
        modifyMVar_ lock (pure . IntMap.alter (const next) (fromIntegral fd))
        putMVar over ()
      forM_ told $ \reg -> guarded (registrationCallback reg evtClose)
      outcome
  where
    takeOut over table = case IntMap.lookup (fromIntegral fd) table of
      Just (Closing earlier) -> pure (table, Left (Just earlier))
      Just Reserved -> pure (table, Left Nothing)
      Just (Registered e) -> do
        known r (entryManager e) (-1)
        retired (entryManager e)
        dropReadiness (Just e)
        pure (marked, Right (entryRegistrations e))
      Nothing -> (marked, Right []) <$ dropReadiness Nothing
      where
        marked = IntMap.insert (fromIntegral fd) (Closing over) table
    dropReadiness entry = do
      slot <- lookupSlot r fd
      case slot of
        Attached rd m -> do
          disown rd
          setSlot r fd Vacant
          known r m (-1)
          unless (any (opsSame (host r) m . entryManager) entry) (retired m)
        Vacant -> pure ()
    retired m = do
      alive <- opsAlive (host r) m
      when alive (forget r m fd)

-- | The error for a number that is not the program's.
notOpen :: String -> IO a
notOpen loc = ioError (errnoToIOError loc eBADF Nothing Nothing)

-- | Have a living manager's back end forget a descriptor.
forget :: Registry m -> m -> Fd -> IO ()
forget r = backendForget . opsBackend (host r)

-- | A manager is gone: take out its registrations and return them, for their
-- callbacks to be told.
abandon :: Registry m -> m -> IO [Registration]
abandon r m = fmap concat . forM [0 .. stripeCount - 1] $ \i -> do
  lock <- readBoxedArray (stripes r) i
  modifyMVar lock $ \table -> do
    let (gone, kept) = IntMap.partition ofManager table
    known r m (negate (IntMap.size gone))
    pure (kept, concat [entryRegistrations e | Registered e <- IntMap.elems gone])
  where
    ofManager (Registered e) = opsSame (host r) m (entryManager e)
    ofManager _ = False
