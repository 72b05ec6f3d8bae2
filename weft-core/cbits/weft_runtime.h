/* Everything of GHC's run-time system that C code of Weft's packages uses, and what Haskell code of theirs imports from
 * it or takes for granted of its layout. That code includes this header and no header of GHC's, so this is what a new
 * GHC has to be compared with. The compiler does most of that: a second declaration of a function has to agree with
 * GHC's own, and the assertions have to hold. The suite `relink` links a program with each function, and looks that no
 * source uses what is not here.
 *
 * Not here: functions of base and ghc-internal, which weft-relink redirects (the list in relink.c), and what the test
 * suites use. */
#ifndef WEFT_RUNTIME_H
#define WEFT_RUNTIME_H

#undef BLOCK_SIZE /* <linux/fs.h>, which comes before this header, has another one */
#include <Rts.h>
#include <stddef.h>

/* X(result, name, parameters). */
#define WEFT_RUNTIME_FUNCTIONS(X) \
  /* MVars that C fills, when a ring for files has completed something (HsFFI.h; GHC User's Guide, "hs_try_putmvar"). */ \
  X(void, hs_try_putmvar, (int capability, HsStablePtr mvar)) \
  X(void, hs_free_stable_ptr, (HsStablePtr p)) \
  /* Begin and end of a program, which weft-tools and weft-relink have the linker redirect (--wrap). */ \
  X(int, hs_main, (int argc, char *argv[], StgClosure *main_closure, RtsConfig config)) \
  X(void, hs_exit, (void)) \
  X(void, hs_exit_nowait, (void)) \
  /* What weft-relink asks as a program starts. */ \
  X(HsBool, rtsSupportsBoundThreads, (void)) \
  X(StgStablePtr, getStablePtr, (StgPtr p)) \
  /* What the run-time system does when a signal comes: Weft.Signal changes it and puts it back. */ \
  X(int, stg_sig_install, (int signal, int action, void *mask)) \
  /* The number of a thread: Weft.FFI.ThreadNumber takes its lower 32 bits. The type was long at first. */ \
  X(__typeof__(rts_getThreadId((StgPtr)0)), rts_getThreadId, (StgPtr thread))

#define WEFT_RUNTIME_DECLARE(result, name, parameters) result name parameters;
WEFT_RUNTIME_FUNCTIONS(WEFT_RUNTIME_DECLARE)
#undef WEFT_RUNTIME_DECLARE

/* The actions that Weft.FFI.Signal names. */
_Static_assert(STG_SIG_ERR == -3 && STG_SIG_HAN == -4, "stg_sig_install");

/* Which options of the run-time system a program takes: weft-tools has those ignored that are another program's. */
_Static_assert(sizeof(((RtsConfig *)0)->rts_opts_enabled) == sizeof(RtsOptsIgnoreAll), "RtsConfig");

/* The table before a function's code, with its arity and the kinds of its arguments: weft-relink compares it, and
 * writes one in assembly (relink.c). */
_Static_assert(sizeof(StgFunInfoTable) <= 48, "StgFunInfoTable");
_Static_assert(sizeof(StgFunInfoTable) - offsetof(StgFunInfoTable, f.fun_type) == 24, "StgFunInfoTable");
_Static_assert(sizeof((StgFunInfoTable *)0)->f.fun_type == 4 && sizeof((StgFunInfoTable *)0)->f.arity == 4, "StgFunInfoExtra");
enum { WEFT_RUNTIME_KINDS = ARG_NONE + ARG_P + ARG_PP + ARG_NP + FUN_STATIC }; /* all of these exist */

/* An array of 448 elements gets blocks of its own, which nothing else lies in and no collection moves (newOwnArray of
 * Weft.Sys). */
_Static_assert(448 * sizeof(StgPtr) > LARGE_OBJECT_THRESHOLD, "large objects");

#endif
