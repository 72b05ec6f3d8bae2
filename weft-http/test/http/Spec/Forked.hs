{-# LANGUAGE OverloadedStrings #-}

-- |
-- What a child of 'System.Posix.Process.forkProcess' can do with the folder and the log of its parent.
module Spec.Forked (tests) where

import Client (eventually)
import Configurations
import Control.Exception (bracket)
import Control.Monad (forM_, forever, replicateM_, void)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Builder as L
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (sort)
import Data.Maybe (isJust)
import Network.HTTP.Types
import Network.Wai
import Network.Wai.Internal (ResponseReceived (..))
import System.Directory
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.AccessLog
import Weft.Duration (milliseconds, seconds)
import Weft.Exchange (Exchange (..))
import Weft.Scope (forkDaemon, withScope)
import Weft.Static
import Weft.Test.Forked (inChild)

tests :: Configuration -> TestTree
tests on =
  testGroup
    "forked children"
    [ testOn on "a folder: the child waits for nothing that requests of the parent have begun" . withFolder $ \folder -> do
        B.writeFile (folder </> "a.txt") "a"
        B.writeFile (folder </> "b.txt") "b"
        -- Each request compares its file with the disk, for all who ask for it, and one may do so at a time.
        files <- newOpenFiles 8
        withStatic defaultStaticSettings {staticOpenFiles = Just files, staticTrust = seconds 0} folder $ \static -> do
          let both = forM_ [("/a.txt", "a"), ("/b.txt", "b")] $ \(path, text) -> get static path [] >>= (@?= text) . snd
          withScope $ \scope -> do
            replicateM_ 4 (forkDaemon scope (forever both))
            replicateM_ 5 (inChild (replicateM_ 3 both)),
      testOn on "a folder: the child compresses while its parent does" . withFolder $ \folder -> do
        B.writeFile (folder </> "large.txt") (C.pack (take 1000000 (concatMap show [1 :: Int ..])))
        B.writeFile (folder </> "small.txt") (C.replicate 5000 'x')
        withStatic defaultStaticSettings {staticCompress = True} folder $ \static -> do
          let accepts path = isJust . lookup "content-encoding" . fst <$> get static path [("Accept-Encoding", "gzip")]
          accepts "/large.txt" >>= (@?= False)
          inChild (eventually "it is compressed" (accepts "/small.txt"))
          eventually "the parent's is, too" (accepts "/large.txt"),
      testOn on "a log: the child appends lines of its own, and writes none of its parent's" . withFolder $ \folder -> do
        let file = folder </> "log"
            targets = sort . map ((!! 6) . C.words) . C.lines <$> B.readFile file
            note accessLog target = logExchange accessLog defaultRequest {rawPathInfo = target} (Exchange 200 Nothing mempty False)
        withAccessLog defaultLogSettings {logPath = file, logDelay = seconds 60} $ \accessLog -> do
          note accessLog "/parent"
          inChild $ do
            note accessLog "/child"
            flushLog accessLog
            logMetrics accessLog >>= (@?= LogMetrics 1 0 0)
            targets >>= (@?= ["/child"])
          renameFile file (folder </> "old")
          reopenLog accessLog
          note accessLog "/parent2"
          inChild $ do
            note accessLog "/child2"
            flushLog accessLog
        (<>) <$> (C.lines <$> B.readFile (folder </> "old")) <*> (C.lines <$> B.readFile file) >>= (@?= ["/child", "/parent", "/child2", "/parent2"]) . map ((!! 6) . C.words),
      testOn on "a log: a thread of the child's writes its lines" . withFolder $ \folder -> do
        let file = folder </> "log"
        withAccessLog defaultLogSettings {logPath = file, logDelay = milliseconds 5} $ \accessLog ->
          replicateM_ 3 . inChild $ do
            before <- length . C.lines <$> B.readFile file
            logExchange accessLog defaultRequest (Exchange 200 Nothing mempty False)
            eventually "the line is written" ((== before + 1) . length . C.lines <$> B.readFile file)
    ]

-- | The fields and the body of a response.
get :: Static -> ByteString -> RequestHeaders -> IO (ResponseHeaders, ByteString)
get static path fields = do
  found <- newIORef ([], "")
  void . staticApp static defaultRequest {rawPathInfo = path, pathInfo = decodePathSegments path, requestHeaders = fields} $ \response -> do
    let (_, headers, withBody) = responseToStream response
    pieces <- newIORef mempty
    withBody $ \body -> body (\piece -> modifyIORef pieces (<> piece)) (pure ())
    body <- L.toStrict . L.toLazyByteString <$> readIORef pieces
    ResponseReceived <$ writeIORef found (headers, body)
  readIORef found

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removePathForcibly
  where
    make = getTemporaryDirectory >>= \dir -> mkdtemp (dir </> "weft-forked-")
