-- |
-- The programs of the tutorial in "Weft.Hybrid", word for word, and that they work.
module Spec.Tutorial
  ( tests,
  )
where

import Control.Monad (forever)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as C
import qualified Data.Map as Map
import Support
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Hybrid
import qualified Weft.Socket as Weft

server :: Socket -> Hybrid ()
server listener = forever $ do
  (sock, _peer) <- accept listener
  fork (client sock `finally` close sock)

client :: Socket -> Hybrid ()
client sock = do
  bytes <- recv sock 4096
  if B.null bytes then pure () else sendAll sock bytes >> client sock

patient :: Socket -> Hybrid ()
patient sock = do
  deadline <- deadlineIn (seconds 60)
  bytes <- recv (withDeadline deadline sock) 4096
  if B.null bytes then pure () else sendAll sock bytes >> patient sock

type Room = MVar (Int, Map.Map Int (Channel B.ByteString))

chat :: Socket -> Hybrid ()
chat listener = do
  room <- newMVar (0, Map.empty)
  forever $ do
    (sock, _peer) <- accept listener
    fork (guest room sock `finally` close sock)

guest :: Room -> Socket -> Hybrid ()
guest room sock = bracket enter leave (const listen)
  where
    enter = do
      inbox <- newChannel
      me <- modifyMVar room (\(n, others) -> pure ((n + 1, Map.insert n inbox others), n))
      speaker <- forkThread (forever (readChannel inbox >>= sendAll sock))
      pure (me, speaker)
    leave (me, speaker) = do
      killThread speaker
      modifyMVar_ room (\(n, others) -> pure (n, Map.delete me others))
    listen = do
      bytes <- recv sock 4096
      if B.null bytes then pure () else say bytes >> listen
    say bytes = do
      (_, everybody) <- readMVar room
      mapM_ (`writeChannel` bytes) everybody

tests :: IO Scheduler -> TestTree
tests scheduler =
  testGroup
    "tutorial"
    [ testCase "the server of figure 4" . finishes "server" $ talk server,
      testCase "with patience" . finishes "patient" . talk $ \l -> forever (accept l >>= \(c, _) -> fork (patient c `finally` close c)),
      testCase "the chat" . finishes "chat" $ do
        s <- scheduler
        runIn s $ do
          (listener, addr) <- listening
          t <- forkThread (chat listener)
          a <- connectTo addr
          -- One has entered when it has heard itself.
          sendAll a (C.pack "A") >> expect a "A"
          b <- connectTo addr
          sendAll b (C.pack "B") >> expect b "B" >> expect a "B"
          sendAll a (C.pack "hello") >> expect b "hello" >> expect a "hello"
          close a
          sendAll b (C.pack "alone") >> expect b "alone"
          close b
          killThread t
          close listener
    ]
  where
    talk program = do
      s <- scheduler
      runIn s $ do
        (listener, addr) <- listening
        t <- forkThread (program listener)
        c <- connectTo addr
        sendAll c (C.pack "hello") >> expect c "hello"
        close c
        killThread t
        close listener
    expect sock text = go (length text) [] >>= \got -> nonBlocking (B.concat got @?= C.pack text)
      where
        go 0 acc = pure (reverse acc)
        go n acc = recv sock n >>= \x -> if B.null x then pure (reverse acc) else go (n - B.length x) (x : acc)

listening :: Hybrid (Socket, SockAddr)
listening = do
  l <- nonBlocking $ do
    l <- Weft.socket Weft.AF_INET Weft.Stream Weft.defaultProtocol
    Weft.bind l (Weft.SockAddrInet 0 (Weft.tupleToHostAddress (127, 0, 0, 1)))
    l <$ Weft.listen l 1024
  addr <- nonBlocking (Weft.getSocketName l)
  l' <- fromSocket l
  pure (l', addr)
