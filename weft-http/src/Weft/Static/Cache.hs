-- |
-- A cache bounded in bytes. Lookups take no lock. A missing value is
-- computed once, however many threads ask for it at the same time. Entries that have not been used since
-- the last sweep passed them are evicted first (CLOCK).
--
-- If others would have to be evicted for it, a value is kept only when its name is missed for the third time in a
-- while. So names that are asked for seldom evict nothing, and cost no work of the garbage collector's old generation.
--
-- Any thread may call these functions.
module Weft.Static.Cache
  ( Cache,
    newCache,
    lookupCache,
    fetch,
    Freshness (..),
    Worth (..),

    -- * Room
    admits,
    fitsCache,
    hasRoom,

    -- * Metrics
    CacheMetrics (..),
    cacheMetrics,
  )
where

import Control.Concurrent.MVar
import Control.Exception (IOException, SomeException, fromException, mask, onException, throwIO, try)
import Control.Monad (unless, void, when)
import Data.Bits (complement, (.&.), (.|.))
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.HashMap.Strict as H
import Data.IORef
import Data.Maybe (isJust)
import Data.Sequence (Seq, ViewL (..), viewl, (|>))
import qualified Data.Sequence as Seq
import Weft.Core.Each (Each, everyOne, newEach, own)
import Weft.Core.PerProcess
import Weft.Core.Time (Instant)
import Weft.Static.Digest (digest)
import Weft.Sys (WordArray, addWord, newOwnWords, newWordArray, readWord, writeWord)

-- | Values by name. The type @b@ is for results that are not values.
data Cache b a = Cache
  { cacheLimit :: !Int,
    -- | Digests of names that were missed lately, each at the place that its low bits give, with the number of its
    -- misses in place of these. Any thread reads and writes them, without synchronisation; a lost one only delays that
    -- its value is kept.
    cacheMissed :: !WordArray,
    -- | Changed atomically. In a forked child, without the values that threads of the parent compute.
    cacheState :: !(PerProcess (IORef (CacheState b a))),
    -- | 'hits' and 'misses', counted by each capability for itself.
    cacheCounts :: !(Each WordArray)
  }

data CacheState b a = CacheState
  { stateEntries :: !(H.HashMap ByteString (Entry a)),
    -- | Names in the order of the next sweep. A name that has no entry any more, or one of another
    -- age, is skipped.
    stateClock :: !(Seq (ByteString, Int)),
    stateBytes :: !Int,
    -- | The number of entries, since 'H.size' is linear.
    stateCount :: !Int,
    stateAge :: !Int,
    -- | Values that are being computed; waiting threads read the MVar. 'Nothing' in it: the computing thread was
    -- interrupted.
    stateMaking :: !(H.HashMap ByteString (MVar (Maybe (Either IOException (Either b a)))))
  }

data Entry a = Entry
  { entryValue :: a,
    entryBytes :: !Int,
    entryAge :: !Int,
    -- | Whether the entry was used since the last sweep passed it. Written by any thread.
    entryUsed :: !(IORef Bool),
    -- | When the value was last known to be current. Written by any thread.
    entryChecked :: !(IORef Instant)
  }

-- | A cache for the given number of bytes.
newCache :: Int -> IO (Cache b a)
newCache limit = Cache limit <$> newWordArray missedNames <*> state <*> newEach (newOwnWords 2)
  where
    state = newIORef (CacheState H.empty Seq.empty 0 0 0 H.empty) >>= newPerProcessFrom inherited
    inherited ref = readIORef ref >>= \st -> newIORef st {stateMaking = H.empty}

-- | The state.
stateOf :: Cache b a -> IO (CacheState b a)
stateOf cache = ofThisProcess (cacheState cache) >>= readIORef
{-# INLINE stateOf #-}

change :: Cache b a -> (CacheState b a -> (CacheState b a, c)) -> IO c
change cache f = ofThisProcess (cacheState cache) >>= \ref -> atomicModifyIORef' ref f

-- | The value of a name, if it is present and was known to be current at the given instant or
-- later.
lookupCache :: Cache b a -> Instant -> ByteString -> IO (Maybe a)
lookupCache cache since name = do
  st <- stateOf cache
  case H.lookup name (stateEntries st) of
    Nothing -> pure Nothing
    Just e -> do
      checked <- readIORef (entryChecked e)
      if checked < since
        then pure Nothing
        else do
          used <- readIORef (entryUsed e)
          when (not used) (writeIORef (entryUsed e) True)
          count cache hits
          pure (Just (entryValue e))
{-# INLINE lookupCache #-}

-- | A power of two.
missedNames :: Int
missedNames = 16384

-- | The number of misses of a name in a while after which its value is kept in place of others. With 2, of n names for
-- each place that are asked for at random, each n-th miss evicts another value, for nothing.
missesToKeep :: Int
missesToKeep = 3

-- | Whether to keep a new value: if there is room, or if this is at least so many misses of its name in a while (below
-- 'missedNames'). Counts the miss if there is no room. O(1).
admits :: Cache b a -> Int -> ByteString -> Worth -> IO Bool
admits _ _ _ Drop = pure False
admits cache times name (Keep n) = do
  st <- stateOf cache
  if stateBytes st + n <= cacheLimit cache
    then pure True
    else do
      before <- readWord (cacheMissed cache) place
      let others = if before .&. complement low == mark then before .&. low else 0
          enough = others + 1 >= times
      enough <$ unless enough (writeWord (cacheMissed cache) place (mark .|. (others + 1)))
  where
    low = missedNames - 1
    hash = fromIntegral (digest name)
    mark = hash .&. complement low
    place = hash .&. low

-- | Whether a value of this many bytes can be kept at all: at most a quarter of the cache.
fitsCache :: Cache b a -> Int -> Bool
fitsCache cache n = n <= cacheLimit cache `div` 4

-- | Whether an eighth of the cache is free. Without evictions it fills beyond that; with them it never is.
hasRoom :: Cache b a -> IO Bool
hasRoom cache = (\st -> stateBytes st <= cacheLimit cache - cacheLimit cache `div` 8) <$> stateOf cache

-- | The words of 'cacheCounts'.
hits, misses :: Int
hits = 0
misses = 1

count :: Cache b a -> Int -> IO ()
count cache which = own (cacheCounts cache) >>= \counts -> void (addWord counts which 1)
{-# INLINE count #-}

counted :: Cache b a -> Int -> IO Int
counted cache which = sum <$> (everyOne (cacheCounts cache) >>= mapM (`readWord` which))

-- | The result of checking an old value, and when it was true.
data Freshness a
  = -- | The old value is current.
    Same !Instant
  | -- | The value has changed to this one.
    Changed !Instant a

-- | Whether to keep a value, and how many bytes it counts for.
data Worth = Keep !Int | Drop

-- | The value of a name, computed or checked by the function, whose argument is the old
-- value if there is one. Other threads that ask for the name wait in the meantime. If the function returns
-- 'Left' or throws an 'IOException', all threads get that, and no value is kept.
--
-- It runs on the thread that asked first. If that thread is interrupted, one of the waiting
-- threads starts again.
fetch :: Cache b a -> ByteString -> (a -> Worth) -> (Maybe a -> IO (Either b (Freshness a))) -> IO (Either b a)
fetch cache given worth make = attempt
  where
    -- Copied, since the name may be a slice of a larger string.
    name = B.copy given
    attempt = do
      box <- newEmptyMVar
      -- Masked, so that the state is always completed. The computation itself is unmasked.
      told <- mask $ \restore -> do
        claim <- change cache $ \st -> case H.lookup name (stateMaking st) of
          Just other -> (st, Left other)
          Nothing -> (st {stateMaking = H.insert name box (stateMaking st)}, Right (H.lookup name (stateEntries st)))
        case claim of
          Left other -> readMVar other
          Right old -> do
            made <- try (restore (make (entryValue <$> old)))
            r <- either (failed old) (fmap Right . conclude old) made `onException` (finish id >> putMVar box Nothing)
            Just r <$ putMVar box (Just r)
      maybe attempt (either throwIO pure) told
    failed old e = case fromException e of
      Just io -> Left io <$ (count cache misses >> finish (delete old))
      Nothing -> throwIO (e :: SomeException)
    conclude old r = do
      count cache misses
      case (r, old) of
        (Left b, _) -> Left b <$ finish (delete old)
        (Right (Same seen), Just e) -> do
          writeIORef (entryChecked e) seen
          Right (entryValue e) <$ finish id
        (Right (Same _), Nothing) -> throwIO (userError "Weft.Static.Cache: there is no old value that could be the same")
        (Right (Changed seen a), _) -> do
          entry <- Entry a 0 0 <$> newIORef False <*> newIORef seen
          kept <- if isJust old then pure True else admits cache missesToKeep name (worth a)
          finish ((if kept then store entry else id) . delete old)
          Right a <$ sweep cache
    finish change' = change cache (\st -> (change' st {stateMaking = H.delete name (stateMaking st)}, ()))
    delete Nothing st = st
    delete (Just e) st = case H.lookup name (stateEntries st) of
      Just now | entryAge now == entryAge e -> without name now st
      _ -> st
    -- The name has no entry: only one thread computes its value, and that thread has deleted the old entry.
    store entry st = case worth (entryValue entry) of
      Drop -> st
      Keep n
        | not (fitsCache cache n) -> st
        | otherwise ->
          let age = stateAge st + 1
           in st
                { stateEntries = H.insert name entry {entryBytes = n, entryAge = age} (stateEntries st),
                  stateClock = stateClock st |> (name, age),
                  stateBytes = stateBytes st + n,
                  stateCount = stateCount st + 1,
                  stateAge = age
                }

-- | Remove an existing entry.
without :: ByteString -> Entry a -> CacheState b a -> CacheState b a
without name e st =
  st
    { stateEntries = H.delete name (stateEntries st),
      stateBytes = stateBytes st - entryBytes e,
      stateCount = stateCount st - 1
    }

-- | Evict entries until the size is within the limit.
sweep :: Cache b a -> IO ()
sweep cache = do
  st <- stateOf cache
  when (stateBytes st > cacheLimit cache || Seq.length (stateClock st) > 2 * stateCount st + 64) $ do
    next <- change cache $ \s -> case viewl (stateClock s) of
      (name, age) :< rest -> (s {stateClock = rest}, Just (name, age, H.lookup name (stateEntries s)))
      EmptyL -> (s, Nothing)
    case next of
      Nothing -> pure ()
      Just (name, age, found) -> do
        case found of
          Just e | entryAge e == age -> judge name e
          _ -> pure ()
        sweep cache
  where
    judge name e = do
      used <- readIORef (entryUsed e)
      writeIORef (entryUsed e) False
      change cache $ \s -> case H.lookup name (stateEntries s) of
        Just now
          | entryAge now == entryAge e ->
            if used || stateBytes s <= cacheLimit cache
              then (s {stateClock = stateClock s |> (name, entryAge e)}, ())
              else (without name now s, ())
        _ -> (s, ())

-- | Statistics of a cache.
data CacheMetrics = CacheMetrics
  { cachedEntries :: !Int,
    cachedBytes :: !Int,
    cachedHits :: !Int,
    cachedMisses :: !Int
  }
  deriving (Eq, Show)

-- | The current statistics.
cacheMetrics :: Cache b a -> IO CacheMetrics
cacheMetrics cache = do
  st <- stateOf cache
  CacheMetrics (stateCount st) (stateBytes st) <$> counted cache hits <*> counted cache misses
