-- |
-- An io_uring of the model kernel ("Kernel"): requests that are queued, requests to poll that the kernel has, and completions. Pure.
--
-- As in Linux, the queue of submissions has a limit, and so has that of completions: past it the kernel holds completions back
-- until there is room, and a standing request that would complete ends instead. A request refers to the file, not to
-- its number, and holds it open until it ends.
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
import Data.Word (Word32)

-- | The program's requests.
data Submission
  = -- | Poll a number for these events; whether it stays after it has completed; its name (@user_data@).
    Watch !Int !Word32 !Bool !Int
  | -- | Cancel the request of that name.
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
    -- | Events that it has been told of and has not completed with yet.
    standingNews :: !Word32
  }

-- | Each list: the oldest first.
data Ring = Ring
  { ringEntries :: !Int,
    ringRoom :: !Int,
    ringQueue :: [Submission],
    ringStanding :: [Standing],
    ringDone :: [Completion],
    ringHeld :: [Completion]
  }

-- | With room for this many submissions and completions.
newRing :: Int -> Int -> Ring
newRing entries room = Ring entries room [] [] [] []

-- Requests ------------------------------------------------------------------------------

-- | 'Nothing': the queue is full.
enqueue :: Submission -> Ring -> Maybe Ring
enqueue s r
  | length (ringQueue r) >= ringEntries r = Nothing
  | otherwise = Just r {ringQueue = ringQueue r <> [s]}

-- | The kernel takes the queued submissions.
takeQueue :: Ring -> ([Submission], Ring)
takeQueue r = (ringQueue r, r {ringQueue = []})

-- | Is something queued?
isQueued :: Ring -> Bool
isQueued = not . null . ringQueue

-- | Begin to poll a file, given its events at present.
watch :: Int -> Word32 -> Bool -> Int -> Word32 -> Ring -> Ring
watch file bits stays name present r = bringOut False (r {ringStanding = ringStanding r <> [Standing file bits stays name (present .&. wanted bits)]})

-- | Errors and hang-ups are reported unasked.
wanted :: Word32 -> Word32
wanted bits = bits .|. 0x18

-- | End the request of that name; 'Nothing' when there is none.
cancelWatch :: Int -> Ring -> Maybe Ring
cancelWatch name r = case partition ((== name) . standingName) (ringStanding r) of
  ([], _) -> Nothing
  (_, others) -> Just (complete (Completion name (-125) False) r {ringStanding = others})

-- | Is there a request of that name?
isWatched :: Int -> Ring -> Bool
isWatched name = any ((== name) . standingName) . ringStanding

-- | The thread that submitted the oldest request has exited: that ends the request. 'Nothing' when there is none.
loseWatch :: Ring -> Maybe Ring
loseWatch r = case ringStanding r of
  [] -> Nothing
  s : _ -> cancelWatch (standingName s) r

-- | The files that requests refer to.
watchedFiles :: Ring -> [Int]
watchedFiles = map standingFile . ringStanding

-- Events ---------------------------------------------------------------------------------

-- | Something has happened to a file, which now has these events.
notice :: Int -> Word32 -> Ring -> Ring
notice file events r = r {ringStanding = map told (ringStanding r)}
  where
    told s
      | standingFile s == file = s {standingNews = standingNews s .|. (events .&. wanted (standingBits s))}
      | otherwise = s

-- | Will requests complete when the kernel is entered?
hasNews :: Ring -> Bool
hasNews = any ((/= 0) . standingNews) . ringStanding

-- | Complete all requests that have been told of events; in the reverse order, if the argument says so. A completion has the
-- events that the request was told of, whether or not they still hold.
bringOut :: Bool -> Ring -> Ring
bringOut turned r = foldl bring r {ringStanding = []} (if turned then reverse (ringStanding r) else ringStanding r)
  where
    bring q s
      | standingNews s == 0 = kept s q
      | standingStays s && hasRoom q = complete (Completion (standingName s) (fromIntegral (standingNews s)) True) (kept s {standingNews = 0} q)
      | otherwise = complete (Completion (standingName s) (fromIntegral (standingNews s)) False) q
    kept s q = q {ringStanding = ringStanding q <> [s]}

-- Completions ------------------------------------------------------------------------------

hasRoom :: Ring -> Bool
hasRoom r = null (ringHeld r) && length (ringDone r) < ringRoom r

-- | Add a completion, where there is room.
complete :: Completion -> Ring -> Ring
complete c r
  | hasRoom r = r {ringDone = ringDone r <> [c]}
  | otherwise = r {ringHeld = ringHeld r <> [c]}

-- | Are there completions to be taken? Are some held back?
completed, heldBack :: Ring -> Bool
completed = not . null . ringDone
heldBack = not . null . ringHeld

-- | Let in what is held back, as far as there is room.
makeRoom :: Ring -> Ring
makeRoom r = r {ringDone = ringDone r <> now, ringHeld = later}
  where
    (now, later) = splitAt (ringRoom r - length (ringDone r)) (ringHeld r)

-- | Take this many completions at most.
reap :: Int -> Ring -> ([Completion], Ring)
reap n r = (taken, r {ringDone = left})
  where
    (taken, left) = splitAt n (ringDone r)
