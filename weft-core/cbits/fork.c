/* Counts the forks behind this process image, so that a child made by
 * forkProcess can tell with one memory read that it is not its parent. */
#include <pthread.h>
#include <stdint.h>

uint32_t weft_fork_generation = 0;

static void in_child(void) { weft_fork_generation++; }

__attribute__((constructor)) static void weft_watch_forks(void) {
  pthread_atfork(0, 0, in_child);
}
