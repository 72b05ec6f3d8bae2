{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The options @--ca@ and @--insecure@
--
-- What a command that connects to a server trusts. Errors are returned as text for the command's user.
module Weft.Tools.Trust
  ( trustOption,
    trustFor,
    trustAdvice,
    tlsReason,
  )
where

import Control.Exception (try)
import Data.List (isPrefixOf)
import Data.Text (Text)
import qualified Data.Text as T
import GHC.IO.Exception (IOException (..))
import Options.Applicative
import Weft.Http.Client (Url (..))
import Weft.Tls (TlsClientSettings (..), Trust (..), defaultTlsClientSettings, loadTrust)

-- | @--insecure@, @--ca FILE@, or the system's authorities.
trustOption :: Parser Trust
trustOption =
  flag' TrustAnything (long "insecure" <> help "Accept any certificate")
    <|> TrustAuthorities <$> strOption (long "ca" <> metavar "FILE" <> help "Trust the authorities in this file (PEM) instead of the system's")
    <|> pure (tlsTrust defaultTlsClientSettings)

-- | Load the authorities once for all connections to the target, if those use TLS.
trustFor :: Url -> Trust -> IO (Either String Trust)
trustFor target trust
  | urlSecure target = either (Left . why) Right <$> try (loadTrust trust)
  | otherwise = pure (Right trust)
  where
    why e = maybe "" (<> ": ") (ioe_filename e) <> ioe_description e

-- | What to do if a server's certificate was not accepted.
trustAdvice :: String
trustAdvice = " (--ca FILE trusts the authorities in it, --insecure accepts any certificate)"

-- | The words in an error of "Weft.Tls". Some say by themselves what they are about.
tlsReason :: String -> Text
tlsReason why
  | any (`isPrefixOf` why) ["no TLS", "certificate"] = T.pack why
  | otherwise = "TLS: " <> T.pack why
