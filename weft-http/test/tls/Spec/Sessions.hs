{-# LANGUAGE OverloadedStrings #-}

-- |
-- Memory: of the sessions that a server keeps for resumption, and of handshakes that fail.
module Spec.Sessions
  ( tests,
  )
where

import Control.Concurrent
import Control.Exception (IOException, try)
import Control.Monad (forM_, replicateM_, unless, void)
import Data.Bits (xor)
import qualified Data.ByteString as B
import Data.Char (isDigit)
import Data.IORef (writeIORef)
import Data.List (isInfixOf)
import Foreign.C.Types (CSize (..))
import GHC.Stats (GCDetails (gcdetails_live_bytes), RTSStats (gc), getRTSStats)
import Support
import System.Directory (doesDirectoryExist, listDirectory)
import System.Environment (lookupEnv)
import System.FilePath ((</>))
import System.Mem (performMajorGC)
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Duration (seconds)
import Weft.Test.Limits
import Weft.Test.Skip
import Weft.Tls
import Weft.Transport

tests :: TestTree
tests = withFiles $ \get ->
  testGroup
    "kept sessions"
    [ testCase "take less than 3,000 bytes each with TLS 1.3" $ do
        files <- get
        server <- newTlsServer (settingsFor files ["one"])
        measured 500 (replicateM_ 50 (handshake files server)) (500 <$ replicateM_ 500 (handshake files server)),
      testCase "take less than 3,000 bytes each with TLS 1.2" $ do
        files <- get
        serving (settingsFor files ["one"]) $ \port seen _ -> do
          let handshakes :: String -> IO Int
              handshakes for = do
                (_, out, err) <- run "openssl" ["s_time", "-connect", at port, "-new", "-tls1_2", "-time", for] ""
                writeIORef seen []
                case [read n | l <- lines out, "connections in" `isInfixOf` l, (n@(_ : _), _) <- [span isDigit l]] of
                  n : _ -> pure n
                  [] -> assertFailure (out <> err)
          measured 50 (void (handshakes "1")) (handshakes "4"),
      testCase "handshakes that fail at each step leave nothing (their number: WEFT_TEST_HANDSHAKES)" $ do
        files <- get
        many <- maybe 1200 read <$> lookupEnv "WEFT_TEST_HANDSHAKES"
        server <- newTlsServer (settingsFor files ["one"])
        asking <- newTlsServer (settingsFor files ["one"]) {tlsClientCertificates = RequiredClientCertificates (folderOf files </> "ca.pem")}
        hello <- clientHello files
        let failing = do
              -- The client's part ends: before its first byte, within its first record, after it; or goes on with
              -- rubbish or an alert; or it is of a version that is not spoken.
              forM_ [B.empty, B.take 3 hello, B.take (B.length hello `div` 2) hello, hello, hello <> rubbish 0x16, hello <> rubbish 0x17, hello <> hello, hello <> alert, alert, older hello, rubbish 0x16, "GET / HTTP/1.1\r\n\r\n"] $ \sent -> do
                (ours, theirs) <- inMemory
                done <- begin (tlsAccept server theirs)
                connSendBytes ours noDeadline sent >> connShutdownSend ours noDeadline
                takeMVar done >>= assertBool "it failed"
                connClose ours
              -- The client does not trust the server, has no certificate, or has one of another authority.
              forM_ [(server, (clientFor files) {tlsTrust = TrustAuthorities (folderOf files </> "ca2.pem")}), (asking, clientFor files), (asking, (clientFor files) {tlsClientCertificate = Just (sourceOf files "foreign")})] $ \(with, how) -> do
                (ours, theirs) <- inMemory
                done <- begin (tlsAccept with theirs)
                _ <- try (tlsConnect how "one.test" ours >>= connClose) :: IO (Either IOException ())
                takeMVar done >>= assertBool "it failed"
        leavingNothing (replicateM_ 20 failing) (replicateM_ (many `div` 15) failing),
      testCase "handshakes that are cut or damaged at any byte leave neither memory nor descriptors" $ do
        files <- get
        many <- maybe 1200 read <$> lookupEnv "WEFT_TEST_HANDSHAKES"
        -- What claims to be longer is awaited.
        server <- newTlsServer (settingsFor files ["one"]) {tlsHandshakeTime = seconds 1}
        hello <- clientHello files
        -- The last record of the client, its Finished, has 74 bytes, or less with a shorter hash.
        let size = B.length hello + 40
            broken i = do
              (ours, near) <- inMemory
              (far, theirs) <- overTcp
              done <- begin (tlsAccept server theirs)
              _ <- forkIO (void (try (tlsConnect (clientFor files) "one.test" ours >>= connClose) :: IO (Either IOException ())))
              _ <- forkIO (relay far near >> connClose near)
              let place = i * 37 `mod` size
                  damage = if even i then Cut else Flip
              tampered damage place near far
              failed <- takeMVar done
              -- What is damaged is not always noticed by the server: the client may end it first, or the bits mean
              -- nothing.
              unless (damage == Flip) (assertBool ("it failed without what follows byte " <> show place) failed)
              mapM_ connClose [ours, near, far]
        descriptors <- openDescriptors
        leavingNothing (mapM_ broken [0 .. 39]) (mapM_ broken [0 .. many `div` 4])
        let settled = do
              now' <- openDescriptors
              unless (now' < descriptors + 60) (threadDelay 200000 >> settled)
        limited 60 settled >>= maybe (assertFailure "descriptors are left") pure
    ]
  where
    begin act = do
      done <- newEmptyMVar
      done <$ forkIO ((try act :: IO (Either IOException Connection)) >>= either (const (pure True)) (\c -> False <$ connClose c) >>= putMVar done)
    -- Run a warm-up, and then what must leave nothing.
    leavingNothing warm act = do
      () <- warm
      before <- lent
      () <- act
      -- One that is left holds 15 KB. Tests that run at the same time hold memory too, for a while.
      let settled = do
            now' <- lent
            unless (now' < before + 2000000) (threadDelay 200000 >> settled)
      limited 60 settled >>= maybe (lent >>= \now' -> assertFailure (show (toInteger now' - toInteger before) <> " bytes are left")) pure
    -- A warm-up, and what makes sessions and returns their number, which has to be at least the first argument.
    measured :: Int -> IO () -> IO Int -> IO ()
    measured least warm act = do
      warm
      before <- liveBytes
      made <- act
      assertBool (show made <> " sessions") (made >= least)
      -- Tests that run at the same time hold memory too, for a while.
      let settled = do
            live <- liveBytes
            unless (live < before + 3000 * fromIntegral made) (threadDelay 200000 >> settled)
      limited 60 settled >>= maybe (liveBytes >>= \live -> assertFailure (show (toInteger live - toInteger before) <> " bytes for " <> show made)) pure
    lent = performMajorGC >> c_lent
    openDescriptors = do
      there <- doesDirectoryExist "/proc/self/fd"
      unless there (skip "there is no /proc/self/fd")
      length <$> listDirectory "/proc/self/fd"
    -- handshake_failure, fatal (RFC 8446, 6).
    alert = B.pack [21, 3, 3, 0, 2, 2, 40]
    -- TLS 1.1 and 1.0 in place of 1.3 and 1.2 among the supported versions (RFC 8446, 4.2.1).
    older hello =
      let (before, versions) = B.breakSubstring (B.pack [0, 43, 0, 5, 4, 3, 4, 3, 3]) hello
       in before <> B.pack [0, 43, 0, 5, 4, 3, 2, 3, 1] <> B.drop 9 versions
    -- A record of that type with 60 bytes.
    rubbish kind = B.pack [kind, 3, 3, 0, 60] <> B.replicate 60 120
    liveBytes = performMajorGC >> fmap (gcdetails_live_bytes . gc) getRTSStats
    handshake files server = do
      (ours, theirs) <- inMemory
      _ <- forkIO $ do
        accepted <- tlsAccept server theirs
        connSendMany accepted noDeadline ["x"]
        connClose accepted
      client <- tlsConnect (clientFor files) "one.test" ours
      received <- connReceive client noDeadline 1
      received @?= "x"
      connClose client

-- | What happens to a byte.
data Damage
  = -- | It does not arrive, nor what follows.
    Cut
  | -- | It arrives with another bit.
    Flip
  deriving (Eq)

-- | Carry bytes until the first connection ends.
relay :: Connection -> Connection -> IO ()
relay from to = void (try go :: IO (Either IOException ()))
  where
    go = do
      bytes <- connReceive from noDeadline 4096
      unless (B.null bytes) (connSendBytes to noDeadline bytes >> go)

-- | Carry bytes, with damage at one place.
tampered :: Damage -> Int -> Connection -> Connection -> IO ()
tampered damage place from to = void (try (go 0) :: IO (Either IOException ()))
  where
    go :: Int -> IO ()
    go sofar = do
      bytes <- connReceive from noDeadline 4096
      let (before, later) = B.splitAt (place - sofar) bytes
      case B.uncons later of
        _ | B.null bytes -> connShutdownSend to noDeadline
        Nothing -> connSendBytes to noDeadline bytes >> go (sofar + B.length bytes)
        Just (byte, rest)
          | damage == Cut -> connSendBytes to noDeadline before >> connShutdownSend to noDeadline
          | otherwise -> connSendBytes to noDeadline (before <> B.cons (byte `xor` 32) rest) >> relay from to >> connShutdownSend to noDeadline

foreign import ccall unsafe "peer_lent" c_lent :: IO CSize
