-- |
-- A pure model of managers, a registry, timers and tracked descriptors. "Lockstep" runs the
-- same program of commands on the real ones, passes its observations to the model, and asks it for the expected ones.
--
-- There are three pipes, each of which is open, half open or absent. An end of a pipe is a number from 0 to 5; even
-- numbers are reading ends. Two managers share a registry. Registrations, timers and tracked descriptors are numbered
-- in the order of their creation.
module LockstepModel
  ( -- * Programs
    Command (..),
    Delay (..),

    -- * The model
    Model,
    Rules (..),
    initial,
    pipeCount,
    managerCount,

    -- * What commands do
    endOpen,
    opened,
    room,
    written,
    filled,
    holds,
    readFrom,
    closed,
    registered,
    unregistered,
    isLive,
    tracks,
    trackedOpen,
    trackedEnd,
    trackedOf,
    trackedAlone,
    attached,
    tokenMust,
    tokenTaken,
    timerSet,
    timerCancelled,
    timerIsLive,
    stopped,

    -- * Observations
    Seen (..),
    When (..),
    saw,

    -- * Expected observations
    owed,
    owedBy,
    dueWithin,
    turnOver,
    knownCount,
    pendingTimers,
    leftOf,
  )
where

import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (isJust)
import Weft.Core.Events
import Weft.Core.Readiness (Direction (..))
import Weft.Core.Time (Instant)

-- | A command. Numbers are taken modulo the number of objects, and a command that makes no sense has no effect, so
-- every part of a program is a program.
data Command
  = -- | Open that pipe, unless it is open.
    Open Int
  | -- | Write a byte into the pipe.
    Write Int
  | -- | Write until the pipe is full.
    Fill Int
  | -- | Read a byte.
    ReadOne Int
  | -- | Read until the pipe is empty.
    Drain Int
  | -- | Register a callback for an end with a manager.
    Register Int Int Events Lifetime
  | -- | Undo a registration, possibly an old one.
    Unregister Int
  | -- | Close an end by its number.
    Close Int
  | -- | Make a tracked descriptor of an end.
    Track Int
  | -- | Have a manager report a tracked descriptor.
    Attach Int Int
  | -- | Take a token of a tracked descriptor; if it is not there, prepare to wait for it.
    Take Int Direction
  | -- | Close a tracked descriptor, possibly an old one.
    CloseTracked Int
  | -- | Set a timer with a manager.
    Set Int Delay
  | -- | Cancel a timer, possibly an old one.
    Cancel Int
  | -- | Stop a manager, and replace it by a new one.
    Restart Int
  | -- | A non-blocking turn of all managers.
    Look
  | -- | A turn of one manager, which may block if an event is to come.
    Step Int
  | -- | Let two milliseconds pass.
    Pause
  deriving (Eq, Show)

-- | When a timer is due: already, now, soon, or not before the program ends.
data Delay = Past | Now | Soon | Later
  deriving (Eq, Show, Enum, Bounded)

pipeCount, managerCount :: Int
pipeCount = 3
managerCount = 2

-- | Differences between machines.
data Rules = Rules
  { -- | The capacity of a pipe that is written to byte by byte.
    ruleCapacity :: Int,
    -- | An event may be reported that was present at some time since the last turn.
    ruleLate :: Bool,
    -- | Edges are not stored: after a report, the descriptor has to be resumed before the next wait.
    ruleResumes :: Bool
  }

-- | The state of the model.
data Model = Model
  { rules :: Rules,
    -- | The number of bytes in each open pipe; the capacity if it is full.
    pipes :: IntMap.IntMap Int,
    -- | The open ends, with the events that were present since the last turn.
    ends :: IntMap.IntMap Events,
    registrations :: IntMap.IntMap Registration,
    -- | The manager that has an end's registrations.
    serving :: IntMap.IntMap Int,
    tracked :: IntMap.IntMap Tracked,
    timers :: IntMap.IntMap Timer,
    -- | Registrations called in this turn.
    called :: IntMap.IntMap ()
  }

data Registration = Registration {regEnd :: Int, regEvents :: Events, regLifetime :: Lifetime}

-- | An open tracked descriptor.
data Tracked = Tracked
  { trEnd :: Int,
    trAttached :: Bool,
    -- | The running manager that reports its events.
    trServed :: Maybe Int,
    -- | The events that the next turn has to report if they are present, since something happened or was resumed.
    trChanged :: Events,
    -- | The tokens that must be there.
    trMust :: Events
  }

data Timer = Timer {tmManager :: Int, tmDue :: Instant}

-- | The initial state: nothing is open.
initial :: Rules -> Model
initial r = Model r IntMap.empty IntMap.empty IntMap.empty IntMap.empty IntMap.empty IntMap.empty IntMap.empty

-- Pipes ------------------------------------------------------------------------------

endOpen :: Model -> Int -> Bool
endOpen m e = IntMap.member e (ends m)

-- | The present events of an open end.
ready :: Model -> Int -> Events
ready m e
  | not (endOpen m e) = mempty
  | even e = (if bytes > 0 then evtRead else mempty) <> hungUp
  | otherwise = (if bytes < ruleCapacity (rules m) then evtWrite else mempty) <> hungUp
  where
    bytes = IntMap.findWithDefault 0 (e `div` 2) (pipes m)
    hungUp = if endOpen m (other e) then mempty else evtHangup <> evtRead <> evtWrite

other :: Int -> Int
other e = if even e then e + 1 else e - 1

opened :: Int -> Model -> Model
opened p m = was (m {pipes = IntMap.insert p 0 (pipes m), ends = IntMap.insert (2 * p) mempty (IntMap.insert (2 * p + 1) mempty (ends m))})

-- | The number of bytes for which the pipe has room; zero if its reading end is closed.
room :: Model -> Int -> Int
room m p
  | endOpen m (2 * p) && endOpen m (2 * p + 1) = ruleCapacity (rules m) - holds m p
  | otherwise = 0

holds :: Model -> Int -> Int
holds m p = IntMap.findWithDefault 0 p (pipes m)

written :: Int -> Model -> Model
written p m = was (happened (2 * p) evtRead m {pipes = IntMap.adjust (+ 1) p (pipes m)})

filled :: Int -> Model -> Model
filled p m = was (happened (2 * p) evtRead m {pipes = IntMap.insert p (ruleCapacity (rules m)) (pipes m)})

-- | The given number of bytes is left after a read. Room is a new event only for a pipe that was full.
readFrom :: Int -> Int -> Model -> Model
readFrom p left m = was ((if holds m p == ruleCapacity (rules m) then happened (2 * p + 1) evtWrite else id) m {pipes = IntMap.insert p left (pipes m)})

-- | Something has happened to an end.
happened :: Int -> Events -> Model -> Model
happened e evs m
  | ruleResumes (rules m) = m
  | otherwise = m {tracked = IntMap.map (\t -> if trEnd t == e && isJust (trServed t) then t {trChanged = trChanged t <> evs} else t) (tracked m)}

-- | Record the present events as events since the last turn.
was :: Model -> Model
was m = m {ends = IntMap.mapWithKey (\e evs -> evs <> ready m e) (ends m)}

-- | An end was closed, its registrations were notified, and its tracked descriptor was shut.
closed :: Int -> Model -> Model
closed e m =
  was . happened (other e) (evtRead <> evtWrite) $
    m
      { ends = IntMap.delete e (ends m),
        pipes = if endOpen m (other e) then pipes m else IntMap.delete (e `div` 2) (pipes m),
        tracked = IntMap.filter ((/= e) . trEnd) (tracked m)
      }

-- Registrations ------------------------------------------------------------------------

-- | A registration at an open end.
registered :: Int -> Int -> Int -> Events -> Lifetime -> Model -> Model
registered k e i evs lifetime m =
  m {registrations = IntMap.insert k (Registration e evs lifetime) (registrations m), serving = IntMap.insertWith (\_ old -> old) e i (serving m)}

isLive :: Model -> Int -> Bool
isLive m k = IntMap.member k (registrations m)

unregistered :: Int -> Model -> Model
unregistered k m = m {registrations = left, serving = IntMap.filterWithKey (\e _ -> any ((== e) . regEnd) left) (serving m)}
  where
    left = IntMap.delete k (registrations m)

-- Tracked descriptors --------------------------------------------------------------------

-- | Track an end, which has at most one tracked descriptor. Its tokens are there initially.
tracks :: Int -> Int -> Model -> Model
tracks k e m = m {tracked = IntMap.insert k (Tracked e False Nothing mempty (evtRead <> evtWrite)) (tracked m)}

trackedOpen :: Model -> Int -> Bool
trackedOpen m k = IntMap.member k (tracked m)

trackedEnd :: Model -> Int -> Maybe Int
trackedEnd m k = trEnd <$> IntMap.lookup k (tracked m)

-- | The tracked descriptor of an end.
trackedOf :: Model -> Int -> Maybe Int
trackedOf m e = fst <$> IntMap.lookupMin (IntMap.filter ((== e) . trEnd) (tracked m))

-- | Whether an end has a tracked descriptor that was never attached.
trackedAlone :: Model -> Int -> Bool
trackedAlone m e = or [not (trAttached t) | t <- IntMap.elems (tracked m), trEnd t == e]

-- | Attach a tracked descriptor to a manager; returns the manager that reports it.
attached :: Int -> Int -> Model -> (Int, Model)
attached k i m = case trServed =<< IntMap.lookup k (tracked m) of
  Just j -> (j, m)
  Nothing -> (i, m {tracked = IntMap.adjust (\t -> t {trAttached = True, trServed = Just i, trChanged = evtRead <> evtWrite}) k (tracked m)})

tokenOf :: Direction -> Events
tokenOf Reading = evtRead
tokenOf Writing = evtWrite

-- | Whether the token must be there.
tokenMust :: Model -> Int -> Direction -> Bool
tokenMust m k d = maybe False ((`includes` tokenOf d) . trMust) (IntMap.lookup k (tracked m))

-- | The token was taken; or it was missing and the descriptor was resumed.
tokenTaken :: Int -> Direction -> Bool -> Model -> Model
tokenTaken k d there m = m {tracked = IntMap.adjust after k (tracked m)}
  where
    after t
      | not there && ruleResumes (rules m) && isJust (trServed t) = t {trMust = less t, trChanged = trChanged t <> tokenOf d}
      | otherwise = t {trMust = less t}
    less t = trMust t `without` tokenOf d

-- Timers -----------------------------------------------------------------------------------

timerSet :: Int -> Int -> Instant -> Model -> Model
timerSet k i due m = m {timers = IntMap.insert k (Timer i due) (timers m)}

timerIsLive :: Model -> Int -> Bool
timerIsLive m k = IntMap.member k (timers m)

timerCancelled :: Int -> Model -> Model
timerCancelled k m = m {timers = IntMap.delete k (timers m)}

-- Managers ---------------------------------------------------------------------------------

-- | A manager has stopped, and its notifications were observed. Another manager has its timers now. Threads that wait
-- for its tracked descriptors may try again.
stopped :: Int -> Int -> Model -> Model
stopped i next m = m {tracked = IntMap.map orphan (tracked m), timers = IntMap.map moved (timers m)}
  where
    moved t = if tmManager t == i then t {tmManager = next} else t
    orphan t
      | not (trAttached t) = t
      | trServed t == Just i = awake t {trServed = Nothing, trChanged = mempty}
      | otherwise = awake t
    awake t = t {trMust = evtRead <> evtWrite}

-- Observations -------------------------------------------------------------------------------

-- | An observed call of a callback or a timer.
data Seen
  = Called Int Events
  | -- | A timer fired at that instant.
    Fired Int Instant
  deriving (Show)

-- | What was happening during an observation.
data When
  = -- | That end was being closed.
    Closing Int
  | -- | That manager was being stopped.
    Stopping Int
  | -- | Managers were running a turn.
    Turn
  | -- | Something else, during which no call is allowed.
    Otherwise
  deriving (Show)

-- | Process an observation; 'Left' says why it is wrong.
saw :: When -> Seen -> Model -> Either String Model
saw moment seen m = case seen of
  Called k evs -> case IntMap.lookup k (registrations m) of
    Nothing -> wrong "the registration has ended"
    Just r -> calledWith k r evs
  Fired k at -> case (IntMap.lookup k (timers m), moment) of
    (Nothing, _) -> wrong "the timer has ended"
    (Just t, Turn)
      | at < tmDue t -> wrong ("it is due at " <> show (tmDue t))
      | otherwise -> Right (timerCancelled k m)
    _ -> wrong "there was no turn"
  where
    wrong why = Left (show seen <> ", while " <> show moment <> ": " <> why)
    calledWith k r evs = case moment of
      Closing e
        | regEnd r == e && evs == evtClose -> Right (unregistered k m)
      Stopping i
        | IntMap.lookup (regEnd r) (serving m) == Just i && evs == evtClose <> evtOrphaned -> Right (unregistered k m)
      Turn
        | not (evs `overlaps` wanted r) || not (wanted r `includes` evs) -> wrong ("it asked for " <> show (regEvents r))
        | not (ruleLate (rules m)) && (ready m (regEnd r) `includes` evtHangup) && not (evs `includes` evtHangup) -> wrong "it was not told of the hang-up"
        | not (mayBe (regEnd r) `includes` evs) -> wrong ("only " <> show (mayBe (regEnd r)) <> " is so")
        | regLifetime r == OneShot -> Right (unregistered k m)
        | otherwise -> Right m {called = IntMap.insert k () (called m)}
      _ -> wrong "it should not be told so"
    mayBe e
      | ruleLate (rules m) = IntMap.findWithDefault mempty e (ends m)
      | otherwise = ready m e

wanted :: Registration -> Events
wanted r = regEvents r <> evtHangup

-- Expected observations -----------------------------------------------------------------------

-- | The observations that must occur before the turn ends: callbacks for present events, and timers that were due at
-- that instant.
owed :: Instant -> Model -> [String]
owed t m = ["the call of registration " <> show k <> " for " <> show (ready m (regEnd r)) | (k, r) <- dueCalls m] <> ["timer " <> show k | (k, _) <- dueTimers t m]

dueCalls :: Model -> [(Int, Registration)]
dueCalls m = [(k, r) | (k, r) <- IntMap.toList (registrations m), IntMap.notMember k (called m), ready m (regEnd r) `overlaps` wanted r]

dueTimers :: Instant -> Model -> [(Int, Timer)]
dueTimers t m = IntMap.toList (IntMap.filter ((<= t) . tmDue) (timers m))

-- | Whether that manager has something to report, now or by that instant.
owedBy :: Instant -> Int -> Model -> Bool
owedBy t i m = any ((== Just i) . (\r -> IntMap.lookup (regEnd r) (serving m)) . snd) (dueCalls m) || dueWithin t i m

-- | Whether a timer of that manager is due by that instant.
dueWithin :: Instant -> Int -> Model -> Bool
dueWithin t i m = any ((== i) . tmManager . snd) (dueTimers t m)

-- | The turn has ended: tokens for the events that happened must be there.
turnOver :: Model -> Model
turnOver m = was m {called = IntMap.empty, ends = IntMap.map (const mempty) (ends m), tracked = IntMap.map reported (tracked m)}
  where
    reported t
      | trServed t == Nothing = t
      | otherwise =
        let now' = ready m (trEnd t)
            left
              | not (ruleResumes (rules m)) = mempty
              | now' `includes` evtHangup = mempty
              | otherwise = trChanged t `without` now'
         in t {trMust = trMust t <> (trChanged t `common` now'), trChanged = left}

-- | The number of descriptors that the registry knows: those with registrations, and attached ones.
knownCount :: Model -> Int
knownCount m = IntMap.size (serving m) + IntMap.size (IntMap.filter trAttached (tracked m))

-- | The number of a manager's pending timers.
pendingTimers :: Int -> Model -> Int
pendingTimers i m = IntMap.size (IntMap.filter ((== i) . tmManager) (timers m))

-- | The notifications that are missing after an end was closed or a manager stopped.
leftOf :: When -> Model -> [String]
leftOf moment m = case moment of
  Closing e -> ["registration " <> show k | (k, r) <- IntMap.toList (registrations m), regEnd r == e]
  Stopping i -> ["registration " <> show k | (k, r) <- IntMap.toList (registrations m), IntMap.lookup (regEnd r) (serving m) == Just i]
  _ -> []
