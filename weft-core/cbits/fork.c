/* Two tasks that have to be done before the program begins.
 *
 * The first counts the forks that led to this process, so that a child made by
 * forkProcess can tell with one memory read that it is not its parent.
 *
 * The second opens libgcc_s. The GNU C library opens it when the first thread ends by
 * pthread_exit(3), as spare threads of GHC's run-time system do, and aborts the
 * process if it cannot. A program without a free descriptor at that moment would be
 * aborted. At the start of the program there are free descriptors. With another C
 * library, and in statically linked programs, nothing is done: the latter contain what they need, and
 * dlopen(3) in them, which other libraries may have brought in, would load a second C library. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

uint32_t weft_fork_generation = 0;

static void in_child(void) { weft_fork_generation++; }

#ifdef __GLIBC__
#include <link.h>
#pragma weak dlopen

/* For dl_iterate_phdr(3), of the program, which comes first: does it name a dynamic linker? */
static int has_interpreter(struct dl_phdr_info *info, size_t size, void *found) {
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; i++)
    if (info->dlpi_phdr[i].p_type == PT_INTERP) *(int *)found = 1;
  return 1;
}
#endif

__attribute__((constructor)) static void weft_begin(void) {
  pthread_atfork(0, 0, in_child);
#ifdef __GLIBC__
  int dynamic = 0;
  dl_iterate_phdr(has_interpreter, &dynamic);
  if (dynamic && dlopen) dlopen("libgcc_s.so.1", RTLD_NOW);
#endif
}
