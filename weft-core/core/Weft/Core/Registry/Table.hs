-- |
-- The table of the registry ("Weft.Core.Registry"), which alone uses it: what is known of each descriptor.
module Weft.Core.Registry.Table
  ( Registry (..),
    newRegistry,
    registeredCount,
    stripeCount,
    stripe,
    stripeOf,
    nextNumber,
    countDescriptors,

    -- * Its parts
    ManagerOps (..),
    Callback,
    Registration (..),
    Known (..),
    Entry (..),
    everyRegistration,
    inserted,
    store,
    Slot (..),
    lookupSlot,
    setSlot,
  )
where

import Control.Monad (forM_, void)
import Data.Bits ((.&.))
import qualified Data.IntMap.Strict as IntMap
import System.Posix.Types (Fd)
import Weft.Core.Backend
import Weft.Core.Events
import Weft.Core.Readiness
import Weft.Sys

-- | The operations of a manager that the registry uses.
data ManagerOps m = ManagerOps
  { opsBackend :: m -> Backend,
    -- | Whether it may be given registrations: it is this process's, and not stopped.
    opsAlive :: m -> IO Bool,
    opsSame :: m -> m -> Bool,
    -- | Wake it, so that it sees what was armed.
    opsWake :: m -> IO (),
    -- | Add a number, which may be negative, to its count of descriptors.
    opsCount :: m -> Int -> IO ()
  }

-- | A callback; it gets the events that it asked for and that have happened.
type Callback = Events -> IO ()

-- | A registered callback.
data Registration = Registration
  { -- | Unique within the registry.
    registrationKey :: !Int,
    registrationEvents :: !Events,
    registrationLifetime :: !Lifetime,
    registrationCallback :: !Callback
  }

-- | The entry of a descriptor in a stripe.
data Known m
  = Registered !(Entry m)
  | -- | It is being closed; the MVar is full when that is done.
    Closing !(MVar ())
  | -- | A manager's own descriptor.
    Reserved

-- | The registrations of one descriptor; at least one, due or not.
data Entry m = Entry
  { -- | The generation of the last arming; an event with another one is stale.
    entryGeneration :: !Int,
    -- | The manager whose kernel object the descriptor is armed in.
    entryManager :: !m,
    entryRegistrations :: [Registration],
    -- | One-shot registrations whose event has happened, and whose callbacks have not begun: they wait for the
    -- callbacks of others. The kernel reports no more events for them.
    entryDue :: [Registration]
  }

-- | A tracked descriptor and the manager that reports its events.
data Slot m = Vacant | Attached !Readiness !m

-- | The table. The stripes are changed under their locks. The slots are written under the lock of the
-- descriptor's stripe and 'slotsLock', and read by any thread without a lock.
data Registry m = Registry
  { managerOps :: !(ManagerOps m),
    stripes :: !(BoxedArray (MVar (IntMap.IntMap (Known m)))),
    slots :: !(Ref (BoxedArray (Slot m))),
    slotsLock :: !(MVar ()),
    -- | Word 0: the next generation or key. Word 1: the number of descriptors in the registry.
    numbers :: !WordArray
  }

-- | The number of stripes, and of slots at the beginning.
stripeCount, firstSlots :: Int
stripeCount = 32
firstSlots = 256

-- | An empty registry.
newRegistry :: ManagerOps m -> IO (Registry m)
newRegistry h = do
  locks <- newBoxedArray stripeCount =<< newMVar IntMap.empty
  forM_ [0 .. stripeCount - 1] $ \i -> writeBoxedArray locks i =<< newMVar IntMap.empty
  counts <- newWordArray 2
  -- A forked child starts its numbers elsewhere than its parent: it inherits
  -- tracked descriptors that carry the parent's.
  generation <- forkGeneration
  writeWord counts 0 (generation * 0x1000000)
  Registry h locks <$> (newRef =<< newOwnArray firstSlots Vacant) <*> newMVar () <*> pure counts

-- | The stripe of a descriptor.
stripe :: Registry m -> Fd -> IO (MVar (IntMap.IntMap (Known m)))
stripe r fd = readBoxedArray (stripes r) (stripeOf fd)

-- | The number of a descriptor's stripe.
stripeOf :: Fd -> Int
stripeOf fd = fromIntegral fd .&. (stripeCount - 1)

-- | A new number for a key or a generation, of 30 bits.
nextNumber :: Registry m -> IO Int
nextNumber r = (.&. 0x3fffffff) <$> addWord (numbers r) 0 1

-- | The number of descriptors that have registrations or are tracked and attached.
registeredCount :: Registry m -> IO Int
registeredCount r = peekWord (numbers r) 1

-- | Add to the number of descriptors, here and in that manager.
countDescriptors :: Registry m -> m -> Int -> IO ()
countDescriptors r m n = void (addWord (numbers r) 1 n) >> opsCount (managerOps r) m n

-- Entries ----------------------------------------------------------------------------

-- | Those that are due included.
everyRegistration :: Entry m -> [Registration]
everyRegistration e = entryRegistrations e <> entryDue e

-- | Store an entry, or remove it if nothing is left of it.
store :: Registry m -> Fd -> Entry m -> IntMap.IntMap (Known m) -> IO (IntMap.IntMap (Known m))
store r fd e table
  | null (entryRegistrations e) && null (entryDue e) = IntMap.delete (fromIntegral fd) table <$ countDescriptors r (entryManager e) (-1)
  | otherwise = pure (inserted fd e table)

-- | A stripe's table with an entry for a descriptor, in place of what was there.
inserted :: Fd -> Entry m -> IntMap.IntMap (Known m) -> IntMap.IntMap (Known m)
inserted fd = IntMap.insert (fromIntegral fd) . Registered

-- Slots ------------------------------------------------------------------------------

-- | The slot of a descriptor; without a lock.
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
