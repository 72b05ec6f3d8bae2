/* The C shims under sanitizers (scripts/sanitizers): a ring for files with threads that submit, cancel and collect at
 * once, and one round of each of the smaller shims. Prints what it counted; the status is 1 if a result was wrong.
 *   shims ROUNDS SEED ENTRIES */
#define _GNU_SOURCE
#include "file.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <linux/openat2.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

struct weft_file_ring;
int weft_file_ring_open(unsigned, int, unsigned, struct weft_file_ring **);
void weft_file_ring_stop(struct weft_file_ring *);
void weft_file_ring_free(struct weft_file_ring *);
uint32_t weft_file_ring_generation(struct weft_file_ring *, unsigned);
void weft_file_ring_submit(struct weft_file_ring *, unsigned, uint8_t, int32_t, uint64_t, uint64_t, uint32_t, uint32_t);
void weft_file_ring_wake(struct weft_file_ring *);
void weft_file_ring_cancel(struct weft_file_ring *, unsigned, uint32_t);
int weft_file_ring_collect(struct weft_file_ring *, uint32_t *, int32_t *, int);
void *weft_file_ring_await(struct weft_file_ring *, void *);
int weft_wakeup_open(int *, int), weft_wakeup_signal(int, int);
void weft_wakeup_drain(int);
int weft_epoll_create(void), weft_epoll_ctl(int, int, int, uint32_t, uint64_t);
int weft_epoll_look(int, struct epoll_event *, int), weft_epoll_wait(int, struct epoll_event *, int, int64_t);
int weft_poll(struct pollfd *, unsigned long, int64_t), weft_poll_look(struct pollfd *, unsigned long);

enum { DEPTH = 32, SUBMITTERS = 3, BYTES = 4096, FILE_BYTES = 1 << 20 };

static struct weft_file_ring *ring;
static unsigned rounds, wrong, entries;
static int file, silent[2];
static unsigned char contents[FILE_BYTES];

/* A free slot is in somebody's hands, from taking it here to the collector's giving it back. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;
static struct {
  int used, cancellable;
  uint32_t generation;
  uint64_t offset;
  unsigned char buffer[BYTES];
} slots[DEPTH];
static unsigned long submitted, completed, cancelled;
static sem_t rung;
static int over;

/* The run-time system's, for the owner's thread: fills an MVar. */
void hs_try_putmvar(int capability, void *mvar) {
  (void)capability;
  sem_post(mvar);
}

/* The run-time system's, for a pointer that was left when the ring is freed. Here it is a semaphore. */
void hs_free_stable_ptr(void *mvar) { (void)mvar; }

static void blame(const char *what, long a, long b) {
  fprintf(stderr, "wrong: %s (%ld, %ld)\n", what, a, b);
  __atomic_store_n(&wrong, 1, __ATOMIC_SEQ_CST);
}

static unsigned dice(unsigned *seed, unsigned n) { return (unsigned)rand_r(seed) % n; }

/* Submits reads of a file, and of a pipe in which nothing ever comes and which end by being cancelled. */
static void *submit(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  for (unsigned i = 0; i < rounds; i++) {
    unsigned s;
    int never = dice(&seed, 4) == 0;
    pthread_mutex_lock(&lock);
    for (;;) {
      for (s = 0; s < DEPTH && slots[s].used; s++) continue;
      if (s < DEPTH) break;
      pthread_cond_wait(&freed, &lock);
    }
    slots[s].used = 1;
    slots[s].cancellable = never;
    slots[s].generation = weft_file_ring_generation(ring, s);
    slots[s].offset = dice(&seed, FILE_BYTES - BYTES);
    submitted++;
    pthread_mutex_unlock(&lock);
    weft_file_ring_submit(ring, s, IORING_OP_READ, never ? silent[0] : file, never ? (uint64_t)-1 : slots[s].offset,
                          (uint64_t)(uintptr_t)slots[s].buffer, BYTES, 0);
  }
  return 0;
}

/* Cancels, by names that may be old. */
static void *cancel(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
    for (unsigned s = 0; s < DEPTH; s++) {
      pthread_mutex_lock(&lock);
      int ask = slots[s].used && slots[s].cancellable;
      uint32_t generation = slots[s].generation;
      pthread_mutex_unlock(&lock);
      if (ask) weft_file_ring_cancel(ring, s, generation);
    }
    usleep(dice(&seed, 200));
  }
  return 0;
}

static void check(int slot, int result) {
  if (slot < 0 || slot >= DEPTH || !slots[slot].used) {
    blame("a completion of a slot that is free", slot, result);
  } else if (slots[slot].cancellable) {
    if (result != -ECANCELED && result != -EINTR) blame("a read that cannot end ended", slot, result);
    cancelled++;
  } else if (result != BYTES || memcmp(slots[slot].buffer, contents + slots[slot].offset, BYTES) != 0) {
    blame("a read gave other bytes", slot, result);
  }
  slots[slot].used = 0;
  completed++;
}

static void *collect(void *argument) {
  (void)argument;
  uint32_t list = 0;
  int32_t out[2 * 8];
  while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
    int n = weft_file_ring_collect(ring, &list, out, 8);
    if (n > 0) {
      pthread_mutex_lock(&lock);
      for (int i = 0; i < n; i++) check(out[2 * i], out[2 * i + 1]);
      pthread_cond_broadcast(&freed);
      pthread_mutex_unlock(&lock);
      weft_file_ring_wake(ring);
    } else if (weft_file_ring_await(ring, &rung) == 0) {
      while (sem_wait(&rung) < 0) continue;
    }
  }
  return 0;
}

static void rings(unsigned seed) {
  pthread_t submitters[SUBMITTERS], canceller, collector;
  int err = weft_file_ring_open(DEPTH, 0, entries, &ring);
  if (err < 0) {
    printf("no ring: %s\n", strerror(-err));
    return;
  }
  sem_init(&rung, 0, 0);
  pthread_create(&collector, 0, collect, 0);
  pthread_create(&canceller, 0, cancel, (void *)(uintptr_t)(seed + 100));
  for (int i = 0; i < SUBMITTERS; i++) pthread_create(&submitters[i], 0, submit, (void *)(uintptr_t)(seed + i));
  for (int i = 0; i < SUBMITTERS; i++) pthread_join(submitters[i], 0);
  pthread_mutex_lock(&lock);
  while (completed < submitted) pthread_cond_wait(&freed, &lock);
  pthread_mutex_unlock(&lock);
  __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
  pthread_join(canceller, 0);
  sem_post(&rung);
  pthread_join(collector, 0);
  /* It is stopped with requests in flight, which all come back. */
  for (unsigned s = 0; s < 4; s++) {
    slots[s].used = slots[s].cancellable = 1;
    weft_file_ring_submit(ring, s, IORING_OP_READ, silent[0], (uint64_t)-1, (uint64_t)(uintptr_t)slots[s].buffer, BYTES, 0);
  }
  weft_file_ring_stop(ring);
  uint32_t list = 0;
  int32_t out[2 * DEPTH];
  int n = weft_file_ring_collect(ring, &list, out, DEPTH);
  if (n != 4) blame("completions at the end", n, 4);
  for (int i = 0; i < n; i++) check(out[2 * i], out[2 * i + 1]);
  weft_file_ring_free(ring);
  printf("%lu requests, %lu of them cancelled\n", completed, cancelled);
}

static void small(void) {
  int fds[2];
  struct epoll_event event;
  for (int pipes = 0; pipes < 2; pipes++) {
    if (weft_wakeup_open(fds, pipes) < 0) blame("wakeup", pipes, errno);
    int ep = weft_epoll_create();
    struct pollfd p = {.fd = fds[0], .events = POLLIN};
    weft_epoll_ctl(ep, EPOLL_CTL_ADD, fds[0], EPOLLIN, 42);
    if (weft_epoll_look(ep, &event, 1) != 0 || weft_poll_look(&p, 1) != 0) blame("an event too early", 0, 0);
    if (weft_epoll_wait(ep, &event, 1, 1000000) != 0 || weft_poll(&p, 1, 1000000) != 0) blame("an event too early", 1, 0);
    for (int i = 0; i < 100000; i++) weft_wakeup_signal(fds[1], pipes);
    if (weft_epoll_wait(ep, &event, 1, -1) != 1 || event.data.u64 != 42 || weft_poll(&p, 1, -1) != 1) blame("no event", 0, 0);
    weft_wakeup_drain(fds[0]);
    if (weft_epoll_look(ep, &event, 1) != 0) blame("an event too many", 0, 0);
    close(ep);
    close(fds[0]);
    if (pipes) close(fds[1]);
  }
  unsigned char some[BYTES];
  int r = weft_file_run(IORING_OP_READ, file, 1000, (uint64_t)(uintptr_t)some, BYTES, 0);
  if (r != BYTES || memcmp(some, contents + 1000, BYTES) != 0) blame("weft_file_run", r, 0);
  r = weft_file_try(IORING_OP_READ, file, FILE_BYTES - 10, (uint64_t)(uintptr_t)some, BYTES, 0);
  if (r != 10 && r != -EAGAIN) blame("weft_file_try", r, 0);
  struct open_how how = {.flags = O_RDONLY};
  const struct { const char *path; int waits; } opens[] = {{"/", 0}, {"/dev/null", 1}, {"/does-not-exist", 0}};
  for (unsigned i = 0; i < sizeof opens / sizeof *opens; i++) {
    (void)access(opens[i].path, F_OK); /* now the kernel has cached it */
    r = weft_file_open_waits(AT_FDCWD, (uint64_t)(uintptr_t)&how, (uint64_t)(uintptr_t)opens[i].path);
    if (r != opens[i].waits) blame("weft_file_open_waits", r, opens[i].waits);
  }
  how.flags |= O_NONBLOCK;
  if (weft_file_open_waits(AT_FDCWD, (uint64_t)(uintptr_t)&how, (uint64_t)(uintptr_t) "/dev/null") != 0) blame("weft_file_open_waits", 1, 0);
}

int main(int argc, char **argv) {
  char name[] = "/tmp/weft-shims-XXXXXX";
  rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 20000;
  unsigned seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
  entries = argc > 3 ? (unsigned)atoi(argv[3]) : 0;
  for (int i = 0; i < FILE_BYTES; i++) contents[i] = (unsigned char)(i * 2654435761u >> 24);
  file = mkstemp(name);
  unlink(name);
  if (file < 0 || write(file, contents, FILE_BYTES) != FILE_BYTES || pipe(silent) < 0) return 2;
  small();
  rings(seed);
  return (int)wrong;
}
