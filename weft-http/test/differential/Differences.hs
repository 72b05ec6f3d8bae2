-- |
-- Description : Intended differences between Weft and its peers
--
-- Each kind of request that Weft accepts and two peers refuse, or that Weft refuses and all peers accept, has a line
-- here with its reason, and one in @doc\/http.md@. Some of them show beside the peers that are always there, some only
-- beside all of them. The suite fails if a line is not needed any more.
module Differences
  ( Difference (..),
    Direction (..),
    differences,
  )
where

-- | Whether Weft accepts more or less than its peers.
data Direction = Laxer | Stricter
  deriving (Eq, Show)

-- | A kind of request, as in 'Requests.caseName'.
data Difference = Difference
  { differenceCase :: String,
    differenceDirection :: Direction,
    differenceReason :: String
  }

-- | All intended differences.
differences :: [Difference]
differences =
  map
    (\(name, reason) -> Difference name Laxer reason)
    [ ("chunk/extension-blanks", "RFC 9112, 7.1.1: blanks around the semicolon and the equals sign of an extension have to be parsed"),
      ("content-length/padded", "RFC 9110, 5.5: tabs around a field's value are optional white space"),
      ("host/absolute-percent", "RFC 3986, 3.2.2: a name may have percent-encoded octets"),
      ("transfer-encoding/padded", "RFC 9110, 5.5: blanks and tabs around a field's value are optional white space"),
      ("request-line/target-bad-percent", "RFC 9112, 3.2: the path is the application's to decode; the engine passes it on as it came"),
      ("request-line/version-1.2", "RFC 9110, 2.5: a request of a later minor version is processed as one of the highest minor version that is supported"),
      ("host/absolute-underscore", "RFC 3986, 3.2.2: a name may have underscores; RFC 9112, 3.2.2: it replaces the Host field's"),
      ("request-line/target-high", "RFC 9112, 3.2: as the path is passed on as it came, octets above 127 are the application's to refuse"),
      ("connection/upgrade-h2c", "RFC 9110, 7.8: an upgrade may be ignored; h2o makes it, Node ends the connection"),
      ("connection/upgrade-unknown", "RFC 9110, 7.8: an upgrade to an unknown protocol is ignored; h2o and Node end the connection"),
      ("request-line/method-lower-case", "RFC 9110, 9.1: a method is a case-sensitive token; which ones exist is the application's to say")
    ]
    ++ [ Difference "request-line/target-fragment" Stricter "RFC 9112, 3.2: a target has no fragment",
         Difference "line-end/lf-first" Stricter "RFC 9112, 2.2: the empty line that is ignored before a request is CRLF; LF alone ends no line"
       ]
    ++ map
      (\name -> Difference ("host/" <> name) Stricter "RFC 9112, 3.2: a Host that is not a uri-host with an optional port draws 400")
      [ "absolute-port-large",
        "at",
        "backslash",
        "bracket-angle",
        "bracket-open",
        "colons",
        "comma",
        "fragment",
        "high",
        "ipv6-bad",
        "port-large",
        "port-letters",
        "port-negative",
        "query",
        "quote"
      ]
