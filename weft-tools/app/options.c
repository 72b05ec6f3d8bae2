/* See cbits/options.c. `weft doctor` examines GHCRTS as that of the program that it is given. */

#include <stdbool.h>
#include <string.h>

bool weft_passes_options_on(int argc, char *argv[]);

bool weft_passes_options_on(int argc, char *argv[]) {
  if (argc > 1 && strcmp(argv[1], "doctor") == 0)
    return true;
  return argc > 2 && strcmp(argv[1], "trace") == 0 && strcmp(argv[2], "view") != 0;
}
