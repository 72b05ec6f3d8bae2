-- | Many datagrams by one system call: the calls of @cbits\/datagram.c@. None waits; they return a result or
-- @-errno@. The policy is in "Weft.Socket.Batch".
module Weft.FFI.Datagram
  ( mostMessages,
    nameRoom,
    receivedSize,
    sendingSize,
    cReceiveMany,
    cSendMany,
    cSegments,
    cCoalesce,
  )
where

import Data.Int (Int32)
import Data.Word (Word8)
import Foreign.C.Types (CInt (..), CSize (..))
import Foreign.Ptr (Ptr)
import Weft.FFI.Socket (IoVec)

-- | The most messages of a call.
mostMessages :: Int
mostMessages = 64

-- | The room in bytes for an address of a received message.
nameRoom :: Int
nameRoom = 128

-- | The number of fields of a @struct received@ (size, size of the address, whether it was truncated, size of its
-- segments or zero), and of a @struct sending@ (offset and size of the address, first piece, pieces, size of its
-- segments or zero).
receivedSize, sendingSize :: Int
receivedSize = 4
sendingSize = 5

-- | Memory, the room for each message in it, the number of messages, their addresses, and what is stored about them.
foreign import ccall unsafe "weft_receive_many"
  cReceiveMany :: CInt -> Ptr Word8 -> CSize -> CInt -> Ptr Word8 -> Ptr Int32 -> IO CInt

-- | Addresses, pieces, messages, and their number.
foreign import ccall unsafe "weft_send_many"
  cSendMany :: CInt -> Ptr Word8 -> Ptr IoVec -> Ptr Int32 -> CInt -> IO CInt

foreign import ccall unsafe "weft_segments" cSegments :: CInt -> IO CInt

foreign import ccall unsafe "weft_coalesce" cCoalesce :: CInt -> IO CInt
