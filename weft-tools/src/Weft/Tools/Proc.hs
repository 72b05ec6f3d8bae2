{-# LANGUAGE CApiFFI #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : What the kernel says about a process and this machine
--
-- Readings of @/proc@ and of the CPU clock of another process. Each throws 'IOError' when the process is gone.
module Weft.Tools.Proc
  ( -- * A process
    cpuSeconds,
    residentBytes,
    peakResidentBytes,
    voluntarySwitches,
    osThreads,
    fullyTraced,

    -- * The machine
    kernelVersion,
    processorModel,
    availableBytes,

    -- * Parsing
    field,
    releaseNumbers,
  )
where

import Control.Exception (IOException, try)
import qualified Data.ByteString.Char8 as B
import Data.Char (isDigit)
import Data.Text (Text)
import qualified Data.Text as T
import Foreign (Ptr, alloca, allocaBytes, peek, peekByteOff)
import Foreign.C (CInt (..), CLong)
import System.Directory (listDirectory)
import System.FilePath ((</>))
import System.Posix.Types (CClockId (..), CPid (..), ProcessID)

foreign import capi unsafe "time.h clock_getcpuclockid"
  c_clock_getcpuclockid :: CPid -> Ptr CClockId -> IO CInt

foreign import capi unsafe "time.h clock_gettime"
  c_clock_gettime :: CClockId -> Ptr () -> IO CInt

-- | User and system time of all threads of a process so far, ended ones too, to the nanosecond.
cpuSeconds :: ProcessID -> IO Double
cpuSeconds pid = alloca $ \clock -> allocaBytes 16 $ \time -> do
  unknown <- c_clock_getcpuclockid pid clock
  unread <- if unknown /= 0 then pure (-1) else peek clock >>= \c -> c_clock_gettime c time
  if unread /= 0
    then ioError (userError ("no CPU clock for process " ++ show pid))
    else do
      seconds <- peekByteOff time 0 :: IO CLong
      nanos <- peekByteOff time 8 :: IO CLong
      pure (fromIntegral seconds + fromIntegral nanos / 1e9)

-- | Resident memory now.
residentBytes :: ProcessID -> IO Double
residentBytes pid = do
  exact <- try (B.readFile (procDir pid </> "smaps_rollup")) :: IO (Either IOException B.ByteString)
  case exact >>= maybe (Left (userError "no Rss")) Right . field "Rss" of
    Right kib -> pure (1024 * kib)
    Left _ -> (1024 *) <$> statusField pid "VmRSS"

-- | The most that was ever resident.
peakResidentBytes :: ProcessID -> IO Double
peakResidentBytes pid = (1024 *) <$> statusField pid "VmHWM"

-- | How often threads of the process went to sleep, summed over its threads.
voluntarySwitches :: ProcessID -> IO Double
voluntarySwitches pid = sum <$> overTasks pid "voluntary_ctxt_switches"

-- | Threads of the process.
osThreads :: ProcessID -> IO Double
osThreads pid = fromIntegral . length <$> listDirectory (procDir pid </> "task")

-- | Is every thread of the process being traced?
fullyTraced :: ProcessID -> IO Bool
fullyTraced pid = notElem 0 <$> overTasks pid "TracerPid"

-- | The kernel's version without what a vendor appended.
kernelVersion :: IO Text
kernelVersion = releaseNumbers . T.pack . B.unpack <$> B.readFile "/proc/sys/kernel/osrelease"

-- | The processor's name, as the kernel has it.
processorModel :: IO (Maybe Text)
processorModel = do
  facts <- try (B.readFile "/proc/cpuinfo") :: IO (Either IOException B.ByteString)
  pure $ case either (const []) (filter (B.isPrefixOf "model name") . B.lines) facts of
    line : _ -> Just (T.strip (T.pack (B.unpack (B.drop 1 (B.dropWhile (/= ':') line)))))
    [] -> Nothing

-- | Memory that programs could have without swapping.
availableBytes :: IO Double
availableBytes = do
  facts <- B.readFile "/proc/meminfo"
  maybe (ioError (userError "no MemAvailable")) (pure . (1024 *)) (field "MemAvailable" facts)

procDir :: ProcessID -> FilePath
procDir pid = "/proc" </> show pid

statusField :: ProcessID -> B.ByteString -> IO Double
statusField pid name = do
  status <- B.readFile (procDir pid </> "status")
  maybe (ioError (userError ("no " ++ B.unpack name ++ " for process " ++ show pid))) pure (field name status)

-- | A field of every thread's status; a thread that ends meanwhile is left out.
overTasks :: ProcessID -> B.ByteString -> IO [Double]
overTasks pid name = do
  tasks <- listDirectory (procDir pid </> "task")
  concat <$> mapM one tasks
  where
    one task = do
      status <- try (B.readFile (procDir pid </> "task" </> task </> "status")) :: IO (Either IOException B.ByteString)
      pure (either (const []) (maybe [] pure . field name) status)

-- | The first number on the line that begins with this name and a colon.
field :: B.ByteString -> B.ByteString -> Maybe Double
field name contents = case filter (B.isPrefixOf label) (B.lines contents) of
  line : _ -> fromIntegral . fst <$> B.readInteger (B.dropWhile (`elem` [' ', '\t']) (B.drop (B.length label) line))
  [] -> Nothing
  where
    label = name <> ":"

-- | @6.1.0-13-amd64@ becomes @6.1.0@.
releaseNumbers :: Text -> Text
releaseNumbers = T.dropWhileEnd (== '.') . T.takeWhile (\c -> isDigit c || c == '.')
