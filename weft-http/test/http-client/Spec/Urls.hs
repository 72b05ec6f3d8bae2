{-# LANGUAGE OverloadedStrings #-}

-- | URLs of requests: what is taken apart how, what is none, and what of it a server gets.
module Spec.Urls
  ( tests,
  )
where

import Control.Concurrent.MVar
import Control.Monad (forM_, forever)
import qualified Data.ByteString.Char8 as C
import Data.List (isInfixOf, isPrefixOf)
import Peer
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Dial (Destination (..), defaultDialOptions, dialConnection)
import Weft.Http.Client

tests :: TestTree
tests =
  testGroup
    "URLs"
    [ testCase "host, port and path" $
        forM_ cases $ \(text, host, port, path) ->
          fmap (\u -> (urlHost u, urlPort u, urlPath u)) (parseUrl text) @?= Right (host, port, path),
      testCase "an address with a zone" $ do
        found <- either assertFailure pure (parseUrl "http://[fe80::1%25eth0]:8080/x")
        (urlHost found, hostAndPort found, showUrl found) @?= ("fe80::1%eth0", "[fe80::1%eth0]:8080", "http://[fe80::1%25eth0]:8080/x")
        parseUrl (showUrl found) @?= Right found
        fmap urlHost (parseUrl "http://[fe80::1%eth0]/") @?= Right "fe80::1%eth0",
      testCase "the field Host has neither the port of the scheme nor a zone" $ do
        heard <- newEmptyMVar
        let script _ c = forever (hearRequest c >>= putMVar heard >> say c "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            hostOf text = filter ("Host:" `isPrefixOf`) (lines (C.unpack text))
        withPeer script $ \port -> do
          let connect due _ = dialConnection defaultDialOptions due (Host "127.0.0.1" (show port))
          withClient defaultClientSettings {clientConnect = Just connect} $ \client ->
            forM_ [("http://a:80/", "a"), ("https://a:443/", "a"), ("https://a:80", "a:80"), ("[::1]:80", "[::1]"), ("http://[fe80::1%25eth0]:8080/x", "[fe80::1]:8080")] $ \(text, host) -> do
              due <- soon
              found <- either assertFailure pure (parseUrl text)
              _ <- request client due (getRequest found)
              takeMVar heard >>= (@?= ["Host: " <> host <> "\r"]) . hostOf,
      testCase "what is none, and why" $
        forM_ wrong $ \(text, why) ->
          either (\e -> assertBool e (why `isInfixOf` e)) (\u -> assertFailure (text <> " is " <> show u)) (parseUrl text)
    ]
  where
    cases =
      [ ("http://a", "a", "80", "/"),
        ("http://a?q", "a", "80", "/?q"),
        ("https://a/b#c", "a", "443", "/b"),
        ("http://a:8080/b/?c", "a", "8080", "/b/?c"),
        ("http://[::1]:8080/x", "::1", "8080", "/x"),
        ("http://[::1]:/x", "::1", "80", "/x"),
        ("[::1]:8080", "::1", "8080", "/"),
        ("a:1", "a", "1", "/")
      ]
    wrong =
      [ ("http://[::1/", "behind ["),
        ("http://[::1]8080/", "behind ["),
        ("http://[::1", "behind ["),
        ("http://[a]/", "not an IPv6 address"),
        ("http://[]/", "not an IPv6 address"),
        ("http:///x", "names no host"),
        ("http://:80/", "names no host"),
        ("http://a:0/", "not a port"),
        ("http://a:65536/", "not a port"),
        ("http://a:8x/", "not a port"),
        ("http://a b/", "printable ASCII"),
        ("http://a/b c", "written as %XX"),
        ("ftp://a/", "not a URL"),
        ("a/b", "not a URL")
      ]
