-- |
-- Description : @weft serve --stack@
--
-- A server on a TCP/IP stack in the program ("Weft.Tcp") in place of the kernel's.
module Weft.Tools.Serve.Stack
  ( StackChoice (..),
    stackFrom,
    withStackListeners,
  )
where

import Control.Exception (bracket)
import Weft.Tcp
import Weft.Tcp.Device.Tun
import Weft.Transport (Listener (..), Transport (..))

-- | A TUN device and the stack's address on it.
data StackChoice = StackChoice !String !Address
  deriving (Eq, Show)

-- | From @tun:NAME,ADDRESS@.
stackFrom :: String -> Either String StackChoice
stackFrom text = case break (== ':') text of
  ("tun", ':' : rest)
    | (name, ',' : digits) <- break (== ',') rest,
      not (null name),
      Just address <- parseAddress digits ->
      Right (StackChoice name address)
  _ -> Left ("tun:NAME,ADDRESS is wanted, not " <> show text)

-- | A listener of the stack on a port, beside an action; none without a choice. Throws an 'IOError' when the device
-- cannot be used.
withStackListeners :: Maybe StackChoice -> Int -> ([Listener] -> IO a) -> IO a
withStackListeners Nothing _ act = act []
withStackListeners (Just (StackChoice name address)) port act = do
  device <- openTun (tunNamed name)
  withStack (defaultSettings [address]) device $ \st ->
    bracket (transportListen (tcpTransport st) (toSockAddr (fromIntegral port) address)) listenerClose (act . pure)
