/* The monotonic clock as of the kernel's last tick, which is cheaper to read, plus
 * more than a tick (10 ms at the longest): never behind the real one. */
#include <stdint.h>
#include <time.h>
#ifndef CLOCK_MONOTONIC_COARSE
#define CLOCK_MONOTONIC_COARSE CLOCK_MONOTONIC
#endif

int64_t weft_coarse_now(void) {
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
  return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec + 10000000;
}
