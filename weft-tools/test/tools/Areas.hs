-- | The sizes of the allocation areas of the program @weft@, which it chooses by what collections cost.
module Areas (tests) where

import Control.Concurrent (threadDelay)
import Control.Concurrent.Async (forConcurrently_, race_)
import Control.Monad
import qualified Data.ByteString.Char8 as B
import Data.Word (Word32, Word64)
import Network.Socket.ByteString (sendAll)
import System.FilePath ((</>))
import Test.Tasty
import Test.Tasty.HUnit hiding (testCase)
import Weft.Test.Program
import Weft.Test.Skip (testCase)

foreign import ccall unsafe "weft_area_most" areaMost :: Word64 -> Word32 -> Word32

foreign import ccall unsafe "weft_area_after"
  areaAfter :: Word32 -> Word32 -> Word64 -> Word64 -> Word64 -> Word64 -> Word32

tests :: FilePath -> TestTree
tests program = testGroup "allocation areas" [deciding, growing program]

deciding :: TestTree
deciding =
  testGroup
    "the next size"
    [ testCase "collections that take more than a 64th of the CPU time double it, up to the most" $ do
        map toMib (take 5 (iterate (next 1 63) (mib 2))) @?= [2, 4, 8, 16, 16]
        map toMib (take 3 (iterate (next 1 64) (mib 4))) @?= [4, 4, 4],
      testCase "if the old generation was not collected for half a minute it stays, for five minutes it is halved" $
        [map toMib (take 5 (iterate (next elapsed 2) (mib 16))) | elapsed <- [29, 31, 299, 301]]
          @?= [[16, 16, 16, 16, 16], [16, 16, 16, 16, 16], [16, 16, 16, 16, 16], [16, 8, 4, 2, 2]],
      testCase "after half a minute it is not doubled" $ map (\elapsed -> toMib (next elapsed 2 (mib 4))) [29, 31] @?= [8, 4],
      testCase "if a fourth of what was copied lives on, or nothing was copied, it is not doubled" $
        [toMib (areaAfter (mib 2) (mib 16) second 2 copied grown) | (copied, grown) <- [(4000, 999), (4000, 1000), (4000, 4000), (0, 0)]]
          @?= [4, 2, 2, 2],
      testCase "areas that may have less than they have, as there are more capabilities now" $
        toMib (areaAfter (mib 16) (mib 4) second 100 4000 0) @?= 4,
      testCase "all together have no more than the third-level cache, or 2 MiB each, and one 16 MiB" $
        [map (toMib . areaMost (cache * 1048576)) [1, 2, 4, 64] | cache <- [0, 6, 32, 256]]
          @?= [[16, 8, 4, 2], [6, 3, 2, 2], [16, 16, 8, 2], [16, 16, 16, 4]]
    ]
  where
    second = 1000000000
    next elapsed times area = areaAfter area (mib 16) (elapsed * second) times 4000 0
    -- In blocks of 4 KiB.
    mib n = n * 256
    toMib n = fromIntegral n / (256 :: Double)

growing :: FilePath -> TestTree
growing program =
  testGroup
    "weft serve"
    [ testCase "with many clients that connect for a few requests they grow" . scratchFolder "areas" $ \folder ->
        serving folder [] $ \port collections ->
          race_ (asking port (forever :: IO () -> IO ())) $
            let look = do
                  found <- collections
                  unless (any (> 3 * 1048576) found) (threadDelay 50000 >> look)
             in look,
      testCase "+RTS -A: they keep that size" . scratchFolder "areas" $ \folder ->
        serving folder ["-A1m"] $ \port collections -> do
          asking port (replicateM_ 10)
          found <- collections
          assertBool (show found) (length found > 16 && maximum found < 2000000)
    ]
  where
    -- Each connection lives through several collections, so that what it held ends in the old generation.
    asking port often = forConcurrently_ [1 .. 128 :: Int] $ \_ ->
      often . connected port $ \s -> do
        replicateM_ 20 $ do
          sendAll s (request "GET" "/" "keep-alive")
          answer <- recvUntil s (B.isSuffixOf (B.pack "<p>Hello"))
          status answer @?= 200
    -- The action gets what was allocated before each collection so far, in bytes.
    serving folder options act = do
      B.writeFile (folder </> "index.html") (B.pack "<p>Hello")
      let statistics = folder </> "statistics.txt"
      weft program [] (["serve", folder, "--port", "0", "--cores", "1", "+RTS", "-S" <> statistics] <> options <> ["-RTS"]) $ \p -> do
        port <- portOf p
        act port (allocations <$> B.readFile statistics)
    allocations text = [bytes | line <- B.lines text, Just (bytes, _) <- [B.readInt (B.dropWhile (== ' ') line)]]
