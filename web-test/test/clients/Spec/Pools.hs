{-# LANGUAGE OverloadedStrings #-}

-- |
-- Servers of other projects, which are killed and started again while many threads ask them: by connections from a
-- "Weft.Pool", and by "Weft.Http.Client". Each answer is that of its own question, and a question for which there is
-- none ends by its deadline.
module Spec.Pools
  ( tests,
  )
where

import Control.Concurrent (threadDelay)
import Control.Exception
import Control.Monad
import Data.Aeson (Value, decodeStrict', object, withObject, (.:), (.=))
import qualified Data.Aeson as A
import Data.Aeson.Types (parseMaybe)
import qualified Data.ByteString as B
import qualified Data.ByteString.Base64 as Base64
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import qualified Data.Text.Encoding as T
import Network.HTTP.Types (methodPost, ok200)
import Test.Tasty hiding (withResource)
import Test.Tasty.HUnit hiding (testCase)
import Weft.Deadline
import Weft.Dial
import Weft.Http.Client
import Weft.Pool
import Weft.Reader
import Weft.Scope (forConcurrently_)
import Weft.Test.Services (withFrailEtcd, withFrailRedis)
import Weft.Test.Skip (testCase)
import Weft.Transport

tests :: TestTree
tests =
  testGroup
    "servers that are killed and started again"
    [ testCase "Redis, by a pool of connections" redis,
      testCase "etcd, by a client of HTTP" etcd
    ]

-- | Sixteen threads ask, each for what it has stored itself, while the server is killed three times. The function is
-- given a key and a value, stores the one under the other, and returns what it then finds there.
storm :: (IO (), IO ()) -> (Instant -> B.ByteString -> B.ByteString -> IO B.ByteString) -> IO ()
storm (kill, start) ask = do
  ended <- newIORef False
  answered <- newIORef (0 :: Int)
  let thread :: Int -> IO ()
      thread n = go (0 :: Int)
        where
          go i = do
            over <- readIORef ended
            unless over $ do
              let value = C.pack (show n <> "." <> show i)
              soon <- deadlineIn (seconds 20)
              found <- try (ask soon ("key " <> C.pack (show n)) value)
              case found of
                Right there -> do
                  there @?= value
                  atomicModifyIORef' answered (\k -> (k + 1, ()))
                Left e
                  | Just (SomeAsyncException _) <- fromException e -> throwIO e
                  | Just HUnitFailure {} <- fromException e -> throwIO e
                  -- The server is not there.
                  | otherwise -> threadDelay 2000
              go (i + 1)
      -- All ask again, after each start.
      more k = do
        before <- readIORef answered
        let wait = readIORef answered >>= \now -> unless (now >= before + k) (threadDelay 5000 >> wait)
        wait
      operator = do
        more 200
        replicateM_ 3 (kill >> threadDelay 50000 >> start >> more 200)
        writeIORef ended True
  forConcurrently_ 17 (operator : map thread [1 .. 16]) id

redis :: Assertion
redis = withFrailRedis $ \port frail -> do
  opened <- newIORef (0 :: Int)
  let connecting soon = mask_ $ do
        connection <- dialConnection defaultDialOptions soon (Host "127.0.0.1" (show port))
        reader <- newReader connection
        reader <$ atomicModifyIORef' opened (\k -> (k + 1, ()))
      closing reader = atomicModifyIORef' opened (\k -> (k - 1, ())) >> connClose (readerConnection reader)
      works soon reader = (== "+PONG") <$> command reader soon ["PING"]
      pooled = (poolOf connecting closing) {poolMost = 5, poolValidate = works, poolValidateAfter = mempty}
  withPool pooled $ \pool -> do
    storm frail $ \soon key value -> do
      said <- withResource pool soon $ \reader -> command reader soon ["SET", key, value]
      when ("-" `B.isPrefixOf` said) (ioError (userError (show said)))
      said @?= "+OK"
      withResource pool soon $ \reader -> do
        line <- command reader soon ["GET", key]
        case C.readInt (B.drop 1 line) of
          Just (size, _) | "$" `B.isPrefixOf` line && size >= 0 -> B.take size <$> readExactly reader soon (size + 2)
          _ -> ioError (userError (show line))
    counts <- poolCounts pool
    now <- readIORef opened
    assertBool (show now) (now <= 5 && countIdle counts == now && countWaiting counts == 0)
  readIORef opened >>= (@?= 0)

-- | The first line of the answer to a command, in Redis's protocol.
command :: Reader -> Instant -> [B.ByteString] -> IO B.ByteString
command reader soon ws = do
  connSendBytes (readerConnection reader) soon (B.concat (counted '*' (length ws) : concat [[counted '$' (B.length w), w, "\r\n"] | w <- ws]))
  line <- readLine reader soon
  maybe (ioError (userError "the connection has ended")) pure line
  where
    counted kind n = C.pack (kind : show n <> "\r\n")

etcd :: Assertion
etcd = withFrailEtcd $ \url frail ->
  withClient defaultClientSettings {clientMostPerServer = 5} $ \client -> do
    let ask soon path fields = do
          answer <- request client soon (getUrl (url <> path)) {requestMethod = methodPost, requestBody = BytesBody (L.toStrict (A.encode (object fields)))}
          if answerStatus answer == ok200 then maybe (fail "no JSON") pure (decodeStrict' (answerBody answer)) else fail (show answer)
        text = T.decodeUtf8 . Base64.encode
    storm frail $ \soon key value -> do
      _ <- ask soon "/v3/kv/put" ["key" .= text key, "value" .= text value] :: IO Value
      found <- ask soon "/v3/kv/range" ["key" .= text key]
      case parseMaybe (withObject "answer" (.: "kvs")) found >>= mapM (parseMaybe (.: "value")) of
        Just [there] -> either fail pure (Base64.decode (T.encodeUtf8 there))
        _ -> fail (show found)
