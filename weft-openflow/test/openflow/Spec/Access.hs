{-# LANGUAGE OverloadedStrings #-}

-- |
-- Who may read and who may change flows by the northbound interface: tokens, clients on this host, and names of hosts.
module Spec.Access (tests) where

import Control.Exception (bracket)
import Control.Monad (forM_, void)
import qualified Data.ByteString as B
import Data.List (isInfixOf)
import Data.String (fromString)
import Network.HTTP.Types
import Peer
import Spec.Northbound (request, requestTo, withNetworkOf)
import System.Directory (removePathForcibly)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.OpenFlow.Message
import Weft.OpenFlow.Northbound
import Weft.Test.Skip (skip, testCase)

tests :: TestTree
tests = testGroup "access to the northbound interface" [tokens, tokenFiles, localOnly, openReads]

-- | Send a valid request that changes a flow of the given priority, and return the status. Whether the request is
-- authorised depends on the fields given.
aFlow :: Int -> Int -> Method -> RequestHeaders -> IO Int
aFlow priority port method headers = fst <$> request method port "/v1/switches/1/flows" (Just ("{\"priority\":" <> fromString (show priority) <> "}")) ((hContentType, "application/json") : headers)

tokens :: TestTree
tokens = testCase "with a token, changes need it, and reading from this host does not" . withNetworkOf (bearerToken "0123456789abcdef") "127.0.0.1" $ \_ _ port one _ -> do
  let with s = [(hAuthorization, s)]
  forM_ ["POST", "DELETE"] $ \method -> do
    forM_ [[], with "", with "Bearer", with "Bearer ", with "Bearer 0123456789abcdeF", with "Bearer 0123456789abcde", with "Bearer 0123456789abcdefg", with "Basic 0123456789abcdef", with "0123456789abcdef"] $ \headers ->
      aFlow 7 port method headers >>= assertEqual (show (method, headers)) 401
    -- Without the token, the status does not reveal which switches exist.
    (other, _) <- request method port "/v1/switches/99/flows" (Just "{}") [(hContentType, "application/json")]
    other @?= 401
  forM_ protected $ \path -> do
    request "GET" port path Nothing [] >>= assertEqual path 200 . fst
    request "GET" port path Nothing [("Host", "controller.example")] >>= assertEqual path 401 . fst
    request "GET" port path Nothing (("Host", "controller.example") : with "Bearer 0123456789abcdef") >>= assertEqual path 200 . fst
  request "GET" port "/" Nothing [] >>= (@?= 200) . fst
  ((), got) <- confirming one $ do
    aFlow 9 port "POST" (with "bearer 0123456789abcdef") >>= (@?= 201)
    aFlow 9 port "DELETE" (with "Bearer 0123456789abcdef") >>= (@?= 200)
    -- With a token, the Host field does not matter.
    aFlow 9 port "POST" (("Host", "controller.example") : with "Bearer 0123456789abcdef") >>= (@?= 201)
  -- No refused request has reached the switch.
  [(flowCommand f, flowPriority f) | FlowModMessage f <- got, flowPriority f `elem` [7, 9]] @?= [(FlowAdd, 9), (FlowDeleteStrict, 9), (FlowAdd, 9)]

-- | What has the state of the network.
protected :: [String]
protected = ["/v1/network", "/v1/switches", "/v1/hosts", "/metrics"]

tokenFiles :: TestTree
tokenFiles = testCase "a token's file" . bracket (readProcess "mktemp" ["/tmp/token.XXXXXX"] "") (removePathForcibly . head') $ \made -> do
  let file = head' made
      holds s = B.writeFile file s >> readToken file
  holds "0123456789abcdef\n" >>= accepted
  holds "0123456789abcdef\r\nmore" >>= accepted
  forM_ ["", "\n0123456789abcdef", "0123456789abcde\n", "0123456789abcdef 0123456789abcdef", "0123456789abcd\228ef"] $ \s ->
    holds s >>= either (const (pure ())) (const (assertFailure (show s <> " was taken")))
  where
    head' = takeWhile (/= '\n')
    accepted r = case r of
      Right t -> t @?= "0123456789abcdef"
      _ -> assertFailure "no token"

-- | Without a token, access depends on the client's address and on the request's Host field.
localOnly :: TestTree
localOnly = testCase "without a token, only clients on this host read and change flows" . withNetworkOf localClients "0.0.0.0" $ \_ _ port one _ -> void . confirming one $ do
  forM_ ["localhost", "LOCALHOST:8080", "127.0.0.1:8080", "[::1]:1"] $ \name -> aFlow 9 port "POST" [("Host", name)] >>= assertEqual (show name) 201
  forM_ ["controller.example", "controller.example:8080", "127.0.0.1.example"] $ \name -> aFlow 9 port "POST" [("Host", name)] >>= assertEqual (show name) 403
  forM_ (protected <> ["/v1/events", "/v1/switches/1/flows"]) $ \path -> request "GET" port path Nothing [("Host", "controller.example:8080")] >>= assertEqual path 403 . fst
  outside <- filter (not . ("127." `isInfixOf`)) . words <$> readProcess "hostname" ["-I"] ""
  case filter (all (`elem` (".0123456789" :: String))) outside of
    [] -> skip "this host has no address but that of the loopback interface"
    address : _ -> do
      let asked = requestTo address
      (changed, _) <- asked "POST" port "/v1/switches/1/flows" (Just "{}") [(hContentType, "application/json"), ("Host", "127.0.0.1")]
      changed @?= 403
      forM_ protected $ \path -> asked "GET" port path Nothing [("Host", "127.0.0.1")] >>= assertEqual path 403 . fst
      asked "GET" port "/" Nothing [] >>= (@?= 200) . fst

-- | Anybody reads; changes are as they are without it.
openReads :: TestTree
openReads = testCase "reading can be open to all" . withNetworkOf localClients {accessOpenReads = True} "127.0.0.1" $ \_ _ port _ _ -> do
  forM_ protected $ \path -> request "GET" port path Nothing [("Host", "controller.example")] >>= assertEqual path 200 . fst
  aFlow 7 port "POST" [("Host", "controller.example")] >>= (@?= 403)
