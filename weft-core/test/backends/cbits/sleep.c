/* vfork(2) is deprecated by POSIX; nothing else that every process may do lets a thread sleep uninterruptibly. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* How many threads sleep. Written by the children too, which share their parents' memory. */
static int sleepers;
int weft_test_sleepers(void) { return __atomic_load_n(&sleepers, __ATOMIC_SEQ_CST); }

/* Sleep for so many microseconds in the kernel, where nothing but the end of the process wakes the calling thread: the
 * parent of vfork(2) does so until its child has ended. The child keeps no file open. */
void weft_test_sleep(unsigned us) {
  pid_t child = vfork();
  if (child == 0) {
#ifdef SYS_close_range
    syscall(SYS_close_range, 0, ~0U, 0);
#endif
    __atomic_fetch_add(&sleepers, 1, __ATOMIC_SEQ_CST);
    usleep(us);
    __atomic_fetch_sub(&sleepers, 1, __ATOMIC_SEQ_CST);
    _exit(0);
  }
  if (child > 0) waitpid(child, 0, 0);
}
