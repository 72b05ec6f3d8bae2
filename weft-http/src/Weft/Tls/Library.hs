-- |
-- The functions of @cbits\/tls.c@, which uses OpenSSL 3. No policy: what is waited for, sent and reported is decided in
-- "Weft.Tls.Stream", which certificates there are in "Weft.Tls.Credentials".
--
-- Contexts, tables and keys may be used by any threads at the same time, an 'Endpoint' by one. All are freed when
-- nothing refers to them, an endpoint also by 'release'. Calls that may take long ('handshakeSlowly', loading) are
-- @safe@. What cannot be allocated throws an @IOError@.
module Weft.Tls.Library
  ( -- * Contexts
    Context,
    Role (..),
    newContext,
    addCertificate,
    setKey,
    KeyOutcome (..),
    signs,
    slow,
    ownCertificate,
    trustPem,
    trustSystem,
    trustAnything,

    -- * What servers choose from
    NameTable,
    newNameTable,
    nameIn,
    TicketKeys,
    newTicketKeys,

    -- * Connections
    Endpoint,
    acceptEndpoint,
    connectEndpoint,
    release,
    Failure (..),
    Outcome (..),
    handshake,
    handshakeSlowly,
    Reading (..),
    AfterReading (..),
    readClear,
    writeClear,
    endClear,
    takeOutput,
    dropOutput,
    outputSize,
    recordBegun,

    -- * After a handshake
    isVersion13,
    cipherNumber,
    isResumed,
    chosenProtocol,
    askedName,
    peerChain,
    keyLines,

    -- * Certificates
    decodedPem,
    subjectIn,
    namesIn,
    validityIn,
  )
where

import Control.Exception (throwIO)
import Control.Monad (forM_, when)
import Data.ByteString (ByteString)
import qualified Data.ByteString as B
import qualified Data.ByteString.Char8 as B8
import qualified Data.ByteString.Internal as B (create, createAndTrim, fromForeignPtr, mallocByteString, toForeignPtr)
import Data.Foldable (fold)
import Data.Set (Set)
import qualified Data.Set as Set
import Foreign
import Foreign.C
import GHC.ForeignPtr (unsafeWithForeignPtr)
import GHC.IO.Exception (IOErrorType (ResourceExhausted), IOException (..))
import System.IO.Unsafe (unsafePerformIO)
import Weft.Transport (Region (..))

-- Contexts -----------------------------------------------------------------------------

data CContext

-- | Settings for many connections (@SSL_CTX@): a certificate with its chain and key, or trusted authorities. It must
-- not be changed once it is used.
newtype Context = Context (ForeignPtr CContext)

-- | What a context is for.
data Role
  = -- | The seconds for which sessions can be resumed, 0 for never; and whether TLS 1.2 is refused.
    ServerRole !Int !Bool
  | ClientRole

-- | An empty context, and whether its connections tell their keys ('keyLines').
newContext :: Role -> Bool -> IO Context
newContext role tellsKeys = do
  started <- c_start
  when (started == 0) (throwIO exhausted)
  p <- case role of
    ServerRole life only13 -> c_context 1 (fromIntegral life) (flag tellsKeys) (flag only13)
    ClientRole -> c_context 0 0 (flag tellsKeys) 0
  Context <$> owned c_contextFree p
  where
    flag b = if b then 1 else 0

-- | Add a certificate, a block in PEM: the first is the context's own. If it cannot be read, the result is 'Nothing',
-- and if it is refused, the reason.
addCertificate :: Context -> ByteString -> IO (Maybe (Either String ()))
addCertificate context block = withContext context $ \x -> withBytes block $ \at n -> withReason $ \why size -> do
  r <- c_addCertificate x (castPtr at) (fromIntegral n) why size
  case r of
    1 -> pure (Just (Right ()))
    -2 -> Just . Left <$> peekCString why
    _ -> pure Nothing

-- | Whose key a text holds.
data KeyOutcome
  = -- | That of the context's own certificate, and it is set.
    KeySet
  | -- | That of the certificate with this number in the chain, counted from 1.
    KeyOfOther Int
  | -- | That of no certificate in the chain.
    KeyOfNone
  | -- | It cannot be read or used, and why.
    KeyUnusable String

-- | Set the key of the own certificate: the first one in a text in PEM.
setKey :: Context -> ByteString -> IO KeyOutcome
setKey context text = withContext context $ \x -> withBytes text $ \at n -> withReason $ \why size -> do
  r <- c_setKey x (castPtr at) (fromIntegral n) why size
  case r of
    1 -> pure KeySet
    0 -> pure KeyOfNone
    other | other > 1 -> pure (KeyOfOther (fromIntegral other))
    _ -> KeyUnusable <$> peekCString why

-- | Whether the own certificate's key may sign (key usage).
signs :: Context -> IO Bool
signs context = (/= 0) <$> withContext context c_signs

-- | Whether to sign with its key takes hundreds of microseconds: RSA, and curves other than P-256 and Ed25519.
slow :: Context -> IO Bool
slow context = (/= 0) <$> withContext context c_slow

-- | The own certificate, in DER.
ownCertificate :: Context -> IO ByteString
ownCertificate context = withContext context $ \x -> encoded (c_own x)

-- | Trust the certificates in a text in PEM. Returns how many there are.
trustPem :: Context -> ByteString -> IO Int
trustPem context text = withContext context $ \x -> withBytes text $ \at n -> fromIntegral <$> c_trust x (castPtr at) (fromIntegral n)

-- | Trust the authorities of the system (and of @SSL_CERT_FILE@ and @SSL_CERT_DIR@).
trustSystem :: Context -> IO ()
trustSystem context = withContext context $ \x -> c_trustSystem x >>= \r -> when (r == 0) (throwIO exhausted)

-- | Accept any certificate.
trustAnything :: Context -> IO ()
trustAnything context = withContext context c_trustAnything

-- What servers choose from ---------------------------------------------------------------

data CNames

-- | Contexts by the name that a client asks for, and the names. Not changed once it is made.
data NameTable = NameTable !(ForeignPtr CNames) !(Set ByteString)

-- | The table's own string that is equal, if there is one.
nameIn :: NameTable -> ByteString -> Maybe ByteString
nameIn (NameTable _ names) name = (`Set.elemAt` names) <$> Set.lookupIndex name names

-- | The contexts, of which the first is for unknown names; and the number of the context for each name, in lower case
-- and in ascending order. A name may have a wildcard for its leftmost label. If a client's name matches an exact one
-- and a wildcard, the context with the lower number is taken. Looked up in O(log n).
newNameTable :: [Context] -> [(ByteString, Int)] -> IO NameTable
newNameTable contexts names = do
  table <- c_names (fromIntegral (length contexts)) (fromIntegral (length names)) >>= owned c_namesFree
  withForeignPtr table $ \t -> do
    forM_ contexts $ \context -> withContext context (c_namesContext t)
    forM_ names $ \(name, number) -> withBytes name $ \at n -> do
      r <- c_namesName t (castPtr at) (fromIntegral n) (fromIntegral number)
      when (r == 0) (throwIO exhausted)
  pure (NameTable table (Set.fromDistinctAscList (map fst names)))

data CTickets

-- | Keys of session tickets: one that makes them, and earlier ones that can still read theirs.
newtype TicketKeys = TicketKeys (ForeignPtr CTickets)

-- | A new random key before earlier ones, of which the two latest are kept.
newTicketKeys :: Maybe TicketKeys -> IO TicketKeys
newTicketKeys earlier = TicketKeys <$> (maybe (c_tickets nullPtr) (\(TicketKeys keys) -> withForeignPtr keys c_tickets) earlier >>= owned c_ticketsFree)

-- Connections ----------------------------------------------------------------------------

data CEndpoint

-- | One end of a session, whose bytes lie in memory. One thread may use it at a time.
newtype Endpoint = Endpoint (ForeignPtr CEndpoint)

-- | A server's end: the contexts, the keys of tickets if there are any, the authorities of clients and whether a client
-- has to show a certificate, and the application protocols. The endpoint refers to the first three until its handshake
-- is done: the caller keeps them by the action that is returned, to be run then.
acceptEndpoint :: NameTable -> Maybe TicketKeys -> Maybe (Context, Bool) -> [ByteString] -> IO (Endpoint, IO ())
acceptEndpoint (NameTable names _) keys authorities protocols = do
  p <- unsafeWithForeignPtr names $ \n -> orNull (fmap (\(TicketKeys k) -> k) keys) $ \k -> orNull (fmap (\(Context a, _) -> a) authorities) $ \a ->
    withBytes (protocolList protocols) $ \at size -> c_accept n k a (maybe 0 (\(_, required) -> if required then 1 else 0) authorities) at (fromIntegral size)
  endpoint <- Endpoint <$> owned c_free p
  pure (endpoint, touchForeignPtr names >> mapM_ (\(TicketKeys k) -> touchForeignPtr k) keys >> mapM_ (\(Context a, _) -> touchForeignPtr a) authorities)
  where
    orNull = maybe ($ nullPtr) unsafeWithForeignPtr

-- | A client's end: the trusted authorities, the context of its own certificate, the name or the bytes of the address
-- of the server, and the application protocols that it offers.
connectEndpoint :: Context -> Maybe Context -> Either ByteString ByteString -> [ByteString] -> IO Endpoint
connectEndpoint trusted own server protocols =
  withContext trusted $ \x -> maybe ($ nullPtr) withContext own $ \o -> withBytes (protocolList protocols) $ \at size -> do
    let connect name address n = c_connect x o name address n at (fromIntegral size)
    p <- case server of
      Left name -> B.useAsCString name $ \n -> connect n nullPtr 0
      Right address -> withBytes address $ \a n -> connect nullPtr a (fromIntegral n)
    Endpoint <$> owned c_free p

-- | RFC 7301, 3.1. Names that are empty or too long do not exist.
protocolList :: [ByteString] -> ByteString
protocolList names = B.concat [B.cons (fromIntegral (B.length name)) name | name <- names, not (B.null name), B.length name < 256]

-- | Free it. It must not be used afterwards. The second time, nothing happens.
release :: Endpoint -> IO ()
release (Endpoint p) = finalizeForeignPtr p

-- | Why a call failed.
data Failure
  = -- | A fault in what the peer sent, or its alert.
    Fault String
  | -- | The peer's certificate was not accepted.
    Distrust String

-- | The outcome of a step of a handshake.
data Outcome = HandshakeDone | HandshakeWaits | HandshakeFailed Failure

-- | Go on with a handshake, with bytes that were received. Returns what was not taken of them. Output may be there in
-- any case.
handshake, handshakeSlowly :: Endpoint -> ByteString -> IO (Outcome, ByteString)
handshake = handshakeBy c_handshake

-- | The same in a safe call, for steps that sign or verify.
handshakeSlowly = handshakeBy c_handshakeSlowly

handshakeBy :: (Ptr CEndpoint -> Ptr Word8 -> CSize -> IO CInt) -> Endpoint -> ByteString -> IO (Outcome, ByteString)
handshakeBy step (Endpoint fp) input = withForeignPtr fp $ \p -> do
  r <- withKeptBytes input $ \at n -> step p at (fromIntegral n)
  left <- peekLeft p
  outcome <- case r of
    1 -> pure HandshakeDone
    0 -> pure HandshakeWaits
    _ -> HandshakeFailed <$> failureOf r p
  pure (outcome, B.drop (B.length input - left) input)

-- | What was read.
data Reading
  = -- | At least one byte.
    Clear !ByteString
  | -- | More has to be received.
    NeedsMore
  | -- | The peer ended the stream (close_notify).
    StreamEnded
  | ReadingFailed !Failure

-- | What a call that reads leaves.
data AfterReading = AfterReading
  { -- | What was not taken of the bytes that were received.
    readLeft :: !ByteString,
    -- | Whether something can be read without receiving.
    readMore :: !Bool,
    -- | The size of the output that waits.
    readOutput :: !Int
  }

-- | Decrypt at most that number of bytes, with bytes that were received.
readClear :: Endpoint -> ByteString -> Int -> IO (Reading, AfterReading)
readClear (Endpoint fp) input most = unsafeWithForeignPtr fp $ \p -> do
  pending <- peekPending p
  begun <- peekBegun p
  -- What is encrypted is longer than its text.
  let room = max 1 (min most (pending + begun + B.length input))
  memory <- B.mallocByteString room
  r <- withBytes input $ \at n -> unsafeWithForeignPtr memory $ \to -> c_read p at (fromIntegral n) to (fromIntegral room)
  left <- peekLeft p
  more <- peekPending p
  output <- peekOutput p
  let n = fromIntegral r
  reading <- case r of
    0 -> pure NeedsMore
    -1 -> pure StreamEnded
    _
      | r < 0 -> ReadingFailed <$> failureOf (fromIntegral r) p
      | room - n <= 64 -> pure (Clear (B.fromForeignPtr memory 0 n))
      | otherwise -> pure (Clear (B.copy (B.fromForeignPtr memory 0 n)))
  pure (reading, AfterReading (B.drop (B.length input - left) input) (more > 0) output)

-- | Encrypt pieces of memory, one after the other, in as few records as possible. Whether it succeeds.
writeClear :: Endpoint -> [Region] -> IO Bool
writeClear (Endpoint fp) pieces = (== 1) <$> unsafeWithForeignPtr fp write
  where
    write p = case pieces of
      -- Without a table: a head and a body, or both in one.
      [Region at n] -> c_writeTwo p at (fromIntegral n) nullPtr 0
      [Region at n, Region at' n'] -> c_writeTwo p at (fromIntegral n) at' (fromIntegral n')
      _ -> let count = length pieces in allocaBytes (16 * count) (\table -> fill table pieces >> c_write p table (fromIntegral count))
    fill :: Ptr (Ptr Word8, CSize) -> [Region] -> IO ()
    fill _ [] = pure ()
    fill table (Region at n : rest) = pokeByteOff table 0 at >> pokeByteOff table 8 n >> fill (table `plusPtr` 16) rest

-- | Encrypt the alert close_notify.
endClear :: Endpoint -> IO ()
endClear (Endpoint fp) = unsafeWithForeignPtr fp $ \p -> () <$ c_end p

-- | Take the output that waits: its memory, to be freed by 'dropOutput'.
takeOutput :: Endpoint -> IO Region
takeOutput (Endpoint fp) = unsafeWithForeignPtr fp $ \p -> do
  n <- peekOutput p
  at <- if n == 0 then pure nullPtr else c_take p
  pure (Region at n)

-- | The size of the output that waits.
outputSize :: Endpoint -> IO Int
outputSize (Endpoint fp) = unsafeWithForeignPtr fp peekOutput

-- | How many bytes of a record that is not complete were taken.
recordBegun :: Endpoint -> IO Int
recordBegun (Endpoint fp) = unsafeWithForeignPtr fp peekBegun

-- After a handshake ----------------------------------------------------------------------

-- | Whether the version is TLS 1.3; else it is 1.2.
isVersion13 :: Endpoint -> IO Bool
isVersion13 (Endpoint fp) = (== 0x0304) <$> unsafeWithForeignPtr fp c_version

-- | The number of the cipher suite.
cipherNumber :: Endpoint -> IO Word16
cipherNumber (Endpoint fp) = fromIntegral <$> unsafeWithForeignPtr fp c_cipher

-- | Whether a session was resumed.
isResumed :: Endpoint -> IO Bool
isResumed (Endpoint fp) = (/= 0) <$> unsafeWithForeignPtr fp c_resumed

-- | The application protocol.
chosenProtocol :: Endpoint -> IO (Maybe ByteString)
chosenProtocol (Endpoint fp) = withForeignPtr fp (\p -> borrowed (c_protocol p))

-- | The name that the client asks its server for.
askedName :: Endpoint -> IO (Maybe ByteString)
askedName (Endpoint fp) = withForeignPtr fp (\p -> borrowed (c_asked p))

-- | The peer's certificates in DER, its own first.
peerChain :: Endpoint -> IO [ByteString]
peerChain (Endpoint fp) = withForeignPtr fp $ \p -> go p 0
  where
    go p i = do
      certificate <- encoded (c_peer p i)
      if B.null certificate then pure [] else (certificate :) <$> go p (i + 1)

-- | The lines of the session's keys, if the context tells them.
keyLines :: Endpoint -> IO ByteString
keyLines (Endpoint fp) = withForeignPtr fp (\p -> fold <$> borrowed (c_keys p))

-- Certificates -----------------------------------------------------------------------------

-- | A certificate in PEM, in DER.
decodedPem :: ByteString -> Maybe ByteString
decodedPem text = unsafePerformIO . withBytes text $ \at n -> do
  der <- encoded (c_decoded (castPtr at) (fromIntegral n))
  pure (if B.null der then Nothing else Just der)

-- | Of a certificate in DER, the subject, as RFC 2253 writes it; empty if the certificate cannot be read.
subjectIn :: ByteString -> ByteString
subjectIn der = unsafePerformIO . withBytes der $ \at n ->
  B.createAndTrim 4096 $ \to -> max 0 . fromIntegral <$> c_subject at (fromIntegral n) (castPtr to) 4096

-- | The alternative names of the DNS, or if there are no alternative names, the common names.
namesIn :: ByteString -> [ByteString]
namesIn der = unsafePerformIO . withBytes der $ \at n ->
  B8.lines <$> B.createAndTrim size (\to -> max 0 . fromIntegral <$> c_namesOf at (fromIntegral n) (castPtr to) (fromIntegral size))
  where
    -- A name of the DNS takes more in DER.
    size = B.length der + 1

-- | The seconds since 1970 between which it is valid.
validityIn :: ByteString -> Maybe (Int64, Int64)
validityIn der = unsafePerformIO . withBytes der $ \at n -> alloca $ \from -> alloca $ \until' -> do
  r <- c_validity at (fromIntegral n) from until'
  if r == 0 then Just <$> ((,) <$> peek from <*> peek until') else pure Nothing

-- Helpers ----------------------------------------------------------------------------------

withContext :: Context -> (Ptr CContext -> IO a) -> IO a
withContext (Context fp) = withForeignPtr fp

-- | Not for actions that wait or diverge.
withBytes :: ByteString -> (Ptr Word8 -> Int -> IO a) -> IO a
withBytes bytes act = unsafeWithForeignPtr fp (\p -> act (p `plusPtr` off) n)
  where
    (fp, off, n) = B.toForeignPtr bytes
{-# INLINE withBytes #-}

-- | For safe calls.
withKeptBytes :: ByteString -> (Ptr Word8 -> Int -> IO a) -> IO a
withKeptBytes bytes act = withForeignPtr fp (\p -> act (p `plusPtr` off) n)
  where
    (fp, off, n) = B.toForeignPtr bytes

owned :: FinalizerPtr a -> Ptr a -> IO (ForeignPtr a)
owned finalizer p
  | p == nullPtr = throwIO exhausted
  | otherwise = newForeignPtr finalizer p

exhausted :: IOException
exhausted = IOError Nothing ResourceExhausted "Weft.Tls" "OpenSSL has no memory, or refuses its settings" Nothing Nothing

withReason :: (CString -> CSize -> IO a) -> IO a
withReason act = allocaBytes 256 $ \why -> poke why 0 >> act why 256

failureOf :: CInt -> Ptr CEndpoint -> IO Failure
failureOf r p = (if r == -3 then Distrust else Fault) <$> (c_error p >>= peekCString)

-- | A copy of bytes whose address and size a function tells.
borrowed :: (Storable n, Integral n) => (Ptr n -> IO (Ptr a)) -> IO (Maybe ByteString)
borrowed find = alloca $ \size -> do
  at <- find size
  n <- peek size
  if at == nullPtr then pure Nothing else Just <$> B.packCStringLen (castPtr at, fromIntegral n)

-- | A certificate that a function writes, which also tells its size; empty if there is none.
encoded :: (Ptr Word8 -> IO CInt) -> IO ByteString
encoded write = do
  size <- fromIntegral <$> write nullPtr
  if size <= 0 then pure B.empty else B.create size (\to -> () <$ write to)

-- The first fields of @struct connection@.
peekLeft, peekOutput, peekPending, peekBegun :: Ptr CEndpoint -> IO Int
peekLeft p = peekByteOff p 0
peekOutput p = peekByteOff p 8
peekPending p = peekByteOff p 16
peekBegun p = peekByteOff p 24

foreign import ccall unsafe "weft_tls_start" c_start :: IO CInt

foreign import ccall safe "weft_tls_context" c_context :: CInt -> CLong -> CInt -> CInt -> IO (Ptr CContext)

foreign import ccall "&weft_tls_context_free" c_contextFree :: FinalizerPtr CContext

foreign import ccall safe "weft_tls_add_certificate" c_addCertificate :: Ptr CContext -> CString -> CInt -> CString -> CSize -> IO CInt

foreign import ccall safe "weft_tls_set_key" c_setKey :: Ptr CContext -> CString -> CInt -> CString -> CSize -> IO CInt

foreign import ccall unsafe "weft_tls_signs" c_signs :: Ptr CContext -> IO CInt

foreign import ccall unsafe "weft_tls_slow" c_slow :: Ptr CContext -> IO CInt

foreign import ccall unsafe "weft_tls_own" c_own :: Ptr CContext -> Ptr Word8 -> IO CInt

foreign import ccall safe "weft_tls_trust" c_trust :: Ptr CContext -> CString -> CInt -> IO CInt

foreign import ccall safe "weft_tls_trust_system" c_trustSystem :: Ptr CContext -> IO CInt

foreign import ccall unsafe "weft_tls_trust_anything" c_trustAnything :: Ptr CContext -> IO ()

foreign import ccall unsafe "weft_tls_names" c_names :: CSize -> CSize -> IO (Ptr CNames)

foreign import ccall "&weft_tls_names_free" c_namesFree :: FinalizerPtr CNames

foreign import ccall unsafe "weft_tls_names_context" c_namesContext :: Ptr CNames -> Ptr CContext -> IO ()

foreign import ccall unsafe "weft_tls_names_name" c_namesName :: Ptr CNames -> CString -> CInt -> CInt -> IO CInt

foreign import ccall unsafe "weft_tls_tickets" c_tickets :: Ptr CTickets -> IO (Ptr CTickets)

foreign import ccall "&weft_tls_tickets_free" c_ticketsFree :: FinalizerPtr CTickets

foreign import ccall unsafe "weft_tls_accept" c_accept :: Ptr CNames -> Ptr CTickets -> Ptr CContext -> CInt -> Ptr Word8 -> CUInt -> IO (Ptr CEndpoint)

foreign import ccall unsafe "weft_tls_connect" c_connect :: Ptr CContext -> Ptr CContext -> CString -> Ptr Word8 -> CSize -> Ptr Word8 -> CUInt -> IO (Ptr CEndpoint)

foreign import ccall "&weft_tls_free" c_free :: FinalizerPtr CEndpoint

foreign import ccall unsafe "weft_tls_error" c_error :: Ptr CEndpoint -> IO CString

foreign import ccall unsafe "weft_tls_handshake" c_handshake :: Ptr CEndpoint -> Ptr Word8 -> CSize -> IO CInt

foreign import ccall safe "weft_tls_handshake_slowly" c_handshakeSlowly :: Ptr CEndpoint -> Ptr Word8 -> CSize -> IO CInt

foreign import ccall unsafe "weft_tls_read" c_read :: Ptr CEndpoint -> Ptr Word8 -> CSize -> Ptr Word8 -> CSize -> IO CLong

foreign import ccall unsafe "weft_tls_write" c_write :: Ptr CEndpoint -> Ptr (Ptr Word8, CSize) -> CSize -> IO CInt

foreign import ccall unsafe "weft_tls_write_two" c_writeTwo :: Ptr CEndpoint -> Ptr Word8 -> CSize -> Ptr Word8 -> CSize -> IO CInt

foreign import ccall unsafe "weft_tls_end" c_end :: Ptr CEndpoint -> IO CInt

foreign import ccall unsafe "weft_tls_take" c_take :: Ptr CEndpoint -> IO (Ptr Word8)

-- | Free the memory that 'takeOutput' returned.
foreign import ccall unsafe "weft_tls_drop" dropOutput :: Ptr Word8 -> IO ()

foreign import ccall unsafe "weft_tls_version" c_version :: Ptr CEndpoint -> IO CInt

foreign import ccall unsafe "weft_tls_cipher" c_cipher :: Ptr CEndpoint -> IO CInt

foreign import ccall unsafe "weft_tls_resumed" c_resumed :: Ptr CEndpoint -> IO CInt

foreign import ccall unsafe "weft_tls_protocol" c_protocol :: Ptr CEndpoint -> Ptr CUInt -> IO (Ptr Word8)

foreign import ccall unsafe "weft_tls_asked" c_asked :: Ptr CEndpoint -> Ptr CSize -> IO (Ptr Word8)

foreign import ccall unsafe "weft_tls_keys" c_keys :: Ptr CEndpoint -> Ptr CSize -> IO CString

foreign import ccall unsafe "weft_tls_peer" c_peer :: Ptr CEndpoint -> CInt -> Ptr Word8 -> IO CInt

foreign import ccall unsafe "weft_certificate_decoded" c_decoded :: CString -> CInt -> Ptr Word8 -> IO CInt

foreign import ccall unsafe "weft_certificate_subject" c_subject :: Ptr Word8 -> CLong -> CString -> CInt -> IO CInt

foreign import ccall unsafe "weft_certificate_names" c_namesOf :: Ptr Word8 -> CLong -> CString -> CInt -> IO CInt

foreign import ccall unsafe "weft_certificate_validity" c_validity :: Ptr Word8 -> CLong -> Ptr Int64 -> Ptr Int64 -> IO CInt
