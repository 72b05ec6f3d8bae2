{-# LANGUAGE OverloadedStrings #-}

-- |
-- A server in a process of its own, whose memory and descriptors a test can watch: it prints its port and ends with its
-- standard input.
module Server
  ( runServer,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception (bracket_)
import Control.Monad (forM_, unless, when)
import qualified Data.ByteString as B
import Data.ByteString.Builder
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.Char (isDigit)
import Data.IORef
import Data.Maybe (fromMaybe, listToMaybe)
import GHC.Stats
import Network.HTTP.Types
import Network.Wai
import System.IO
import System.Mem (performMajorGC)
import System.Process
import Weft.Http

-- | Arguments: a large file, seconds for clients' times; and certificate and key for TLS.
runServer :: [String] -> IO ()
runServer arguments = do
  hSetBuffering stdout LineBuffering
  (file, time, tls) <- case arguments of
    [f, t] -> pure (f, read t, Nothing)
    [f, t, chain, key] -> (,,) f (read t) . Just <$> loadTls chain key
    _ -> ioError (userError "FILE SECONDS [CERTIFICATE KEY]")
  running <- newIORef (0 :: Int)
  serverRef <- newIORef Nothing
  let settings =
        setOnException (\_ e -> when (defaultShouldDisplayException e) (putStrLn ("exception " <> filter (/= '\n') (show e))))
          . setTimeout time
          . setHost "127.0.0.1"
          $ setPort 0 defaultSettings
      options = defaultOptions {optionTls = tls, optionOnRefused = \_ refusal -> putStrLn ("refused " <> refusalReason refusal)}
  withServerWith options settings (application file running (readIORef serverRef >>= maybe (pure 0) serverConnections)) $ \server -> do
    writeIORef serverRef (Just server)
    putStrLn ("port " <> reverse (takeWhile isDigit (reverse (show (serverAddress server)))))
    let untilEnd = isEOF >>= \end -> unless end (getLine >> untilEnd)
    untilEnd

application :: FilePath -> IORef Int -> IO Int -> Application
application file running connections request respond = bracket_ (count 1) (count (-1)) $ case pathInfo request of
  ["hello"] -> respond (text "hello")
  ["fields"] -> respond . text . toLazyByteString $ foldMap (\(name, value) -> shown name <> ": " <> byteString value <> "\n") (requestHeaders request)
  ["file"] -> respond (responseFile ok200 [(hContentType, "application/octet-stream")] file Nothing)
  -- This many bytes in pieces, each of them flushed.
  ["stream"] -> respond . responseStream ok200 [] $ \send flush ->
    forM_ [1 .. n `div` 10000] (\_ -> send (byteString (B.replicate 10000 120)) >> flush)
  ["large"] -> respond (responseLBS ok200 [] (L.replicate (fromIntegral n) 120))
  ["drip"] -> respond . responseStream ok200 [] $ \send flush ->
    forM_ [1 .. n] (\i -> send (intDec i <> "\n") >> flush >> threadDelay 50000)
  ["count"] -> reading (\k piece -> pure (k + B.length piece)) 0 >>= respond . text . L.fromStrict . C.pack . show
  ["echo"] -> respond . responseStream ok200 [] $ \send flush -> reading (\() piece -> send (byteString piece) >> flush) ()
  -- The body goes through another program, as fast as that takes it.
  ["hash"] -> do
    sum' <- withCreateProcess (proc "sha256sum" []) {std_in = CreatePipe, std_out = CreatePipe} $ \to from _ process -> do
      forM_ to $ \h -> hSetBinaryMode h True >> reading (\() piece -> B.hPut h piece) () >> hClose h
      found <- maybe (pure "") B.hGetContents from
      found <$ waitForProcess process
    respond (text (L.fromStrict (C.takeWhile (/= ' ') sum')))
  ["slow"] -> threadDelay (1000 * n) >> respond (text "slowly")
  ["unread"] -> respond (text "unread")
  ["status"] | Just k <- number "k" -> respond (responseLBS (mkStatus k "Status") [] (if k `elem` [204, 304] then "" else "body"))
  -- Connections, applications that run, and bytes that are alive after a collection.
  ["held"] -> do
    performMajorGC
    live <- gcdetails_live_bytes . gc <$> getRTSStats
    open <- connections
    now <- readIORef running
    respond (text (toLazyByteString (intDec open <> " " <> intDec now <> " " <> word64Dec live)))
  _ -> respond (responseLBS notFound404 [] "not here")
  where
    text = responseLBS ok200 [(hContentType, "text/plain")]
    shown = string7 . filter (/= '"') . show
    count k = atomicModifyIORef' running (\m -> (m + k, ()))
    n = fromMaybe 1000 (number "n")
    number key = listToMaybe [k | (name, Just value) <- queryString request, name == key, Just (k, "") <- [C.readInt value]]
    reading :: (a -> B.ByteString -> IO a) -> a -> IO a
    reading step a = do
      piece <- getRequestBodyChunk request
      if B.null piece then pure a else step a piece >>= reading step
