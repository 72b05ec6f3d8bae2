/* Whose options of GHC's run-time system follow +RTS in the arguments. `weft trace PROGRAM` and `weft bench run PROGRAM`
   pass everything behind PROGRAM on, and so the run-time system of weft itself must leave their arguments alone
   (-rtsopts=ignore). GHCRTS, and +RTS in the arguments of the other commands, are for weft.

   GHC's main calls hs_main; the linker has it call this instead (--wrap). */

#include <Rts.h>
#include <stdbool.h>
#include <string.h>

int __real_hs_main(int argc, char *argv[], StgClosure *main_closure, RtsConfig config);

static bool passes_arguments_on(int argc, char *argv[]) {
  if (argc < 3)
    return false;
  if (strcmp(argv[1], "trace") == 0)
    return strcmp(argv[2], "view") != 0;
  return strcmp(argv[1], "bench") == 0 && strcmp(argv[2], "run") == 0;
}

int __wrap_hs_main(int argc, char *argv[], StgClosure *main_closure, RtsConfig config) {
  if (passes_arguments_on(argc, argv))
    config.rts_opts_enabled = RtsOptsIgnore;
  return __real_hs_main(argc, argv, main_closure, config);
}
