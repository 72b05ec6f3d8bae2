-- |
-- An io_uring of the model kernel ("Kernel"): queued requests, the kernel's poll requests, and completions. Pure.
--
-- As in Linux, the submission queue and the completion queue are bounded. If the completion queue is full, the kernel
-- holds completions back until there is room, and a multishot request that would complete ends instead. A request
-- refers to the file, not to its number, and keeps it open until the request ends.
module KernelRing
  ( Ring,
    newRing,

    -- * Requests
    Submission (..),
    enqueue,
    takeQueue,
    isQueued,
    watch,
    cancelWatch,
    cancelNow,
    endLater,
    isEnded,
    isWatched,
    loseWatch,
    watchedFiles,

    -- * Events
    notice,
    hasNews,
    bringOut,

    -- * Completions
    Completion (..),
    complete,
    completed,
    heldBack,
    makeRoom,
    reap,
  )
where

import Data.Bits
import Data.List (partition)
import Data.Maybe (fromMaybe)
import Data.Word (Word32)

-- | The program's requests.
data Submission
  = -- | Poll a number for these events; whether it stays active after a completion; its name (@user_data@).
    Watch !Int !Word32 !Bool !Int
  | -- | Cancel the request with that name.
    Cancel !Int
  deriving (Show)

-- | The name of the request, the events or a negated errno, and whether it will complete again.
data Completion = Completion !Int !Int !Bool
  deriving (Show)

-- | A request to poll.
data Standing = Standing
  { standingFile :: !Int,
    standingBits :: !Word32,
    standingStays :: !Bool,
    standingName :: !Int,
    -- | Events that have happened and for which it has not completed yet.
    standingNews :: !Word32
  }

-- | A ring. Each list begins with the oldest element.
data Ring = Ring
  { ringEntries :: !Int,
    ringRoom :: !Int,
    ringQueue :: [Submission],
    ringStanding :: [Standing],
    -- | Cancelled requests that have not ended.
    ringEnding :: [Standing],
    ringDone :: [Completion],
    ringHeld :: [Completion]
  }

-- | A ring with the given numbers of submission and completion entries.
newRing :: Int -> Int -> Ring
newRing entries room = Ring entries room [] [] [] [] []

-- Requests ------------------------------------------------------------------------------

-- | Queue a submission; 'Nothing' if the queue is full.
enqueue :: Submission -> Ring -> Maybe Ring
enqueue s r
  | length (ringQueue r) >= ringEntries r = Nothing
  | otherwise = Just r {ringQueue = ringQueue r <> [s]}

-- | The kernel takes the queued submissions.
takeQueue :: Ring -> ([Submission], Ring)
takeQueue r = (ringQueue r, r {ringQueue = []})

-- | Whether a submission is queued.
isQueued :: Ring -> Bool
isQueued = not . null . ringQueue

-- | Begin to poll a file, given its present events.
watch :: Int -> Word32 -> Bool -> Int -> Word32 -> Ring -> Ring
watch file bits stays name present r = bringOut False (r {ringStanding = ringStanding r <> [Standing file bits stays name (present .&. wanted bits)]})

-- | The reported events: errors and hang-ups are always included.
wanted :: Word32 -> Word32
wanted bits = bits .|. 0x18

-- | End the request with that name; 'Nothing' if there is none.
cancelWatch :: Int -> Ring -> Maybe Ring
cancelWatch name r = case partition ((== name) . standingName) (ringStanding r) of
  ([], _) -> Nothing
  (_, others) -> Just (complete (Completion name (-125) False) r {ringStanding = others})

-- | Cancel the request with that name synchronously, also one that is to end later; no effect if there is none.
cancelNow :: Int -> Ring -> Ring
cancelNow name r = fromMaybe r (cancelWatch name r {ringStanding = ringStanding r <> these, ringEnding = others})
  where
    (these, others) = partition ((== name) . standingName) (ringEnding r)

-- | Cancel the request with that name, which ends later: at the next 'bringOut', or by 'cancelNow'.
endLater :: Int -> Ring -> Ring
endLater name r = r {ringStanding = others, ringEnding = ringEnding r <> these}
  where
    (these, others) = partition ((== name) . standingName) (ringStanding r)

-- | Whether there is no request with that name, not even one that is to end later.
isEnded :: Int -> Ring -> Bool
isEnded name r = all ((/= name) . standingName) (ringStanding r <> ringEnding r)

-- | Whether there is a request with that name.
isWatched :: Int -> Ring -> Bool
isWatched name = any ((== name) . standingName) . ringStanding

-- | The thread that submitted the oldest request has exited, which ends the request. 'Nothing' if there is none.
loseWatch :: Ring -> Maybe Ring
loseWatch r = case ringStanding r of
  [] -> Nothing
  s : _ -> cancelWatch (standingName s) r

-- | The files that requests refer to.
watchedFiles :: Ring -> [Int]
watchedFiles r = map standingFile (ringStanding r <> ringEnding r)

-- Events ---------------------------------------------------------------------------------

-- | Something has happened to a file, whose present events are given.
notice :: Int -> Word32 -> Ring -> Ring
notice file events r = r {ringStanding = map told (ringStanding r)}
  where
    told s
      | standingFile s == file = s {standingNews = standingNews s .|. (events .&. wanted (standingBits s))}
      | otherwise = s

-- | Whether requests will complete when the kernel is entered.
hasNews :: Ring -> Bool
hasNews r = any ((/= 0) . standingNews) (ringStanding r) || not (null (ringEnding r))

-- | Complete all requests for which events have happened; with 'True' in reverse order. A completion has the
-- events that happened, whether or not they are still present. Cancelled requests end.
bringOut :: Bool -> Ring -> Ring
bringOut turned r = foldl bring ended {ringStanding = []} (if turned then reverse (ringStanding r) else ringStanding r)
  where
    ended = foldl (\q s -> complete (Completion (standingName s) (-125) False) q) r {ringEnding = []} (ringEnding r)
    bring q s
      | standingNews s == 0 = kept s q
      | standingStays s && hasRoom q = complete (Completion (standingName s) (fromIntegral (standingNews s)) True) (kept s {standingNews = 0} q)
      | otherwise = complete (Completion (standingName s) (fromIntegral (standingNews s)) False) q
    kept s q = q {ringStanding = ringStanding q <> [s]}

-- Completions ------------------------------------------------------------------------------

hasRoom :: Ring -> Bool
hasRoom r = null (ringHeld r) && length (ringDone r) < ringRoom r

-- | Add a completion, or hold it back if there is no room.
complete :: Completion -> Ring -> Ring
complete c r
  | hasRoom r = r {ringDone = ringDone r <> [c]}
  | otherwise = r {ringHeld = ringHeld r <> [c]}

-- | Whether there are completions to be taken; whether completions are held back.
completed, heldBack :: Ring -> Bool
completed = not . null . ringDone
heldBack = not . null . ringHeld

-- | Add completions that were held back, as far as there is room.
makeRoom :: Ring -> Ring
makeRoom r = r {ringDone = ringDone r <> now, ringHeld = later}
  where
    (now, later) = splitAt (ringRoom r - length (ringDone r)) (ringHeld r)

-- | Take at most the given number of completions.
reap :: Int -> Ring -> ([Completion], Ring)
reap n r = (taken, r {ringDone = left})
  where
    (taken, left) = splitAt n (ringDone r)
