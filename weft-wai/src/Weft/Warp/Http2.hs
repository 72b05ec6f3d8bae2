{-# LANGUAGE OverloadedStrings #-}

-- |
-- The limits on a request's head, where the guard does not see it: over HTTP\/2, whose frames are the
-- library's. They count what came out of it, so they spare the application, not the library.
module Weft.Warp.Http2
  ( limitHeads,
  )
where

import qualified Data.ByteString as B
import qualified Data.ByteString.Lazy as L
import qualified Data.CaseInsensitive as CI
import Network.HTTP.Types (hContentType, httpMajor, statusMessage)
import Network.Wai
import Weft.Socket (SockAddr)
import Weft.Warp.Limits

-- | Refuse requests of HTTP\/2 whose target or head is too large; the connection goes on. The
-- function is told of each.
limitHeads :: Limits -> (SockAddr -> Refusal -> IO ()) -> Middleware
limitHeads limits refused app request respond
  | httpMajor (httpVersion request) < 2 = app request respond
  | target > limitTarget limits = refuse TargetTooLong
  | length fields > limitFields limits || target + sum (map size fields) > limitHead limits = refuse HeadTooLarge
  | otherwise = app request respond
  where
    fields = requestHeaders request
    target = B.length (rawPathInfo request) + B.length (rawQueryString request)
    -- As it would be in HTTP/1, with a colon, a space and the end of its line.
    size (name, value) = B.length (CI.original name) + B.length value + 4
    refuse refusal = do
      refused (remoteHost request) refusal
      maybe (app request respond) (respond . plain) (refusalStatus refusal)
    plain status = responseLBS status [(hContentType, "text/plain; charset=utf-8")] (L.fromStrict (statusMessage status <> "\n"))
