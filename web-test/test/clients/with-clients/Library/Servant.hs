{-# LANGUAGE DataKinds #-}
{-# LANGUAGE OverloadedStrings #-}
{-# LANGUAGE TypeOperators #-}

-- |
-- The package @servant-client@ on Weft's connections, with servers of @servant-server@ on "Weft.Http" and on Warp.
module Library.Servant
  ( tests,
  )
where

import Control.Concurrent.Async (mapConcurrently_)
import Control.Exception (fromException)
import Control.Monad (forM_)
import Control.Monad.IO.Class (liftIO)
import qualified Data.ByteString as B
import Data.IORef
import Data.Proxy (Proxy (..))
import Data.Text (Text)
import qualified Data.Text as T
import Library.Surroundings
import Network.HTTP.Client (HttpException (..), HttpExceptionContent (..), Manager, defaultManagerSettings, managerResponseTimeout, newManager, responseTimeout, responseTimeoutMicro)
import Network.HTTP.Types (statusCode)
import qualified Network.Wai.Handler.Warp as Warp
import Servant (throwError)
import Servant.API
import Servant.Client hiding (manager)
import Servant.Server
import Test.Tasty.HUnit
import Weft.Dial (DialError (..), DialOptions)
import Weft.Http (defaultSettings)
import qualified Weft.Http as Weft
import Weft.Http.Client.Manager (onWeftWith, weftManagerSettings)
import Weft.Tls (Trust (..), defaultTlsClientSettings, tlsTrust)

-- | The tests by the names that "Libraries" lists.
tests :: [(String, IO ())]
tests =
  [ ("calls, and a status that is an error", calls),
    ("many calls at once over the connections of one manager", atOnce),
    ("TLS with nginx: a name of Weft's resolver, an authority of one's own", secured),
    ("the limit on time in each phase, of a manager and of a request", limited),
    ("nobody listens, and nobody has the name", unreachable)
  ]

type Api =
  "greeting" :> Capture "name" Text :> QueryParam "times" Int :> Get '[JSON] [Text]
    :<|> "sum" :> ReqBody '[JSON] [Int] :> Post '[JSON] Int
    :<|> "size" :> ReqBody '[OctetStream] B.ByteString :> Post '[JSON] Int
    :<|> "stored" :> Header "X-Key" Text :> ReqBody '[PlainText] Text :> Put '[JSON] (Headers '[Header "Location" Text] Bool)
    :<|> "missing" :> Get '[JSON] Int

api :: Proxy Api
api = Proxy

greeting :: Text -> Maybe Int -> ClientM [Text]
total :: [Int] -> ClientM Int
size :: B.ByteString -> ClientM Int
stored :: Maybe Text -> Text -> ClientM (Headers '[Header "Location" Text] Bool)
missing :: ClientM Int
greeting :<|> total :<|> size :<|> stored :<|> missing = client api

server :: IORef [(Text, Text)] -> Server Api
server store =
  (\name times -> pure (replicate (maybe 1 id times) ("hello " <> name)))
    :<|> (pure . sum)
    :<|> (pure . B.length)
    :<|> (\named value -> maybe (throwError err400) (put value) named)
    :<|> throwError err404 {errBody = "not here"}
  where
    put value name = do
      new <- liftIO (atomicModifyIORef' store (\held -> ((name, value) : held, name `notElem` map fst held)))
      pure (addHeader ("/stored/" <> name) new)

-- | Run an action with the port of each server. Its connections are all closed afterwards.
serving :: (Int -> IO ()) -> IO ()
serving act = forM_ [Weft.withApplicationSettings defaultSettings, Warp.withApplication] $ \running -> do
  store <- newIORef []
  running (pure (serve api (server store))) $ \port -> closesAll [port] (act port)

env :: Manager -> Int -> ClientEnv
env manager port = mkClientEnv manager (BaseUrl Http "127.0.0.1" port "")

-- | The result of calls that do not fail.
done :: ClientEnv -> ClientM a -> IO a
done to call = runClientM call to >>= either (assertFailure . show) pure

calls :: Assertion
calls = serving $ \port -> do
  manager <- newManager weftManagerSettings
  let to = env manager port
  done to (greeting "tea & milk" (Just 2)) >>= (@?= ["hello tea & milk", "hello tea & milk"])
  done to (total [1 .. 1000]) >>= (@?= 500500)
  done to (size (B.replicate 3000000 7)) >>= (@?= 3000000)
  new <- done to (stored (Just "price") "320")
  (getResponse new, getHeaders new) @?= (True, [("Location", "/stored/price")])
  again <- done to (stored (Just "price") "330")
  getResponse again @?= False
  forM_ [(missing, 404), (getResponse' (stored Nothing ""), 400)] $ \(call, code) -> do
    r <- runClientM call to
    case r of
      Left (FailureResponse _ answer) -> statusCode (responseStatusCode answer) @?= code
      other -> assertFailure (show other)
  where
    getResponse' = fmap (fromEnum . getResponse)

atOnce :: Assertion
atOnce = serving $ \port -> do
  manager <- newManager weftManagerSettings
  flip mapConcurrently_ [1 .. 50 :: Int] $ \i -> done (env manager port) . forM_ [1 .. 10] $ \k -> do
    n <- total [i, 1000 * k]
    names <- greeting (T.pack (show i)) (Just k)
    liftIO ((n, names) @?= (i + 1000 * k, replicate k ("hello " <> T.pack (show i))))

secured :: Assertion
secured = serving $ \port -> withAuthority "shop.weft.test" $ \authority -> withNginxBefore authority port $ \tlsPort ->
  withNames [("shop.weft.test", ["127.0.0.1"])] $ \dialling -> closesAll [tlsPort] $ do
    manager <- newManager (onWeftWith dialling defaultTlsClientSettings {tlsTrust = TrustAuthorities (authorityFile authority)} defaultManagerSettings)
    let to = mkClientEnv manager (BaseUrl Https "shop.weft.test" tlsPort "")
    flip mapConcurrently_ [1 .. 10 :: Int] $ \i -> done to (total [i, 1]) >>= (@?= i + 1)

limited :: Assertion
limited = stops $ \dialling stop -> do
  base <- parseBaseUrl (stopAddress stop)
  ofManager <- newManager (onWeftWith (dialling :: DialOptions) defaultTlsClientSettings defaultManagerSettings {managerResponseTimeout = limit})
  plain <- newManager (onWeftWith dialling defaultTlsClientSettings defaultManagerSettings)
  let ofRequest = (mkClientEnv plain base) {makeClientRequest = \url request -> (defaultMakeClientRequest url request) {responseTimeout = limit}}
  forM_ [mkClientEnv ofManager base, ofRequest] $ \to -> do
    r <- runClientM (size (B.replicate (stopBody stop) 0)) to
    case r of
      Left (ConnectionError e) | Just (HttpExceptionRequest _ ResponseTimeout) <- fromException e -> pure ()
      other -> assertFailure (stopsIn stop <> ": " <> show other)

unreachable :: Assertion
unreachable = do
  port <- newIORef 0
  serving (writeIORef port)
  refusing <- readIORef port
  withNames [] $ \dialling -> do
    manager <- newManager (onWeftWith dialling defaultTlsClientSettings defaultManagerSettings {managerResponseTimeout = responseTimeoutMicro 60000000})
    forM_ [("127.0.0.1", isRefused), ("no..name", isNotFound)] $ \(host, expected) -> do
      r <- runClientM (total []) (mkClientEnv manager (BaseUrl Http host refusing ""))
      case r of
        Left (ConnectionError e) | Just (HttpExceptionRequest _ (ConnectionFailure why)) <- fromException e, Just failure <- fromException why -> assertBool (show failure) (expected failure)
        other -> assertFailure (show other)
  where
    isRefused e = case e of NoneConnected {} -> True; NotFound {} -> False
    isNotFound = not . isRefused
