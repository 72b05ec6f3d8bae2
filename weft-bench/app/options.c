/* See cbits/options.c of weft-tools. */

#include <stdbool.h>
#include <string.h>

bool weft_passes_options_on(int argc, char *argv[]);

bool weft_passes_options_on(int argc, char *argv[]) {
  return argc > 1 && strcmp(argv[1], "run") == 0;
}
