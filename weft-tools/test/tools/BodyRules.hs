{-# LANGUAGE OverloadedStrings #-}
-- See "Weft.Tools.Serve.Restrict".
{-# OPTIONS_GHC -Wno-deprecations #-}

-- | What becomes of an application that reads a body of unknown length which is longer than its rule allows.
module BodyRules (tests) where

import Control.Concurrent
import Control.Exception
import Control.Monad
import Data.IORef
import Network.Wai (Application, RequestBodyLength (..), defaultRequest, getRequestBodyChunk)
import Network.Wai.Internal (Request (..), ResponseReceived (..))
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (testCase)
import Weft.Tools.Serve.Restrict
import Weft.Tools.Serve.Rules

tests :: TestTree
tests =
  testGroup
    "bodies that are too long"
    [ testCase "an application that throws what it makes of the refused read is answered by 413" $ do
        (answers, outcome) <- running $ \request _ -> do
          bytes <- try (getRequestBodyChunk request)
          throwIO (userError (either (\e -> displayException (e :: SomeException)) show bytes))
        outcome
        readIORef answers >>= (@?= 1),
      testCase "a thread that is killed after it ends as killed, without an answer" $ do
        reached <- newEmptyMVar
        hold <- newEmptyMVar
        thread <- newEmptyMVar
        (answers, outcome) <- running $ \request _ -> do
          bytes <- try (getRequestBodyChunk request)
          putMVar reached (either (\e -> const True (e :: SomeException)) (const False) bytes)
          myThreadId >>= putMVar thread
          ResponseReceived <$ readMVar hold
        takeMVar reached >>= assertBool "the read was refused"
        takeMVar thread >>= killThread
        putMVar hold ()
        killed <- try outcome
        case killed of
          Left ThreadKilled -> pure ()
          other -> assertFailure ("the thread ended with " <> show other)
        readIORef answers >>= (@?= 0)
    ]

-- | Run the application in a thread of its own behind a rule of two bytes, with a body of three. How many answers there
-- were, of the application or 413; and wait for the end of the thread, as which the action returns or throws.
running :: Application -> IO (IORef Int, IO ())
running app = do
  answers <- newIORef 0
  end <- newEmptyMVar
  rules <- either assertFailure (pure . (: [])) (ruled byteCount "2")
  let restrictions = Restrictions (placesOf [] False) [] [] [] [] rules
      refusing _ _ _ = ResponseReceived <$ modifyIORef' answers (+ 1)
      answered _ = ResponseReceived <$ modifyIORef' answers (+ 1)
      request = defaultRequest {rawPathInfo = "/up", requestBodyLength = ChunkedBody, requestBody = pure "xyz"}
  void (forkFinally (restricted restrictions refusing app request answered) (putMVar end))
  pure (answers, readMVar end >>= either throwIO (const (pure ())))
