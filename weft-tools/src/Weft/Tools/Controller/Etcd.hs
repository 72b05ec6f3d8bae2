{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The options @--etcd@ and those that go with it
--
-- How @weft controller@ asks etcd: its addresses, what it trusts and shows with TLS, and its user. Any thread may call
-- what is returned.
module Weft.Tools.Controller.Etcd
  ( EtcdOptions (..),
    etcdOptions,
    clusterSettingsFor,
  )
where

import Control.Exception (IOException, try)
import Control.Monad (forM, forM_, void, when)
import qualified Data.ByteString as B
import Data.List (isPrefixOf, stripPrefix)
import Data.Maybe (isJust)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.Encoding as T
import GHC.IO.Exception (IOException (ioe_description, ioe_filename))
import Options.Applicative
import System.IO.Error (ioeGetErrorString, isUserError)
import Weft.OpenFlow.Cluster
import Weft.Tls
import Weft.WholeFile (readTextFile)

-- | What is given on the command line.
data EtcdOptions = EtcdOptions
  { etcdUrls :: [String],
    etcdAuthorities :: Maybe FilePath,
    etcdCertificate :: Maybe (FilePath, FilePath),
    etcdLogin :: Maybe (String, FilePath)
  }

-- | Of the command @controller@.
etcdOptions :: Parser EtcdOptions
etcdOptions =
  EtcdOptions
    <$> option (eitherReader urls) (long "etcd" <> metavar "URL,..." <> help "Share the network with other controllers through this etcd (http://HOST:PORT or https://HOST:PORT, without user name, password and path); each switch has one controller as master, and gets another one if that fails")
    <*> optional (strOption (long "etcd-ca" <> metavar "FILE" <> help "With https: etcd's certificate must be of one of the authorities in this file (PEM), instead of the system's"))
    <*> optional ((,) <$> strOption (long "etcd-certificate" <> metavar "FILE" <> help "With https: the certificate that this controller shows etcd (PEM)") <*> strOption (long "etcd-key" <> metavar "FILE" <> help "The private key of --etcd-certificate (PEM)"))
    <*> optional ((,) <$> strOption (long "etcd-user" <> metavar "NAME" <> help "Log in to etcd as this user") <*> strOption (long "etcd-password-file" <> metavar "FILE" <> help "The password of --etcd-user is the first line of this file, which is read at each log-in"))
  where
    urls s
      -- A password must not be repeated.
      | '@' `elem` s = Left "expected URLs without user name and password: these are given by --etcd-user and --etcd-password-file"
      | otherwise = case mapM endpoint (words (map (\x -> if x == ',' then ' ' else x) s)) of
        Just us@(_ : _) -> Right us
        _ -> Left ("expected URLs such as http://127.0.0.1:2379, without a path, not " <> show s)
    endpoint u = scheme "http://" u <|> scheme "https://" u
    scheme start u = case break (`elem` ("/?#" :: String)) <$> stripPrefix start u of
      Just (host@(c : _), path) | c /= ':', path `elem` ["", "/"] -> Just (start <> host)
      _ -> Nothing

-- | The settings of a member with this name, and warnings; or what is wrong with the options. Certificates are read
-- again for each connection, and the password for each log-in.
clusterSettingsFor :: String -> EtcdOptions -> IO (Either String (ClusterSettings, [String]))
clusterSettingsFor name options
  | not secure, isJust (etcdAuthorities options) = pure (Left "--etcd-ca goes with an https URL in --etcd")
  | not secure, isJust (etcdCertificate options) = pure (Left "--etcd-certificate goes with an https URL in --etcd")
  | otherwise = either (Left . described) Right <$> try loaded
  where
    urls = etcdUrls options
    secure = any ("https://" `isPrefixOf`) urls
    settings = defaultClusterSettings name urls
    tls =
      defaultTlsClientSettings
        { tlsTrust = maybe TrustSystem TrustAuthorities (etcdAuthorities options),
          tlsClientCertificate = uncurry CertificateFiles <$> etcdCertificate options
        }
    loaded = do
      -- Otherwise wrong files would be known when the first connection is made.
      when secure (void (loadTrust (tlsTrust tls)))
      forM_ (etcdCertificate options) (\(c, k) -> newTlsServer defaultTlsServerSettings {tlsCertificates = [CertificateFiles c k]})
      user <- forM (etcdLogin options) $ \(userName, file) -> EtcdUser (T.pack userName) (readPassword file) <$ readPassword file
      pure (settings {clusterUpgrade = tlsConnect tls, clusterUser = user}, ["the password for etcd is sent unencrypted to " <> url | isJust user, url <- urls, exposed url])
    exposed url = not (any (`isPrefixOf` url) ["https://", "http://127.", "http://localhost:", "http://[::1]"])
    described e = case ioe_filename e of
      Just file -> file <> ": " <> ioe_description e
      Nothing | isUserError e -> ioeGetErrorString e
      Nothing -> ioe_description (e :: IOException)

-- | The first line of a file.
readPassword :: FilePath -> IO Text
readPassword file = do
  line <- B.takeWhile (`notElem` [10, 13]) <$> readTextFile file
  case T.decodeUtf8' line of
    Right password | not (T.null password) -> pure password
    Right _ -> ioError (userError (file <> ": its first line, which is the password for etcd, is empty"))
    Left _ -> ioError (userError (file <> ": the password for etcd is not UTF-8"))
