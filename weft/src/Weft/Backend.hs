-- |
-- Which event mechanism of the kernel the program's managers use. The preferred one of the
-- platform is taken unless the environment variable @WEFT_BACKEND@ or
-- 'preferBackend' names another.
--
-- If the kernel refuses the named back end (io_uring in many containers), the platform's
-- preferred one is used; @weft doctor@ and 'backendChoice' report that, with the reason. A name
-- that does not exist is an error.
--
-- Without @-threaded@ there is one capability, and every call that blocks stops the program. Only
-- mechanisms that select(2) can wait for are available then (epoll, kqueue); the run-time system waits for them. The
-- first use prints a warning on standard error. "Weft.File" and "Weft.Blocking" stop the program for as long as a
-- call takes.
--
-- @since 0.1.0
module Weft.Backend
  ( -- * The back ends of this build
    backendNames,
    whyUnavailable,

    -- * Choosing
    preferBackend,
    backendChoice,
    Choice (..),
  )
where

import Weft.Backend.Choice
