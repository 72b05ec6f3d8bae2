-- |
-- @weft@ on a TCP/IP stack of its own, in a network namespace that each test makes: served to curl and to a browser, fetching from
-- the kernel, its table of connections, and packet logs replayed. Needs root and @\/dev\/net\/tun@.
module Userland (tests) where

import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.List (isInfixOf, isPrefixOf)
import Program
import System.Directory
import System.Environment (getEnvironment)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.Posix.User (getEffectiveUserID)
import System.Process
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (needProgram, skipUnless, testCase)

tests :: FilePath -> FilePath -> TestTree
tests program folder =
  testGroup
    "userland TCP"
    [ testGroup "get" (fetching program folder),
      testCase "serve --stack: curl gets every byte, of several files at once" $ do
        out <- inNamespace program folder [] "serve; for i in 1 2 3 4; do curl -s -m 30 http://10.9.0.2/large -o $T/$i & J=\"$J $!\"; done; wait $J; for i in 1 2 3 4; do cmp $T/$i $SITE/large && echo same; done"
        length (filter (== "same") (lines out)) @?= 4,
      testCase "serve --stack: a browser shows a page with its parts" $ do
        needProgram "chromium"
        createDirectoryIfMissing True (folder </> "browsed")
        B.writeFile (folder </> "browsed" </> "index.html") (B.pack "<html><link rel=stylesheet href=a.css><body><p id=p>not yet</p><script src=a.js></script></body></html>")
        B.writeFile (folder </> "browsed" </> "a.css") (B.pack "p { color: rgb(1, 2, 3) }")
        B.writeFile (folder </> "browsed" </> "a.js") (B.pack "p.textContent = 'styled ' + getComputedStyle(p).color")
        out <- inNamespace program folder [] "serve; timeout 50 chromium --headless --no-sandbox --disable-gpu --user-data-dir=$T/profile --dump-dom http://10.9.0.2/browsed/ 2>/dev/null"
        contains out "styled rgb(1, 2, 3)",
      testCase "the table of connections, and figures on /metrics" $ do
        out <- inNamespace program folder [] "serve --metrics everybody; curl -s --limit-rate 50K http://10.9.0.2/large >/dev/null & sleep 1; $W tcp connections http://10.9.0.2 --rows 5; curl -s http://10.9.0.2/metrics | grep ^weft_tcp; kill %curl 2>/dev/null || true"
        contains out "ESTABLISHED"
        mapM_ (contains out) ["state", "rtt ms", "cwnd", "10.9.0.2:80", "10.9.0.1:", "weft_tcp_connections 3", "weft_tcp_accepted_total 4"]
        -- The download has most bytes, so it is the first row.
        case [words l | l <- lines out, "ESTABLISHED" `isPrefixOf` l] of
          row : _ | [(sent, "")] <- reads (last (init row)) -> assertBool out (sent > (50000 :: Int))
          _ -> assertFailure out,
      testCase "the table is seen by those only who may see /metrics, and is nowhere without a stack" $ do
        out <- inNamespace program folder [] "serve; $W tcp connections http://10.9.0.2 || echo status $?"
        mapM_ (contains out) ["status 404", "status 1"]
        kernels <- weft program [] ["serve", folder, "--port", "0"] (portOf >=> \port -> outcome program [] ["tcp", "connections", "http://127.0.0.1:" <> show port])
        fst kernels @?= ExitFailure 1,
      testGroup "replay" (replaying program folder)
    ]

fetching :: FilePath -> FilePath -> [TestTree]
fetching program folder =
  [ testCase "from a kernel's server, over a TUN device, every byte" $ do
      out <- inNamespace program folder ["python3"] "pages; $W get --stack tun:weft0,10.9.0.2 http://10.9.0.1:8000/large -o $T/got; cmp $T/got $SITE/large && echo same; $W get --stack tun:weft0,10.9.0.2 http://10.9.0.1:8000/inner/a.txt; ls $T"
      mapM_ (contains out) ["same", "a text"]
      assertBool out (not (".part" `isInfixOf` out)),
    testCase "no reset is sent or received" $ do
      out <-
        inNamespace program folder ["python3"] . concat $
          [ "resets() { awk '/^Tcp: [0-9]/ {print $9 + $15 + $16}' /proc/net/snmp; }; pages; B=$(resets);",
            "for i in 1 2 3 4 5 6 7 8; do $W get --stack tun:weft0,10.9.0.2 --capture $T/$i.pcap http://10.9.0.1:8000/inner/a.txt; echo; done;",
            "echo after: $(($(resets) - B)); for i in 1 2 3 4 5 6 7 8; do $W tcp replay --side 10.9.0.2 $T/$i.pcap; done"
          ]
      length (filter (== "a text") (lines out)) @?= 8
      contains out "after: 0"
      -- Flags are the third word of a packet's line.
      [l | l <- lines out, [_, way, found] <- [take 3 (words l)], way `elem` ["<", ">"], 'R' `elem` found] @?= [],
    testCase "IPv6" $ do
      out <- inNamespace program folder ["python3"] "ip -6 addr add fd09::1/64 dev weft0 nodad; pages6; $W get --stack tun:weft0,fd09::2 'http://[fd09::1]:8000/inner/a.txt'"
      contains out "a text",
    testCase "over the kernel's network" . weft program [] ["serve", folder, "--port", "0"] $ \p -> do
      port <- portOf p
      result <- outcome program [] ["get", "http://localhost:" <> show port <> "/inner/a.txt"]
      result @?= (ExitSuccess, "a text"),
    testCase "status 404 is exit status 3, and the body is there" . weft program [] ["serve", folder, "--port", "0"] $ \p -> do
      port <- portOf p
      (code, out) <- outcome program [] ["get", "http://127.0.0.1:" <> show port <> "/nothing"]
      assertEqual out (ExitFailure 3) code
      contains out "status is 404",
    testCase "errors are sentences" $ do
      out <-
        inNamespace program folder [] . concat $
          [ "S='--stack tun:weft0,10.9.0.2'; $W get $S http://10.9.0.1:8001/ || echo status $?;",
            "$W get $S --timeout 1 http://10.9.0.77/ || echo status $?;",
            "$W get $S 'http://[::1]/' || echo status $?;",
            "$W get --stack tun:lo,10.9.0.2 http://10.9.0.1/ || echo status $?;",
            "$W get http://127.0.0.1:1/ -o $T/none || echo status $?; ls $T;"
          ]
      mapM_ (contains out) ["cannot connect to 10.9.0.1 port 8001: 10.9.0.1:8001 Connection refused", "within 1.0 s", "no address of the IP version that the stack has", "the TUN device lo cannot be used", "cannot connect to 127.0.0.1 port 1"]
      length (filter (== "status 1") (lines out)) @?= 5
      assertBool out (not ("none" `isInfixOf` out)),
    testGroup
      "arguments"
      [ testCase name $ do
          (code, out) <- outcome program [] ("get" : arguments)
          code @?= ExitFailure 2
          contains out part
        | (name, arguments, part) <-
            [ ("no URL", ["ftp://localhost/"], "not a URL"),
              ("a space in a URL", ["http://localhost/a b"], "printable ASCII"),
              ("a device that cannot be read", ["--stack", "eth0", "http://localhost/"], "tun:NAME,ADDRESS"),
              ("a log of the kernel's packets", ["--capture", "x.pcap", "http://127.0.0.1:1/"], "--capture needs --stack")
            ]
      ]
  ]

replaying :: FilePath -> FilePath -> [TestTree]
replaying program folder =
  [ testCase "a log that weft get wrote" $ do
      out <- inNamespace program folder ["python3"] "pages; $W get --stack tun:weft0,10.9.0.2 --capture $T/a.pcap http://10.9.0.1:8000/large -o $T/got; $W tcp replay $T/a.pcap --side 10.9.0.2; $W tcp replay $T/a.pcap --side 10.9.0.1 --summary"
      mapM_ (contains out) ["SYN-SENT", "ESTABLISHED", "core: S", "received=" <> show (6000000 + headSize out), "sent before the core would have: 0"]
      assertBool out (not ("BROKEN" `isInfixOf` out)),
    testCase "a log of two kernels, by tshark" $ do
      needProgram "tshark"
      out <-
        inNamespace program folder ["python3"] . concat $
          [ "pages; timeout 50 tshark -B 64 -i lo -F pcap -w $T/k.pcap >/dev/null 2>$T/said & S=$!; until grep -q Capturing $T/said; do sleep 0.1; done; sleep 0.5;",
            "curl -s http://10.9.0.1:8000/large -o $T/got; cmp $T/got $SITE/large; sleep 1; kill -INT $S; wait $S || true;",
            "$W tcp replay $T/k.pcap --summary; $W tcp replay $T/k.pcap | tail -40; head -c 40 $T/k.pcap > $T/short; $W tcp replay $T/short || echo status $?; $W tcp replay $SITE/large || echo status $?"
          ]
      contains out ("sent=" <> show (6000000 + headSize out))
      assertBool out (not ("BROKEN" `isInfixOf` out))
      mapM_ (contains out) ["has no TCP segments", "is no pcap file"]
      length (filter (== "status 1") (lines out)) @?= 2
  ]
  where
    -- What the head of the response takes: all that is beyond the file, less the FIN.
    headSize out = case [n - 6000000 | w <- words out, Just rest <- [afterEqual w], [(n, "")] <- [reads rest], n >= 6000000, n < (6001000 :: Int)] of
      n : _ -> n
      [] -> -1
    afterEqual w = case break (== '=') w of
      (_, '=' : rest) -> Just rest
      _ -> Nothing

contains :: String -> String -> Assertion
contains out part = assertBool (part <> " in:\n" <> out) (part `isInfixOf` out)

-- | Run a script in a network namespace with a TUN device, @weft0@, whose kernel's end is 10.9.0.1. Its variables: @W@ the program,
-- @SITE@ the folder, @T@ a folder of its own. @serve@ starts @weft serve@ on a stack at 10.9.0.2, @pages@ python's server at
-- 10.9.0.1. What it says on both outputs is returned; it fails if the script does.
inNamespace :: FilePath -> FilePath -> [String] -> String -> IO String
inNamespace program folder needs script = do
  uid <- getEffectiveUserID
  tun <- doesPathExist "/dev/net/tun"
  skipUnless "not root" (uid == 0)
  skipUnless "no /dev/net/tun" tun
  mapM_ needProgram (["unshare", "ip", "curl", "timeout", "bash"] <> needs)
  inherited <- getEnvironment
  (code, out, err) <- readCreateProcessWithExitCode (proc "timeout" ["100", "unshare", "-n", "--", "bash", "-e", "-c", prelude <> script]) {env = Just ([("W", program), ("SITE", folder)] <> inherited)} ""
  when (code /= ExitSuccess) $ assertFailure (show code <> ":\n" <> out <> err)
  pure (out <> err)
  where
    prelude =
      unlines
        [ "T=$(mktemp -d)",
          "trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf $T' EXIT",
          "ip link set lo up; ip tuntap add dev weft0 mode tun; ip addr add 10.9.0.1/24 dev weft0; ip link set weft0 up",
          "until_open() { for i in $(seq 100); do curl -s -o /dev/null $1 && return 0; sleep 0.1; done; return 1; }",
          "serve() { $W serve $SITE --stack tun:weft0,10.9.0.2 --port 80 \"$@\" >/dev/null & until_open http://10.9.0.2/inner/a.txt; }",
          "pages() { (cd $SITE && exec python3 -m http.server 8000 --bind 10.9.0.1 >/dev/null 2>&1) & until_open http://10.9.0.1:8000/; }",
          "pages6() { (cd $SITE && exec python3 -m http.server 8000 --bind fd09::1 >/dev/null 2>&1) & until_open 'http://[fd09::1]:8000/'; }"
        ]
