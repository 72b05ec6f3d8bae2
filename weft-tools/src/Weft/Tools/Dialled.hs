-- |
-- Description : Errors of dialling, as the tools report them
--
-- The tools have words for errors of the system. An error of 'Weft.Dial' that has one cause becomes that cause.
module Weft.Tools.Dialled
  ( dialled,
    dialError,
  )
where

import Control.Exception (handle)
import Data.Maybe (fromMaybe, listToMaybe)
import System.IO.Error (doesNotExistErrorType, ioeSetErrorString, mkIOError)
import Weft.Dial (DialError (..), Failure (..))
import Weft.Transport (timeoutError)

-- | Run an action; a 'DialError' becomes an 'IOError'.
dialled :: IO a -> IO a
dialled = handle (ioError . dialError)

-- | That of the last address that refused; a timeout if none has, and something that does not exist if the name has no
-- address.
dialError :: DialError -> IOError
dialError e = case e of
  NotFound _ why -> ioeSetErrorString (mkIOError doesNotExistErrorType "dial" Nothing Nothing) (show why)
  NoneConnected _ failures -> fromMaybe (timeoutError "dial") (listToMaybe [err | (_, Refused err) <- reverse failures])
