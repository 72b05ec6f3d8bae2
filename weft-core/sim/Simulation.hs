-- |
-- A scheduler for tests. Simulated threads are real threads, only one of which runs at a time: each stops before every
-- operation on shared state ("Weft.Sys" of this directory, and "Kernel") until the scheduler chooses it. A
-- schedule is the list of these choices. A search runs a scenario from its beginning under each of many schedules.
--
-- Time is virtual. The clock counts as one more thread, whose step moves time to the next instant for which a thread
-- waits. The scheduler may choose the clock while other threads could continue; this simulates slow threads.
--
-- To keep schedules short, an operation is a scheduling point only if its object is shared: several threads use it,
-- and one of them writes. The search learns at run time which objects are shared, and starts again when it learns of
-- another one.
--
-- There can be one simulation at a time in a process.
--
-- Scenarios import this module. It consists of "Simulation.World" (the state of a run), "Simulation.Machine" (what a
-- simulated thread calls), "Simulation.Memory" and "Simulation.Location" (which writes a read may miss),
-- "Simulation.Run" (one run) and "Simulation.Search" (many runs).
module Simulation
  ( -- * Running
    Scenario (..),
    Outcome (..),
    Schedule,
    runSchedule,
    replay,
    seeded,

    -- * Searches
    Explored (..),
    explore,
    exploreWithin,
    exploreReduced,
    sample,
    shorten,

    -- * For the simulated machine
    Object,
    newObject,
    newObjects,
    Global,
    newGlobal,
    ofThisRun,
    Access (..),
    kernelObject,
    point,
    touch,
    blockUntil,
    blockOn,
    blockInKernel,
    sleepUntil,
    giveWay,
    choose,
    note,
    virtualTime,
    patientClock,

    -- * Memory
    weakMemory,
    History,
    newHistory,
    readPlainly,
    readAtomically,
    writePlainly,
    writeReleasing,
    exchange,
    refuseExchange,
    synchronise,

    -- * Threads and exceptions
    Masking (..),
    spawn,
    runNumber,
    currentThread,
    throwTo',
    throwSoon,
    postpone,
    withMasking,
    getMasking,
    catching,
  )
where

import Simulation.Location
import Simulation.Machine
import Simulation.Run
import Simulation.Search
import Simulation.World
