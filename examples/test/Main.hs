-- |
-- Each example is started on a port that the system chooses, and talked to.
module Main (main) where

import Control.Exception (bracket)
import qualified Data.ByteString.Char8 as B
import Network.Socket
import Network.Socket.ByteString (recv, sendAll)
import System.Directory (doesFileExist)
import System.IO
import System.Process
import System.Timeout (timeout)
import Test.Tasty
import Test.Tasty.HUnit

main :: IO ()
main =
  defaultMain . localOption (mkTimeout 20000000) . testGroup "examples" $
    [ talk "pong" (B.pack "GET / HTTP/1.1\r\nHost: x\r\n\r\n") (B.isSuffixOf (B.pack "Pong!")),
      talk "file" (B.pack "GET / HTTP/1.1\r\nHost: x\r\n\r\n") (\answer -> B.length (body answer) == 4332),
      talk "SimpleServer" (B.pack "0123456789abcdef") (== B.pack "sixteen bytes...\n"),
      talk "echo" (B.pack "hello") (== B.pack "hello"),
      talk "events" (B.pack "hello") (== B.pack "hello")
    ]
  where
    body = B.drop 4 . snd . B.breakSubstring (B.pack "\r\n\r\n")

-- | Twenty clients, one after the other; each answer has to satisfy the predicate
-- once it is complete.
talk :: String -> B.ByteString -> (B.ByteString -> Bool) -> TestTree
talk name request complete = testCase name . running name $ \port ->
  mapM_ (const (client port)) [1 .. 20 :: Int]
  where
    client port = bracket (socket AF_INET Stream defaultProtocol) close $ \s -> do
      connect s (SockAddrInet port (tupleToHostAddress (127, 0, 0, 1)))
      sendAll s request
      answer <- timeout 5000000 (collect s B.empty)
      assertBool ("answer: " <> show answer) (maybe False complete answer)
    collect s got
      | complete got = pure got
      | otherwise = do
        more <- recv s 65536
        if B.null more then pure got else collect s (got <> more)

running :: String -> (PortNumber -> IO a) -> IO a
running name act = bracket start stop $ \(_, out, _, _) -> do
  h <- maybe (fail "no output") pure out
  line <- timeout 10000000 (hGetLine h)
  let digits = reverse (takeWhile (/= ':') (reverse (maybe "" id line)))
  case reads digits of
    [(n, "")] -> act (fromInteger n)
    _ -> fail (name <> " said " <> show line)
  where
    start = do
      -- Where `make build` puts them; elsewhere they are on the PATH.
      built <- doesFileExist ("../bin/examples/" <> name)
      let program = if built then "../bin/examples/" <> name else name
      (i, o, e, p) <- createProcess (proc program ["0", "+RTS", "-N2"]) {std_out = CreatePipe}
      pure (i, o, e, p)
    stop (_, out, _, p) = do
      terminateProcess p
      _ <- waitForProcess p
      mapM_ hClose out
