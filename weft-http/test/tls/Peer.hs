-- |
-- A peer that is OpenSSL itself, and does what "Weft.Tls" never does: it changes keys at any time. Any thread may use
-- it. It lives until the suite ends.
module Peer
  ( Peer,
    Role (..),
    newPeer,
    handshake,
    handshakeSaying,
    tickets,
    sendData,
    receiveData,
    Update (..),
    updateKey,
    end,
  )
where

import Control.Concurrent.MVar
import Control.Monad
import qualified Data.ByteString as B
import qualified Data.ByteString.Internal as B (createAndTrim)
import qualified Data.ByteString.Unsafe as B (unsafeUseAsCStringLen)
import Data.Word (Word8)
import Foreign.C
import Foreign.Ptr
import Weft.Transport

data CPeer

data Peer = Peer
  { peerOver :: !Connection,
    -- | Held for each call.
    peerHandle :: !(MVar (Ptr CPeer)),
    -- | Held while output is made and sent, so that it keeps its order.
    peerSends :: !(MVar ())
  }

-- | A server has the files of its certificate and its key.
data Role = Server FilePath FilePath | Client

newPeer :: Role -> Connection -> IO Peer
newPeer role over = do
  p <- case role of
    Client -> c_new nullPtr nullPtr
    Server chain key -> withCString chain (withCString key . c_new)
  when (p == nullPtr) (ioError (userError "no peer"))
  Peer over <$> newMVar p <*> newMVar ()

-- | Do something that makes output, and send all that there is.
making :: Peer -> (Ptr CPeer -> IO a) -> IO a
making peer act = withMVar (peerSends peer) $ \() -> do
  (r, bytes) <- withMVar (peerHandle peer) (\p -> (,) <$> act p <*> output p)
  unless (B.null bytes) (connSendBytes (peerOver peer) noDeadline bytes)
  pure r
  where
    output p = do
      bytes <- B.createAndTrim 65536 (\to -> max 0 . fromIntegral <$> c_output p to 65536)
      if B.null bytes then pure B.empty else (bytes <>) <$> output p

-- | Receive, and give it to the library. False at the end.
feeding :: Peer -> IO Bool
feeding peer = do
  bytes <- connReceive (peerOver peer) noDeadline 32768
  withMVar (peerHandle peer) $ \p -> B.unsafeUseAsCStringLen bytes (\(at, n) -> c_feed p (castPtr at) (fromIntegral n))
  pure (not (B.null bytes))

handshake :: Peer -> IO ()
handshake peer = do
  done <- making peer c_handshake
  unless (done == 1) (feeding peer >>= \more -> if more then handshake peer else ioError (userError "the handshake ended"))

-- | 'handshake' of a client whose first bytes go with its last message.
handshakeSaying :: Peer -> B.ByteString -> IO ()
handshakeSaying peer bytes = making peer c_handshake >> go
  where
    go = do
      more <- feeding peer
      unless more (ioError (userError "the handshake ended"))
      -- This goes on with the handshake.
      n <- making peer (\p -> B.unsafeUseAsCStringLen bytes (\(at, size) -> c_write p (castPtr at) (fromIntegral size)))
      unless (n > 0) go

-- | How many session tickets a client has got, of those that it has received.
tickets :: Peer -> IO Int
tickets peer = fromIntegral <$> withMVar (peerHandle peer) c_tickets

sendData :: Peer -> B.ByteString -> IO ()
sendData peer bytes = void (making peer (\p -> B.unsafeUseAsCStringLen bytes (\(at, n) -> c_write p (castPtr at) (fromIntegral n))))

-- | Empty at the end. What it makes the library answer waits for the next output.
receiveData :: Peer -> IO B.ByteString
receiveData peer = do
  result <- newEmptyMVar
  bytes <- withMVar (peerHandle peer) $ \p -> B.createAndTrim 16384 $ \to -> do
    r <- c_read p to 16384
    fromIntegral (max 0 r) <$ putMVar result r
  r <- takeMVar result
  if r /= 0 then pure bytes else feeding peer >>= \more -> if more then receiveData peer else pure B.empty

-- | Whether the other side has to change its keys too.
data Update = OneWay | TwoWay
  deriving (Eq)

updateKey :: Peer -> Update -> IO ()
updateKey peer update = void (making peer (\p -> c_update p (if update == TwoWay then 1 else 0)))

-- | Send close_notify.
end :: Peer -> IO ()
end peer = void (making peer c_end)

foreign import ccall unsafe "peer_new" c_new :: CString -> CString -> IO (Ptr CPeer)

foreign import ccall unsafe "peer_feed" c_feed :: Ptr CPeer -> Ptr Word8 -> CInt -> IO ()

foreign import ccall unsafe "peer_output" c_output :: Ptr CPeer -> Ptr Word8 -> CInt -> IO CInt

foreign import ccall unsafe "peer_handshake" c_handshake :: Ptr CPeer -> IO CInt

foreign import ccall unsafe "peer_read" c_read :: Ptr CPeer -> Ptr Word8 -> CInt -> IO CInt

foreign import ccall unsafe "peer_write" c_write :: Ptr CPeer -> Ptr Word8 -> CInt -> IO CInt

foreign import ccall unsafe "peer_update" c_update :: Ptr CPeer -> CInt -> IO CInt

foreign import ccall unsafe "peer_tickets" c_tickets :: Ptr CPeer -> IO CInt

foreign import ccall unsafe "peer_end" c_end :: Ptr CPeer -> IO CInt
