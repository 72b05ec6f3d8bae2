-- |
-- Choosing a back end: the only place where it is done. The preferred one of the
-- platform is taken unless the environment variable @WEFT_BACKEND@ or
-- 'preferBackend' names another.
--
-- A back end that is named but that the kernel refuses (io_uring in many
-- containers) gives way to the platform's preferred one; @weft doctor@ and
-- 'backendChoice' say so and why. A name that does not exist is an error.
module Weft.Backend
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
    newBackend,
    backendName,
  )
where

import Data.IORef
import Data.List (find, intercalate)
import System.Environment (lookupEnv)
import System.IO.Unsafe (unsafePerformIO)
import Weft.Backend.Platform (platformBackends)
import Weft.Backend.Type
import Weft.Core.Backend (Backend (backendName))

-- | Names for @WEFT_BACKEND@ and 'newBackend', the preferred one first.
backendNames :: [String]
backendNames = map candidateName platformBackends

-- | Why a back end cannot be used on this machine; 'Nothing' when it can. Throws
-- a user error for a name that does not exist.
whyUnavailable :: String -> IO (Maybe String)
whyUnavailable name = candidateAvailable =<< candidate name

-- | Use this back end for the managers that are made from now on, instead of what
-- @WEFT_BACKEND@ says. Throws a user error for a name that does not exist.
preferBackend :: String -> IO ()
preferBackend name = do
  _ <- candidate name
  writeIORef preference (Just name)

preference :: IORef (Maybe String)
preference = unsafePerformIO (newIORef Nothing)
{-# NOINLINE preference #-}

-- | What will be used, and why it is not what was asked for.
data Choice = Choice
  { choiceBackend :: String,
    -- | What was asked for and why it cannot be had.
    choiceRefused :: Maybe (String, String)
  }
  deriving (Eq, Show)

-- | What the next manager will use.
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
    go (c : cs) = maybe (pure (Choice (candidateName c) Nothing)) (const (go cs)) =<< candidateAvailable c

-- | A new back end of the kind that 'backendChoice' names.
newDefaultBackend :: IO Backend
newDefaultBackend = newBackend . choiceBackend =<< backendChoice

-- | A new back end of that name. Throws a user error for a name that does not
-- exist, and an 'IOError' when the kernel refuses.
newBackend :: String -> IO Backend
newBackend name = candidateNew =<< candidate name

candidate :: String -> IO Candidate
candidate name = maybe (ioError unknown) pure (find ((== name) . candidateName) platformBackends)
  where
    unknown =
      userError $
        "weft: no back end is called " <> show name <> "; there are " <> intercalate ", " backendNames
