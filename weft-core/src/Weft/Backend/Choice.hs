-- |
-- Choosing a back end; documented in "Weft.Backend".
module Weft.Backend.Choice
  ( -- * The back ends of this build
    backendNames,
    whyUnavailable,

    -- * Choosing
    preferBackend,
    backendChoice,
    Choice (..),

    -- * Making one
    Backend,
    newDefaultBackend,
    chooseBackend,
    newBackend,
    backendName,
  )
where

import Control.Concurrent (rtsSupportsBoundThreads)
import Control.Monad (join, unless)
import Data.IORef
import Data.List (find, intercalate)
import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Backend.Platform (platformBackends)
import Weft.Backend.Type
import Weft.Backend.Unthreaded
import Weft.Core.Backend (Backend (backendDescriptors, backendName))
import Weft.StandardError (reportLine)

-- | Names for @WEFT_BACKEND@ and 'newBackend', the preferred one first.
backendNames :: [String]
backendNames = map candidateName platformBackends

-- | The reason for which a back end cannot be used on this machine; 'Nothing' if it can. Throws
-- a user error if there is no back end of that name.
whyUnavailable :: String -> IO (Maybe String)
whyUnavailable name = whyNot =<< candidate name

whyNot :: Candidate -> IO (Maybe String)
whyNot c
  | rtsSupportsBoundThreads || candidatePollable c = candidateAvailable c
  | otherwise = pure (Just unthreadedReason)

-- | Use this back end for the managers that are made from now on, instead of the one of
-- @WEFT_BACKEND@. Throws a user error if there is no back end of that name.
preferBackend :: String -> IO ()
preferBackend name = do
  _ <- candidate name
  writeIORef preference (Just name)

preference :: IORef (Maybe String)
preference = unsafePerformIO (newIORef Nothing)
{-# NOINLINE preference #-}

-- | The back end that is used, and, if another one was requested, why that is not.
data Choice = Choice
  { choiceBackend :: String,
    -- | The back end that was requested but cannot be used, and the reason.
    choiceRefused :: Maybe (String, String)
  }
  deriving (Eq, Show)

-- | The back end of the managers that are made from now on.
backendChoice :: IO Choice
backendChoice = do
  set <- readIORef preference
  env <- lookupEnv "WEFT_BACKEND"
  case maybe env Just set of
    Just name | not (null name) -> do
      why <- whyUnavailable name
      case why of
        Nothing -> pure (Choice name Nothing)
        Just reason -> (\c -> c {choiceRefused = Just (name, reason)}) <$> firstAvailable
    _ -> firstAvailable
  where
    firstAvailable = go platformBackends
    go [] = ioError (userError "weft: this machine offers no event mechanism that this build knows")
    go (c : cs) = maybe (pure (Choice (candidateName c) Nothing)) (const (go cs)) =<< whyNot c

-- | A new back end of the kind that 'backendChoice' names.
newDefaultBackend :: IO Backend
newDefaultBackend = join chooseBackend

-- | An action that finds out which back end to use ('backendChoice'), and makes it. The action makes system calls only:
-- it uses no handles, and waits for no thread.
chooseBackend :: IO (IO Backend)
chooseBackend = (make . choiceBackend =<< backendChoice) <$ warnUnthreaded

-- | A new back end of that name. Throws a user error if there is none of that name,
-- and an 'IOError' if the kernel refuses it.
newBackend :: String -> IO Backend
newBackend name = warnUnthreaded >> make name

make :: String -> IO Backend
make name = do
  backend <- candidateNew =<< candidate name
  pure $ case backendDescriptors backend of
    fd : _ | not rtsSupportsBoundThreads -> unthreaded fd backend
    _ -> backend

-- | Without @-threaded@: print the warning, once in a process.
warnUnthreaded :: IO ()
warnUnthreaded = unless rtsSupportsBoundThreads $ do
  before <- atomicModifyIORef' warned (\w -> (True, w))
  unless before . reportLine $
    "weft: " <> unthreadedReason <> ": the program runs on one core, and a blocking call stops all of its threads"

warned :: IORef Bool
warned = unsafePerformIO (newIORef False)
{-# NOINLINE warned #-}

candidate :: String -> IO Candidate
candidate name = maybe (ioError unknown) pure (find ((== name) . candidateName) platformBackends)
  where
    unknown =
      userError $
        "weft: no back end is called " <> show name <> "; there are " <> intercalate ", " backendNames
