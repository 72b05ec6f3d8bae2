/* Starting programs, and learning of their end.
 *
 * On Linux the child is made by clone(2) with CLONE_VM and CLONE_VFORK, as posix_spawn(3) does: it borrows the memory
 * of the parent, whose thread stands still until the child has executed the program. So a large heap costs nothing, and
 * no lock of another thread is left held in the child, which makes system calls only. Unlike posix_spawn, this says
 * which step has failed, and gets the pidfd with the child, before another part of the program could collect its
 * status. Elsewhere it is fork(2).
 *
 * Between clone and execve, all signals are blocked until those with handlers have their default action again: the
 * handlers are the parent's code, on the parent's memory. A step that fails is reported by a pipe that closes on exec.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

extern char **environ;

/* The descriptor that a standard stream of the child is to be, or one of these. */
enum { INHERITED = -1, DISCARDED = -2, PIPED = -3 };

/* The steps that may fail. Weft.Process knows the numbers. */
enum { STEP_DESCRIPTORS = 0, STEP_FOLDER = 1, STEP_EXECUTE = 2 };

struct failure {
  int step, code;
};

struct start {
  const char *const *paths;
  char *const *arguments;
  char *const *environment;
  const char *folder;
  int streams[3];
  int own_group;
  int report; /* where a failure is written to */
};

/* Whether the kernel is asked for a pidfd. Cleared when it does not know what that is; tests clear it too. */
int weft_process_pidfds = 1;

/* Whether descriptors are closed by close_range(2). Tests clear it. */
int weft_process_ranges = 1;

/* In the child ----------------------------------------------------------------------------------------------- */

__attribute__((noreturn)) static void failed(const struct start *s, int step, int code) {
  struct failure f = {step, code};
  ssize_t r;
  do r = write(s->report, &f, sizeof f);
  while (r < 0 && errno == EINTR);
  _exit(127);
}

/* Signals with a handler get the default action, ignored ones stay ignored (execve(2)); none is blocked. */
static void reset_signals(void) {
  struct sigaction a;
  for (int i = 1; i < NSIG; i++)
    if (sigaction(i, NULL, &a) == 0 && a.sa_handler != SIG_DFL && a.sa_handler != SIG_IGN) {
      memset(&a, 0, sizeof a);
      a.sa_handler = SIG_DFL;
      sigaction(i, &a, NULL);
    }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

#ifdef __linux__
/* Close what /proc lists, but for the standard streams and one more. Whether there is such a list. Directory entries are
 * those of getdents64(2): opendir(3) would allocate memory, under a lock that another thread may hold. */
static int close_listed(int kept) {
  enum { LENGTH = 16, NAME = 19 };
  _Alignas(8) char entries[4096];
  /* One that goes anyway, so that there is a free number. */
  close(kept == 3 ? 4 : 3);
  int list = open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (list < 0) return 0;
  long n;
  while ((n = syscall(SYS_getdents64, list, entries, sizeof entries)) > 0)
    for (char *entry = entries; entry < entries + n; entry += *(uint16_t *)(entry + LENGTH)) {
      int fd = 0;
      const char *c = entry + NAME;
      while (*c >= '0' && *c <= '9') fd = 10 * fd + (*c++ - '0');
      if (*c == 0 && fd > 2 && fd != kept && fd != list) close(fd);
    }
  close(list);
  return n == 0;
}
#endif

/* Close all but the standard streams and one more. Before Linux 5.9, and where a filter of system calls knows no
 * close_range(2), they are looked up; one by one to the limit, which may be 2^30, only without /proc. */
static void close_others(int kept) {
#ifdef SYS_close_range
  if (__atomic_load_n(&weft_process_ranges, __ATOMIC_RELAXED) &&
      (kept == 3 || syscall(SYS_close_range, 3U, kept - 1U, 0) == 0) &&
      syscall(SYS_close_range, kept + 1U, ~0U, 0) == 0)
    return;
#endif
#ifdef __linux__
  if (close_listed(kept)) return;
#endif
  struct rlimit l;
  int most = getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < INT32_MAX ? (int)l.rlim_cur : INT32_MAX;
  for (int fd = 3; fd < most; fd++)
    if (fd != kept) close(fd);
}

/* The standard streams. Descriptors below 3 that become another stream are moved out of the way first. */
static int place_streams(struct start *s) {
  for (int i = 0; i < 3; i++) {
    if (s->streams[i] == DISCARDED && (s->streams[i] = open("/dev/null", O_RDWR | O_CLOEXEC)) < 0) return -1;
    int fd = s->streams[i];
    if (fd >= 0 && fd < 3 && (s->streams[i] = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0) return -1;
  }
  for (int i = 0; i < 3; i++)
    if (s->streams[i] >= 0 && dup2(s->streams[i], i) < 0) return -1;
  return 0;
}

static int run(void *argument) {
  struct start *s = argument;
  reset_signals();
  int report = s->report < 3 ? fcntl(s->report, F_DUPFD_CLOEXEC, 3) : s->report;
  if (report < 0) failed(s, STEP_DESCRIPTORS, errno);
  s->report = report;
  if (s->own_group && setpgid(0, 0) < 0) failed(s, STEP_DESCRIPTORS, errno);
  if (place_streams(s) < 0) failed(s, STEP_DESCRIPTORS, errno);
  close_others(s->report);
  if (s->folder && chdir(s->folder) < 0) failed(s, STEP_FOLDER, errno);
  /* The rules of execvp(3), but that a file in no known format is an error, and not given to a shell. */
  int code = ENOENT, denied = 0;
  for (const char *const *path = s->paths; *path; path++) {
    execve(*path, s->arguments, s->environment);
    code = errno;
    if (code == EACCES)
      denied = 1;
    else if (code != ENOENT && code != ENOTDIR && code != ESTALE && code != ENODEV && code != ETIMEDOUT)
      failed(s, STEP_EXECUTE, code);
  }
  failed(s, STEP_EXECUTE, denied ? EACCES : code);
}

/* In the parent ---------------------------------------------------------------------------------------------- */

static int open_pipe(int ends[2]) {
#if defined(__linux__) || defined(__FreeBSD__)
  return pipe2(ends, O_CLOEXEC);
#else
  if (pipe(ends) < 0) return -1;
  fcntl(ends[0], F_SETFD, FD_CLOEXEC);
  fcntl(ends[1], F_SETFD, FD_CLOEXEC);
  return 0;
#endif
}

static void close_open(int fd) {
  if (fd >= 0) close(fd);
}

/* The child's number, or -1. */
static pid_t make_child(struct start *s, int *pidfd) {
#ifdef __linux__
  enum { STACK = 65536, CLONE_WITH_PIDFD = 0x1000 };
  char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) return -1;
  const int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
  pid_t pid = -1;
  *pidfd = -1;
  errno = EINVAL;
  if (__atomic_load_n(&weft_process_pidfds, __ATOMIC_RELAXED))
    pid = clone(run, stack + STACK, flags | CLONE_WITH_PIDFD, s, pidfd);
  if (pid < 0 && errno == EINVAL) {
    __atomic_store_n(&weft_process_pidfds, 0, __ATOMIC_RELAXED);
    pid = clone(run, stack + STACK, flags, s);
  }
  int code = errno;
  munmap(stack, STACK);
  errno = code;
  return pid;
#else
  *pidfd = -1;
  pid_t pid = fork();
  if (pid == 0) run(s);
  return pid;
#endif
}

/* Start a program: the first of the paths that can be executed. A NULL environment is the parent's. Stores the parent's
 * ends of pipes, which do not block, and the pidfd, or -1. Returns the child's number, or -errno with the step that has
 * failed: then nothing is left, no child either. */
int weft_process_start(const char *const *paths, char *const *arguments, char *const *environment, const char *folder,
                       const int *streams, int own_group, int *ours, int *pidfd, int *step) {
  int theirs[3] = {-1, -1, -1}, report[2] = {-1, -1}, code = 0;
  struct start s = {paths, arguments, environment ? environment : environ, folder, {0, 0, 0}, own_group, -1};
  pid_t pid = -1;
  *step = STEP_DESCRIPTORS;
  *pidfd = ours[0] = ours[1] = ours[2] = -1;
  for (int i = 0; i < 3; i++) {
    s.streams[i] = streams[i];
    if (streams[i] != PIPED) continue;
    int ends[2];
    if (open_pipe(ends) < 0) goto refused;
    ours[i] = i == 0 ? ends[1] : ends[0];
    s.streams[i] = theirs[i] = i == 0 ? ends[0] : ends[1];
    int fl = fcntl(ours[i], F_GETFL);
    if (fl < 0 || fcntl(ours[i], F_SETFL, fl | O_NONBLOCK) < 0) goto refused;
  }
  if (open_pipe(report) < 0) goto refused;
  s.report = report[1];

  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pid = make_child(&s, pidfd);
  code = errno;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  errno = code;
  if (pid < 0) goto refused;

  close(report[1]);
  report[1] = -1;
  struct failure f;
  ssize_t r;
  do r = read(report[0], &f, sizeof f);
  while (r < 0 && errno == EINTR);
  if (r == sizeof f) {
    int status;
    do r = waitpid(pid, &status, 0);
    while (r < 0 && errno == EINTR);
    *step = f.step;
    errno = f.code;
    goto refused;
  }
  close(report[0]);
  for (int i = 0; i < 3; i++) close_open(theirs[i]);
  return pid;

refused:
  code = errno;
  for (int i = 0; i < 3; i++) {
    close_open(theirs[i]);
    close_open(ours[i]);
  }
  close_open(report[0]);
  close_open(report[1]);
  close_open(*pidfd);
  return -code;
}

/* How a child has ended: 1 if it has exited, with its code, 2 if a signal has killed it, with the signal's number, 0 if
 * it has not ended, or -errno. Its status is taken from the kernel, which then forgets the child, only if `take` is
 * set. */
int weft_process_status(int pid, int pidfd, int take, int *result) {
  siginfo_t i;
  int options = WEXITED | WNOHANG | (take ? 0 : WNOWAIT), r;
  do {
    memset(&i, 0, sizeof i);
    r = -1;
    errno = EINVAL;
#ifdef __linux__
    if (pidfd >= 0) r = waitid(3 /* P_PIDFD, since Linux 5.4 */, pidfd, &i, options);
#endif
    if (r < 0 && errno == EINVAL) r = waitid(P_PID, pid, &i, options);
  } while (r < 0 && errno == EINTR);
  if (r < 0) return -errno;
  if (i.si_pid == 0) return 0;
  *result = i.si_status;
  return i.si_code == CLD_EXITED ? 1 : 2;
}

/* Send a signal to a child whose status has not been taken, or to its group. */
int weft_process_signal(int pid, int pidfd, int group, int signal) {
#ifdef SYS_pidfd_send_signal
  if (!group && pidfd >= 0) {
    if (syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0) == 0) return 0;
    if (errno != ENOSYS) return -errno;
  }
#endif
  return kill(group ? -pid : pid, signal) < 0 ? -errno : 0;
}

/* Bytes of pipes --------------------------------------------------------------------------------------------- */

ssize_t weft_pipe_read(int fd, void *to, size_t n) {
  ssize_t r;
  do r = read(fd, to, n);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}

ssize_t weft_pipe_write(int fd, const void *from, size_t n) {
  ssize_t r;
  do r = write(fd, from, n);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}

ssize_t weft_pipe_writev(int fd, const struct iovec *pieces, int n) {
  ssize_t r;
  do r = writev(fd, pieces, n);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
}
