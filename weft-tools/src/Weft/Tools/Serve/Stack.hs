{-# LANGUAGE MultiWayIf #-}

-- |
-- Description : @--stack@
--
-- A TCP/IP stack in the program ("Weft.Tcp") in place of the kernel's, for @weft serve@ and @weft get@.
module Weft.Tools.Serve.Stack
  ( StackChoice (..),
    stackFrom,
    withChosenStack,
    withStackListeners,
  )
where

import Control.Exception (bracket, bracketOnError, catch)
import Control.Monad (unless, when)
import Data.Bits (shiftR)
import GHC.IO.Exception (IOException (ioe_description))
import System.IO.Error (isAlreadyInUseError, isDoesNotExistError, isPermissionError)
import Weft.Duration (seconds)
import Weft.Socket (Family (AF_INET, AF_INET6), SocketType (Datagram), bind, close, defaultProtocol, socket)
import Weft.Tcp hiding (close)
import Weft.Tcp.Capture (captureTo)
import Weft.Tcp.Device (Device (..))
import Weft.Tcp.Device.Tun
import Weft.Tools.Serve.Messages (logError)
import Weft.Transport (Listener (..), Transport (..))

-- | A TUN device and the stack's address on it.
data StackChoice = StackChoice !String !Address
  deriving (Eq, Show)

-- | From @tun:NAME,ADDRESS@. The address has to be one that another host can send packets to.
stackFrom :: String -> Either String StackChoice
stackFrom text = case break (== ':') text of
  ("tun", ':' : rest)
    | (name, ',' : digits) <- break (== ',') rest,
      not (null name),
      Just address <- parseAddress digits ->
      if
          | length name > 15 -> Left ("the name of an interface has at most 15 characters, which " <> show name <> " has not")
          | ofHost address -> Right (StackChoice name address)
          | otherwise -> Left ("expected the address of a host, not " <> digits)
  _ -> Left ("expected tun:NAME,ADDRESS, not " <> show text)
  where
    -- Neither "this host", loopback, multicast nor reserved.
    ofHost (V4 a) = a `shiftR` 24 `notElem` [0, 127] && a < 0xe0000000
    ofHost (V6 a b) = not (a == 0 && b <= 1) && a `shiftR` 56 /= 0xff

-- | Run an action with a stack, whose settings are the changed defaults. Its packets are logged if a file is given.
-- Warns if no packet can reach the stack. Throws an 'IOError' with the reason if the device cannot be used.
withChosenStack :: StackChoice -> Maybe FilePath -> (Config -> Config) -> (Stack -> IO a) -> IO a
withChosenStack (StackChoice name address) capture change act = case capture of
  Nothing -> run Nothing
  Just path -> bracket (captureTo path (endedEarly path)) snd (run . Just . fst)
  where
    run tap = bracketOnError (openTun (tunNamed name) `catch` unusable) deviceClose $ \device -> do
      warnUnreachable (deviceName device) address
      let usual = defaultSettings [address]
      withStack usual {stackTap = tap, stackConfig = change (stackConfig usual)} device (\st -> act st <* drainStack (seconds 1) st)
    endedEarly path e = logError ("weft: the packet log " <> path <> " ends here: " <> ioe_description e)
    unusable e = ioError (userError ("the TUN device " <> name <> " cannot be used: " <> ioe_description e <> advice e))
    advice e
      | isPermissionError e = "; opening one needs CAP_NET_ADMIN, or a device made for this user: ip tuntap add dev " <> name <> " mode tun user NAME"
      | isAlreadyInUseError e = "; another program has it open"
      | isDoesNotExistError e = "; is there a /dev/net/tun?"
      | otherwise = ""

-- | Warn of mistakes because of which the kernel passes no packets to a stack.
warnUnreachable :: String -> Address -> IO ()
warnUnreachable name address = do
  up <- interfaceIsUp name `catch` unknown True
  unless up $ warn ("the interface " <> name <> " is down, so no packet reaches the stack: ip link set " <> name <> " up")
  -- The kernel lets a program bind only to its own addresses.
  taken <- (True <$ bracket (socket family Datagram defaultProtocol) close (`bind` toSockAddr 0 address)) `catch` unknown False
  when taken $ warn ("the kernel has the address " <> showAddress address <> " itself, so no packet for it reaches the stack; choose another one of the interface's network")
  where
    warn text = logError ("weft: warning: " <> text)
    family = case address of V4 _ -> AF_INET; V6 _ _ -> AF_INET6
    unknown :: a -> IOException -> IO a
    unknown a _ = pure a

-- | Run an action with a listener of the stack on a port, and the stack, with send buffers of the given number of
-- bytes; 0 is the default. Without a choice there is neither. Throws as 'withChosenStack'.
withStackListeners :: Maybe StackChoice -> Int -> Int -> ([Listener] -> Maybe Stack -> IO a) -> IO a
withStackListeners Nothing _ _ act = act [] Nothing
withStackListeners (Just choice@(StackChoice _ address)) port buffer act = withChosenStack choice Nothing buffered $ \st ->
  bracket (transportListen (tcpTransport st) (toSockAddr (fromIntegral port) address)) listenerClose (\l -> act [l] (Just st))
  where
    -- With less than the initial window, segments would wait for acknowledgments one by one.
    buffered cfg = if buffer > 0 then cfg {sendBuffer = max 16384 buffer} else cfg
