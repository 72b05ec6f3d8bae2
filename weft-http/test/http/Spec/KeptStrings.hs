{-# LANGUAGE OverloadedStrings #-}

-- |
-- Responses over a transport that keeps the strings it is given until the client receives them: those of one connection
-- are not changed by the responses of others.
module Spec.KeptStrings (tests) where

import Configurations
import Control.Exception (bracket)
import Control.Monad (forM, forM_, replicateM_)
import qualified Data.ByteString as B
import qualified Data.ByteString.Builder as Builder
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Network.HTTP.Types
import Network.Wai
import System.Directory (getTemporaryDirectory, removeDirectoryRecursive)
import System.FilePath ((</>))
import System.Posix.Temp (mkdtemp)
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Duration
import Weft.Http
import qualified Weft.Socket as W
import Weft.Transport

tests :: Configuration -> TestTree
tests on =
  testGroup
    "strings that a transport keeps"
    [ testOn on ("not changed by later responses: " <> name) (apart respondWith)
      | (name, respondWith) <- kinds
    ]

-- | A response for a body of the given letter, whose contents are also in the folder, in a file named by the letter.
type Kind = FilePath -> Char -> ResponseHeaders -> Response

kinds :: [(String, Kind)]
kinds =
  [ ("a stream with flushes", \_ letter fields -> responseStream status200 fields (\write flush -> replicateM_ 3 (write (Builder.byteString (C.replicate (size `div` 3) letter)) >> flush))),
    ("small pieces of a stream", \_ letter fields -> responseStream status200 fields (\write flush -> replicateM_ (size `div` 300) (write (Builder.byteString (C.replicate 300 letter)) >> flush))),
    ("one string", \_ letter fields -> responseLBS status200 fields (L.fromStrict (C.replicate size letter))),
    ("many strings", \_ letter fields -> responseLBS status200 fields (L.fromChunks (replicate 3 (C.replicate (size `div` 3) letter)))),
    ("a long builder", \_ letter fields -> responseBuilder status200 fields (mconcat (replicate size (Builder.char7 letter)))),
    ("strings in a builder", \_ letter fields -> responseBuilder status200 fields (mconcat (replicate 3 (mconcat (replicate 1000 (Builder.char7 letter)) <> Builder.byteString (C.replicate (size `div` 3 - 1000) letter))))),
    ("a file", \folder letter fields -> responseFile status200 fields (folder </> [letter]) Nothing),
    ("part of a file", \folder letter fields -> responseFile status200 fields (folder </> [letter]) (Just (FilePart 100 5000 (toInteger size))))
  ]

-- | The number of bytes of a body, at most.
size :: Int
size = 15000

letters :: String
letters = ['a' .. 'h']

-- | Several clients ask twice, one after the other, and receive only then.
apart :: Kind -> Assertion
apart respondWith = bracket folderOfLetters removeDirectoryRecursive $ \folder -> do
  net <- memoryTransport 1000000
  l <- transportListen net (W.SockAddrUnix "")
  let application request respond = respond (respondWith folder (C.last (rawPathInfo request)) [("X-Path", rawPathInfo request)])
  withServerWith defaultOptions {optionTransports = [l]} defaultSettings application $ \server -> do
    clients <- forM letters $ \letter -> do
      c <- transportConnect net noDeadline (serverAddress server)
      pure (letter, c)
    forM_ ["keep-alive", "close"] $ \option -> forM_ clients $ \(letter, c) ->
      connSendBytes c noDeadline (B.concat ["GET /", C.singleton letter, " HTTP/1.1\r\nHost: x\r\nConnection: ", option, "\r\n\r\n"])
    forM_ clients $ \(letter, c) -> do
      received <- receiveAll c
      let of' what = letter : ": " <> what
          others = C.filter (`elem` filter (/= letter) letters) (B.concat (map (C.filter (/= '\r')) (runs received)))
      assertBool (of' ("a response begins with " <> show (B.take 100 received))) ("HTTP/1.1 200 OK\r\n" `B.isPrefixOf` received)
      assertEqual (of' "its own fields") 2 (countOf ("X-Path: /" <> C.singleton letter) received)
      assertEqual (of' "fields") 2 (countOf "X-Path: /" received)
      assertEqual (of' "bytes of other bodies") "" others
      connClose c
  where
    receiveAll c = do
      deadline <- deadlineIn (seconds 20)
      let go got = connReceive c deadline 65536 >>= \bytes -> if B.null bytes then pure (B.concat (reverse got)) else go (bytes : got)
      go []
    -- Runs of one letter, as there are in bodies only.
    runs = filter ((>= 20) . B.length) . B.group
    countOf :: B.ByteString -> B.ByteString -> Int
    countOf needle bytes = case B.breakSubstring needle bytes of
      (_, found)
        | B.null found -> 0
        | otherwise -> 1 + countOf needle (B.drop (B.length needle) found)

folderOfLetters :: IO FilePath
folderOfLetters = do
  parent <- getTemporaryDirectory
  folder <- mkdtemp (parent </> "weft-kept-")
  forM_ letters $ \letter -> B.writeFile (folder </> [letter]) (C.replicate size letter)
  pure folder
