// A clock that measures the time in which this process could run. On a machine that is busy with other work, or while the process is stopped, it is slower
// than real time. A thread of its own, without Haskell, sleeps in clock_nanosleep for 20 ms at a time.
//
// - If a sleep ends late, nothing of this process ran: it was stopped, or the machine stood still. Of the delay, what exceeds 20 ms is not counted.
// - Five times a second the thread sums, over the threads of the process, how long each ran and how long each waited for a core (schedstat, see
//   Documentation/scheduler/sched-stats.rst of Linux). If the threads ran for r and waited for w, the share r / (r + w) of the time is counted.
//
// If the kernel has no schedstat, or no descriptor is left to read it, the second correction is omitted.
//
// The same thread notices if the program stands still (own_time_beat), and then reports what its threads do.
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { TICK = 20000000, SPAN = 10, TASKS = 4096 };

static atomic_int_fast64_t own;      // nanoseconds, written by the thread
static atomic_int_fast64_t longest;  // the longest delay of a sleep since it was last read

// The last values of each thread, in a table with open addressing. Used by the counting thread only.
static struct {
  long id;
  uint64_t ran, waited;
} tasks[TASKS];

static int64_t monotonic(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Add the increase since the thread's last values.
static void account(long id, uint64_t ran, uint64_t waited, double *r, double *w) {
  unsigned i = (unsigned long)id % TASKS, tries = 0;
  while (tasks[i].id != 0 && tasks[i].id != id) {
    i = (i + 1) % TASKS;
    if (++tries == 64) {
      memset(tasks, 0, sizeof tasks);
      break;
    }
  }
  // If the values decreased, the number now belongs to another thread.
  if (tasks[i].id == id && ran >= tasks[i].ran && waited >= tasks[i].waited) {
    *r += (double)(ran - tasks[i].ran);
    *w += (double)(waited - tasks[i].waited);
  }
  tasks[i].id = id;
  tasks[i].ran = ran;
  tasks[i].waited = waited;
}

static void sweep(DIR *dir, double *r, double *w) {
  struct dirent *e;
  rewinddir(dir);
  while ((e = readdir(dir)) != NULL) {
    char path[64], text[96];
    unsigned long long ran, waited;
    long id = strtol(e->d_name, NULL, 10);
    if (id <= 0) continue;
    snprintf(path, sizeof path, "%ld/schedstat", id);
    int fd = openat(dirfd(dir), path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) continue;
    text[n] = 0;
    if (sscanf(text, "%llu %llu", &ran, &waited) == 2) account(id, ran, waited, r, w);
  }
}

static atomic_int_fast64_t beat;  // the own time at which the program last said that it runs, or 0

static const char *line(DIR *dir, long id, const char *file, char *text, size_t size) {
  char path[64];
  snprintf(path, sizeof path, "%ld/%s", id, file);
  int fd = openat(dirfd(dir), path, O_RDONLY | O_CLOEXEC);
  ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);
  if (fd >= 0) close(fd);
  text[n > 0 ? n : 0] = 0;
  text[strcspn(text, "\n")] = 0;
  return text;
}

// What each thread does: its name, its state, how long it ran and waited for a core (in ms), where it waits in the kernel,
// and the beginning of its system call.
static void report(DIR *dir) {
  struct dirent *e;
  rewinddir(dir);
  while ((e = readdir(dir)) != NULL) {
    char text[512], name[64], wait[128];
    unsigned long long ran = 0, waited = 0;
    long id = strtol(e->d_name, NULL, 10);
    if (id <= 0) continue;
    sscanf(line(dir, id, "schedstat", text, sizeof text), "%llu %llu", &ran, &waited);
    line(dir, id, "comm", name, sizeof name);
    line(dir, id, "wchan", wait, sizeof wait);
    const char *state = strrchr(line(dir, id, "stat", text, sizeof text), ')');
    fprintf(stderr, "%ld %s %c %llu %llu %s", id, name, state ? state[2] : '?', ran / 1000000, waited / 1000000, wait);
    fprintf(stderr, " %.30s\n", line(dir, id, "syscall", text, sizeof text));
  }
}

// Report twice, a second apart, if the program has not run for 15 seconds of its own time; once for each time.
static void check(DIR *dir) {
  static int64_t reported;
  int64_t last = atomic_load(&beat), now = atomic_load(&own);
  if (last == 0 || last == reported || now - last < 15000000000) return;
  reported = last;
  fprintf(stderr, "the program stands still\n");
  report(dir);
  sleep(1);
  fprintf(stderr, "a second later\n");
  report(dir);
}

static void *count(void *unused) {
  (void)unused;
  DIR *dir = opendir("/proc/self/task");
  int64_t last = monotonic();
  double ran = 0, waited = 0, counted = 0;
  if (dir != NULL) sweep(dir, &(double){0}, &(double){0});
  for (int tick = 1;; tick++) {
    struct timespec pause = {0, TICK};
    clock_nanosleep(CLOCK_MONOTONIC, 0, &pause, NULL);
    int64_t now = monotonic(), late = now - last - TICK;
    last = now;
    if (late > atomic_load(&longest)) atomic_store(&longest, late);
    counted += late > TICK ? 2 * TICK : TICK + late;
    if (tick % SPAN == 0) {
      // Earlier values decay slowly, since a wait for a core is known only when it is over.
      ran *= 0.7;
      waited *= 0.7;
      if (dir != NULL) sweep(dir, &ran, &waited);
      double share = ran + waited > 1e6 ? ran / (ran + waited) : 1;
      atomic_fetch_add(&own, (int64_t)(counted * share));
      counted = 0;
      if (dir != NULL) check(dir);
    }
  }
  return NULL;
}

// Start the clock. To be called once.
void own_time_start(void) {
  sigset_t all, before;
  pthread_t thread;
  pthread_attr_t attr;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_attr_init(&attr);
  pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&thread, &attr, count, NULL) != 0) abort();
  pthread_attr_destroy(&attr);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
}

// To be called regularly while the program runs.
void own_time_beat(void) { atomic_store(&beat, atomic_load(&own) + 1); }

// Seconds in which the process could run.
double own_time(void) { return (double)atomic_load(&own) / 1e9; }

// The longest delay of a sleep in seconds since the last call.
double own_time_longest_delay(void) { return (double)atomic_exchange(&longest, 0) / 1e9; }

// CPU seconds used by this process and by its children that were waited for.
double own_time_processor(void) {
  double sum = 0;
  int who[] = {RUSAGE_SELF, RUSAGE_CHILDREN};
  for (int i = 0; i < 2; i++) {
    struct rusage u;
    getrusage(who[i], &u);
    sum += (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
  }
  return sum;
}
