-- |
-- All that "Weft.Http.Client.Manager" needs of @http-client@ and its public modules do not export (0.7):
--
-- * the number in a 'ResponseTimeout', which can be made and compared, but not read: without it the limit of a request
--   could not hold beyond the head of the response;
-- * 'managerTlsProxyConnection', without which TLS through a proxy would be another library's;
-- * the fields of 'Connection': those that @makeConnection@ makes do not give back what was received and not used,
--   which TLS has to have after a proxy's answer;
-- * the type of the exceptions that 'Network.HTTP.Client.managerWrapException' sees, which get their request behind it.
--
-- Should its internal module change, this one changes alone.
module Weft.Http.Client.Manager.Internal
  ( Connection (..),
    managerTlsProxyConnection,
    timeLimit,
    couldNotConnectInTime,
  )
where

import Control.Exception (SomeException, fromException)
import Network.HTTP.Client (HttpException (..), HttpExceptionContent (ConnectionTimeout), ManagerSettings, Request, managerResponseTimeout, responseTimeout)
import Network.HTTP.Client.Internal (Connection (..), ResponseTimeout (..), managerTlsProxyConnection, toHttpException)
import Weft.Duration

-- | The time limit of a request, 'maxBound' if there is none. @http-client@'s default is 30 seconds.
timeLimit :: ManagerSettings -> Request -> Duration
timeLimit settings request = case responseTimeout request of
  ResponseTimeoutDefault -> case managerResponseTimeout settings of
    ResponseTimeoutDefault -> seconds 30
    limit -> given limit
  limit -> given limit
  where
    given limit = case limit of
      ResponseTimeoutMicro n -> microseconds n
      _ -> maxBound

-- | Whether an exception that comes out of a request is @http-client@'s own limit on the time to connect.
couldNotConnectInTime :: Request -> SomeException -> Bool
couldNotConnectInTime request e = case toHttpException request <$> fromException e of
  Just (HttpExceptionRequest _ ConnectionTimeout) -> True
  _ -> False
