-- |
-- Description : How many cores a process may use
--
-- The number of processors that it may run on (sched_getaffinity(2)), at most the quota of its control groups
-- (cgroups(7), @cpu.max@ of version 2): a container with a quota of two on a machine with 64 processors needs two
-- capabilities.
module Weft.Tools.Serve.Cores
  ( availableCores,
    coresWithin,
    quotaOf,
  )
where

import Control.Exception (IOException, try)
import qualified Data.ByteString.Char8 as B
import Data.Maybe (catMaybes, mapMaybe)
import GHC.Conc (getNumProcessors)
import System.FilePath (takeDirectory, (</>))

-- | The number of cores that this process may use.
availableCores :: IO Int
availableCores = do
  processors <- getNumProcessors
  groups <- contents "/proc/self/cgroup"
  let own = case [drop 3 (B.unpack l) | l <- maybe [] B.lines groups, B.pack "0::" `B.isPrefixOf` l] of
        path : _ -> path
        [] -> "/"
  quotas <- mapM contents ["/sys/fs/cgroup" </> (dropWhile (== '/') folder </> "cpu.max") | folder <- upwards own]
  pure (coresWithin processors (map B.unpack (catMaybes quotas)))
  where
    contents :: FilePath -> IO (Maybe B.ByteString)
    contents path = either ignored Just <$> try (B.readFile path)
    ignored :: IOException -> Maybe B.ByteString
    ignored _ = Nothing
    upwards path = if path `elem` ["/", "", "."] then ["/"] else path : upwards (takeDirectory path)

-- | The number of cores to use: this many processors, at most the smallest of the quotas, at least one.
coresWithin :: Int -> [String] -> Int
coresWithin processors quotas = max 1 (minimum (processors : mapMaybe quotaOf quotas))

-- | The limit of a @cpu.max@ in whole cores, rounded up. The file has a quota and a period in microseconds.
quotaOf :: String -> Maybe Int
quotaOf text = case map reads (words text) of
  [[(quota, "")], [(period, "")]] | quota > 0, period > 0 -> Just ((quota + period - 1) `div` period)
  _ -> Nothing
