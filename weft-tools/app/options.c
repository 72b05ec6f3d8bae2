/* For whom options of GHC's run-time system are, in GHCRTS and behind +RTS in the arguments. `weft trace PROGRAM` and
   `weft bench run PROGRAM` pass everything behind PROGRAM on, and their environment, too; `weft doctor` examines GHCRTS
   as that of the program. The run-time system of weft itself must leave both alone there (-rtsopts=ignoreAll): it would
   refuse options that only the program knows, such as -l. In the other commands they are for weft.

   GHC's main calls hs_main; the linker has it call this instead (--wrap). */

#include <Rts.h>
#include <stdbool.h>
#include <string.h>

int __real_hs_main(int argc, char *argv[], StgClosure *main_closure, RtsConfig config);

static bool are_for_a_program(int argc, char *argv[]) {
  if (argc > 1 && strcmp(argv[1], "doctor") == 0)
    return true;
  if (argc < 3)
    return false;
  if (strcmp(argv[1], "trace") == 0)
    return strcmp(argv[2], "view") != 0;
  return strcmp(argv[1], "bench") == 0 && strcmp(argv[2], "run") == 0;
}

int __wrap_hs_main(int argc, char *argv[], StgClosure *main_closure, RtsConfig config) {
  if (are_for_a_program(argc, argv))
    config.rts_opts_enabled = RtsOptsIgnoreAll;
  return __real_hs_main(argc, argv, main_closure, config);
}
