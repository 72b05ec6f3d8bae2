-- |
-- Addresses of names, within a deadline.
--
-- > resolver <- defaultResolver
-- > soon <- deadlineIn (seconds 2)
-- > addresses <- resolve resolver soon BothFamilies "www.example.org" "https"
--
-- Name servers are asked by c-ares, which Weft's managers drive: a look-up is a thread that waits for sockets and a
-- timer, holds no OS thread, and can be interrupted at any time, at once. The queries for IPv4 and IPv6 are made in
-- parallel. While a name is being looked up, others who ask for it share the look-up; it ends when the last of them has
-- gone. At most 'resolverMost' look-ups are in progress; further ones wait, in the order in which they come. Nothing is
-- cached, which is the work of the name server.
--
-- Names are looked for in this order: literal addresses, and @localhost@ and the names below it (RFC 6761), which need
-- no query; the file of hosts; name servers, with the servers, the search list and the options of @\/etc\/resolv.conf@,
-- which is read again when it was read more than five seconds ago. Other modules of @nsswitch.conf@ (mDNS, LDAP) are
-- asked only by 'BySystem', which calls @getaddrinfo(3)@ in a pool of threads of the resolver's own. Such a call cannot
-- be cancelled: its caller returns at once, and the call goes on and keeps its thread.
--
-- A child of 'System.Posix.Process.forkProcess' has all places of the resolver for itself, and shares no look-up with
-- its parent: those that were in progress at the fork go on in the parent alone. (Its copies of their sockets stay open.)
--
-- Any thread may use a resolver. All functions throw 'ResolveError' and nothing else of their own. They are
-- interruptible while they wait.
--
-- @since 0.1.0
module Weft.Resolver
  ( -- * Resolvers
    Resolver,
    defaultResolver,
    newResolver,
    ResolverSettings (..),
    defaultResolverSettings,
    Method (..),

    -- * Looking up
    resolve,
    resolveHost,
    resolveService,
    Families (..),

    -- * Errors
    ResolveError (..),
    Reason (..),

    -- * Counts
    lookupsInProgress,
  )
where

import Control.Concurrent.QSem
import Control.Exception
import qualified Data.ByteString as B
import Data.Char (isControl, isDigit, isSpace)
import Data.IORef
import Data.List (intercalate, nub)
import Foreign.C.Error (Errno (..), eMFILE, eNFILE)
import GHC.IO.Exception (IOException (ioe_description, ioe_errno))
import Network.Socket (AddrInfo (..), AddrInfoFlag (..), Family (..), PortNumber, SockAddr (..), SocketType (Stream))
import qualified Network.Socket as N
import System.IO.Unsafe (unsafePerformIO)
import Weft.Blocking.Pool (Pool, newPool, runIn)
import Weft.Core.PerProcess
import Weft.Deadline (Instant, deadlineIn, untilDeadline)
import Weft.Duration
import Weft.Resolver.Names
import Weft.Resolver.Query
import Weft.Resolver.Shared
import Weft.Sys (now)
import Weft.WholeFile (readTextFile)

-- | How names are looked up, and the look-ups in progress.
data Resolver = Resolver
  { resolverSettings :: !ResolverSettings,
    -- | Made anew in a forked child, where none of these look-ups has a thread.
    resolverLookups :: !(PerProcess Lookups),
    resolverPool :: !Pool,
    -- | The file of hosts, and when it is to be read again. Any thread replaces it.
    resolverHostsRead :: !(IORef (Maybe (Instant, Hosts)))
  }

-- | The look-ups of a process.
data Lookups = Lookups
  { lookupsShared :: !(Shared (Families, String) [SockAddr]),
    -- | A place for each one that may be in progress.
    lookupsPlaces :: !QSem,
    lookupsChannels :: !Channels
  }

-- | How names that need a query are looked up.
data Method
  = -- | Name servers are asked.
    ByQueries
  | -- | By @getaddrinfo(3)@, and so by all modules that the system is configured for.
    BySystem
  deriving (Eq, Show)

-- | The kinds of addresses that are wanted.
data Families = BothFamilies | OnlyIPv4 | OnlyIPv6
  deriving (Eq, Ord, Show)

-- | Settings of a resolver. Begin with 'defaultResolverSettings'.
data ResolverSettings = ResolverSettings
  { resolverMethod :: !Method,
    -- | The name servers: Internet addresses with their ports. None: those of @resolv.conf@.
    resolverServers :: ![SockAddr],
    -- | The file of hosts. It is read again if it was read more than five seconds ago.
    resolverHosts :: !(Maybe FilePath),
    -- | The most look-ups in progress at a time, each with a few descriptors; with 'BySystem', the most threads.
    resolverMost :: !Int,
    -- | How long a server has to answer before it, or the next one, is asked again. 'Nothing': as @resolv.conf@ says,
    -- or five seconds.
    resolverTimeout :: !(Maybe Duration),
    -- | How often each server is asked. 'Nothing': as @resolv.conf@ says, or four times.
    resolverTries :: !(Maybe Int),
    -- | When one family's addresses are there, how long to wait for the other family's answer (RFC 8305, section 3).
    resolverGrace :: !Duration,
    -- | Ask by TCP only.
    resolverTcp :: !Bool
  }

-- | By queries to the servers of @\/etc\/resolv.conf@, with @\/etc\/hosts@, 64 at a time, and 50 ms of grace.
defaultResolverSettings :: ResolverSettings
defaultResolverSettings =
  ResolverSettings
    { resolverMethod = ByQueries,
      resolverServers = [],
      resolverHosts = Just "/etc/hosts",
      resolverMost = 64,
      resolverTimeout = Nothing,
      resolverTries = Nothing,
      resolverGrace = milliseconds 50,
      resolverTcp = False
    }

-- | A resolver of its own. While no look-up is in progress it holds no descriptor and no thread; it need not be closed.
newResolver :: ResolverSettings -> IO Resolver
newResolver settings =
  Resolver settings <$> newPerProcess lookups <*> newPool most <*> newIORef Nothing
  where
    lookups = Lookups <$> newShared <*> newQSem most <*> newChannels (askingOf settings)
    most = max 1 (resolverMost settings)

-- | The program's resolver, with 'defaultResolverSettings'.
defaultResolver :: IO Resolver
defaultResolver = pure theResolver

theResolver :: Resolver
theResolver = unsafePerformIO (newResolver defaultResolverSettings)
{-# NOINLINE theResolver #-}

-- | How many look-ups are in progress or wait for their turn.
lookupsInProgress :: Resolver -> IO Int
lookupsInProgress r = ofThisProcess (resolverLookups r) >>= inProgress . lookupsShared

-- | A name or service that has no address or port, and why.
data ResolveError = ResolveError
  { resolveName :: !String,
    resolveReason :: !Reason
  }
  deriving (Eq)

instance Show ResolveError where
  showsPrec _ (ResolveError name reason) = showString (printable name) . showString ": " . showString (inWords reason)

instance Exception ResolveError

inWords :: Reason -> String
inWords reason = case reason of
  NoSuchName -> "there is no such name"
  NoAddress -> "the name has no address of the kind that is wanted"
  ServerFailed -> "the name servers failed"
  ServerRefused -> "the name servers refused to answer"
  NoAnswer -> "no name server has answered"
  NoServer -> "no name server can be reached"
  BadAnswer -> "a name server's answer makes no sense"
  BadName -> "this is neither a name nor an address"
  NoSuchService -> "there is no such service"
  DeadlinePassed -> "it could not be looked up in time"
  NoDescriptors -> "it could not be looked up without a descriptor: too many open files"
  OtherReason text -> text

-- Looking up -------------------------------------------------------------------------

-- | The addresses of a host with the port of a service, the number or the name of one (@services(5)@). At least one; at
-- most 64 of each family; each once. IPv6 comes first: to sort them for connecting is the work of "Weft.Dial".
resolve :: Resolver -> Instant -> Families -> String -> String -> IO [SockAddr]
resolve r deadline families host service = do
  port <- resolveService service
  map (withPort port) <$> resolveHost r deadline families host

-- | The addresses of a host, with port 0.
resolveHost :: Resolver -> Instant -> Families -> String -> IO [SockAddr]
resolveHost r deadline families host
  -- A zero byte would end the string for the system's function.
  | isLiteral bare && '\NUL' `notElem` bare = literal BothFamilies bare >>= orElse BadName >>= orElse NoAddress . ofFamilies families
  | not (isName name) = throwIO (ResolveError host BadName)
  | isLocalhost name = orElse NoAddress (ofFamilies families [SockAddrInet6 0 0 (0, 0, 0, 1) 0, loopback])
  | otherwise = do
    known <- fromHosts r families name
    if not (null known)
      then pure known
      else do
        left <- untilDeadline deadline
        lookups <- ofThisProcess (resolverLookups r)
        found <- share (lookupsShared lookups) "weft look-up" left (families, name) (lookUp r lookups families name)
        maybe (throwIO (ResolveError host DeadlinePassed)) pure found
  where
    name = canonical host
    bare = case host of
      '[' : rest | not (null rest), last rest == ']' -> init rest
      _ -> host
    loopback = SockAddrInet 0 (N.tupleToHostAddress (127, 0, 0, 1))
    orElse reason found = if null found then throwIO (ResolveError host reason) else pure found

-- | The port of a service: a number, or a name that the system knows for TCP. A name is looked for by the system's
-- function, in a file.
resolveService :: String -> IO PortNumber
resolveService service
  | not (null service) && all isDigit service =
    if length service <= 5 && number <= 65535 then pure (fromInteger number) else none
  -- What the system's function would take for a number, or for a shorter string.
  | any (\c -> isSpace c || isControl c) service || take 1 service `elem` ["", "+", "-"] = none
  | otherwise = do
    found <- try (N.getAddrInfo (Just N.defaultHints {addrSocketType = Stream, addrFamily = AF_INET}) (Just "127.0.0.1") (Just service))
    case found of
      Right (AddrInfo {addrAddress = SockAddrInet port _} : _) -> pure port
      Right _ -> none
      Left e -> const (throwIO . ResolveError service =<< unlessWithout NoSuchService) (e :: IOException)
  where
    number = read service :: Integer
    none = throwIO (ResolveError service NoSuchService)

-- | The reason for a failure of the system's function, which does not say that it lacked descriptors.
unlessWithout :: Reason -> IO Reason
unlessWithout reason = either without (const reason) <$> try (bracket (N.socket AF_UNIX Stream 0) N.close pure)
  where
    without e = if lacksDescriptors e then NoDescriptors else reason

lacksDescriptors :: IOException -> Bool
lacksDescriptors e = fmap Errno (ioe_errno e) `elem` [Just eMFILE, Just eNFILE]

withPort :: PortNumber -> SockAddr -> SockAddr
withPort port address = case address of
  SockAddrInet _ host -> SockAddrInet port host
  SockAddrInet6 _ flow host scope -> SockAddrInet6 port flow host scope
  other -> other

ofFamilies :: Families -> [SockAddr] -> [SockAddr]
ofFamilies families = filter wanted
  where
    wanted address = case address of
      SockAddrInet {} -> families /= OnlyIPv6
      SockAddrInet6 {} -> families /= OnlyIPv4
      _ -> False

-- | A literal address: without a query.
literal :: Families -> String -> IO [SockAddr]
literal families host = do
  found <- try (N.getAddrInfo (Just N.defaultHints {addrFlags = [AI_NUMERICHOST], addrSocketType = Stream}) (Just host) Nothing)
  pure (either nothing (ofFamilies families . map addrAddress) found)
  where
    nothing :: IOException -> [SockAddr]
    nothing _ = []

-- | What the file of hosts has.
fromHosts :: Resolver -> Families -> String -> IO [SockAddr]
fromHosts r families name = case resolverHosts (resolverSettings r) of
  Nothing -> pure []
  Just path -> do
    t <- now
    before <- readIORef (resolverHostsRead r)
    hosts <- case before of
      Just (until', hosts) | t < until' -> pure hosts
      _ -> do
        -- A file that cannot be read has no names, unless it can be read later.
        hosts <- try (readTextFile path) >>= either unread (pure . parseHosts)
        again <- deadlineIn (seconds 5)
        hosts <$ writeIORef (resolverHostsRead r) (Just (again, hosts))
    nub . concat <$> mapM (literal families) (lookupHosts name hosts)
  where
    unread e = if lacksDescriptors e then throwIO (ResolveError name NoDescriptors) else pure (parseHosts B.empty)

-- | Look a canonical name up, when there is a place.
lookUp :: Resolver -> Lookups -> Families -> String -> IO [SockAddr]
lookUp r lookups families name = do
  found <- case resolverMethod settings of
    ByQueries -> bracket_ (waitQSem (lookupsPlaces lookups)) (signalQSem (lookupsPlaces lookups)) (bySearch (lookupsChannels lookups) families name)
    BySystem -> bySystem (resolverPool r) families name
  either (throwIO . ResolveError name) pure found
  where
    settings = resolverSettings r

-- | Ask for each candidate until one has addresses. If none has, the reason is the first one's that is not only an
-- absence.
bySearch :: Channels -> Families -> String -> IO (Either Reason [SockAddr])
bySearch channels families name = withLookup channels $ \l -> do
  (ndots, domains) <- searchList l
  go l [] (filter isName (candidates ndots domains name))
  where
    go _ failures [] = pure (Left (reasonOf (reverse failures)))
    go l failures (candidate : rest) = do
      found <- askFor channels l (case families of BothFamilies -> 3; OnlyIPv4 -> 1; OnlyIPv6 -> 2) candidate
      case found of
        Right addresses -> pure (Right (nub (map fromBytes addresses)))
        Left reason -> go l (reason : failures) rest
    reasonOf failures = case filter (/= NoSuchName) failures of
      [] -> NoSuchName
      others -> case filter (/= NoAddress) others of
        reason : _ -> reason
        [] -> NoAddress

-- | How the settings want servers to be asked.
askingOf :: ResolverSettings -> Asking
askingOf settings =
  Asking
    { askingServers = case resolverServers settings of
        [] -> Nothing
        servers -> Just (intercalate "," (map show servers)),
      askingTcp = resolverTcp settings,
      askingTimeout = resolverTimeout settings,
      askingTries = resolverTries settings,
      askingGrace = resolverGrace settings
    }

-- | An address in network order.
fromBytes :: B.ByteString -> SockAddr
fromBytes bytes = case map fromIntegral (B.unpack bytes) of
  [a, b, c, d] -> SockAddrInet 0 (N.tupleToHostAddress (fromIntegral a, fromIntegral b, fromIntegral c, fromIntegral d))
  octets -> SockAddrInet6 0 0 (word 0, word 4, word 8, word 12) 0
    where
      word i = foldl (\w o -> 256 * w + o) 0 (take 4 (drop i octets))

bySystem :: Pool -> Families -> String -> IO (Either Reason [SockAddr])
bySystem pool families name = do
  found <- try (runIn pool (N.getAddrInfo (Just hints) (Just name) Nothing))
  case found of
    Left e -> Left <$> unlessWithout (OtherReason (ioe_description e))
    Right infos -> pure $ case nub (ofFamilies families (map addrAddress infos)) of
      [] -> Left NoAddress
      addresses -> Right addresses
  where
    hints = N.defaultHints {addrSocketType = Stream, addrFamily = family}
    family = case families of
      BothFamilies -> AF_UNSPEC
      OnlyIPv4 -> AF_INET
      OnlyIPv6 -> AF_INET6
