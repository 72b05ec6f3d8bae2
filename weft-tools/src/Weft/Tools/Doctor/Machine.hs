-- |
-- Description : Findings of @weft doctor@ about the system
--
-- Back ends, cores, control groups, limits, kernel features and caches, of this machine and of a process, on Linux:
-- proc(5), sysfs(5), cgroups(7). Files that cannot be read give no findings.
module Weft.Tools.Doctor.Machine
  ( -- * Back ends
    backendFindings,
    chosenFinding,

    -- * Cores
    coreFindings,

    -- * The kernel
    kernelFindings,
    seccompFindings,

    -- * Limits
    limitFindings,

    -- * Memory
    cacheFindings,
    areaFinding,
    Area (..),

    -- * Certificates
    certificateFinding,

    -- * Parsing
    sizeOf,
    contents,
    decoded,
    statusField,
  )
where

import Control.Exception (try)
import Data.Bifunctor (bimap)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
import Data.List (sortOn, stripPrefix)
import Data.Maybe (listToMaybe)
import Data.Ord (Down (..))
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import qualified Data.Text.Encoding.Error as T
import Data.Time (UTCTime, defaultTimeLocale, diffUTCTime, formatTime, getCurrentTime)
import Data.Time.Clock.POSIX (posixSecondsToUTCTime)
import GHC.Conc (getNumProcessors)
import GHC.IO.Exception (IOException (ioe_description))
import System.IO.Error (ioeGetErrorString, isDoesNotExistError)
import Text.Read (readMaybe)
import Weft.Backend (Choice (..), backendChoice, backendNames, whyUnavailable)
import Weft.Tls (Certificate (..), certificatesIn)
import Weft.Tools.Cgroup
import Weft.Tools.Doctor.Finding
import Weft.Tools.Serve.Cores (coresWithin)
import Weft.WholeFile (readTextFile)

-- | A file's contents, if it can be read.
contents :: FilePath -> IO (Maybe String)
contents path = either none (Just . decoded) <$> try (B.readFile path)
  where
    none :: IOException -> Maybe String
    none _ = Nothing

-- | Text in UTF-8, in any locale. What is no UTF-8 is replaced: names and arguments of processes may be any bytes, and
-- the kernel cuts a name after 15 of them.
decoded :: B.ByteString -> String
decoded = T.unpack . T.decodeUtf8With T.lenientDecode

-- | A field of @\/proc\/PID\/status@.
statusField :: String -> String -> Maybe String
statusField name status = listToMaybe [dropWhile (`elem` " \t") rest | Just rest <- map (stripPrefix (name <> ":")) (lines status)]

-- ---------------------------------------------------------------------------------------------------------------
-- Back ends

-- | Which back ends can be used here.
backendFindings :: IO [Finding]
backendFindings = mapM finding backendNames
  where
    finding name = maybe (fine (title name) "available") (fact (title name) . ("not available: " <>)) <$> whyUnavailable name
    title = ("back end " <>)

-- | The back end that a program on Weft would get here.
chosenFinding :: IO Finding
chosenFinding = either cannot choice <$> try backendChoice
  where
    cannot :: IOException -> Finding
    cannot e = wrong "chosen" (ioeGetErrorString e)
    choice c = case choiceRefused c of
      Nothing -> fine "chosen" (choiceBackend c <> ": the first available one, or the one requested by WEFT_BACKEND")
      Just (name, why) -> advise "chosen" (choiceBackend c <> " (" <> name <> " was requested: " <> why <> ")")

-- ---------------------------------------------------------------------------------------------------------------
-- Cores

-- | Processors, those that the process may use, and the quota of its control group.
coreFindings :: FilePath -> IO [Finding]
coreFindings proc' = do
  -- 'getNumProcessors' counts only those that this program itself may use.
  online <- contents "/sys/devices/system/cpu/online"
  processors <- maybe getNumProcessors pure (online >>= cpuCount)
  status <- maybe "" id <$> contents (proc' <> "/status")
  quota <- cpuQuota "/sys/fs/cgroup" proc'
  let allowed = cpuCount =<< statusField "Cpus_allowed_list" status
  pure $
    [fact "processors" (show processors)]
      <> [advise "affinity" ("may run on " <> show n <> " of " <> show processors <> " processors (taskset, cpuset): give +RTS -N" <> show n) | Just n <- [allowed], n < processors]
      <> [ case quota of
             NotKnown -> fact "cgroup quota" "not known"
             NoQuota -> fine "cgroup quota" "none"
             Processors q
               | q < fromIntegral processors -> advise "cgroup quota" (show q <> " processors: with more capabilities than that the kernel stops all of them together for the rest of a period; +RTS -N" <> show (coresWithin processors quota))
               | otherwise -> fine "cgroup quota" (show q <> " processors, no less than there are")
         ]

-- | The number of processors in a list such as @0-3,8@.
cpuCount :: String -> Maybe Int
cpuCount text = sum <$> mapM part (splitOn ',' (filter (/= '\n') text))
  where
    part range = case break (== '-') range of
      (a, '-' : b) -> (\x y -> y - x + 1) <$> readMaybe a <*> readMaybe b
      (a, _) -> 1 <$ (readMaybe a :: Maybe Int)

splitOn :: Char -> String -> [String]
splitOn c text = case break (== c) text of
  (part, _ : rest) -> part : splitOn c rest
  (part, []) -> [part]

-- ---------------------------------------------------------------------------------------------------------------
-- The kernel

-- | Settings of the kernel that matter to servers.
kernelFindings :: IO [Finding]
kernelFindings = do
  disabled <- contents "/proc/sys/kernel/io_uring_disabled"
  backlog <- contents "/proc/sys/net/core/somaxconn"
  hugepages <- contents "/sys/kernel/mm/transparent_hugepage/enabled"
  pure $
    [ case takeWhile isDigit d of
        "0" -> fine "io_uring sysctl" "allowed (kernel.io_uring_disabled = 0)"
        "1" -> advise "io_uring sysctl" "for members of kernel.io_uring_group only (kernel.io_uring_disabled = 1)"
        _ -> advise "io_uring sysctl" "off (kernel.io_uring_disabled = 2): files are read by a pool of threads"
      | Just d <- [disabled]
    ]
      <> [ if n < (1024 :: Int)
             then advise "backlog limit" (show n <> " (net.core.somaxconn): a burst of more new connections than that is lost; sysctl net.core.somaxconn=4096")
             else fine "backlog limit" (show n <> " (net.core.somaxconn)")
           | Just n <- [backlog >>= readMaybe]
         ]
      <> [fact "huge pages" (takeWhile (/= '\n') h) | Just h <- [hugepages]]

-- | Whether a process is under a filter of system calls.
seccompFindings :: String -> [Finding]
seccompFindings status = case statusField "Seccomp" status of
  Just "0" -> [fine "seccomp" "no filter of system calls"]
  Just "2" -> [advise "seccomp" "a filter is on: containers often refuse io_uring by it, and some epoll; the next back end is used then"]
  Just other -> [advise "seccomp" ("mode " <> other)]
  Nothing -> []

-- ---------------------------------------------------------------------------------------------------------------
-- Limits

-- | Limits on open files and locked memory, from @\/proc\/PID\/limits@, and the number of open descriptors, if it is
-- known.
limitFindings :: Maybe Int -> String -> [Finding]
limitFindings used text =
  [ case soft of
      Just n
        | Just u <- used, u * 10 > n * 8 -> wrong "open files" (show u <> " of " <> show n <> " are in use: accept will fail soon; raise ulimit -n or LimitNOFILE=")
        | n < 10000 -> advise "open files" (about n <> ": raise ulimit -n, for as many connections as you expect (hard limit " <> hard <> ")")
        | otherwise -> fine "open files" (about n)
      Nothing -> fine "open files" "unlimited"
    | Just (soft, hard) <- [limit "Max open files"]
  ]
    <> [fact "locked memory" (maybe "unlimited" show soft <> " bytes, for rings of io_uring on old kernels") | Just (soft, _) <- [limit "Max locked memory"]]
  where
    about n = maybe "" (\u -> show u <> " in use of ") used <> show n
    limit name = listToMaybe [(readMaybe soft :: Maybe Int, hard) | Just rest <- map (stripPrefix name) (lines text), soft : hard : _ <- [words rest]]

-- ---------------------------------------------------------------------------------------------------------------
-- Memory

-- | The allocation area of a capability.
data Area
  = -- | Its size in bytes.
    AreaOf Integer
  | -- | The default of a compiler that is not known.
    AreaDefault
  | -- | No program is examined, or not its options.
    AreaUnknown

-- | The cache of a core, and a sensible allocation area for it; the argument is the area in use.
cacheFindings :: Area -> IO [Finding]
cacheFindings used = do
  sizes <- mapM (\i -> (,,) <$> contents (base i <> "/level") <*> contents (base i <> "/size") <*> contents (base i <> "/shared_cpu_list")) [0 .. 4 :: Int]
  let level n = fst <$> ofLevel n
      share = (\(whole, users) -> whole `div` fromIntegral users) <$> ofLevel 3
      ofLevel n = listToMaybe [(s, maybe 1 (max 1) (users >>= cpuCount)) | (Just l, Just text, users) <- sizes, takeWhile isDigit l == show (n :: Int), Just s <- [sizeOf text]]
  pure $
    [fact "cache" (maybe "" (\b -> "level 2: " <> show (b `div` 1024) <> " KiB a core") (level 2) <> maybe "" (\b -> ", level 3: " <> megabytes b) (level 3)) | Just _ <- [level 2]]
      <> [areaFinding share b | AreaOf b <- [used]]
      <> [fact "allocation area" "no -A is among the options: the default, 1 MiB a capability in GHC 9.0, 4 MiB since 9.2" | AreaDefault <- [used]]
      <> [fact "allocation area" ("4 MiB (+RTS -A4m) keeps the collector's part of a server's work small; more than the share of a core in level 3 (" <> megabytes s <> ") costs misses") | AreaUnknown <- [used], Just s <- [share]]
  where
    base i = "/sys/devices/system/cpu/cpu0/cache/index" <> show i

-- | What to say of an allocation area of that many bytes, given the share of a core in the level 3 cache.
areaFinding :: Maybe Integer -> Integer -> Finding
areaFinding share b
  | b < least = advise "allocation area" (size <> ": 4 MiB or more (+RTS -A4m) means fewer pauses, all capabilities stop for each")
  | Just most <- max least <$> share, b > most = advise "allocation area" (size <> ": more than the share of a core in level 3 costs cache misses; +RTS -A" <> show (most `div` 1048576) <> "m")
  | otherwise = fine "allocation area" size
  where
    least = 4194304
    size = show (b `div` 1024) <> " KiB a capability"

megabytes :: Integer -> String
megabytes b = show (b `div` 1048576) <> " MiB"

-- | A size such as @512K@ or @16M@, in bytes.
sizeOf :: String -> Maybe Integer
sizeOf text = case span isDigit text of
  (digits@(_ : _), unit) -> (* scale (take 1 unit)) <$> readMaybe digits
  _ -> Nothing
  where
    scale u = case u of
      "K" -> 1024
      "k" -> 1024
      "M" -> 1048576
      "m" -> 1048576
      "G" -> 1073741824
      "g" -> 1073741824
      _ -> 1

-- ---------------------------------------------------------------------------------------------------------------
-- Certificates

-- | The finding about the certificates in a PEM file: the worst of all, and of equal ones the one that ends first.
certificateFinding :: FilePath -> IO Finding
certificateFinding file = do
  content <- try (readTextFile file)
  case certificatesIn <$> content of
    Left e -> pure (wrong name (if isDoesNotExistError e then "there is no such file" else "cannot be read: " <> ioe_description e))
    Right [] -> pure (wrong name "not a certificate: the file has no part BEGIN CERTIFICATE (PEM)")
    Right found -> do
      now <- getCurrentTime
      pure (worst (zip [1 :: Int ..] (map (maybe unreadable (validity now) . (>>= period)) found)))
  where
    name = "certificate " <> file
    unreadable = (Wrong, 0, "not a certificate: weft serve does not understand it")
    period certificate = bimap instant instant <$> certificateValidity certificate
    instant = posixSecondsToUTCTime . fromIntegral
    worst judged = case sortOn (\(_, (mark, end, _)) -> (Down mark, end)) judged of
      (i, (mark, _, found)) : others -> Finding mark name (found <> (if null others then "" else " (certificate " <> show i <> " of " <> show (length judged) <> " in the file)"))
      [] -> wrong name "not a certificate"

-- | What a certificate's period means now, and the number of days until its end.
validity :: UTCTime -> (UTCTime, UTCTime) -> (Mark, Int, String)
validity now (begin, end)
  | now < begin = (Wrong, days, "not valid before " <> formatTime defaultTimeLocale "%F %R UTC" begin <> ": clients refuse it")
  | days < 0 = (Wrong, days, "ended on " <> day <> ": clients refuse it")
  | days < 21 = (Advice, days, "ends on " <> day <> ", in " <> show days <> " days: renew it, then send SIGHUP")
  | otherwise = (Fine, days, "valid until " <> day <> ", for " <> show days <> " days")
  where
    day = formatTime defaultTimeLocale "%F" end
    days = floor (diffUTCTime end now / 86400)
