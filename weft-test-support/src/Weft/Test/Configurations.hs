-- |
-- Suites run their tests in several configurations: back ends, numbers of capabilities, engines for files. Where
-- time is short, one of them is enough: @WEFT_TEST_CONFIGURATIONS=one@ (@scripts/matrix@ sets it).
module Weft.Test.Configurations
  ( configurations,
  )
where

import System.Environment (lookupEnv)

-- | All configurations; or, if only one is wanted, the first that satisfies the predicate (or else the first).
configurations :: (a -> Bool) -> [a] -> IO [a]
configurations preferred all' = do
  one <- oneConfiguration
  pure (if one then take 1 (filter preferred all' <> all') else all')

-- | Is @WEFT_TEST_CONFIGURATIONS@ set to @one@? Unset and @all@ mean no; anything else is an error.
oneConfiguration :: IO Bool
oneConfiguration = do
  set <- lookupEnv "WEFT_TEST_CONFIGURATIONS"
  case set of
    Nothing -> pure False
    Just "" -> pure False
    Just "all" -> pure False
    Just "one" -> pure True
    Just other -> ioError (userError ("WEFT_TEST_CONFIGURATIONS is " <> show other <> ": it is \"all\" or \"one\""))
