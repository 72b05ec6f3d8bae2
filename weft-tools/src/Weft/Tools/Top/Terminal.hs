{-# LANGUAGE OverloadedStrings #-}

-- |
-- Description : The terminal of @weft top@
--
-- The alternate screen, its keys, and the signals that end, stop and continue the program. For one action at a time.
module Weft.Tools.Top.Terminal
  ( onTerminal,
  )
where

import Control.Concurrent (MVar, forkIO, killThread, modifyMVar_, myThreadId, newMVar, putMVar, throwTo)
import Control.Exception (bracket, catch)
import Control.Monad (forM_, unless, when)
import Data.Text (Text)
import qualified Data.Text as T
import qualified Data.Text.IO as T
import GHC.IO.Exception (IOException)
import System.Exit (ExitCode (..))
import System.IO
import System.Posix.IO (stdInput)
import System.Posix.Signals
import System.Posix.Terminal (TerminalState (Immediately), getTerminalAttributes, setTerminalAttributes)
import Weft.Tools.Top.Window (windowSize)

-- | The alternate screen. The thread that shows lines and the handlers of signals change it, and its terminal, while
-- they hold its 'MVar'.
data Screen = Screen
  { phase :: Phase,
    -- | The lines that were shown last.
    shownLast :: [Text]
  }

-- | A screen is first 'Entered'. SIGTSTP makes it 'Suspended', and SIGCONT 'Entered' again; at the end it is 'Closed'.
data Phase = Entered | Suspended | Closed
  deriving (Eq)

-- | Switch to the alternate screen without a cursor, and read keys on a thread: q and ESC fill the variable. The action
-- is given a function that shows lines in place of those before. The terminal is restored at the end, also after a
-- signal, and while the program is stopped by SIGTSTP (Ctrl-Z). When it is continued, the lines are shown again, in the
-- window's size of then.
onTerminal :: MVar () -> (([Text] -> IO ()) -> IO a) -> IO a
onTerminal quit act = endedBySignals $ do
  before <- getTerminalAttributes stdInput
  bracket ((,) <$> hGetBuffering stdin <*> hGetEcho stdin) (\(buffering, echo) -> hSetBuffering stdin buffering >> hSetEcho stdin echo) $ \_ -> do
    hSetBuffering stdin NoBuffering
    hSetEcho stdin False
    during <- getTerminalAttributes stdInput
    bracket (put enter >> newMVar (Screen Entered [])) (`modifyMVar_` close) $ \screen ->
      handling sigTSTP (modifyMVar_ screen (suspend before))
        . handling sigCONT (modifyMVar_ screen (continue during))
        . bracket (forkIO keys) killThread
        $ \_ -> act (modifyMVar_ screen . change)
  where
    put text = T.hPutStr stdout text >> hFlush stdout
    enter = "\ESC[?1049h\ESC[?25l"
    leave = "\ESC[?25h\ESC[?1049l"
    change shown screen = do
      when (phase screen == Entered) (paintInWindow shown)
      pure screen {shownLast = shown}
    -- By SIGSTOP, which cannot be ignored.
    suspend before screen = case phase screen of
      Entered -> do
        put leave
        setTerminalAttributes stdInput before Immediately
        screen {phase = Suspended} <$ raiseSignal sigSTOP
      _ -> pure screen
    -- 'Entered' already if it was stopped by SIGSTOP: the shell may have changed the terminal.
    continue during screen
      | phase screen == Closed = pure screen
      | otherwise = do
        setTerminalAttributes stdInput during Immediately
        when (phase screen == Suspended) (put enter)
        paintInWindow (shownLast screen)
        pure screen {phase = Entered}
    close screen = do
      when (phase screen == Entered) (put leave)
      pure screen {phase = Closed}
    keys = do
      ended <- isEOF
      unless ended $ do
        key <- getChar
        alone <- if key == '\ESC' then not <$> followed else pure False
        if alone || key `elem` ("qQ" :: String) then putMVar quit () else keys
    -- Whether the rest of an escape sequence follows, as for an arrow key: its bytes come together. It is dropped.
    followed = do
      more <- hWaitForInput stdin 100 `catch` \e -> False <$ pure (e :: IOException)
      when more $ getChar >>= \kind -> when (kind `elem` ("[O" :: String)) dropSequence
      pure more
    dropSequence = do
      ended <- isEOF
      unless ended $ getChar >>= \c -> unless (c >= '@' && c <= '~') dropSequence

-- | Let SIGTERM and SIGHUP end the action by an exception, so that its handlers run. A second signal ends the program
-- at once.
endedBySignals :: IO a -> IO a
endedBySignals act = do
  caller <- myThreadId
  let end signal = CatchOnce (throwTo caller (ExitFailure (128 + fromIntegral signal)))
      ending signal = bracket (installHandler signal (end signal) Nothing) (\before -> installHandler signal before Nothing) . const
  ending sigTERM (ending sigHUP act)

-- | Handle a signal during an action, unless it is ignored. Errors of a terminal that has gone are dropped: SIGHUP ends
-- the program.
handling :: Signal -> IO () -> IO a -> IO a
handling signal does = bracket install (\before -> installHandler signal before Nothing) . const
  where
    install = do
      before <- installHandler signal (Catch (does `catch` \e -> const (pure ()) (e :: IOException))) Nothing
      case before of
        Ignore -> before <$ installHandler signal Ignore Nothing
        _ -> pure before

-- | Show lines, as far as the window has room for them.
paintInWindow :: [Text] -> IO ()
paintInWindow shown = windowSize >>= \size -> paint (maybe id (T.take . snd) size) (maybe shown (`within` shown) size)

-- | The lines that fit into a window of the given lines and columns, above the line that explains how to quit; and the
-- number of lines that do not fit.
within :: (Int, Int) -> [Text] -> [Text]
within (height, width) shown
  | length shown < height = map (T.take width) shown
  | otherwise = map (T.take width) (take room shown <> ["... " <> T.pack (show (length shown - room)) <> " more lines in a higher window"])
  where
    room = max 0 (height - 2)

-- | Overwrite the screen line by line, so that it does not flicker, and cut the last line by the function.
paint :: (Text -> Text) -> [Text] -> IO ()
paint cut shown = do
  T.putStr "\ESC[H"
  forM_ shown $ \line -> T.putStr (line <> "\ESC[K\n")
  T.putStr ("\ESC[K" <> cut "Press q to quit." <> "\ESC[J")
  hFlush stdout
