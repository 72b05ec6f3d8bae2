{-# LANGUAGE OverloadedStrings #-}

-- |
-- What the tests share: URLs of scripted servers, deadlines, and why a request failed.
module Peer
  ( url,
    soon,
    causeOf,
    module Weft.Test.Peer,
  )
where

import Control.Exception (try)
import Data.ByteString (ByteString)
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http.Client
import Weft.Test.Peer
import Weft.Transport (Instant, deadlineIn)

-- | A URL of a server on this port.
url :: Int -> ByteString -> Url
url port path = Url "127.0.0.1" (show port) Nothing path False

-- | A deadline that no test reaches.
soon :: IO Instant
soon = deadlineIn (seconds 80)

-- | The phase and the cause of a request's failure.
causeOf :: IO a -> IO (Phase, Cause)
causeOf act = do
  r <- try act
  case r of
    Left e -> pure (errorPhase e, errorCause e)
    Right _ -> assertFailure "the request succeeded"
