-- |
-- Connecting to a name: look it up, try its addresses, and return the first connection that is there, within a
-- deadline.
--
-- > soon <- deadlineIn (seconds 5)
-- > withConnection defaultDialOptions soon (Host "www.example.org" "http") $ \connection ->
-- >   ...
--
-- The addresses are sorted (RFC 6724), with the families taking turns, and raced (RFC 8305): the next one is tried when
-- the last one has failed, at once, or when it has not succeeded for 250 ms. The first one that succeeds wins. When
-- 'dial' returns or throws, whatever ended it, all others are closed.
--
-- Errors are 'DialError's, which name each address and why. Any thread may dial. All functions are interruptible.
--
-- @since 0.1.0
module Weft.Dial
  ( -- * Dialling
    Destination (..),
    dial,
    dialConnection,
    withConnection,

    -- * Options
    DialOptions (..),
    defaultDialOptions,

    -- * Errors
    DialError (..),
    Failure (..),

    -- * Parts
    dialAddresses,
    sortedAddresses,
  )
where

import Control.Concurrent.MVar
import Control.Exception
import Control.Monad
import Data.Bifunctor (first)
import Data.IORef
import Data.List (intercalate)
import Data.Maybe (catMaybes, fromMaybe)
import Foreign.C.Error (Errno (..), eAGAIN, eINVAL, eNAMETOOLONG, errnoToIOError)
import GHC.IO.Exception (IOException (ioe_errno, ioe_location))
import Network.Socket (Family (..), SockAddr (..), SocketOption (NoDelay), SocketType (..))
import Weft.Core.Manager (addTimer)
import Weft.Core.Time (after)
import Weft.Core.Timer (cancelTimer)
import Weft.Deadline (Instant, isTimeout, noDeadline, timeoutError)
import Weft.Dial.Order
import Weft.Dial.Race
import Weft.Duration
import Weft.Resolver
import Weft.Resolver.Names (printable)
import Weft.Runtime.Managers (currentManager)
import Weft.Scope
import Weft.Socket.Address (addressFamily)
import Weft.Socket.Basic (connect, getSocketName, socket, unixAddress)
import Weft.Socket.Options (setSocketOption)
import Weft.Socket.Types (Socket, close, withDeadline)
import Weft.Sys (now)
import Weft.Timer (sleep)
import Weft.Transport.Socket (socketConnection)
import Weft.Transport.Types (Connection, connAbort, connClose)

-- | Where to connect to.
data Destination
  = -- | A host, by its name or address, and a service, by its name or its port's number; by TCP.
    Host String String
  | -- | The path of a Unix socket, as other functions take paths.
    UnixPath FilePath
  | -- | An address, by TCP or a Unix stream ('Weft.Socket.unixAddress').
    At SockAddr
  deriving (Eq, Show)

-- | How to dial. Begin with 'defaultDialOptions'.
data DialOptions = DialOptions
  { -- | 'Nothing': the program's ('defaultResolver').
    dialResolver :: !(Maybe Resolver),
    -- | Which addresses of a name are tried.
    dialFamilies :: !Families,
    -- | How long an attempt may take before the next one begins beside it (RFC 8305, section 5).
    dialDelay :: !Duration,
    -- | Called with each socket before it connects: for options, or to bind it. It may run masked. An @IOError@ counts
    -- as a failure of the address.
    dialPrepare :: Socket -> IO (),
    -- | Called by 'dialConnection' and 'withConnection' with the deadline and the connection, for a layer on top, such
    -- as TLS, which knows the host's name. If it throws, the connection is aborted.
    dialUpgrade :: Instant -> Connection -> IO Connection
  }

-- | The program's resolver, both families, 250 ms, nothing to prepare and no layer on top.
defaultDialOptions :: DialOptions
defaultDialOptions =
  DialOptions
    { dialResolver = Nothing,
      dialFamilies = BothFamilies,
      dialDelay = milliseconds 250,
      dialPrepare = const (pure ()),
      dialUpgrade = const pure
    }

-- | No connection.
data DialError
  = -- | The name could not be looked up.
    NotFound Destination ResolveError
  | -- | None of the addresses could be connected to: each one, in the order in which they were to be tried, and why.
    NoneConnected Destination [(SockAddr, Failure IOError)]

instance Show DialError where
  showsPrec _ e = case e of
    NotFound destination why -> showString (named destination) . showString ": " . shows why
    NoneConnected destination failures ->
      showString (named destination) . showString ": cannot connect: " . showString (intercalate "; " (map failure failures))
    where
      named destination = case destination of
        Host host service -> printable host <> " port " <> printable service
        UnixPath path -> printable path
        At address -> show address
      failure (address, why) =
        show address <> ": " <> case why of
          Refused err -> show err {ioe_location = ""}
          TooSlow -> "no answer in time"
          NotTried -> "not tried in time"

instance Exception DialError

-- | A connected socket, before the deadline. TCP has @TCP_NODELAY@ set. The socket itself has no deadline.
dial :: DialOptions -> Instant -> Destination -> IO Socket
dial options deadline destination = fst <$> dialed options deadline destination

-- | A connection, with 'dialUpgrade', before the deadline.
dialConnection :: DialOptions -> Instant -> Destination -> IO Connection
dialConnection options deadline destination = mask $ \restore -> do
  (s, peer) <- dialed options deadline destination
  let connection = socketConnection s peer
  restore (dialUpgrade options deadline connection) `onException` connAbort connection

-- | Use a connection, and close it. If the action throws, the connection is aborted, so that the peer does not take
-- what it got for all.
withConnection :: DialOptions -> Instant -> Destination -> (Connection -> IO a) -> IO a
withConnection options deadline destination act = mask $ \restore -> do
  connection <- dialConnection options deadline destination
  a <- restore (act connection) `onException` connAbort connection
  a <$ connClose connection

dialed :: DialOptions -> Instant -> Destination -> IO (Socket, SockAddr)
dialed options deadline destination = do
  addresses <- case destination of
    At address -> pure [address]
    UnixPath path -> (: []) <$> unixAddress path
    Host host service -> handle (throwIO . NotFound destination) $ do
      resolver <- maybe defaultResolver pure (dialResolver options)
      resolve resolver deadline (dialFamilies options) host service >>= sortedAddresses
  found <- dialAddresses options deadline addresses
  either (throwIO . NoneConnected destination) pure found

-- | Why a Unix socket cannot have this address: @network@ ends the program's thread by 'error' if the path is too long,
-- and the kernel takes a zero byte for the path's end, unless it is the first, of an abstract name (unix(7)).
unfit :: SockAddr -> Maybe Errno
unfit address = case address of
  SockAddrUnix path
    | length path > 108 -> Just eNAMETOOLONG
    | null path || '\NUL' `elem` path && take 1 path /= "\NUL" -> Just eINVAL
  _ -> Nothing

-- | The addresses in the order in which they are tried. For more than one, the system is asked, by a socket each that
-- sends nothing, from which address it would send.
sortedAddresses :: [SockAddr] -> IO [SockAddr]
sortedAddresses addresses = case addresses of
  _ : _ : _ -> takeTurns . sortAddresses <$> mapM (\a -> (,) a <$> source a) addresses
  _ -> pure addresses
  where
    source a = handle nothing . bracket (socket (addressFamily a) Datagram 0) close $ \s -> do
      connect s a
      Just <$> getSocketName s
    nothing :: IOException -> IO (Maybe SockAddr)
    nothing _ = pure Nothing

-- | Race these addresses, in this order, and return the socket that won and its peer, or each address and why it
-- failed.
dialAddresses :: DialOptions -> Instant -> [SockAddr] -> IO (Either [(SockAddr, Failure IOError)] (Socket, SockAddr))
dialAddresses options deadline addresses = case addresses of
  -- One address needs no thread beside this one.
  [address] -> do
    t <- now
    r <- if t >= deadline then pure (Left NotTried) else first classified <$> connectOnce options deadline address
    pure (either (\why -> Left [(address, why)]) (\s -> Right (s, address)) r)
  _ -> raceAddresses options deadline addresses
  where
    classified e = if isTimeout e then TooSlow else Refused e

-- | A connected socket. If it throws, the socket is closed.
connectOnce :: DialOptions -> Instant -> SockAddr -> IO (Either IOError Socket)
connectOnce options deadline address = mask $ \restore -> try $ do
  forM_ (unfit address) (\why -> ioError (errnoToIOError "Weft.Dial.dial" why Nothing Nothing))
  s <- socket (addressFamily address) Stream 0
  (`onException` close s) . restore $ do
    when (addressFamily address /= AF_UNIX) (setSocketOption s NoDelay 1)
    dialPrepare options s
    connected (withDeadline deadline s) (milliseconds 1)
  pure s
  where
    -- A Unix socket whose backlog is full says so instead of waiting (connect(2)), and nothing tells when it is not.
    connected s pause =
      connect s address `catch` \e ->
        if ioe_errno e == Just again && addressFamily address == AF_UNIX
          then do
            t <- now
            when (after pause t >= deadline) (ioError (timeoutError "Weft.Dial.dial"))
            sleep pause
            connected s (min (milliseconds 10) (pause <> pause))
          else ioError e
    Errno again = eAGAIN

-- | Carry out the commands of a race. Each attempt is a thread of a scope, which puts what became of it into a list.
--
-- A socket that is connected is in the list, and stays there. When the scope has ended no attempt is left, and all
-- sockets of the list but the winner's are closed.
raceAddresses ::
  DialOptions -> Instant -> [SockAddr] -> IO (Either [(SockAddr, Failure IOError)] (Socket, SockAddr))
raceAddresses options deadline addresses = mask $ \restore -> do
  outcomes <- newIORef []
  r <- try (restore (withScope (racing options deadline addresses outcomes)))
  ended <- readIORef outcomes
  let connected = [(i, s) | Outcome i (Right s) <- ended]
      closeAllBut kept = mapM_ (close . snd) (filter ((/= kept) . Just . fst) connected)
  case r of
    Right (Right won) -> do
      closeAllBut (Just won)
      pure $ case lookup won connected of
        Just s -> Right (s, addresses !! won)
        Nothing -> Left []
    Right (Left failures) -> Left failures <$ closeAllBut Nothing
    Left e -> closeAllBut Nothing >> throwIO (e :: SomeException)

-- | What became of an attempt.
data Outcome = Outcome !Int !(Either IOError Socket)

-- | The number of the attempt that won, or the failures. 'Abandon' comes only at the end of the race, and the end of
-- the scope abandons all.
racing ::
  DialOptions -> Instant -> [SockAddr] -> IORef [Outcome] -> Scope -> IO (Either [(SockAddr, Failure IOError)] Int)
racing options deadline addresses outcomes scope = do
  woken <- newEmptyMVar
  let carryOut command = case command of
        Start i address -> Nothing <$ forkDaemon scope (try' i address)
        Abandon _ -> pure Nothing
        Win i -> pure (Just (Right i))
        Lose failures -> pure (Just (Left failures))
      -- Masked from the connection to the list.
      try' i address = mask_ $ do
        r <- connectOnce options noDeadline address
        atomicModifyIORef' outcomes (\before -> (Outcome i r : before, ()))
        void (tryPutMVar woken ())
      advance seen events (state, commands) = do
        decided <- mapM carryOut commands
        case (catMaybes decided, events) of
          (result : _, _) -> pure result
          ([], event : rest) -> do
            t <- now
            advance seen rest (step t event state)
          ([], []) -> do
            awaitOr woken (nextLook state)
            found <- readIORef outcomes
            let new = reverse (take (length found - seen) found)
            advance (length found) (map eventOf new ++ [Look]) (state, [])
  t <- now
  advance 0 [] (begin (dialDelay options) deadline t addresses)
  where
    eventOf (Outcome i r) = either (Failed i) (const (Succeeded i)) r

-- | Wait until the variable is full, or until the instant.
awaitOr :: MVar () -> Maybe Instant -> IO ()
awaitOr woken due = mask_ $ do
  m <- currentManager
  timer <- addTimer m (fromMaybe noDeadline due) (void (tryPutMVar woken ()))
  takeMVar woken `finally` cancelTimer timer
