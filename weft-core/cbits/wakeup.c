/* A descriptor whose only use is to interrupt a poll: an eventfd where there is
 * one, else a pipe. */
#define _GNU_SOURCE
#include "own.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/eventfd.h>
#endif

static int prepare(int fd) {
  int fl = fcntl(fd, F_GETFL);
  if (fl < 0 || fcntl(fd, F_SETFL, fl | O_NONBLOCK) < 0) return -errno;
  return fcntl(fd, F_SETFD, FD_CLOEXEC) < 0 ? -errno : 0;
}

/* Fills fds with the end to poll and the end to write; equal for an eventfd. */
int weft_wakeup_open(int *fds, int want_pipe) {
#ifdef __linux__
  if (!want_pipe) {
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd >= 0) {
      fds[0] = fds[1] = fd;
      return 0;
    }
  }
#endif
  if (pipe(fds) < 0) return -errno;
  int a = prepare(fds[0]), b = prepare(fds[1]);
  if (a < 0 || b < 0) {
    close(fds[0]);
    close(fds[1]);
    return a < 0 ? a : b;
  }
  return 0;
}

/* A full pipe or counter is as good as a write: the reader will be woken. */
int weft_wakeup_signal(int fd, int is_pipe) {
  uint64_t one = 1;
  ssize_t r;
  do r = write(fd, &one, is_pipe ? 1 : sizeof one);
  while (r < 0 && errno == EINTR);
  return r < 0 && errno != EAGAIN ? -errno : 0;
}

void weft_wakeup_drain(int fd) {
  char sink[512];
  ssize_t r;
  do r = read(fd, sink, sizeof sink);
  while (r == (ssize_t)sizeof sink || (r < 0 && errno == EINTR));
}

void weft_wakeup_close(int fd, int is_pipe) {
  if (is_pipe)
    close(fd);
  else
    weft_close_own(fd);
}
