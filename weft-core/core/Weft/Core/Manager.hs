-- | The event manager: a back end, a registry, timers and a sleep protocol, run by one thread. A program's dispatchers
-- are managers, one a capability, that share a registry; an event-driven program makes managers of its own. Its three
-- jobs are a module each: the state and lifecycle, the turns, and the timers.
--
-- The runner is the thread that runs the manager. Exceptions thrown at it arrive between turns: 'loop' then stops the
-- manager, and a caller of 'step' has lost nothing and may go on. A turn is uninterruptible, because the kernel reports
-- a one-shot or edge-triggered event only once, and a callback that was taken out of the registry must run. Only the
-- kernel, where GHC interrupts no thread, and callbacks, which must not block, may take long. "Weft.Event" makes
-- callbacks of users interruptible again; no exception that ends one ends the turn ("Weft.Core.Boundary").
module Weft.Core.Manager
  ( Manager,
    newManager,
    newManagerRegistry,
    managerBackend,
    managerRegistry,
    managerCounters,
    managerLatency,
    managerLateness,
    managerPending,
    managerHeartbeat,
    managerEventLog,
    managerIndex,
    isAlive,
    sameManager,

    -- * Running
    initialize,
    step,
    loop,
    wakeManager,
    unlessFinished,
    requestStop,
    shutdown,
    discard,

    -- * Within a larger loop
    poll,
    block,
    setExternalHandler,
    orphanTimers,

    -- * Timers
    addTimer,
    addOptionalTimer,
    addOwnTimer,
    moveTimer,
  )
where

import Weft.Core.Manager.Lifecycle
import Weft.Core.Manager.Timers
import Weft.Core.Manager.Turn
