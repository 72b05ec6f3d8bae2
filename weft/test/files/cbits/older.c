/* An older kernel, or one whose file systems cannot say: what weft calls with the flags
 * that came with Linux 4.14 and 5.12 is refused, as those did that did not know them. Also one on which direct reads
 * would have to wait, and one that takes its time to open a ring. The program's own definitions stand before libc's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/aio_abi.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int older;
static uint64_t refused;

void files_older(int on) { __atomic_store_n(&older, on, __ATOMIC_SEQ_CST); }

/* How often something was refused. */
uint64_t files_refused(void) { return __atomic_load_n(&refused, __ATOMIC_SEQ_CST); }

/* How many completions of io_submit(2) will say EAGAIN, from now on; how many are left of these. */
static int postponed;
void files_postpone(int n) { __atomic_store_n(&postponed, n, __ATOMIC_SEQ_CST); }
int files_postponed(void) { return __atomic_load_n(&postponed, __ATOMIC_SEQ_CST); }

/* Whether io_uring_setup(2) waits, for a minute at most; how many threads wait in it now. */
static int held, holding;
void files_hold_rings(int on) { __atomic_store_n(&held, on, __ATOMIC_SEQ_CST); }
int files_holding(void) { return __atomic_load_n(&holding, __ATOMIC_SEQ_CST); }

static void hold(void) {
  __atomic_fetch_add(&holding, 1, __ATOMIC_SEQ_CST);
  for (int i = 0; i < 60000 && __atomic_load_n(&held, __ATOMIC_SEQ_CST); i++) usleep(1000);
  __atomic_fetch_sub(&holding, 1, __ATOMIC_SEQ_CST);
}

static void postpone(struct io_event *completed, long n) {
  for (long i = 0; i < n; i++)
    if (files_postponed() > 0) {
      __atomic_fetch_sub(&postponed, 1, __ATOMIC_SEQ_CST);
      completed[i].res = -EAGAIN;
    }
}

static int refuse(int code) {
  __atomic_fetch_add(&refused, 1, __ATOMIC_SEQ_CST);
  errno = code;
  return -1;
}

long syscall(long number, ...) {
  long a[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_openat2 && older && ((const struct open_how *)a[2])->resolve & 0x20) return refuse(EINVAL);
  if (number == SYS_io_uring_setup) hold();
  long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  long r = real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
  if (number == SYS_io_getevents) postpone((struct io_event *)a[3], r);
  return r;
}

ssize_t preadv2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
  if (older && flags & RWF_NOWAIT) return refuse(EOPNOTSUPP);
  ssize_t (*real)(int, const struct iovec *, int, off_t, int) =
      (ssize_t(*)(int, const struct iovec *, int, off_t, int))dlsym(RTLD_NEXT, "preadv2");
  return real(fd, parts, count, at, flags);
}

int fstatfs(int fd, struct statfs *out) {
  if (older) return refuse(ENOSYS);
  int (*real)(int, struct statfs *) = (int (*)(int, struct statfs *))dlsym(RTLD_NEXT, "fstatfs");
  return real(fd, out);
}
