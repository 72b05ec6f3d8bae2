-- |
-- Look-ups of c-ares, a library that asks name servers without waiting (<https://c-ares.org>): the calls of
-- @cbits/lookup.c@. None waits. Making one is @safe@, since it reads files. The policy is in "Weft.Resolver.Query".
module Weft.FFI.Ares
  ( Lookup,
    cLookupNew,
    cLookupFree,
    cLookupReusable,
    cLookupNdots,
    cLookupDomain,
    cLookupNextServer,
    cLookupAsk,
    cLookupStatus,
    cLookupCount,
    cLookupAddress,
    cLookupSockets,
    cLookupSocket,
    cLookupModes,
    cLookupTimeout,
    cLookupProcess,
    cStrError,
  )
where

import Data.Int (Int64)
import Data.Word (Word8)
import Foreign.C.String (CString)
import Foreign.C.Types (CInt (..))
import Foreign.Ptr (Ptr)

-- | A @struct weft_lookup@.
data Lookup

foreign import ccall safe "weft_lookup_new"
  cLookupNew :: CString -> CInt -> CInt -> CInt -> Ptr (Ptr Lookup) -> IO CInt

foreign import ccall unsafe "weft_lookup_free"
  cLookupFree :: Ptr Lookup -> IO ()

foreign import ccall unsafe "weft_lookup_reusable"
  cLookupReusable :: Ptr Lookup -> IO CInt

foreign import ccall unsafe "weft_lookup_ndots"
  cLookupNdots :: Ptr Lookup -> IO CInt

foreign import ccall unsafe "weft_lookup_domain"
  cLookupDomain :: Ptr Lookup -> CInt -> IO CString

foreign import ccall unsafe "weft_lookup_next_server"
  cLookupNextServer :: Ptr Lookup -> IO CInt

foreign import ccall unsafe "weft_lookup_ask"
  cLookupAsk :: Ptr Lookup -> CString -> CInt -> IO ()

foreign import ccall unsafe "weft_lookup_status"
  cLookupStatus :: Ptr Lookup -> CInt -> IO CInt

foreign import ccall unsafe "weft_lookup_count"
  cLookupCount :: Ptr Lookup -> CInt -> IO CInt

foreign import ccall unsafe "weft_lookup_address"
  cLookupAddress :: Ptr Lookup -> CInt -> CInt -> IO (Ptr Word8)

foreign import ccall unsafe "weft_lookup_sockets"
  cLookupSockets :: Ptr Lookup -> IO CInt

foreign import ccall unsafe "weft_lookup_socket"
  cLookupSocket :: Ptr Lookup -> CInt -> IO CInt

foreign import ccall unsafe "weft_lookup_modes"
  cLookupModes :: Ptr Lookup -> CInt -> IO CInt

foreign import ccall unsafe "weft_lookup_timeout"
  cLookupTimeout :: Ptr Lookup -> IO Int64

foreign import ccall unsafe "weft_lookup_process"
  cLookupProcess :: Ptr Lookup -> CInt -> CInt -> IO ()

foreign import ccall unsafe "ares_strerror"
  cStrError :: CInt -> IO CString
