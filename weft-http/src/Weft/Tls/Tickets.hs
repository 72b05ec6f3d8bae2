-- |
-- The keys of a server's session tickets (RFC 5077; RFC 8446, 4.6.1). The server keeps no sessions: a ticket contains
-- one, encrypted. All capabilities share the keys.
--
-- A key makes tickets for as long as a ticket lives, and reads them for as long again at least. It is replaced by the
-- first handshake after that. Whoever learns a key can read the tickets of that time, but no recorded TLS 1.3
-- connection, since each has an exchange of keys of its own.
module Weft.Tls.Tickets
  ( Tickets,
    newTickets,
    currentKeys,
  )
where

import Data.IORef
import Weft.Core.Time (Duration, Instant, after)
import Weft.Sys (now)
import Weft.Tls.Library (TicketKeys, newTicketKeys)

-- | Keys that rotate. Any thread may use them.
data Tickets
  = Tickets
      !Duration
      -- ^ How long a key makes tickets.
      !(IORef Current)
      -- ^ Written by a handshake that finds the key too old, read by each.

-- | The instant at which they are to be replaced, and the keys.
data Current = Current !Instant !TicketKeys

-- | New keys, for tickets that live so long.
newTickets :: Duration -> IO Tickets
newTickets life = Tickets life <$> (Current . after life <$> now <*> newTicketKeys Nothing >>= newIORef)

-- | The keys for a handshake that begins now.
currentKeys :: Tickets -> IO TicketKeys
currentKeys (Tickets life ref) = do
  t <- now
  Current end keys <- readIORef ref
  if t < end
    then pure keys
    else do
      newer <- newTicketKeys (Just keys)
      atomicModifyIORef' ref $ \current@(Current end' keys') ->
        -- Another handshake may have been first.
        if t < end' then (current, keys') else (Current (after life t) newer, newer)
