{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Servers with TLS
--
-- A certificate for localhost and its key, made by @openssl@ in the scratch directory when first needed, and the
-- arguments that have a subject serve the small files with them.
module Weft.Bench.Certificates
  ( Key (..),
    keyName,
    secureFiles,
    secureArguments,
    certificateFiles,
  )
where

import Control.Monad (unless)
import Data.Text (Text)
import qualified Data.Text as T
import System.Directory (doesFileExist, renameFile)
import System.Exit (ExitCode (ExitSuccess))
import System.FilePath ((</>))
import System.Process (readProcessWithExitCode)
import Weft.Bench.Folders
import Weft.Bench.Types

-- | The kind of the server's key.
data Key = P256 | Rsa2048
  deriving (Eq, Show)

-- | As results have it.
keyName :: Key -> Text
keyName key = case key of
  P256 -> "p256"
  Rsa2048 -> "rsa2048"

-- | The arguments of a server of the small files over TLS, on this many cores. Programs without files answer @\/1k@,
-- @\/16k@ and @\/1m@ from memory.
secureFiles :: Int -> Key -> Env -> Subject -> IO [String]
secureFiles cores key env subject = do
  root <- smallFolder env
  (concat [rootArgumentsOn cores subject root | subjectKind subject == CProgram] <>) <$> secureArguments key env

-- | The arguments of any server for TLS.
secureArguments :: Key -> Env -> IO [String]
secureArguments key env = do
  (chain, private) <- certificateFiles key env
  pure ["--certificate", chain, "--key", private]

-- | The files of the certificate chain and of its key.
certificateFiles :: Key -> Env -> IO (FilePath, FilePath)
certificateFiles key env = do
  there <- doesFileExist private
  unless there $ do
    (code, _, err) <- readProcessWithExitCode "openssl" arguments ""
    unless (code == ExitSuccess) (failWith ("openssl: " <> T.pack err))
    renameFile unfinished private
  pure (chain, private)
  where
    file suffix = envScratch env </> T.unpack (keyName key) <> suffix
    chain = file "-chain.pem"
    private = file "-key.pem"
    unfinished = private <> ".unfinished"
    arguments =
      ["req", "-x509"]
        <> ( case key of
               P256 -> ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
               Rsa2048 -> ["-newkey", "rsa:2048"]
           )
        <> ["-nodes", "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", unfinished, "-out", chain]
