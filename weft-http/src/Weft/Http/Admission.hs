-- |
-- Admission control: counts connections in total and for each client, and ends idle ones to make room for new ones.
module Weft.Http.Admission
  ( Admission,
    newAdmission,
    admit,
    departEntry,
    countAgain,
    admitOf,
  )
where

import Control.Exception (mask_)
import Control.Monad (filterM, when)
import Data.Bits (shiftL, (.|.))
import Data.IORef
import Data.List (sortOn)
import qualified Data.Map.Strict as Map
import Data.Word (Word64)
import Weft.Http.Limits
import Weft.Http.Table
import Weft.Http.Types (cellAdmission)
import Weft.Socket (SockAddr (..))
import Weft.Sys (WordArray, casWord, now, pokeWord, readWord, swapWord)

-- | The number of connections, in total and by address. Changed atomically by each connection's
-- thread, and the total also by threads that evict: an evicted connection does not count while it ends, as otherwise
-- every new connection of a burst would evict others for the same room.
data Admission = Admission !(IORef Int) !(IORef (Map.Map Word64 Int))

-- | The state of admission without connections.
newAdmission :: IO Admission
newAdmission = Admission <$> newIORef 0 <*> newIORef Map.empty

-- | Count a connection if there is room for it or room can be made; one that is refused never counts, as it would take
-- the room of others for a moment. If there are too many, all connections are examined and up to 1 in 64 of the idle
-- ones are ended, those with the least share of their time left first. Linear in the number of connections, but only
-- once for each 1 in 64 of them. To be called masked; each counted connection has to 'departEntry', or to 'depart'
-- before it has an entry.
admit :: Limits -> Admission -> [Table] -> IO Bool
admit limits admission@(Admission total _) tables = countOr makeRoom
  where
    most = limitConnections limits
    batch = batchOf limits
    countOr refused = do
      room <- atomicModifyIORef' total (\n -> if most <= 0 || n < most then (n + 1, True) else (n, False))
      if room then pure True else refused
    makeRoom = do
      at <- now
      idle <- filterM (stillCounts . snd) . concat =<< mapM (idleEntries limits at) tables
      evicting (map snd (take batch (sortOn fst idle)))
      -- Others may have evicted these or taken the room, and these may have received a request: there may be more.
      countOr (if null idle then pure False else makeRoom)
    stillCounts entry = (/= uncounted) <$> readWord (entryCells entry) cellAdmission
    -- Other threads may evict at the same time. All stop when there is room for a batch.
    evicting [] = pure ()
    evicting (entry : entries) = do
      count <- readIORef total
      when (count + batch > most) $ do
        -- Read first: if its thread counts it again meanwhile, it goes on and counts.
        state <- readWord (entryCells entry) cellAdmission
        told <- evict entry
        before <- if told then casWord (entryCells entry) cellAdmission state uncounted else pure uncounted
        when (before == state && state /= uncounted) (depart admission)
        evicting entries

-- | The number of connections that are evicted at once.
batchOf :: Limits -> Int
batchOf limits = max 1 (limitConnections limits `div` 64)

-- | The states of 'cellAdmission', and their successors:
--
-- @
--   counted                                               -> uncounted (a thread that evicts it, its timer, its end),
--                                                            kept (its thread)
--   uncounted   was told to end, or has ended             -> kept (its thread)
--   kept        counts, answers its last request, and     -> uncounted (a thread that evicts it as it lingers, its
--               lingers                                      timer, its end)
-- @
--
-- 'counted' and 'kept' are left by compare-and-swap, except at the end, which comes before the connection is closed: a
-- client that sees it and connects again finds room. (Acceptors bound the descriptors: 'mostSockets'.)
-- A connection that lingers may be evicted in both states: otherwise clients that do not close would keep others out for
-- the time of lingering.
counted, uncounted, kept :: Int
counted = 0
uncounted = 1
kept = 2

-- | An admitted connection, that of these words, has ended or is about to be closed. Any number of times, by its thread
-- or its timer.
departEntry :: Admission -> WordArray -> IO ()
departEntry admission cells = do
  before <- swapWord cells cellAdmission uncounted
  when (before /= uncounted) (depart admission)

-- | To be called by a connection's thread that was told to end, if it has something from its client. It counts again if
-- it was evicted, so that connections that are told to end and have a request are limited, too. Returns whether
-- there is room.
countAgain :: Limits -> Admission -> WordArray -> IO Bool
countAgain limits admission@(Admission total _) cells = mask_ $ do
  before <- casWord cells cellAdmission counted kept
  if before /= uncounted
    then pure True
    else do
      count <- atomicModifyIORef' total (\n -> (n + 1, n + 1))
      let most = limitConnections limits
          room = most <= 0 || count <= most + batchOf limits
      if room then pokeWord cells cellAdmission kept else depart admission
      pure room

-- | Uncount a connection.
depart :: Admission -> IO ()
depart (Admission total _) = atomicModifyIORef' total (\n -> (n - 1, ()))

-- | Count a connection of an address. Returns whether there is room for it, and the action to run when it ends. To be
-- called masked.
admitOf :: Limits -> Admission -> SockAddr -> IO (Bool, IO ())
admitOf limits (Admission _ addresses) peer = case keyOf peer of
  Just key | limitPerAddress limits > 0 -> do
    count <- change 1 key
    pure (count <= limitPerAddress limits, () <$ change (-1) key)
  _ -> pure (True, pure ())
  where
    change d key = atomicModifyIORef' addresses $ \m ->
      let n = Map.findWithDefault 0 key m + d in (if n == 0 then Map.delete key m else Map.insert key n m, n)

-- | The key of a client: an IPv4 address, or the first 64 bits of an IPv6 address, since
-- a client can use every address with these bits.
keyOf :: SockAddr -> Maybe Word64
keyOf peer = case peer of
  SockAddrInet _ a -> Just (fromIntegral a)
  -- An IPv4 address as an IPv6 socket reports it (RFC 4291, 2.5.5.2).
  SockAddrInet6 _ _ (0, 0, 0xffff, a) _ -> Just (fromIntegral a)
  SockAddrInet6 _ _ (a, b, _, _) _ -> Just (fromIntegral a `shiftL` 32 .|. fromIntegral b)
  SockAddrUnix _ -> Nothing
