/* ppoll with a timeout in nanoseconds (negative: for ever) and -errno as the
 * result. Systems without ppoll round up to milliseconds. */
#define _GNU_SOURCE
#include "clock.h"
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <time.h>

int weft_poll(struct pollfd *fds, unsigned long n, int64_t ns) {
  if (ns >= 0) weft_be_punctual();
#if defined(__linux__) || defined(__FreeBSD__)
  struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  int r = ppoll(fds, n, ns < 0 ? 0 : &ts, 0);
#else
  int64_t ms = ns < 0 ? -1 : ns / 1000000 + (ns % 1000000 != 0);
  int r = poll(fds, n, ms > INT32_MAX ? INT32_MAX : (int)ms);
#endif
  return r < 0 ? -errno : r;
}

int weft_poll_look(struct pollfd *fds, unsigned long n) {
  int r;
  do r = poll(fds, n, 0);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}
