{-# LANGUAGE OverloadedStrings #-}

-- | Random sequences of a server's frames, requests and pauses at a client's connection: invariants hold, memory is
-- bounded, no more is sent than the server has allowed, and the segments in which bytes arrive make no difference.
module Spec.ClientRandom
  ( tests,
  )
where

import Bytes (block, content, end, headers, ping, settings, trailers, update)
import Client
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Foldable (foldlM)
import qualified Data.IntMap.Strict as IntMap
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.QuickCheck
import Weft.Http2.Client
import Weft.Http2.Client.Types (Core (..))
import Weft.Http2.Core (Frame (..))
import Weft.Http2.Frame
import Weft.Http2.Pieces (piecesCount, piecesSize)

tests :: IO TestTree
tests = do
  count <- maybe 10000 read <$> lookupEnv "WEFT_HTTP2_SEQUENCES"
  pure . localOption (QuickCheckTests count) $
    testGroup
      "a client's connection, random sequences"
      [ testProperty "it is sound and bounded, and keeps to what the server allows" $
          forAllShrink events shrinkEvents (either (`counterexample` False) (const (property True)) . foldlM modelled (Model begun IntMap.empty 65535 65535 B.empty)),
        testProperty "the segments in which bytes arrive make no difference" $
          forAllShrink ((,) <$> events <*> vectorOf 23 (choose (1, 40))) (\(es, cuts) -> [(es', cuts) | es' <- shrinkEvents es]) $ \(es, cuts) ->
            outputs (foldl (flip happen) begun es) === outputs (fst (foldl happenCut (begun, cycle cuts) es))
      ]
  where
    outputs run = (runActions run, runFrames run)
    shrinkEvents = shrinkList (const [])

-- | What happens to a connection. 'Read' reads what a stream has got, so far.
data Event
  = FromServer ByteString
  | Ask Bool
  | FromOwner Input
  | Flush Int
  | Pass Int
  deriving (Show)

happen :: Event -> Run -> Run
happen event = case event of
  FromServer bytes -> hear bytes
  -- Sent before the server is heard again, so that it knows the stream.
  Ask final -> flushAtMost 0 . if final then get else post
  FromOwner input -> give input
  Flush most -> flushAtMost most
  Pass ms -> later ms

-- | The same, with the server's bytes cut into pieces of the given lengths.
happenCut :: (Run, [Int]) -> Event -> (Run, [Int])
happenCut (run, cuts) event = case event of
  FromServer bytes -> go run cuts bytes
  _ -> (happen event run, cuts)
  where
    go r (k : ks) bytes
      | B.length bytes > k = go (hear (B.take k bytes) r) ks (B.drop k bytes)
    go r ks bytes = (hear bytes r, drop 1 ks)

-- Generators -------------------------------------------------------------------------

-- | Some servers keep the rules as a rule, others break them in each third frame.
events :: Gen [Event]
events = do
  wild <- frequency [(3, pure False), (1, pure True)]
  n <- choose (5, 60)
  go wild (1 :: Int) (n :: Int)
  where
    go _ _ 0 = pure []
    go wild next n = do
      (event, next') <-
        frequency
          [ (4, (\final -> (Ask final, next + 2)) <$> arbitrary),
            (8, same (FromServer <$> (stream >>= frames wild))),
            (4, same (FromOwner <$> (stream >>= inputs))),
            (3, same (Flush <$> elements [0, 1, 1000, 20000, 1000000])),
            (1, same (Pass <$> elements [0, 1, 100, 6000]))
          ]
      (event :) <$> go wild next' (n - 1)
      where
        same gen = flip (,) next <$> gen
        stream = frequency [(9, (\i -> 2 * i + 1) <$> choose (0, max 0 (next `div` 2 - 1))), (if wild then 1 else 0, choose (0, 12))]

frames :: Bool -> Int -> Gen ByteString
frames wild n =
  frequency
    [ (6, pure (headers n False [(":status", "200")])),
      (2, pure (headers n True [(":status", "200")])),
      (1, pure (headers n False [(":status", "103")])),
      (1, pure (headers n False [(":status", "200"), ("content-length", "100")])),
      (6, content n <$> body),
      (2, end n <$> body),
      (1, pure (trailers n)),
      (1, resetBy <$> elements [NoError, RefusedStream, InternalError] <*> pure n),
      (3, update n <$> choose (1, 70000)),
      (3, update 0 <$> choose (1, 70000)),
      (1, (\by -> settings [(4, by)]) <$> elements [0, 1, 1000, 65535, 100000]),
      (1, settings <$> elements [[], [(1, 0)], [(1, 0), (1, 4096)], [(5, 20000)], [(3, 1)], [(3, 1000)]]),
      (1, pure (ping "12345678")),
      (1, frame typeData flagPadded n . B.cons 3 <$> body),
      (1, pure (frame typeHeaders 0 n (B.take 4 (block ok)) <> frame typeContinuation flagEndHeaders n (B.drop 4 (block ok)))),
      (if wild then 1 else 0, goAway <$> elements [n, 2147483647] <*> pure NoError),
      (if wild then 4 else 0, broken)
    ]
  where
    ok = [(":status", "200")]
    body = (`B.replicate` 7) <$> frequency [(3, choose (0, 300)), (1, choose (0, 16384))]
    broken =
      oneof
        [ B.pack <$> vector 9,
          frame <$> choose (0, 20) <*> arbitrary <*> pure n <*> (B.pack <$> (choose (0, 12) >>= vector)),
          pure (update n 2147483647),
          pure (frame typeHeaders 5 n "!"),
          pure (headers n True [("Bad", "x")]),
          pure (settings [(2, 7)]),
          pure (pushPromise n)
        ]

inputs :: Int -> Gen Input
inputs n =
  frequency
    [ (5, Offer n <$> frequency [(2, choose (1, 3000)), (1, choose (1, 200000))]),
      (3, pure (Finish n [])),
      (1, pure (Finish n [("x", "y")])),
      -- The model consumes what there is, up to that.
      (5, Consume n <$> frequency [(2, choose (1, 300)), (1, choose (1, 200000))]),
      (2, pure (GiveUp n))
    ]

-- The model --------------------------------------------------------------------------

-- | A connection; what is known of its streams; the server's window for the connection, and the first one of a stream;
-- what it has sent of a frame.
data Model = Model Run (IntMap.IntMap Known) Int Int ByteString

-- | What the server allows, what is unread of the response, and how far both are.
data Known = Known
  { knownWindow :: Int,
    knownUnread :: Int,
    knownHead :: Bool,
    knownOver :: Bool,
    knownSent :: Bool,
    knownLost :: Bool
  }

-- | One event, and all that comes of it; the reason if something is wrong.
modelled :: Model -> Event -> Either String Model
modelled (Model run known whole initial rest) event0 = do
  let event = case event0 of
        FromOwner (Consume n most) -> FromOwner (Consume n (min most (maybe 0 knownUnread (IntMap.lookup n known))))
        _ -> event0
      run' = happen event run {runActions = [], runFrames = []}
      core = runCore run'
      (known1, whole1, initial1, rest1) = case event of
        FromServer bytes -> allowed (known, whole, initial, rest <> bytes)
        FromOwner (Consume n size) -> (IntMap.adjust (\k -> k {knownUnread = knownUnread k - size}) n known, whole, initial, rest)
        _ -> (known, whole, initial, rest)
  unless (isSound core) (Left "not sound")
  when (piecesSize (corePieces core) > 16393 || piecesCount (corePieces core) > 16393) (Left "too many bytes are kept")
  when (coreQueued core > 4000 || length (coreQueue core) > 4001) (Left "too many frames are queued")
  when (coreOpen core > 100) (Left "too many streams")
  known2 <- foldlM acted known1 (runActions run')
  (known3, whole2) <- foldlM (sent initial1) (known2, whole1) (runFrames run')
  when (sum (map knownUnread (IntMap.elems known3)) > 26214400 + 16777216) (Left "too many bytes are unread")
  pure (Model run' known3 whole2 initial1 rest1)

-- | What the server allows by the frames that it has sent.
allowed :: (IntMap.IntMap Known, Int, Int, ByteString) -> (IntMap.IntMap Known, Int, Int, ByteString)
allowed model@(known, whole, initial, bytes) = case parseFrameHeader bytes of
  Just header
    | B.length bytes >= 9 + frameLength header ->
      let payload = B.take (frameLength header) (B.drop 9 bytes)
          rest = B.drop (9 + frameLength header) bytes
          n = frameStream header
          by = fromIntegral (word32 payload) `mod` 2147483648
          firsts = if frameType header == typeSettings && not (hasFlag flagAck header) then [fromIntegral value | Just parameters <- [parseSettings payload], (4, value) <- parameters] else []
          initial' = last (initial : firsts)
       in allowed $ case () of
            _
              | frameType header == typeWindowUpdate && frameLength header == 4 ->
                if n == 0 then (known, whole + by, initial, rest) else (IntMap.adjust (\k -> k {knownWindow = knownWindow k + by}) n known, whole, initial, rest)
              | otherwise -> (IntMap.map (\k -> k {knownWindow = knownWindow k + initial' - initial}) known, whole, initial', rest)
  _ -> model

acted :: IntMap.IntMap Known -> Action -> Either String (IntMap.IntMap Known)
acted known action = case action of
  Answer n _ -> on n $ \k -> if knownHead k then Left "two heads" else Right k {knownHead = True}
  Interim n _ -> on n $ \k -> if knownHead k then Left "an interim response behind the head" else Right k
  Deliver n bytes
    | B.null bytes -> Left "an empty delivery"
    | otherwise -> on n $ \k -> if knownHead k then Right k {knownUnread = knownUnread k + B.length bytes} else Left "a body without a head"
  DeliverEnd n _ -> on n $ \k -> if knownHead k then Right k {knownOver = True} else Left "an end without a head"
  -- It may be that of a response that is complete. An end of the request may be queued.
  Lost n _ -> Right (IntMap.adjust (\k -> k {knownOver = True, knownLost = True}) n known)
  _ -> Right known
  where
    -- A stream may be answered before its request was sent, by servers that break the rules.
    on n f = do
      let k = IntMap.findWithDefault (Known 0 0 False False False False) n known
      when (knownOver k) (Left ("something for a stream that is over: " <> show n))
      k' <- f k
      Right (IntMap.insert n k' known)

sent :: Int -> (IntMap.IntMap Known, Int) -> Frame -> Either String (IntMap.IntMap Known, Int)
sent initial (known, whole) f = case f of
  SendHeaders n ((":method", _) : _) final -> case IntMap.lookup n known of
    -- What was said of it so far began with no window.
    Just k -> Right (IntMap.insert n k {knownWindow = knownWindow k + initial, knownSent = final || knownSent k} known, whole)
    Nothing -> Right (IntMap.insert n (Known initial 0 False False final False) known, whole)
  SendHeaders n _ True -> closing n
  SendHeaders {} -> Left "trailers that do not end"
  SendData n size final -> case IntMap.lookup n known of
    Just k
      | knownSent k -> Left ("data behind the end of " <> show n)
      | knownLost k && size > 0 -> Left ("data of a stream that is lost: " <> show n)
      | size > whole || (size > 0 && size > knownWindow k) -> Left ("more data than the windows allow on " <> show n)
      | size > 16384 -> Left "a frame that is too large"
      | otherwise -> Right (IntMap.insert n k {knownWindow = knownWindow k - size, knownSent = final} known, whole - size)
    Nothing -> Left ("data of a stream without a head: " <> show n)
  SendReset n _ -> Right (IntMap.adjust (\k -> k {knownSent = True, knownOver = True}) n known, whole)
  SendWindow n by
    | by <= 0 -> Left ("a window update of " <> show (n, by))
    | otherwise -> Right (known, whole)
  _ -> Right (known, whole)
  where
    closing n = case IntMap.lookup n known of
      Just k | not (knownSent k) -> Right (IntMap.insert n k {knownSent = True} known, whole)
      _ -> Left ("a second end of " <> show n)
