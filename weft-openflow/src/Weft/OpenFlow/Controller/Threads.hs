-- |
-- Threads of a controller. Each belongs to a scope: that of the controller, of a switch's connection, or of a member of
-- a cluster. None of them ends its scope: what it throws is reported, since one switch, callback or application that
-- fails must not concern the others. Any thread may call these functions.
module Weft.OpenFlow.Controller.Threads
  ( spawn,
    labelled,
    reportingFailures,
  )
where

import Control.Exception (AsyncException (ThreadKilled), SomeException, catch, fromException, throwIO)
import Control.Monad (void)
import Weft.OpenFlow.Controller.Types
import Weft.Scope (Child (..), Scope, ScopeEnded (..), daemon, forkUsing)

-- | Fork a thread of a scope. It is killed and awaited when the scope ends. Its exceptions are reported by
-- 'settingsOnIncident'. Does nothing if the scope has ended or is ending.
spawn :: Controller -> Scope -> Child -> IO () -> IO ()
spawn c scope child act = void (forkUsing child scope (reportingFailures c act `catch` quietly)) `catch` \ScopeEnded -> pure ()
  where
    quietly e = case e of
      ThreadKilled -> pure ()
      _ -> throwIO e

-- | A thread with this label that ends with its scope.
labelled :: String -> Child
labelled label = daemon {childLabel = Just label}

-- | Run an action, and report its exceptions, except 'ThreadKilled', by which a scope ends its threads.
reportingFailures :: Controller -> IO () -> IO ()
reportingFailures c act = act `catch` failed
  where
    failed :: SomeException -> IO ()
    failed e = case fromException e of
      Just ThreadKilled -> throwIO ThreadKilled
      _ -> report c (Failed e)
