{-# LANGUAGE ScopedTypeVariables #-}

-- |
-- Socket options, which are @network@'s own.
module Weft.Socket.Options
  ( setSocketOption,
    getSocketOption,
    setSockOpt,
    getSockOpt,
    getSocketType,
  )
where

import Control.Monad (void)
import Foreign.C.Types (CInt)
import Foreign.Marshal.Alloc (alloca)
import Foreign.Marshal.Utils (with)
import Foreign.Ptr (Ptr, castPtr)
import Foreign.Storable (Storable, peek, poke, sizeOf)
import Network.Socket (SocketOption (..), SocketType (..), StructLinger (..))
import Weft.FFI.Socket
import Weft.Socket.Types

-- | Set an option whose value is a number. For @Linger@ it is seconds; zero turns it off.
setSocketOption :: Socket -> SocketOption -> Int -> IO ()
setSocketOption s Linger v = setSockOpt s Linger (StructLinger (if v > 0 then 1 else 0) (fromIntegral v))
setSocketOption s opt v = setSockOpt s opt (fromIntegral v :: CInt)

-- | Read an option whose value is a number.
getSocketOption :: Socket -> SocketOption -> IO Int
getSocketOption s Linger = do
  l <- getSockOpt s Linger
  pure (if sl_onoff l == 0 then 0 else fromIntegral (sl_linger l))
getSocketOption s opt = fromIntegral <$> (getSockOpt s opt :: IO CInt)

-- | Set an option whose value is a C structure.
setSockOpt :: (Storable a) => Socket -> SocketOption -> a -> IO ()
setSockOpt s (SockOpt level name) v = with v $ \p ->
  void . immediately "Weft.Socket.setSockOpt" s $ \fd ->
    cSetSockOpt fd level name (castPtr p) (fromIntegral (sizeOf v))

-- | Read an option whose value is a C structure.
getSockOpt :: forall a. (Storable a) => Socket -> SocketOption -> IO a
getSockOpt s (SockOpt level name) = alloca $ \p -> alloca $ \len -> do
  poke len (fromIntegral (sizeOf (unread p)))
  _ <- immediately "Weft.Socket.getSockOpt" s (\fd -> cGetSockOpt fd level name (castPtr p) len)
  peek p
  where
    -- 'sizeOf' looks at the type only.
    unread :: Ptr a -> a
    unread _ = errorWithoutStackTrace "Weft.Socket.getSockOpt"

-- | The type of a socket: stream, datagram and so on (@SO_TYPE@).
getSocketType :: Socket -> IO SocketType
getSocketType s = GeneralSocketType <$> getSockOpt s Type
