/* Which descriptors never block. */
#include <errno.h>
#include <sys/stat.h>

/* 1 for a descriptor on which nothing ever blocks (regular file, directory), 0 for any other, -errno (EBADF) when it is
 * not open. */
int weft_always_ready(int fd) {
  struct stat st;
  if (fstat(fd, &st) < 0) return -errno;
  return S_ISREG(st.st_mode) || S_ISDIR(st.st_mode);
}
