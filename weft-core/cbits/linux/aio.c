/* Linux's native asynchronous I/O (io_submit(2)), for transfers that bypass the page cache. The
 * kernel finishes such a request in the disk's interrupt, whatever the thread that submitted it
 * does meanwhile, and then signals an eventfd.
 *
 * glibc has no wrappers for these calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The longest transfer: the kernel prepares a request before io_submit(2) returns, 1 MiB in
 * some 50 us. */
enum { MOST = 1 << 20 };

/* An io_submit(2) that took longer has waited for a place in the disk's queue, or another process had the core. */
enum { SLOW_NS = 1000000 };

/* A context for that many requests, and the eventfd that is signalled when one has completed. Returns the
 * eventfd. */
int weft_aio_open(uint32_t depth, uint64_t *context) {
  aio_context_t made = 0;
  int signal = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (signal < 0) return -errno;
  if (syscall(SYS_io_setup, depth, &made) < 0) {
    int e = errno;
    close(signal);
    return -e;
  }
  *context = made;
  return signal;
}

/* End it; no request may be in progress. */
void weft_aio_close(uint64_t context) { syscall(SYS_io_destroy, (aio_context_t)context); }

static int64_t nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* How often this OS thread has blocked. */
static long blocked(void) {
  struct rusage u;
  return getrusage(RUSAGE_THREAD, &u) < 0 ? 0 : u.ru_nvcsw;
}

static uint64_t total(const struct iovec *parts, uint32_t count) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < count; i++) sum += parts[i].iov_len;
  return sum;
}

/* Submit a read or write at an offset (the opcodes and members of struct weft_file_op). The result is 0, 1
 * if it was submitted and that took long, or -errno. With `watched` it is 1 only if the thread has blocked
 * meanwhile, which takes two further calls to find out. RWF_NOWAIT: the request ends with EAGAIN if it would have to
 * wait before it is in the disk's queue, for a lock of the file or for the place of its blocks. */
int weft_aio_submit(uint64_t context, int32_t signal, uint8_t opcode, int32_t fd, uint64_t off, uint64_t addr,
                    uint32_t len, uint64_t name, int32_t watched) {
  struct iocb request = {
      .aio_data = name,
      .aio_fildes = (uint32_t)fd,
      .aio_buf = addr,
      .aio_nbytes = len,
      .aio_offset = (int64_t)off,
      .aio_rw_flags = RWF_NOWAIT,
      .aio_flags = IOCB_FLAG_RESFD,
      .aio_resfd = (uint32_t)signal,
  };
  uint64_t bytes = len;
  switch (opcode) {
  case IORING_OP_READ: request.aio_lio_opcode = IOCB_CMD_PREAD; break;
  case IORING_OP_WRITE: request.aio_lio_opcode = IOCB_CMD_PWRITE; break;
  case IORING_OP_READV: request.aio_lio_opcode = IOCB_CMD_PREADV; break;
  case IORING_OP_WRITEV: request.aio_lio_opcode = IOCB_CMD_PWRITEV; break;
  default: return -EINVAL;
  }
  if (opcode == IORING_OP_READV || opcode == IORING_OP_WRITEV)
    bytes = total((const struct iovec *)(uintptr_t)addr, len);
  if (bytes > MOST) return -EAGAIN;
  struct iocb *requests[] = {&request};
  long before = watched ? blocked() : -1;
  int64_t begun = nanoseconds();
  if (syscall(SYS_io_submit, (aio_context_t)context, 1L, requests) < 0) return -errno;
  return nanoseconds() - begun > SLOW_NS && (!watched || blocked() != before);
}

static long completed(uint64_t context, time_t seconds, uint32_t most, struct io_event *out) {
  struct timespec longest = {.tv_sec = seconds};
  long n;
  do {
    n = syscall(SYS_io_getevents, (aio_context_t)context, seconds > 0 ? 1L : 0L, (long)most, out, &longest);
  } while (n < 0 && errno == EINTR);
  return n < 0 ? -errno : n;
}

/* Take completions, at most that many. Before it says that there are none, it takes the signals, so that a poller
 * without edges does not report them again. */
int weft_aio_collect(uint64_t context, int32_t signal, uint32_t most, struct io_event *out) {
  uint64_t signals;
  for (;;) {
    long n = completed(context, 0, most, out);
    if (n != 0) return (int)n;
    if (read(signal, &signals, sizeof signals) < 0) return 0;
  }
}

/* Wait for at least one completion, for a second at most. */
int weft_aio_wait(uint64_t context, uint32_t most, struct io_event *out) {
  return (int)completed(context, 1, most, out);
}
