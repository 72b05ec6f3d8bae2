-- |
-- "Weft.Resolver" with a name server on loopback that is slow, wrong or dead.
module Spec.Resolver
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception
import Control.Monad
import qualified Data.ByteString.Char8 as B8
import Data.List (isInfixOf, sort)
import Harness
import NameServer
import Network.Socket (Family (..), SockAddr (..), SocketType (..), tupleToHostAddress)
import System.Directory (getTemporaryDirectory, removeFile)
import System.Environment (setEnv, unsetEnv)
import System.IO (hClose, openBinaryTempFile)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Resolver
import Weft.Scope (forConcurrently, forConcurrently_, forkDaemon, withScope)
import qualified Weft.Socket as S
import Weft.Test.Forked (inChild)
import Weft.Transport (deadlineIn, noDeadline)

tests :: TestTree
tests =
  testGroup
    "Resolver"
    [ testGroup "answers" answers,
      testGroup "failures" failures,
      testGroup "bad servers" badServers,
      testGroup "many" many,
      testGroup "without a query" withoutQuery,
      testGroup "interrupted" interrupted,
      testGroup "forked" forked,
      bySystem
    ]

-- | A resolver that asks that server, twice, and waits half a minute for it.
asking :: NameServer -> ResolverSettings
asking server =
  defaultResolverSettings
    { resolverServers = [serverAt server],
      resolverHosts = Nothing,
      resolverTimeout = Just (seconds 30),
      resolverTries = Just 2,
      resolverGrace = seconds 30
    }

-- | Look up with a server that gives these replies.
with :: (Question -> [Reply]) -> (ResolverSettings -> ResolverSettings) -> (NameServer -> Resolver -> IO a) -> IO a
with replies change act = finishes "a look-up" . withNameServer replies $ \server ->
  newResolver (change (asking server)) >>= act server

-- | Addresses by family: for 127.0.0.n and ::n.
both :: [Int] -> [Int] -> Question -> [Reply]
both fours sixes q = [one fours sixes q]

one :: [Int] -> [Int] -> Question -> Reply
one fours sixes q = Addresses (if askedType q == 1 then map v4 fours else map v6 sixes)

four :: Int -> SockAddr
four n = SockAddrInet 0 (tupleToHostAddress (127, 0, 0, fromIntegral n))

six :: Int -> SockAddr
six n = SockAddrInet6 0 0 (0, 0, 0, fromIntegral n) 0

look :: Resolver -> String -> IO [SockAddr]
look r = resolveHost r noDeadline BothFamilies

fails :: String -> Reason -> IO a -> Assertion
fails name reason act = do
  r <- try (void act)
  r @?= Left (ResolveError name reason)

answers :: [TestTree]
answers =
  [ testCase "addresses of both families, IPv6 first" $
      with (both [1, 2] [3]) id $ \_ r -> look r "a.test" >>= (@?= [six 3, four 1, four 2]),
    testCase "one family alone asks for no other" $
      with (both [1] [2]) id $ \server r -> do
        resolveHost r noDeadline OnlyIPv4 "a.test" >>= (@?= [four 1])
        resolveHost r noDeadline OnlyIPv6 "b.test" >>= (@?= [six 2])
        questions server >>= (@?= [1, 28]) . sort . map askedType,
    testCase "the service's port" $
      with (both [1] [2]) id $ \_ r -> do
        found <- resolve r noDeadline OnlyIPv4 "a.test" "8080"
        found @?= [SockAddrInet 8080 (tupleToHostAddress (127, 0, 0, 1))],
    testCase "another name" $
      with (\q -> [Alias "other.test" [if askedType q == 1 then v4 7 else v6 7]]) id $ \_ r ->
        look r "a.test" >>= (@?= [six 7, four 7]),
    testCase "an address that comes twice" $
      with (both [1, 1] []) id $ \_ r -> look r "a.test" >>= (@?= [four 1]),
    testCase "the search list, with the name itself last if it has few dots" $
      withEnvironment "LOCALDOMAIN" "one.test two.test" $
        with (\q -> if askedName q == "a.two.test" then both [1] [] q else [Code 3]) id $ \server r -> do
          look r "a" >>= (@?= [four 1])
          fails "b.c" NoSuchName (look r "b.c")
          fails "a." NoSuchName (look r "a.")
          asked <- reverse . map askedName . filter ((== 1) . askedType) <$> questions server
          asked @?= ["a.one.test", "a.two.test", "b.c", "b.c.one.test", "b.c.two.test", "a"]
  ]

withEnvironment :: String -> String -> IO a -> IO a
withEnvironment name value = bracket_ (setEnv name value) (unsetEnv name)

failures :: [TestTree]
failures =
  [ testCase "each reason, with the name" $
      forM_ reasons $ \(replies, reason) -> with (const replies) quick $ \_ r -> fails "a.test" reason (look r "a.test"),
    testCase "an existing name without addresses, whatever the order" $
      with (\q -> [if askedType q == 1 then Addresses [] else Later 30 (Addresses [])]) id $ \_ r ->
        fails "a.test" NoAddress (look r "a.test"),
    testCase "one family fails, and the other has addresses" $
      with (\q -> if askedType q == 1 then both [1] [] q else [Code 2]) quick $ \_ r -> look r "a.test" >>= (@?= [four 1]),
    testCase "the error names the name" $
      with (const [Code 3]) id $ \_ r -> do
        e <- try (look r "a.test")
        either (\x -> show (x :: ResolveError) @?= "a.test: there is no such name") (assertFailure . show) e
        -- As text that a terminal does not obey.
        show (ResolveError "a\n\ESC[2J\x202e" NoSuchName) @?= "a\\n\\ESC[2J\\8238: there is no such name",
    testCase "no server" $ do
      address <- bracket (S.socket AF_INET Datagram 0) S.close $ \s -> S.bind s (four 1) >> S.getSocketName s
      r <- newResolver defaultResolverSettings {resolverServers = [address], resolverHosts = Nothing, resolverTimeout = Just (milliseconds 100), resolverTries = Just 1}
      e <- try (finishes "a look-up" (look r "a.test"))
      case e of
        Left (ResolveError "a.test" reason) | reason `elem` [NoServer, NoAnswer] -> pure ()
        other -> assertFailure (show other),
    testCase "no descriptor, for a new channel or one that is kept, a file, or the system's function" . withHosts "127.0.0.5 one.test\n" $ \path -> do
      fails "http" NoDescriptors (withoutNew (resolveService "http"))
      resolveService "http" >>= (@?= 80)
      with (both [1] []) id $ \server r -> do
        fails "a.test" NoDescriptors (withoutNew (look r "a.test"))
        look r "a.test" >>= (@?= [four 1])
        fails "a.test" NoDescriptors (withoutNew (look r "a.test"))
        local <- newResolver (asking server) {resolverHosts = Just path}
        fails "one.test" NoDescriptors (withoutNew (look local "one.test"))
        look local "one.test" >>= (@?= [four 5])
        system <- newResolver (asking server) {resolverMethod = BySystem}
        fails "name.invalid" NoDescriptors (withoutNew (look system "name.invalid")),
    testCase "a deadline" $
      with (const []) id $ \server r -> do
        soon <- deadlineIn (milliseconds 30)
        fails "a.test" DeadlinePassed (resolveHost r soon BothFamilies "a.test")
        lookupsInProgress r >>= (@?= 0)
        past <- deadlineIn mempty
        fails "b.test" DeadlinePassed (resolveHost r past BothFamilies "b.test")
        questions server >>= assertBool "asked too late" . all ((== "a.test") . askedName)
  ]
  where
    reasons =
      [ ([Code 3], NoSuchName),
        ([Addresses []], NoAddress),
        ([Code 2], ServerFailed),
        ([Code 5], ServerRefused),
        ([], NoAnswer)
      ]

-- | Servers get 100 ms, twice.
quick :: ResolverSettings -> ResolverSettings
quick settings = settings {resolverTimeout = Just (milliseconds 100)}

badServers :: [TestTree]
badServers =
  [ testCase "an answer with another identification is not believed" $
      with (\q -> [Foreign [if askedType q == 1 then v4 66 else v6 66], Later 50 (one [1] [2] q)]) id $ \_ r ->
        look r "a.test" >>= (@?= [six 2, four 1]),
    testCase "a truncated answer is asked for by TCP" $
      with (\q -> if askedByTcp q then both [1 .. 50] [2] q else [Truncated]) id $ \server r -> do
        look r "a.test" >>= (@?= (six 2 : map four [1 .. 50]))
        questions server >>= (@?= 2) . length . filter askedByTcp,
    testCase "a server that has only TCP" $
      with (\q -> if askedByTcp q then both [1] [2] q else []) (\s -> s {resolverTcp = True}) $ \_ r ->
        look r "a.test" >>= (@?= [six 2, four 1]),
    testCase "the next server is asked when one is silent, or fails" $
      forM_ [[], [Code 2], [Code 5], [Code 4], [Garbage]] $ \replies ->
        finishes "a look-up" . withNameServer (const replies) $ \bad -> withNameServer (both [1] []) $ \server -> do
          r <- newResolver (quick (asking server)) {resolverServers = [serverAt bad, serverAt server], resolverTries = Just 5}
          look r "a.test" >>= (@?= [four 1])
          questions bad >>= assertBool "the first server was not asked" . not . null,
    testCase "the last failure counts" $
      withNameServer (const [Code 2]) $ \bad -> with (const [Code 3]) id $ \server _ -> do
        r <- newResolver (asking server) {resolverServers = [serverAt bad, serverAt server]}
        fails "a.test" NoSuchName (look r "a.test"),
    testCase "no answer for IPv6 does not hold up IPv4" $
      with (\q -> if askedType q == 1 then both [1] [] q else []) (\s -> s {resolverGrace = milliseconds 50}) $ \_ r ->
        look r "a.test" >>= (@?= [four 1]),
    testCase "no answer for IPv4 does not hold up IPv6" $
      with (\q -> if askedType q == 28 then both [] [1] q else []) (\s -> s {resolverGrace = milliseconds 50}) $ \_ r ->
        look r "a.test" >>= (@?= [six 1]),
    testCase "the slower family is awaited for a while" $
      with (\q -> [(if askedType q == 1 then id else Later 50) (one [1] [2] q)]) id $ \_ r ->
        look r "a.test" >>= (@?= [six 2, four 1]),
    testCase "an alias of itself, with and without addresses" $ do
      with (const [Alias "a.test" []]) id $ \_ r -> fails "a.test" NoAddress (look r "a.test")
      with (\q -> [Alias "a.test" [if askedType q == 1 then v4 1 else v6 2]]) id $ \_ r -> do
        found <- try (look r "a.test")
        -- c-ares may take the addresses or refuse the answer; it may not be without a reason.
        either (\e -> assertBool (show e) (resolveReason e `elem` [NoAddress, BadAnswer])) (@?= [six 2, four 1]) found,
    testCase "nonsense" $
      with (const [Garbage]) quick $ \_ r -> do
        e <- try (look r "a.test")
        either (\x -> assertBool (show x) (resolveReason x `elem` [BadAnswer, NoAnswer])) (assertFailure . show) e
  ]

many :: [TestTree]
many =
  [ testCase "1,000 names at once, 64 in progress at most" $
      with (\q -> let n = read (takeWhile (/= '.') (drop 1 (askedName q))) `mod` 250 in [Later 2 (one [n] [n] q)]) slow $ \server r -> do
        before <- openDescriptors
        found <- forConcurrently 1000 [0 .. 999 :: Int] (\n -> look r ("n" <> show n <> ".test"))
        found @?= [[six (n `mod` 250), four (n `mod` 250)] | n <- [0 .. 999]]
        lookupsInProgress r >>= (@?= 0)
        noneLeftOpen before
        asked <- length <$> questions server
        assertBool (show asked <> " questions") (asked >= 2000),
    testCase "those who ask for the same name share its look-up" $
      with (\q -> [Later 200 (one [1] [2] q)]) id $ \server r -> do
        found <- forConcurrently 100 (replicate 100 "Shared.Test") (look r)
        found @?= replicate 100 [six 2, four 1]
        questions server >>= (@?= 2) . length,
    testCase "an error is everybody's" $
      with (const [Later 200 (Code 3)]) id $ \_ r ->
        forConcurrently_ 20 (replicate 20 ()) (\() -> fails "a.test" NoSuchName (look r "a.test")),
    testCase "look-ups wait for a place" $
      with (both [1] []) (\s -> s {resolverMost = 1}) $ \_ r ->
        forConcurrently_ 50 [1 .. 50 :: Int] (\n -> look r ("n" <> show n <> ".test") >>= (@?= [four 1]))
  ]
  where
    -- A busy machine may lose datagrams.
    slow s = s {resolverTimeout = Just (seconds 3), resolverTries = Just 5}

-- | Use a file of hosts with this text.
withHosts :: String -> (FilePath -> IO a) -> IO a
withHosts text act = do
  folder <- getTemporaryDirectory
  bracket (openBinaryTempFile folder "weft-hosts") (removeFile . fst) $ \(path, h) -> do
    B8.hPut h (B8.pack text)
    hClose h
    act path

withoutQuery :: [TestTree]
withoutQuery =
  [ testCase "literal addresses" . quiet $ \r -> do
      look r "127.0.0.9" >>= (@?= [four 9])
      look r "::9" >>= (@?= [six 9])
      look r "[::9]" >>= (@?= [six 9])
      fails "127.0.0.256" BadName (look r "127.0.0.256")
      fails "1::2::3" BadName (look r "1::2::3")
      fails "::9" NoAddress (resolveHost r noDeadline OnlyIPv4 "::9")
      fails "127.0.0.9" NoAddress (resolveHost r noDeadline OnlyIPv6 "127.0.0.9")
      forM_ ["::9\0", "::9\0a.test", "127.0.0.9\0"] (\name -> fails name BadName (look r name)),
    testCase "localhost" . quiet $ \r -> do
      look r "localhost" >>= (@?= [six 1, four 1])
      look r "LocalHost." >>= (@?= [six 1, four 1])
      look r "x.localhost" >>= (@?= [six 1, four 1])
      resolveHost r noDeadline OnlyIPv4 "localhost" >>= (@?= [four 1]),
    testCase "what is no name" . quiet $ \r ->
      forM_ ["", ".", "a..b", ".a", "a b", "a\nb", "a\0b", replicate 64 'a', concat (replicate 130 "a.") <> "b", "b\252cher.test"] $ \name ->
        fails name BadName (look r name),
    testCase "services" . quiet $ \_ -> do
      resolveService "443" >>= (@?= 443)
      resolveService "0" >>= (@?= 0)
      forM_ ["65536", "", "no-such-service", "-1", "443x", "00000000080", " 443", "+443", "443 ", "http\0x"] (\s -> fails s NoSuchService (resolveService s)),
    testCase "the file of hosts" $
      withHosts "# comment\n127.0.0.5\tone.test One two # three\n\n::5 one.test\nnonsense bad.test\n127.0.0.6 two\r\n127.0.0.7 Whole.test.\n" $ \path ->
        with (const [Code 3]) (\s -> s {resolverHosts = Just path}) $ \server r -> do
          look r "ONE.test" >>= (@?= [four 5, six 5])
          look r "two" >>= (@?= [four 5, four 6])
          resolveHost r noDeadline OnlyIPv6 "one.test." >>= (@?= [six 5])
          forM_ ["whole.test", "whole.test."] (\name -> look r name >>= (@?= [four 7]))
          questions server >>= (@?= [])
          fails "bad.test" NoSuchName (look r "bad.test")
          fails "three" NoSuchName (look r "three"),
    testCase "a file of hosts that is not there" $
      with (both [1] []) (\s -> s {resolverHosts = Just "/nonexistent/hosts"}) $ \_ r -> look r "a.test" >>= (@?= [four 1])
  ]
  where
    quiet act = with (const []) id $ \server r -> act r >> questions server >>= (@?= [])

interrupted :: [TestTree]
interrupted =
  [ testCase "one who leaves does not end the others' look-up" $
      with (\q -> [Later 300 (one [1] [2] q)]) id $ \server r -> do
        first <- start (look r "a.test")
        eventually "a question" (not . null <$> questions server)
        second <- start (look r "a.test")
        _ <- blocked second
        stop first
        lookupsInProgress r >>= (@?= 1)
        result "the second" second >>= (@?= [six 2, four 1])
        questions server >>= (@?= 2) . length,
    testCase "the last one to leave ends it" $
      with (const []) id $ \server r -> do
        before <- openDescriptors
        tasks <- replicateM 5 (start (look r "a.test"))
        eventually "both questions" ((== 2) . length <$> questions server)
        mapM_ stop tasks
        lookupsInProgress r >>= (@?= 0)
        noneLeftOpen before,
    testCase "a place is free again after an interruption" $
      with (\q -> if askedName q == "dead.test" then [] else both [1] [] q) (\s -> s {resolverMost = 1}) $ \server r -> do
        first <- start (look r "dead.test")
        eventually "a question" (not . null <$> questions server)
        waiting <- start (look r "dead2.test")
        _ <- blocked waiting
        stop waiting
        stop first
        look r "a.test" >>= (@?= [four 1]),
    testCase "look-ups cut off at any point leave nothing" . leavesNothing $
      with (\q -> if askedByTcp q then [Later 1 (one [1] [2] q)] else [Truncated]) id $ \_ r -> do
        _ <- look r "first.test"
        before <- openDescriptors
        forConcurrently_ 8 [1 .. times 1000] $ \n -> do
          task <- start (look r ("n" <> show (n `div` 2) <> ".test"))
          threadDelay (n `mod` 40 * 50)
          stop task
        lookupsInProgress r >>= (@?= 0)
        eventually "the server has closed its connections" ((<= before) <$> openDescriptors)
  ]

forked :: [TestTree]
forked =
  [ testCase "a forked child has all places, and shares no look-up with its parent, which goes on" $
      with (\q -> if take 4 (askedName q) == "dead" then [] else both [1] [2] q) (\s -> s {resolverMost = 2}) $ \server r -> do
        let asked name = length . filter ((== name) . askedName) <$> questions server
        tasks <- mapM (start . look r) ["dead1.test", "dead2.test"]
        eventually "all places are taken" ((== 4) . length <$> questions server)
        late <- start (look r "late.test")
        eventually "the third one waits" ((== 3) <$> lookupsInProgress r)
        inChild $ do
          lookupsInProgress r >>= (@?= 0)
          look r "a.test" >>= (@?= [six 2, four 1])
          soon <- deadlineIn (milliseconds 300)
          fails "dead1.test" DeadlinePassed (resolveHost r soon BothFamilies "dead1.test")
          lookupsInProgress r >>= (@?= 0)
        -- The child has asked for itself.
        (,) <$> asked "dead1.test" <*> asked "dead2.test" >>= (@?= (4, 2))
        lookupsInProgress r >>= (@?= 3)
        mapM_ stop (take 1 tasks)
        result "the parent's look-up that has waited" late >>= (@?= [six 2, four 1])
        mapM_ stop tasks,
    testCase "a child of a child" $
      with (\q -> if take 4 (askedName q) == "dead" then [] else both [1] [2] q) (\s -> s {resolverMost = 1}) $ \server r -> do
        task <- start (look r "dead1.test")
        eventually "the place is taken" ((== 2) . length <$> questions server)
        inChild $ do
          inner <- start (look r "dead2.test")
          eventually "it is looked up" ((== 1) <$> lookupsInProgress r)
          inChild (look r "a.test" >>= (@?= [six 2, four 1]))
          stop inner
        stop task,
    testCase "forked again and again while look-ups begin and end" $
      with (both [1] [2]) id $ \_ r -> withScope $ \scope -> do
        forM_ [1 .. 4 :: Int] $ \i -> forkDaemon scope (forever (look r ("a" <> show i <> ".test")))
        replicateM_ (times 10) (inChild (look r "a1.test" >>= (@?= [six 2, four 1])))
  ]

-- | What the system has is not known; that it can be left at once is.
bySystem :: TestTree
bySystem = testCase "by the system's function, with a deadline" . finishes "a look-up" $ do
  r <- newResolver defaultResolverSettings {resolverMethod = BySystem, resolverHosts = Nothing}
  soon <- deadlineIn (milliseconds 20)
  e <- try (resolveHost r soon BothFamilies "name.invalid")
  case e of
    Left (ResolveError name _) -> assertBool name ("name.invalid" `isInfixOf` name)
    Right found -> assertFailure (show found)
  lookupsInProgress r >>= (@?= 0)
