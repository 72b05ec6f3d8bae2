/* vfork(2) is deprecated by POSIX; nothing else that every process may do lets a thread sleep uninterruptibly. */
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Sleep for so many microseconds in the kernel, where nothing but the end of the process wakes the calling thread: the
 * parent of vfork(2) does so until its child has ended. The child keeps no file open. */
void weft_test_sleep(unsigned us) {
  pid_t child = vfork();
  if (child == 0) {
#ifdef SYS_close_range
    syscall(SYS_close_range, 0, ~0U, 0);
#endif
    usleep(us);
    _exit(0);
  }
  if (child > 0) waitpid(child, 0, 0);
}
