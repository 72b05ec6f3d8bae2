-- | HTTP\/2: properties of the pure parts; tests of a server in a separate process, whose memory and descriptors are
-- watched; tests over connections in memory. The clients of the separate process are scenarios in Python that break one
-- rule or exceed one limit each (@http2_client.py@), curl and h2load.
module Spec.Http2
  ( tests,
    framesUntil,
    withFolder,
  )
where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.Bifunctor (bimap)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (isInfixOf, isPrefixOf, sort)
import Data.Maybe (catMaybes, fromMaybe)
import Network.HTTP.Types (methodPost, ok200)
import Network.Socket (SockAddr (..))
import Network.Wai (getRequestBodyChunk, requestMethod, responseFile, responseLBS)
import System.Directory
import System.Environment (getExecutablePath)
import System.Exit
import System.FilePath
import System.IO
import System.IO.Error (ioeGetFileName)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Test.Tasty.QuickCheck hiding (within)
import Text.Read (readMaybe)
import Weft.Core.Time (Instant (..))
import Weft.Duration (milliseconds, seconds)
import Weft.Http2 (Http2Control (..), Http2Limits (limitBodies, limitRate, limitWait), Http2Settings (..), defaultHttp2Limits, defaultHttp2Settings, serveHttp2)
import Weft.Http2.Budget
import Weft.Http2.Frame
import Weft.Http2.Request
import Weft.Test.Skip
import Weft.Timer (within)
import Weft.Transport

tests :: TestTree
tests = testGroup "Weft.Http2" [pureParts, scenarios, clients, inMemory]

-- Pure parts -------------------------------------------------------------------------

pureParts :: TestTree
pureParts =
  testGroup
    "pure"
    [ testProperty "a frame's header is read as it was written" $ \(kind, flags) ->
        forAll (choose (0, 16777215)) $ \size -> forAll (choose (0, 2147483647)) $ \stream ->
          parseFrameHeader (frameHead kind flags stream size) === Just (FrameHeader size kind flags stream),
      testProperty "eight bytes are not a frame header" $ \bytes -> parseFrameHeader (B.pack (take 8 bytes)) === Nothing,
      testProperty "padding is removed, and padding longer than the frame is an error" $ \bytes (NonNegative padding) ->
        let p = padding `mod` 256
            payload = B.pack (fromIntegral p : bytes) <> B.replicate p 0
            header = FrameHeader (B.length payload) typeData flagPadded 1
         in unpad header payload === Just (B.pack bytes) .&&. (p > 0 ==> unpad header (B.take p payload) === Nothing),
      testProperty "settings are read as they were written, and a wrong length is an error" $ \settings ->
        parseSettings (settingsPayload settings) === Just settings .&&. (not (null settings) ==> parseSettings (B.init (settingsPayload settings)) === Nothing),
      testProperty "a header block is split into frames without loss" $ \bytes -> forAll (choose (1, 20)) $ \most ->
        let block = B.pack bytes
            frames = B.concat (headerFrames 0 1 most block)
            payloads b = case parseFrameHeader b of
              Nothing -> []
              Just h -> (frameType h, hasFlag flagEndHeaders h, B.take (frameLength h) (B.drop 9 b)) : payloads (B.drop (9 + frameLength h) b)
            parts = payloads frames
         in B.concat [p | (_, _, p) <- parts] === block
              .&&. [t | (t, _, _) <- parts] === typeHeaders :
            replicate (length parts - 1) typeContinuation
              .&&. [e | (_, e, _) <- parts] === replicate (length parts - 1) False <> [True],
      testProperty "a budget allows its burst and its rate, and no more" $ \(Positive second) (Positive burst) ->
        let rate = Rate (min 1000 second) (min 1000 burst)
            at ms = Instant (1000000000000 + ms * 1000000)
            spendAll t n b = if n <= (0 :: Int) then (0 :: Int, b) else maybe (0, b) (\b' -> let (k, b'') = spendAll t (n - 1) b' in (k + 1, b'')) (spend rate t b)
            (atOnce, left) = spendAll (at 0) 5000 fullBudget
            (later, _) = spendAll (at 1000) 5000 left
         in atOnce === rateBurst rate .&&. abs (later - min (rateBurst rate) (rateSecond rate)) <= 1,
      testProperty "a budget that has earned n may spend n, and no more" $ \(Positive n) ->
        let rate = Rate 10 20
            t = Instant 5000000000
            spent = iterate (>>= spend rate t) (Just fullBudget) !! 20
            more = min 20 n
         in (spent >>= spend rate t) === Nothing
              .&&. (iterate (>>= spend rate t) (earn rate more <$> spent) !! more =/= Nothing)
              .&&. (iterate (>>= spend rate t) (earn rate more <$> spent) !! (more + 1) === Nothing),
      testProperty "time is earned for each byte, up to a limit, and never decreases" $ \(Positive rate) (NonNegative before) -> forAll (choose (0, 20000000)) $ \n ->
        let left = before * 1000000 `mod` 10000000000
            most = 2000000000 + 65535000000000 `div` fromIntegral rate
         in earnTime (seconds 2) rate n left === max left (min most (left + fromIntegral n * 1000000000 `div` fromIntegral rate)),
      testCase "without a time limit, earning time changes nothing" $
        earnTime maxBound 500 1000000 maxBound @?= maxBound,
      testCase "cookie fields are joined, and :authority becomes the host" $ do
        let fields = map (bimap B8.pack B8.pack) [(":method", "GET"), (":scheme", "https"), (":authority", "a.test"), (":path", "/"), ("cookie", "a=1"), ("x", "y"), ("cookie", "b=2")]
        either id (show . headFields) (readHead fields) @?= "[(\"host\",\"a.test\"),(\"x\",\"y\"),(\"cookie\",\"a=1; b=2\")]"
    ]

-- Scenarios in Python ------------------------------------------------------------------

-- | A server's port, its process, and the lines that it has printed.
data Server = Server Int Int (IORef [String])

-- | The time limits of the server.
limitMilliseconds :: Int
limitMilliseconds = 2000

withServer :: (Server -> IO a) -> IO a
withServer = withServerWith []

-- | As 'withServer', with further arguments: certificate and key.
withServerWith :: [String] -> (Server -> IO a) -> IO a
withServerWith more act = withFolder $ \folder -> do
  let file = folder </> "large"
  B.writeFile file (B.replicate 5000000 120)
  program <- getExecutablePath
  let start = createProcess (proc program (["--server", file, show limitMilliseconds] <> more)) {std_in = CreatePipe, std_out = CreatePipe}
  bracket start cleanupProcess $ \(_, out, _, process) -> do
    said <- newIORef []
    from <- maybe (assertFailure "no output") pure out
    line <- hGetLine from
    _ <- forkIO (forever (hGetLine from >>= \l -> atomicModifyIORef' said (\ls -> (l : ls, ()))) `catch` \e -> const (pure ()) (e :: IOException))
    pid <- maybe 0 fromIntegral <$> getPid process
    act (Server (read (drop 5 line)) pid said)

scenarios :: TestTree
scenarios =
  testGroup
    "clients in Python"
    [ says "good" "200 hello 404 200 onetwo",
      says "trailers" "200 4",
      says "table_sizes" "0,4096 200 0,4096 200 64,4096 200 0,100 200 0,4096 200 0,4096 200 100 200 200",
      says "upload_to_exception" "500 True True - 500 True False NO_ERROR",
      says "late_trailers" "- INTERNAL_ERROR 200 STREAM_CLOSED",
      bounded "rapid_reset" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "some_resets" 60000 60 "1",
      bounded "window_zero" 120000 100 "started 20 ENHANCE_YOUR_CALM",
      bounded "window_little" 60000 60 "started closed",
      says "one_stalls" "CANCEL 200",
      bounded "ping_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "settings_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "priority_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "window_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "stream_window_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "unknown_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "goaway_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "acknowledgement_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "reset_stream_flood" 60000 60 "ENHANCE_YOUR_CALM closed cut",
      bounded "empty_data_flood" 60000 60 "ENHANCE_YOUR_CALM closed",
      bounded "made_resets" 60000 60 "ENHANCE_YOUR_CALM closed",
      bounded "continuation_flood" 60000 60 "ENHANCE_YOUR_CALM closed",
      bounded "empty_continuations" 60000 60 "ENHANCE_YOUR_CALM closed",
      says "interrupted_block" "PROTOCOL_ERROR closed",
      bounded "large_fields" 60000 60 "200 431",
      bounded "many_fields" 60000 60 "200 431 200 200 ENHANCE_YOUR_CALM",
      bounded "too_many_streams" 60000 60 "30 REFUSED_STREAM -",
      says "half_preface" "closed",
      says "wrong_preface" "PROTOCOL_ERROR closed",
      says "half_frame" "ENHANCE_YOUR_CALM closed",
      says "half_block" "ENHANCE_YOUR_CALM closed",
      says "idle_with_pings" "NO_ERROR closed",
      bounded "body_never_comes" 60000 60 "CANCEL in time",
      bounded "gone_quietly" 60000 60 "1",
      bounded "body_drips" 60000 60 "CANCEL in time",
      localOption (mkTimeout 600000000) $ bounded "fuzz" 120000 60 "1 enough",
      bounded "not_reading" 60000 60 "started closed",
      testCase "rude_applications" . withServer $ \server@(Server _ _ said) -> do
        found <- askLines server "rude_applications"
        found
          @?= [ "/none 500 1 Something_went_wrong -",
                "/twice 200 1 first -",
                "/after 200 1 whole -",
                "/interim 500 1 Something_went_wrong -",
                "/line-feed 500 1 Something_went_wrong -",
                "/line-feed-in-name 500 1 Something_went_wrong -",
                "/throw 500 1 Something_went_wrong -",
                "/late 200 1 begun INTERNAL_ERROR",
                "/length-over 500 1 Something_went_wrong -",
                "/length-under 500 1 Something_went_wrong -",
                "/length-stream 200 1 whole INTERNAL_ERROR",
                "/hello 200 1 hello -"
              ]
        _ <- settle (readIORef said) ((== 11) . length . filter ("exception" `isPrefixOf`))
        told <- readIORef said
        length (filter ("exception" `isPrefixOf`) told) @?= 11,
      testCase "malformed: RFC 9113, 8.2 and 8.3" . withServer $ \server -> do
        found <- askLines server "malformed"
        found @?= [name <> " " <> expected | (expected, names) <- malformed, name <- words names],
      says
        "errors"
        ( unwords
            [ "PROTOCOL_ERROR",
              "PROTOCOL_ERROR",
              "PROTOCOL_ERROR",
              "COMPRESSION_ERROR",
              "COMPRESSION_ERROR",
              "COMPRESSION_ERROR",
              "COMPRESSION_ERROR",
              "FRAME_SIZE_ERROR",
              "PROTOCOL_ERROR",
              "FLOW_CONTROL_ERROR",
              "PROTOCOL_ERROR",
              "FLOW_CONTROL_ERROR",
              "PROTOCOL_ERROR",
              "PROTOCOL_ERROR",
              "FLOW_CONTROL_ERROR",
              "PROTOCOL_ERROR",
              "PROTOCOL_ERROR",
              "PROTOCOL_ERROR",
              "PROTOCOL_ERROR",
              "FRAME_SIZE_ERROR",
              "FRAME_SIZE_ERROR"
            ]
        ),
      says "too_much_body" "FLOW_CONTROL_ERROR",
      says "one_byte_segments" "200 10",
      bounded "vanish" 120000 120 "1",
      bounded "bodies_bounded" 60000 60 "FLOW_CONTROL_ERROR closed",
      bounded "byte_a_frame" 110000 60 "200 None",
      says "padded_uploads" "True 2000 True 300000 True 600600",
      says "only_padding" "True"
    ]
  where
    says name expected = testCase name (withServer (\server -> ask server name >>= (@?= expected)))
    -- With bounds on the peak of resident memory, in KiB, and on the number of descriptors.
    bounded name memory descriptors expected = testCase name . withServer $ \server@(Server _ pid _) -> do
      most <- newIORef 0
      _ <- ask server "good"
      before <- descriptorsOf pid
      watching <- forkIO . forever $ do
        n <- descriptorsOf pid
        modifyIORef' most (max n)
        threadDelay 20000
      said <- ask server name
      killThread watching
      said @?= expected
      peak <- peakOf pid
      assertBool ("resident at most " <> show peak <> " KiB") (peak <= memory)
      open <- readIORef most
      assertBool ("at most " <> show open <> " descriptors") (open <= descriptors)
      -- Dispatchers that were started meanwhile, on other capabilities, have descriptors too.
      after' <- settle (descriptorsOf pid) (<= before + 4)
      assertBool ("descriptors " <> show (before, after')) (after' <= before + 4)

-- | Results of requests, and the names of the requests in the order in which they are made.
malformed :: [(String, String)]
malformed =
  [ ("200", "good te_trailers host_alone host_the_same cookies"),
    ("404", "options_star"),
    ("200", "length_right"),
    (wrong, "length_twice_the_same"),
    ("200", "lower_case_coded"),
    (wrong, "upper_case upper_case_coded upper_case_known upper_case_known_coded upper_case_never_indexed upper_case_between"),
    -- The field goes into the dynamic table, so later requests could refer to it.
    (wrong, "upper_case_into_the_table upper_case_coded_into_the_table"),
    (wrong, "upper_case_pseudo upper_case_trailer fields_none name_empty name_with_blank name_with_colon name_not_ascii name_with_zero"),
    (wrong, "value_with_zero value_with_line_feed value_with_carriage_return value_after_blank value_before_tab"),
    (wrong, "pseudo_behind_field pseudo_unknown pseudo_of_response two_methods two_schemes two_paths two_authorities"),
    (wrong, "no_method no_scheme no_path no_authority method_empty method_with_blank scheme_empty scheme_with_colon"),
    (wrong, "path_empty path_relative path_absolute_form path_star path_with_fragment path_with_blank"),
    (wrong, "authority_empty authority_with_user authority_with_comma authority_bad_port host_another two_hosts connect"),
    (wrong, "connection keep_alive proxy_connection transfer_encoding upgrade te_gzip te_trailers_and_more"),
    (wrong, "length_too_large length_too_small length_zero_with_data length_without_data length_twice length_with_sign"),
    (wrong, "length_list length_empty length_too_large_with_trailers"),
    ("200", "trailers"),
    (wrong, "trailers_with_pseudo trailers_with_connection trailers_that_end_nothing")
  ]
  where
    wrong = "PROTOCOL_ERROR"

ask :: Server -> String -> IO String
ask server name = unwords . words <$> asked server name

-- | The lines that a scenario prints.
askLines :: Server -> String -> IO [String]
askLines server name = lines <$> asked server name

asked :: Server -> String -> IO String
asked (Server port _ _) name = do
  (found, _, _) <- readProcessWithExitCode "/usr/bin/python3" ["-c", "import hpack, hyperframe"] "" `catch` \e -> const (pure (ExitFailure 1, "", "")) (e :: IOException)
  skipUnless "python3-h2 is not installed" (found == ExitSuccess)
  (code, out, err) <- readProcessWithExitCode "timeout" ["200", "/usr/bin/python3", "test/http2/http2_client.py", show port, name] ""
  when (code /= ExitSuccess) (assertFailure (show code <> ": " <> out <> err))
  pure out

settle :: IO a -> (a -> Bool) -> IO a
settle get ok = go (600 :: Int)
  where
    go n = do
      a <- get
      if ok a || n <= 0 then pure a else threadDelay 50000 >> go (n - 1)

descriptorsOf :: Int -> IO Int
descriptorsOf pid = length <$> (listDirectory ("/proc/" <> show pid <> "/fd") `catch` \e -> const (pure []) (e :: IOException))

-- | The peak of resident memory (@VmHWM@), in KiB.
peakOf :: Int -> IO Int
peakOf pid = do
  status <- readFile ("/proc/" <> show pid <> "/status")
  pure (fromMaybe maxBound (firstOf [readMaybe n | "VmHWM:" : n : _ <- map words (lines status)]))
  where
    firstOf xs = case catMaybes xs of
      x : _ -> Just x
      [] -> Nothing

-- Real clients -----------------------------------------------------------------------

clients :: TestTree
clients =
  testGroup
    "real clients"
    [ testCase "curl: a file, uploads that the application reads and ignores, an exception" . withServer $ \(Server port _ _) -> withFolder $ \folder -> do
        needProgram "curl"
        let url path = "http://127.0.0.1:" <> show port <> path
            curl arguments = readProcessWithExitCode "curl" (["-sS", "-m", "90", "--http2-prior-knowledge"] <> arguments) ""
            upload = folder </> "upload"
        B.writeFile upload (B.replicate 3000000 0)
        (_, sizes, _) <- curl ["-o", "/dev/null", "-w", "%{size_download} %{http_version}", url "/file"]
        sizes @?= "5000000 2"
        (_, summed, _) <- curl ["--data-binary", "@" <> upload, url "/sum"]
        summed @?= "3000000"
        (_, ignored, _) <- curl ["--data-binary", "@" <> upload, url "/ignore"]
        ignored @?= "ignored"
        (_, status, _) <- curl ["-o", "/dev/null", "-w", "%{http_code}", url "/throw"]
        status @?= "500",
      testCase "curl: a length with 204, an invalid one, and a second one are left out" . withServer $ \(Server port _ _) -> do
        needProgram "curl"
        forM_ [("length-of-none", ("204", [], "")), ("length-invalid", ("200", [], "hello")), ("length-twice", ("200", ["5"], "hello"))] $ \(path, expected) -> do
          (_, out, err) <- readProcessWithExitCode "curl" ["-sS", "-m", "90", "--http2-prior-knowledge", "-i", "http://127.0.0.1:" <> show port <> "/" <> path] ""
          let (hs, rest) = break null (lines (filter (/= '\r') out))
              lengths = [last (words l) | l <- hs, "content-length:" `isPrefixOf` l]
          (err, take 1 (drop 1 (words (concat (take 1 hs)))), lengths, concat (drop 1 rest)) @?= (let (status, found, text) = expected in ("", [status], found, text)),
      testCase "curl over TLS, by ALPN" $
        withFolder $ \folder -> do
          needProgram "curl"
          let there = (folder </>)
          (made, _, why) <- readProcessWithExitCode "openssl" ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", there "key", "-out", there "chain"] ""
          when (made /= ExitSuccess) (assertFailure why)
          withServerWith [there "chain", there "key"] $ \(Server port _ _) -> do
            (_, out, err) <- readProcessWithExitCode "curl" ["-sS", "-m", "90", "--cacert", there "chain", "-o", "/dev/null", "-w", "%{size_download} %{http_version}", "https://localhost:" <> show port <> "/file"] ""
            (out, err) @?= ("5000000 2", ""),
      testCase "h2load: all requests succeed, with small and large files" . withServer $ \(Server port _ said) -> do
        needProgram "h2load"
        forM_ [("/hello", "20000", "20", "50"), ("/large", "300", "10", "10"), ("/file", "300", "10", "10")] $ \(path, n, c, m) -> do
          (_, out, err) <- readProcessWithExitCode "timeout" ["80", "h2load", "-n", n, "-c", c, "-m", m, "http://127.0.0.1:" <> show port <> path] ""
          let summary = [l | l <- lines out, "requests:" `isPrefixOf` l]
          assertBool (out <> err) (any ((n <> " succeeded, 0 failed, 0 errored, 0 timeout") `isInfixOf`) summary)
        refused <- readIORef said
        filter ("refused" `isPrefixOf`) refused @?= []
    ]

-- Connections in memory --------------------------------------------------------------

inMemory :: TestTree
inMemory =
  testGroup
    "in memory"
    [ testCase "a drain finishes streams, refuses new ones, and ends the connection" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        release <- newEmptyMVar
        drains <- newEmptyMVar
        begun <- newEmptyMVar
        let application _ respond = putMVar begun () >> readMVar release >> respond (responseLBS ok200 [] (L.pack [1, 2, 3]))
        ended <- newEmptyMVar
        _ <- forkIO (serveHttp2 defaultHttp2Settings (putMVar drains . controlShutdown) theirs application >>= putMVar ended)
        send mine [connectionPreface, frame typeSettings 0 0 B.empty, request 1]
        first <- framesUntil mine (\fs -> [() | (h, _) <- fs, frameType h == typeSettings, hasFlag flagAck h] /= [])
        takeMVar begun
        join (takeMVar drains)
        -- RFC 9113, 6.8: what the client sends before it can know is served.
        announced <- framesUntil mine (\fs -> any ((== typePing) . frameType . fst) fs)
        send mine (request 3 : [frame typePing flagAck 0 p | (h, p) <- announced, frameType h == typePing])
        takeMVar begun
        more <- framesUntil mine (\fs -> any ((== typeGoAway) . frameType . fst) fs)
        send mine [request 5]
        refused <- framesUntil mine (\fs -> any ((== typeReset) . frameType . fst) fs)
        [(frameStream h, p) | (h, p) <- refused, frameType h == typeReset] @?= [(5, errorNumber RefusedStream)]
        isEmptyMVar ended >>= assertBool "it ended too early"
        putMVar release ()
        rest <- framesUntil mine (const False)
        sort [frameStream h | (h, _) <- rest, frameType h == typeHeaders] @?= [1, 3]
        -- The last one, whose end is that of the connection, is as whole as the first.
        sort [(frameStream h, p) | (h, p) <- rest, frameType h == typeData, not (B.null p)] @?= [(1, B.pack [1, 2, 3]), (3, B.pack [1, 2, 3])]
        -- The refused stream does not raise the number in the last GOAWAY.
        [p | (h, p) <- announced <> more <> rest, frameType h == typeGoAway] @?= map B.pack [[127, 255, 255, 255, 0, 0, 0, 0], [0, 0, 0, 3, 0, 0, 0, 0], [0, 0, 0, 3, 0, 0, 0, 0]]
        length first >= 2 @? "settings"
        _ <- within (seconds 30) (takeMVar ended) >>= maybe (assertFailure "the connection did not end") pure
        connClose mine,
      testCase "a drain ends a connection whose client does nothing two seconds after the last GOAWAY" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        drains <- newEmptyMVar
        ended <- newEmptyMVar
        _ <- forkIO (serveHttp2 defaultHttp2Settings (putMVar drains . controlShutdown) theirs (\_ respond -> respond (responseLBS ok200 [] L.empty)) >>= putMVar ended)
        send mine [connectionPreface, frame typeSettings 0 0 B.empty]
        join (takeMVar drains)
        -- A second for the PING, and two to see the end.
        _ <- within (milliseconds 5500) (takeMVar ended) >>= maybe (assertFailure "it waited for longer") pure
        connClose mine,
      testCase "killing the server's thread waits until the applications have ended" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        running <- newIORef (0 :: Int)
        started <- newEmptyMVar
        let count n = atomicModifyIORef' running (\k -> (k + n, ()))
            application _ respond = bracket_ (count 1) (threadDelay 50000 >> count (-1)) (putMVar started () >> threadDelay 60000000 >> respond (responseLBS ok200 [] L.empty))
        ended <- newEmptyMVar
        server <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs application `finally` (readIORef running >>= putMVar ended))
        send mine ([connectionPreface, frame typeSettings 0 0 B.empty] <> map request [1, 3 .. 19])
        replicateM_ 10 (takeMVar started)
        killThread server
        left <- takeMVar ended
        left @?= 0
        connClose mine,
      testCase "a client that reads fast saves up only limited time" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitWait = milliseconds 500, limitRate = 65535}}
            application _ respond = respond (responseLBS ok200 [] (L.replicate 5000000 120))
        _ <- forkIO (serveHttp2 settings (const (pure ())) theirs application)
        -- At the least rate four megabytes take a minute, of which one second may be saved; 'framesUntil' waits for
        -- twenty.
        send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 4000000)]), frame typeWindowUpdate 0 0 (B.pack [0, 0x3c, 0x09, 0x01]), request 1]
        taken <- framesUntil mine (\fs -> sum [frameLength h | (h, _) <- fs, frameType h == typeData] == 4000000)
        sum [frameLength h | (h, _) <- taken, frameType h == typeData] @?= 4000000
        rest <- framesUntil mine (const False)
        [B.drop 4 p | (h, p) <- rest, frameType h == typeGoAway] @?= [errorNumber EnhanceYourCalm]
        connClose mine,
      testCase "a client that expects a 100 (Continue), in upper or lower case, gets it" . forM_ ["100-continue", "100-Continue"] $ \expectation -> do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        let application r respond = getRequestBodyChunk r >>= respond . responseLBS ok200 [] . L.fromStrict
            -- A POST with the 35th name of HPACK's static table, expect, in a literal field that is not added to the
            -- table.
            block = B.pack ([0x83, 0x86, 0x84, 0x41, 1, 0x61, 0x0f, 20, 12] <> B.unpack (B8.pack expectation))
            heads = filter ((== typeHeaders) . frameType . fst)
        _ <- forkIO (serveHttp2 defaultHttp2Settings (const (pure ())) theirs application)
        send mine [connectionPreface, frame typeSettings 0 0 B.empty, frame typeHeaders flagEndHeaders 1 block]
        interim <- framesUntil mine (not . null . heads)
        map (hasFlag flagEndStream . fst) (heads interim) @?= [False]
        send mine [frame typeData flagEndStream 1 (B8.pack "hello")]
        rest <- framesUntil mine (any (\(h, _) -> frameType h == typeData && hasFlag flagEndStream h))
        ([p | (h, p) <- rest, frameType h == typeData], length (heads rest)) @?= ([B8.pack "hello"], 1)
        connClose mine,
      testCase "a limit on unread bodies that is below the protocol's initial window, or equal to it, enlarges nothing" . forM_ [1000, 65535] $ \most -> do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        let settings = defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitBodies = most}}
            application r respond = getRequestBodyChunk r >> respond (responseLBS ok200 [] L.empty)
        _ <- forkIO (serveHttp2 settings (const (pure ())) theirs application)
        send mine [connectionPreface, frame typeSettings 0 0 B.empty, frame typeHeaders flagEndHeaders 1 (B.pack [0x83, 0x86, 0x84, 0x41, 1, 0x61]), frame typeData flagEndStream 1 (B.replicate 2000 120)]
        found <- framesUntil mine (any ((== typeHeaders) . frameType . fst))
        -- No update of the window.
        map (frameType . fst) found @?= [typeSettings, typeSettings, typeHeaders]
        connClose mine,
      testCase "bytes of uploads that are reset, while a response holds up the window updates, are returned to the connection's window" $ do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        let application r respond
              | requestMethod r == methodPost = getRequestBodyChunk r >> respond (responseLBS ok200 [] L.empty)
              | otherwise = respond (responseLBS ok200 [] (L.replicate 5000000 120))
            uploads = [3, 5 .. 129]
            returned fs = sum [fromIntegral (word32 p) | (h, p) <- fs, frameType h == typeWindowUpdate, frameStream h == 0] :: Int
            -- The windows of uploads that are read do not grow, so that the sum is known.
            whole = 1048576
        _ <- forkIO (serveHttp2 defaultHttp2Settings {http2Limits = defaultHttp2Limits {limitBodies = whole}} (const (pure ())) theirs application)
        send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 4000000)]), frame typeWindowUpdate 0 0 (B.pack [0, 0x3c, 0x09, 0x01]), request 1]
        -- The response fills the connection. The uploads, of 16 KiB each, are received, but nothing more is sent.
        threadDelay 300000
        send mine [bytes | n <- uploads, bytes <- [frame typeHeaders flagEndHeaders n (B.pack [0x83, 0x86, 0x84, 0x41, 1, 0x61]), frame typeData 0 n (B.replicate 16384 120)]]
        threadDelay 300000
        send mine [frame typeReset 0 n (errorNumber Cancel) | n <- uploads]
        -- The first update enlarges the initial window to the whole size. Less than a quarter is not worth a frame.
        found <- framesUntil mine (\fs -> returned fs > whole - 65535 + whole * 3 `div` 4)
        assertBool (show (returned found)) (returned found <= whole - 65535 + whole)
        connClose mine,
      testCase "a file that becomes shorter is named in the error" . withFolder $ \folder -> do
        (mine, theirs) <- connectionPair 65536 (SockAddrUnix "") (SockAddrUnix "")
        thrown <- newEmptyMVar
        let file = folder </> "shrinking"
            settings = defaultHttp2Settings {http2OnException = \_ e -> putMVar thrown (fromException e >>= ioeGetFileName)}
            application _ respond = respond (responseFile ok200 [] file Nothing)
        B.writeFile file (B.replicate 100000 120)
        ended <- newEmptyMVar
        _ <- forkIO (serveHttp2 settings (const (pure ())) theirs application `finally` putMVar ended ())
        -- A window of 10,000 bytes; it is enlarged when the file is shorter than what was read ahead.
        send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 10000)]), request 1]
        _ <- framesUntil mine (\fs -> sum [frameLength h | (h, _) <- fs, frameType h == typeData] == 10000)
        B.writeFile file (B.replicate 500 120)
        -- More than was read ahead.
        send mine [frame typeWindowUpdate 0 1 (B.pack [0, 1, 134, 160]), frame typeWindowUpdate 0 0 (B.pack [0, 1, 134, 160])]
        within (seconds 30) (takeMVar thrown) >>= (@?= Just (Just file))
        found <- framesUntil mine (any ((== typeReset) . frameType . fst))
        [(frameStream h, p) | (h, p) <- found, frameType h == typeReset] @?= [(1, errorNumber InternalError)]
        -- The connection goes on.
        isEmptyMVar ended >>= assertBool "the connection has ended"
        connClose mine
        within (seconds 30) (takeMVar ended) >>= (@?= Just ())
    ]
  where
    send c = connSendMany c noDeadline
    -- GET, http, / and a literal authority, in HPACK with its static table.
    request n = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61])

-- | Receive frames until the condition holds for them, or the stream ends.
framesUntil :: Connection -> ([(FrameHeader, B.ByteString)] -> Bool) -> IO [(FrameHeader, B.ByteString)]
framesUntil c enough = go B.empty
  where
    go bytes
      | enough (split bytes) = pure (split bytes)
      | otherwise = do
        deadline <- deadlineIn (seconds 20)
        more <- connReceive c deadline 65536 `catch` \e -> if isTimeout e then throwIO e else pure B.empty
        if B.null more then pure (split bytes) else go (bytes <> more)
    split bytes = case parseFrameHeader bytes of
      Just h | B.length bytes >= 9 + frameLength h -> (h, B.take (frameLength h) (B.drop 9 bytes)) : split (B.drop (9 + frameLength h) bytes)
      _ -> []

withFolder :: (FilePath -> IO a) -> IO a
withFolder = bracket make removeDirectoryRecursive
  where
    make = do
      temporary <- getTemporaryDirectory
      (path, h) <- openBinaryTempFile temporary "weft-http2"
      hClose h >> removeFile path >> createDirectory path
      pure path
