{-# LANGUAGE OverloadedStrings #-}

-- | The threads of an HTTP\/2 connection, over connections in memory: what is sent together, who waits for whom, and
-- which threads are used again.
module Spec.Engine
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception (IOException, catch, finally, mask_)
import Control.Monad (forM, forM_, replicateM, void, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (nub)
import GHC.Conc (ThreadStatus (..), threadStatus)
import Network.HTTP.Types (ok200)
import Network.Socket (SockAddr (..))
import Network.Wai
import Spec.Http2 (framesUntil, withFolder)
import Spec.Streams (gated)
import System.Directory (getSymbolicLinkTarget, listDirectory)
import System.FilePath ((</>))
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http2 (Http2Settings (http2OnResponse), defaultHttp2Settings, serveHttp2)
import Weft.Http2.Frame
import Weft.Timer (within)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "Weft.Http2, threads"
    [ testCase "requests that arrive together are answered by few sends" $ do
        -- Another core that has nothing to do may send each answer as soon as it is there; hardly three times.
        counts <- replicateM 3 $ do
          sends <- newIORef (0 :: Int)
          count <- newIORef 0
          withServed (counting sends) hello $ \mine -> do
            settled mine
            before <- readIORef sends
            connSendBytes mine noDeadline (B.concat (map get [1, 3 .. 199]))
            found <- framesUntil mine ((== 100) . length . ends)
            length (ends found) @?= 100
            readIORef sends >>= writeIORef count . subtract before
          readIORef count
        assertBool (show counts) (minimum counts <= 20),
      testCase "applications that wait delay no other one, and no answer" $ do
        gate <- newEmptyMVar
        let application asked respond = do
              when (rawPathInfo asked == "/wait") (readMVar gate)
              hello asked respond
        withServed id application $ \mine -> do
          send mine (map (`getPath` "/wait") [1, 3 .. 99] <> [get 101])
          first <- framesUntil mine (not . null . ends)
          ends first @?= [101]
          putMVar gate ()
          rest <- framesUntil mine ((>= 50) . length . ends)
          length (ends rest) @?= 50,
      testCase "requests one after another are served by few threads" $ do
        threads <- newIORef []
        let application asked respond = do
              t <- myThreadId
              atomicModifyIORef' threads (\ts -> (t : ts, ()))
              hello asked respond
        withServed id application $ \mine -> do
          forM_ [1, 3 .. 399] $ \n -> send mine [get n] >> framesUntil mine ((== [n]) . ends)
          used <- readIORef threads
          length used @?= 200
          assertBool (show (length (nub (map show used)))) (length (nub (map show used)) <= 20),
      testCase "threads that were needed at once are not all kept" $ do
        (gate, begun) <- (,) <$> newEmptyMVar <*> newQSemN 0
        held <- newIORef []
        let application asked respond = do
              t <- myThreadId
              atomicModifyIORef' held (\ts -> (t : ts, ()))
              signalQSemN begun 1
              readMVar gate
              hello asked respond
        withServed id application $ \mine -> do
          send mine (map get [1, 3 .. 199])
          waitQSemN begun 100
          putMVar gate ()
          _ <- framesUntil mine ((== 100) . length . ends)
          left <- settling ((<= 20) . snd) $ do
            states <- readIORef held >>= mapM threadStatus
            pure (length states, length (filter (`notElem` [ThreadFinished, ThreadDied]) states))
          assertBool (show left) (fst left == 100 && snd left <= 20),
      testCase "a thread whose stream was reset is not interrupted in a later one" $
        withServed id (\asked respond -> (if rawPathInfo asked == "/wait" then threadDelay 60000000 else threadDelay 1000) >> hello asked respond) $ \mine ->
          forM_ [1, 5 .. 197] $ \n -> do
            send mine [getPath n "/wait", frame typeReset 0 n (errorNumber Cancel), get (n + 2)]
            found <- framesUntil mine ((== [n + 2]) . ends)
            [frameStream h | (h, _) <- found, frameType h == typeReset] @?= [],
      testCase "what two connections have received at once is served one connection after the other" $ do
        -- On one capability; a switch of threads by the clock may come between, hardly five times.
        seen <- replicateM 5 $ do
          events <- newIORef []
          let note e = atomicModifyIORef' events (\es -> (e : es, ()))
              application asked respond = note ("serves " <> B8.unpack (rawPathInfo asked)) >> hello asked respond
          withServed (noting (note "receives")) application $ \one -> withServed (noting (note "receives")) application $ \two -> do
            forM_ [one, two] $ \c -> send c [getPath 1 "/"] >> framesUntil c ((== [1]) . ends)
            writeIORef events []
            done <- newEmptyMVar
            _ <- forkOn 0 $ do
              forM_ [(one, "/1"), (two, "/2")] $ \(c, path) -> connSendBytes c noDeadline (B.concat (map (`getPath` path) [3, 5, 7]))
              putMVar done ()
            takeMVar done
            forM_ [one, two] $ \c -> framesUntil c ((== [3, 5, 7]) . ends)
          reverse <$> readIORef events
        let perConnection n = "receives" : replicate 3 ("serves /" <> show (n :: Int))
        assertBool (show seen) (any (\es -> take 8 es `elem` [perConnection 1 <> perConnection 2, perConnection 2 <> perConnection 1]) seen),
      testCase "whatever the requests of earlier segments wait for, later ones are served" $ do
        gate <- newEmptyMVar
        begun <- newQSemN 0
        let application asked respond = do
              when (rawPathInfo asked == "/wait") (signalQSemN begun 1 >> readMVar gate)
              hello asked respond
        withServed id application $ \mine -> do
          forM_ [1, 5 .. 157] $ \n -> do
            send mine [getPath n "/wait"]
            waitQSemN begun 1
            send mine [get (n + 2)]
            framesUntil mine ((== [n + 2]) . ends)
          putMVar gate ()
          rest <- framesUntil mine ((>= 40) . length . ends)
          length (ends rest) @?= 40
          forM_ [161, 163 .. 199] $ \n -> send mine [get n] >> framesUntil mine ((== [n]) . ends),
      testCase "streams that are reset while their requests wait, one after the other, leave a connection that serves" $ do
        begun <- newQSemN 0
        let application asked respond = do
              when (rawPathInfo asked == "/wait") (signalQSemN begun 1 >> threadDelay 60000000)
              hello asked respond
        withServed id application $ \mine ->
          forM_ [1, 5 .. 397] $ \n -> do
            send mine [getPath n "/wait"]
            waitQSemN begun 1
            send mine [frame typeReset 0 n (errorNumber Cancel)]
            send mine [get (n + 2)]
            found <- framesUntil mine ((== [n + 2]) . ends)
            ends found @?= [n + 2],
      testCase "an exception that comes for a request that has ended breaks no connection" $ do
        -- It hits the thread as it rests, receives or flushes; or another request, which it may end.
        random <- newIORef (1 :: Int)
        pending <- newIORef (0 :: Int)
        let application asked respond = do
              t <- myThreadId
              mask_ $ do
                delay <- atomicModifyIORef' random (\n -> let n' = (n * 1103515245 + 12345) `mod` 2147483648 in (n', n' `mod` 100))
                atomicModifyIORef' pending (\n -> (n + 1, ()))
                void (forkIO (threadDelay delay >> throwTo t (userError "late") >> atomicModifyIORef' pending (\n -> (n - 1, ()))))
              hello asked respond
        withServed id application $ \mine ->
          forM_ [1, 3 .. 1999] $ \n -> do
            send mine [get n]
            found <- framesUntil mine (any (\(h, _) -> frameStream h == n && (frameType h == typeReset || hasFlag flagEndStream h)))
            [() | (h, _) <- found, frameType h == typeGoAway] @?= []
            -- No more than ten at a time.
            when (n `mod` 20 == 19) (void (settling (== 0) (readIORef pending))),
      testCase "a client that sends and does not read is read" $ do
        (gate, entered) <- (,) <$> newMVar () <*> newEmptyMVar
        total <- newMVar (0 :: Int)
        let application asked respond = do
              let rest = getRequestBodyChunk asked >>= \piece -> modifyMVar_ total (pure . (+ B.length piece)) >> if B.null piece then pure () else rest
              rest
              hello asked respond
        withServed (gated gate entered) application $ \mine -> do
          settled mine
          takeMVar gate
          send mine [frame typePing 0 0 (B.replicate 8 0)]
          within (seconds 30) (takeMVar entered) >>= (@?= Just ())
          -- Nothing can be sent.
          send mine (post 1 : replicate 5 (frame typeData 0 1 (B.replicate 1000 0)))
          reached <- settling (== 5000) (readMVar total)
          reached @?= 5000
          putMVar gate ()
          send mine [frame typeData flagEndStream 1 ""]
          found <- framesUntil mine ((== [1]) . ends)
          ends found @?= [1],
      testCase "a file is not opened before its stream may send" . withFolder $ \folder -> do
        let file = folder </> "file"
        B.writeFile file (B.replicate 1000 120)
        reported <- newEmptyMVar
        let application _ respond = respond (responseFile ok200 [] file Nothing)
        withServedWith defaultHttp2Settings {http2OnResponse = \_ _ _ -> putMVar reported ()} id application $ \mine -> do
          send mine [frame typeSettings 0 0 (settingsPayload [(4, 0)]), get 1]
          settled mine
          threadDelay 100000
          open <- openFiles file
          open @?= 0
          send mine [frame typeWindowUpdate 0 1 (B.pack [0, 0, 16, 0])]
          found <- framesUntil mine ((== [1]) . ends)
          sum [frameLength h | (h, _) <- found, frameType h == typeData] @?= 1000
          within (seconds 10) (takeMVar reported) >>= (@?= Just ()),
      testCase "a large answer is returned from when it was sent, a small one before" $ do
        (gate, entered) <- (,) <$> newMVar () <*> newEmptyMVar
        returned <- newEmptyMVar
        let application asked respond = do
              r <- respond (responseLBS ok200 [] (if rawPathInfo asked == "/large" then L.replicate 20000 120 else "small"))
              r <$ putMVar returned (rawPathInfo asked)
        withServed (gated gate entered) application $ \mine -> do
          settled mine
          takeMVar gate
          send mine [frame typePing 0 0 (B.replicate 8 0)]
          within (seconds 30) (takeMVar entered) >>= (@?= Just ())
          send mine [getPath 1 "/large", getPath 3 "/small"]
          within (seconds 30) (takeMVar returned) >>= (@?= Just "/small")
          threadDelay 100000
          tryTakeMVar returned >>= (@?= Nothing)
          putMVar gate ()
          within (seconds 30) (takeMVar returned) >>= (@?= Just "/large")
          found <- framesUntil mine ((== 2) . length . ends)
          length (ends found) @?= 2
    ]
  where
    hello _ respond = respond (responseLBS ok200 [] "hello")
    settling ok act = go (200 :: Int)
      where
        go n = act >>= \a -> if ok a || n <= 0 then pure a else threadDelay (min 50000 (1000 * (201 - n))) >> go (n - 1)
    openFiles file = do
      numbers <- listDirectory "/proc/self/fd"
      targets <- forM numbers (\n -> getSymbolicLinkTarget ("/proc/self/fd/" <> n) `catch` \e -> const (pure "") (e :: IOException))
      pure (length (filter (== file) targets))

-- | A server for a client that has sent its preface, given what the server's connection becomes.
withServed :: (Connection -> Connection) -> Application -> (Connection -> IO ()) -> IO ()
withServed = withServedWith defaultHttp2Settings

withServedWith :: Http2Settings -> (Connection -> Connection) -> Application -> (Connection -> IO ()) -> IO ()
withServedWith settings wrapped application act = do
  (mine, theirs) <- connectionPair 262144 (SockAddrUnix "") (SockAddrUnix "")
  over <- newEmptyMVar
  -- As the web server's threads of connections, it stays on a capability.
  _ <- forkOn 0 (serveHttp2 settings (const (pure ())) (wrapped theirs) application `finally` putMVar over ())
  send mine [connectionPreface, frame typeSettings 0 0 (settingsPayload [(4, 4000000)]), frame typeSettings flagAck 0 ""]
  act mine
  connClose mine
  within (seconds 20) (takeMVar over) >>= (@?= Just ())

send :: Connection -> [ByteString] -> IO ()
send c = connSendMany c noDeadline

-- | All that was sent before has been handled.
settled :: Connection -> IO ()
settled mine = do
  send mine [frame typePing 0 0 (B.replicate 8 1)]
  () <$ framesUntil mine (any ((== typePing) . frameType . fst))

-- | A connection that counts its sends.
counting :: IORef Int -> Connection -> Connection
counting sends (Connection ops state) = Connection ops {opSendMany = \s deadline strings -> atomicModifyIORef' sends (\n -> (n + 1, ())) >> opSendMany ops s deadline strings} state

-- | A connection that says when bytes were received.
noting :: IO () -> Connection -> Connection
noting note (Connection ops state) = Connection ops {opReceive = \s deadline n -> opReceive ops s deadline n >>= \bytes -> bytes <$ note} state

-- | A GET for /, and for a path, and the head of a POST, with http and a literal authority, in HPACK with its static table.
get, post :: Int -> ByteString
get n = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.pack [0x82, 0x86, 0x84, 0x41, 1, 0x61])
post n = frame typeHeaders flagEndHeaders n (B.pack [0x83, 0x86, 0x84, 0x41, 1, 0x61])

getPath :: Int -> ByteString -> ByteString
getPath n path = frame typeHeaders (flagEndHeaders + flagEndStream) n (B.concat [B.pack [0x82, 0x86, 0x04, fromIntegral (B.length path)], path, B.pack [0x41, 1, 0x61]])

-- | The streams that have ended.
ends :: [(FrameHeader, ByteString)] -> [Int]
ends found = [frameStream h | (h, _) <- found, frameType h `elem` [typeData, typeHeaders], hasFlag flagEndStream h]
