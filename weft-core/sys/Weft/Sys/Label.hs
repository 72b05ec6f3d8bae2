{-# LANGUAGE CPP #-}
{-# LANGUAGE MagicHash #-}
{-# LANGUAGE UnboxedTuples #-}

-- |
-- Labels of threads, for event logs, debuggers and lists of threads, that are encoded once and not for each thread:
-- "GHC.Conc"'s 'GHC.Conc.labelThread' takes longer than to fork the thread. A part of "Weft.Sys". Any thread may call
-- these functions.
module Weft.Sys.Label
  ( Label,
    threadLabel,
    labelText,
    setLabel,
  )
where

import GHC.Conc (ThreadId (ThreadId))
import GHC.Exts
import GHC.Foreign (withCStringLen)
import GHC.IO (IO (..), unsafePerformIO)
import System.IO (utf8)

-- | A label: its text, and what the run-time system takes, encoded when a thread first gets it.
data Label = Label String Encoded

-- | The text in UTF-8, pinned; as a C string until base 4.17, and without a zero byte from 4.18 on.
data Encoded = Encoded ByteArray#

-- | A label of that text. To be kept, at the top level of a module or for as long as threads get it.
threadLabel :: String -> Label
threadLabel text = Label text (unsafePerformIO (withCStringLen utf8 text copied))
  where
    copied (Ptr from, I# n) = IO $ \s -> case newPinnedByteArray# (n +# terminator) s of
      (# s1, bytes #) -> case copyAddrToByteArray# from bytes 0# n s1 of
        s2 -> case setByteArray# bytes n terminator 0# s2 of
          s3 -> case unsafeFreezeByteArray# bytes s3 of
            (# s4, frozen #) -> (# s4, Encoded frozen #)
    !(I# terminator) = terminatorSize

-- | The label's text.
labelText :: Label -> String
labelText (Label text _) = text

#if MIN_VERSION_base(4,18,0)
-- | Label a thread.
setLabel :: ThreadId -> Label -> IO ()
setLabel (ThreadId t) (Label _ (Encoded bytes)) = IO $ \s -> (# labelThread# t bytes s, () #)

terminatorSize :: Int
terminatorSize = 0
#else
-- | Label a thread.
setLabel :: ThreadId -> Label -> IO ()
setLabel (ThreadId t) (Label _ (Encoded bytes)) = IO $ \s -> case labelThread# t (byteArrayContents# bytes) s of
  s1 -> (# touch# bytes s1, () #)

terminatorSize :: Int
terminatorSize = 1
#endif
