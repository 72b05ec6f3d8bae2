-- |
-- "Weft.Signal": who gets a signal, how often, and what is there afterwards.
module Spec.Signal
  ( tests,
  )
where

import Control.Concurrent.STM (atomically, orElse)
import Control.Exception
import Control.Monad
import Data.Bits (complement, (.&.))
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (create)
import Data.IORef
import Data.Word (Word8)
import Foreign.C.Error (eINVAL)
import Foreign.C.Types (CInt (..))
import Foreign.Ptr (Ptr, castPtr)
import Harness
import qualified System.Posix.Signals as Posix
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Process
import Weft.Scope (forkDaemon, race, withScope)
import Weft.Signal
import Weft.Socket (deadlineIn, isTimeout, noDeadline)
import Weft.Test.Forked (inChild)

-- | Store what the kernel does at a signal.
foreign import ccall "weft_signal_save" save :: CInt -> Ptr Word8 -> IO CInt

foreign import ccall "weft_signal_restore" restore :: CInt -> Ptr Word8 -> IO CInt

tests :: TestTree
tests =
  testGroup
    "Signal"
    [ test "a signal that was waited for before, and one that is waited for after it" . withSignals [one, other] $ \signals -> do
        waiting <- start (waitSignal signals noDeadline)
        blocked waiting >>= assertBool "it waits"
        Posix.raiseSignal one
        result "the signal" waiting >>= (@?= one)
        Posix.raiseSignal other
        next signals >>= (@?= other)
        nothing signals,
      test "one that comes again before it was waited for is noted once" . withSignals [one, other] $ \signals ->
        withSignals [one, other] $ \observer -> do
          -- Both note it at once.
          forM_ [one, one, other, one] $ \signal -> Posix.raiseSignal signal >> next observer
          next signals >>= (@?= one)
          next signals >>= (@?= other)
          nothing signals,
      test "a deadline, and an exception, take nothing" . withSignals [one] $ \signals -> do
        nothing signals
        waiting <- start (waitSignal signals noDeadline)
        _ <- blocked waiting
        stop waiting
        passed <- deadlineIn (milliseconds 0)
        Posix.raiseSignal one
        found <- start (next signals)
        result "the signal" found >>= (@?= one)
        e <- failure "a deadline that has passed" (waitSignal signals passed)
        assertBool (show e) (isTimeout e),
      test "each one goes to one of those that wait" . withSignals [one] $ \signals -> do
        waiting <- replicateM 3 (start (waitSignal signals noDeadline))
        mapM_ blocked waiting
        forM_ [1 .. 3 :: Int] $ \n -> do
          Posix.raiseSignal one
          eventually "one of them" ((== n) . length . filter not <$> mapM blocked waiting),
      -- The outermost block keeps GHC's handler: GHC changes its handlers under a lock that a fork may find held, too.
      test "forked while blocks begin and end" . withSignals [one] $ \_ -> withScope $ \scope -> do
        replicateM_ 4 (forkDaemon scope (forever (withSignals [one] (\_ -> pure ()))))
        replicateM_ (times 10) . inChild . withSignals [one] $ \signals -> Posix.raiseSignal one >> next signals >>= (@?= one),
      test "handlers come back as they were" . forM_ [one, sigINT, sigHUP, Posix.sigPIPE, sigCHLD] $ \signal -> keeping signal $ do
        calls <- newIORef (0 :: Int)
        forM_ [Nothing, Just Posix.Default, Just Posix.Ignore, Just (counting calls), Just (Posix.CatchOnce (pure ()))] $ \handler -> do
          previous <- traverse (\h -> Posix.installHandler signal h Nothing) handler
          before <- disposition signal
          within' signal $ \signals -> Posix.raiseSignal signal >> next signals >>= (@?= signal)
          during <- try (within' signal (\_ -> throwIO (userError "mine")))
          either (const (pure ()) :: IOException -> Assertion) pure during
          disposition signal >>= assertEqual "for the kernel" before
          forM_ previous $ \h -> Posix.installHandler signal h Nothing
        readIORef calls >>= (@?= 0)
        bracket (Posix.installHandler signal (counting calls) Nothing) (\h -> Posix.installHandler signal h Nothing) $ \_ -> do
          within' signal (\signals -> Posix.raiseSignal signal >> void (next signals))
          Posix.raiseSignal signal
          eventually "the handler is called" ((== 1) <$> readIORef calls),
      test "blocks that overlap end in either order" . forM_ [True, False] $ \firstEndsFirst -> do
        before <- disposition one
        [a, b] <- replicateM 2 (withBlock [one])
        forM_ [a, b] $ \(signals, _) -> nothing signals
        Posix.raiseSignal one
        forM_ [a, b] (next . fst)
        let (ended, left) = if firstEndsFirst then (a, b) else (b, a)
        stop (snd ended)
        Posix.raiseSignal one
        next (fst left) >>= (@?= one)
        stop (snd left)
        disposition one >>= assertEqual "for the kernel" before,
      test "what cannot be handled is an error, and leaves nothing" $ do
        before <- mapM disposition [one, other]
        forM_ [sigKILL, sigSTOP, 0, -1, 1000] $ \signal ->
          failsWith ("signal " <> show signal) eINVAL (withSignals [one, signal, other] (\_ -> pure ()))
        mapM disposition [one, other] >>= (@?= before)
        withSignals [] nothing,
      test "beside the end of a program" . withSignals [one, sigCHLD] $ \signals -> do
        first <- withProcess (program "sleep" ["60"]) $ \p -> do
          Posix.raiseSignal one
          race (waitSignal signals noDeadline) (waitProcess p noDeadline)
        first @?= Left one
        -- That of the child that was ended.
        next signals >>= (@?= sigCHLD)
        second <- withProcess (program "true" []) $ \p -> waitProcess p noDeadline
        second @?= Exited 0
        next signals >>= (@?= sigCHLD),
      test "many at once" . withSignals [one, other, final] $ \signals -> do
        taking <- start . forever $ waitSignal signals noDeadline
        parallel 4 (\n -> replicateM_ (times 100) (Posix.raiseSignal (if even n then one else other)))
        stop taking
        -- GHC goes through its queue in order: with the last one, nothing of this is left for the next test.
        Posix.raiseSignal final
        let untilFinal = next signals >>= \signal -> when (signal /= final) untilFinal
            untilNothing = do
              short <- deadlineIn (milliseconds 100)
              r <- try (waitSignal signals short)
              either (const (pure ()) :: IOException -> IO ()) (const untilNothing) r
        untilFinal
        untilNothing,
      test "in a transaction" . withSignals [one] $ \signals -> do
        Posix.raiseSignal one
        _ <- next signals
        -- GHC may still have some of the test before in its queue.
        eventually "nothing is noted" ((== Nothing) <$> atomically ((Just <$> waitSignalSTM signals) `orElse` pure Nothing))
    ]

-- | Signals that do nothing by default, and for which nobody has a handler: one that GHC is late with harms no other
-- test.
one, other, final :: Signal
one = sigCONT
other = Posix.sigURG
-- SIGWINCH; unix has no name for it.
final = 28

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

next :: Signals -> IO Signal
next signals = deadlineIn (seconds 15) >>= waitSignal signals

-- | Nothing is noted.
nothing :: Signals -> Assertion
nothing signals = do
  short <- deadlineIn (milliseconds 10)
  e <- failure "waiting" (waitSignal signals short)
  assertBool (show e) (isTimeout e)

counting :: IORef Int -> Posix.Handler
counting calls = Posix.Catch (atomicModifyIORef' calls (\n -> (n + 1, ())))

within' :: Signal -> (Signals -> IO a) -> IO a
within' signal = withSignals [signal]

-- | The handler, the signals that are blocked in it, and the flags, as the C library for Linux has them. (Behind the 64
-- signals of the kernel there is room for more, which is left as it was.)
disposition :: Signal -> IO B.ByteString
disposition signal = parts <$> B.create 256 (void . save signal)
  where
    parts bytes = B.take 16 bytes <> B.map (.&. complement restorer) (B.take 4 (B.drop 136 bytes))
    -- @SA_RESTORER@, in the last byte, which the C library adds for itself.
    restorer = 4

-- | What the kernel does at the signal afterwards is what it did before. ('Posix.installHandler' does not put back all:
-- the run-time system's handler for @SIGPIPE@ becomes the default action.)
keeping :: Signal -> IO a -> IO a
keeping signal act = do
  bytes <- B.create 256 (void . save signal)
  act `finally` B.useAsCString bytes (restore signal . castPtr)

-- | A block in a thread of its own, which ends when the thread is stopped.
withBlock :: [Signal] -> IO (Signals, Task ())
withBlock wanted = do
  given <- newIORef Nothing
  task <- start . withSignals wanted $ \signals -> do
    writeIORef given (Just signals)
    forever (pause 100000)
  eventually "the block has begun" (not . null <$> readIORef given)
  signals <- readIORef given >>= maybe (assertFailure "no signals") pure
  pure (signals, task)
