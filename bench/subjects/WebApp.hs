{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : What applications do, as a WAI application
--
-- The application of @weft-bench web@, the same on Weft and on Warp:
--
-- * @\/sum?a=13&b=42@ answers the sum of the numbers in the query and, of a POST, in the body;
-- * @\/items?m=3@ answers fifty items in JSON, whose totals are multiplied by that number, so that the JSON is made for
--   each request, compressed for clients that accept gzip;
-- * @\/database?min=1000&max=2000@ answers the items of a table in PostgreSQL with a price in that range, fifty at
--   most;
-- * @\/upload@ reads a body, and answers how many bytes it has;
-- * @\/echo@ is a WebSocket that echoes;
-- * @\/weft.Bench\/Sum@ is a method of gRPC, whose message has two numbers of four bytes.
module Main (main) where

import qualified Codec.Compression.GZip as GZip
import Control.Concurrent.Chan
import Control.Exception (bracket)
import Control.Monad (forever, replicateM_)
import Data.Aeson (ToJSON (..), encode, object, pairs, (.=))
import qualified Data.ByteString as B
import Data.ByteString.Builder (toLazyByteString, word32BE, word8)
import qualified Data.ByteString.Char8 as C
import qualified Data.ByteString.Lazy as L
import Data.Maybe (fromMaybe)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Database.PostgreSQL.Simple as P
import Net (counters)
import NetTrailers (setTrailers)
import NetWarp (serveApplication)
import Network.HTTP.Types
import Network.HTTP.Types.Header (hAcceptEncoding)
import Network.Wai
import Network.Wai.Handler.WebSockets (websocketsOr)
import qualified Network.WebSockets as W
import Setup (announce, databaseSubject)

main :: IO ()
main = databaseSubject counters $ \folder port -> do
  pool <- traverse connected folder
  serveApplication port announce (websocketsOr W.defaultConnectionOptions echo (application pool))

-- | Connections that are not in use.
type Pool = Chan P.Connection

connected :: FilePath -> IO Pool
connected folder = do
  pool <- newChan
  replicateM_ 16 (P.connectPostgreSQL (C.pack ("host=" <> folder <> " user=postgres dbname=postgres")) >>= writeChan pool)
  pure pool

application :: Maybe Pool -> Application
application pool request respond = case rawPathInfo request of
  "/sum" -> do
    body <- strictRequestBody request
    let numbers = map number (L.toStrict body : [value | (_, Just value) <- queryString request])
    respond (answer [(hContentType, "text/plain")] (L.fromStrict (C.pack (show (sum numbers)))))
  "/items"
    | acceptsGzip -> respond (answer [ofJson, (hContentEncoding, "gzip")] (GZip.compressWith quick (encode (items times))))
    | otherwise -> respond (answer [ofJson] (encode (items times)))
  "/database" | Just connections <- pool -> do
    let price key = maybe 0 number (lookup key [(name, value) | (name, Just value) <- queryString request])
    found <- bracket (readChan connections) (writeChan connections) $ \connection ->
      P.query connection "SELECT id, name, category, price, quantity, active FROM items WHERE price BETWEEN ? AND ? ORDER BY price LIMIT 50" (price "min", price "max")
    respond (answer [ofJson] (encode (Items [Item n name category cents quantity active [] (cents * quantity) | (n, name, category, cents, quantity, active) <- found])))
  "/upload" -> do
    size <- count request 0
    respond (answer [(hContentType, "text/plain")] (L.fromStrict (C.pack (show size))))
  "/weft.Bench/Sum" -> do
    message <- L.toStrict <$> strictRequestBody request
    setTrailers request [("grpc-status", "0")]
    let total = word (B.drop 5 message) + word (B.drop 9 message)
    respond (responseLBS ok200 [(hContentType, "application/grpc")] (toLazyByteString (word8 0 <> word32BE 4 <> word32BE (fromIntegral total))))
  _ -> respond (responseLBS notFound404 [] "")
  where
    times = maybe 1 number (lookup "m" [(name, value) | (name, Just value) <- queryString request])
    ofJson = (hContentType, "application/json")
    acceptsGzip = maybe False ("gzip" `B.isInfixOf`) (lookup hAcceptEncoding (requestHeaders request))
    quick = GZip.defaultCompressParams {GZip.compressLevel = GZip.bestSpeed}
    number = maybe 0 fst . C.readInt
    word = B.foldl' (\n byte -> 256 * n + fromIntegral byte) (0 :: Int) . B.take 4

-- | A response that declares its length.
answer :: ResponseHeaders -> L.ByteString -> Response
answer fields body = responseLBS ok200 ((hContentLength, C.pack (show (L.length body))) : fields) body

count :: Request -> Int -> IO Int
count request n = do
  piece <- getRequestBodyChunk request
  if B.null piece then pure n else count request (n + B.length piece)

echo :: W.ServerApp
echo pending = do
  connection <- W.acceptRequest pending
  forever (W.receiveDataMessage connection >>= W.sendDataMessage connection)

-- Items ----------------------------------------------------------------------------------

-- | Prices are in cents.
data Item = Item
  { itemId :: Int,
    itemName :: Text,
    itemCategory :: Text,
    itemPrice :: Int,
    itemQuantity :: Int,
    itemActive :: Bool,
    itemTags :: [Text],
    itemTotal :: Int
  }

instance ToJSON Item where
  toJSON i = object ["id" .= itemId i, "name" .= itemName i, "category" .= itemCategory i, "price" .= itemPrice i, "quantity" .= itemQuantity i, "active" .= itemActive i, "tags" .= itemTags i, "total" .= itemTotal i]
  toEncoding i = pairs ("id" .= itemId i <> "name" .= itemName i <> "category" .= itemCategory i <> "price" .= itemPrice i <> "quantity" .= itemQuantity i <> "active" .= itemActive i <> "tags" .= itemTags i <> "total" .= itemTotal i)

-- | What is answered.
newtype Items = Items [Item]

instance ToJSON Items where
  toJSON (Items list) = object ["items" .= list, "count" .= length list]
  toEncoding (Items list) = pairs ("items" .= list <> "count" .= length list)

items :: Int -> Items
items times = Items (map (item times) [1 .. 50])

item :: Int -> Int -> Item
item times n = Item n ("Item " <> T.pack (show n)) (fromMaybe "other" (lookup (n `mod` 4) (zip [0 ..] ["tools", "garden", "kitchen"]))) (100 + 37 * n) (n `mod` 7) (even n) ["new", "tag-" <> T.pack (show (n `mod` 5))] ((100 + 37 * n) * (n `mod` 7) * times)
