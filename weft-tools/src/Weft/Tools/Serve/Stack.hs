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
import GHC.IO.Exception (IOException (ioe_description))
import System.IO (hPutStrLn, stderr)
import System.IO.Error (isAlreadyInUseError, isDoesNotExistError, isPermissionError)
import Weft.Duration (seconds)
import Weft.Tcp
import Weft.Tcp.Capture (captureTo)
import Weft.Tcp.Device (Device (..))
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
  _ -> Left ("expected tun:NAME,ADDRESS, not " <> show text)

-- | Run an action with a stack. Its packets are logged if a file is given. Throws an 'IOError' with the reason if the
-- device cannot be used.
withChosenStack :: StackChoice -> Maybe FilePath -> (Stack -> IO a) -> IO a
withChosenStack (StackChoice name address) capture act = case capture of
  Nothing -> run Nothing
  Just path -> bracket (captureTo path (endedEarly path)) snd (run . Just . fst)
  where
    run tap = bracketOnError (openTun (tunNamed name) `catch` unusable) deviceClose $ \device ->
      withStack (defaultSettings [address]) {stackTap = tap} device (\st -> act st <* drainStack (seconds 1) st)
    endedEarly path e = hPutStrLn stderr ("weft: the packet log " <> path <> " ends here: " <> ioe_description e)
    unusable e = ioError (userError ("the TUN device " <> name <> " cannot be used: " <> ioe_description e <> advice e))
    advice e
      | isPermissionError e = "; opening one needs CAP_NET_ADMIN, or a device made for this user: ip tuntap add dev " <> name <> " mode tun user NAME"
      | isAlreadyInUseError e = "; another program has it open"
      | isDoesNotExistError e = "; is there a /dev/net/tun?"
      | otherwise = ""

-- | Run an action with a listener of the stack on a port, and the stack. Without a choice there is neither. Throws as
-- 'withChosenStack'.
withStackListeners :: Maybe StackChoice -> Int -> ([Listener] -> Maybe Stack -> IO a) -> IO a
withStackListeners Nothing _ act = act [] Nothing
withStackListeners (Just choice@(StackChoice _ address)) port act = withChosenStack choice Nothing $ \st ->
  bracket (transportListen (tcpTransport st) (toSockAddr (fromIntegral port) address)) listenerClose (\l -> act [l] (Just st))
