{-# LANGUAGE OverloadedStrings #-}

-- | How the windows of request bodies follow what applications read: clients that are far away, applications that stop
-- or lag, and all orders of what can happen.
module Spec.Uploads
  ( tests,
  )
where

import Bytes
import Control.Monad
import qualified Data.ByteString as B
import Data.Foldable (foldlM)
import qualified Data.IntMap.Strict as IntMap
import Data.List (foldl')
import Test.Tasty
import Test.Tasty.HUnit
import Test.Tasty.QuickCheck hiding (collect, discard)
import Weft.Http2.Core
import Weft.Http2.Core.Flow
import Weft.Http2.Core.Types (Core (..))
import Weft.Http2.Frame (ErrorCode (..), flagAck, frame, typePing)

tests :: TestTree
tests =
  testGroup
    "uploads"
    [ testCase "100 MiB over a long round trip take few of them, and the limit is kept" $ do
        let runs = take 20 (iterate (roundTrip [1]) (beginning 1 far))
            -- 16 MiB each, after those in which the window grows. A window of 500 KB takes 200.
            taken = length (takeWhile ((< 104857600) . sentOn 1) runs)
        taken <= 11 @? show (map (sentOn 1) runs)
        forM_ runs $ \run -> do
          isSound (runCore (farRun run)) @? "sound"
          allowedTo run + sum (farUnread run) <= configBodies defaultConfig @? show (allowedTo run)
        ended (last runs) @?= (Nothing, []),
      testCase "a limit that is lower is kept too" . forM_ [65535, 300000, 1048576, 3000000] $ \most -> do
        let runs = take 20 (iterate (roundTrip [1]) (beginning 1 (farWith defaultConfig {configBodies = most})))
        forM_ runs $ \run -> do
          isSound (runCore (farRun run)) @? "sound"
          receiveSize (coreFlow (runCore (farRun run))) <= most @? "size"
        sentOn 1 (last runs) >= 9 * (most `div` 2) @? show (sentOn 1 (last runs))
        ended (last runs) @?= (Nothing, []),
      testCase "an application that stops reading holds what was promised, and its client goes on when it does" $ do
        let stopped = times 10 (roundTrip []) grown
            held = unreadOn 1 stopped
        held >= 8000000 @? show held
        held <= configBodies defaultConfig @? show held
        let on = times 10 (roundTrip [1]) (readAll 1 stopped)
        sentOn 1 on - sentOn 1 stopped >= 50000000 @? show (sentOn 1 on)
        isSound (runCore (farRun on)) @? "sound",
      testCase "the window of an application that lags shrinks to what one has that does not read" $ do
        let lagging = times 300 (readSome 1 200000 . roundTrip []) grown
        unreadOn 1 lagging + allowedOn 1 lagging <= mostUnread + 65535 @? show (unreadOn 1 lagging, allowedOn 1 lagging)
        isSound (runCore (farRun lagging)) @? "sound"
        -- It grows again.
        let on = times 12 (roundTrip [1]) (readAll 1 lagging)
        sentOn 1 (roundTrip [1] on) - sentOn 1 on >= 8000000 @? show (sentOn 1 on),
      testCase "uploads share the window: one that begins later gets its part" $ do
        let both = times 30 (roundTrip [1, 3]) (beginning 3 grown)
            next = roundTrip [1, 3] both
            parts = [sentOn n next - sentOn n both | n <- [1, 3]]
        all (>= 6000000) parts @? show parts
        isSound (runCore (farRun next)) @? "sound",
      testCase "a short upload is not measured; the answers to measurements cost the client nothing, and others do" $ do
        let short = until ((>= 300000) . sentOn 1) (roundTrip [1]) (beginning 1 far)
            long = times 100 (roundTrip [1]) (beginning 1 (farWith defaultConfig {configBodies = 2000000}))
        farPings short @?= 0
        -- A tenth of a second apart when nothing grows.
        farPings long > 25 && farPings long <= 55 @? show (farPings long)
        ended long @?= (Nothing, [])
        goneAway (everything (replicate 200 (frame typePing flagAck 0 "weft win"))) @?= Just EnhanceYourCalm,
      localOption (QuickCheckTests 2000) . testProperty "any order of arrivals, reads, round trips and ends: the client's windows are what it was told" $
        forAll ((,) <$> elements [1000, 65535, 70000, 1048576, 1100000, 4000000, 16777216] <*> (choose (0, 200) >>= (`vectorOf` happening))) $ \(most, steps) ->
          either (`counterexample` False) (const (property True)) (foldlM happens (newBooks most) steps >>= settled)
    ]
  where
    far = farWith defaultConfig
    grown = times 12 (roundTrip [1]) (beginning 1 far)
    ended run = (goneAway (farRun run), resets (farRun run))
    times :: Int -> (a -> a) -> a -> a
    times n f start = iterate f start !! n

-- Clients that are far away ----------------------------------------------------------

-- | A client that sends as much as it may on all streams: the connection, the frames that are on the way to the client,
-- its window for the connection, and for each stream its window, what it has sent, and what waits for the application;
-- the measurements that it has seen.
data Far = Far
  { farRun :: Run,
    farComing :: [Frame],
    farWindow :: Int,
    farAllowed :: IntMap.IntMap Int,
    farSent :: IntMap.IntMap Int,
    farUnread :: IntMap.IntMap Int,
    farPings :: Int
  }

farWith :: Config -> Far
farWith config = Far run [] (receiveSize (coreFlow (runCore run))) IntMap.empty IntMap.empty IntMap.empty 0
  where
    run = beginWith config

beginning :: Int -> Far -> Far
beginning n far = far {farRun = run, farAllowed = add (farAllowed far) share, farSent = add (farSent far) 0, farUnread = add (farUnread far) 0}
  where
    run = send (post n) (farRun far)
    share = receiveShare (coreFlow (runCore run))
    add m value = IntMap.insert n value m

sentOn, unreadOn, allowedOn :: Int -> Far -> Int
sentOn n = IntMap.findWithDefault 0 n . farSent
unreadOn n = IntMap.findWithDefault 0 n . farUnread
allowedOn n = IntMap.findWithDefault 0 n . farAllowed

-- | What the client may send.
allowedTo :: Far -> Int
allowedTo far = min (farWindow far) (sum (farAllowed far))

-- | What was sent to the client arrives, and 50 ms later what it sends. The applications of these streams read at once.
roundTrip :: [Int] -> Far -> Far
roundTrip readers far = foldl' sends (foldl' arrives far {farRun = later 50 (farRun far), farComing = []} (farComing far)) (cycle' (IntMap.keys (farAllowed far)))
  where
    -- Ten thousand frames are more than it may send.
    cycle' = concat . replicate 1200
    arrives f what = case what of
      SendWindow 0 by -> f {farWindow = farWindow f + by}
      SendWindow n by -> f {farAllowed = IntMap.adjust (+ by) n (farAllowed f)}
      SendPing payload -> collect f {farPings = farPings f + 1, farRun = send (frame typePing flagAck 0 payload) (farRun f)}
      _ -> f
    sends f n
      | size <= 0 = f
      | otherwise = (if n `elem` readers then readSome n size else id) (collect sent)
      where
        size = minimum [16384, farWindow f, allowedOn n f]
        sent =
          f
            { farRun = send (content n (B.replicate size 7)) (farRun f),
              farWindow = farWindow f - size,
              farAllowed = IntMap.adjust (subtract size) n (farAllowed f),
              farSent = IntMap.adjust (+ size) n (farSent f),
              farUnread = IntMap.adjust (+ size) n (farUnread f)
            }

-- | The application reads.
readSome :: Int -> Int -> Far -> Far
readSome n most f
  | size <= 0 = f
  | otherwise = collect f {farRun = give (Consume n size) (farRun f), farUnread = IntMap.adjust (subtract size) n (farUnread f)}
  where
    size = min most (unreadOn n f)

readAll :: Int -> Far -> Far
readAll n f = readSome n (unreadOn n f) f

-- | What the server sends is on the way. What ends something stays in the run.
collect :: Far -> Far
collect f = f {farRun = run {runActions = [], runFrames = filter lasting (runFrames run)}, farComing = farComing f <> filter (not . lasting) (runFrames run)}
  where
    run = flush (farRun f)
    lasting what = case what of
      SendReset _ _ -> True
      SendGoAway _ _ -> True
      _ -> False

-- All orders -------------------------------------------------------------------------

-- | The server's windows, and what the client believes: its window of the connection, and for each stream the server's
-- state, the client's window, and what was not read.
data Books = Books Receive Int (IntMap.IntMap (StreamReceive, Int, Int))

-- | What happens to a stream, or to all. Sizes are parts of what is possible, in 1/8.
data Happening = Begins Int | Arrives Int Int | Reads Int Int Bool | Widens Int | RoundTrip | Ends Int
  deriving (Show)

newBooks :: Int -> Books
newBooks most = let r = newReceive most places in Books r (receiveSize r) IntMap.empty

places :: Int
places = 4

happening :: Gen Happening
happening =
  frequency
    [ (2, Begins <$> stream),
      (8, Arrives <$> stream <*> part),
      (8, Reads <$> stream <*> part <*> frequency [(5, pure True), (1, pure False)]),
      (1, Widens <$> stream),
      (4, pure RoundTrip),
      (1, Ends <$> stream)
    ]
  where
    stream = choose (1, places)
    part = frequency [(2, pure 8), (1, choose (1, 8))]

happens :: Books -> Happening -> Either String Books
happens books@(Books r whole streams) what = case what of
  Begins n | IntMap.notMember n streams -> right (let s = beginReceive r in Books r whole (IntMap.insert n (s, receiveShare r, 0) streams))
  Arrives n part
    | Just (s, may, unread) <- IntMap.lookup n streams ->
      let size = (min may whole * part) `div` 8
       in case arrive 0 size r s of
            Fits r' s' -> right (Books r' (whole - size) (IntMap.insert n (s', may - size, unread + size) streams))
            _ -> Left "what the client may send does not fit"
  Reads n part byApplication
    | Just (s, may, unread) <- IntMap.lookup n streams ->
      let size = (unread * part) `div` 8
          ((by, more), r', s') = consume True byApplication size r s
       in right (Books r' (whole + by) (IntMap.insert n (if byApplication then measured size s' else s', may + more, unread - size) streams))
  Widens n
    | Just (s, may, unread) <- IntMap.lookup n streams ->
      let (more, r', s') = widen Nothing r s
       in right (Books r' whole (IntMap.insert n (s', may + more, unread) streams))
  RoundTrip -> foldlM samples books [n | (n, (s, _, _)) <- IntMap.toList streams, readSince s > 0]
  Ends n
    | Just (s, _, _) <- IntMap.lookup n streams ->
      let (by, r') = endReceive s r
       in right (Books r' (whole + by) (IntMap.delete n streams))
  _ -> Right books
  where
    readers = length [() | (s, _, _) <- IntMap.elems streams, readSince s > 0]
    samples b@(Books r' whole' streams') n = case IntMap.lookup n streams' of
      Nothing -> Right b
      Just (s, may, unread) ->
        let ((by, more), r'', s') = sampled readers r' s
         in right (Books r'' (whole' + by) (IntMap.insert n (s', may + more, unread) streams'))
    right b@(Books r' whole' streams')
      | not (sound (places - IntMap.size streams') [s | (s, _, _) <- IntMap.elems streams'] r') = Left "not sound"
      | discard whole' r' == Nothing || discard (whole' + 1) r' /= Nothing = Left "the connection's window"
      | or [exceeds (arrive 0 (may + 1) r' s) || (may <= whole' && may > 0 && not (fits (arrive 0 may r' s))) | (s, may, _) <- IntMap.elems streams'] = Left "a stream's window"
      | otherwise = Right b
    fits a = case a of Fits _ _ -> True; _ -> False
    exceeds = fits

-- | All is read and all streams end: the client has nearly all of the connection's window, and the parts are whole.
settled :: Books -> Either String ()
settled (Books r0 whole0 streams0) = do
  Books r whole streams <- foldlM happens (Books r0 whole0 streams0) (concat [[Reads n 8 True, Ends n] | n <- IntMap.keys streams0])
  unless (IntMap.null streams && sound places [] r) (Left "not sound at the end")
  when (receiveSize r - whole > receiveSize r `div` 3 + 1) (Left ("credit that does not come back: " <> show (receiveSize r - whole)))
