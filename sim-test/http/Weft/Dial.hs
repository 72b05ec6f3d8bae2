-- |
-- Dialling on the simulated machine: a destination is a port of the loopback interface, and its connection is there at
-- once, or refused.
module Weft.Dial
  ( Destination (..),
    dialConnection,
    DialOptions (..),
    defaultDialOptions,
    DialError (..),
  )
where

import Control.Exception
import Weft.Socket
import Weft.Transport

data Destination
  = Host String String
  | UnixPath FilePath
  deriving (Eq, Show)

-- | Without those that choose addresses.
newtype DialOptions = DialOptions {dialUpgrade :: Instant -> Connection -> IO Connection}

defaultDialOptions :: DialOptions
defaultDialOptions = DialOptions (const pure)

data DialError = NoneConnected Destination IOError
  deriving (Show)

instance Exception DialError

dialConnection :: DialOptions -> Instant -> Destination -> IO Connection
dialConnection options deadline destination = mask $ \restore -> do
  s <- socket AF_INET Stream defaultProtocol
  (`onException` close s) . handle (throwIO . NoneConnected destination) $ connect s peer
  let connection = socketConnection s peer
  restore (dialUpgrade options deadline connection) `onException` connAbort connection
  where
    peer = case destination of
      Host _ port -> SockAddrInet (read port) (tupleToHostAddress (127, 0, 0, 1))
      UnixPath path -> SockAddrUnix path
