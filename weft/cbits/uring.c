/* io_uring as far as readiness needs it: a ring, poll requests and their
 * cancellation, submitting with and without a wait, completions. Plain system
 * calls on the kernel's own header, so nothing has to be installed. Results are
 * 0, a count, or -errno.
 *
 * Who may call what at the same time: the functions that queue take turns (the
 * caller's lock); weft_uring_reap belongs to one thread; submitting needs no lock,
 * because the kernel takes entries one submitter at a time and only those that
 * the tail has been moved past. */
#define _GNU_SOURCE
#include "clock.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* For headers older than Linux 5.13; the running kernel is asked in any case. */
#ifndef IORING_POLL_ADD_MULTI
#define IORING_POLL_ADD_MULTI (1U << 0)
#endif
#ifndef IORING_SETUP_COOP_TASKRUN
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#define IORING_SETUP_TASKRUN_FLAG (1U << 9)
#define IORING_SQ_TASKRUN (1U << 2)
#endif
#ifndef IORING_ENTER_EXT_ARG
#define IORING_ENTER_EXT_ARG (1U << 3)
#define IORING_FEAT_EXT_ARG (1U << 8)
struct io_uring_getevents_arg {
  __u64 sigmask;
  __u32 sigmask_sz, pad;
  __u64 ts;
};
#endif
/* Linux 6.0: IORING_REGISTER_SYNC_CANCEL with struct io_uring_sync_cancel_reg. */
enum { REGISTER_SYNC_CANCEL = 24 };
struct sync_cancel {
  __u64 addr;
  __s32 fd;
  __u32 flags;
  struct __kernel_timespec timeout;
  __u64 pad[4];
};
/* Linux 4.14: the commands of membarrier(2) for the threads of one process. */
enum { MEMBARRIER_EXPEDITED = 8, MEMBARRIER_REGISTER = 16 };

struct weft_uring {
  int fd;
  pid_t maker;
  unsigned features;
  /* In memory shared with the kernel. */
  unsigned *sq_head, *sq_tail, *sq_flags, *cq_head, *cq_tail;
  struct io_uring_sqe *sqes;
  struct io_uring_cqe *cqes;
  unsigned sq_mask, sq_entries, cq_mask;
  void *rings;
  size_t rings_size, sqes_size;
};

/* Requests not submitted; completions that the ring had no room for; completions
 * in the ring; completions that the kernel will make when it is entered. */
enum { QUEUED = 1, OVERFLOWN = 2, COMPLETED = 4, UNFINISHED = 8 };

static unsigned get(unsigned *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static void put(unsigned *p, unsigned v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }

static void *share(int fd, size_t size, off_t what) {
  void *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
  /* A forked child must not write into its parent's rings. */
  if (p != MAP_FAILED) madvise(p, size, MADV_DONTFORK);
  return p;
}

/* Cooperative (Linux 5.19): an event does not interrupt the thread that it
 * concerns but waits until that enters the kernel, at the latest with the next
 * clock tick, and a flag tells so. Older kernels interrupt. */
static int setup(unsigned entries, struct io_uring_params *p, unsigned completions) {
  const unsigned flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE;
  *p = (struct io_uring_params){.flags = flags | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
                                .cq_entries = completions};
  int fd = syscall(SYS_io_uring_setup, entries, p);
  if (fd >= 0 || errno != EINVAL) return fd < 0 ? -errno : fd;
  *p = (struct io_uring_params){.flags = flags, .cq_entries = completions};
  fd = syscall(SYS_io_uring_setup, entries, p);
  return fd < 0 ? -errno : fd;
}

/* Requires what the back end relies on: no completion is ever dropped, a timeout
 * can be given with the wait, and one mapping serves both rings (Linux 5.11). */
int weft_uring_open(unsigned entries, unsigned completions, struct weft_uring **out) {
  const unsigned need = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG | IORING_FEAT_SINGLE_MMAP;
  struct io_uring_params p;
  struct weft_uring *u = calloc(1, sizeof *u);
  if (!u) return -ENOMEM;
  int err = u->fd = setup(entries, &p, completions);
  if (err < 0) {
    free(u);
    return err;
  }
  err = 0;
  syscall(SYS_membarrier, MEMBARRIER_REGISTER, 0, 0);
  u->maker = getpid();
  u->features = p.features;
  size_t sq = p.sq_off.array + p.sq_entries * sizeof(unsigned);
  size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
  u->rings_size = sq > cq ? sq : cq;
  u->sqes_size = p.sq_entries * sizeof(struct io_uring_sqe);
  u->rings = u->sqes = MAP_FAILED;
  if ((p.features & need) != need) {
    err = -EINVAL;
  } else if ((u->rings = share(u->fd, u->rings_size, IORING_OFF_SQ_RING)) == MAP_FAILED ||
             (u->sqes = share(u->fd, u->sqes_size, IORING_OFF_SQES)) == MAP_FAILED) {
    err = -errno;
  }
  if (err) {
    if (u->rings != MAP_FAILED) munmap(u->rings, u->rings_size);
    close(u->fd);
    free(u);
    return err;
  }
  char *r = u->rings;
  u->sq_head = (unsigned *)(r + p.sq_off.head);
  u->sq_tail = (unsigned *)(r + p.sq_off.tail);
  u->sq_flags = (unsigned *)(r + p.sq_off.flags);
  u->sq_mask = p.sq_entries - 1;
  u->sq_entries = p.sq_entries;
  u->cq_head = (unsigned *)(r + p.cq_off.head);
  u->cq_tail = (unsigned *)(r + p.cq_off.tail);
  u->cqes = (struct io_uring_cqe *)(r + p.cq_off.cqes);
  u->cq_mask = p.cq_entries - 1;
  unsigned *array = (unsigned *)(r + p.sq_off.array);
  for (unsigned i = 0; i < p.sq_entries; i++) array[i] = i;
  *out = u;
  return 0;
}

static struct io_uring_sqe *next(struct weft_uring *u) {
  unsigned tail = *u->sq_tail;
  if (tail - get(u->sq_head) == u->sq_entries) return 0;
  struct io_uring_sqe *e = &u->sqes[tail & u->sq_mask];
  memset(e, 0, sizeof *e);
  return e;
}

/* Queue a poll request. -EAGAIN: the queue is full, submit first. */
int weft_uring_watch(struct weft_uring *u, int fd, uint32_t events, int multishot, uint64_t data) {
  struct io_uring_sqe *e = next(u);
  if (!e) return -EAGAIN;
  e->opcode = IORING_OP_POLL_ADD;
  e->fd = fd;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  events = events << 16 | events >> 16;
#endif
  e->poll32_events = events;
  e->len = multishot ? IORING_POLL_ADD_MULTI : 0;
  e->user_data = data;
  put(u->sq_tail, *u->sq_tail + 1);
  return 0;
}

/* Queue the cancellation of the request with that user data. IORING_OP_POLL_REMOVE
 * would not do: it leaves a multishot request alive that is just reporting. The
 * kernel's answer, if any, carries user data of all ones. */
int weft_uring_cancel(struct weft_uring *u, uint64_t data) {
  struct io_uring_sqe *e = next(u);
  if (!e) return -EAGAIN;
  e->opcode = IORING_OP_ASYNC_CANCEL;
  e->fd = -1;
  e->addr = data;
#ifdef IORING_FEAT_CQE_SKIP
  if (u->features & IORING_FEAT_CQE_SKIP) e->flags = IOSQE_CQE_SKIP_SUCCESS;
#endif
  e->user_data = UINT64_MAX;
  put(u->sq_tail, *u->sq_tail + 1);
  return 0;
}

/* The same at once and to the end: returns 0 when the request is gone, and with it
 * its hold on the file; -EINVAL where the kernel cannot tell (before Linux 6.0),
 * -EBUSY after a thousand tries. A request ends on the thread that submitted it. One
 * that sleeps in the kernel is woken; one that computes is interrupted by the
 * barrier, whose only purpose here that is. */
int weft_uring_cancel_now(struct weft_uring *u, uint64_t data) {
  for (int i = 0; i < 1000; i++) {
    struct sync_cancel c = {.addr = data, .fd = -1, .timeout = {.tv_nsec = 100000}};
    if (syscall(SYS_io_uring_register, u->fd, REGISTER_SYNC_CANCEL, &c, 1) < 0) {
      if (errno == ENOENT) return 0;
      if (errno != ETIME && errno != EINTR && errno != EALREADY) return -errno;
    }
    if (i > 0) {
      syscall(SYS_membarrier, MEMBARRIER_EXPEDITED, 0, 0);
      sched_yield();
    }
  }
  return -EBUSY;
}

static unsigned queued(struct weft_uring *u) { return get(u->sq_tail) - get(u->sq_head); }

static int enter(struct weft_uring *u, unsigned submit, unsigned want, unsigned flags, void *arg, size_t size) {
  int r = syscall(SYS_io_uring_enter, u->fd, submit, want, flags, arg, size);
  return r < 0 ? -errno : r;
}

/* Hand the kernel what is queued. */
int weft_uring_submit(struct weft_uring *u) {
  unsigned n = queued(u);
  return n ? enter(u, n, 0, 0, 0, 0) : 0;
}

/* What a turn would find: a set of the above. */
int weft_uring_state(struct weft_uring *u) {
  unsigned flags = get(u->sq_flags);
  return (queued(u) ? QUEUED : 0) | (flags & IORING_SQ_CQ_OVERFLOW ? OVERFLOWN : 0) |
         (get(u->cq_tail) != *u->cq_head ? COMPLETED : 0) | (flags & IORING_SQ_TASKRUN ? UNFINISHED : 0);
}

/* Hand the kernel what is queued and have it bring out what it has, without
 * blocking and, when there is neither, without a system call. */
int weft_uring_look(struct weft_uring *u) {
  int s = weft_uring_state(u);
  return s & ~COMPLETED ? enter(u, queued(u), 0, IORING_ENTER_GETEVENTS, 0, 0) : s;
}

/* The same, and block until there is a completion, at most so many nanoseconds
 * (negative: for ever). May return early: the caller looks at the clock. */
int weft_uring_wait(struct weft_uring *u, int64_t ns) {
  int s = weft_uring_state(u);
  if (s == COMPLETED) return s;
  if (ns >= 0) weft_be_punctual();
  struct __kernel_timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  /* Near the end of time the kernel's sum with the clock would wrap round. */
  struct io_uring_getevents_arg arg = {.ts = ns < 0 || ns > INT64_MAX / 2 ? 0 : (uintptr_t)&ts};
  return enter(u, queued(u), 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof arg);
}

/* Move at most n completions out of the ring. Their number. */
int weft_uring_reap(struct weft_uring *u, struct io_uring_cqe *out, int n) {
  unsigned head = *u->cq_head;
  unsigned there = get(u->cq_tail) - head;
  if ((unsigned)n > there) n = (int)there;
  for (int i = 0; i < n; i++) memcpy(&out[i], &u->cqes[(head + i) & u->cq_mask], sizeof *out);
  put(u->cq_head, head + n);
  return n;
}

int weft_uring_is_forked(struct weft_uring *u) { return getpid() != u->maker; }

/* Give the ring back. Its requests are cancelled first: they hold references to
 * the files they watch, and the kernel ends a closed ring's only some time later.
 * In a forked child there are no mappings and the requests are the parent's. */
void weft_uring_close(struct weft_uring *u) {
  if (!weft_uring_is_forked(u)) {
#ifdef IORING_ASYNC_CANCEL_ANY
    weft_uring_submit(u);
    if (weft_uring_cancel(u, 0) == 0) {
      struct io_uring_sqe *e = &u->sqes[(*u->sq_tail - 1) & u->sq_mask];
      e->cancel_flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL;
      weft_uring_submit(u);
    }
#endif
    munmap(u->sqes, u->sqes_size);
    munmap(u->rings, u->rings_size);
  }
  close(u->fd);
  free(u);
}

int weft_uring_is_open(int fd) { return fcntl(fd, F_GETFD) < 0 ? -errno : 0; }

/* What epoll would say of a descriptor: 1 for one on which there is nothing to
 * wait for (EPERM), 0 for one that can be watched, -errno. */
int weft_uring_always_ready(int fd) {
  struct stat st;
  if (fstat(fd, &st) < 0) return -errno;
  if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode)) return 1;
  if (S_ISSOCK(st.st_mode) || S_ISFIFO(st.st_mode)) return 0;
  int ep = epoll_create1(EPOLL_CLOEXEC);
  if (ep < 0) return 0;
  struct epoll_event ev = {.events = 0};
  int r = epoll_ctl(ep, EPOLL_CTL_ADD, fd, &ev) < 0 && errno == EPERM;
  close(ep);
  return r;
}

/* The events that hold at this moment. */
int weft_uring_present(int fd, uint32_t events) {
  struct pollfd p = {.fd = fd, .events = (short)events};
  return poll(&p, 1, 0) < 0 ? 0 : (unsigned short)p.revents;
}
