{-# LANGUAGE OverloadedStrings #-}

-- | Random sequences of frames, events and pauses: invariants hold, memory is bounded, a model of the client accepts
-- all that it is sent, and the segments in which bytes arrive make no difference.
module Spec.Random
  ( tests,
  )
where

import Bytes
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.Foldable (foldlM)
import qualified Data.IntMap.Strict as IntMap
import System.Environment (lookupEnv)
import Test.Tasty
import Test.Tasty.QuickCheck
import Weft.Http2.Core
import Weft.Http2.Core.Types (Core (..))
import Weft.Http2.Frame
import Weft.Http2.Pieces (piecesCount, piecesSize)

tests :: IO TestTree
tests = do
  count <- maybe 10000 read <$> lookupEnv "WEFT_HTTP2_SEQUENCES"
  pure . localOption (QuickCheckTests count) $
    testGroup
      "random sequences"
      [ testProperty "a connection is sound and bounded, and the client's model accepts what it gets" $
          forAllShrink events shrinkEvents (either (`counterexample` False) (const (property True)) . foldlM modelled (Model begun IntMap.empty 65535 65535 B.empty)),
        testProperty "the segments in which bytes arrive make no difference" $
          forAllShrink ((,) <$> events <*> vectorOf 23 (choose (1, 40))) (\(es, cuts) -> [(es', cuts) | es' <- shrinkEvents es]) $ \(es, cuts) ->
            outputs (foldl (flip happen) begun es) === outputs (fst (foldl happenCut (begun, cycle cuts) es))
      ]
  where
    outputs run = (runActions run, runFrames run)
    shrinkEvents = shrinkList (const [])

-- | What happens to a connection.
data Event
  = FromClient ByteString
  | FromApplication Input
  | Flush Int
  | Pass Int
  deriving (Show)

happen :: Event -> Run -> Run
happen event = case event of
  FromClient bytes -> send bytes
  FromApplication input -> give input
  Flush most -> flushAtMost most
  Pass ms -> later ms

-- | The same, with the client's bytes cut into pieces of the given lengths.
happenCut :: (Run, [Int]) -> Event -> (Run, [Int])
happenCut (run, cuts) event = case event of
  FromClient bytes -> go run cuts bytes
  _ -> (happen event run, cuts)
  where
    go r (k : ks) bytes
      | B.length bytes > k = go (send (B.take k bytes) r) ks (B.drop k bytes)
    go r ks bytes = (send bytes r, drop 1 ks)

-- Generators -------------------------------------------------------------------------

-- | Some clients keep the rules, others break them in each third frame.
events :: Gen [Event]
events = do
  wild <- frequency [(3, pure False), (1, pure True)]
  n <- choose (5, 60)
  go wild (1 :: Int) (n :: Int)
  where
    go _ _ 0 = pure []
    go wild next' n = do
      (event, next'') <- frequency [(4, begins), (4, same (client wild)), (6, same app), (3, same (Flush <$> elements [0, 1, 1000, 20000, 1000000])), (1, same (Pass <$> elements [0, 1, 100, 5000, 31000]))]
      (event :) <$> go wild next'' (n - 1)
      where
        same gen = flip (,) next' <$> gen
        begins = do
          bytes <- elements [get, post, (`postOf` 100), \i -> headers i True (request "GET" [("priority", "u=1, i")]), \i -> headers i False ((":protocol", "websocket") : request "CONNECT" [])]
          gap <- frequency [(9, pure 0), (1, pure 2)]
          pure (FromClient (bytes (next' + gap)), next' + gap + 2)
        stream = frequency [(9, (\i -> 2 * i + 1) <$> choose (0, next' `div` 2)), (if wild then 1 else 0, choose (0, 12))]
        client breaking = FromClient <$> (stream >>= frames breaking)
        app = FromApplication <$> (stream >>= inputs)

frames :: Bool -> Int -> Gen ByteString
frames wild n =
  frequency
    [ (6, content n <$> body),
      (3, end n <$> body),
      (2, pure (trailers n)),
      (2, pure (reset n)),
      (3, update n <$> choose (1, 70000)),
      (3, update 0 <$> choose (1, 70000)),
      (1, (\by -> settings [(4, by)]) <$> elements [0, 1, 1000, 65535, 100000]),
      (1, settings <$> elements [[], [(1, 0)], [(1, 0), (1, 4096)], [(5, 20000)]]),
      (1, pure (ping "12345678")),
      (1, pure (frame typePing flagAck 0 "weft end")),
      (1, priority n <$> elements ["u=0", "u=7, i", "?"]),
      (1, pure (frame typePriority 0 n (B.replicate 5 0))),
      (1, frame typeData flagPadded n . B.cons 3 <$> body),
      (1, pure (frame typeHeaders 1 n (B.take 9 (block (request "GET" []))) <> frame typeContinuation flagEndHeaders n (B.drop 9 (block (request "GET" []))))),
      (if wild then 4 else 0, broken)
    ]
  where
    body = (`B.replicate` 7) <$> frequency [(3, choose (0, 300)), (1, choose (0, 16384))]
    broken =
      oneof
        [ B.pack <$> vector 9,
          frame <$> choose (0, 20) <*> arbitrary <*> pure n <*> (B.pack <$> (choose (0, 12) >>= vector)),
          pure (update n 2147483647),
          pure (frame typeHeaders 5 n "!"),
          pure (headers n True [("Bad", "x")]),
          pure (settings [(2, 7)])
        ]

inputs :: Int -> Gen Input
inputs n =
  frequency
    [ (4, pure (Respond n [(":status", "200")])),
      (5, Offer n <$> frequency [(2, choose (1, 3000)), (1, choose (1, 200000))]),
      (3, pure (Finish n [])),
      (1, pure (Finish n [("x", "y")])),
      (4, Whole n [(":status", "200")] <$> frequency [(1, pure 0), (3, choose (1, 3000)), (1, choose (1, 200000))] <*> elements [[], [], [("x", "y")]]),
      (1, pure (Interim n [(":status", "103")])),
      (4, Consume n <$> frequency [(2, choose (1, 300)), (1, choose (1, 20000))]),
      (2, pure (Want n)),
      (1, pure (AwaitWindow n)),
      (1, pure (Abandon n InternalError)),
      (1, frequency [(1, pure BeginDrain), (3, pure Tick)])
    ]

-- The model --------------------------------------------------------------------------

-- | A connection; what the client knows of its streams; its window for the connection, and the first one of a stream;
-- what it has sent of a frame.
data Model = Model Run (IntMap.IntMap Known) Int Int ByteString

-- | What the client allows, what the application has offered, and how far the response and the request are.
data Known = Known
  { knownWindow :: Int,
    knownOffered :: Int,
    knownAnswer :: Answer,
    knownHead :: Bool,
    knownOver :: Bool,
    knownBodyOver :: Bool
  }

-- | What the application has done with its stream.
data Answer = None | Begun | Finished | Given
  deriving (Eq)

-- | One event, and all that comes of it; the reason if something is wrong.
modelled :: Model -> Event -> Either String Model
modelled (Model run known whole initial rest) event = do
  let run' = together (happen event run {runActions = [], runFrames = []})
      -- It is sent before the client is heard again: else the client's windows may be others by then.
      together = case event of
        FromApplication Whole {} -> happen (Flush 1000000)
        _ -> id
      core = runCore run'
      -- What the client has granted counts from when it has sent it.
      (known1, whole1, initial1, rest1) = case event of
        FromClient bytes -> allowed (known, whole, initial, rest <> bytes)
        FromApplication (Respond n _) -> (answering None Begun 0 n, whole, initial, rest)
        FromApplication (Offer n by) -> (answering Begun Begun by n, whole, initial, rest)
        FromApplication (Finish n _) -> (answering Begun Finished 0 n, whole, initial, rest)
        FromApplication (Whole n _ size _) -> (answering None Finished size n, whole, initial, rest)
        FromApplication (Abandon n _) -> (IntMap.adjust (\k -> k {knownAnswer = Given}) n known, whole, initial, rest)
        _ -> (known, whole, initial, rest)
      answering from to by n = IntMap.adjust (\k -> if knownAnswer k == from then k {knownAnswer = to, knownOffered = knownOffered k + by} else k) n known
  unless (isSound core) (Left "not sound")
  when (piecesSize (corePieces core) > 16393 || piecesCount (corePieces core) > 16393) (Left "too many bytes are kept")
  when (length (coreQueue core) > 5000) (Left "too many frames are queued")
  when (openStreams core > 100) (Left "too many streams")
  known2 <- foldlM (acted initial1) known1 (runActions run')
  (known3, whole2) <- foldlM sent (known2, whole1) (runFrames run')
  let complete k = knownAnswer k == Finished && knownOffered k == 0 && not (knownOver k)
      ends = when (not (isEnded core) && any complete known3) (Left "an end that does not come")
  case event of
    Flush most | most >= 1000000 -> ends
    FromApplication Whole {} -> ends
    _ -> pure ()
  pure (Model run' known3 whole2 initial1 rest1)

-- | What the client allows the server by the frames that it has sent.
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

acted :: Int -> IntMap.IntMap Known -> Action -> Either String (IntMap.IntMap Known)
acted initial known action = case action of
  Start n _ final
    | IntMap.member n known -> Left ("started twice: " <> show n)
    | otherwise -> Right (IntMap.insert n (Known initial 0 None False False final) known)
  Deliver n bytes
    | B.null bytes -> Left "an empty delivery"
    | otherwise -> open n known
  DeliverEnd n _ -> IntMap.adjust (\k -> k {knownBodyOver = True}) n <$> open n known
  Stop n _ -> maybe (Left "stopped before it began") (\k -> Right (IntMap.insert n k {knownBodyOver = True, knownAnswer = Given} known)) (IntMap.lookup n known)
  _ -> Right known
  where
    open n m = case IntMap.lookup n m of
      Just k | not (knownBodyOver k) -> Right m
      _ -> Left ("a body that is over, or has not begun: " <> show n)

sent :: (IntMap.IntMap Known, Int) -> Frame -> Either String (IntMap.IntMap Known, Int)
sent (known, whole) frame' = case frame' of
  SendHeaders n fields final -> flip (,) whole <$> on n (headed fields final)
  SendData n size final
    | size > whole -> Left "beyond the connection's window"
    | otherwise -> flip (,) (whole - size) <$> on n (filled size final)
  SendReset n _ -> Right (IntMap.adjust (\k -> k {knownOver = True, knownBodyOver = True}) n known, whole)
  SendWindow n by
    | by <= 0 -> Left "a window update of nothing"
    | n > 0, Just k <- IntMap.lookup n known, knownOver k && knownBodyOver k -> Left "a window update of a stream that is over"
  _ -> Right (known, whole)
  where
    -- The head of 431 is of a stream that was not started.
    on n f = case IntMap.lookup n known of
      Nothing -> Right known
      Just k -> (\k' -> IntMap.insert n k' known) <$> f k
    headed fields final k
      | knownOver k = Left "a head behind the end"
      | knownHead k && not final = Left "two heads"
      | otherwise = Right k {knownHead = lookup ":status" fields == Just "200" || knownHead k, knownOver = final}
    filled size final k
      | knownOver k = Left "data behind the end"
      | not (knownHead k) = Left "data before the head"
      | size > 0 && size > knownWindow k = Left ("beyond the stream's window: " <> show (size, knownWindow k))
      | size > knownOffered k = Left "more than was offered"
      | otherwise = Right k {knownWindow = knownWindow k - size, knownOffered = knownOffered k - size, knownOver = final}
