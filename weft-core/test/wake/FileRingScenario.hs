-- | The ring for files ("FileRing", a model that the suite @file-ring@ compares with the C code in lockstep): its
-- owner, its reader, and threads that submit and cancel.
module FileRingScenario
  ( fileRingTests,
  )
where

import Control.Monad
import Data.IORef
import FileRing
import Search
import Simulation
import Test.Tasty
import Weft.Sys

-- | The operation of a thread that uses the ring, in a slot of its own, one request after the other.
data Use
  = -- | A read that ends by itself.
    Reads'
  | -- | One that never ends, and is cancelled.
    CutShort
  | -- | The same, by another thread, which may come late: the next request in the slot is cancelled in its turn.
    CutByAnother

-- | The kernel: requests in it, and completions.
data Within = Within [Name] [(Name, Int)] Bool

-- | Each thread makes this many requests in its slot. All must complete, once.
scenario :: Protocol -> [(Use, Int)] -> IO Scenario
scenario p uses = do
  within <- newIORef (Within [] [] False)
  signal <- newEmptyMVar
  faults <- newIORef []
  ended <- newIORef [0 | _ <- uses]
  freed <- forM uses (const newEmptyMVar)
  cancels <- forM uses (const newEmptyMVar)
  let finite (Name slot _) = case fst (uses !! slot) of Reads' -> True; _ -> False
      inKernel what f = touch (Writes kernelObject) what >> modifyIORef within f
      enter (Within inside cs s) e = case e of
        -- A finite one may be done at once.
        Request n
          | finite n -> Within inside (cs <> [(n, 1)]) s
          | otherwise -> Within (inside <> [n]) cs s
        Cancellation n
          | n `elem` inside -> Within (filter (/= n) inside) (cs <> [(n, -125)]) s
          | otherwise -> Within inside cs s
  ring <-
    newFileRing
      p
      Kernel
        { kernelSubmit = \es -> inKernel ("submits " <> show es) (\w -> foldl enter w es),
          kernelWait = blockInKernel ((\(Within _ cs s) -> s || not (null cs)) <$> readIORef within) maxBound (Writes kernelObject) "io_uring_enter",
          kernelReap = do
            touch (Writes kernelObject) "reaps"
            Within inside cs _ <- readIORef within
            cs <$ writeIORef within (Within inside [] False),
          kernelSignal = inKernel "signals" (\(Within inside cs _) -> Within inside cs True),
          kernelRing = void (tryPutMVar signal ())
        }
      (length uses)
  let total = sum (map snd uses)
      owner = turn ring >> owner
      reader list seen = when (seen < total) $ do
        (found, left) <- collect ring list 2
        if null found
          then do
            waits <- await ring
            when waits (takeMVar signal)
            reader left seen
          else do
            forM_ found $ \(slot, result) -> do
              let expected = case fst (uses !! slot) of Reads' -> 1; _ -> -125
              when (result /= expected) (modifyIORef faults (("slot " <> show slot <> " ended with " <> show result) :))
              modifyIORef ended (\es -> [if i == slot then e + 1 else e | (i, e) <- zip [0 ..] es])
              void (tryPutMVar (freed !! slot) ())
            wakeOwner ring
            reader left (seen + length found)
      user slot (use, n) = replicateM_ n $ do
        g <- nextGeneration ring slot
        submit ring slot
        case use of
          Reads' -> pure ()
          CutShort -> cancel ring (Name slot g)
          CutByAnother -> putMVar (cancels !! slot) g
        takeMVar (freed !! slot)
      canceller slot n = replicateM_ n (takeMVar (cancels !! slot) >>= cancel ring . Name slot)
      check stuck = do
        done <- readIORef ended
        wrong <- readIORef faults
        pure $ case () of
          _
            | why : _ <- wrong -> Just why
            | done /= map snd uses -> Just ("ended " <> show done)
            | any (> 0) stuck -> Just ("stuck: threads " <> show stuck)
            | otherwise -> Nothing
  pure (Scenario ([owner, reader 0 0] <> zipWith user [0 ..] uses <> [canceller slot n | (slot, (CutByAnother, n)) <- zip [0 ..] uses]) check)

fileRingTests :: IO TestTree
fileRingTests = do
  more <- large (holdsWithin 3 "a read and one that is cut short, deeper" (scenario production [(Reads', 1), (CutShort, 1)]))
  pure . testGroup "the ring for files" $
    [ holdsWithin 2 "a read" (scenario production [(Reads', 1)]),
      holdsWithin 2 "one that is cut short" (scenario production [(CutShort, 1)]),
      holdsWithin 1 "a read and one that is cut short" (scenario production [(Reads', 1), (CutShort, 1)]),
      holdsWithin 2 "two reads, one after the other" (scenario production [(Reads', 2)]),
      holdsWithin 1 "two cut short by another thread" (scenario production [(CutByAnother, 2)]),
      testGroup
        "broken on purpose"
        [ isFoundWithin 2 "the inbox is taken before the bits of cancellations" (scenario production {bitsFirst = False} [(CutShort, 1)]),
          isFoundWithin 2 "the owner does not look again" (scenario production {ownerLooksAgain = False} [(Reads', 1)]),
          isFoundWithin 3 "nobody wakes the owner for a request" (scenario production {submitWakes = False} [(Reads', 1)]),
          isFoundWithin 2 "nobody wakes the owner for a cancel" (scenario production {cancelWakes = False} [(CutShort, 1)]),
          isFoundWithin 2 "the reader does not look again" (scenario production {readerLooksAgain = False} [(Reads', 1)]),
          isFoundWithin 1 "the reader does not wake the owner" (scenario production {readerWakes = False} [(Reads', 2)])
        ]
    ]
      <> more
