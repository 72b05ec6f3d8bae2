-- |
-- Description : @weft tcp@
--
-- @weft tcp doctor@ tests whether this machine can run a TCP/IP stack in a program. It creates a network namespace
-- with a TUN device, transfers data between the kernel's stack and Weft's, and removes both. Exit status: 0 if
-- everything works, else 1. The other subcommands have their own modules.
module Weft.Tools.Tcp
  ( tcpCommand,
    tcpSubcommands,
  )
where

import Control.Concurrent (forkIO)
import Control.Exception (IOException, SomeException, bracket, try)
import Control.Monad (forever, unless, void, when)
import qualified Data.ByteString as B
import Data.Maybe (isNothing)
import Options.Applicative
import System.Directory (doesPathExist)
import System.Environment (getExecutablePath)
import System.Exit (ExitCode (..), exitWith)
import System.IO (hFlush, stdout)
import System.Posix.User (getEffectiveUserID)
import System.Process (readProcessWithExitCode)
import Weft.Duration (seconds)
import Weft.Tcp
import Weft.Tcp.Device (Device (..))
import Weft.Tcp.Device.Tun
import Weft.Tools.Subcommand
import Weft.Tools.Surroundings (findProgram)
import Weft.Tools.Tcp.Connections (connectionsCommand)
import Weft.Tools.Tcp.Replay (replayCommand)
import Weft.Transport

-- | Its subcommands.
tcpSubcommands :: [Subcommand]
tcpSubcommands = [connectionsCommand, subcommand "doctor" (info (pure doctor) (progDesc "Try the stack against the kernel's, in a temporary network namespace")), replayCommand]

-- | The subcommand.
tcpCommand :: Mod CommandFields (IO ())
tcpCommand = command "tcp" (info (hsubparser (subcommands tcpSubcommands) <|> hsubparser inside) (progDesc "Commands for weft's own TCP/IP stack" <> failureCode 2))
  where
    -- In a parser of its own: 'internal' hides all commands of a parser.
    inside = command "trial" (info (pure trial) (progDesc "The part of doctor that runs inside of the namespace")) <> internal

-- | Check the requirements, then continue in a namespace.
doctor :: IO ()
doctor = do
  user <- getEffectiveUserID
  tun <- doesPathExist "/dev/net/tun"
  absent <- filterMissing ["unshare", "ip"]
  let missing = ["this user is not root" | user /= 0] ++ ["there is no /dev/net/tun" | not tun] ++ ["the program " <> p <> " is missing" | p <- absent]
  unless (null missing) $ do
    mapM_ (putStrLn . ("cannot be tried: " <>)) missing
    exitWith (ExitFailure 1)
  self <- getExecutablePath
  (code, out, err) <- readProcessWithExitCode "timeout" ["60", "unshare", "-n", "--", self, "tcp", "trial"] ""
  putStr (out <> err)
  exitWith code
  where
    filterMissing ps = concat <$> mapM (\p -> (\found -> [p | isNothing found]) <$> findProgram p) ps

-- | The trial in a namespace of its own: each line has a step and its result. The first failure ends it.
trial :: IO ()
trial = do
  mapM_ tried [("without offload", False), ("with segmentation offload", True)]
  putStrLn "everything works"
  where
    tried (name, offload) = do
      device <- reported ("a TUN device " <> name) (setUp offload)
      reported ("1 MB through it, from the kernel to us and back, " <> name) (withStack (defaultSettings [ours]) device transfer)
      void (ip ["link", "del", deviceName device] >> pure ())
    setUp offload = do
      mapM_ ip [["link", "set", "lo", "up"], ["tuntap", "add", "dev", "weft0", "mode", "tun"], ["addr", "add", "10.9.0.1/24", "dev", "weft0"], ["link", "set", "weft0", "up"]]
      openTun (TunSettings "weft0" offload 1)
    ours = V4 0x0a090002
    transfer st = do
      l <- listen st Nothing 7
      -- When the stack is closed, accepting fails.
      _ <- forkIO (quietly (forever (accept l >>= \c -> forkIO (quietly (echo c) >> close c))))
      limit <- deadlineIn (seconds 20)
      bracket (transportConnect socketTransport limit (toSockAddr 7 ours)) connClose $ \c -> do
        let sent = B.pack (take 1000000 (cycle [0 .. 250]))
        _ <- forkIO (quietly (connSendBytes c limit sent >> connShutdownSend c limit))
        got <- receiveAll c limit []
        when (got /= sent) (ioError (userError "other bytes came back"))
    quietly act = void (try act :: IO (Either SomeException ()))
    echo c = recv c noDeadline 65536 >>= \b -> unless (B.null b) (send c noDeadline b >> echo c)
    receiveAll c limit parts = do
      b <- connReceive c limit 32768
      if B.null b then pure (B.concat (reverse parts)) else receiveAll c limit (b : parts)

ip :: [String] -> IO ()
ip args = do
  (code, _, err) <- readProcessWithExitCode "ip" args ""
  unless (code == ExitSuccess) (ioError (userError ("ip " <> unwords args <> ": " <> err)))

reported :: String -> IO a -> IO a
reported name act = do
  putStr (name <> ": ")
  hFlush stdout
  r <- try act
  case r of
    Right a -> a <$ (putStrLn "works" >> hFlush stdout)
    Left e -> putStrLn ("fails: " <> show (e :: IOException)) >> hFlush stdout >> exitWith (ExitFailure 1)
