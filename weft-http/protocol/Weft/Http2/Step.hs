-- |
-- Computations on the state of a connection, a server's or a client's, which may end it. Pure.
module Weft.Http2.Step
  ( StepOf (..),
    Outcome (..),
    get,
    gets,
    modify,
  )
where

import Control.Monad (ap, liftM)

-- | A computation on a state, which goes on or ends the connection.
newtype StepOf s a = Step {runStep :: s -> Outcome s a}

-- | The connection goes on with a result, or ends; and its state.
data Outcome s a = Goes a !s | Ends !s

instance Functor (StepOf s) where
  fmap = liftM

instance Applicative (StepOf s) where
  pure a = Step (Goes a)
  (<*>) = ap

instance Monad (StepOf s) where
  Step f >>= k = Step $ \s -> case f s of
    Goes a s' -> runStep (k a) s'
    Ends s' -> Ends s'

-- | The state.
get :: StepOf s s
get = Step (\s -> Goes s s)

-- | Part of the state.
gets :: (s -> a) -> StepOf s a
gets f = Step (\s -> Goes (f s) s)

-- | Change the state.
modify :: (s -> s) -> StepOf s ()
modify f = Step (Goes () . f)
