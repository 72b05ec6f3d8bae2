/* io_uring as far as readiness needs it: a ring, poll requests and their
 * cancellation, submitting with and without a wait, completions. Results are 0, a
 * count, or -errno.
 *
 * Concurrency: the functions that queue need the caller's lock;
 * weft_uring_reap belongs to one thread; submitting needs no lock,
 * because the kernel serves one submitter at a time and takes only entries that
 * the tail has been moved past. */
#define _GNU_SOURCE
#include "clock.h"
#include "ring.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef IORING_POLL_ADD_MULTI /* Linux 5.13 */
#define IORING_POLL_ADD_MULTI (1U << 0)
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

/* On cache lines of its own: each manager uses its ring all the time. */
struct weft_uring {
  _Alignas(128) struct weft_ring ring;
  pid_t maker;
};

/* Bits of weft_uring_state: requests not submitted; completions that the ring had no room for; completions in the
 * ring; completions that the kernel will make when it is entered. */
enum { QUEUED = 1, OVERFLOWN = 2, COMPLETED = 4, UNFINISHED = 8 };

/* Cooperative (Linux 5.19): an event does not interrupt the thread that it is for, but waits until that thread enters
 * the kernel, at the latest with the next clock tick; a flag reports such events. Older kernels interrupt. */
static const unsigned cooperative[] = {IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};

int weft_uring_open(unsigned entries, unsigned completions, struct weft_uring **out) {
  struct weft_uring *u = aligned_alloc(_Alignof(struct weft_uring), sizeof *u);
  if (!u) return -ENOMEM;
  memset(u, 0, sizeof *u);
  int err = weft_ring_open(&u->ring, entries, completions, cooperative);
  if (err) {
    free(u);
    return err;
  }
  syscall(SYS_membarrier, MEMBARRIER_REGISTER, 0, 0);
  u->maker = getpid();
  *out = u;
  return 0;
}

/* Queue a poll request. -EAGAIN: the queue is full, submit first. */
int weft_uring_watch(struct weft_uring *u, int fd, uint32_t events, int multishot, uint64_t data) {
  struct io_uring_sqe *e = weft_ring_next(&u->ring);
  if (!e) return -EAGAIN;
  e->opcode = IORING_OP_POLL_ADD;
  e->fd = fd;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  events = events << 16 | events >> 16;
#endif
  e->poll32_events = events;
  e->len = multishot ? IORING_POLL_ADD_MULTI : 0;
  e->user_data = data;
  weft_ring_push(&u->ring);
  return 0;
}

/* Queue the cancellation of the request with that user data. IORING_OP_POLL_REMOVE
 * would not do: it leaves a multishot request alive that is just reporting. The
 * kernel's answer, if any, carries user data of all ones. */
int weft_uring_cancel(struct weft_uring *u, uint64_t data) {
  struct io_uring_sqe *e = weft_ring_next(&u->ring);
  if (!e) return -EAGAIN;
  e->opcode = IORING_OP_ASYNC_CANCEL;
  e->fd = -1;
  e->addr = data;
#ifdef IORING_FEAT_CQE_SKIP
  if (u->ring.features & IORING_FEAT_CQE_SKIP) e->flags = IOSQE_CQE_SKIP_SUCCESS;
#endif
  e->user_data = UINT64_MAX;
  weft_ring_push(&u->ring);
  return 0;
}

static int64_t monotonic_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Cancel synchronously: returns 0 when the request has ended and released the
 * file; -EINVAL if the kernel cannot do that (before Linux 6.0),
 * -EBUSY if it has not ended after that many microseconds (and two tries). It is cancelled then all the same, and ends
 * later. A request ends on the thread that submitted it. A thread
 * that sleeps in the kernel is woken; one that computes is interrupted by the
 * barrier, which has no other purpose here. */
int weft_uring_cancel_now(struct weft_uring *u, uint64_t data, int us) {
  int64_t end = monotonic_us() + us;
  for (int i = 0;; i++) {
    struct sync_cancel c = {.addr = data, .fd = -1, .timeout = {.tv_nsec = 100000}};
    if (syscall(SYS_io_uring_register, u->ring.fd, REGISTER_SYNC_CANCEL, &c, 1) < 0) {
      if (errno == ENOENT) return 0;
      if (errno != ETIME && errno != EINTR && errno != EALREADY) return -errno;
    }
    if (i > 0 && monotonic_us() >= end) return -EBUSY;
    if (i > 0 || us == 0) syscall(SYS_membarrier, MEMBARRIER_EXPEDITED, 0, 0);
    /* On a busy machine this may take a time slice of others. */
    if (i > 0) sched_yield();
  }
}

/* Submit the queued requests. */
int weft_uring_submit(struct weft_uring *u) {
  unsigned n = weft_ring_queued(&u->ring);
  return n ? weft_ring_enter(&u->ring, n, 0, 0, 0, 0) : 0;
}

/* The pending work of a ring: a set of the bits above. */
int weft_uring_state(struct weft_uring *u) {
  struct weft_ring *r = &u->ring;
  unsigned flags = weft_ring_get(r->sq_flags);
  return (weft_ring_queued(r) ? QUEUED : 0) | (flags & IORING_SQ_CQ_OVERFLOW ? OVERFLOWN : 0) |
         (weft_ring_get(r->cq_tail) != *r->cq_head ? COMPLETED : 0) | (flags & IORING_SQ_TASKRUN ? UNFINISHED : 0);
}

/* Submit the queued requests, and let the kernel post completions that it held back, without blocking. No system call
 * if there is neither. */
int weft_uring_look(struct weft_uring *u) {
  int s = weft_uring_state(u);
  return s & ~COMPLETED ? weft_ring_enter(&u->ring, weft_ring_queued(&u->ring), 0, IORING_ENTER_GETEVENTS, 0, 0) : s;
}

/* Submit, and block until there is a completion, for at most this many nanoseconds
 * (negative: for ever). May return early: the caller reads the clock. */
int weft_uring_wait(struct weft_uring *u, int64_t ns) {
  int s = weft_uring_state(u);
  if (s == COMPLETED) return s;
  if (ns >= 0) weft_be_punctual();
  struct __kernel_timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  /* The kernel adds the timeout to its clock: a very long one would wrap round. */
  struct io_uring_getevents_arg arg = {.ts = ns < 0 || ns > INT64_MAX / 2 ? 0 : (uintptr_t)&ts};
  return weft_ring_enter(&u->ring, weft_ring_queued(&u->ring), 1, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &arg, sizeof arg);
}

/* Move at most n completions out of the ring. Returns their number. */
int weft_uring_reap(struct weft_uring *u, struct io_uring_cqe *out, int n) {
  struct weft_ring *r = &u->ring;
  unsigned head = *r->cq_head;
  unsigned there = weft_ring_get(r->cq_tail) - head;
  if ((unsigned)n > there) n = (int)there;
  for (int i = 0; i < n; i++) memcpy(&out[i], &r->cqes[(head + i) & r->cq_mask], sizeof *out);
  weft_ring_put(r->cq_head, head + n);
  return n;
}

int weft_uring_descriptor(struct weft_uring *u) { return u->ring.fd; }

int weft_uring_is_forked(struct weft_uring *u) { return getpid() != u->maker; }

/* Release the ring. Its requests are cancelled first: they hold references to the files that they watch, and after a
 * close the kernel ends them only some time later. In a forked child there are no mappings, and the requests are the
 * parent's. */
void weft_uring_close(struct weft_uring *u) {
  int mapped = !weft_uring_is_forked(u);
#ifdef IORING_ASYNC_CANCEL_ANY
  if (mapped) {
    weft_uring_submit(u);
    if (weft_uring_cancel(u, 0) == 0) {
      struct io_uring_sqe *e = &u->ring.sqes[(*u->ring.sq_tail - 1) & u->ring.sq_mask];
      e->cancel_flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL;
      weft_uring_submit(u);
    }
  }
#endif
  weft_ring_close(&u->ring, mapped);
  free(u);
}

int weft_uring_is_open(int fd) { return fcntl(fd, F_GETFD) < 0 ? -errno : 0; }

/* The events that hold at this moment. */
int weft_uring_present(int fd, uint32_t events) {
  struct pollfd p = {.fd = fd, .events = (short)events};
  return poll(&p, 1, 0) < 0 ? 0 : (unsigned short)p.revents;
}
