-- |
-- What a name means before anybody is asked: literal addresses, this host, the file of hosts, and the search list.
-- Pure.
module Weft.Resolver.Names
  ( canonical,
    isLiteral,
    isLocalhost,
    isName,
    candidates,
    Hosts,
    parseHosts,
    lookupHosts,
    printable,
  )
where

import Data.ByteString (ByteString)
import qualified Data.ByteString.Char8 as B8
import Data.Char (isAscii, isControl, isDigit, isHexDigit, isPrint, isSpace, toLower)
import Data.List (isSuffixOf)
import qualified Data.Map.Strict as Map
import Data.Maybe (fromMaybe)

-- | The name in lower case, by which look-ups are shared.
canonical :: String -> String
canonical = map (\c -> if isAscii c then toLower c else c)

-- | Whether it can only be an address, with or without brackets, not a name: it has a colon, or its last label
-- is a number (RFC 3986, section 3.2.2, and the forms of inet_aton(3)).
isLiteral :: String -> Bool
isLiteral host = ':' `elem` host || numeric (lastLabel host)
  where
    lastLabel = reverse . takeWhile (/= '.') . reverse
    numeric label = case label of
      '0' : x : digits | x `elem` "xX" -> all isHexDigit digits
      _ -> not (null label) && all isDigit label

-- | A name as an error shows it, on a terminal or in a log: what cannot be printed is escaped as in Haskell.
printable :: String -> String
printable = concatMap (\c -> if isPrint c then [c] else init (drop 1 (show c)))

-- | @localhost@ and the names below it, which are this host's (RFC 6761, section 6.3). The name is canonical.
isLocalhost :: String -> Bool
isLocalhost name = bare == "localhost" || ".localhost" `isSuffixOf` bare
  where
    bare = if "." `isSuffixOf` name then init name else name

-- | Whether it can be asked for: labels of 1 to 63 octets, 253 in all (RFC 1035, section 2.3.4), none of which is a
-- space or a control character. (A name in another script has to be given in its ASCII form, RFC 5891.)
isName :: String -> Bool
isName name = not (null bare) && length bare <= 253 && all fits (labels bare)
  where
    bare = if "." `isSuffixOf` name then init name else name
    fits label = not (null label) && length label <= 63 && all (\c -> isAscii c && not (isSpace c || isControl c)) label
    labels s = case break (== '.') s of
      (label, _ : rest) -> label : labels rest
      (label, []) -> [label]

-- | The names to ask for, in order, for a name, with @ndots@ and the search list of resolv.conf(5). With a dot at the
-- end, only itself. With as many dots as @ndots@, itself first; otherwise last. Without the dot at the end.
candidates :: Int -> [String] -> String -> [String]
candidates ndots domains name
  | "." `isSuffixOf` name = [init name]
  | length (filter (== '.') name) >= ndots = name : below
  | otherwise = below ++ [name]
  where
    below = [name ++ "." ++ domain | domain <- domains, not (null domain), domain /= "."]

-- | The addresses of names, as they are written in a file of hosts.
newtype Hosts = Hosts (Map.Map ByteString [ByteString])

-- | The contents of a file of hosts (hosts(5)). What is not understood is left out.
parseHosts :: ByteString -> Hosts
parseHosts contents = Hosts (Map.fromListWith (flip (<>)) (concatMap entry (B8.lines contents)))
  where
    entry line = case B8.words (B8.takeWhile (/= '#') line) of
      address : names -> [(B8.map toLower (undotted name), [address]) | name <- names]
      [] -> []
    undotted name = fromMaybe name (B8.stripSuffix (B8.pack ".") name)

-- | The addresses of a canonical name, in the order of the file.
lookupHosts :: String -> Hosts -> [String]
lookupHosts name (Hosts found) = map B8.unpack (Map.findWithDefault [] (B8.pack bare) found)
  where
    bare = if "." `isSuffixOf` name then init name else name
