-- |
-- The tests that "Libraries" lists.
module Implementation
  ( implementation,
  )
where

import qualified Library.HttpClient as HttpClient
import qualified Library.Middleware as Middleware
import qualified Library.WebSockets as WebSockets

-- | The tests by group and name.
implementation :: Maybe [((String, String), IO ())]
implementation =
  Just $
    [(("middlewares", name), act) | (name, act) <- Middleware.tests]
      <> [(("websockets", name), act) | (name, act) <- WebSockets.tests]
      <> [(("http-client", name), act) | (name, act) <- HttpClient.tests]
