-- |
-- The state of a connection's receiving thread, how that thread leaves its loop, and what it charges to the client. For
-- "Weft.Http2.Receive"; used by that thread only. What exceeds a budget throws 'Leave'.
module Weft.Http2.Receiver
  ( Receiver (..),
    newReceiver,
    Block (..),
    Budgets (..),
    limitsOf,

    -- * Leaving
    Leave (..),
    leave,
    leaveAs,

    -- * Charges
    pay,
    payEmpty,
    payReset,
  )
where

import Control.Exception
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import Data.IORef
import Weft.Core.Time (Instant)
import Weft.Http.Limits (Refusal (..))
import Weft.Http2.Budget
import Weft.Http2.Frame
import Weft.Http2.Hpack (Decoder, newDecoder)
import Weft.Http2.Resets
import Weft.Http2.Settings
import Weft.Http2.Types
import Weft.Sys (now)

-- | Thrown to leave the loop: the connection ends.
data Leave = Leave !Refusal !ErrorCode !String
  deriving (Show)

instance Exception Leave

-- | State used only by the receiving thread.
data Receiver = Receiver
  { receiverConnection :: !Http2,
    receiverDecoder :: !Decoder,
    -- | Received bytes that do not form a complete frame yet.
    receiverBuffer :: !(IORef ByteString),
    -- | A header block that is not complete yet.
    receiverBlock :: !(IORef (Maybe Block)),
    receiverBudgets :: !(IORef Budgets)
  }

-- | Flags and stream of the first frame; the pieces (the last first), their total size and number; when the block
-- began.
data Block = Block !FrameHeader [ByteString] !Int !Int !Instant

data Budgets = Budgets
  { budgetResets :: !Resets,
    budgetPings :: !Budget,
    budgetSettings :: !Budget,
    budgetPriorities :: !Budget,
    budgetWindows :: !Budget,
    budgetEmpty :: !Budget,
    -- | Streams that may be refused without a charge, until the client knows how many it may begin.
    budgetRefused :: !Int
  }

-- | The state at the beginning of a connection.
newReceiver :: Http2 -> IO Receiver
newReceiver h = do
  decoder <- newDecoder
  Receiver h decoder <$> newIORef B.empty <*> newIORef Nothing <*> newIORef budgets
  where
    budgets = Budgets noResets fullBudget fullBudget fullBudget fullBudget fullBudget 1000

-- | End the connection with an error, for the refusal that corresponds to it.
leave :: ErrorCode -> String -> IO a
leave code = leaveAs (refusalOf code) code

-- | End the connection for a refusal with an error.
leaveAs :: Refusal -> ErrorCode -> String -> IO a
leaveAs refusal code why = throwIO (Leave refusal code why)

-- | The limits of the connection.
limitsOf :: Receiver -> Http2Limits
limitsOf = http2Limits . http2Settings . receiverConnection

-- | Spend one unit of a budget, or end the connection.
pay :: Receiver -> (Http2Limits -> Rate) -> (Budgets -> Budget) -> (Budget -> Budgets -> Budgets) -> String -> IO ()
pay r rate get set what = do
  t <- now
  budgets <- readIORef (receiverBudgets r)
  case spend (rate (limitsOf r)) t (get budgets) of
    Just left -> writeIORef (receiverBudgets r) (set left budgets)
    Nothing -> leave EnhanceYourCalm ("too many " <> what)

payEmpty :: Receiver -> IO ()
payEmpty r = pay r limitEmptyFrames budgetEmpty (\b x -> x {budgetEmpty = b}) "frames without a payload"

-- | A reset by the client or because of its error. Completed responses allow more of them.
payReset :: Receiver -> IO ()
payReset r = do
  t <- now
  done <- atomicModifyIORef' (http2Completed (receiverConnection r)) ((,) 0)
  budgets <- readIORef (receiverBudgets r)
  let rule = defaultResetRule {resetRate = limitResets (limitsOf r)}
  case reset rule t (completed rule done (budgetResets budgets)) of
    Just left -> writeIORef (receiverBudgets r) budgets {budgetResets = left}
    Nothing -> leave EnhanceYourCalm "too many resets"
