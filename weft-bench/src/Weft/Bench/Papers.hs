{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Results of the papers
--
-- Figures of O'Sullivan and Tibell 2010, Li and Zdancewic 2007, and Voellmy, Wang, Hudak and Yamamoto 2013 (Mio), shown
-- next to our own measurements. Their machines were different, so only ratios and shapes can be compared.
module Weft.Bench.Papers
  ( Paper (..),
    papersOf,
  )
where

import Data.Text (Text)

-- | A figure's number, and its result.
data Paper = Paper
  { paperPlace :: !Text,
    paperFinding :: !Text
  }

-- | The figures that a benchmark corresponds to.
papersOf :: Text -> [Paper]
papersOf bench = [Paper place finding | (name, place, finding) <- figures, name == bench]

figures :: [(Text, Text, Text)]
figures =
  [ ("pong", "Mio 2013, figure 5", "400 clients, requests a second: 33,200 on one core with GHC's manager of that time and 58,700 with Mio; 668,000 with Mio on 20 cores."),
    ("http", "Mio 2013, figure 13", "mighty, a web server on Warp, reaches 195,000 requests a second on 20 cores with Mio and at most 30,000 with GHC's manager of that time; within a factor of 2.5 of nginx."),
    ("static", "Mio 2013, figure 13", "mighty stays within a factor of 2.5 of nginx for every number of cores, within 2 from 8 cores on."),
    ("delay", "2010, section 9.2", "Two OS threads: no degradation up to three million threads in threadDelay, on 4 GB of memory."),
    ("hybrid-memory", "2007, section 5.1", "48 bytes of live memory for each of ten million threads that loop on yield."),
    ("fifo", "2007, figure 18", "128 pairs over FIFO pipes: 30 % more throughput than kernel threads (NPTL), and none lost to idle threads."),
    ("disk", "2007, figure 17", "Random reads of 4 KiB, O_DIRECT: slightly ahead of kernel threads from 100 threads on, and steady up to 64 K threads."),
    ("disk-web", "2007, figure 19", "128 K files of 16 KiB, cold page cache: compares favourably with Apache 2.0.55; 70 to 85 % CPU with 1,024 connections."),
    ("sdn", "Mio 2013, figures 16 and 17", "McNettle on Mio: over 20 million requests a second on 40 cores; with 30 cores a median latency of 1 ms.")
  ]
