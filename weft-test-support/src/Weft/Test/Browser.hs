-- |
-- Pages in a real browser: headless Chromium.
module Weft.Test.Browser
  ( inBrowser,
  )
where

import Control.Exception (bracket)
import Control.Monad (unless)
import Data.List (isInfixOf, isPrefixOf, tails)
import System.Directory (getTemporaryDirectory, removePathForcibly)
import System.Exit (ExitCode (..))
import System.FilePath ((</>))
import System.IO (IOMode (WriteMode), hPutStr, hSetEncoding, utf8, withFile)
import System.Posix.Temp (mkdtemp)
import System.Process (readProcessWithExitCode)
import System.Timeout (timeout)
import Test.Tasty.HUnit (assertEqual, assertFailure)
import Weft.Test.Skip (needProgram)

-- | Show a page (HTML) in a window of the given width, in pixels, and run a JavaScript function body with its document
-- @d@ and its window @w@. The result is the words of the text that the function returns. Fails if the page writes to
-- the console, as it does on an error, or is not shown within 200 seconds; skips the test if there is no Chromium.
inBrowser :: Int -> String -> String -> IO [String]
inBrowser width page body = do
  needProgram "chromium"
  temporary <- getTemporaryDirectory
  bracket (mkdtemp (temporary </> "weft-page-")) removePathForcibly $ \folder -> do
    let file = folder </> "page.html"
        arguments =
          ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--user-data-dir=" <> folder </> "profile"]
            <> ["--window-size=1400,1000", "--dump-dom", "file://" <> file]
    withFile file WriteMode $ \handle -> hSetEncoding handle utf8 >> hPutStr handle framed
    seen <- timeout 200000000 (readProcessWithExitCode "chromium" arguments "")
    case seen of
      Nothing -> assertFailure "the browser did not end within 200 seconds"
      Just (code, dom, said) -> do
        assertEqual said ExitSuccess code
        let console = filter ("CONSOLE" `isInfixOf`) (lines said)
        unless (null console) (assertFailure (unlines console))
        case [takeWhile (/= '"') (drop (length mark) rest) | rest <- tails dom, mark `isPrefixOf` rest] of
          result : _ -> pure (words result)
          [] -> assertFailure "the page was not run"
  where
    mark = "data-result=\""
    -- A headless browser's window has a least width; a frame has none.
    framed =
      concat
        [ "<!DOCTYPE html><body><iframe style=\"border:0;height:900px;width:" <> show width <> "px\" srcdoc=\"",
          concatMap escaped page,
          "\"></iframe><script>const f = document.querySelector('iframe'), run = (d, w) => {" <> body <> "};",
          "f.onload = () => document.body.setAttribute('data-result', run(f.contentDocument, f.contentWindow))</script></body>"
        ]
    escaped c = case c of
      '"' -> "&quot;"
      '&' -> "&amp;"
      _ -> [c]
