-- |
-- The order in which threads see each other's writes, as ARM (ARMv8-A, AArch64) allows it. Pure: it determines how old
-- a value each read may return. "Simulation.Location" uses it.
--
-- ARMv8 is multi-copy atomic: writes become visible to all other threads at once, in a single order. The
-- schedule is that order. What remains to be modelled is that a read may be done early. So each read sees the
-- memory of some instant that is not later than its own step and not earlier than its thread's last barrier. Instants
-- are counted in writes. The schedule chooses the instant of a read. The following list says which barrier each
-- operation is, given how GHC 9.0.2 compiles the primitive operations for ARM (by LLVM; newer compilers give the same
-- order or a stronger one, which @scripts\/memory-order@ looks for in their code):
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
-- [exchange] (@casMutVar#@, @casIntArray#@, @fetchAddIntArray#@, @atomicModifyMutVar2#@: LDAXR, STLXR) Acquire where
-- it reads, release where it writes. Later plain reads may be done between the two, when the write is not visible
-- yet: they are ordered after the write that it found there, and after the thread's last release, but not after its
-- own write. (One instruction for the exchange, as ARMv8.1 has, would be a full barrier. It is not presumed.)
--
-- [MVars, system calls, exceptions between threads] An exchange, since the run-time system or the kernel takes a lock.
--
-- Not modelled: two plain writes becoming visible in reverse order. ARM allows this for words
-- (@writeIntArray#@), but not for references and arrays. Such words have a single user, or are read only within
-- 'Weft.Core.Counters'.
module Simulation.Memory
  ( Memory,
    strongMemory,
    weakMemoryWith,
    isWeak,
    staleLeft,

    -- * Reading
    ReadKind (..),
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

-- | The writes of a run, and which of them each thread is bound to see.
data Memory = Memory
  { -- | Whether reads may be early.
    memoryWeak :: !Bool,
    -- | How many reads of the run may still return an old value.
    memoryStale :: !Int,
    -- | The present instant: the number of writes so far.
    memoryNow :: !Int,
    -- | When each object was last written.
    memoryWritten :: !(IntMap.IntMap Int),
    memoryViews :: !(IntMap.IntMap View)
  }

-- | The writes that a thread's reads must see.
data View = View
  { -- | The instant of its last acquire: no read is done earlier.
    viewFloor :: !Int,
    -- | The instant of its last release.
    viewReleased :: !Int,
    -- | Whether it has made a plain write since then.
    viewLoose :: !Bool,
    -- | The latest instant that one of its plain reads saw.
    viewLatest :: !Int,
    -- | For each object that it has used: the instant of the newest write that it has seen.
    viewSeen :: !(IntMap.IntMap Int)
  }

-- | A memory in which every read returns what was written last.
strongMemory :: Memory
strongMemory = Memory False 0 0 IntMap.empty IntMap.empty

-- | A memory in which at most this many reads of a run may return an old value.
weakMemoryWith :: Int -> Memory
weakMemoryWith n = strongMemory {memoryWeak = n > 0, memoryStale = n}

isWeak :: Memory -> Bool
isWeak = memoryWeak

staleLeft :: Memory -> Int
staleLeft = memoryStale

-- | The kind of a read.
data ReadKind = Plain | Atomic
  deriving (Eq)

viewOf :: Int -> Memory -> View
viewOf thread = IntMap.findWithDefault (View 0 0 False 0 IntMap.empty) thread . memoryViews

setView :: Int -> View -> Memory -> Memory
setView thread v m = m {memoryViews = IntMap.insert thread v (memoryViews m)}

seenOf :: Int -> View -> Int
seenOf object = IntMap.findWithDefault 0 object . viewSeen

see :: Int -> Int -> View -> View
see object instant v = v {viewSeen = IntMap.insertWith max object instant (viewSeen v)}

-- | When the object was last written; 0 if not during the run.
writtenAt :: Int -> Memory -> Int
writtenAt object = IntMap.findWithDefault 0 object . memoryWritten

-- | The earliest instant at which the thread's next read of the object may be done.
earliest :: ReadKind -> Int -> Int -> Memory -> Int
earliest kind thread object m = case kind of
  Plain
    | madeInRun && object `IntMap.notMember` viewSeen v -> max (viewFloor v) (viewLatest v)
    | otherwise -> max (viewFloor v) (seenOf object v)
  Atomic
    | viewLoose v -> maximum [viewFloor v, viewReleased v, seenOf object v]
    | otherwise -> memoryNow m
  where
    v = viewOf thread m
    -- The numbers of objects that were created before the threads ran are multiples of 64 ('Simulation.newObject').
    madeInRun = object `mod` 64 /= 0

-- | The read returned the value that was written at that instant.
sawValueOf :: ReadKind -> Int -> Int -> Int -> Memory -> Memory
sawValueOf kind thread object written m = case kind of
  Plain -> setView thread (see object written v) {viewLatest = max (viewLatest v) at} m
  Atomic -> setView thread (see object written v) {viewFloor = max (viewFloor v) at} m
  where
    v = viewOf thread m
    at = max (earliest kind thread object m) written

-- | One old value fewer may be returned.
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

-- | An exchange that succeeded.
exchanged :: Int -> Int -> Memory -> Memory
exchanged thread object m =
  advance thread object (\t v -> v {viewFloor = acquired thread object m, viewReleased = t, viewLoose = False}) m

-- | An exchange that failed: it found another value than it expected.
refused :: Int -> Int -> Memory -> Memory
refused thread object m = setView thread (see object (writtenAt object m) v) {viewFloor = acquired thread object m} m
  where
    v = viewOf thread m

acquired :: Int -> Int -> Memory -> Int
acquired thread object m = maximum [viewFloor v, viewReleased v, writtenAt object m]
  where
    v = viewOf thread m

-- | The thread has to see everything that has happened so far.
barrier :: Int -> Memory -> Memory
barrier thread m = setView thread v {viewFloor = memoryNow m, viewReleased = memoryNow m, viewLoose = False} m
  where
    v = viewOf thread m
