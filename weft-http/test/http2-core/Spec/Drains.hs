{-# LANGUAGE OverloadedStrings #-}

-- | A drain of a connection with a client that keeps the rules, and time on the way between them: what one end sends,
-- the other knows later. Each request up to the number of the last GOAWAY is answered in whole before the connection
-- ends, others were not begun, so that the client may send them elsewhere, and a request that was sent before the
-- client heard of the drain is not refused unless the client's answer to the first GOAWAY takes longer than a second.
module Spec.Drains
  ( tests,
  )
where

import Bytes
import Control.Monad
import Data.ByteString (ByteString)
import qualified Data.IntMap.Strict as IntMap
import Data.Maybe (isNothing)
import Data.Sequence (Seq (..), (|>))
import qualified Data.Sequence as Seq
import Test.Tasty
import Test.Tasty.QuickCheck
import Weft.Core.Time (Instant (..))
import Weft.Http2.Core
import Weft.Http2.Frame

tests :: TestTree
tests =
  testGroup
    "a drain, with time on the way"
    [ localOption (QuickCheckTests 500) . testProperty "what was promised is answered, and what was refused was not begun" $
        forAllShrink ((,) <$> choose (1, 120) <*> elements [1, 6] >>= \(n, near) -> vectorOf n (happening near)) quarters $ \script ->
          let network = completed (foldl (flip happens) quiet script)
           in classify (netRefused network) "a request is refused" (either (`counterexample` False) (const (property True)) (judged network))
    ]

-- | A script without one of its quarters: few candidates, as each takes a while.
quarters :: [a] -> [[a]]
quarters script = [take i script <> drop (i + size) script | i <- [0, size .. length script - 1]]
  where
    size = max 1 ((length script + 3) `div` 4)

-- | What happens next, if it can.
data Happening
  = -- | The client sends a request, of this kind, unless it knows of the drain.
    Asks Kind
  | -- | The next bytes of the client arrive.
    Arrives
  | -- | The next frame of the server arrives, and the client reacts.
    Returns
  | -- | An application takes its next step; the number chooses which.
    Works Int
  | -- | The kernel takes frames, with at most that many bytes of data.
    Leaves Int
  | Passes Int
  | Drains
  deriving (Show)

data Kind = OfBytes | OfManyBytes | WithBody
  deriving (Show, Eq)

-- | With a small number what is sent takes long to arrive.
happening :: Int -> Gen Happening
happening near =
  frequency
    [ (4, Asks <$> elements [OfBytes, OfManyBytes, WithBody]),
      (near, pure Arrives),
      (near, pure Returns),
      (5, Works <$> choose (0, 9)),
      (5, Leaves <$> elements [0, 100, 10000, 1000000]),
      (3, Passes <$> elements [1, 20, 200, 700]),
      (1, pure Drains)
    ]

-- | Both ends, and what is on the way.
data Network = Network
  { netRun :: Run,
    netToServer :: Seq ByteString,
    netToClient :: Seq Frame,
    -- | Requests that were sent, with their kinds.
    netAsked :: IntMap.IntMap Kind,
    -- | Those that were sent before the client heard of the drain.
    netUnwarned :: [Int],
    netBegun :: [Int],
    -- | The applications' steps that are left.
    netWork :: IntMap.IntMap [Input],
    netGot :: IntMap.IntMap Got,
    -- | The numbers of the GOAWAYs that the client has seen, the last one first.
    netLast :: [Int],
    netCodes :: [ErrorCode],
    -- | When the drain began, and when the last stream was named.
    netDrain :: Maybe Instant,
    netNamed :: Maybe Instant,
    netClosed :: Bool
  }

-- | What the client has of an answer.
data Got = Got {gotHead :: Bool, gotBytes :: Int, gotEnd :: Bool}

quiet :: Network
quiet = Network begun Seq.empty Seq.empty IntMap.empty [] [] IntMap.empty IntMap.empty [] [] Nothing Nothing False

sizeOf :: Kind -> Int
sizeOf kind = case kind of
  OfBytes -> 10
  OfManyBytes -> 150000
  WithBody -> 3000

-- | At most twenty requests: the server's limit on streams is not what is tested.
happens :: Happening -> Network -> Network
happens event net = case event of
  Asks kind
    | null (netLast net),
      n <- 2 * IntMap.size (netAsked net) + 1,
      n < 40 ->
      net
        { netAsked = IntMap.insert n kind (netAsked net),
          netUnwarned = n : netUnwarned net,
          netToServer = netToServer net <> Seq.fromList (if kind == WithBody then [post n, content n "some", end n "more"] else [get n])
        }
  Arrives | bytes :<| rest <- netToServer net -> collected net {netToServer = rest, netRun = send bytes (netRun net)}
  Returns | frame' :<| rest <- netToClient net -> received frame' net {netToClient = rest}
  Works k
    | not (IntMap.null (netWork net)),
      (n, input : inputs) <- IntMap.toList (netWork net) !! (k `mod` IntMap.size (netWork net)) ->
      collected net {netWork = if null inputs then IntMap.delete n (netWork net) else IntMap.insert n inputs (netWork net), netRun = give input (netRun net)}
  Leaves most -> collected net {netRun = flushAtMost most (netRun net)}
  Passes ms -> collected net {netRun = later ms (netRun net)}
  Drains | isNothing (netDrain net) -> collected net {netDrain = Just (runTime (netRun net)), netRun = give BeginDrain (netRun net)}
  _ -> net

-- | Take the server's actions and frames out of its run.
collected :: Network -> Network
collected net =
  net
    { netRun = run {runActions = [], runFrames = []},
      netToClient = netToClient net <> Seq.fromList (runFrames run),
      netNamed = if isNothing (netNamed net) && or [n < 2147483647 | SendGoAway n _ <- runFrames run] then Just (runTime run) else netNamed net,
      netBegun = [n | Start n _ _ <- runActions run] <> netBegun net,
      netWork = netWork net <> IntMap.fromList [(n, steps n) | Start n _ _ <- runActions run],
      netClosed = netClosed net || or [True | Close {} <- runActions run]
    }
  where
    run = netRun net
    steps n = case IntMap.lookup n (netAsked net) of
      Just kind -> [Consume n 8 | kind == WithBody] <> [Respond n [(":status", "200")], Offer n (sizeOf kind), Finish n []]
      Nothing -> []

-- | The client's side of a frame.
received :: Frame -> Network -> Network
received frame' net = case frame' of
  SendHeaders n _ final -> on n (\g -> g {gotHead = True, gotEnd = final}) net
  SendData n size final -> answering [update i size | i <- [0, n], size > 0] (on n (\g -> g {gotBytes = gotBytes g + size, gotEnd = final}) net)
  SendPing bytes -> answering [frame typePing flagAck 0 bytes] net
  SendGoAway n code -> net {netLast = n : netLast net, netCodes = code : netCodes net}
  _ -> net
  where
    on n f m = m {netGot = IntMap.insert n (f (IntMap.findWithDefault (Got False 0 False) n (netGot m))) (netGot m)}
    answering bytes m = m {netToServer = foldl (|>) (netToServer m) bytes}

-- | Drain, and let everything happen until the connection ends and all has arrived; not for ever.
completed :: Network -> Network
completed = go (20000 :: Int) . happens Drains
  where
    go turns net
      | turns == 0 = net
      | netClosed net = iterated (happens Returns) (length (netToClient net)) (happens (Leaves maxBound) net)
      | otherwise = go (turns - 1) (foldl (flip happens) net [Arrives, Works 0, Leaves 30000, Returns, Returns, Passes 1])
    iterated f n x = iterate f x !! (n + 10)

netRefused :: Network -> Bool
netRefused net = any (`notElem` netBegun net) (IntMap.keys (netAsked net))

judged :: Network -> Either String ()
judged net = do
  unless (netClosed net) (Left "the connection does not end")
  when (any (/= NoError) (netCodes net)) (Left ("it ends with " <> show (netCodes net)))
  lastOne <- case netLast net of
    n : _ -> Right n
    [] -> Left "no GOAWAY"
  unless (and (zipWith (<=) (netLast net) (drop 1 (netLast net)))) (Left ("GOAWAYs that take back: " <> show (netLast net)))
  let asked = IntMap.keys (netAsked net)
      whole n kind = case IntMap.lookup n (netGot net) of
        Just g -> gotHead g && gotEnd g && gotBytes g == sizeOf kind
        Nothing -> False
  forM_ (IntMap.toList (netAsked net)) $ \(n, kind) ->
    when (n <= lastOne && not (whole n kind)) (Left ("request " <> show n <> " is not refused, and got " <> show (fmap gotBytes (IntMap.lookup n (netGot net))) <> " bytes"))
  when (any (> lastOne) (netBegun net)) (Left ("refused and begun: " <> show (filter (> lastOne) (netBegun net))))
  let early = (\(Instant t) (Instant t') -> t' - t < 1000000000) <$> netDrain net <*> netNamed net
  when (early == Just True && any (> lastOne) (netUnwarned net)) $
    Left ("refused although the client did not know: " <> show (filter (> lastOne) asked))
