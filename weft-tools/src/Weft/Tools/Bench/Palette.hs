{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The colours of charts
--
-- Pure. A subject has the same colour in every chart. The colours are those of Okabe and Ito, which people with any of the common colour
-- deficiencies can tell apart, on white and on black. No chart says by colour alone what it says: bars are labelled, lines
-- have marks of different forms.
module Weft.Tools.Bench.Palette
  ( subjectColour,
    chartStyle,
  )
where

import Data.Maybe (fromMaybe)
import Data.Text (Text)

-- | As in CSS.
subjectColour :: Text -> Text
subjectColour subject = fromMaybe "#8c8c8c" (lookup subject colours)
  where
    colours =
      [ ("weft", blue),
        ("weft psq", sky),
        ("weft-hybrid", sky),
        ("weft-relink", blue),
        ("relinked", blue),
        ("weft-bare", sky),
        ("ghc", orange),
        ("warp", orange),
        ("weft-wai", sky),
        ("ovs-testcontroller", green),
        ("os-ken", purple),
        ("c-epoll", green),
        ("c-uring", green),
        ("c-threads", green),
        ("fio", green),
        ("nginx", green),
        ("go", purple),
        ("go-http", purple),
        ("tokio", vermilion),
        ("hyper", vermilion),
        ("kernel", "#8c8c8c")
      ]
    blue = "#0072b2"
    sky = "#56b4e9"
    orange = "#e69f00"
    green = "#009e73"
    purple = "#cc79a7"
    vermilion = "#d55e00"

-- | The style sheet of a chart: ink, faint ink, grid and paper, for light and for dark surroundings.
chartStyle :: Text
chartStyle =
  "<style>.ink{fill:#222}.faint{fill:#595959}.grid{stroke:#d9d9d9}.axis{stroke:#222}.paper{fill:#fff}\
  \@media(prefers-color-scheme:dark){.ink{fill:#e8e8e8}.faint{fill:#b3b3b3}.grid{stroke:#444}.axis{stroke:#e8e8e8}.paper{fill:#161616}}</style>"
