/* The clock, and the precision of the kernel's timers. */
#define _GNU_SOURCE
#include "clock.h"
#include <stdint.h>
#include <time.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#ifndef CLOCK_MONOTONIC_COARSE
#define CLOCK_MONOTONIC_COARSE CLOCK_MONOTONIC
#endif

/* The monotonic clock as of the kernel's last tick, which is cheaper to read, plus
 * more than a tick (10 ms at the longest): never behind the real one. */
int64_t weft_coarse_now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec + 10000000;
}

/* The kernel may delay a thread's wake-ups by its timer slack, to join them with others: 50 us by default, less for
 * the calling thread from now on (doc/rationale/timers.md). One system call in the life of a thread. */
void weft_be_punctual(void) {
#ifdef PR_SET_TIMERSLACK
  static _Thread_local int done;
  if (!done) {
    prctl(PR_SET_TIMERSLACK, 20000UL);
    done = 1;
  }
#endif
}
