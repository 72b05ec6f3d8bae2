{-# LANGUAGE OverloadedStrings #-}

-- |
-- The application that the tests request, and functions that start it.
module Application
  ( -- * Running it
    withTestServer,
    withQuietServer,
    quiet,

    -- * The application
    application,
    filler,
    partsOf,
    portOf,
    noConnections,

    -- * Users
    asNobody,
  )
where

import Client (eventually)
import Configurations (limited)
import Control.Concurrent (myThreadId, threadCapability, threadDelay)
import Control.Exception (bracket_)
import Control.Monad (forM_, unless, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.ByteString.Builder (byteString, intDec)
import Data.ByteString.Builder.Extra (byteStringCopy, byteStringInsert)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.String (fromString)
import Network.HTTP.Types
import Network.Wai
import System.Posix.User (getEffectiveUserID, setEffectiveUserID)
import Test.Tasty.HUnit
import Weft.Duration (seconds)
import Weft.Http
import Weft.Socket (SockAddr (..))

-- | A server on a free port of the loopback interface, with the default settings.
withTestServer :: (Server -> Int -> IO a) -> IO a
withTestServer = withQuietServer defaultSettings application

-- | A server with the given settings and application, which prints nothing.
withQuietServer :: Settings -> Application -> (Server -> Int -> IO a) -> IO a
withQuietServer settings app act = do
  limits <- limitsFor settings
  withServerWith defaultOptions {optionLimits = limits} (setHost (fromString "127.0.0.1") (setPort 0 (quiet settings))) app $ \server ->
    act server (portOf (serverAddress server))

-- | Limits, if the configuration has them, with times from the settings.
limitsFor :: Settings -> IO (Maybe Limits)
limitsFor settings = do
  wanted <- limited
  pure (if wanted then Just defaultLimits {limitHeadTime = time, limitIdle = time} else Nothing)
  where
    time = seconds (fromIntegral (settingsTimeout settings))

-- | Clients cause exceptions on purpose, so these are not printed.
quiet :: Settings -> Settings
quiet = setOnException (\_ _ -> pure ())

portOf :: SockAddr -> Int
portOf address = case address of
  SockAddrInet port _ -> fromIntegral port
  SockAddrInet6 port _ _ _ -> fromIntegral port
  _ -> 0

-- | Wait until the server has no connections.
noConnections :: Server -> Assertion
noConnections server = eventually "no connection is left" ((== 0) <$> serverConnections server)

-- | The first segment of the path chooses the response; @?n=@ is its size, a delay or a number.
application :: Application
application req respond = case pathInfo req of
  ["hello"] -> respond (plain "hello")
  ["large"] -> respond (responseLBS status200 [("Content-Length", C.pack (show n))] (L.fromStrict (filler n)))
  ["chunks"] -> respond . responseStream status200 [] $ \write flush ->
    forM_ [1 .. 100 :: Int] (\i -> write (intDec i <> "\n") >> flush)
  -- A body of many parts, as each kind of WAI response.
  ["mixed", "builder"] -> respond (responseBuilder status200 [] (foldMap piece (partsOf n)))
  ["mixed", "declared"] -> respond (responseBuilder status200 [("Content-Length", C.pack (show (sum (map B.length (partsOf n)))))] (foldMap piece (partsOf n)))
  ["mixed", "stream"] -> respond . responseStream status200 [] $ \write flush ->
    forM_ (zip [0 :: Int ..] (partsOf n)) (\(i, part) -> write (piece part) >> when (i `mod` 5 == n `mod` 5) flush)
  ["drip"] -> respond . responseStream status200 [] $ \write flush ->
    forM_ [1 .. n] (\_ -> write (byteString (B.replicate 1000 120)) >> flush >> threadDelay 50000)
  ["count"] -> bodyLength 0 >>= respond . plain . C.pack . show
  ["echo"] -> strictRequestBody req >>= respond . responseLBS status200 []
  -- The response begins before the request's body has been read.
  ["both"] -> respond . responseStream status200 [] $ \write flush -> do
    write "begun\n" >> flush
    length' <- bodyLength 0
    write (intDec length') >> flush
  ["ignore"] -> respond (responseLBS status413 [("Connection", "close")] "too large")
  ["slow"] -> threadDelay (1000 * n) >> respond (plain "slowly")
  ["after"] -> respond (plain "early") <* threadDelay (1000 * n)
  ["fail"] -> ioError (userError "on purpose")
  ["where"] -> do
    (_, pinned) <- threadCapability =<< myThreadId
    respond (plain (C.pack (show pinned)))
  ["raw"] -> respond (responseRaw talk (plain "no raw connection"))
  _ -> respond (responseLBS status404 [] "not here")
  where
    n = case [k | (key, Just value) <- queryString req, key == "n", Just (k, "") <- [C.readInt value]] of
      k : _ -> k
      [] -> 1000
    piece part = if even (B.length part) then byteString part else byteStringCopy part <> byteStringInsert B.empty
    plain body = responseLBS status200 [("Content-Type", "text/plain"), ("Content-Length", C.pack (show (B.length body)))] (L.fromStrict body)
    bodyLength :: Int -> IO Int
    bodyLength have = do
      chunk <- getRequestBodyChunk req
      if B.null chunk then pure have else bodyLength (have + B.length chunk)
    talk :: IO ByteString -> (ByteString -> IO ()) -> IO ()
    talk receive send = do
      send "HTTP/1.1 101 Switching Protocols\r\nUpgrade: talk\r\n\r\n"
      let loop = do
            bytes <- receive
            unless (B.null bytes) $ do
              send bytes
              when (bytes /= "bye") loop
      loop

-- | Parts of a body. Their sizes are around those at which the server switches to another way of sending; the number
-- selects them.
partsOf :: Int -> [ByteString]
partsOf n = [B.take size (B.drop (size `mod` 97) (filler 70100)) | size <- map (sizes !!) choices]
  where
    sizes = [0, 1, 2, 7, 100, 777, 4000, 4095, 4096, 4097, 5000, 16000, 16384, 40000, 70000]
    choices = take (1 + n `mod` 23) (map ((`mod` length sizes) . (`div` 65536)) (drop 1 (iterate next (n * 7919 + 1))))
    next x = (x * 1103515245 + 12345) `mod` 2147483648

-- | The given number of bytes, which vary. They are copied, since fifty million that are computed one by one take the
-- seconds of a busy machine that a test allows.
filler :: Int -> ByteString
filler n = B.take n (B.concat (replicate (n `div` B.length period + 1) period))
  where
    period = fst (B.unfoldrN (251 * 256) (\i -> Just (fromIntegral (i * 7 + i `div` 251), i + 1)) (0 :: Int))

-- | Run an action as the user nobody, since root may read every file. Changes the user of all threads of the process.
asNobody :: IO a -> IO a
asNobody act = do
  user <- getEffectiveUserID
  if user == 0 then bracket_ (setEffectiveUserID 65534) (setEffectiveUserID 0) act else act
