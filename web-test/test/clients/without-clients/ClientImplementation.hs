-- |
-- The packages are not installed.
module ClientImplementation
  ( clientImplementation,
  )
where

-- | No tests.
clientImplementation :: Maybe [((String, String), IO ())]
clientImplementation = Nothing
