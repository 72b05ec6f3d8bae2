-- |
-- The labels of the simulated machine's threads have a text, and no other effect.
module Weft.Sys.Label
  ( Label,
    threadLabel,
    labelText,
    setLabel,
  )
where

import Weft.Sys (ThreadId)

-- | A label: its text.
newtype Label = Label {labelText :: String}

-- | A label of that text.
threadLabel :: String -> Label
threadLabel = Label

-- | Label a thread.
setLabel :: ThreadId -> Label -> IO ()
setLabel _ _ = pure ()
