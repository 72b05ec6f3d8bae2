-- |
-- Files that a user names, read as a whole. The name may be that of a pipe, of a device that never ends, or of a file
-- larger than memory, so reading has a bound. (Reading a pipe waits for its writers, and can be interrupted; one that
-- nobody writes to is empty.)
module Weft.WholeFile
  ( readWholeFile,
    readTextFile,
    programLimit,
  )
where

import Control.Exception (try)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy as L
import Data.Either (fromRight)
import Data.Int (Int64)
import GHC.IO.Exception (IOErrorType (InvalidArgument), IOException (IOError))
import System.IO (IOMode (ReadMode), hFileSize, withBinaryFile)

-- | Read a file of up to so many bytes, and up to 'textLimit' of what is not a regular file. Throws an 'IOException'
-- if there are more, before memory is used for them, or if the file cannot be read. May be called by any thread; it
-- occupies an OS thread while the disk works, so programs with other work use it in @Weft.Blocking.blocking@.
readWholeFile :: Int64 -> FilePath -> IO ByteString
readWholeFile limit path = withBinaryFile path ReadMode $ \h -> do
  sized <- try (hFileSize h) :: IO (Either IOException Integer)
  let most = either (const (min limit textLimit)) (const limit) sized
      known = fromRight 0 sized
      tooLong = ioError (IOError Nothing InvalidArgument "readWholeFile" ("longer than the " <> show most <> " bytes that are read" <> either (const " of a pipe or a device") (const "") sized) Nothing (Just path))
  when (known > fromIntegral most) tooLong
  start <- B.hGet h (fromIntegral known)
  -- Files of /proc have more than their size, which is 0.
  rest <- L.hGet h (fromIntegral most + 1 - B.length start)
  when (fromIntegral (B.length start) + L.length rest > most) tooLong
  pure (start <> L.toStrict rest)

-- | 'readWholeFile' of a configuration, certificates, a key, passwords or a token: up to 'textLimit'.
readTextFile :: FilePath -> IO ByteString
readTextFile = readWholeFile textLimit

-- | 16 MiB: the names and passwords of 200,000 users. In bytes.
textLimit :: Int64
textLimit = 16777216

-- | What is read of a program or a recording: 1 GiB. In bytes.
programLimit :: Int64
programLimit = 1073741824
