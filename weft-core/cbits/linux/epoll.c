/* epoll with the interface that the Haskell code uses: arguments by value, a timeout in nanoseconds, and -errno as
 * the result, since errno itself does not survive a change of OS thread. */
#define _GNU_SOURCE
#include "clock.h"
#include "own.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int weft_epoll_create(void) {
  int fd = epoll_create1(EPOLL_CLOEXEC);
  return fd < 0 ? -errno : fd;
}

void weft_epoll_close(int epfd) { weft_close_own(epfd); }

int weft_epoll_ctl(int epfd, int op, int fd, uint32_t events, uint64_t data) {
  struct epoll_event ev = {.events = events, .data = {.u64 = data}};
  return epoll_ctl(epfd, op, fd, &ev) < 0 ? -errno : 0;
}

int weft_epoll_look(int epfd, struct epoll_event *evs, int n) {
  int r = epoll_wait(epfd, evs, n, 0);
  return r < 0 ? -errno : r;
}

#ifdef SYS_epoll_pwait2
/* Whether the kernel lacks or forbids epoll_pwait2. Written, once or a few times, by the first threads that wait with a
 * timeout; read by all that do. */
static atomic_int without_pwait2;
#endif

/* Wait for events; ns < 0 waits for ever. Without epoll_pwait2 (before Linux 5.11) the timeout is rounded up to
 * milliseconds: late, never early. */
int weft_epoll_wait(int epfd, struct epoll_event *evs, int n, int64_t ns) {
  int r;
  if (ns < 0) {
    r = epoll_wait(epfd, evs, n, -1);
    return r < 0 ? -errno : r;
  }
  weft_be_punctual();
#ifdef SYS_epoll_pwait2
  if (!atomic_load_explicit(&without_pwait2, memory_order_relaxed)) {
    struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    r = syscall(SYS_epoll_pwait2, epfd, evs, n, &ts, 0, 0);
    if (r >= 0) return r;
    if (errno != ENOSYS && errno != EPERM) return -errno;
    atomic_store_explicit(&without_pwait2, 1, memory_order_relaxed);
  }
#endif
  int64_t ms = ns / 1000000 + (ns % 1000000 != 0);
  r = epoll_wait(epfd, evs, n, ms > INT32_MAX ? INT32_MAX : (int)ms);
  return r < 0 ? -errno : r;
}
