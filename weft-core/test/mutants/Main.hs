-- |
-- Planted bugs: the suite @wake@ is built from copies of the core in each of which one thing is wrong, and has to
-- find it. A mutant that survives is a hole in the search. Needs ghc; run by @make verify@ (@WEFT_MUTANTS=1@), in the folder
-- of the package.
module Main (main) where

import Control.Monad (forM_)
import Data.List (isInfixOf, isPrefixOf, stripPrefix)
import System.Directory
import System.Environment (lookupEnv, setEnv)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Process (readProcessWithExitCode)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Test.Skip (skipAll)

main :: IO ()
main = do
  wanted <- lookupEnv "WEFT_MUTANTS"
  ghc <- findExecutable "ghc"
  -- Few interruptions find all of these.
  setEnv "WEFT_SIM_PREEMPTIONS" "3"
  defaultMain . localOption (mkTimeout 120000000) $ case (wanted, ghc) of
    (Nothing, _) -> skipAll "planted bugs" "takes minutes: WEFT_MUTANTS=1, or make verify" (testGroup "mutants" (map test mutants))
    (_, Nothing) -> skipAll "planted bugs" "there is no ghc" (testGroup "mutants" (map test mutants))
    _ -> testGroup "mutants" (testCase "unchanged, the core passes" (caught Nothing >>= (@?= Passed)) : map test mutants)
  where
    test m = testCase (mutantName m) (caught (Just m) >>= (@?= Caught))

-- | Something wrong: what it is, the module, and a piece of its text with what takes its place.
data Mutant = Mutant
  { mutantName :: String,
    mutantModule :: FilePath,
    mutantBefore :: String,
    _mutantAfter :: String
  }

data Verdict = Passed | Caught
  deriving (Eq, Show)

-- | Build and run the suite. Whatever does not build, or runs without a failure of one of its searches, is neither
-- caught nor passed, and fails here.
caught :: Maybe Mutant -> IO Verdict
caught mutant = do
  tmp <- getTemporaryDirectory
  let place = tmp </> ("weft-mutant-" <> maybe "none" (filter (`elem` ['a' .. 'z']) . mutantName) mutant)
  removePathForcibly place
  createDirectoryIfMissing True (place </> "core" </> "Weft" </> "Core" </> "Timer")
  forM_ modules $ \name -> do
    source <- readFile ("core" </> "Weft" </> "Core" </> name)
    changed <- case mutant of
      Just m | mutantModule m == name -> maybe (assertFailure ("not in the source any more: " <> mutantBefore m)) pure (replaced m source)
      _ -> pure source
    writeFile (place </> "core" </> "Weft" </> "Core" </> name) changed
  let program = place </> "wake"
  (built, _, why) <-
    readProcessWithExitCode
      "ghc"
      ["-v0", "-w", "-O0", "-XHaskell2010", "-XBangPatterns", "-isim:" <> (place </> "core") <> ":test/wake", "-outputdir", place </> "o", "-o", program, "test/wake/Main.hs"]
      ""
  built == ExitSuccess @? ("it does not build: " <> why)
  (ended, out, _) <- readProcessWithExitCode "timeout" ["60", program, "--color", "never"] ""
  removePathForcibly place
  case ended of
    ExitSuccess -> pure Passed
    ExitFailure 1 | "by the schedule" `isInfixOf` out -> pure Caught
    _ -> assertFailure ("it ended with " <> show ended <> "\n" <> out)
  where
    modules = ["Events.hs", "Readiness.hs", "Time.hs", "Timer.hs", "Timers.hs", "UseCount.hs", "Wake.hs"]

-- | Nothing unless the piece is there, once.
replaced :: Mutant -> String -> Maybe String
replaced (Mutant _ _ before instead) = go
  where
    go [] = Nothing
    go s | Just rest <- stripPrefix before s = if before `isInfixOf` rest then Nothing else Just (instead <> rest)
    go (c : cs)
      | "--" `isPrefixOf` (c : cs) = let (comment, rest) = break (== '\n') (c : cs) in (comment <>) <$> go rest
      | otherwise = (c :) <$> go cs

mutants :: [Mutant]
mutants =
  [ Mutant "announces by a plain write, over a notification" "Wake.hs" "found <- casWord w 0 asAwake (asAsleep t)\n" "found <- readWord w 0\n  writeWord w 0 (asAsleep t)\n",
    Mutant "sleeps although it was notified" "Wake.hs" "else False <$ writeWord w 0 asAwake" "else True <$ writeWord w 0 (asAsleep t)",
    Mutant "a notification does not say that the owner slept" "Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "False <$ swapWord w 0 asNotified",
    Mutant "a notification signals to an owner that runs" "Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "True <$ swapWord w 0 asNotified",
    Mutant "a notification reads, then writes" "Wake.hs" "(> asNotified) <$> swapWord w 0 asNotified" "(readWord w 0 >>= \\s -> (s > asNotified) <$ writeWord w 0 asNotified)",
    Mutant "the owner stays asleep after it woke" "Wake.hs" "awaken (Wake w) = writeWord w 0 asAwake" "awaken (Wake _) = pure ()",
    Mutant "a timer that is due earlier does not wake" "Wake.hs" "s <= asNotified || s <= asAsleep due = pure False" "s <= asNotified || s > asAsleep due = pure False",
    Mutant "two timers both signal" "Wake.hs" "if found == s then pure True else go found" "pure True",
    Mutant "the last user does not close" "UseCount.hs" "if old .&. flagShut /= 0 then claim l else pure False" "pure (old .&. flagShut < 0)",
    Mutant "every user closes" "UseCount.hs" "if old .&. flagShut /= 0 then claim l else pure False" "pure (old .&. flagShut /= 0)",
    Mutant "who shuts closes under its users" "UseCount.hs" "ours l w && w .&. (flagReleased .|. usersMask) == 0" "ours l w && w .&. flagReleased == 0",
    Mutant "two close" "UseCount.hs" "ours l w && w .&. (flagReleased .|. usersMask) == 0" "ours l w && w .&. usersMask == 0",
    Mutant "enters after it was shut" "UseCount.hs" "not (ours l w) || w .&. (flagShut .|. flags) /= 0 = pure False" "not (ours l w) || w .&. flags /= 0 = pure False",
    Mutant "enters by a plain write" "UseCount.hs" "found <- casWord ws i w (w + oneUser)\n        if found == w then pure True else go found" "writeWord ws i (w + oneUser)\n        pure True",
    Mutant "close wakes nobody" "Readiness.hs" "when (outcome /= WasShut) (wakeAll rd)" "when (outcome == WasShut) (wakeAll rd)",
    Mutant "a timer fires although it was cancelled" "Timer.hs" "defuseTimer (Timer _ ref) = won <$> swapRef ref Spent" "defuseTimer (Timer _ ref) = won <$> readRef ref",
    Mutant "a cancel that came late counts" "Timer.hs" "    won Spent = False\n    won _ = True" "    won Spent = True\n    won _ = True",
    Mutant "firing reads, then writes" "Timer.hs" "fireTimer why (Timer due ref) = do\n  state <- swapRef ref Spent\n" "fireTimer why (Timer due ref) = do\n  state <- readRef ref\n  writeRef ref Spent\n",
    Mutant "setting a timer loses others" "Timers.hs" "done <- casRef (timersInbox ts) below node\n" "done <- True <$ writeRef (timersInbox ts) node\n",
    Mutant "taking the inbox reads, then writes" "Timers.hs" "(`listed` []) <$> swapRef (timersInbox ts) Empty" "(readRef (timersInbox ts) >>= \\i -> listed i [] <$ writeRef (timersInbox ts) Empty)"
  ]
