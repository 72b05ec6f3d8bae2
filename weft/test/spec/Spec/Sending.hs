-- |
-- Sends that are cut off after a part went out: the peer must never take what is sent next for the rest.
module Spec.Sending
  ( tests,
  )
where

import Control.Exception (ErrorCall (..), Exception, bracket, throwIO, throwTo, try)
import Control.Monad (forM_, replicateM_, unless, when)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.List (isInfixOf)
import Foreign.C.Error (eBADF, ePIPE)
import GHC.Clock (getMonotonicTimeNSec)
import Harness
import System.Directory (getTemporaryDirectory, removeFile)
import System.IO (IOMode (ReadMode), hClose, openBinaryFile, openBinaryTempFile)
import System.IO.Unsafe (unsafePerformIO)
import System.Posix.IO (closeFd, handleToFd)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Socket
import Weft.Socket.ByteString
import qualified Weft.Socket.ByteString.Lazy as Lazy

tests :: TestTree
tests =
  testGroup "sends that are cut off" $
    [ test (name <> ", by " <> how) (withFile (\path -> cutBy (operation path)))
      | (how, cutBy) <- [("a deadline", byDeadline), ("an exception", byException)],
        (name, operation) <-
          [ ("sendAll", const (`sendAll` large)),
            ("sendMany", const (`sendMany` replicate 3000 (B.replicate 10000 1))),
            ("sendMany of two, in the first", const (`sendMany` [large, B.take 10 large])),
            ("sendMany of two, in the second", const (`sendMany` [B.take 10 large, large])),
            ("lazy sendAll", const (`Lazy.sendAll` L.fromStrict large)),
            ("sendFile", flip sendFile)
          ]
    ]
      <> [ test "nothing went out: nothing is cut" . withUnix $ \a b -> do
             sent <- fill a
             soon <- deadlineIn (milliseconds 5)
             e <- failure "sendAll" (sendAll (withDeadline soon a) (C.pack "more"))
             isTimeout e @? show e
             t <- start (sendAll a (C.pack "rest"))
             got <- exactly b (sent + 4)
             result "sendAll" t
             B.drop sent got @?= C.pack "rest",
           test "a sender that returns how much it sent cuts nothing" . withUnix $ \a _ -> do
             sent <- send a large
             assertBool "all was taken" (sent < B.length large)
             soon <- deadlineIn (milliseconds 5)
             e <- failure "send" (send (withDeadline soon a) large)
             isTimeout e @? show e
             sendNow a (C.pack "x") >>= (@?= Right 0),
           test "a string that cannot be computed behind many others cuts" . withUnix $ \a _ -> do
             let strings = replicate 1024 (C.pack "x") <> error "on purpose"
             forM_ [(`sendMany` strings), (`Lazy.sendAll` L.fromChunks strings)] $ \sending -> withUnix $ \c _ -> do
               r <- try (sending c)
               either (\e -> takeWhile (/= '\n') (show (e :: ErrorCall))) (const "sent") r @?= "on purpose"
               refused (sendAll c (C.pack "x"))
             sendAll a (C.pack "x"),
           test "progress that throws cuts" . withFile $ \path -> withUnix $ \a b ->
             bracket (openBinaryFile path ReadMode >>= handleToFd) closeFd $ \fd -> do
               r <- try (sendFileRangeWith (\_ -> throwIO (ErrorCall "on purpose")) a fd 0 20000000)
               either (\e -> show (e :: ErrorCall)) (const "sent") r @?= "on purpose"
               refused (sendAll a (C.pack "x"))
               close b,
           test "a thread that waits to send is notified" . withUnix $ \a _ -> do
             soon <- deadlineIn (milliseconds 500)
             t <- start (sendAll (withDeadline soon a) large)
             blocked t >>= assertBool "does not block"
             others <- mapM (const (start (sendAll a (C.pack "x")))) [1 .. 3 :: Int]
             e <- failure "sendAll" (result "sendAll" t)
             isTimeout e @? show e
             forM_ others (refused . result "another sender"),
           test "a string that is computed while the peer receives: interruptible, and with a deadline" $
             forM_ [False, True] $ \timed' -> withUnix $ \a b -> do
               reader <- start (let go = recv b 65536 >>= \s -> unless (B.null s) go in go)
               soon <- deadlineIn (milliseconds 200)
               -- Each chunk takes a tenth of a millisecond, however fast the machine computes.
               let slow = L.fromChunks (map (\i -> unsafePerformIO (B.replicate 100 (fromIntegral i) <$ busy 100)) [1 :: Int ..])
               t <- start (Lazy.sendAll (if timed' then withDeadline soon a else a) slow)
               pause 100
               if timed'
                 then failure "sendAll" (result "sendAll" t) >>= \e -> isTimeout e @? show e
                 else stop t
               close a
               result "the reader" reader,
           test "a file that is sent in parts: interruptible, and with a deadline" $
             forM_ [False, True] $ \timed' -> withFile $ \path -> withUnix $ \a b ->
               bracket (openBinaryFile path ReadMode >>= handleToFd) closeFd $ \fd -> do
                 reader <- start (let go = recv b 65536 >>= \s -> unless (B.null s) go in go)
                 soon <- deadlineIn (milliseconds 200)
                 -- The peer receives faster than parts are sent.
                 sent <- newIORef (0 :: Int)
                 t <- start (sendFileRangeWith (\n -> atomicModifyIORef' sent (\x -> (x + n, ())) >> busy 20000) (if timed' then withDeadline soon a else a) fd 0 20000000)
                 pause 100
                 if timed'
                   then failure "sendFile" (result "sendFile" t) >>= \e -> isTimeout e @? show e
                   else stop t
                 n <- readIORef sent
                 assertBool (show n <> " bytes") (n < 20000000)
                 refused (sendAll a (C.pack "x"))
                 close a
                 result "the reader" reader,
           testCase "exceptions at every moment: a whole message, or none more (storm)" (within 50 "the rounds" storm)
         ]

-- | Work for this many microseconds.
busy :: Int -> IO ()
busy us = getMonotonicTimeNSec >>= go
  where
    go from = do
      t <- getMonotonicTimeNSec
      when (t < from + 1000 * fromIntegral us) (go from)

test :: String -> IO () -> TestTree
test name act = testCase name (finishes name act)

large :: B.ByteString
large = B.replicate 20000000 1

withFile :: (FilePath -> IO a) -> IO a
withFile = bracket make removeFile
  where
    make = do
      folder <- getTemporaryDirectory
      (path, h) <- openBinaryTempFile folder "weft-spec"
      B.hPut h large
      path <$ hClose h

withUnix :: (Socket -> Socket -> IO a) -> IO a
withUnix act = bracket (socketPair AF_UNIX Stream defaultProtocol) (\(a, b) -> close a >> close b) (uncurry act)

exactly :: Socket -> Int -> IO B.ByteString
exactly s = fmap B.concat . go
  where
    go 0 = pure []
    go n = recv s n >>= \c -> if B.null c then pure [] else (c :) <$> go (n - B.length c)

-- | Send until the kernel takes no more; how many bytes.
fill :: Socket -> IO Int
fill s = go 0
  where
    go n = sendNow s (B.replicate 65536 1) >>= either throwIO (\k -> if k == 0 then pure n else go (n + k))

-- | It fails, and says why.
refused :: IO a -> Assertion
refused act = do
  e <- failure "a send after one that was cut off" act
  assertBool (show e) (isErrno ePIPE e && "cut off" `isInfixOf` show e)

byDeadline, byException :: (Socket -> IO ()) -> IO ()
byDeadline sending = withUnix $ \a b -> do
  soon <- deadlineIn (milliseconds 30)
  e <- failure "the send" (sending (withDeadline soon a))
  isTimeout e @? show e
  cut a b
byException sending = withUnix $ \a b -> do
  t <- start (sending a)
  -- A part has gone out; opening a file may block before.
  first <- recv b 1
  B.length first @?= 1
  blocked t >>= assertBool "does not block"
  stop t
  cut a b

-- | Nothing more can be sent on the first, what was sent and the other direction are as they were.
cut :: Socket -> Socket -> IO ()
cut a b = do
  refused (sendAll a (C.pack "x"))
  refused (send a (C.pack "x"))
  refused (sendMany a [C.pack "x"])
  refused (sendNow a (C.pack "x") >>= either throwIO pure)
  sendAll b (C.pack "still")
  recv a 10 >>= (@?= C.pack "still")
  shutdown a ShutdownSend
  rest <- exactly b (B.length large)
  assertBool "more than was sent" (B.length rest < B.length large && B.all (== 1) rest)
  close a
  failsWith "send" eBADF (send a (C.pack "x"))

-- | A thread sends messages of equal bytes, each time another byte, while exceptions hit it; the reader must find
-- nothing but whole messages, and one part at the end.
storm :: IO ()
storm = forM_ [1 .. times 150] $ \i -> withUnix $ \a b -> do
  reader <- start (everything b)
  over <- newIORef False
  sender <- start $
    forM_ (cycle [1 .. 250]) $ \byte -> do
      r <- try (sendAll a (B.replicate size byte)) :: IO (Either Stop ())
      done <- readIORef over
      -- Exceptions may hit between sends, too.
      when done (throwIO Stop)
      either (const (pure ())) pure r
  let Task thread _ = sender
  replicateM_ 3 (pause (i `mod` 3) >> throwTo thread Stop)
  writeIORef over True
  stop sender
  close a
  got <- result "the reader" reader
  let messages = B.group got
      (whole, end) = (if null messages then ([], B.empty) else (init messages, last messages))
  forM_ whole $ \m -> unless (B.length m == size) (assertFailure ("a message of " <> show (B.length m) <> " bytes within the stream"))
  assertBool "too much" (B.length end <= size)
  where
    size = 300000
    everything b = B.concat <$> go
      where
        go = recv b 65536 >>= \c -> if B.null c then pure [] else (c :) <$> go

data Stop = Stop
  deriving (Show)

instance Exception Stop
