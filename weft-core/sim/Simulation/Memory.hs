-- |
-- The order in which threads see each other's writes, as ARM (ARMv8-A, AArch64) allows it. Pure: how old a value each
-- read may return. "Simulation.Location" asks.
--
-- That memory is multi-copy atomic: there is one order in which writes become visible, to all other threads at once. The
-- schedule is that order. What is left to be modelled is that a read may be done before its turn. So each read sees the
-- memory of some instant, which is not later than its own step and not earlier than its thread's last barrier; instants
-- are counted in writes. The instant of a read is a choice of the schedule. Which operation is which barrier, as GHC
-- 9.0.2 compiles the primitive operations for ARM (by LLVM; newer compilers give the same order or a stronger one):
--
-- [plain read] (@readMutVar#@, @readArray#@, @readIntArray#@: LDR) No barrier. It may be done as early as the thread's
-- last acquire, but it never sees less of an object than the thread has read or written there before. The first read of
-- an object that another thread made during the run needs its address, and so is not done before an earlier read.
--
-- [plain write] (@writeMutVar#@, @writeArray#@: DMB ISHST, STR; @writeIntArray#@: STR) Not ordered with later reads.
--
-- [atomic read] (@atomicReadIntArray#@: LDAR) Acquire: no later read is done before it. It is done after all earlier
-- reads that are atomic and all earlier releases, but may overtake plain writes of its thread.
--
-- [atomic write] (@atomicWriteIntArray#@: STLR at the weakest) Release: all earlier writes are visible first. A later
-- plain read may be done before it.
--
-- [exchange] (@casMutVar#@, @casIntArray#@, @fetchAddIntArray#@, @atomicModifyMutVar2#@: LDAXR, STLXR) Acquire where it reads, release
-- where it writes. Later plain reads may be done between the two, when the write is not visible yet: they are ordered after
-- the write that it found there, and after the thread's last release, but not after its own write. (One instruction for
-- the exchange, as ARMv8.1 has, would be a full barrier. It is not presumed.)
--
-- [MVars, system calls, exceptions between threads] The run-time system and the kernel take a lock: an exchange.
--
-- Not modelled: two plain writes that become visible in the other order, which ARM allows for words
-- (@writeIntArray#@), though not for references and arrays. Such words have a single user, or are read within 'Weft.Core.Counters'
-- only.
module Simulation.Memory
  ( Memory,
    strongMemory,
    weakMemoryWith,
    isWeak,
    staleLeft,

    -- * Reading
    Manner (..),
    earliest,
    sawValueOf,
    tookStale,

    -- * Writing
    wrote,
    released,
    exchanged,
    refused,
    barrier,
    writtenAt,
  )
where

import qualified Data.IntMap.Strict as IntMap

-- | The writes of a run, and the part of them that each thread has to see.
data Memory = Memory
  { -- | Whether reads may be early at all.
    memoryWeak :: !Bool,
    -- | How many reads of the run may still return an old value.
    memoryStale :: !Int,
    -- | The instant: how many writes there were.
    memoryNow :: !Int,
    -- | When each object was last written.
    memoryWritten :: !(IntMap.IntMap Int),
    memoryViews :: !(IntMap.IntMap View)
  }

-- | How much a thread has to see.
data View = View
  { -- | Its last acquire: no read is done earlier.
    viewFloor :: !Int,
    -- | Its last release.
    viewReleased :: !Int,
    -- | Whether it has written plainly since then.
    viewLoose :: !Bool,
    -- | The latest instant that one of its plain reads saw.
    viewLatest :: !Int,
    -- | For each object that it has used: the instant of the newest write that it knows.
    viewSeen :: !(IntMap.IntMap Int)
  }

-- | Every read returns what was written last.
strongMemory :: Memory
strongMemory = Memory False 0 0 IntMap.empty IntMap.empty

-- | A memory in which at most this many reads of a run may return an old value.
weakMemoryWith :: Int -> Memory
weakMemoryWith n = strongMemory {memoryWeak = n > 0, memoryStale = n}

isWeak :: Memory -> Bool
isWeak = memoryWeak

staleLeft :: Memory -> Int
staleLeft = memoryStale

-- | How something is read.
data Manner = Plain | Atomic
  deriving (Eq)

viewOf :: Int -> Memory -> View
viewOf thread = IntMap.findWithDefault (View 0 0 False 0 IntMap.empty) thread . memoryViews

setView :: Int -> View -> Memory -> Memory
setView thread v m = m {memoryViews = IntMap.insert thread v (memoryViews m)}

seenOf :: Int -> View -> Int
seenOf object = IntMap.findWithDefault 0 object . viewSeen

see :: Int -> Int -> View -> View
see object instant v = v {viewSeen = IntMap.insertWith max object instant (viewSeen v)}

-- | When the object was last written; 0 if it has not been since the run began.
writtenAt :: Int -> Memory -> Int
writtenAt object = IntMap.findWithDefault 0 object . memoryWritten

-- | The earliest instant at which the thread's next read of the object may be done.
earliest :: Manner -> Int -> Int -> Memory -> Int
earliest manner thread object m = case manner of
  Plain
    | madeInRun && object `IntMap.notMember` viewSeen v -> max (viewFloor v) (viewLatest v)
    | otherwise -> max (viewFloor v) (seenOf object v)
  Atomic
    | viewLoose v -> maximum [viewFloor v, viewReleased v, seenOf object v]
    | otherwise -> memoryNow m
  where
    v = viewOf thread m
    -- Numbers of objects that were made before the threads ran are multiples of 64 ('Simulation.newObject').
    madeInRun = object `mod` 64 /= 0

-- | The read returned the value that was written at that instant.
sawValueOf :: Manner -> Int -> Int -> Int -> Memory -> Memory
sawValueOf manner thread object written m = case manner of
  Plain -> setView thread (see object written v) {viewLatest = max (viewLatest v) at} m
  Atomic -> setView thread (see object written v) {viewFloor = max (viewFloor v) at} m
  where
    v = viewOf thread m
    at = max (earliest manner thread object m) written

-- | One old value fewer may be read.
tookStale :: Memory -> Memory
tookStale m = m {memoryStale = memoryStale m - 1}

-- | A new instant, at which the thread writes the object.
advance :: Int -> Int -> (Int -> View -> View) -> Memory -> Memory
advance thread object f m =
  setView thread (see object t (f t (viewOf thread m))) m {memoryNow = t, memoryWritten = IntMap.insert object t (memoryWritten m)}
  where
    t = memoryNow m + 1

-- | A plain write.
wrote :: Int -> Int -> Memory -> Memory
wrote thread object = advance thread object (\_ v -> v {viewLoose = True})

-- | An atomic write.
released :: Int -> Int -> Memory -> Memory
released thread object = advance thread object (\t v -> v {viewReleased = t, viewLoose = False})

-- | An exchange that wrote.
exchanged :: Int -> Int -> Memory -> Memory
exchanged thread object m =
  advance thread object (\t v -> v {viewFloor = acquired thread object m, viewReleased = t, viewLoose = False}) m

-- | An exchange that found something else than it expected, and wrote nothing.
refused :: Int -> Int -> Memory -> Memory
refused thread object m = setView thread (see object (writtenAt object m) v) {viewFloor = acquired thread object m} m
  where
    v = viewOf thread m

acquired :: Int -> Int -> Memory -> Int
acquired thread object m = maximum [viewFloor v, viewReleased v, writtenAt object m]
  where
    v = viewOf thread m

-- | Everything that happened so far is visible to the thread.
barrier :: Int -> Memory -> Memory
barrier thread m = setView thread v {viewFloor = memoryNow m, viewReleased = memoryNow m, viewLoose = False} m
  where
    v = viewOf thread m
