/* The lock of a folder, for Weft.Tools.Serve.FolderLock: flock(2), which ends with the process. */

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

/* A descriptor that closing unlocks; -EWOULDBLOCK if another process has the lock; otherwise -errno: the folder cannot be
 * read, or its file system has no locks. */
int weft_lock_folder(const char *path) {
  int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return -errno;
  if (flock(fd, LOCK_EX | LOCK_NB) == 0) return fd;
  int e = errno;
  close(fd);
  return -e;
}
