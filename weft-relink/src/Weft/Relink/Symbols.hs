{-# LANGUAGE TemplateHaskell #-}
{-# OPTIONS_GHC -Wno-missed-extra-shared-lib #-}

-- |
-- The linker's names of the functions of "Weft.Relink.Entry". They contain this package's
-- unit id, with a hash that is not known beforehand. The compiler knows it here, and
-- puts the code and closure of each function under a fixed name, for @cbits\/relink.c@.
--
-- @since 0.1.0
module Weft.Relink.Symbols
  (
  )
where

import Language.Haskell.TH (Loc (loc_package), location)
import Language.Haskell.TH.Syntax (ForeignSrcLang (LangC), addForeignSource)

$( do
     unit <- loc_package <$> location
     let -- GHC's encoding of names for linkers (GHC.Utils.Encoding).
         encoded c = case c of
           'z' -> "zz"
           'Z' -> "ZZ"
           '-' -> "zm"
           '.' -> "zi"
           '_' -> "zu"
           '+' -> "zp"
           _ -> [c]
         symbol name part = concatMap encoded unit <> "_WeftziRelinkziEntry_" <> name <> part
         fixed name =
           unlines
             [ "extern const char " <> symbol name "_info" <> "[], " <> symbol name "_closure" <> "[];",
               "const void *const weft_relink_our_" <> name <> "[2] = {" <> symbol name "_info" <> ", " <> symbol name "_closure" <> "};"
             ]
     addForeignSource LangC . concatMap fixed $
       [ "threadWait",
         "threadWaitSTM",
         "closeFdWith",
         "threadDelay",
         "registerDelay",
         "timeout",
         "timeoutExported",
         "timeoutUnboxed",
         "ensureIOManagerIsRunning"
       ]
     pure []
 )
