-- |
-- Description : Lines on standard error
--
-- Any thread may call these functions. They throw no 'IOException'.
module Weft.Tools.StandardError
  ( reportLine,
    reportText,
  )
where

import Data.Text (Text)
import qualified Data.Text as T
import Weft.StandardError (reportLine)

-- | 'reportLine' for a 'Text'.
reportText :: Text -> IO ()
reportText = reportLine . T.unpack
