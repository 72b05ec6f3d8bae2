-- |
-- The part of "Weft.Socket" that a server needs: its own modules, without files, messages and STM.
module Weft.Socket
  ( Socket,
    module Weft.Socket.Basic,
    module Weft.Socket.Options,
    module Weft.Socket.Serve,
    module Weft.Duration,
    Instant,
    deadlineIn,
    noDeadline,
    withDeadline,
    isTimeout,
    close,
    close',
    SockAddr (..),
    Family (..),
    SocketType (..),
    SocketOption (..),
    StructLinger (..),
    ShutdownCmd (..),
    PortNumber,
    HostAddress,
    HostAddress6,
    hostAddress6ToTuple,
    hostAddressToTuple,
    tupleToHostAddress,
    tupleToHostAddress6,
    defaultProtocol,
  )
where

import Network.Socket (Family (..), HostAddress, HostAddress6, PortNumber, ShutdownCmd (..), SockAddr (..), SocketOption (..), SocketType (..), StructLinger (..), defaultProtocol, hostAddress6ToTuple, hostAddressToTuple, tupleToHostAddress, tupleToHostAddress6)
import Weft.Deadline (Instant, deadlineIn, isTimeout, noDeadline)
import Weft.Duration
import Weft.Socket.Basic
import Weft.Socket.Options
import Weft.Socket.Serve
import Weft.Socket.Types
