-- |
-- Small random programs of threads, and a pure interpreter of them: the set of all
-- outcomes that the meaning of the system calls allows, over all schedules.
module Program
  ( Program,
    Op (..),
    Seen (..),
    End (..),
    Name,
    Outcome,
    variables,
    genProgram,
    shrinkProgram,
    outcomes,
  )
where

import qualified Data.Map.Strict as Map
import qualified Data.Set as Set
import Test.QuickCheck

-- | The operations of the first thread.
type Program = [Op]

-- | Variables are numbered.
data Op
  = Pass
  | Take Int
  | Put Int Int
  | Read Int
  | TryTake Int
  | TryPut Int Int
  | Raise Int
  | Catch [Op] [Op]
  | Finally [Op] [Op]
  | Mask [Op]
  | Spawn [Op]
  | -- | One of the threads that this thread has spawned.
    Kill Int
  deriving (Eq, Ord, Show)

-- | An observation of a thread.
data Seen
  = Took Int Int
  | DidPut Int
  | DidRead Int Int
  | TriedTake Int (Maybe Int)
  | TriedPut Int Bool
  | Caught End
  | Passed
  deriving (Eq, Ord, Show)

-- | How a thread ends.
data End = Ended | Died Int | Killed | Stuck
  deriving (Eq, Ord, Show)

-- | The number of the child, of its parent and so on, the latest first.
type Name = [Int]

type Outcome = Map.Map Name ([Seen], End)

-- | How many variables there are.
variables :: Int
variables = 2

-- Programs -----------------------------------------------------------------------------

genProgram :: Gen Program
genProgram = sized (\n -> ops (min 9 (2 + n `div` 6)))

ops :: Int -> Gen [Op]
ops n
  | n <= 0 = pure []
  | otherwise = do
    op <- frequency (map (fmap pure) simple <> if n > 1 then compound (n `div` 2) else [])
    (op :) <$> ops (n - 1 - weight op)
  where
    simple =
      [ (2, Pass),
        (4, Take 0),
        (2, Take 1),
        (4, Put 0 1),
        (2, Put 1 2),
        (2, Read 0),
        (1, TryTake 0),
        (1, TryPut 0 3),
        (1, Raise 1),
        (3, Kill 0),
        (1, Kill 1)
      ]
    compound m =
      [ (2, Catch <$> ops m <*> ops 1),
        (2, Finally <$> ops m <*> ops 1),
        (2, Mask <$> ops m),
        (7, Spawn <$> ops m)
      ]

weight :: Op -> Int
weight op = case op of
  Catch a b -> size a + size b
  Finally a b -> size a + size b
  Mask a -> size a
  Spawn a -> size a
  _ -> 0
  where
    size = sum . map ((+ 1) . weight)

shrinkProgram :: Program -> [Program]
shrinkProgram = shrinkList shrinkOp
  where
    shrinkOp op = case op of
      Catch a b -> a <> b <> [Catch a' b' | (a', b') <- both a b]
      Finally a b -> a <> b <> [Finally a' b' | (a', b') <- both a b]
      Mask a -> a <> map Mask (shrinkProgram a)
      Spawn a -> a <> map Spawn (shrinkProgram a)
      _ -> []
    both a b = [(a', b) | a' <- shrinkProgram a] <> [(a, b') | b' <- shrinkProgram b]

-- The interpreter ------------------------------------------------------------------------

data Item
  = Do Op
  | -- | The protected part is over.
    Uncatch
  | SetMask Bool
  | Rethrow End
  | Say Seen
  deriving (Eq, Ord)

-- | The handler of an exception, the continuation, and the masking state there.
data Frame = Frame Handler [Item] Bool
  deriving (Eq, Ord)

-- | Notice it and go on with that; or clean up and raise it again.
data Handler = Notice [Op] | CleanUp [Op]
  deriving (Eq, Ord)

data Thread = Thread
  { code :: [Item],
    frames :: [Frame],
    masked :: Bool,
    pending :: Int,
    seen :: [Seen],
    children :: [Name],
    waits :: Bool,
    end :: Maybe End
  }
  deriving (Eq, Ord)

data Var = Full Int [(Name, Int)] | Empty [(Name, Bool)]
  deriving (Eq, Ord)

data World = World (Map.Map Name Thread) (Map.Map Int Var)
  deriving (Eq, Ord)

-- | All outcomes; Nothing if there are too many states to look at.
outcomes :: Program -> Maybe (Set.Set Outcome)
outcomes p = explore Set.empty Set.empty [start]
  where
    start = World (Map.singleton [] (thread p)) (Map.fromList [(v, Empty []) | v <- [0 .. variables - 1]])

thread :: [Op] -> Thread
thread p = Thread (map Do p) [] False 0 [] [] False Nothing

explore :: Set.Set World -> Set.Set Outcome -> [World] -> Maybe (Set.Set Outcome)
explore done found todo = case todo of
  [] -> Just found
  w : rest
    | Set.member w done -> explore done found rest
    | Set.size done > 30000 -> Nothing
    | otherwise -> case successors w of
      [] -> explore (Set.insert w done) (Set.insert (outcome w) found) rest
      ws -> explore (Set.insert w done) found (ws <> rest)

outcome :: World -> Outcome
outcome (World ts _) = Map.map (\t -> (reverse (seen t), maybe Stuck id (end t))) ts

successors :: World -> [World]
successors w@(World ts _) =
  concat [raised n t <> [step n t w | runs t] | (n, t) <- Map.toList ts, end t == Nothing]
  where
    runs t = not (waits t)
    raised n t = [throwIn n (t {pending = pending t - 1}) Killed w | pending t > 0, not (masked t)]

set :: Name -> Thread -> World -> World
set n t (World ts vs) = World (Map.insert n t ts) vs

setVar :: Int -> Var -> World -> World
setVar v x (World ts vs) = World ts (Map.insert v x vs)

-- | Raise an exception; the thread leaves the line that it waits in.
throwIn :: Name -> Thread -> End -> World -> World
throwIn n t e w = set n t' (leave w)
  where
    leave (World ts vs) = World ts (if waits t then Map.map out vs else vs)
    out (Full a ps) = Full a (filter ((/= n) . fst) ps)
    out (Empty qs) = Empty (filter ((/= n) . fst) qs)
    t' = case frames t of
      [] -> t {code = [], end = Just e, waits = False}
      Frame h after m : fs ->
        let base = t {frames = fs, masked = m, waits = False}
         in case h of
              Notice body -> base {code = Say (Caught e) : map Do body <> after}
              CleanUp body -> base {code = map Do body <> [Rethrow e]}

step :: Name -> Thread -> World -> World
step n t w = case code t of
  [] -> set n t {end = Just Ended} w
  item : rest ->
    let t' = t {code = rest}
     in case item of
          Uncatch -> case frames t of
            Frame _ after _ : fs -> set n t' {code = after, frames = fs} w
            [] -> w
          SetMask m -> set n t' {masked = m} w
          Rethrow e -> throwIn n t' e w
          Say s -> set n t' {seen = s : seen t'} w
          Do op -> perform n t' op w

perform :: Name -> Thread -> Op -> World -> World
perform n t op w@(World ts vs) = case op of
  Pass -> notice Passed
  Raise k -> throwIn n t (Died k) w
  Catch a b -> set n t {code = map Do a <> [Uncatch], frames = Frame (Notice b) (code t) (masked t) : frames t} w
  Finally a b ->
    let inner = SetMask (masked t) : map Do a <> [SetMask True, Uncatch]
        after = map Do b <> [SetMask (masked t)] <> code t
     in set n t {code = inner, masked = True, frames = Frame (CleanUp b) after True : frames t} w
  Mask a -> set n t {code = map Do a <> [SetMask (masked t)] <> code t, masked = True} w
  Spawn a ->
    let name = length (children t) : n
        child = (thread a) {masked = masked t}
     in set name child (set n t {children = children t <> [name]} w)
  Kill i -> case drop i (children t) of
    [] -> set n t w
    name : _ -> maybe id (killed name) (Map.lookup name ts) (set n t w)
  Take v -> case vs Map.! v of
    Full a ps -> set n t {seen = Took v a : seen t} (nextPut v ps w)
    Empty qs -> blocks (setVar v (Empty (qs <> [(n, True)])))
  Read v -> case vs Map.! v of
    Full a _ -> notice (DidRead v a)
    Empty qs -> blocks (setVar v (Empty (qs <> [(n, False)])))
  Put v a -> case vs Map.! v of
    Full b ps -> blocks (setVar v (Full b (ps <> [(n, a)])))
    Empty qs -> set n t {seen = DidPut v : seen t} (served v a qs w)
  TryTake v -> case vs Map.! v of
    Full a ps -> set n t {seen = TriedTake v (Just a) : seen t} (nextPut v ps w)
    Empty _ -> notice (TriedTake v Nothing)
  TryPut v a -> case vs Map.! v of
    Full _ _ -> notice (TriedPut v False)
    Empty qs -> set n t {seen = TriedPut v True : seen t} (served v a qs w)
  where
    notice s = set n t {seen = s : seen t} w
    -- The operation ends when another thread serves it; a thread with a pending exception
    -- does not wait.
    blocks enter
      | pending t > 0 = throwIn n t {pending = pending t - 1} Killed w
      | otherwise = set n t {waits = True} (enter w)

killed :: Name -> Thread -> World -> World
killed name t w
  | end t /= Nothing = w
  | waits t = throwIn name t Killed w
  | otherwise = set name t {pending = pending t + 1} w

-- | The first of the threads that wait to put does so.
nextPut :: Int -> [(Name, Int)] -> World -> World
nextPut v ps w = case ps of
  [] -> setVar v (Empty []) w
  (n, b) : rest -> wake n (DidPut v) (setVar v (Full b rest) w)

-- | All readers, and the first taker.
served :: Int -> Int -> [(Name, Bool)] -> World -> World
served v a qs w = case takers of
  [] -> setVar v (Full a []) readersDone
  (n, _) : rest -> wake n (Took v a) (setVar v (Empty rest) readersDone)
  where
    takers = filter snd qs
    readersDone = foldr (\(n, _) -> wake n (DidRead v a)) w (filter (not . snd) qs)

wake :: Name -> Seen -> World -> World
wake n s (World ts vs) = World (Map.adjust (\t -> t {waits = False, seen = s : seen t}) n ts) vs
