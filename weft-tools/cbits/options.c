/* For whom options of GHC's run-time system are, in GHCRTS and behind +RTS in the arguments. Some commands, such as
   `weft trace PROGRAM`, pass everything behind PROGRAM on, and their environment, too. The run-time system of this program
   must leave both alone there (-rtsopts=ignoreAll): it would refuse options that only the other program knows, such as -l.

   GHC's main calls hs_main; the linker has it call this instead (--wrap). */

#include "weft_runtime.h"
#include <stdbool.h>

/* Defined by each program. */
bool weft_passes_options_on(int argc, char *argv[]);

int __real_hs_main(int argc, char *argv[], StgClosure *main_closure, RtsConfig config);
int __wrap_hs_main(int argc, char *argv[], StgClosure *main_closure, RtsConfig config);

int __wrap_hs_main(int argc, char *argv[], StgClosure *main_closure, RtsConfig config) {
  if (weft_passes_options_on(argc, argv))
    config.rts_opts_enabled = RtsOptsIgnoreAll;
  return __real_hs_main(argc, argv, main_closure, config);
}
