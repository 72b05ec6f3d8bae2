/* A C program that starts Haskell's run-time system, calls a function, and ends the run-time system. */
#include "Rts.h"
#include <stdio.h>

extern void embedded_work(void);

int main(int argc, char **argv) {
  RtsConfig config = defaultRtsConfig;
  config.rts_opts_enabled = RtsOptsAll;
  hs_init_ghc(&argc, &argv, config);
  embedded_work();
  hs_exit();
  puts("ended");
  return 0;
}
