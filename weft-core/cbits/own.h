/* Closing what Weft has opened. */
#ifndef WEFT_OWN_H
#define WEFT_OWN_H
#include <sys/stat.h>
#include <unistd.h>

/* Close an eventfd, epoll instance or ring of ours, unless its number belongs to another file by now: a forked child may
 * have closed all descriptors that it inherited, and opened files of its own. Such kernel objects have no file type. */
static inline int weft_close_own(int fd) {
#ifdef __linux__
  struct stat st;
  if (fstat(fd, &st) < 0 || (st.st_mode & S_IFMT) != 0) return -1;
#endif
  return close(fd);
}

#endif
