{-# LANGUAGE OverloadedStrings #-}

-- |
-- "Weft.Static": large files that stay open between responses (@staticKeptFiles@). What is open is read from
-- @\/proc\/self\/fd@.
module Spec.KeptFiles (tests) where

import Application (asNobody, filler)
import Client
import Configurations
import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (mapConcurrently_)
import Control.Exception (IOException, bracket, catch)
import Control.Monad (forM_, replicateM_, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import Data.List (isPrefixOf)
import System.Directory
import System.FilePath ((</>))
import System.Posix.Files (createSymbolicLink, readSymbolicLink, rename, setFileMode, setFileSize)
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (Duration, milliseconds, seconds)
import Weft.Http
import Weft.Static

tests :: Configuration -> TestTree
tests on =
  testGroup
    "kept files"
    ( [ testOn on "a file stays open after a response, once for each capability, until its folder is closed" stays,
        testOn on "after each change at its path the answer is the new one, and the old file is closed" changes,
        testOn on "a file that the server may no longer read is not served, although it was open" unreadable,
        testOn on "a file that is truncated or grows where it is has its new contents at the next request" inPlace,
        testOn on "no more files are kept than the settings allow, and all are served" bounded,
        testOn on "without room for open files none is kept, and all requests are answered" noRoom,
        testOn on "a folder whose settings are changed keeps its files until it is closed" changedSettings
      ]
        -- These take ten seconds, so they run in some configurations only.
        <> concat
          [ [ testOn on "a response that is under way is whole when its file is kept no longer" underWay,
              testOn on "a file that nobody asks for is closed" idle
            ]
            | capabilities on == 1 || limiting on && capabilities on == 2
          ]
    )

-- | The number of descriptors of files whose path begins with this one. That of a file that was removed has more
-- behind.
openBelow :: FilePath -> IO Int
openBelow path = do
  numbers <- listDirectory "/proc/self/fd"
  targets <- mapM (\n -> readSymbolicLink ("/proc/self/fd" </> n) `catch` gone) numbers
  pure (length (filter (path `isPrefixOf`) targets))
  where
    -- It was closed meanwhile; so was that of the listing.
    gone :: IOException -> IO FilePath
    gone _ = pure ""

stays :: Assertion
stays = withFolder $ \folder -> do
  B.writeFile (folder </> "f") contents
  withStatic defaultStaticSettings {staticTrust = trust} folder $ \static -> testWithApplication (pure (staticApp static)) $ \port -> do
    withClient port $ \client -> do
      get client "/f" >>= (`isBytes` contents)
      openBelow (folder </> "f") >>= (@?= 1)
      forM_ [1 .. 5 :: Int] $ \_ -> threadDelay later >> get client "/f" >>= (`isBytes` contents)
      ask client "/f" ["Range: bytes=1000-4999"]
      part <- hearAnswer client
      part `isBytes` B.take 4000 (B.drop 1000 contents)
    mapConcurrently_ (const (withClient port (\client -> replicateM_ 5 (get client "/f" >>= (`isBytes` contents))))) [1 .. 8 :: Int]
    -- Those that were opened beside the kept ones are closed with their responses, whose clients may know the end
    -- before. No configuration has more than four capabilities.
    eventually "one for each capability" ((\n -> n >= 1 && n <= 4) <$> openBelow (folder </> "f"))
  eventually "all are closed" ((== 0) <$> openBelow (folder </> "f"))

changes :: Assertion
changes = site id $ \folder port -> withClient port $ \client -> do
  let file = folder </> "f"
      other = folder </> "other"
      new = B.cons 1 contents
      replacing bytes = B.writeFile other bytes >> rename other file
      linked target = createSymbolicLink target other >> rename other file
  forM_
    [ ("replaced", replacing new, 200, new),
      ("replaced by a small one", replacing "small", 200, "small"),
      ("replaced by one of equal size", replacing (B.map (+ 1) contents), 200, B.map (+ 1) contents),
      ("truncated", setFileSize file 300000, 200, B.take 300000 contents),
      ("grown", B.appendFile file "more", 200, contents <> "more"),
      ("removed", removeFile file, 404, ""),
      ("renamed", rename file other, 404, ""),
      ("a folder in its place", removeFile file >> createDirectory file, 301, ""),
      ("a link to the outside in its place", linked "/etc/hostname", 403, ""),
      ("a link through the parent in its place", linked "../../etc/hostname", 403, ""),
      ("a link to another file of the folder in its place", B.writeFile (folder </> "second") new >> linked "second", 200, new)
    ]
    $ \(what, change, status, expected) -> do
      removePathForcibly file
      replacing contents
      threadDelay later
      get client "/f" >>= (`isBytes` contents)
      openBelow file >>= assertEqual what 1
      () <- change
      threadDelay later
      answer <- get client "/f"
      assertEqual what (status :: Int) (answerStatus answer)
      when (status == 200) (answer `isBytes` expected)
      -- Only the file of the answer is open; a small one is in memory.
      mapM openBelow [file, other, folder </> "second"] >>= assertEqual (what <> ": open files") (if B.length expected > 262144 then 1 else 0) . sum
      forM_ ["other", "second"] (removePathForcibly . (folder </>))

unreadable :: Assertion
unreadable = site id $ \folder port -> withClient port $ \client -> do
  let file = folder </> "f"
  B.writeFile file contents
  mapM_ (`setFileMode` 0o755) [folder, file]
  get client "/f" >>= (`isBytes` contents)
  setFileMode file 0
  threadDelay later
  asNobody (get client "/f") >>= (@?= 403) . answerStatus
  openBelow file >>= (@?= 0)

-- | The contents are trusted for an hour, but a file that is open shows its size and times.
inPlace :: Assertion
inPlace = site (\s -> s {staticTrust = seconds 3600}) $ \folder port -> withClient port $ \client -> do
  let file = folder </> "f"
  B.writeFile file contents
  get client "/f" >>= (`isBytes` contents)
  setFileSize file 300000
  get client "/f" >>= (`isBytes` B.take 300000 contents)
  B.appendFile file "more"
  get client "/f" >>= (`isBytes` (B.take 300000 contents <> "more"))
  setFileSize file 10
  get client "/f" >>= (`isBytes` B.take 10 contents)

underWay :: Assertion
underWay = site id $ \folder port -> do
  let file = folder </> "f"
      long = filler 8000000
  B.writeFile file long
  withClient port $ \client -> get client "/f" >>= (`isBytes` long)
  withNarrowClient 200000 port $ \slow -> do
    say slow "GET /f HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"
    begun <- hear slow
    B.writeFile (folder </> "other") contents
    rename (folder </> "other") file
    threadDelay later
    -- This request finds that the file was replaced.
    withClient port $ \client -> get client "/f" >>= (`isBytes` contents)
    rest <- hearEndOrReset slow
    B.length (snd (B.breakSubstring "\r\n\r\n" (begun <> rest))) - 4 @?= B.length long
  eventually "the old file is closed" ((== 0) <$> openBelow (file <> " (deleted)"))

bounded :: Assertion
bounded = site (\s -> s {staticKeptFiles = 3}) $ \folder port -> do
  let names = [1 .. 10 :: Int]
  forM_ names $ \n -> B.writeFile (folder </> show n) (B.cons (fromIntegral n) contents)
  forM_ [1 .. 2 :: Int] $ \_ ->
    mapConcurrently_
      ( \k -> withClient port $ \client -> forM_ (drop k names <> take k names) $ \n ->
          get client ("/" <> C.pack (show n)) >>= (`isBytes` B.cons (fromIntegral n) contents)
      )
      [0, 3, 6]
  eventually "three" ((\n -> n >= 1 && n <= 3) . sum <$> mapM (openBelow . (folder </>) . show) (filter (/= 10) names))

noRoom :: Assertion
noRoom = do
  files <- newOpenFiles 3
  site (\s -> s {staticOpenFiles = Just files}) $ \folder port -> do
    B.writeFile (folder </> "f") contents
    mapConcurrently_ (const (withClient port (\client -> replicateM_ 5 (get client "/f" >>= (`isBytes` contents))))) [1 .. 8 :: Int]
    eventually "none" ((== 0) <$> openBelow (folder </> "f"))

changedSettings :: Assertion
changedSettings = withFolder $ \folder -> do
  B.writeFile (folder </> "f") contents
  bracket (openStatic defaultStaticSettings folder) closeStatic $ \one -> do
    other <- changeStatic defaultStaticSettings {staticHeaders = [("X-Other", "yes")]} one
    forM_ [one, other, one] $ \static -> testWithApplication (pure (staticApp static)) $ \port -> withClient port $ \client -> get client "/f" >>= (`isBytes` contents)
    -- Threads of the servers may be on any capability.
    eventually "it is open" ((\n -> n >= 1 && n <= 4) <$> openBelow (folder </> "f"))
  eventually "it is closed" ((== 0) <$> openBelow (folder </> "f"))

idle :: Assertion
idle = site id $ \folder port -> do
  B.writeFile (folder </> "f") contents
  withClient port $ \client -> do
    get client "/f" >>= (`isBytes` contents)
    openBelow (folder </> "f") >>= (@?= 1)
    within 60 "closing" (untilClosed (folder </> "f"))
    -- It is kept again.
    get client "/f" >>= (`isBytes` contents)
    openBelow (folder </> "f") >>= (@?= 1)
  where
    untilClosed path = openBelow path >>= \n -> if n == 0 then pure () else threadDelay 200000 >> untilClosed path

-- | Above the size of files that are held in memory.
contents :: ByteString
contents = filler 400000

trust :: Duration
trust = milliseconds 40

-- | A delay that is longer than 'trust', in microseconds.
later :: Int
later = 80000

site :: (StaticSettings -> StaticSettings) -> (FilePath -> Int -> IO a) -> IO a
site change act = withFolder $ \folder ->
  withStatic (change defaultStaticSettings {staticTrust = trust}) folder $ \static -> testWithApplication (pure (staticApp static)) (act folder)

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket (mkdtemp "/var/tmp/weft-kept-") removePathForcibly

isBytes :: Answer -> ByteString -> Assertion
isBytes answer bytes = assertBool ("wrong body of " <> show (B.length (answerBody answer)) <> " bytes, status " <> show (answerStatus answer)) (answerBody answer == bytes)
