-- |
-- The packages are not installed.
module Implementation
  ( implementation,
  )
where

-- | No tests.
implementation :: Maybe [((String, String), IO ())]
implementation = Nothing
