/* What has to be done before the program begins.
 *
 * Counting the forks behind this process image, so that a child made by
 * forkProcess can tell with one memory read that it is not its parent.
 *
 * Opening libgcc_s. The GNU C library opens it when the first thread ends by
 * pthread_exit(3), as spare threads of GHC's run-time system do, and aborts the
 * process if it cannot: a program that has no descriptor left when it no longer
 * needs a thread would end there. Here there are some. Where the C library is
 * another one, or the program is linked statically, nothing is done. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

uint32_t weft_fork_generation = 0;

static void in_child(void) { weft_fork_generation++; }

#ifdef __GLIBC__
#pragma weak dlopen
#endif

__attribute__((constructor)) static void weft_begin(void) {
  pthread_atfork(0, 0, in_child);
#ifdef __GLIBC__
  if (dlopen) dlopen("libgcc_s.so.1", RTLD_NOW);
#endif
}
