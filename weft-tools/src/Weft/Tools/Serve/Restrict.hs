{-# LANGUAGE OverloadedStrings #-}
-- WAI 3.2.3 has no other way to replace the body of a request than a field that it calls deprecated.
{-# OPTIONS_GHC -Wno-deprecations #-}

-- |
-- Description : Who may ask for which paths, how, how often and how much
--
-- WAI middleware for the rules of networks, methods, rates and sizes of bodies. They hold for files and for proxies
-- alike, and in this order: a request that one of them refuses does not count for those behind it.
module Weft.Tools.Serve.Restrict
  ( Restrictions (..),
    restricted,

    -- * Rates
    Limited,
    openRates,
  )
where

import Control.Exception (Exception (..), SomeAsyncException (..), SomeException, throwIO, try)
import Control.Monad (when)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import Data.IORef
import Data.Maybe (catMaybes)
import Data.Word (Word64)
import Network.HTTP.Types (Method, forbidden403, methodNotAllowed405, requestEntityTooLarge413, tooManyRequests429)
import Network.Wai (Application, Middleware, RequestBodyLength (..), Response, getRequestBodyChunk)
import Network.Wai.Internal (Request (..))
import Weft.Sys (now)
import Weft.Tools.Serve.Forwarded (clientNetwork, isUnnamed, trusted)
import Weft.Tools.Serve.Paths (matches)
import Weft.Tools.Serve.Rate
import Weft.Tools.Serve.Respond (plainText)
import Weft.Tools.Serve.Rules
import Weft.Tools.Serve.Values (Network, everyone)

-- | The rules of a host.
data Restrictions = Restrictions
  { restrictPlaces :: ByteString -> Places,
    -- | Every rule that covers a path counts: none of these clients may ask.
    restrictDenied :: [Rule [Network]],
    -- | Only these clients may ask.
    restrictAllowed :: [Rule [Network]],
    restrictMethods :: [Rule [Method]],
    restrictRates :: [Limited],
    -- | The most bytes of a request's body.
    restrictBodies :: [Rule Word64]
  }

-- | A limit of requests in a time, with those who have asked.
type Limited = (Rule Rate, Buckets)

-- | The limits for rules. Those that there were before keep who has asked.
openRates :: [Limited] -> [Rule Rate] -> IO [Limited]
openRates before = mapM (\rule -> (,) rule <$> maybe newBuckets pure (lookup rule before))

-- | Refuse what the rules do not allow, by an application that gives a response: 403 to clients of other networks, 405
-- with @Allow@ (RFC 9110, 15.5.6), 429 with @Retry-After@ (RFC 6585, 4) and 413 (RFC 9110, 15.5.14). Without rules it
-- is the identity.
restricted :: Restrictions -> (Response -> Application) -> Middleware
restricted (Restrictions places denied allowed methods rates bodies) refusing app
  | null denied && null allowed && null methods && null rates && null bodies = app
  | otherwise = \request respond -> do
    let here = places (rawPathInfo request)
        refuse response = refusing response request respond
    if any (isDenied request) (filter (covering here) denied) || not (all (isAllowed request) (governing allowed here))
      then refuse (plainText forbidden403 [])
      else case filter (requestMethod request `notElem`) (map ruleValue (governing methods here)) of
        _ : _ -> refuse (plainText methodNotAllowed405 [("Allow", B.intercalate ", " (common (map ruleValue (governing methods here))))])
        [] -> do
          waits <- catMaybes <$> mapM (counted request) (governing (map fst rates) here)
          case (waits, map ruleValue (governing bodies here)) of
            (_ : _, _) -> refuse (plainText tooManyRequests429 [("Retry-After", B.pack (show (maximum waits)))])
            ([], []) -> app request respond
            ([], sizes) -> bounded (minimum sizes) refusing app request respond
  where
    covering here (Rule p _) = any (matches p) here
    isDenied request (Rule _ nets) = isUnnamed request || trusted nets (remoteHost request)
    -- A client that is not known may be any.
    isAllowed request (Rule _ nets) = if isUnnamed request then all (`elem` nets) everyone else trusted nets (remoteHost request)
    common lists = case lists of
      first : others -> filter (\m -> all (m `elem`) others) first
      [] -> []
    counted request rule = case lookup rule rates of
      Nothing -> pure Nothing
      Just buckets -> now >>= \instant -> charge (ruleValue rule) buckets instant (clientNetwork (remoteHost request))

-- | Requests with bodies of at most so many bytes. One whose length is not known is read by the application, and
-- stopped where it becomes too long: if there is no response yet, 413 is the response, and otherwise it is broken off.
bounded :: Word64 -> (Response -> Application) -> Middleware
bounded most refusing app request respond = case requestBodyLength request of
  KnownLength n -> if n > most then refuse else app request respond
  ChunkedBody -> do
    left <- newIORef (Just most)
    begun <- newIORef False
    outcome <- try (app request {requestBody = piece left} (\response -> writeIORef begun True >> respond response))
    exceeded <- (== Nothing) <$> readIORef left
    under <- readIORef begun
    case outcome of
      Right received -> pure received
      Left e
        -- The application is told to end: an answer would keep its connection, and who told it waiting.
        | Just (SomeAsyncException _) <- fromException e -> throwIO e
        -- Not only 'BodyTooLarge' itself: it may come as the cause of another exception, as clients of HTTP throw.
        | exceeded && not under -> refuse
        | otherwise -> throwIO (e :: SomeException)
  where
    refuse = refusing (plainText requestEntityTooLarge413 []) request respond
    piece left = do
      bytes <- getRequestBodyChunk request
      room <- readIORef left
      let n = fromIntegral (B.length bytes)
      case room of
        Just m | n <= m -> bytes <$ when (n > 0) (writeIORef left (Just (m - n)))
        _ -> writeIORef left Nothing >> throwIO BodyTooLarge

-- | A request's body is longer than its rule allows.
data BodyTooLarge = BodyTooLarge
  deriving (Show)

instance Exception BodyTooLarge where
  displayException _ = "a request's body is longer than --max-body allows, and its response has begun"
