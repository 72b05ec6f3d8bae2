/* Which descriptors never block. */
#define _GNU_SOURCE
#include <errno.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

/* 1 if there is nothing to wait for on a descriptor, 0 if it can be watched, -errno (EBADF) when it is not open. The
 * kernel decides: epoll refuses a file that cannot be polled (EPERM). Its type does not tell: of regular files, some in
 * /proc and /sys report changes (proc(5), /proc/self/mounts); of devices, /dev/null cannot be polled. If there is no
 * free descriptor for the question, the type decides. */
int weft_always_ready(int fd) {
  struct stat st;
  if (fstat(fd, &st) < 0) return -errno;
  if (S_ISSOCK(st.st_mode) || S_ISFIFO(st.st_mode)) return 0;
  int ep = epoll_create1(EPOLL_CLOEXEC);
  if (ep < 0) return S_ISREG(st.st_mode) || S_ISDIR(st.st_mode);
  struct epoll_event ev = {.events = 0};
  int r = epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) < 0 && errno == EPERM;
  close(ep);
  return r;
}
