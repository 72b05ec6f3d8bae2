-- | The model of the file ring's protocol ("FileRing"), which the suite @wake@ runs in every order, in lockstep with
-- the C: the same operations, and then the same words, the same entries for the kernel and the same results.
module Main (main) where

import Control.Exception (bracket)
import Control.Monad
import Data.IORef
import Data.Int (Int32, Int64)
import Data.Word (Word32)
import FileRing
import Foreign.C.Types (CInt (..))
import Foreign.Marshal.Alloc (alloca)
import Foreign.Marshal.Array (allocaArray, peekArray)
import Foreign.Ptr (Ptr, intPtrToPtr, nullPtr)
import Foreign.Storable (peek, poke)
import System.Environment (setEnv)
import Test.QuickCheck hiding (collect)
import Test.Tasty hiding (defaultMain)
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck (testProperty)
import Weft.Test.Main (defaultMain)

data CFileRing

foreign import ccall unsafe "steps_new" c_new :: Word32 -> IO (Ptr CFileRing)

foreign import ccall unsafe "steps_free" c_free :: Ptr CFileRing -> IO ()

foreign import ccall unsafe "steps_pointers_freed" c_pointersFreed :: IO CInt

foreign import ccall unsafe "steps_used" c_used :: Ptr CFileRing -> Word32 -> Word32 -> IO ()

foreign import ccall unsafe "steps_submit" c_submit :: Ptr CFileRing -> Word32 -> IO ()

foreign import ccall unsafe "steps_meanwhile" c_meanwhile :: CInt -> Word32 -> Word32 -> IO ()

foreign import ccall unsafe "steps_turn" c_turn :: Ptr CFileRing -> IO ()

foreign import ccall unsafe "steps_complete" c_complete :: Word32 -> Word32 -> CInt -> IO ()

foreign import ccall unsafe "steps_submissions" c_submissions :: Ptr Int32 -> IO CInt

foreign import ccall unsafe "steps_observe" c_observe :: Ptr CFileRing -> Ptr Int64 -> IO CInt

foreign import ccall unsafe "weft_file_ring_cancel" c_cancel :: Ptr CFileRing -> Word32 -> Word32 -> IO ()

foreign import ccall unsafe "weft_file_ring_collect" c_collect :: Ptr CFileRing -> Ptr Word32 -> Ptr Int32 -> CInt -> IO CInt

foreign import ccall unsafe "weft_file_ring_await" c_await :: Ptr CFileRing -> Ptr () -> IO (Ptr ())

foreign import ccall unsafe "weft_file_ring_wake" c_wake :: Ptr CFileRing -> IO ()

foreign import ccall unsafe "weft_file_ring_generation" c_generation :: Ptr CFileRing -> Word32 -> IO Word32

main :: IO ()
main = do
  setEnv "TASTY_NUM_THREADS" "1"
  defaultMain . testGroup "file-ring" $
    [ testProperty "random operations, in C and in the model" (withMaxSuccess 2000 (forAllShrink (listOf step) (shrinkList (const [])) (agrees production))),
      testCase "a model that is wrong is found out" $ do
        found <- mapM notAgreeing [production {cancelKeepsNewer = False}, production {submitWakes = False}, production {cancelWakes = False}, production {readerWakes = False}]
        found @?= [True, True, True, True],
      testCase "a request is cancelled after 2^31 requests of its slot that were not" . bracket (c_new 1) c_free $ \c -> allocaArray 6 $ \entries -> do
        c_used c 0 0x80000000
        c_submit c 0
        c_cancel c 0 0x80000001
        c_turn c
        k <- c_submissions entries
        asked <- peekArray (3 * fromIntegral k) entries
        asked @?= [0, 0, minBound + 1, 1, 0, minBound + 1],
      testCase "the pointer of a reader that waits is freed with the ring" $ do
        before <- c_pointersFreed
        bracket (c_new 1) c_free $ \c -> c_await c (intPtrToPtr 1) >>= (@?= nullPtr)
        c_pointersFreed >>= (@?= before + 1)
    ]

-- | Is it told from the C?
notAgreeing :: Protocol -> IO Bool
notAgreeing protocol = not . isSuccess <$> quickCheckWithResult stdArgs {chatty = False, maxSuccess = 4000} (forAll (listOf step) (agrees protocol))

data Step
  = Submit Int
  | -- | The present request of a slot, or an earlier one.
    Cancel Int Int
  | -- | These are done while the owner sleeps, if it does, else after its turn.
    Turn [Meanwhile]
  | -- | A request that the kernel has, with that result.
    Complete Int Int
  | Collect Int
  | Await
  | WakeOwner
  deriving (Show)

data Meanwhile = Submits Int | Cancels Int Int | Wakes
  deriving (Show)

slotCount :: Int
slotCount = 5

step :: Gen Step
step =
  frequency
    [ (4, Submit <$> slot),
      (3, Cancel <$> slot <*> choose (0, 2)),
      (4, Turn <$> frequency [(1, pure []), (1, resize 4 (listOf (oneof [Submits <$> slot, Cancels <$> slot <*> choose (0, 2), pure Wakes])))]),
      (4, Complete <$> choose (0, 10) <*> choose (-5, 100)),
      (3, Collect <$> choose (1, 3)),
      (2, pure Await),
      (2, pure WakeOwner)
    ]
  where
    slot = choose (0, slotCount - 1)

agrees :: Protocol -> [Step] -> Property
agrees protocol steps = ioProperty . bracket (c_new (fromIntegral slotCount)) c_free $ \c -> do
  submitted <- newIORef []
  completions <- newIORef []
  inKernel <- newIORef []
  free <- newIORef [0 .. slotCount - 1]
  rest <- newIORef 0
  meanwhile <- newIORef (pure ())
  model <-
    newFileRing
      protocol
      Kernel
        { kernelSubmit = \es -> modifyIORef submitted (<> es) >> modifyIORef inKernel (<> [n | Request n <- es]),
          kernelWait = join (readIORef meanwhile),
          kernelReap = readIORef completions <* writeIORef completions [],
          kernelSignal = pure (),
          kernelRing = pure ()
        }
      slotCount
  allocaArray 1000 $ \words' -> allocaArray 3000 $ \entries -> allocaArray 20 $ \pairs -> alloca $ \list -> do
    poke list 0
    let same what a b = if a == b then pure Nothing else pure (Just (what <> ": " <> show a <> " in C, " <> show b <> " in the model"))
        -- The results of both for a valid operation; Nothing if they agree.
        run s = case s of
          Submit slot -> do
            unused <- readIORef free
            if slot `notElem` unused
              then pure Nothing
              else do
                writeIORef free (filter (/= slot) unused)
                g <- c_generation c (fromIntegral slot)
                g' <- nextGeneration model slot
                c_submit c (fromIntegral slot)
                submit model slot
                same "generation" (fromIntegral g) g'
          Cancel slot back -> do
            g <- subtract (1 + back) <$> nextGeneration model slot
            if g < 1
              then pure Nothing
              else do
                c_cancel c (fromIntegral slot) (fromIntegral g)
                Nothing <$ cancel model (Name slot g)
          Turn others -> do
            forM_ others $ \o -> case o of
              Submits slot -> do
                unused <- readIORef free
                when (slot `elem` unused) $ do
                  writeIORef free (filter (/= slot) unused)
                  c_meanwhile 0 (fromIntegral slot) 0
                  modifyIORef meanwhile (>> submit model slot)
              Wakes -> c_meanwhile 2 0 0 >> modifyIORef meanwhile (>> wakeOwner model)
              Cancels slot back -> do
                g <- subtract (1 + back) <$> nextGeneration model slot
                when (g >= 1) $ do
                  c_meanwhile 1 (fromIntegral slot) (fromIntegral g)
                  modifyIORef meanwhile (>> cancel model (Name slot g))
            -- They are done once.
            modifyIORef meanwhile (writeIORef meanwhile (pure ()) >>)
            c_turn c
            turn model
            Nothing <$ join (readIORef meanwhile)
          Complete k result -> do
            there <- readIORef inKernel
            case there of
              [] -> pure Nothing
              _ -> do
                let n@(Name slot g) = there !! (k `mod` length there)
                writeIORef inKernel (filter (/= n) there)
                c_complete (fromIntegral slot) (fromIntegral g) (fromIntegral result)
                Nothing <$ modifyIORef completions (<> [(n, result)])
          Collect most -> do
            n <- c_collect c list pairs (fromIntegral most)
            got <- map fromIntegral <$> peekArray (2 * fromIntegral n) pairs
            (got', left') <- readIORef rest >>= \l -> collect model l most
            writeIORef rest left'
            modifyIORef free (<> map fst got')
            left <- peek list
            same "collect" (got, fromIntegral left) (concat [[a, b] | (a, b) <- got'], left')
          Await -> do
            back <- c_await c (intPtrToPtr 1)
            left <- await model
            same "await" (back == nullPtr) left
          WakeOwner -> c_wake c >> Nothing <$ wakeOwner model
        compared = do
          n <- c_observe c words'
          inC <- map fromIntegral <$> peekArray (fromIntegral n) words'
          inModel <- observe model
          k <- c_submissions entries
          asked <- map fromIntegral <$> peekArray (3 * fromIntegral k) entries
          asked' <- concatMap entryOf <$> readIORef submitted
          writeIORef submitted []
          (<>) <$> same "words" inC inModel <*> same "entries" asked (asked' :: [Int])
        go [] = pure (property True)
        go ((i, s) : more) = do
          r <- (<>) <$> run s <*> compared
          maybe (go more) (\why -> pure (counterexample ("step " <> show (i :: Int) <> ", " <> show s <> ": " <> why) False)) r
    go (zip [0 ..] steps)
  where
    entryOf (Request (Name s g)) = [0, s, g]
    entryOf (Cancellation (Name s g)) = [1, s, g]
