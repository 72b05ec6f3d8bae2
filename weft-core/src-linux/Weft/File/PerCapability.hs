-- |
-- Kernel objects of which each capability has one, made when they are first needed. If the kernel refuses one, that is
-- remembered: for good if it cannot change in this process, otherwise for a second.
module Weft.File.PerCapability
  ( PerCapability,
    newPerCapability,
    memberFor,
    members,
    removeAll,
    refusal,
  )
where

import Control.Monad (forM_)
import Data.Maybe (catMaybes)
import Foreign.C.Error (Errno (..), eINVAL, eNOSYS, ePERM)
import Foreign.C.Types (CInt)
import Weft.Core.Time (Instant, after, never, seconds)
import Weft.Sys

-- | The objects of one kind.
data PerCapability a = PerCapability
  { -- | Makes the object of a capability, or returns the errno.
    make :: !(Int -> IO (Either CInt a)),
    -- | The objects by capability. Written under the lock, read by any thread.
    table :: !(Ref (BoxedArray (Maybe a))),
    -- | How the kernel refused one the last time. Written under the lock.
    refused :: !(Ref (Maybe Refusal)),
    lock :: !(MVar ())
  }

-- | The errno, and until when none is asked for again.
data Refusal = Refusal !CInt !Instant

-- | None so far. The function makes the object of a capability, or returns the errno.
newPerCapability :: (Int -> IO (Either CInt a)) -> IO (PerCapability a)
newPerCapability how = do
  none <- newBoxedArray 0 Nothing
  PerCapability how <$> newRef none <*> newRef Nothing <*> newMVar ()

-- | The object of the caller's capability; 'Nothing' if the kernel refuses it.
memberFor :: PerCapability a -> IO (Maybe a)
memberFor p = do
  cap <- myCapability
  arr <- readRef (table p)
  found <- if cap < sizeBoxedArray arr then readBoxedArray arr cap else pure Nothing
  case found of
    Just _ -> pure found
    Nothing -> do
      code <- refusal p
      maybe (withMVar (lock p) (const (makeFor p cap))) (const (pure Nothing)) code
{-# INLINEABLE memberFor #-}

-- | A capability's object, made if there is none. The caller holds the lock.
makeFor :: PerCapability a -> Int -> IO (Maybe a)
makeFor p cap = do
  arr <- readRef (table p)
  found <- if cap < sizeBoxedArray arr then readBoxedArray arr cap else pure Nothing
  code <- refusal p
  case (found, code) of
    (Nothing, Nothing) -> make p cap >>= either refuse (keep arr)
    _ -> pure found
  where
    refuse code = Nothing <$ (refusalOf code >>= writeRef (refused p) . Just)
    keep arr object = do
      writeRef (refused p) Nothing
      bigger <- newBoxedArray (max (cap + 1) (sizeBoxedArray arr)) Nothing
      copyBoxedArray arr bigger
      writeBoxedArray bigger cap (Just object)
      writeRef (table p) bigger
      pure (Just object)

-- | @EPERM@, @ENOSYS@ and @EINVAL@ are permanent for this kernel and process. A shortage of descriptors or memory
-- may end: it is tried again a second later.
refusalOf :: CInt -> IO Refusal
refusalOf code
  | Errno code `elem` [ePERM, eNOSYS, eINVAL] = pure (Refusal code never)
  | otherwise = Refusal code . after (seconds 1) <$> now

-- | The refusal that is still in force, if any.
refusal :: PerCapability a -> IO (Maybe CInt)
refusal p = do
  found <- readRef (refused p)
  case found of
    Nothing -> pure Nothing
    Just (Refusal code until')
      | until' == never -> pure (Just code)
      | otherwise -> (\t -> if t < until' then Just code else Nothing) <$> now

-- | All objects that there are.
members :: PerCapability a -> IO [a]
members p = do
  arr <- readRef (table p)
  catMaybes <$> mapM (readBoxedArray arr) [0 .. sizeBoxedArray arr - 1]

-- | Take all objects out of the table, and run the function for each. Uninterruptible, since an object that has left
-- the table can no longer be found.
removeAll :: PerCapability a -> (a -> IO ()) -> IO ()
removeAll p end = withMVar (lock p) $ \() -> uninterruptibleMask_ $ do
  objects <- members p
  none <- newBoxedArray 0 Nothing
  writeRef (table p) none
  forM_ objects end
