/* A library for LD_PRELOAD. One call in three that reads or writes a file transfers a part of what it was asked for, as a
   kernel may do; with SHORT_SOCKETS also one that reads or writes a stream socket or a pipe. When the process exits, it
   appends the number of these calls to the file FAULT_COUNTS.

   SHORT_SOCKETS is for back ends that are level-triggered. With edge-triggered ones a short count of a stream means that
   nothing is left to read, or no room to write: epoll(7) promises that, and Weft relies on it.

   Calls for up to 512 bytes of a pipe are left alone: POSIX promises that a write of up to PIPE_BUF bytes is whole, and
   GHC's run-time system relies on that for signals. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_ulong shortened;
static _Thread_local uint64_t state;

static uint64_t drawn(void) {
  if (!state) state = (uintptr_t)&state | 1;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static int may_shorten(int fd, size_t n) {
  struct stat s;
  int type;
  socklen_t size = sizeof type;
  if (n < 2 || fstat(fd, &s)) return 0;
  if (S_ISREG(s.st_mode)) return 1;
  if (!getenv("SHORT_SOCKETS")) return 0;
  if (S_ISSOCK(s.st_mode)) return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) && type == SOCK_STREAM;
  return S_ISFIFO(s.st_mode) && n > 512;
}

/* Past the page cache a part is whole blocks. */
static size_t part(int fd, size_t n) {
  enum { BLOCK = 4096 };
  int direct = fcntl(fd, F_GETFL) & O_DIRECT;
  if (drawn() % 3 || !may_shorten(fd, n) || (direct && n <= BLOCK)) return n;
  atomic_fetch_add(&shortened, 1);
  if (direct) return BLOCK * (1 + drawn() % ((n - 1) / BLOCK));
  return drawn() % 4 ? 1 + drawn() % (n - 1) : 1;
}

/* Copies vectors, the last one shortened. Returns their number. */
static int parts(int fd, const struct iovec *from, int count, struct iovec *to) {
  size_t all = 0, left;
  int used = 0;
  if (count < 1 || count > 64) return 0;
  for (int i = 0; i < count; i++) all += from[i].iov_len;
  left = part(fd, all);
  if (left == all) return 0;
  while (left) {
    to[used] = from[used];
    if (to[used].iov_len > left) to[used].iov_len = left;
    left -= to[used++].iov_len;
  }
  return used;
}

#define REAL(name) \
  static __typeof__(name) *real; \
  if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

ssize_t read(int fd, void *to, size_t n) { REAL(read); return real(fd, to, part(fd, n)); }
ssize_t write(int fd, const void *from, size_t n) { REAL(write); return real(fd, from, part(fd, n)); }
ssize_t recv(int fd, void *to, size_t n, int flags) { REAL(recv); return real(fd, to, part(fd, n), flags); }
ssize_t send(int fd, const void *from, size_t n, int flags) { REAL(send); return real(fd, from, part(fd, n), flags); }
ssize_t pread(int fd, void *to, size_t n, off_t at) { REAL(pread); return real(fd, to, part(fd, n), at); }
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) { REAL(pwrite); return real(fd, from, part(fd, n), at); }
ssize_t pread64(int fd, void *to, size_t n, off64_t at) { REAL(pread64); return real(fd, to, part(fd, n), at); }
ssize_t pwrite64(int fd, const void *from, size_t n, off64_t at) { REAL(pwrite64); return real(fd, from, part(fd, n), at); }

ssize_t recvfrom(int fd, void *to, size_t n, int flags, struct sockaddr *address, socklen_t *size) {
  REAL(recvfrom);
  return real(fd, to, part(fd, n), flags, address, size);
}

ssize_t sendto(int fd, const void *from, size_t n, int flags, const struct sockaddr *address, socklen_t size) {
  REAL(sendto);
  return real(fd, from, part(fd, n), flags, address, size);
}

ssize_t readv(int fd, const struct iovec *vectors, int count) {
  REAL(readv);
  struct iovec v[64];
  int used = parts(fd, vectors, count, v);
  return used ? real(fd, v, used) : real(fd, vectors, count);
}

ssize_t writev(int fd, const struct iovec *vectors, int count) {
  REAL(writev);
  struct iovec v[64];
  int used = parts(fd, vectors, count, v);
  return used ? real(fd, v, used) : real(fd, vectors, count);
}

ssize_t preadv2(int fd, const struct iovec *vectors, int count, off_t at, int flags) {
  REAL(preadv2);
  struct iovec v[64];
  int used = parts(fd, vectors, count, v);
  return used ? real(fd, v, used, at, flags) : real(fd, vectors, count, at, flags);
}

ssize_t pwritev2(int fd, const struct iovec *vectors, int count, off_t at, int flags) {
  REAL(pwritev2);
  struct iovec v[64];
  int used = parts(fd, vectors, count, v);
  return used ? real(fd, v, used, at, flags) : real(fd, vectors, count, at, flags);
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags) {
  REAL(sendmsg);
  struct iovec v[64];
  struct msghdr m = *message;
  int used = m.msg_controllen ? 0 : parts(fd, m.msg_iov, (int)m.msg_iovlen, v);
  if (!used) return real(fd, message, flags);
  m.msg_iov = v;
  m.msg_iovlen = (size_t)used;
  return real(fd, &m, flags);
}

ssize_t sendfile(int out, int in, off_t *at, size_t n) { REAL(sendfile); return real(out, in, at, part(out, n)); }
ssize_t sendfile64(int out, int in, off64_t *at, size_t n) { REAL(sendfile64); return real(out, in, at, part(out, n)); }

__attribute__((destructor)) static void report(void) {
  const char *path = getenv("FAULT_COUNTS");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%lu\n", atomic_load(&shortened));
  fclose(file);
}
