/* A file that takes long to close, as on a network file system: close(2) of it returns when the test says so, or, in
 * vain, after twenty seconds. The program's own definition stands before libc's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>

static uint64_t slow; /* the file's inode, or 0 */
static int begun, permitted, in_vain;

static void set(int *word, int value) { __atomic_store_n(word, value, __ATOMIC_SEQ_CST); }
static int get(int *word) { return __atomic_load_n(word, __ATOMIC_SEQ_CST); }

void files_slow_close(uint64_t inode) {
  set(&begun, 0);
  set(&permitted, 0);
  set(&in_vain, 0);
  __atomic_store_n(&slow, inode, __ATOMIC_SEQ_CST);
}

int files_close_begun(void) { return get(&begun); }

void files_permit_close(void) { set(&permitted, 1); }

int files_closed_in_vain(void) { return get(&in_vain); }

int close(int fd) {
  int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "close");
  uint64_t inode = __atomic_load_n(&slow, __ATOMIC_SEQ_CST);
  struct stat st;
  if (inode && fstat(fd, &st) == 0 && st.st_ino == inode) {
    set(&begun, 1);
    struct timespec ms = {.tv_nsec = 1000000};
    for (int i = 0; !get(&permitted); i++) {
      if (i == 20000) {
        set(&in_vain, 1);
        break;
      }
      nanosleep(&ms, 0);
    }
  }
  return real(fd);
}
