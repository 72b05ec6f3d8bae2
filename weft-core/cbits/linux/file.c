#define _GNU_SOURCE
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>
#include "open.h"

/* The most that a call copies while it blocks all other threads of a capability: 1 MiB takes some
 * 0.2 ms. One readv(2) takes a thousand parts. */
enum { MOST_AT_ONCE = 1 << 20, MOST_PARTS = 1024 };

/* The number of leading parts that hold at most that many bytes. */
static int first_parts(const struct iovec *parts, int count, size_t bytes, struct iovec *out) {
  int n = 0;
  for (; n < count && n < MOST_PARTS && bytes > 0; n++) {
    out[n] = parts[n];
    if (out[n].iov_len > bytes) out[n].iov_len = bytes;
    bytes -= out[n].iov_len;
  }
  return n;
}

/* One attempt: a read or write of a range at an offset, or with offset -1 at the
 * file's own position, as preadv2(2) has it too. */
static long transfer(const struct weft_file_op *op, int flags) {
  struct iovec one = {.iov_base = (void *)(uintptr_t)op->addr, .iov_len = op->len}, fewer[MOST_PARTS];
  int vectored = op->opcode == IORING_OP_READV || op->opcode == IORING_OP_WRITEV;
  const struct iovec *parts = vectored ? (const struct iovec *)(uintptr_t)op->addr : &one;
  int count = vectored ? (int)op->len : 1;
  if (flags & RWF_NOWAIT) {
    if (!vectored && one.iov_len > MOST_AT_ONCE) one.iov_len = MOST_AT_ONCE;
    if (vectored) count = first_parts(parts, count, MOST_AT_ONCE, fewer), parts = fewer;
  }
  if (op->opcode == IORING_OP_READ || op->opcode == IORING_OP_READV)
    return preadv2(op->fd, parts, count, (off_t)op->off, flags);
  return pwritev2(op->fd, parts, count, (off_t)op->off, flags);
}

static long open_at(const struct weft_file_op *op, uint64_t resolve) {
  struct open_how how = *(const struct open_how *)(uintptr_t)op->off;
  how.resolve |= resolve;
  return weft_openat2(op->fd, (const char *)(uintptr_t)op->addr, &how);
}

/* Where struct linux_dirent64 (getdents(2)) has its length and its name. */
enum { DIRENT_LENGTH = 16, DIRENT_NAME = 19 };

static long stat_names(const struct weft_file_op *op) {
  struct statx *out = (struct statx *)(uintptr_t)op->off;
  const char *entry = (const char *)(uintptr_t)op->addr, *end = entry + op->len;
  int n = 0;
  while (entry < end) {
    uint16_t length;
    if (statx(op->fd, entry + DIRENT_NAME, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &out[n]) < 0) {
      if (errno == EINTR) return -1;
      out[n].stx_mask = 0;
      out[n].stx_blksize = (uint32_t)errno;
    }
    n++;
    memcpy(&length, entry + DIRENT_LENGTH, sizeof length);
    entry += length;
  }
  return n;
}

static long run(const struct weft_file_op *op) {
  switch (op->opcode) {
  case IORING_OP_READ:
    if ((int64_t)op->off >= 0) return pread(op->fd, (void *)(uintptr_t)op->addr, op->len, (off_t)op->off);
    /* fall through */
  case IORING_OP_READV:
  case IORING_OP_WRITE:
  case IORING_OP_WRITEV:
    return transfer(op, 0);
  case IORING_OP_FSYNC:
    return op->flags & IORING_FSYNC_DATASYNC ? fdatasync(op->fd) : fsync(op->fd);
  case IORING_OP_FALLOCATE:
    return fallocate(op->fd, (int)op->len, (off_t)op->off, (off_t)op->addr);
  case IORING_OP_OPENAT2:
    return open_at(op, 0);
  case IORING_OP_STATX:
    return statx(op->fd, (const char *)(uintptr_t)op->addr, (int)op->flags, op->len,
                 (struct statx *)(uintptr_t)op->off);
  case WEFT_OP_NAMES:
    if (op->off == 0 && lseek(op->fd, 0, SEEK_SET) < 0) return -1;
    return syscall(SYS_getdents64, op->fd, (void *)(uintptr_t)op->addr, op->len);
  case WEFT_OP_STATS:
    return stat_names(op);
  default:
    errno = ENOSYS;
    return -1;
  }
}

int weft_file_run(uint8_t opcode, int32_t fd, uint64_t off, uint64_t addr, uint32_t len, uint32_t flags) {
  struct weft_file_op op = {opcode, fd, off, addr, len, flags};
  long r = run(&op);
  return r < 0 ? -errno : (int)r;
}

/* Copies data from the page cache, opens a path whose parts the kernel has cached, and
 * reads the attributes of an open file. A file system that cannot tell answers
 * -EOPNOTSUPP, which is treated as -EAGAIN. */
static long try(const struct weft_file_op *op) {
  switch (op->opcode) {
  case IORING_OP_READ:
  case IORING_OP_READV:
  case IORING_OP_WRITE:
  case IORING_OP_WRITEV:
    return transfer(op, RWF_NOWAIT);
#ifdef RESOLVE_CACHED
  case IORING_OP_OPENAT2: {
    /* Other parts of an open may take time too, unless the caller excludes them. */
    uint64_t flags = ((const struct open_how *)(uintptr_t)op->off)->flags;
    if (!(flags & O_NONBLOCK) || flags & (O_CREAT | O_TRUNC)) break;
    long r = open_at(op, RESOLVE_CACHED);
    if (r < 0 && errno == EINVAL) errno = EAGAIN; /* before Linux 5.12 */
    return r;
  }
#endif
  case IORING_OP_STATX:
    if (op->flags & AT_EMPTY_PATH && *(const char *)(uintptr_t)op->addr == 0) return run(op);
    break;
  }
  errno = EAGAIN;
  return -1;
}

/* A read of a named pipe, which has no RWF_NOWAIT. If no process has it open for writing, read(2) reports its end.
 * poll(2) does not, unless one had it open since the reader opened it; so whoever waits for the descriptor misses that.
 * vmsplice(2) reads without waiting also from a descriptor that can block, if that is not open for writing too. It
 * ignores the bounds of packets, so it is used on an empty pipe only. */
static long try_named_pipe(const struct weft_file_op *op) {
  struct iovec part = {.iov_base = (void *)(uintptr_t)op->addr, .iov_len = op->len};
  struct stat st;
  int flags, bytes;
  long r = -1;
  if (part.iov_len > MOST_AT_ONCE) part.iov_len = MOST_AT_ONCE;
  if (fstat(op->fd, &st) == 0 && S_ISFIFO(st.st_mode) && (flags = fcntl(op->fd, F_GETFL)) >= 0) {
    if (flags & O_NONBLOCK)
      r = readv(op->fd, &part, 1);
    else if ((flags & O_ACCMODE) == O_RDONLY && ioctl(op->fd, FIONREAD, &bytes) == 0 && bytes == 0)
      r = vmsplice(op->fd, &part, 1, SPLICE_F_NONBLOCK);
  }
  if (r < 0) errno = EAGAIN;
  return r;
}

int weft_file_try(uint8_t opcode, int32_t fd, uint64_t off, uint64_t addr, uint32_t len, uint32_t flags) {
  struct weft_file_op op = {opcode, fd, off, addr, len, flags};
  long r = try(&op);
  if (r < 0 && errno == EOPNOTSUPP && opcode == IORING_OP_READ && (int64_t)off == -1) r = try_named_pipe(&op);
  if (r >= 0) return (int)r;
  return errno == EOPNOTSUPP || errno == EINTR ? -EAGAIN : -errno;
}

int weft_file_open_waits(int32_t fd, uint64_t off, uint64_t addr) {
  struct open_how how = *(const struct open_how *)(uintptr_t)off;
  if (how.flags & O_NONBLOCK) return 0;
#ifdef RESOLVE_CACHED
  struct stat st;
  int looked, path;
  how.flags = O_PATH | O_CLOEXEC | (how.flags & (O_NOFOLLOW | O_DIRECTORY));
  how.mode = 0;
  how.resolve |= RESOLVE_CACHED;
  path = weft_openat2(fd, (const char *)(uintptr_t)addr, &how);
  if (path < 0) return errno == EAGAIN ? 2 : errno == EINVAL || errno == ENOSYS;
  looked = fstat(path, &st);
  close(path);
  return looked < 0 || !(S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
#else
  (void)fd, (void)addr;
  return 1;
#endif
}

/* statx(2) on an open file. It does not wait for files of a local file system. */
int weft_file_look(int fd, struct statx *out) {
  return statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, out) < 0 ? -errno : 0;
}

int weft_file_passes_cache(int fd) {
  int flags = fcntl(fd, F_GETFL);
  return flags < 0 ? -errno : (flags & O_DIRECT) != 0;
}

/* Local file systems: only this machine changes them, closing a file that was only read sends
 * no message, and a directory's ctime changes with every name that is added or removed. */
int weft_file_local(int fd) {
  static const uint64_t known[] = {
      0xef53,     /* ext2, ext3, ext4 */
      0x58465342, /* XFS */
      0x9123683e, /* btrfs */
      0x01021994, /* tmpfs */
      0xf2f52010, /* f2fs */
      0x794c7630, /* overlayfs */
      0x2fc12fc1, /* ZFS */
      0xca451a4e, /* bcachefs */
  };
  struct statfs fs;
  if (fstatfs(fd, &fs) < 0) return 0;
  for (unsigned i = 0; i < sizeof known / sizeof *known; i++)
    if (known[i] == ((uint64_t)fs.f_type & 0xffffffff)) return 1;
  return 0;
}

/* Close it if it has a name, so that this close does not release its space.
 * If another process removes the name in between, the close releases the space and takes longer. */
int weft_file_close_named(int fd) {
  struct stat st;
  if (fstat(fd, &st) < 0 || st.st_nlink == 0) return 0;
  close(fd);
  return 1;
}
