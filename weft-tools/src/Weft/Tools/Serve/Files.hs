-- |
-- Description : The files that the settings name
--
-- Folders, certificates, passwords, pages and the log: which there are, and what is wrong with them.
module Weft.Tools.Serve.Files
  ( foldersOf,
    folderExists,
    certificatesOf,
    certificateSources,
    loadCertificates,
    unusedCertificates,
    faultsOf,
    missingPages,
  )
where

import Control.Exception (IOException, catch, try)
import Control.Monad (filterM)
import Data.ByteString (ByteString)
import Data.Either (lefts, rights)
import Data.IORef
import Data.List (intercalate, isSuffixOf, nub, (\\))
import qualified Data.Map.Strict as Map
import Data.Maybe (mapMaybe, maybeToList)
import Data.String (fromString)
import Network.HTTP.Types (ok200)
import Network.Wai (defaultRequest, responseStatus)
import Network.Wai.Internal (ResponseReceived (..))
import System.Directory (doesDirectoryExist, doesPathExist)
import System.FilePath (takeDirectory)
import System.Posix.Files (fileAccess)
import Weft.Http (limitHeadTime)
import Weft.Static (StaticSettings (..), defaultStaticSettings, staticApp, withStatic)
import Weft.Tls (CertificateSource (..), ClientCertificates (..), TlsServer, TlsServerSettings (..), defaultTlsServerSettings, newTlsServer, servedNames)
import Weft.Tools.Serve.BasicAuth (readPasswords)
import Weft.Tools.Serve.Messages
import Weft.Tools.Serve.Respond (requesting)
import Weft.Tools.Serve.Settings
import Weft.Tools.Serve.Site (Sources (..))
import Weft.Tools.Serve.Values (fromUtf8)

-- | The settings of the server and of its hosts.
allOf :: Sources -> [Settings]
allOf sources = sourcesMain sources : Map.elems (sourcesHosts sources)

-- | The folders that are served.
foldersOf :: Sources -> [FilePath]
foldersOf = nub . mapMaybe folder . allOf

-- | 'Left' says what is wrong with a folder.
folderExists :: FilePath -> IO (Either String ())
folderExists path = do
  isFolder <- doesDirectoryExist path
  exists <- doesPathExist path
  pure (if isFolder then Right () else Left (path <> (if exists then " is not a folder" else " does not exist")))

-- | The files of the server's certificate and its key, and of its hosts'. Without any, the server speaks plain HTTP.
certificatesOf :: Sources -> [(FilePath, FilePath)]
certificatesOf sources = nub [(chain, secret) | s <- allOf sources, Just chain <- [certificate s], Just secret <- [key s]]

-- | The same, for "Weft.Tls".
certificateSources :: Sources -> [CertificateSource]
certificateSources = map (uncurry CertificateFiles) . certificatesOf

-- | The certificates, if there are any. A client gets the certificate for the name that it sends (SNI), or else the
-- first one. Throws an 'IOError' for the first that cannot be loaded.
loadCertificates :: Sources -> IO (Maybe TlsServer)
loadCertificates sources = case certificatesOf sources of
  [] -> pure Nothing
  _ ->
    Just
      <$> newTlsServer
        defaultTlsServerSettings
          { tlsCertificates = certificateSources sources,
            tlsProtocols = map fromString (["h2" | http2 settings] <> ["http/1.1"]),
            tlsHandshakeTime = limitHeadTime (limits settings),
            tlsClientCertificates = clientCertificates settings,
            tlsLeastVersion = tlsMin settings
          }
  where
    settings = sourcesMain sources

-- | Whether clients have to show certificates, and of which authorities.
clientCertificates :: Settings -> ClientCertificates
clientCertificates settings = maybe NoClientCertificates (if clientCaOptional settings then OptionalClientCertificates else RequiredClientCertificates) (clientCa settings)

-- Faults ---------------------------------------------------------------------------------

-- | What is wrong with the files. Creates and changes none.
faultsOf :: Sources -> IO [String]
faultsOf sources =
  concat
    <$> sequence
      [ lefts <$> mapM folderExists (foldersOf sources),
        failures readPasswords (nub (mapMaybe basicAuth (allOf sources))),
        certificateFaults,
        concat <$> mapM logFaults (maybeToList (logTo (sourcesMain sources))),
        missingPages sources
      ]
  where
    failures :: (a -> IO b) -> [a] -> IO [String]
    failures act = fmap (map explained . lefts) . mapM (try . act)
    certificateFaults = do
      loaded <- mapM (\source -> try (newTlsServer defaultTlsServerSettings {tlsCertificates = [source], tlsClientCertificates = clientCertificates (sourcesMain sources)})) (certificateSources sources)
      named <- concat <$> mapM servedNames (rights loaded)
      pure (nub (map explained (lefts loaded)) <> unusedCertificates sources named)

-- | The hosts whose own certificate no client gets, since it is for other names or an earlier certificate is for the
-- same one, given the names of those that could be loaded. A client that connects to an address sends no name (RFC
-- 6066, 3), so hosts that are addresses are not looked at.
unusedCertificates :: Sources -> [(CertificateSource, [String])] -> [String]
unusedCertificates sources named =
  [ "hosts." <> name <> ": clients do not get its certificate " <> chain <> why
    | (name, s) <- Map.toList (sourcesHosts sources),
      (Just chain, Just secret) <- [(certificate s, key s)],
      Just names <- [lookup (CertificateFiles chain secret) named],
      not (isAddress name),
      Just why <- [wrong name names (CertificateFiles chain secret)]
  ]
  where
    wrong name names own
      | not (any (`covers` name) names) = Just (", which is not for this name" <> (if null names then " or any other" else " but for " <> intercalate ", " names))
      | '*' : _ <- name = Nothing
      | otherwise = case [source | (source, others) <- named, any (`covers` name) others] of
        other@(CertificateFiles earlier _) : _ | other /= own -> Just (": they get " <> earlier <> ", which is for this name too and comes first")
        _ -> Nothing
    -- The certificate's name may have a wildcard for the leftmost label; the host's stands for all names below.
    covers known name
      | '*' : below <- name = below `isSuffixOf` known
      | '*' : below <- known = dropWhile (/= '.') name == below && take 1 name /= "."
      | otherwise = known == name
    isAddress name = take 1 name == "[" || all (`elem` ("0123456789." :: String)) name

logFaults :: FilePath -> IO [String]
logFaults "-" = pure []
logFaults path = do
  exists <- doesPathExist path
  isFolder <- doesDirectoryExist path
  parent <- folderExists (takeDirectory path)
  writable <- fileAccess (if exists then path else takeDirectory path) False True False `catch` \e -> const (pure False) (e :: IOException)
  pure . map ("log: " <>) $ case parent of
    Left why -> [why]
    Right ()
      | isFolder -> [path <> " is a folder"]
      | otherwise -> [path <> " cannot be written" | not writable]

-- | Error pages and fallbacks that do not exist. Hosts inherit those of the server, which one of the folders must have.
missingPages :: Sources -> IO [String]
missingPages sources = do
  common <- filterM (fmap not . anyM (allOf sources) . has) (pagesOf settings)
  own <- mapM (\(name, s) -> map ((,) ("hosts." <> name <> ".")) <$> filterM (fmap not . (`has` s)) (pagesOf s \\ pagesOf settings)) (Map.toList (sourcesHosts sources))
  pure [place <> name <> ": the site has no file " <> fromUtf8 path | (place, (name, path)) <- map ((,) "") common <> concat own]
  where
    settings = sourcesMain sources
    anyM xs holds = or <$> mapM holds xs
    pagesOf s = nub ([("error-page", path) | (_, path) <- errorPages s] <> [("fallback", path) | path <- maybeToList (fallback s)])

-- | Whether the folder of the settings has a page. True if the folder cannot be opened, which is a fault of its own.
has :: (String, ByteString) -> Settings -> IO Bool
has (_, path) s = case folder s of
  Nothing -> pure False
  Just place -> withStatic defaultStaticSettings {staticIndex = index s, staticCleanUrls = cleanUrls s} place served `catch` \e -> const (pure True) (e :: IOException)
  where
    served static = do
      found <- newIORef False
      _ <- staticApp static (requesting path defaultRequest) (\response -> ResponseReceived <$ writeIORef found (responseStatus response == ok200))
      readIORef found
