-- |
-- What a server on Weft can do that Warp's settings have no words for.
module Weft.Warp.Options
  ( Options (..),
    defaultOptions,
  )
where

import Weft.Socket (SockAddr, Socket)
import Weft.Warp.Limits (Limits, Refusal)
import Weft.Warp.TLS (Tls)

-- | Options of 'Weft.Warp.withServerWith'. Begin with 'defaultOptions'.
data Options = Options
  { -- | Sockets that listen already, as those of systemd; the server closes them. When
    -- there is none it listens where the settings say.
    optionListeners :: ![Socket],
    -- | Speak TLS, and nothing else.
    optionTls :: !(Maybe Tls),
    -- | Refuse what is not in order, and what is too much. 'Nothing' leaves all to Warp, as
    -- it is without Weft.
    optionLimits :: !(Maybe Limits),
    -- | Called when a connection was refused, for logs and counters. It must not block.
    optionOnRefused :: !(SockAddr -> Refusal -> IO ())
  }

-- | Those of 'Weft.Warp.withServer': no TLS, no limits but Warp's.
defaultOptions :: Options
defaultOptions =
  Options
    { optionListeners = [],
      optionTls = Nothing,
      optionLimits = Nothing,
      optionOnRefused = \_ _ -> pure ()
    }
