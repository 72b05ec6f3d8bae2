{-# LANGUAGE OverloadedStrings #-}

-- | Frames on streams in each state: RFC 9113, 5.1.
module Spec.Ended
  ( tests,
  )
where

import Bytes
import qualified Data.ByteString as B
import Test.Tasty
import Test.Tasty.HUnit
import Weft.Http2.Core
import Weft.Http2.Frame (ErrorCode (..), errorNumber, frame, typePriority, typeReset)

-- | What a frame does: nothing, reset its stream, or end the connection.
data Reaction = Ignored | Resets ErrorCode | Ends ErrorCode
  deriving (Eq, Show)

tests :: TestTree
tests =
  testGroup
    "frames on streams in each state (RFC 9113, 5.1)"
    [ testGroup
        name
        [ testCase what (reaction state frame' @?= expected)
          | (what, frame', expected) <- zip3 ["DATA", "HEADERS", "PRIORITY", "RST_STREAM", "WINDOW_UPDATE"] (frames stream) reactions
        ]
      | (name, stream, state, reactions) <- states
    ]
  where
    frames n = [end n "x", trailers n, frame typePriority 0 n (B.replicate 5 0), frame typeReset 0 n (errorNumber Cancel), update n 1]
    closed = Resets StreamClosed
    wrong = Ends ProtocolError
    states =
      -- Trailers are no request.
      [ ("idle, above all others", 9, begun, [wrong, Resets ProtocolError, Ignored, wrong, wrong]),
        ("of the server", 4, send (get 5) begun, [wrong, wrong, Ignored, wrong, wrong]),
        ("passed over", 3, send (get 1 <> get 7) begun, [wrong, wrong, Ignored, Ignored, Ignored]),
        ("open", 1, send (post 1) begun, [Ignored, Ignored, Ignored, Ignored, Ignored]),
        ("half-closed by the client", 1, send (get 1) begun, [closed, closed, Ignored, Ignored, Ignored]),
        ("half-closed by the server", 1, respond 1 (send (post 1) begun), [Ignored, Ignored, Ignored, Ignored, Ignored]),
        ("ended by both", 1, respond 1 (send (get 1) begun), [closed, closed, Ignored, Ignored, Ignored]),
        ("reset by the client", 1, send (post 1 <> reset 1) begun, [closed, closed, Ignored, Ignored, Ignored]),
        ("reset by the server, with more under way", 1, give (Abandon 1 InternalError) (send (post 1) begun), [Ignored, Ignored, Ignored, Ignored, Ignored]),
        ("reset by the server, and then ended by the client", 1, send (end 1 "") (give (Abandon 1 InternalError) (send (post 1) begun)), [closed, closed, Ignored, Ignored, Ignored]),
        ("reset by the server when the client had ended it", 1, give (Abandon 1 InternalError) (send (get 1) begun), [closed, closed, Ignored, Ignored, Ignored])
      ]
    respond n = give (Finish n []) . give (Offer n 4) . give (Respond n [(":status", "200")])
    -- The state is reached and all is sent; then comes the frame.
    reaction state bytes = case (goneAway after', resets after') of
      (Just code, _) -> Ends code
      (_, (_, code) : _) -> Resets code
      _ -> Ignored
      where
        before = (flush state) {runFrames = [], runActions = []}
        after' = flush (send bytes before)
