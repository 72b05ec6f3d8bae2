-- |
-- Description : A learning-switch controller
--
-- The controller of weft-openflow with one application; what carries its connections differs: Weft's sockets, or those
-- of the @network@ package on GHC's own manager. (Its timers, of which none is due under load, are Weft's in both.)
module Main (main) where

import Net (counters, serveInTurn)
import NetConnection (connection)
import Setup (announce, subject)
import Weft.OpenFlow.App (perSwitch)
import Weft.OpenFlow.Controller
import Weft.OpenFlow.Learning (learningSwitch)

main :: IO ()
main = subject counters $ \port ->
  withBareController settings (perSwitch learningSwitch) $ \controller ->
    serveInTurn port announce (\sock -> connection sock >>= serveConnection controller)
  where
    settings = defaultSettings {settingsTopology = Nothing, settingsPortStats = Nothing}
