-- |
-- "Weft.FFI.ThreadNumber" on the simulated machine, whose threads have numbers of their own.
module Weft.FFI.ThreadNumber
  ( threadNumber,
  )
where

import Weft.Sys (ThreadId)

-- | As 'show' prints it.
threadNumber :: ThreadId -> IO Int
threadNumber = pure . read . last . words . show
