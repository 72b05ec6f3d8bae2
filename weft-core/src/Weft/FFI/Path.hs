-- |
-- Paths as C strings.
module Weft.FFI.Path
  ( withPath,
  )
where

import Foreign.C.Error (eINVAL, errnoToIOError)
import Foreign.C.String (CString)
import qualified GHC.Foreign as G
import GHC.IO.Encoding (getFileSystemEncoding)

-- | Run an action with a path in the bytes of the file system, as base's own functions on files do.
-- 'Foreign.C.String.withCString' leaves out what the locale cannot express, so that the result may be another file's
-- path. Throws @EINVAL@ at the location that the string names, if the path contains a zero character.
withPath :: String -> FilePath -> (CString -> IO a) -> IO a
withPath loc path act
  | '\0' `elem` path = ioError (errnoToIOError loc eINVAL Nothing (Just path))
  | otherwise = getFileSystemEncoding >>= \encoding -> G.withCString encoding path act
