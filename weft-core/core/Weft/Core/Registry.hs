-- |
-- The registry: for each descriptor, the callbacks that are registered for its events, or the state of a tracked
-- descriptor ("Weft.Core.Readiness"). All managers of one set of descriptors share one registry (the dispatchers of a
-- program do), so closing a descriptor looks in one place, however many capabilities there are.
--
-- Registrations are striped by descriptor (Voellmy and others 2013, 3.2). A stripe's lock is held over the change of
-- its map and the system call that goes with it, so that both happen in the same order. The lock also keeps a manager's
-- back end open while it is used here: a manager that stops changes its state first, then takes every stripe's lock
-- once ('takeRegistrations'), and only then closes its back end; and a thread that holds a stripe's lock checks the
-- manager's state before it uses the back end.
--
-- The caller's action that closes a descriptor may block, and runs outside of the lock, since the dispatchers need the
-- lock. Meanwhile the descriptor is marked, and threads that want to register or close it wait. Tracked descriptors are
-- looked up without a lock.
--
-- Type parameter: the manager, of which this module knows only 'ManagerOps'.
module Weft.Core.Registry
  ( Registry,
    newRegistry,
    ManagerOps (..),

    -- * Callbacks
    Registration (..),
    Callback,
    runWith,
    unwatched,
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
    reserving,
    releasing,
    takeRegistrations,
    registeredCount,
  )
where

import Control.Monad (forM, forM_, void, when)
import qualified Data.IntMap.Strict as IntMap
import qualified Data.IntSet as IntSet
import Data.List (partition)
import Data.Maybe (isJust)
import Foreign.C.Error (eBADF, errnoToIOError)
import System.Posix.Types (Fd)
import Weft.Core.Backend
import Weft.Core.Boundary (guarded)
import Weft.Core.Events
import Weft.Core.Readiness
import Weft.Core.Registry.Table
import Weft.Sys

-- Callbacks --------------------------------------------------------------------

-- | The result of 'register'.
data Placed
  = -- | Registered under this key.
    Placed !Int
  | -- | Not registered: the manager has been stopped.
    ManagerGone
  | -- | Not registered: the descriptor is always ready. The caller has to run
    -- the callback itself, at once.
    Ready

-- | Register a callback for a descriptor, with the given manager or with the one that
-- has registrations of the descriptor already. O(log n) in the descriptors of a
-- stripe; one system call, at most two. Throws what 'backendArm' throws; nothing is
-- registered then.
register :: Registry m -> m -> Fd -> Events -> Lifetime -> (Int -> Callback) -> IO Placed
register r m fd evs lifetime callback = do
  lock <- stripe r fd
  key <- nextNumber r
  let reg = Registration key evs lifetime (callback key)
  -- An exception between the kernel's registration and the table's entry would leave the descriptor armed under a
  -- number that the table does not have, and its other registrations without events.
  outcome <- uninterruptibleMask_ . modifyMVar lock $ \table -> case IntMap.lookup (fromIntegral fd) table of
    Just (Closing over) -> pure (table, Left over)
    Just Reserved -> notOpen "register"
    Just (Registered e) -> do
      alive <- opsAlive (managerOps r) (entryManager e)
      place table reg (if alive then entryManager e else m) (Just e)
    Nothing -> place table reg m Nothing
  either (\over -> readMVar over >> register r m fd evs lifetime callback) pure outcome
  where
    -- The last arguments are the manager that is to serve the descriptor, and its entry. If the entry's manager is
    -- about to stop, the other one takes its registrations over; a manager that stops finds only those in the table.
    place table reg serving old = do
      let regs = reg : maybe [] entryRegistrations old
      alive <- opsAlive (managerOps r) serving
      if not alive
        then pure (table, Right ManagerGone)
        else do
          (gen, armed) <- armEntry r serving fd regs
          case armed of
            AlwaysReady -> pure (table, Right Ready)
            Armed -> do
              case old of
                Just e | opsSame (managerOps r) (entryManager e) serving -> pure ()
                _ -> mapM_ (\e -> countDescriptors r (entryManager e) (-1)) old >> countDescriptors r serving 1
              pure (inserted fd (Entry gen serving regs (maybe [] entryDue old)) table, Right (Placed (registrationKey reg)))

-- | Arm a descriptor in the kernel for its registrations. Under the
-- stripe's lock. If the descriptor is also tracked, with the same manager, its
-- existing kernel registration is armed again, which reports the present state.
armEntry :: Registry m -> m -> Fd -> [Registration] -> IO (Int, Armed)
armEntry r m fd regs = do
  gen <- nextNumber r
  slot <- lookupSlot r fd
  let h = managerOps r
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

-- | Remove a registration. 'False' if it was removed already, or is a one-shot whose callback has begun. Afterwards its
-- callback is not begun any more; if the dispatcher has begun it, it may be at any point. If the kernel refuses the
-- descriptor's other registrations now, as 'dispatch' says, their callbacks run on the calling thread.
unregister :: Registry m -> Fd -> Int -> IO Bool
unregister r fd key = do
  lock <- stripe r fd
  (found, refused) <- uninterruptibleMask_ . modifyMVar lock $ \table -> case IntMap.lookup (fromIntegral fd) table of
    Just (Registered e) | (gone@(_ : _), kept) <- partition ((== key) . registrationKey) (entryRegistrations e) -> do
      (table', refused) <- reconcile r table fd e kept (any ((== MultiShot) . registrationLifetime) gone)
      pure (table', (True, refused))
    Just (Registered e) | (_ : _, due) <- partition ((== key) . registrationKey) (entryDue e) -> do
      table' <- store r fd e {entryDue = due} table
      pure (table', (True, []))
    _ -> pure (table, (False, []))
  found <$ mapM_ (`runWith` unwatched) refused

-- | Store the registrations that are left of an entry, and make the kernel agree: if none is left, the back end forgets
-- the descriptor; otherwise it is armed again if the last argument says so. If the kernel refuses that, the entry is
-- removed; returns its registrations, whose callbacks have to be run with 'unwatched'.
reconcile ::
  Registry m ->
  IntMap.IntMap (Known m) ->
  Fd ->
  Entry m ->
  [Registration] ->
  Bool ->
  IO (IntMap.IntMap (Known m), [Registration])
reconcile r table fd e kept rearm
  | null kept = do
    alive <- opsAlive (managerOps r) (entryManager e)
    shared <- sharesReadiness r fd (entryManager e)
    when (alive && not shared) (void (forget r (entryManager e) fd))
    keeping (store r fd e {entryRegistrations = []} table)
  | rearm = do
    armed <- tryAll (armEntry r (entryManager e) fd kept)
    case armed of
      Right (gen, Armed) -> keeping (pure (inserted fd e {entryGeneration = gen, entryRegistrations = kept} table))
      -- The number belongs to another file by now, which no event will be reported for.
      Right (_, AlwaysReady) -> refusing
      Left _ -> refusing
  | otherwise = keeping (pure (inserted fd e {entryRegistrations = kept} table))
  where
    keeping = fmap (\table' -> (table', []))
    refusing = (\table' -> (table', kept)) <$> store r fd e {entryRegistrations = []} table

-- | Run a registration's callback.
runWith :: Registration -> Events -> IO ()
runWith reg evs = guarded (registrationCallback reg evs)

-- | What a callback gets if its descriptor is not watched any more, although it may be open: a thread that waits tries
-- again, and gets the kernel's own error.
unwatched :: Events
unwatched = evtClose <> evtOrphaned

sharesReadiness :: Registry m -> Fd -> m -> IO Bool
sharesReadiness r fd m = do
  slot <- lookupSlot r fd
  pure $ case slot of
    Attached _ m' -> opsSame (managerOps r) m m'
    Vacant -> False

-- | Handle an event of a descriptor with registrations: run the callbacks that asked for it. On the manager's thread.
-- One-shot registrations are removed before their callback runs. If a generation is given, a stale event does nothing.
-- A callback may remove other registrations of the descriptor, or close it; so may other threads. So each callback but
-- the first begins only if its registration is there still. It does not throw.
--
-- The registrations that are left may have to be armed again, which the kernel refuses if the number was closed without
-- 'closeRegistered', while a duplicate of it keeps the file open. They end then: their callbacks run last, with
-- 'unwatched'. No other descriptor is affected.
dispatch :: Registry m -> Fd -> Maybe Int -> Events -> IO ()
dispatch r fd gen evs = do
  lock <- stripe r fd
  (due, refused) <- modifyMVar lock $ \table -> case IntMap.lookup (fromIntegral fd) table of
    Just (Registered e) | maybe True (== entryGeneration e) gen -> do
      let (due, others) = partition concerned (entryRegistrations e)
          kept = filter (not . oneShot) due <> others
      shared <- sharesReadiness r fd (entryManager e)
      let e' = e {entryDue = entryDue e <> filter oneShot (drop 1 due)}
      (table', refused) <-
        if null kept
          then (\table' -> (table', [])) <$> store r fd e' {entryRegistrations = []} table
          else reconcile r table fd e' kept (if shared then not (all oneShot due) else needsArming due kept)
      pure (table', (due, refused))
    _ -> pure (table, ([], []))
  case due of
    [] -> pure ()
    first : rest -> do
      run first
      forM_ rest $ \reg -> do
        begun <- modifyMVar lock (begin (registrationKey reg))
        when begun (run reg)
      mapM_ (`runWith` unwatched) (filter (not . hasHeard first) refused)
  where
    -- Its callback has just been told of the close.
    hasHeard begun reg = registrationKey reg == registrationKey begun && evs `includes` evtClose
    run reg = runWith reg (evs `common` (registrationEvents reg <> always))
    begin key table = case IntMap.lookup (fromIntegral fd) table of
      Just (Registered e)
        | (_ : _, due) <- partition ((== key) . registrationKey) (entryDue e) -> (\table' -> (table', True)) <$> store r fd e {entryDue = due} table
        | any ((== key) . registrationKey) (entryRegistrations e) -> pure (table, True)
      _ -> pure (table, False)
    always = evtHangup <> evtClose
    concerned reg = evs `overlaps` (registrationEvents reg <> always)
    -- The kernel's one-shot registration is used up if only one-shots are left; and a level-triggered one asks for too
    -- much if it includes a registration that is done. A tracked descriptor's is edge-triggered: it is armed again for
    -- levels that were asked for, and not for others. (It is writable nearly always, which would be reported for ever.)
    needsArming due kept = any oneShot due || all oneShot kept
    oneShot = (== OneShot) . registrationLifetime

-- Tracked descriptors -----------------------------------------------------------------------

-- | The events that a tracked descriptor is armed for.
readinessEvents :: Events
readinessEvents = evtRead <> evtWrite <> evtPeerClosed <> evtUrgent

-- | The state of a tracked descriptor. No manager reports its events yet.
trackReadiness :: Registry m -> Fd -> IO Readiness
trackReadiness r fd = newReadiness fd =<< nextNumber r

-- | The result of 'attach'.
data Attachment m
  = -- | The manager that reports the events.
    Serving !m
  | -- | Nothing is changed: the manager has been stopped.
    ManagerStopped
  | -- | Nothing is changed: the descriptor's number is being closed, until the MVar is full.
    BeingClosed !(MVar ())

-- | Let a manager report a descriptor's events from now on, beginning with the present state. The caller has acquired
-- the descriptor ('acquire'). One system call. If another manager does so already, nothing is changed. It does not
-- throw: the action that it returns throws, or gives the result.
--
-- It is called once in the life of a connection, with the deepest stack that the connection's thread has. With more
-- than one exception handler the thread's first stack chunk of 1 KiB does not suffice, and the thread keeps one of 32
-- KiB from then on.
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
          alive <- opsAlive (managerOps r) m'
          pure (if alive then Just m' else Nothing)
        _ -> pure Nothing
      alive <- opsAlive (managerOps r) m
      case current of
        Just serving -> pure (Serving serving)
        Nothing | not alive -> pure ManagerStopped
        Nothing -> do
          let backend = opsBackend (managerOps r) m
          when registered (setShared rd)
          when (isJust (backendResume backend)) (setAsking rd)
          case slot of
            Vacant -> pure ()
            Attached _ gone -> countDescriptors r gone (-1)
          setSlot r fd (Attached rd m)
          void (backendArm backend fd (readinessToken fd (readinessGeneration rd)) Edge readinessEvents)
            `onException` setSlot r fd Vacant
          when (backendDeferred backend) (opsWake (managerOps r) m)
          Serving m <$ countDescriptors r m 1

-- | Handle an event of a tracked descriptor, with its stamp. On a manager's thread, without a lock.
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

-- | Let the waiters of all tracked descriptors try again; they find a running manager.
wakeReadiness :: Registry m -> IO ()
wakeReadiness r = do
  arr <- readRef (slots r)
  forM_ [0 .. sizeBoxedArray arr - 1] $ \i -> do
    slot <- readBoxedArray arr i
    case slot of
      Attached rd _ -> wakeAll rd
      Vacant -> pure ()

-- Both -----------------------------------------------------------------------------

-- | Close a descriptor. Its registrations and its tracked state are removed, in the kernel too; then the given action
-- closes it, masked; then the callbacks run with 'evtClose'. Meanwhile no thread can register it. O(log n), independent
-- of the number of managers. An exception of the action is thrown at the end. The action may use other descriptors. It
-- may block; threads that want to register or close this descriptor wait then. It is given one that waits until the
-- back ends have released the file ('backendForget'). For a reserved number the action is not run, and @EBADF@ is
-- thrown: the program has closed its own descriptor of that number before.
closeRegistered :: Registry m -> Fd -> (IO () -> IO a) -> IO a
closeRegistered r fd close = mask_ $ do
  lock <- stripe r fd
  over <- newEmptyMVar
  begun <- uninterruptibleMask_ (modifyMVar lock (takeOut over))
  case begun of
    Left (Just earlier) -> readMVar earlier >> closeRegistered r fd close
    Left Nothing -> notOpen "close"
    Right (told, released) -> do
      -- A close that fails must not bring the registrations back, so its outcome is a value until the end.
      outcome <- attempt (close released)
      uninterruptibleMask_ $ do
        modifyMVar_ lock (pure . IntMap.update (unlessMine over) (fromIntegral fd))
        putMVar over ()
      forM_ told (`runWith` evtClose)
      outcome
  where
    takeOut over table = case IntMap.lookup (fromIntegral fd) table of
      Just (Closing earlier) -> pure (table, Left (Just earlier))
      Just Reserved -> pure (table, Left Nothing)
      entry -> (,) (IntMap.insert (fromIntegral fd) (Closing over) table) . Right <$> vacate r fd entry
    -- A manager may have got the number as soon as the kernel had closed it.
    unlessMine over (Closing over') | over' == over = Nothing
    unlessMine _ entry = Just entry

-- | Remove the tracked state of a number, and let the back ends forget it. Returns the registrations of its entry, and
-- the action that waits until the back ends have released the file. Under the stripe's lock; the caller changes the
-- table.
vacate :: Registry m -> Fd -> Maybe (Known m) -> IO ([Registration], IO ())
vacate r fd entry = do
  let registered = [e | Just (Registered e) <- [entry]]
  ofCallbacks <- forM registered $ \e -> countDescriptors r (entryManager e) (-1) >> retired (entryManager e)
  slot <- lookupSlot r fd
  ofTracked <- case slot of
    Attached rd m -> do
      markClosedElsewhere rd
      setSlot r fd Vacant
      countDescriptors r m (-1)
      if any (opsSame (managerOps r) m . entryManager) registered then nothing else retired m
    Vacant -> nothing
  pure (concatMap everyRegistration registered, sequence_ ofCallbacks >> ofTracked)
  where
    nothing = pure (pure ())
    retired m = opsAlive (managerOps r) m >>= \alive -> if alive then forget r m fd else nothing

-- | Make a manager's own descriptors, and mark their numbers. The program may have closed a descriptor of such a number
-- just before, and a thread may still wait for the number, or begin to. All of these get @EBADF@, or 'evtClose', as if
-- the number were free. Until the numbers are known, no descriptor can be registered or closed. The action must not use
-- the registry, nor wait for a thread that does.
reserving :: Registry m -> (a -> [Fd]) -> IO a -> IO a
reserving r descriptors make = mask_ $ do
  (made, told) <- holding r [0 .. stripeCount - 1] $ \tables -> do
    made <- make
    told <- forM (descriptors made) $ \fd -> do
      table <- readBoxedArray tables (stripeOf fd)
      (regs, _) <- vacate r fd (IntMap.lookup (fromIntegral fd) table)
      regs <$ writeBoxedArray tables (stripeOf fd) (IntMap.insert (fromIntegral fd) Reserved table)
    pure (made, concat told)
  made <$ forM_ told (`runWith` evtClose)

-- | Close a manager's own descriptors, and unmark their numbers. Until both is done, no descriptor of their stripes can
-- be registered or closed. The action is as that of 'reserving'.
releasing :: Registry m -> [Fd] -> IO () -> IO ()
releasing r fds close = holding r (IntSet.toAscList (IntSet.fromList (map stripeOf fds))) $ \tables -> do
  closed <- attempt close
  forM_ fds $ \fd -> do
    table <- readBoxedArray tables (stripeOf fd)
    writeBoxedArray tables (stripeOf fd) (IntMap.delete (fromIntegral fd) table)
  closed

-- | Run an action with the locks of some stripes, given in ascending order, and the tables that they protect.
-- Everything else holds at most one of these locks at a time.
holding :: Registry m -> [Int] -> (BoxedArray (IntMap.IntMap (Known m)) -> IO a) -> IO a
holding r chosen act = uninterruptibleMask_ $ do
  tables <- newBoxedArray stripeCount IntMap.empty
  forM_ chosen $ \i -> readBoxedArray (stripes r) i >>= takeMVar >>= writeBoxedArray tables i
  outcome <- attempt (act tables)
  forM_ chosen $ \i -> readBoxedArray (stripes r) i >>= \lock -> readBoxedArray tables i >>= putMVar lock
  outcome

-- | Throw the error for a number that is not the program's (@EBADF@).
notOpen :: String -> IO a
notOpen loc = ioError (errnoToIOError loc eBADF Nothing Nothing)

-- | Let a running manager's back end forget a descriptor; returns what 'backendForget' does.
forget :: Registry m -> m -> Fd -> IO (IO ())
forget r = backendForget . opsBackend (managerOps r)

-- | Remove the registrations of a manager that stops, and return them, so that their
-- callbacks can be run.
takeRegistrations :: Registry m -> m -> IO [Registration]
takeRegistrations r m = fmap concat . forM [0 .. stripeCount - 1] $ \i -> do
  lock <- readBoxedArray (stripes r) i
  modifyMVar lock $ \table -> do
    let (gone, kept) = IntMap.partition ofManager table
    countDescriptors r m (negate (IntMap.size gone))
    pure (kept, concat [everyRegistration e | Registered e <- IntMap.elems gone])
  where
    ofManager (Registered e) = opsSame (managerOps r) m (entryManager e)
    ofManager _ = False
