{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : Basic authentication (RFC 7617)
--
-- Names with bcrypt hashes, as @htpasswd -B@ writes them.
module Weft.Tools.Serve.BasicAuth
  ( Passwords,
    readPasswords,
    Checks,
    newChecks,
    authenticated,
  )
where

import Data.ByteArray.Encoding (Base (Base64), convertFromBase)
import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B
import qualified Data.CaseInsensitive as CI
import Data.Char (isDigit)
import Data.IORef
import Data.IP (IP)
import Data.List (maximumBy)
import qualified Data.Map.Strict as Map
import Data.Ord (comparing)
import Network.HTTP.Types (hAuthorization, serviceUnavailable503, tooManyRequests429, unauthorized401)
import Network.Wai
import Weft.Blocking (blocking)
import Weft.Tools.Serve.FairQueue
import Weft.Tools.Serve.Forwarded (clientNetwork, clientSite)
import Weft.Tools.Serve.PasswordHash (matchesHash)
import Weft.Tools.Serve.Respond (plainText)
import Weft.Tools.Sha256 (sha256)
import Weft.WholeFile (readTextFile)

-- | The names and the hashes of their passwords, and the hash with the highest cost.
data Passwords = Passwords !(Map.Map ByteString ByteString) !ByteString

-- | The checks of passwords, for all hosts of a server.
data Checks = Checks
  { -- | One hash is computed at a time, to limit the cost of guesses, and for each client in turn, so that the guesses of
    -- one client do not delay the others. Clients are networks ('clientNetwork'), in the groups of 'clientSite'.
    checksQueue :: FairQueue (Maybe IP) (Maybe IP) ByteString Bool,
    -- | Digests (SHA-256) of accepted passwords with their names and hashes, so that a hash is computed once and not
    -- for each request. They stay valid when the file changes, since one of an entry that has changed is not looked up
    -- any more. Written by the thread that computes.
    checksAccepted :: IORef (Map.Map ByteString ())
  }

-- | No check, and no accepted password.
newChecks :: IO Checks
newChecks = Checks <$> newFairQueue clientSite 8 1000 <*> newIORef Map.empty

-- | Read a file with lines @name:hash@. Empty lines and lines that begin with @#@ are skipped. Throws an 'IOError' if
-- the file cannot be read or a line is wrong.
readPasswords :: FilePath -> IO Passwords
readPasswords path = do
  content <- blocking (readTextFile path)
  entries <- mapM entry [(n, l) | (n, l) <- zip [1 :: Int ..] (map (B.dropWhileEnd (== '\r')) (B.lines content)), not (B.null l), not ("#" `B.isPrefixOf` l)]
  let hashes = Map.fromList entries
  pure (Passwords hashes (if Map.null hashes then noName else maximumBy (comparing costOf) (Map.elems hashes)))
  where
    entry (n, l) = case B.break (== ':') l of
      (name, rest)
        | not (B.null name), isBcrypt (B.drop 1 rest) -> pure (name, canonical (B.drop 1 rest))
      _ -> ioError (userError ("line " <> show n <> " of " <> path <> " is not a name with a bcrypt hash of cost 15 or less, as htpasswd -B writes it"))
    noName = "$2b$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW"
    isBcrypt h = B.length h == 60 && any (`B.isPrefixOf` h) ["$2y$", "$2b$", "$2a$"] && maybe False plausible (B.readInt (B.take 2 (B.drop 4 h))) && B.all isDigit (B.take 2 (B.drop 4 h))
    plausible (cost, _) = cost >= 4 && cost <= 15
    -- Current software treats these three prefixes alike.
    canonical h = "$2b$" <> B.drop 4 h

-- | The cost in a hash: the binary logarithm of the work.
costOf :: ByteString -> Int
costOf stored = maybe 0 fst (B.readInt (B.take 2 (B.drop 4 stored)))

-- | A hash with that cost, which no password is known to have.
withCost :: Int -> ByteString -> ByteString
withCost cost stored = B.take 4 stored <> (if cost < 10 then "0" else "") <> B.pack (show cost) <> B.drop 6 stored

-- | Run the application only for requests with a name and its password; others get 401. A client with 8 checks that
-- wait gets 429. If 1,000 checks of all clients wait, one of a site that has less of them takes the place of another
-- one, and a check without a place gets 503.
authenticated :: Checks -> Passwords -> Middleware
authenticated checks passwords app request respond = do
  known <- maybe (pure (Right False)) (right checks passwords (clientNetwork (remoteHost request))) (lookup hAuthorization (requestHeaders request) >>= credentials)
  case known of
    Right True -> app request respond
    Right False -> respond (plainText unauthorized401 [("WWW-Authenticate", "Basic realm=\"Restricted\", charset=\"UTF-8\"")])
    Left ClientFull -> respond (plainText tooManyRequests429 later)
    Left AllFull -> respond (plainText serviceUnavailable503 later)
  where
    later = [("Retry-After", "5")]

credentials :: ByteString -> Maybe (ByteString, ByteString)
credentials value = case B.break (== ' ') value of
  (scheme, rest)
    | CI.mk scheme == "basic",
      B.length rest < 1000 -> case convertFromBase Base64 (B.dropWhile (== ' ') rest) of
      Right text | (name, password) <- B.break (== ':') text, not (B.null password) -> Just (name, B.drop 1 password)
      _ -> Nothing
  _ -> Nothing

-- | Check credentials in a time that does not tell whether the name exists or a part of the password is correct: every
-- password that is wrong takes the work of the highest cost among the known hashes, and hashes are compared in constant
-- time.
right :: Checks -> Passwords -> Maybe IP -> (ByteString, ByteString) -> IO (Either Refusal Bool)
right checks (Passwords entries dearest) client (name, password) = do
  seen <- isAccepted
  if seen
    then pure (Right True)
    else askFor (checksQueue checks) client digest $ do
      -- A request that was before this one may have had the same credentials.
      seenMeanwhile <- isAccepted
      if seenMeanwhile then pure True else compute
  where
    isAccepted = Map.member digest <$> readIORef (checksAccepted checks)
    compute = do
      matches <- matchesHash password stored
      let known = exists && matches
      if known
        then atomicModifyIORef' (checksAccepted checks) (\accepted -> (remember accepted, ()))
        else mapM_ (\cost -> matchesHash password (withCost cost dearest)) [costOf stored .. costOf dearest - 1]
      pure known
    -- One cost less is half of the work, so the costs from that of the hash to the highest one make up the difference.
    (exists, stored) = maybe (False, dearest) ((,) True) (Map.lookup name entries)
    -- A name has no colon, and a hash has 60 bytes. An unknown name may stand with the hash of a known one.
    digest = sha256 ((if exists then "+" else "-") <> name <> ":" <> stored <> password)
    remember accepted = Map.insert digest () (if Map.size accepted >= 10000 then Map.empty else accepted)
