-- |
-- The tests that "Libraries" lists of packages which are built on @http-client@.
module ClientImplementation
  ( clientImplementation,
  )
where

import qualified Library.Servant as Servant
import qualified Library.Wreq as Wreq

-- | The tests by group and name.
clientImplementation :: Maybe [((String, String), IO ())]
clientImplementation =
  Just $
    [(("wreq", name), act) | (name, act) <- Wreq.tests]
      <> [(("servant-client", name), act) | (name, act) <- Servant.tests]
