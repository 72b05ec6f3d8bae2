{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The colours of charts
--
-- Pure. A subject has the same colour in every chart. The colours are those of Okabe and Ito, which people with the
-- common colour vision deficiencies can distinguish, on white and on black. No chart relies on colour alone: bars have
-- labels, and lines have marks of different shapes.
module Weft.Bench.Palette
  ( subjectColour,
    chartStyle,
  )
where

import Data.Maybe (fromMaybe)
import Data.Text (Text)

-- | A CSS colour.
subjectColour :: Text -> Text
subjectColour subject = fromMaybe "#8c8c8c" (lookup subject colours)
  where
    colours =
      [ ("weft", blue),
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

-- | The style sheet of a chart: the colours of text, secondary text, grid and background, in light and dark mode.
chartStyle :: Text
chartStyle =
  "<style>.ink{fill:#222}.faint{fill:#595959}.grid{stroke:#d9d9d9}.axis{stroke:#222}.paper{fill:#fff}\
  \@media(prefers-color-scheme:dark){.ink{fill:#e8e8e8}.faint{fill:#b3b3b3}.grid{stroke:#444}.axis{stroke:#e8e8e8}.paper{fill:#161616}}</style>"
