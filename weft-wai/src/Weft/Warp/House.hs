-- |
-- How many connections there are, and of whom; and who is shown out when there are
-- too many.
module Weft.Warp.House
  ( House,
    newHouse,
    admitted,
  )
where

import Control.Exception (bracket)
import Control.Monad (forM_)
import Data.Bits (shiftL, (.|.))
import Data.IORef
import Data.List (sortOn)
import qualified Data.Map.Strict as Map
import Data.Word (Word64)
import Weft.Socket (SockAddr (..))
import Weft.Warp.Activity
import Weft.Warp.Limits

-- | The connections of a server, in all and by address. Changed atomically, by the thread
-- of each.
data House = House !(IORef Int) !(IORef (Map.Map Word64 Int))

-- | Without any.
newHouse :: IO House
newHouse = House <$> newIORef 0 <*> newIORef Map.empty

-- | Serve a connection if there is room for it, or room can be made; otherwise say why
-- not. When there are too many, each is looked at, and up to 1 in 64 of them shown out.
admitted :: Limits -> House -> [Book] -> SockAddr -> (Refusal -> IO ()) -> IO () -> IO ()
admitted limits (House total addresses) books peer refused serve =
  bracket enters (const leaves) $ \(many, same) ->
    if over limitPerAddress same
      then refused TooManyOfAddress
      else do
        room <- if over limitConnections many then makeRoom else pure True
        if room then serve else refused TooManyConnections
  where
    over limit n = limit limits > 0 && n > limit limits
    enters = (,) <$> atomicModifyIORef' total (\n -> (n + 1, n + 1)) <*> maybe (pure 0) (ofAddress 1) address
    leaves = atomicModifyIORef' total (\n -> (n - 1, ())) >> forM_ address (ofAddress (-1))
    address = if limitPerAddress limits > 0 then addressOf peer else Nothing
    ofAddress d a = atomicModifyIORef' addresses $ \m ->
      let n = Map.findWithDefault 0 a m + d in (if n == 0 then Map.delete a m else Map.insert a n m, n)
    makeRoom = do
      waiting <- concat <$> mapM waitingOf books
      let leaving = take (max 1 (limitConnections limits `div` 64)) (sortOn fst waiting)
      forM_ leaving (showOut . snd)
      pure (not (null leaving))

-- | What a client's addresses have in common: one of IPv4, the first 64 bits of one of
-- IPv6, of which a client can have all.
addressOf :: SockAddr -> Maybe Word64
addressOf peer = case peer of
  SockAddrInet _ a -> Just (fromIntegral a)
  -- IPv4 as an IPv6 socket sees it (RFC 4291, 2.5.5.2).
  SockAddrInet6 _ _ (0, 0, 0xffff, a) _ -> Just (fromIntegral a)
  SockAddrInet6 _ _ (a, b, _, _) _ -> Just (fromIntegral a `shiftL` 32 .|. fromIntegral b)
  SockAddrUnix _ -> Nothing
