-- |
-- Which event mechanism of the kernel the program's managers use. The preferred one of the
-- platform is taken unless the environment variable @WEFT_BACKEND@ or
-- 'preferBackend' names another.
--
-- A back end that is named but that the kernel refuses (io_uring in many
-- containers) gives way to the platform's preferred one; @weft doctor@ and
-- 'backendChoice' say so and why. A name that does not exist is an error.
--
-- Without @-threaded@ there is one capability, and every call that blocks stops the program. Then only a
-- mechanism that select(2) can wait for is available (epoll, kqueue), the run-time system waits for it, and
-- the first use says so on standard error. Files ("Weft.File") and "Weft.Blocking" stop the program for as long as a
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
