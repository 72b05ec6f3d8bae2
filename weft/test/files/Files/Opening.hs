-- |
-- Which files open, and which do not.
module Files.Opening
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Monad (forM, forM_)
import qualified Data.ByteString as B
import Data.IORef
import Data.List (isInfixOf)
import Foreign.C.Error (Errno (..), eINVAL, eLOOP, eNOTDIR, eXDEV)
import Harness
import System.Directory (createDirectory)
import System.FilePath ((</>))
import System.IO.Error
import System.Posix.Files (createNamedPipe, createSymbolicLink)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.File
import Weft.Test.Files

tests :: TestTree
tests =
  testGroup
    "opening"
    [ testCase "a missing file is an error with its name" missing,
      testCase "an exclusive creation of an existing file fails" new,
      testCase "writing makes and empties" makes,
      testCase "appending goes to the end" appends,
      testCase "names outside ASCII" names,
      testCase "a name with a zero byte" zero,
      testCase "no way out of a directory" beneath,
      testCase "a directory is not a file to be read" folderRead,
      testCase "a closed file says so" closed,
      testCase "a named pipe opens when its other end is opened" pipes,
      testCase "many opens of named pipes that wait keep no file waiting" manyPipes
    ]

-- | fifo(7).
pipes :: Assertion
pipes = forM_ [("a writer", True, reading {openAccess = WriteOnly}), ("a writer that creates", True, writing), ("a reader", False, reading)] $ \(name, writes, mode) -> withFolder $ \folder -> do
  let path = folder </> "pipe"
  createNamedPipe path 0o600
  opened <- newIORef False
  first <- start . withFile mode path $ \file -> do
    writeIORef opened True
    if writes then B.empty <$ writeNext file hello else readNext file 100
  threadDelay 50000
  readIORef opened >>= \early -> assertBool (name <> " did not wait") (not early)
  got <- finishes name . withFile (if writes then reading else writing) path $ \file -> if writes then readNext file 100 else B.empty <$ writeNext file hello
  got' <- result name first
  got <> got' @?= hello
  where
    hello = B.pack [104, 105]

manyPipes :: Assertion
manyPipes = withBytes 65536 $ \regular -> withFolder $ \folder -> do
  waiting <- forM [1 .. 24 :: Int] $ \i -> do
    let path = folder </> show i
    createNamedPipe path 0o600
    start (withFile reading path (const (pure ())))
  forM_ [1 .. 20 :: Int] $ \_ -> do
    got <- finishes "a read" (withFile reading {openDirect = True} regular (\file -> readAt file 0 4096))
    got @?= marked 0 4096
  mapM_ stop waiting

missing :: Assertion
missing = withFolder $ \folder -> do
  let path = folder </> "nothing"
  e <- failure "open" (openFile reading path)
  assertBool (show e) (isDoesNotExistError e)
  ioeGetFileName e @?= Just path
  e' <- failure "status" (statPath path)
  assertBool (show e') (isDoesNotExistError e')

new :: Assertion
new = withFolder $ \folder -> do
  let mode = writing {openCreation = CreateNew 0o600}
  withFile mode (folder </> "f") (\file -> writeAt file 0 (B.pack [1]))
  e <- failure "again" (openFile mode (folder </> "f"))
  assertBool (show e) (isAlreadyExistsError e)

makes :: Assertion
makes = withFolder $ \folder -> do
  let path = folder </> "f"
  withFile writing path (\file -> writeAt file 0 (marked 0 100))
  withFile writing path (\file -> writeAt file 0 (marked 5 10))
  got <- withFile reading path (\file -> readAt file 0 1000)
  got @?= marked 5 10

appends :: Assertion
appends = withFolder $ \folder -> do
  let path = folder </> "f"
  forM_ [0, 10, 20] $ \i ->
    withFile writing {openTruncate = False, openAppend = True} path (\file -> writeAt file 0 (marked i 10))
  got <- withFile reading path (\file -> readAt file 0 1000)
  got @?= marked 0 30

names :: Assertion
names = withFolder $ \folder -> do
  let path = folder </> "\228\246\252 \8364 \128512"
  withFile writing path (\file -> writeAt file 0 (marked 0 3))
  got <- withFile reading path (\file -> readAt file 0 10)
  got @?= marked 0 3

zero :: Assertion
zero = failsWith "a zero byte" eINVAL (openFile reading "/etc/passwd\0.txt")

beneath :: Assertion
beneath = withFolder $ \folder -> do
  let root = folder </> "root"
      inside = withDirectory root
      under limits path dir = withFileAt dir reading {openResolve = limits} path (\file -> readAt file 0 100)
  createDirectory root
  createDirectory (root </> "sub")
  withFile writing (folder </> "secret") (\file -> writeAt file 0 (marked 0 9))
  withFile writing (root </> "page") (\file -> writeAt file 0 (marked 7 5))
  createSymbolicLink (folder </> "secret") (root </> "absolute")
  createSymbolicLink "../secret" (root </> "relative")
  createSymbolicLink "page" (root </> "harmless")
  forM_ ["../secret", "sub/../../secret", "/etc/passwd", "absolute", "relative"] $ \path ->
    failsWith path eXDEV (inside (under Beneath path))
  failsWith "a link" eLOOP (inside (under BeneathNoLinks "harmless"))
  forM_ ["page", "sub/../page", "./page", "harmless"] $ \path -> inside (under Beneath path) >>= (@?= marked 7 5)
  inside (under Anywhere "../secret") >>= (@?= marked 0 9)
  failsWith "not a directory" eNOTDIR (openDirectory (folder </> "secret"))

folderRead :: Assertion
folderRead = withFolder $ \folder -> do
  e <- failure "reading a directory" (withFile reading folder (\file -> readAt file 0 10))
  assertBool (show e) ("directory" `isInfixOf` show e || isErrno (Errno 21) e)

closed :: Assertion
closed = withBytes 10 $ \path -> do
  file <- openFile reading path
  closeFile file
  closeFile file
  forM_ [() <$ readAt file 0 1, writeAt file 0 B.empty, () <$ statFile file, sync file] $ \act -> do
    e <- failure "a closed file" act
    assertBool (show e) ("closed" `isInfixOf` show e)
    ioeGetFileName e @?= Just path
