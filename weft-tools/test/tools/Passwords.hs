-- | Names and passwords (@weft serve --basic-auth@).
module Passwords (tests) where

import Answering (getWith)
import Control.Concurrent.Async (mapConcurrently, replicateConcurrently_, wait, withAsync)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.Word (Word8)
import Network.Socket
import Network.Socket.ByteString (sendAll)
import Operating (has, inFolder, until', warned)
import System.Directory
import System.FilePath ((</>))
import System.IO
import System.Posix.Signals (sigHUP)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

tests :: FilePath -> TestTree
tests program = testGroup "passwords" [access program, firstRequests program, keptOverReload program, guesses program, oneCost program, sites program]

access :: FilePath -> TestTree
access program = testCase "--basic-auth: names and passwords, a reload, and a malformed file" . inFolder $ \folder -> do
  let users = folder </> ".users"
      -- The hash of "secret" by crypt(3).
      line name = name <> ":$2y$05$q/CF38ZqM8E6v69QnSYuqe/rYpY7dj7v2fRI6mkfUOKLZO5CqhA4u"
      with credentials = getWith ["Authorization: Basic " <> credentials]
  writeFile users (unlines ["# who may", line "alice"])
  createDirectoryIfMissing True (folder </> ".well-known" </> "acme-challenge")
  writeFile (folder </> ".well-known" </> "acme-challenge" </> "token") "proof"
  weft program [] ["serve", folder, "--port", "0", "--basic-auth", users, "--fallback", "/index.html"] $ \p -> do
    port <- portOf p
    refused <- get port "/"
    status refused @?= 401
    has "WWW-Authenticate: Basic realm=\"Restricted\", charset=\"UTF-8\"" refused
    -- alice:secret, twice: the second time the password's digest is cached.
    replicateM_ 2 (with "YWxpY2U6c2VjcmV0" port "/" >>= answered 200 "<p>home</p>")
    -- alice:secrets, bob:secret, alice without a password, no Base64.
    forM_ ["YWxpY2U6c2VjcmV0cw==", "Ym9iOnNlY3JldA==", "YWxpY2U=", "%%%"] $ \credentials ->
      with credentials port "/" >>= (@?= 401) . status
    -- Challenges of certificate authorities need none, but a path that is another one does.
    get port "/.well-known/acme-challenge/token" >>= answered 200 "proof"
    get port "/.well-known/acme-challenge/none" >>= (@?= 404) . status
    exchange port (request "POST" "/.well-known/acme-challenge/token" "close") >>= (@?= 401) . status
    forM_ ["/.well-known/acme-challenge", "/.well-known/acme-challenge/", "/.well-known/other"] $ \path -> get port path >>= (@?= 401) . status
    forM_ ["/.well-known/acme-challenge/../../index.html", "/.well-known/acme-challenge/%2e%2e/%2e%2e/index.html"] $ \path -> get port path >>= (@?= 404) . status
    -- /metrics and /healthz need no password.
    get port "/healthz" >>= answered 200 "ok\n"
    writeFile users (line "bob")
    send' sigHUP p
    hGetLine (output p) >>= (@?= "weft: reloaded")
    with "YWxpY2U6c2VjcmV0" port "/" >>= (@?= 401) . status
    with "Ym9iOnNlY3JldA==" port "/" >>= (@?= 200) . status
    writeFile users "carol:secret"
    send' sigHUP p
    warned p "line 1 of"
    with "Ym9iOnNlY3JldA==" port "/" >>= (@?= 200) . status

-- A browser opens several connections at once.
firstRequests :: FilePath -> TestTree
firstRequests program = testCase "--basic-auth: of ten first requests at once, one computes the hash" . inFolder $ \folder -> do
  let users = folder </> ".users"
      with credentials = getWith ["Authorization: Basic " <> credentials]
  writeFile users slowly
  weft program [] ["serve", folder, "--port", "0", "--basic-auth", users] $ \p -> do
    port <- portOf p
    -- alice:secrets.
    one <- costOf p (with "YWxpY2U6c2VjcmV0cw==" port "/" >>= (@?= 401) . status)
    ten <- costOf p (replicateConcurrently_ 10 (with "YWxpY2U6c2VjcmV0" port "/" >>= answered 200 "<p>home</p>"))
    assertBool (show (one, ten) <> " ticks of CPU time") (one > 0 && ten < 5 * one)

-- | The CPU time in ticks that the server spends during an action.
costOf :: Running -> IO () -> IO Int
costOf p act = do
  before <- ticks
  act
  subtract before <$> ticks
  where
    ticks = do
      pid <- maybe (assertFailure "the server has ended") pure =<< getPid (process p)
      fields <- words . drop 1 . dropWhile (/= ')') <$> readFile ("/proc/" <> show pid <> "/stat")
      evaluate (sum (map read (take 2 (drop 11 fields))) :: Int)

-- | Lines of a file of passwords: alice's is "secret", by crypt(3), of cost 12.
slowly :: String
slowly = "alice:$2b$12$mexXoRCjbDmKkDI8EgSFhuP4I6etEuIiqUEmmO.FbnDv0kOMmwxUq"

keptOverReload :: FilePath -> TestTree
keptOverReload program = testCase "--basic-auth: an accepted password is not checked again after a reload" . inFolder $ \folder -> do
  let users = folder </> ".users"
      with credentials = getWith ["Authorization: Basic " <> credentials]
  writeFile users slowly
  weft program [] ["serve", folder, "--port", "0", "--basic-auth", users] $ \p -> do
    port <- portOf p
    let right = with "YWxpY2U6c2VjcmV0" port "/" >>= answered 200 "<p>home</p>"
    one <- costOf p right
    writeFile users (unlines ["# one more", slowly, "bob" <> drop 5 slowly])
    again <- costOf p $ do
      send' sigHUP p
      hGetLine (output p) >>= (@?= "weft: reloaded")
      right
    assertBool (show (one, again) <> " ticks of CPU time") (one > 0 && 2 * again < one)

guesses :: FilePath -> TestTree
guesses program = testCase "--basic-auth: a client that guesses gets 429, and another one its page" . inFolder $ \folder -> do
  let users = folder </> ".users"
  writeFile users slowly
  weft program [] ["serve", folder, "--port", "0", "--basic-auth", users] $ \p -> do
    port <- portOf p
    seen <- newIORef []
    let guess n = do
          answer <- from (127, 0, 0, 1) port ("YWxpY2U6" <> n)
          atomicModifyIORef' seen (\answers -> (answer : answers, ()))
        refused = filter ((== 429) . status) <$> readIORef seen
    -- Forty passwords, in Base64.
    withAsync (void (mapConcurrently guess ["MT" <> [a, b] | a <- "wxyz", b <- ['h' .. 'q']])) $ \flood -> do
      until' (not . null <$> refused)
      from (127, 0, 0, 2) port "YWxpY2U6c2VjcmV0" >>= answered 200 "<p>home</p>"
      wait flood
    refused >>= mapM_ (has "Retry-After: 5")
    statuses <- map status <$> readIORef seen
    assertBool (show statuses) (all (`elem` [401, 429]) statuses && 401 `elem` statuses)

oneCost :: FilePath -> TestTree
oneCost program = testCase "--basic-auth: a wrong password takes the work of the highest cost, for any name" . inFolder $ \folder -> do
  let users = folder </> ".users"
  -- Bob's hash is of cost 5.
  writeFile users (unlines [slowly, "bob:$2y$05$q/CF38ZqM8E6v69QnSYuqe/rYpY7dj7v2fRI6mkfUOKLZO5CqhA4u"])
  weft program [] ["serve", folder, "--port", "0", "--basic-auth", users] $ \p -> do
    port <- portOf p
    -- alice:wrong, bob:wrong, carol:wrong.
    found <- forM ["YWxpY2U6d3Jvbmc=", "Ym9iOndyb25n", "Y2Fyb2w6d3Jvbmc="] $ \credentials ->
      costOf p (from (127, 0, 0, 1) port credentials >>= (@?= 401) . status)
    assertBool (show found <> " ticks of CPU time") (minimum found > 0 && maximum found < 3 * minimum found)
    from (127, 0, 0, 1) port "Ym9iOnNlY3JldA==" >>= answered 200 "<p>home</p>"

sites :: FilePath -> TestTree
sites program = testCase "--basic-auth: the networks of one site, an IPv6 prefix of 48 bits, share its turns" . inFolder $ \folder -> do
  let users = folder </> ".users"
  writeFile users slowly
  weft program [] ["serve", folder, "--port", "0", "--basic-auth", users, "--trusted-proxy", "127.0.0.1"] $ \p -> do
    port <- portOf p
    sent <- newIORef (0 :: Int)
    ended <- newIORef (0 :: Int)
    let count' ref = atomicModifyIORef' ref (\n -> (n + 1, ()))
        guess client password = connected port $ \s -> do
          sendAll s (B.pack ("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Forwarded-For: " <> client <> "\r\nAuthorization: Basic YWxpY2U6" <> password <> "\r\n\r\n"))
          count' sent
          recvAll s >>= (@?= 401) . status
          count' ended
        networks = [("2001:db8:0:" <> show n <> "::1", password) | n <- [1 .. 8 :: Int], password <- ["YWFh", "YmJi"]]
    withAsync (void (mapConcurrently (uncurry guess) networks)) $ \flood -> do
      until' ((== length networks) <$> readIORef sent)
      before <- readIORef ended
      guess "2001:db8:1::1" "Y2Nj"
      meanwhile <- subtract before <$> readIORef ended
      -- It is one of them. The hash that is being computed, and one of the other site, come before.
      assertBool (show meanwhile <> " were answered before") (meanwhile <= 5)
      wait flood

-- | A request with these credentials from an address of this machine.
from :: (Word8, Word8, Word8, Word8) -> PortNumber -> String -> IO B.ByteString
from address port credentials = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
  bind s (SockAddrInet 0 (tupleToHostAddress address))
  connect s (SockAddrInet port (tupleToHostAddress (127, 0, 0, 1)))
  sendAll s (B.pack ("GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Basic " <> credentials <> "\r\n\r\n"))
  recvAll s
