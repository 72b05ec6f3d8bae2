-- |
-- HTTP\/1.1 on connections that the program chooses itself, where "Weft.Http.Client" would choose them: for load
-- generators, for tests, and over other transports.
--
-- > c <- newHttpConnection =<< connectUrl defaultClientSettings soon url
-- > (status, after) <- exchange defaultClientSettings c soon (getRequest url) (pure . responseStatus)
--
-- A connection has one exchange at a time, whose response is read by one thread. All functions are interruptible.
-- Errors of an exchange are 'Weft.Http.Client.ClientError's; the connection is then aborted.
--
-- @since 0.1.0
module Weft.Http.Client.Connection
  ( -- * Connections
    HttpConnection,
    newHttpConnection,
    httpConnection,
    exchangesDone,

    -- * Exchanges
    exchange,
    After (..),

    -- * Between exchanges
    idleUntil,
    Idle (..),
  )
where

import Weft.Http.Client.Exchange
