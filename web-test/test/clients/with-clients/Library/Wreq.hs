{-# LANGUAGE OverloadedStrings #-}

-- |
-- The package @wreq@ on Weft's connections.
module Library.Wreq
  ( tests,
  )
where

import Control.Exception (try)
import Control.Lens ((&), (.~), (^.), (^?))
import Control.Monad (forM_, replicateM_)
import Data.Aeson (object, (.=))
import qualified Data.Aeson as A
import Data.Aeson.Lens (key, _String)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.IORef
import Data.Text (Text)
import qualified Data.Text.Encoding as T
import GHC.Clock (getMonotonicTime)
import Library.Surroundings
import Network.HTTP.Client (HttpException (..), HttpExceptionContent (..), Manager, ManagerSettings, createCookieJar, defaultManagerSettings, managerResponseTimeout, newManager)
import Network.HTTP.Types (created201, hContentType, notFound404, ok200)
import qualified Network.Wai as Wai
import Network.Wreq
import qualified Network.Wreq.Session as Session
import Process (portIn)
import Test.Tasty.HUnit
import Weft.Dial (DialOptions)
import Weft.Http (defaultSettings, serverAddress, setHost, setOnOpen, setPort, withServer)
import Weft.Http.Client.Manager (onWeftWith, weftManagerSettings)
import Weft.Tls (Trust (..), defaultTlsClientSettings, tlsTrust)

-- | The tests by the names that "Libraries" lists.
tests :: [(String, IO ())]
tests =
  [ ("GET, JSON, forms, and a status that is an error", requests),
    ("a session keeps its connection and its cookies", session),
    ("TLS with nginx: a name of Weft's resolver, an authority of one's own", secured),
    ("a name whose first address is silent", silentFirst),
    ("the limit on time in each phase", limited),
    ("nobody listens", refused)
  ]

-- | Run an action with the port of a server, and the number of connections that were made to it. They are all closed
-- afterwards.
serving :: (Int -> IO Int -> IO a) -> IO a
serving act = do
  opened <- newIORef 0
  let settings = setOnOpen (\_ -> True <$ atomicModifyIORef' opened (\n -> (n + 1, ()))) (setHost "127.0.0.1" (setPort 0 defaultSettings))
  withServer settings application $ \server -> do
    let port = portIn (serverAddress server)
    closesAll [port] (act port (readIORef opened))

-- | What was asked, as JSON; a cookie is given to whom has none.
application :: Wai.Application
application request respond = do
  body <- Wai.strictRequestBody request
  let held = lookup "Cookie" (Wai.requestHeaders request)
      text = T.decodeLatin1
      said = object ["method" .= text (Wai.requestMethod request), "type" .= fmap text (lookup hContentType (Wai.requestHeaders request)), "body" .= text (L.toStrict body), "cookie" .= fmap text held]
  respond $ case Wai.pathInfo request of
    ["missing"] -> Wai.responseLBS notFound404 [] "not here"
    ["made"] -> Wai.responseLBS created201 [(hContentType, "application/json"), ("Set-Cookie", "basket=7; Path=/")] (A.encode said)
    _ -> Wai.responseLBS ok200 [(hContentType, "application/json")] (A.encode said)

url :: Int -> String -> String
url port path = "http://127.0.0.1:" <> show port <> path

-- | Options with a manager of these settings, made for each request.
by :: ManagerSettings -> Options
by settings = defaults & manager .~ Left settings

-- | What the server was told, by name.
told :: Text -> Response L.ByteString -> Maybe Text
told name answer = answer ^? responseBody . key name . _String

requests :: Assertion
requests = serving $ \port _ -> do
  shared <- newManager weftManagerSettings
  forM_ [by weftManagerSettings, defaults & manager .~ Right (shared :: Manager)] $ \with -> do
    got <- getWith (with & param "q" .~ ["tea & milk"]) (url port "/x")
    (got ^. responseStatus . statusCode, told "method" got) @?= (200, Just "GET")
    posted <- postWith with (url port "/made") (object ["price" .= (320 :: Int)])
    (posted ^. responseStatus . statusCode, told "body" posted, told "type" posted) @?= (201, Just "{\"price\":320}", Just "application/json")
    form <- postWith with (url port "/form") ["name" := ("tea" :: B.ByteString), "count" := (3 :: Int)]
    (told "body" form, told "type" form) @?= (Just "name=tea&count=3", Just "application/x-www-form-urlencoded")
    missing <- try (getWith with (url port "/missing"))
    case missing of
      Left (HttpExceptionRequest _ (StatusCodeException r body)) -> (r ^. responseStatus . statusCode, body) @?= (404, "not here")
      other -> assertFailure (show (fmap (^. responseStatus) other))

session :: Assertion
session = serving $ \port opened -> do
  s <- Session.newSessionControl (Just (createCookieJar [])) weftManagerSettings
  made <- Session.post s (url port "/made") (object [])
  told "cookie" made @?= Nothing
  replicateM_ 50 $ do
    again <- Session.get s (url port "/x")
    told "cookie" again @?= Just "basket=7"
  opened >>= (@?= 1)

secured :: Assertion
secured = serving $ \port _ -> withAuthority "shop.weft.test" $ \authority -> withNginxBefore authority port $ \tlsPort ->
  withNames [("shop.weft.test", ["127.0.0.1"]), ("other.weft.test", ["127.0.0.1"])] $ \dialling -> closesAll [tlsPort] $ do
    let trusting = onWeftWith dialling defaultTlsClientSettings {tlsTrust = TrustAuthorities (authorityFile authority)} defaultManagerSettings
        at name = "https://" <> name <> ":" <> show tlsPort <> "/x"
    answer <- postWith (by trusting) (at "shop.weft.test") (object ["price" .= (320 :: Int)])
    told "body" answer @?= Just "{\"price\":320}"
    -- Another name than the certificate's, and an authority that is not trusted.
    forM_ [(trusting, "other.weft.test"), (onWeftWith dialling defaultTlsClientSettings defaultManagerSettings, "shop.weft.test")] $ \(settings, name) -> do
      r <- try (getWith (by settings) (at name))
      case r of
        Left (HttpExceptionRequest _ _) -> pure ()
        other -> assertFailure (show (fmap (^. responseStatus) other))

-- | The next address is tried after 250 ms (RFC 8305, section 5), where @http-client@ would wait for the first one until
-- its limit.
silentFirst :: Assertion
silentFirst = serving $ \port _ -> withSilent port $
  withNames [("two.weft.test", ["127.0.0.2", "127.0.0.1"])] $ \dialling -> do
    begun <- getMonotonicTime
    answer <- getWith (by (onWeftWith dialling defaultTlsClientSettings defaultManagerSettings)) ("http://two.weft.test:" <> show port <> "/x")
    ended <- getMonotonicTime
    told "method" answer @?= Just "GET"
    assertBool (show (ended - begun)) (ended - begun >= 0.25)

limited :: Assertion
limited = stops $ \dialling stop -> do
  let settings = onWeftWith (dialling :: DialOptions) defaultTlsClientSettings defaultManagerSettings {managerResponseTimeout = limit}
  r <- try (postWith (by settings) (stopAddress stop) (B.replicate (stopBody stop) 0))
  case r of
    Left (HttpExceptionRequest _ ResponseTimeout) -> pure ()
    other -> assertFailure (stopsIn stop <> ": " <> show (fmap (^. responseStatus) other))

refused :: Assertion
refused = do
  port <- serving (\port _ -> pure port)
  r <- try (getWith (by weftManagerSettings) (url port "/"))
  case r of
    Left (HttpExceptionRequest _ (ConnectionFailure e)) -> assertBool (show e) (C.pack (show port) `B.isInfixOf` C.pack (show e))
    other -> assertFailure (show (fmap (^. responseStatus) other))
