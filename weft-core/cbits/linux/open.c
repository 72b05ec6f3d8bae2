#define _GNU_SOURCE
#include "open.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static long call(int dir, const char *path, const struct open_how *how) {
  return syscall(SYS_openat2, dir, path, how, sizeof *how);
}

/* Whether the call is available. Found out once; threads that do so at once find the same. */
static int available(void) {
  enum { UNKNOWN, PRESENT, ABSENT };
  static int known;
  int found = __atomic_load_n(&known, __ATOMIC_RELAXED);
  if (found == UNKNOWN) {
    struct open_how how = {.flags = O_PATH | O_CLOEXEC};
    long fd = call(AT_FDCWD, "/", &how);
    if (fd >= 0) close((int)fd);
    /* Sandboxes refuse with EPERM what they do not know. An error of another kind, such as EMFILE, decides nothing. */
    if (fd < 0 && errno != ENOSYS && errno != EPERM) return 1;
    found = fd >= 0 ? PRESENT : ABSENT;
    __atomic_store_n(&known, found, __ATOMIC_RELAXED);
  }
  return found == PRESENT;
}

/* The next name of a path, copied to out, and the place behind it and the slashes that follow. 0 if it is too long. */
static const char *next_name(const char *path, char out[NAME_MAX + 1]) {
  size_t n = strcspn(path, "/");
  if (n > NAME_MAX) return 0;
  memcpy(out, path, n);
  out[n] = 0;
  return path + n + strspn(path + n, "/");
}

static long fails(int with) {
  errno = with;
  return -1;
}

/* Close all but the directory that the caller gave, and keep errno. */
static void leave(int at, int dir) {
  int with = errno;
  if (at != dir) close(at);
  errno = with;
}

static long open_beneath(int dir, const char *path, int flags, mode_t mode) {
  char name[NAME_MAX + 1];
  int at = dir;
  long fd = -1;
  if (!*path) return fails(ENOENT);
  if (*path == '/') return fails(EXDEV);
  for (;;) {
    const char *rest = next_name(path, name);
    if (!rest || strcmp(name, "..") == 0) {
      errno = rest ? EXDEV : ENAMETOOLONG;
      break;
    }
    if (!*rest) {
      int directory = rest > path + strlen(name) ? O_DIRECTORY : 0;
      fd = openat(at, name, flags | O_NOFOLLOW | directory, mode);
      break;
    }
    int below = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    leave(at, dir);
    if (below < 0) return -1;
    at = below;
    path = rest;
  }
  leave(at, dir);
  return fd;
}

long weft_openat2(int dir, const char *path, const struct open_how *how) {
  if (available()) return call(dir, path, how);
  if (how->resolve & RESOLVE_CACHED) return fails(EAGAIN);
  if (how->resolve & (RESOLVE_BENEATH | RESOLVE_IN_ROOT))
    return open_beneath(dir, path, (int)how->flags, (mode_t)how->mode);
  return openat(dir, path, (int)how->flags, (mode_t)how->mode);
}
