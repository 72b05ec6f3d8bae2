-- |
-- Description : The CPU quota of a process's control groups
--
-- Control groups of both versions (cgroups(7)), on Linux.
module Weft.Tools.Cgroup
  ( Quota (..),
    cpuQuota,
  )
where

import Control.Exception (IOException, try)
import qualified Data.ByteString.Char8 as B
import Data.Maybe (catMaybes)
import System.Directory (doesFileExist)
import System.FilePath (takeDirectory, (</>))
import Text.Read (readMaybe)

-- | How much CPU time a process may use in a period.
data Quota
  = -- | The quota cannot be read.
    NotKnown
  | NoQuota
  | -- | That of so many processors.
    Processors !Double
  deriving (Eq, Show)

-- | The smallest quota on the way from a process's group to the root. The arguments are the folder at which control
-- groups are mounted, usually @\/sys\/fs\/cgroup@, and the process's folder in @\/proc@. In a container the names of
-- the groups may be those outside; then only the root can be read, which is the container's own group.
cpuQuota :: FilePath -> FilePath -> IO Quota
cpuQuota mounted process = do
  groups <- maybe [] (map group . lines) <$> contents (process </> "cgroup")
  -- A controller is in a hierarchy of version 1, or else in the one of version 2, which is line 0.
  case [(names, path) | (_, names, path) <- groups, "cpu" `elem` splitOn ',' names] of
    (names, path) : _ -> smallest <$> sequence [ofVersion1 (mounted </> folder </> own) | folder <- [names, "cpu"], own <- upwards path]
    [] -> case [path | ("0", "", path) <- groups] of
      path : _ -> do
        quotas <- mapM (ofVersion2 . (mounted </>)) (upwards path)
        -- The root has no quota, nor has a group without the controller.
        readable <- doesFileExist (mounted </> "cgroup.controllers")
        pure (smallest (if readable then Just NoQuota : quotas else quotas))
      [] -> pure NotKnown
  where
    group line = case break (== ':') line of
      (number, rest) | (names, path) <- break (== ':') (drop 1 rest) -> (number, names, drop 1 path)
    upwards path = map (dropWhile (== '/')) (takeWhile (`notElem` ["/", ".", ""]) (iterate takeDirectory path) <> ["/"])
    smallest known = case [q | Processors q <- found] of
      [] -> if null found then NotKnown else NoQuota
      quotas -> Processors (minimum quotas)
      where
        found = catMaybes known

-- | The quota of one group. 'Nothing' if it cannot be read.
ofVersion1, ofVersion2 :: FilePath -> IO (Maybe Quota)
ofVersion1 folder = do
  quota <- contents (folder </> "cpu.cfs_quota_us")
  period <- contents (folder </> "cpu.cfs_period_us")
  pure (quotaOf <$> ((\q p -> [q, p]) <$> quota <*> period))
ofVersion2 folder = fmap (quotaOf . words) <$> contents (folder </> "cpu.max")

-- | From a quota and a period in microseconds. Without a limit the quota is @-1@ (version 1) or @max@ (version 2).
quotaOf :: [String] -> Quota
quotaOf fields = case map readMaybe fields of
  [Just quota, Just period] | quota > 0, period > 0 -> Processors (quota / period)
  _ -> NoQuota

-- | A file's contents, if it can be read.
contents :: FilePath -> IO (Maybe String)
contents path = either none (Just . B.unpack) <$> try (B.readFile path)
  where
    none :: IOException -> Maybe String
    none _ = Nothing

splitOn :: Char -> String -> [String]
splitOn c text = case break (== c) text of
  (part, _ : rest) -> part : splitOn c rest
  (part, []) -> [part]
