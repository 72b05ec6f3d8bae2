-- |
-- Decoding by Open vSwitch: @ovs-ofctl ofp-parse@ prints each message of a file.
module OfpPrint
  ( ofctl,
    complaints,
    printedBy,
  )
where

import Control.Exception (bracket)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.List (isInfixOf)
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (hClose, openBinaryTempFile)
import System.Process (readProcessWithExitCode)

-- | The program that decodes messages.
ofctl :: FilePath
ofctl = "ovs-ofctl"

-- | The program's complaints about these messages, and the number of lines that it printed for them.
complaints :: [ByteString] -> IO ([String], Int)
complaints messages = do
  (out, err) <- parsed messages
  pure (filter wrong (lines out ++ lines err), length (lines out))
  where
    wrong l = any (`isInfixOf` l) ["decode error", "***", "|WARN|", "|ERR|", "truncated"]

-- | The program's whole output for these messages.
printedBy :: [ByteString] -> IO String
printedBy = fmap (uncurry (++)) . parsed

parsed :: [ByteString] -> IO (String, String)
parsed messages = bracket create removeFile $ \file -> do
  (_, out, err) <- readProcessWithExitCode ofctl ["ofp-parse", file] ""
  pure (out, err)
  where
    create = do
      dir <- getTemporaryDirectory
      (file, h) <- openBinaryTempFile dir "messages.ofp"
      B.hPut h (B.concat messages)
      file <$ hClose h
