{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The pong server as a WAI application
--
-- The application is the same for all builds; the server below it is Weft's engine, or Warp on GHC's own manager or
-- relinked.
--
-- @GET \/@ answers five bytes, @GET \/browser@ the same with five fields, @POST \/echo@ the body that came; @POST
-- \/upload@ reads a body and answers five bytes.
module Main (main) where

import Control.Monad (unless)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Net (counters)
import NetWarp (serveApplicationWith)
import Network.HTTP.Types (ResponseHeaders, status200)
import Network.Wai (Application, Request, getRequestBodyChunk, rawPathInfo, responseLBS, strictRequestBody)
import Setup (announce, tlsSubject)

main :: IO ()
main = tlsSubject counters $ \tls port -> serveApplicationWith tls port announce pong

pong :: Application
pong request respond = case rawPathInfo request of
  "/echo" -> do
    body <- strictRequestBody request
    respond (responseLBS status200 [contentType, ("Content-Length", C.pack (show (L.length body)))] body)
  "/upload" -> readToEnd request >> respond (responseLBS status200 [contentType, five] "Pong!")
  "/browser" -> respond (responseLBS status200 (contentType : five : page) "Pong!")
  _ -> respond (responseLBS status200 [contentType, five] "Pong!")
  where
    contentType = ("Content-Type", "text/plain")
    five = ("Content-Length", "5")

readToEnd :: Request -> IO ()
readToEnd request = do
  chunk <- getRequestBodyChunk request
  unless (C.null chunk) (readToEnd request)

-- | The other response fields of a page.
page :: ResponseHeaders
page =
  [ ("Cache-Control", "public, max-age=3600"),
    ("ETag", "\"5d8c72a5edda8d6a\""),
    ("Last-Modified", "Sun, 22 Nov 2026 00:00:00 GMT"),
    ("Vary", "Accept-Encoding")
  ]
