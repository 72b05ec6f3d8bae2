-- |
-- Which files open, and which do not.
module Files.Opening
  ( tests,
  )
where

import Control.Monad (forM_)
import qualified Data.ByteString as B
import Data.List (isInfixOf)
import Foreign.C.Error (Errno (..), eINVAL, eLOOP, eNOTDIR, eXDEV)
import Harness
import System.Directory (createDirectory)
import System.FilePath ((</>))
import System.IO.Error
import System.Posix.Files (createSymbolicLink)
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
      testCase "a closed file says so" closed
    ]

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
