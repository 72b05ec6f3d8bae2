-- |
-- The handshake: HELLO in both directions, version negotiation, FEATURES (1.0.1, 5.5.1 and 5.3.1; 1.3.5, 6.3.1 and
-- 7.3.1). A switch that violates it receives an ERROR message, if the protocol has one for the case, and the connection
-- ends. Throws 'HandshakeFailed', and 'HandshakeTimeout' after the deadline.
module Weft.OpenFlow.Controller.Handshake
  ( Reader,
    newReader,
    leftOver,
    negotiate,
    askFeatures,
    HandshakeFailed (..),
    HandshakeTimeout (..),
  )
where

import Control.Exception (Exception, catch, throwIO)
import Control.Monad (unless, when)
import Data.Bits (testBit)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as BC
import Data.IORef
import GHC.IO.Exception (IOErrorType (TimeExpired), IOException (ioe_type))
import Weft.Duration (seconds)
import Weft.OpenFlow.Controller.Errors
import Weft.OpenFlow.Controller.Framer
import Weft.OpenFlow.Controller.SendQueue
import Weft.OpenFlow.Message
import Weft.OpenFlow.Types
import Weft.OpenFlow.Wire
import Weft.Transport

-- | The handshake failed: the reason.
newtype HandshakeFailed = HandshakeFailed String
  deriving (Show)

instance Exception HandshakeFailed

-- | The deadline has passed.
data HandshakeTimeout = HandshakeTimeout
  deriving (Show)

instance Exception HandshakeTimeout

-- | Reads single messages until a deadline.
data Reader = Reader !Connection !Instant !(IORef (Partial, ByteString))

-- | A reader that has received nothing.
newReader :: Connection -> Instant -> IO Reader
newReader connection deadline = Reader connection deadline <$> newIORef (nothingPartial, B.empty)

-- | The bytes received after the last message.
leftOver :: Reader -> IO ByteString
leftOver (Reader _ _ ref) = do
  (partial, s) <- readIORef ref
  pure (partialBytes partial <> s)

-- | Wait for the next message. The deadline holds also for a switch that sends all the time. A length below that of a
-- header is answered in the given version, or if none has been negotiated yet in the one of the message, if it is one
-- of ours.
nextHere :: [Version] -> SendQueue -> Reader -> IO (Header, ByteString)
nextHere ours sendQueue r@(Reader connection deadline ref) = do
  (partial, s) <- readIORef ref
  case nextMessage s of
    Whole h message rest -> (h, message) <$ writeIORef ref (nothingPartial, rest)
    Unframed h -> tooShort h
    Missing _ -> do
      over <- (>= deadline) <$> deadlineIn (seconds 0)
      when over (throwIO HandshakeTimeout)
      more <- connReceive connection deadline 32768 `catch` late
      when (B.null more) (throwIO (HandshakeFailed "the connection ended in the handshake"))
      case feed (if B.null s then partial else partialOf s) more of
        Broken h -> tooShort h
        Still partial' -> writeIORef ref (partial', B.empty)
        Complete first rest -> writeIORef ref (nothingPartial, if B.null first then rest else first <> rest)
      nextHere ours sendQueue r
  where
    tooShort h = do
      mapM_ (sendHere sendQueue . pure) (tryRunPut (errorFor (versionFor ours h) h B.empty BadLength))
      throwIO (HandshakeFailed "the switch sent a message with a length below 8")
    late e
      | TimeExpired <- ioe_type e = throwIO HandshakeTimeout
      | otherwise = throwIO e

-- | Exchange HELLO. Returns the highest version that both sides support.
negotiate :: [Version] -> SendQueue -> Reader -> IO Version
negotiate ours sendQueue r = do
  mapM_ (sendHere sendQueue . pure) (tryRunPut (putHello highest 1 ours))
  (h, bytes) <- nextHere ours sendQueue r
  case decode bytes of
    Right (_, Hello bitmap) -> case common (headerVersion h) bitmap of
      Just version -> pure version
      Nothing -> refuse h "no version in common"
    Right _ -> refuse h "the first message was not HELLO"
    Left _ -> refuse h "the first message was not understood"
  where
    highest = maximum (map versionByte ours)
    -- Without a bitmap: the smaller of the two numbers in the headers.
    common byte [] = let v = versionFromByte (min byte highest) in if fmap (`elem` ours) v == Just True then v else Nothing
    common _ (w : _) = case [v | v <- [maxBound, pred maxBound .. minBound], v `elem` ours, testBit w (fromIntegral (versionByte v))] of
      v : _ -> Just v
      [] -> Nothing
    refuse h why = do
      -- HELLO_FAILED, INCOMPATIBLE.
      unless (headerType h == typeError) $
        mapM_ (sendHere sendQueue . pure) (encode (versionFor ours h) (headerXid h) (Error 0 0 (BC.pack why)))
      throwIO (HandshakeFailed why)

-- | The version of an ERROR message: that of the peer's message if it is one of ours.
versionFor :: [Version] -> Header -> Version
versionFor ours h = case versionFromByte (headerVersion h) of
  Just version | version `elem` ours -> version
  _ -> maximum ours

-- | Request the features of the switch. Echo requests are answered meanwhile. Other messages that arrive before the
-- reply, such as PORT_STATUS, are dropped: the reply has newer information. Their number is not limited: a busy switch
-- may have sent thousands of packets before the request reaches it. None is kept, and the deadline limits the time.
askFeatures :: Version -> SendQueue -> Reader -> IO Features
askFeatures version sendQueue r = do
  mapM_ (sendHere sendQueue . pure) (encode version 2 FeaturesRequest)
  go
  where
    go = do
      (h, bytes) <- nextHere [version] sendQueue r
      unless (headerVersion h == versionByte version) (failWith h bytes (BadVersion (headerVersion h)) "the switch changed its protocol version")
      case decode bytes of
        Right (_, FeaturesReply f) -> f <$ when (featuresAuxiliary f /= 0) (throwIO (HandshakeFailed "an auxiliary connection"))
        Right (_, EchoRequest payload) -> mapM_ (sendHere sendQueue . pure) (encode version (headerXid h) (EchoReply payload)) >> go
        Right (_, Error t code _) -> throwIO (HandshakeFailed ("ERROR " <> show t <> ", " <> show code))
        Right _ -> go
        Left problem -> failWith h bytes problem "a message was not understood"
    failWith :: Header -> ByteString -> Problem -> String -> IO a
    failWith h bytes problem why = do
      mapM_ (sendHere sendQueue . pure) (tryRunPut (errorFor version h bytes problem))
      throwIO (HandshakeFailed why)
