-- |
-- One look-up: a channel of c-ares, driven by the calling thread, which waits for the channel's sockets and its
-- time-outs with the manager of its capability.
--
-- Each look-up has a channel of its own. c-ares can cancel all queries of a channel, and not one of them; it has no
-- lock (before its version 1.23); and its sockets are closed with it. So nothing is shared between look-ups, and
-- whatever interrupts the thread, the end of 'withLookup' ends all. A channel that is as good as new is kept for the
-- next look-up.
module Weft.Resolver.Query
  ( Lookup,
    Asking (..),
    Channels,
    newChannels,
    withLookup,
    searchList,
    askFor,
    Reason (..),
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.IORef
import Data.List (sortOn)
import Data.Ord (Down (..))
import Foreign.C.String (peekCString, withCString)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (alloca)
import Foreign.Marshal.Utils (maybeWith)
import Foreign.Ptr (Ptr, castPtr, nullPtr)
import Foreign.Storable (peek)
import System.Posix.Types (Fd (..))
import Weft.Core.Events
import Weft.Core.Manager (addTimer, managerRegistry)
import Weft.Core.Registry (Placed (..), register, unregister)
import Weft.Core.Time
import Weft.Core.Timer (cancelTimer)
import Weft.FFI.Ares
import Weft.Runtime.Managers (currentManager)
import Weft.Sys (now)

-- | How servers are asked.
data Asking = Asking
  { -- | Addresses and ports, separated by commas; 'Nothing': those of resolv.conf.
    askingServers :: !(Maybe String),
    -- | By TCP only.
    askingTcp :: !Bool,
    -- | How long until the next server is asked, and how often each is; 'Nothing': as resolv.conf says.
    askingTimeout :: !(Maybe Duration),
    askingTries :: !(Maybe Int),
    -- | How long one family's addresses wait for the other family's answer.
    askingGrace :: !Duration
  }

-- | Why a name has no addresses.
data Reason
  = -- | The name does not exist (@NXDOMAIN@).
    NoSuchName
  | -- | The name exists and has no address of the families that were asked for.
    NoAddress
  | -- | The servers failed (@SERVFAIL@, @FORMERR@, @NOTIMP@).
    ServerFailed
  | -- | The servers refused to answer (@REFUSED@).
    ServerRefused
  | -- | No server has answered.
    NoAnswer
  | -- | No server can be reached.
    NoServer
  | -- | An answer could not be understood.
    BadAnswer
  | -- | It is neither a name nor an address.
    BadName
  | -- | There is no service of that name.
    NoSuchService
  | -- | The deadline has passed.
    DeadlinePassed
  | -- | The process, or the system, has no descriptors left: no file can be read, and no server asked.
    NoDescriptors
  | -- | Another reason, in words.
    OtherReason String
  deriving (Eq, Show)

-- | How servers are asked, and channels that are not in use, each with the instant from which on it is not used again:
-- making one means reading files, and resolv.conf may change. An idle channel has no socket. Changed atomically, by any
-- thread. When the list is garbage, its channels are destroyed.
data Channels = Channels !Asking !(IORef [(Instant, Ptr Lookup)])

-- | None yet.
newChannels :: Asking -> IO Channels
newChannels asking = do
  idle <- newIORef []
  Channels asking idle <$ mkWeakIORef idle (readIORef idle >>= mapM_ (cLookupFree . snd))

-- | Use a channel. It is destroyed at the end, with its sockets, unless it is as it was when it was new. A 'Left' if it
-- cannot be made.
withLookup :: Channels -> (Ptr Lookup -> IO (Either Reason a)) -> IO (Either Reason a)
withLookup (Channels asking idle) act = mask $ \restore -> do
  t <- now
  (old, found) <- atomicModifyIORef' idle $ \channels -> case span ((> t) . fst) channels of
    (c : fresh, old) -> (fresh, (old, Just c))
    ([], old) -> ([], (old, Nothing))
  mapM_ (cLookupFree . snd) old
  made <- maybe (fmap ((,) (after (seconds 5) t)) <$> create) (pure . Right) found
  case made of
    Left reason -> pure (Left reason)
    Right channel@(_, l) -> do
      result <- restore (act l) `onException` cLookupFree l
      reusable <- cLookupReusable l
      kept <-
        if reusable == 0
          then pure False
          else atomicModifyIORef' idle $ \channels ->
            if length channels < mostIdle then (sortOn (Down . fst) (channel : channels), True) else (channels, False)
      result <$ unless kept (cLookupFree l)
  where
    mostIdle = 32
    create = maybeWith withCString (askingServers asking) $ \servers -> alloca $ \out -> do
      status <- cLookupNew servers (if askingTcp asking then 1 else 0) timeout tries out
      if status == 0 then Right <$> peek out else Left <$> reasonOf status
    timeout = maybe 0 (max 1 . ceiling . (1000 *) . min 1000000 . toSeconds) (askingTimeout asking)
    tries = maybe 0 (fromIntegral . max 1 . min 1000) (askingTries asking)

-- | @ndots@ and the search list.
searchList :: Ptr Lookup -> IO (Int, [String])
searchList l = (,) . fromIntegral <$> cLookupNdots l <*> domains 0
  where
    domains i = do
      domain <- cLookupDomain l i
      if domain == nullPtr then pure [] else (:) <$> peekCString domain <*> domains (i + 1)

-- | The addresses of a name, as it is: 16 bytes for each of IPv6, then 4 for each of IPv4, at most 64 of a family. The
-- families: 1 IPv4, 2 IPv6, 3 both. A server that fails or refuses is left out from then on, unless it is the last one.
-- Interruptible; the channel can then only be destroyed.
askFor :: Channels -> Ptr Lookup -> Int -> String -> IO (Either Reason [B.ByteString])
askFor channels@(Channels asking _) l families name = do
  withCString name (\s -> cLookupAsk l s (fromIntegral families))
  found <- await never
  case found of
    Left reason | reason `elem` [ServerFailed, ServerRefused] -> do
      another <- cLookupNextServer l
      if another == 0 then pure found else askFor channels l families name
    _ -> pure found
  where
    -- Until when the second family is awaited.
    await grace = do
      four <- cLookupStatus l 0
      six <- cLookupStatus l 1
      t <- now
      let pending = four < 0 || six < 0
          found = four == 0 || six == 0
          until' = if pending && found && grace == never then after (askingGrace asking) t else grace
      if not pending || t >= until'
        then finish four six
        else turn l until' >> await until'
    finish four six = do
      sixes <- addresses 1 16
      fours <- addresses 0 4
      if null sixes && null fours then Left <$> worst four six else pure (Right (sixes ++ fours))
    addresses family size = do
      n <- cLookupCount l family
      forM [0 .. n - 1] $ \i -> cLookupAddress l family i >>= \p -> B.packCStringLen (castPtr p, size)

-- | Wait for an event of the channel's sockets, for a time-out or for the instant, and let c-ares go on.
--
-- When c-ares goes on, nothing is registered: it may close any socket.
turn :: Ptr Lookup -> Instant -> IO ()
turn l limit = mask_ $ do
  m <- currentManager
  t <- now
  microseconds' <- cLookupTimeout l
  woken <- newEmptyMVar
  ready <- newIORef []
  n <- cLookupSockets l
  sockets <- forM [0 .. n - 1] (\i -> (,) <$> cLookupSocket l i <*> cLookupModes l i)
  let wake = void (tryPutMVar woken ())
      due = if microseconds' < 0 then limit else min limit (after (microseconds (fromIntegral microseconds')) t)
      watch (fd, modes) =
        register (managerRegistry m) m (Fd fd) (eventsOf modes) OneShot $ \_ _ -> do
          atomicModifyIORef' ready (\before -> ((fd, modes) : before, ()))
          wake
  placed <- newIORef []
  let unwatch = readIORef placed >>= mapM_ (\(fd, key) -> unregister (managerRegistry m) (Fd fd) key)
  (`finally` unwatch) $ do
    forM_ sockets $ \socket -> do
      p <- watch socket
      case p of
        Placed key -> modifyIORef' placed ((fst socket, key) :)
        -- The manager was stopped, or the socket is always ready: the next turn is at once.
        _ -> wake
    timer <- addTimer m due wake
    takeMVar woken `finally` cancelTimer timer
  found <- readIORef ready
  forM_ found $ \(fd, modes) -> cLookupProcess l (if odd modes then fd else -1) (if modes >= 2 then fd else -1)
  when (null found) (cLookupProcess l (-1) (-1))

eventsOf :: CInt -> Events
eventsOf modes = (if odd modes then evtRead else mempty) <> (if modes >= 2 then evtWrite else mempty)

-- | The reason that both families' failures give: that the name does not exist holds for both, and that one family has
-- no address counts only if that is known of both.
worst :: CInt -> CInt -> IO Reason
worst four six = do
  reasons <- mapM reasonOf [six, four]
  pure $ case filter (/= NoAddress) reasons of
    others | NoSuchName `elem` others -> NoSuchName
    reason : _ -> reason
    [] -> NoAddress

-- | The reason of a status of c-ares (ares.h), or of @cbits/lookup.c@.
reasonOf :: CInt -> IO Reason
reasonOf status = case status of
  -- An answer without an address that the name leads to, as that of an alias of itself.
  0 -> pure NoAddress
  1 -> pure NoAddress
  2 -> pure ServerFailed
  3 -> pure ServerFailed
  4 -> pure NoSuchName
  5 -> pure ServerFailed
  6 -> pure ServerRefused
  8 -> pure BadName
  10 -> pure BadAnswer
  11 -> pure NoServer
  12 -> pure NoAnswer
  1000 -> pure NoDescriptors
  -- No answer when the second family was no longer awaited.
  -1 -> pure NoAnswer
  _ -> OtherReason . B8.unpack <$> (cStrError status >>= B.packCString)
