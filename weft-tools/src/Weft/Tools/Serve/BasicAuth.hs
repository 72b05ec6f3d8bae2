{-# LANGUAGE BangPatterns #-}
{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Basic authentication (RFC 7617)
--
-- Names with bcrypt hashes, as @htpasswd -B@ writes them.
module Weft.Tools.Serve.BasicAuth
  ( Passwords,
    readPasswords,
    authenticated,
  )
where

import Control.Concurrent.MVar
import Control.Monad (when)
import Crypto.Hash (Digest, SHA256, hash)
import qualified Crypto.KDF.BCrypt as BCrypt
import Data.ByteArray.Encoding (Base (Base64), convertFromBase)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import qualified Data.CaseInsensitive as CI
import Data.Char (isDigit)
import Data.IORef
import qualified Data.Map.Strict as Map
import Network.HTTP.Types (hAuthorization, unauthorized401)
import Network.Wai
import Weft.Blocking (blocking)
import Weft.Tools.Serve.Respond (plainText)

-- | The accepted names and passwords.
data Passwords = Passwords
  { passwordsOf :: Map.Map ByteString ByteString,
    -- | Digests of credentials that were accepted, so that their bcrypt hash is computed once and not for each request.
    -- Written by the holder of the lock.
    passwordsSeen :: IORef (Map.Map (Digest SHA256) ()),
    -- | Only one hash is computed at a time, to limit the cost of guesses.
    passwordsLock :: MVar ()
  }

-- | Read a file with lines @name:hash@. Empty lines and lines that begin with @#@ are skipped. Throws an 'IOError' if
-- the file cannot be read or a line is wrong.
readPasswords :: FilePath -> IO Passwords
readPasswords path = do
  content <- blocking (B.readFile path)
  entries <- mapM entry [(n, l) | (n, l) <- zip [1 :: Int ..] (map (B.dropWhileEnd (== '\r')) (B.lines content)), not (B.null l), not ("#" `B.isPrefixOf` l)]
  Passwords (Map.fromList entries) <$> newIORef Map.empty <*> newMVar ()
  where
    entry (n, l) = case B.break (== ':') l of
      (name, rest)
        | not (B.null name), isBcrypt (B.drop 1 rest) -> pure (name, canonical (B.drop 1 rest))
      _ -> ioError (userError ("line " <> show n <> " of " <> path <> " is not a name with a bcrypt hash of cost 15 or less, as htpasswd -B writes it"))
    isBcrypt h = B.length h == 60 && any (`B.isPrefixOf` h) ["$2y$", "$2b$", "$2a$"] && maybe False plausible (B.readInt (B.take 2 (B.drop 4 h))) && B.all isDigit (B.take 2 (B.drop 4 h))
    plausible (cost, _) = cost >= 4 && cost <= 15
    -- Current software treats these three prefixes alike.
    canonical h = "$2b$" <> B.drop 4 h

-- | Run the application only for requests with a name and its password; others get 401.
authenticated :: Passwords -> Middleware
authenticated passwords app request respond = do
  known <- maybe (pure False) (right passwords) (lookup hAuthorization (requestHeaders request) >>= credentials)
  if known then app request respond else respond (plainText unauthorized401 [("WWW-Authenticate", "Basic realm=\"Restricted\", charset=\"UTF-8\"")])

credentials :: ByteString -> Maybe (ByteString, ByteString)
credentials value = case B.break (== ' ') value of
  (scheme, rest)
    | CI.mk scheme == "basic",
      B.length rest < 1000 -> case convertFromBase Base64 (B.dropWhile (== ' ') rest) of
      Right text | (name, password) <- B.break (== ':') text, not (B.null password) -> Just (name, B.drop 1 password)
      _ -> Nothing
  _ -> Nothing

-- | Check credentials in a time that does not tell whether the name exists or a part of the password is correct: for an
-- unknown name a hash is computed too, and hashes are compared in constant time.
right :: Passwords -> (ByteString, ByteString) -> IO Bool
right passwords (name, password) = do
  seen <- isSeen
  if seen
    then pure True
    else withMVar (passwordsLock passwords) $ \_ -> do
      -- The request that held the lock before may have had the same credentials, as a browser's first ones do.
      seenMeanwhile <- isSeen
      if seenMeanwhile then pure True else compute
  where
    isSeen = Map.member digest <$> readIORef (passwordsSeen passwords)
    compute = do
      let (exists, stored) = maybe (False, someHash) ((,) True) (Map.lookup name (passwordsOf passwords))
          !matches = BCrypt.validatePassword password stored
          known = exists && matches
      when known (modifyIORef' (passwordsSeen passwords) remember)
      pure known
    digest = hash (name <> ":" <> password) :: Digest SHA256
    remember seen = Map.insert digest () (if Map.size seen >= 10000 then Map.empty else seen)
    someHash = case Map.elems (passwordsOf passwords) of
      h : _ -> h
      [] -> "$2b$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
