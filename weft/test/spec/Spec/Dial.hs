-- |
-- "Weft.Dial": the race in all orders of events, the examples of RFC 6724, and real addresses that refuse, are silent
-- or answer.
module Spec.Dial
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import Data.IORef
import Data.List (isInfixOf, sortOn)
import Data.Maybe (isJust)
import Foreign.C.Error (eCONNREFUSED, eCONNRESET)
import Harness
import NameServer
import Network.Socket (Family (..), SockAddr (..), SocketOption (..), SocketType (..), tupleToHostAddress, tupleToHostAddress6)
import System.Directory (getTemporaryDirectory, removeFile, renameFile)
import System.FilePath ((</>))
import System.Posix.Process (getProcessID)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Core.Time (Instant (..))
import Weft.Dial
import Weft.Dial.Order
import Weft.Dial.Race hiding (Failure (..))
import Weft.Duration
import Weft.Resolver
import Weft.Scope (forConcurrently_)
import qualified Weft.Socket as S
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Dial"
    [ testCase "the race, whatever happens when" races,
      testGroup "the order of addresses (RFC 6724, section 10.2)" orders,
      testGroup "addresses" addresses,
      testGroup "names" names,
      testGroup "Unix sockets" unix,
      testGroup "connections" connections,
      testCase "dials cut off at any point leave nothing" cutOff
    ]

-- The race ---------------------------------------------------------------------------

-- | What an attempt does, and after how many milliseconds.
data Fate = Succeeds Int | Fails Int | Silent
  deriving (Show)

-- | All fates of up to three addresses, with a deadline that is early, late or none.
races :: Assertion
races = forM_ [0 .. 3] $ \n -> forM_ (replicateM n fates) $ \world -> forM_ [-1, 120, 420, 5000] $ \deadline ->
  either (\why -> assertFailure (show (world, deadline) <> ": " <> why)) pure (simulate world deadline)
  where
    fates = Silent : [fate ms | fate <- [Succeeds, Fails], ms <- [0, 70, 100, 250, 300]]

ms' :: Int -> Instant
ms' n = Instant (1000000 * fromIntegral n)

-- | Run a race, with what happens at the same time in order of the attempts, and check what must hold.
simulate :: [Fate] -> Int -> Either String ()
simulate world deadline = go 0 [] (begin (milliseconds 250) (ms' deadline) (ms' 0) [0 .. length world - 1]) [] []
  where
    -- The time, what is to happen to attempts under way (time, attempt, event), the failures so far, and what was done
    -- when.
    go t pending (state, commands) seen done = case [c | c <- commands, final c] of
      [] -> do
        let pending' = sortOn (\(at, i, _) -> (at, i)) (pending ++ [(t + at, i, e) | Start i _ <- commands, Just (at, e) <- [fate i]])
            done' = done ++ map ((,) t) commands
        case (nextLook state, pending') of
          (Just look, (at, i, e) : rest) | ms' at <= look -> go at rest (step (ms' at) e state) (seen ++ [(i, at) | Failed _ _ <- [e]]) done'
          (Just (Instant ns), _) -> let at = fromIntegral (ns `div` 1000000) in go at pending' (step (ms' at) Look state) seen done'
          (Nothing, _) -> Left "over, and not decided"
      [_] -> do
        unless (nextLook state == Nothing) (Left "decided, and not over")
        -- Whoever succeeds later is abandoned, and nothing else happens any more.
        forM_ pending $ \(at, i, e) ->
          unless (snd (step (ms' at) e state) `elem` [[Abandon i], []]) (Left "an event after the end")
        check t seen (done ++ map ((,) t) commands)
      _ -> Left "decided twice"
    final c = case c of
      Win _ -> True
      Lose _ -> True
      _ -> False
    fate i = case world !! i of
      Succeeds at -> Just (at, Succeeded i)
      Fails at -> Just (at, Failed i ("no " <> show i))
      Silent -> Nothing
    check end failures done = do
      let starts = [(i, t) | (t, Start i _) <- done]
          abandoned = [i | (_, Abandon i) <- done]
          successes = sortOn snd [(i, t + at) | (i, t) <- starts, Succeeds at <- [world !! i], t + at <= end]
          won = [i | (_, Win i) <- done]
      unless (map fst starts == [0 .. length starts - 1]) (Left "not in order")
      forM_ (zip starts (drop 1 starts)) $ \((_, t0), (_, t1)) -> do
        unless (t1 == t0 + 250 || t1 `elem` map snd failures) (Left "an attempt began for no reason")
        when (t1 > t0 + 250 || any (\(_, t) -> t0 < t && t < t1) failures) (Left "an attempt began too late")
      case (won, [fs | (_, Lose fs) <- done]) of
        ([w], []) -> do
          unless (fmap fst (take 1 successes) == [w] || lookup w successes == fmap snd (safeHead successes)) (Left "not the first one won")
          unless (end <= max 0 deadline) (Left "won after the deadline")
          sameSet abandoned [i | (i, _) <- starts, i /= w, lookup i failures == Nothing]
        ([], [reasons]) -> do
          unless (map fst reasons == [0 .. length world - 1]) (Left "not all addresses are named")
          forM_ reasons $ \(i, why) -> unless (expected starts failures i why) (Left ("wrong reason for " <> show i))
          sameSet abandoned [i | (i, _) <- starts, lookup i failures == Nothing]
          unless (end >= deadline || length failures == length world) (Left "given up too early")
          unless (null [() | (_, t) <- successes, t < end]) (Left "a success was overlooked")
        _ -> Left "no decision"
    safeHead = foldr (const . Just) Nothing
    sameSet found wanted = unless (sortOn id found == sortOn id wanted) (Left ("abandoned " <> show found <> ", not " <> show wanted))
    expected starts failures i why = case show why of
      "NotTried" -> lookup i starts == Nothing
      "TooSlow" -> isJust (lookup i starts) && lookup i failures == Nothing
      _ -> isJust (lookup i failures)

-- The order --------------------------------------------------------------------------

orders :: [TestTree]
orders =
  [ first "the scope that matches" (a1, v6' [0x2001, 0xdb8, 1, 0, 0, 0, 0, 2]) (b, ip 169 254 13 78),
    first "the scope that matches, of IPv4" (b, ip 198 51 100 117) (a1, v6' [0xfe80, 0, 0, 0, 0, 0, 0, 1]),
    first "the higher precedence" (a1, a2) (ip 10 1 2 3, ip 10 1 2 4),
    first "the smaller scope" (v6' [0xfe80, 0, 0, 0, 0, 0, 0, 1], v6' [0xfe80, 0, 0, 0, 0, 0, 0, 2]) (a1, a2),
    first "the longer prefix" (a1, a2) (v6' [0x2001, 0xdb8, 0x3ffe, 0, 0, 0, 0, 1], v6' [0x2001, 0xdb8, 0x3f44, 0, 0, 0, 0, 2]),
    first "the label that matches" (six4, six4') (a1, six4'),
    first "the higher precedence, with labels that match" (a1, a2) (six4, six4'),
    testCase "what cannot be reached is last" $
      sortAddresses [(a1, Nothing), (b, Just (ip 1 2 3 4))] @?= [b, a1],
    testCase "equals stay in their order" $
      forM_ [[ip 9 9 9 9, ip 1 2 3 4], [ip 1 2 3 4, ip 9 9 9 9]] $ \as ->
        sortAddresses [(a, Just (ip 1 2 3 5)) | a <- as] @?= as,
    testCase "the families take turns" $
      takeTurns [a1, a2, six4, b, ip 1 2 3 4] @?= [a1, b, a2, ip 1 2 3 4, six4]
  ]
  where
    first name (x, sx) (y, sy) = testCase name $
      forM_ [[(x, Just sx), (y, Just sy)], [(y, Just sy), (x, Just sx)]] $ \both -> sortAddresses both @?= [x, y]
    a1 = v6' [0x2001, 0xdb8, 1, 0, 0, 0, 0, 1]
    a2 = v6' [0x2001, 0xdb8, 1, 0, 0, 0, 0, 2]
    b = ip 198 51 100 121
    six4 = v6' [0x2002, 0xc633, 0x6401, 0, 0, 0, 0, 1]
    six4' = v6' [0x2002, 0xc633, 0x6401, 0, 0, 0, 0, 2]
    ip p q r s = SockAddrInet 0 (tupleToHostAddress (p, q, r, s))
    v6' ws = case ws of
      [p, q, r, s, t, u, v, w] -> SockAddrInet6 0 0 (tupleToHostAddress6 (p, q, r, s, t, u, v, w)) 0
      _ -> error "eight words"

-- Real addresses ---------------------------------------------------------------------

-- | A listener on loopback; its backlog is that long.
listening :: Int -> (S.Socket -> SockAddr -> IO a) -> IO a
listening backlog act = bracket (S.socket AF_INET Stream 0) S.close $ \s -> do
  S.bind s (SockAddrInet 0 (tupleToHostAddress (127, 0, 0, 1)))
  S.listen s backlog
  S.getSocketName s >>= act s

-- | An address where nobody listens.
refusing :: IO SockAddr
refusing = listening 1 (const pure)

-- | An address that does not answer: the backlog is full.
silent :: (SockAddr -> IO a) -> IO a
silent act = listening 0 $ \_ address -> do
  fillers <- newIORef []
  -- Until two have found no room: one alone may have been late for another reason.
  let fill n full = when (n > (0 :: Int) && full < (2 :: Int)) $ do
        s <- S.socket AF_INET Stream 0
        modifyIORef' fillers (s :)
        soon <- deadlineIn (milliseconds 150)
        r <- try (S.connect (S.withDeadline soon s) address)
        case r of
          Right () -> fill (n - 1) 0
          Left e | isTimeout e -> fill (n - 1) (full + 1)
          Left e -> throwIO e
  (fill 50 0 >> act address) `finally` (readIORef fillers >>= mapM_ S.close)

-- | A socket to the address, whatever is passed on the way to it.
reaches :: SockAddr -> Either [(SockAddr, Failure IOError)] (S.Socket, SockAddr) -> Assertion
reaches address r = case r of
  Right (s, peer) -> do
    peer @?= address
    S.getPeerName s >>= (@?= address)
    S.close s
  Left failures -> assertFailure (show failures)

-- | Attempts that wait for nothing but failures.
patient :: DialOptions
patient = defaultDialOptions {dialDelay = seconds 1000}

soonEnough :: IO Instant
soonEnough = deadlineIn (seconds 15)

addresses :: [TestTree]
addresses =
  [ testCase "one that answers" . listening 10 $ \_ good -> do
      soon <- soonEnough
      dialAddresses patient soon [good] >>= reaches good,
    testCase "after one that refuses the next one is tried at once" . listening 10 $ \_ good -> do
      bad <- refusing
      soon <- soonEnough
      finishes "dialling" (dialAddresses patient soon [bad, bad, good]) >>= reaches good,
    testCase "beside one that is silent the next one is tried" . silent $ \hole -> listening 10 $ \_ good -> do
      before <- openDescriptors
      soon <- soonEnough
      dialAddresses defaultDialOptions {dialDelay = milliseconds 20} soon [hole, hole, good] >>= reaches good
      noneLeftOpen before,
    testCase "many at once: one wins, and the others are closed" . listening 1000 $ \_ good -> do
      before <- openDescriptors
      forM_ [1 .. times 20] $ \_ -> do
        soon <- soonEnough
        dialAddresses defaultDialOptions {dialDelay = mempty} soon (replicate 10 good) >>= reaches good
      noneLeftOpen before,
    testCase "all refuse" $ do
      one <- refusing
      two <- refusing
      soon <- soonEnough
      r <- dialAddresses patient soon [one, two]
      case r of
        Left [(a, Refused e), (b, Refused f)] -> do
          (a, b) @?= (one, two)
          assertBool (show (e, f)) (isErrno eCONNREFUSED e && isErrno eCONNREFUSED f)
        Left other -> assertFailure (show other)
        Right _ -> assertFailure "connected",
    testCase "all are silent, until the deadline" . silent $ \hole -> do
      bad <- refusing
      before <- openDescriptors
      start' <- deadlineIn mempty
      deadline <- deadlineIn (milliseconds 100)
      r <- dialAddresses defaultDialOptions {dialDelay = milliseconds 60} deadline [bad, hole, hole, hole]
      end <- deadlineIn mempty
      assertBool (show (start', end)) (end >= deadline)
      either (map snd') (const []) r @?= ["refused", "slow", "slow", "not tried"]
      noneLeftOpen before,
    testCase "one is silent, until the deadline" . silent $ \hole -> do
      deadline <- deadlineIn (milliseconds 30)
      r <- dialAddresses patient deadline [hole]
      either (map snd') (const []) r @?= ["slow"],
    testCase "a deadline that has passed" . listening 10 $ \_ good -> do
      past <- deadlineIn mempty
      forM_ [[good], [good, good]] $ \as -> do
        r <- dialAddresses patient past as
        either (map snd') (const []) r @?= map (const "not tried") as,
    testCase "the error names every address and why" $ do
      bad <- refusing
      soon <- soonEnough
      e <- try (dial patient soon (At bad))
      case e of
        Left x -> assertBool (show x) (show bad `isInfixOf` show (x :: DialError) && "refused" `isInfixOf` show x)
        Right _ -> assertFailure "connected",
    testCase "a socket is prepared, and a failure there is the address's" . listening 10 $ \_ good -> do
      soon <- soonEnough
      calls <- newIORef (0 :: Int)
      let prepare s = do
            modifyIORef' calls (+ 1)
            n <- readIORef calls
            when (n == 1) (ioError (userError "not this one"))
            S.setSocketOption s KeepAlive 1
      r <- dialAddresses patient {dialPrepare = prepare} soon [good, good]
      case r of
        Right (s, _) -> do
          S.getSocketOption s KeepAlive >>= assertBool "the option" . (/= 0)
          S.getSocketOption s NoDelay >>= assertBool "the other option" . (/= 0)
          S.close s
        Left failures -> assertFailure (show failures)
  ]
  where
    snd' (_, why) = case why of
      Refused _ -> "refused"
      TooSlow -> "slow"
      NotTried -> "not tried"

-- | Options with a name server of that kind.
withServer :: (Question -> [Reply]) -> (DialOptions -> IO a) -> IO a
withServer replies act = withNameServer replies $ \server -> do
  resolver <- newResolver defaultResolverSettings {resolverServers = [serverAt server], resolverHosts = Nothing}
  act patient {dialResolver = Just resolver}

service :: SockAddr -> String
service address = case address of
  SockAddrInet port _ -> show port
  SockAddrInet6 port _ _ _ -> show port
  _ -> ""

names :: [TestTree]
names =
  [ testCase "a name of several addresses, of which one listens" . listening 10 $ \_ good ->
      withServer (\q -> [Addresses (if askedType q == 1 then [v4 3, v4 2, v4 1] else [v6 1])]) $ \options -> do
        soon <- soonEnough
        s <- dial options soon (Host "a.test" (service good))
        S.getPeerName s >>= (@?= good)
        S.close s,
    testCase "a name that does not exist" $
      withServer (const [Code 3]) $ \options -> do
        soon <- soonEnough
        e <- try (dial options soon (Host "a.test" "80"))
        case e of
          Left (NotFound destination why) -> do
            (destination, why) @?= (Host "a.test" "80", ResolveError "a.test" NoSuchName)
            show (NotFound (Host "a\r" "8\b") why) @?= "a\\r port 8\\b: a.test: there is no such name"
          Left other -> assertFailure (show other)
          Right _ -> assertFailure "connected",
    testCase "without a descriptor the error says so, of a name and of an address" $
      withServer (const [Code 3]) $ \options -> do
        soon <- soonEnough
        forM_ [(Host "a.test" "80", "too many open files"), (At (SockAddrInet 9 (tupleToHostAddress (127, 0, 0, 1))), "Too many open files")] $ \(destination, why) -> do
          e <- try (withoutNew (dial options soon destination))
          either (\x -> assertBool (show x) (why `isInfixOf` show (x :: DialError))) (const (assertFailure "connected")) e,
    testCase "the deadline includes the look-up" $
      withServer (const []) $ \options -> do
        soon <- deadlineIn (milliseconds 50)
        e <- try (finishes "dialling" (dial options soon (Host "a.test" "80")))
        case e of
          Left (NotFound _ why) -> resolveReason why @?= DeadlinePassed
          Left other -> assertFailure (show other)
          Right _ -> assertFailure "connected",
    testCase "localhost, by a service that does not exist" $ do
      soon <- soonEnough
      e <- try (dial patient soon (Host "localhost" "no-such-service"))
      either (\x -> assertBool (show x) ("no such service" `isInfixOf` show (x :: DialError))) (const (assertFailure "connected")) e
  ]

unix :: [TestTree]
unix =
  [ testCase "a path" . atPath $ \path l -> do
      soon <- soonEnough
      withConnection defaultDialOptions soon (UnixPath path) $ \c -> do
        (s, _) <- S.accept l
        connSendBytes c soon (B8.pack "hello")
        connReceive (socketConnection s (SockAddrUnix "")) soon 10 >>= (@?= B8.pack "hello")
        S.close s,
    testCase "a path without a listener" $ do
      soon <- soonEnough
      e <- try (dial defaultDialOptions soon (UnixPath "/nonexistent/socket"))
      either (\x -> assertBool (show x) ("/nonexistent/socket" `isInfixOf` show (x :: DialError))) (const (assertFailure "connected")) e,
    testCase "a path is encoded as those of files are" . atPathOf "weft-dial-\228\9731-" $ \path l -> do
      soon <- soonEnough
      withConnection defaultDialOptions soon (UnixPath path) $ \c -> do
        (s, _) <- S.accept l
        connSendBytes c soon (B8.pack "x")
        connReceive (socketConnection s (SockAddrUnix "")) soon 10 >>= (@?= B8.pack "x")
        S.close s,
    testCase "a path that no socket has is an error of the address" . forM_ [replicate 109 'x', "", "a\0b"] $ \path -> do
      soon <- soonEnough
      forM_ [UnixPath path, At (SockAddrUnix path)] $ \destination -> do
        e <- try (dial defaultDialOptions soon destination)
        case e of
          Left (NoneConnected _ [(_, Refused _)]) -> pure ()
          Left other -> assertFailure (show other)
          Right _ -> assertFailure "connected",
    testCase "a full backlog is waited for, until the deadline" . atPath $ \path l -> do
      fillers <- fill path []
      late <- deadlineIn (milliseconds 30)
      e <- try (dial defaultDialOptions late (UnixPath path))
      case e of
        Left (NoneConnected _ [(_, TooSlow)]) -> pure ()
        Left other -> assertFailure (show other)
        Right _ -> assertFailure "connected"
      soon <- soonEnough
      waiting <- start (dial defaultDialOptions soon (UnixPath path))
      threadDelay 20000
      (s, _) <- S.accept l
      c <- result "dialling" waiting
      mapM_ S.close (s : c : fillers)
  ]
  where
    atPath = atPathOf "weft-dial-"
    atPathOf prefix act = do
      folder <- getTemporaryDirectory
      pid <- getProcessID
      let path = folder </> (prefix <> show pid)
          bound = folder </> ("weft-bound-" <> show pid)
      bracket (S.socket AF_UNIX Stream 0) (\s -> S.close s >> removeFile path) $ \s -> do
        S.bind s (SockAddrUnix bound)
        -- As a file, since its name may need an encoding.
        renameFile bound path
        S.listen s 1
        act path s
    fill path found = do
      soon <- deadlineIn (milliseconds 20)
      r <- try (dial defaultDialOptions soon (UnixPath path))
      case r of
        Right s -> fill path (s : found)
        Left e -> found <$ const (pure ()) (e :: DialError)

connections :: [TestTree]
connections =
  [ testCase "a connection is closed at the end" . listening 10 $ \l good -> do
      soon <- soonEnough
      withConnection defaultDialOptions soon (At good) (\c -> connSendBytes c soon (B8.pack "all"))
      (s, peer) <- S.accept l
      let c = socketConnection s peer
      connReceive c soon 10 >>= (@?= B8.pack "all")
      connReceive c soon 10 >>= (@?= B.empty)
      connClose c,
    testCase "a connection whose action throws is aborted" . listening 10 $ \l good -> do
      soon <- soonEnough
      _ <- failure "the action" (withConnection defaultDialOptions soon (At good) (\_ -> ioError (userError "no") :: IO ()))
      (s, peer) <- S.accept l
      failsWith "receiving" eCONNRESET (connReceive (socketConnection s peer) soon 10)
      S.close s,
    testCase "a layer on top that fails" . listening 10 $ \_ good -> do
      before <- openDescriptors
      soon <- soonEnough
      let upgrade deadline _ = do
            deadline @?= soon
            ioError (userError "no")
      e <- failure "dialling" (dialConnection defaultDialOptions {dialUpgrade = upgrade} soon (At good))
      assertBool (show e) ("no" `isInfixOf` show e)
      noneLeftOpen before,
    testCase "a layer on top" . listening 10 $ \_ good -> do
      soon <- soonEnough
      let upgrade _ = withReceived (B8.pack "layer")
      c <- dialConnection defaultDialOptions {dialUpgrade = upgrade} soon (At good)
      connReceive c soon 10 >>= (@?= B8.pack "layer")
      connClose c
  ]

-- | Names with addresses that refuse, are silent and answer.
cutOff :: Assertion
cutOff = silent $ \hole -> listening 4096 $ \_ good -> leavesNothing $
  withServer (\q -> if askedType q == 1 then [Addresses [v4 3, v4 2, v4 1]] else [Addresses [v6 1]]) $ \options -> do
    before <- openDescriptors
    forConcurrently_ 8 [1 .. times 1000] $ \n -> do
      let direct = dialAddresses options {dialDelay = microseconds (n `mod` 7 * 100)} noDeadline [hole, good, hole, good]
          named = dial options noDeadline (Host ("n" <> show n <> ".test") (service (if even n then good else hole)))
      task <- start (if n `mod` 3 == 0 then closing direct (traverse (S.close . fst)) else closing named S.close)
      threadDelay (n `mod` 50 * 50)
      stop task
    eventually "all are closed" ((<= before) <$> openDescriptors)
  where
    closing act close = bracket act (void . close) (const (pure ()))
