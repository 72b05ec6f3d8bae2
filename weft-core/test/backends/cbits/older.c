/* A kernel before Linux 5.11: epoll_pwait2(2) is not known. The program's own definition of syscall(2) stands before
 * libc's. */
#define _GNU_SOURCE
#include <errno.h>
#ifdef __linux__
#include <dlfcn.h>
#include <stdarg.h>
#include <sys/syscall.h>
#endif

#ifdef SYS_epoll_pwait2
static int older, refused;

/* From now on. 0, or -errno. */
int weft_test_refuse_pwait2(void) {
  __atomic_store_n(&older, 1, __ATOMIC_SEQ_CST);
  return 0;
}

/* How often it was called since then. */
int weft_test_pwait2_refused(void) { return __atomic_load_n(&refused, __ATOMIC_SEQ_CST); }

long syscall(long number, ...) {
  long a[6];
  va_list list;
  va_start(list, number);
  for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
  va_end(list);
  if (number == SYS_epoll_pwait2 && __atomic_load_n(&older, __ATOMIC_SEQ_CST)) {
    __atomic_fetch_add(&refused, 1, __ATOMIC_SEQ_CST);
    errno = ENOSYS;
    return -1;
  }
  long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
#else
int weft_test_refuse_pwait2(void) { return -ENOSYS; }
int weft_test_pwait2_refused(void) { return 0; }
#endif
