-- | Clients on raw sockets (@rude_client.py@). After each, the server has as many descriptors as before, runs no
-- application and has no connection; those that leave early or stay too long come twice, and the second time costs no
-- memory.
module Spec.Rude
  ( tests,
  )
where

import Control.Monad (void, when)
import Data.IORef
import Data.List (isPrefixOf)
import Process
import System.FilePath ((</>))
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Skip (testCase)

tests :: TestTree
tests =
  testGroup
    "raw sockets"
    [ says "100 requests in one segment, read slowly" "pipelined_slow" "100 slowly",
      says "20,000 pipelined requests" "pipelined_many" "20000",
      says "one byte at a time" "byte_by_byte" "12 5 hello",
      says "the sending side shut down behind a request" "half_closed" "1 5 1 1 1 1 1 1",
      says "the sending side shut down within a request" "half_requests" "- - - - -",
      says "slow, honest uploads" "slow_upload" "25200 25200 True",
      says "slow, honest downloads" "slow_download" "6000000 6000000 6000000",
      says "very slow, honest downloads" "very_slow_download" "whole whole",
      leaves "gone in the middle of answers" "abort_responses" "600",
      leaves "gone in the middle of uploads" "abort_uploads" "600",
      leaves "gone in the middle of heads" "abort_heads" "2000",
      leaves "nothing is read" "nothing_read" "50 100",
      says "upgrades that the server does not offer" "upgrades_refused" "200 200 400 0",
      leaves "silence" "silent" "20 300"
    ]
  where
    says = asked False
    leaves = asked True
    asked again what name expected = testCase what . withFolder $ \folder -> do
      let file = folder </> "file"
      writeFile file (replicate 6000000 'x')
      withServer file 1 $ \server -> do
        -- Both capabilities have served, and what is made once, for as many connections, is there.
        mapM_ (\_ -> heldBy server) [1 .. 4 :: Int]
        when again (void (python "rude_client.py" [show (serverPort server), name]))
        eventually "only the one that asks is left" ((\(open, running, _) -> (open, running) == (1, 1)) <$> heldBy server)
        descriptors <- descriptorsOf server
        (_, _, live) <- heldBy server
        said <- python "rude_client.py" [show (serverPort server), name]
        unwords (words said) @?= expected
        eventually "only the one that asks is left" ((\(open, running, _) -> (open, running) == (1, 1)) <$> heldBy server)
        eventually "as many descriptors as before" ((<= descriptors) <$> descriptorsOf server)
        when again (eventually "no more memory than before" ((\(_, _, live') -> live' <= live + 1048576) <$> heldBy server))
        threw <- filter ("exception" `isPrefixOf`) <$> readIORef (serverSaid server)
        threw @?= []
