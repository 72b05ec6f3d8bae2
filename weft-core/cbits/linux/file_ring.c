/* A ring: an io_uring for operations on files and the OS thread that owns it. The
 * kernel finishes a request on the thread that submitted it, so that thread must
 * live longer than every request. GHC's worker threads may end before.
 * Also, a ring with one submitter is the fastest kind.
 *
 * A ring has a fixed number of slots. The writers of its fields:
 *
 *   slot.op, .generation   the thread that holds the free slot, before weft_file_ring_submit
 *   slot.result            the owner, before the slot is on the list of completed ones
 *   slot.next              the holder of the slot: first the submitter, for the inbox,
 *                          later the owner, for the list of completed ones
 *   slot.cancelled         the submitter; any thread that has read the generation in the slot
 *   inbox, done            pushed by compare-and-swap, taken whole by exchange
 *   asleep                 the owner sets it, then checks once more, then blocks;
 *                          the thread that clears it (exchange) signals
 *   handing                the reader sets it before it delivers completions, and
 *                          clears it before it wakes the owner; submitters read
 *                          it after they have pushed
 *   waiter                 set by the reader before it sleeps; the thread that
 *                          takes it (exchange) fills the MVar
 *
 * Every submitted request completes exactly once and nothing releases its memory
 * before that. */
#define _GNU_SOURCE
#include "file.h"
#include "own.h"
#include "ring.h"
#include "weft_runtime.h"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <poll.h>

#ifndef IORING_POLL_ADD_MULTI
#define IORING_POLL_ADD_MULTI (1U << 0)
#endif

struct slot {
  struct weft_file_op op;
  int32_t result;
  uint32_t generation;
  uint32_t cancelled; /* the generation that is to be cancelled */
  uint32_t next;      /* index + 1 of another slot, or 0 */
};

/* Counters, written by the owner or by one atomic addition; read by any thread. */
enum { SUBMITTED, ENTERED, SIGNALLED, RUNG, CANCELS, COUNTERS };

struct weft_file_ring {
  struct weft_ring ring;
  struct slot *slots;
  unsigned depth, entries;
  int capability; /* where its reader runs */
  int wake_fd;
  pthread_t owner;
  pid_t maker;
  sem_t started;
  int error; /* why it could not start: -errno */
  unsigned in_flight, unwatched; /* the owner's: requests in the kernel; whether wake_fd has no poll request */
  uint64_t counters[COUNTERS];
  uint64_t *cancels; /* a bit for each slot, set by weft_file_ring_cancel; behind them the owner's copy */
  _Alignas(64) uint32_t inbox;
  uint32_t asleep, any_cancel, stopping;
  _Alignas(64) uint32_t done, handing;
  void *waiter;
};

enum { WAKE = 1u << 30 }; /* user data: slot and generation; WAKE; or all ones */

static void count(struct weft_file_ring *l, int what, uint64_t n) {
  __atomic_fetch_add(&l->counters[what], n, __ATOMIC_RELAXED);
}

static uint64_t name(unsigned slot, uint32_t generation) { return (uint64_t)generation << 32 | slot; }

static void push(struct weft_file_ring *l, uint32_t *stack, unsigned slot) {
  uint32_t head = __atomic_load_n(stack, __ATOMIC_RELAXED);
  do
    l->slots[slot].next = head;
  while (!__atomic_compare_exchange_n(stack, &head, slot + 1, 1, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
}

static uint32_t take_all(uint32_t *stack) {
  return __atomic_load_n(stack, __ATOMIC_RELAXED) ? __atomic_exchange_n(stack, 0, __ATOMIC_SEQ_CST) : 0;
}

/* Wake the owner if it sleeps. */
static void wake(struct weft_file_ring *l) {
  if (__atomic_load_n(&l->asleep, __ATOMIC_SEQ_CST) && __atomic_exchange_n(&l->asleep, 0, __ATOMIC_SEQ_CST)) {
    uint64_t one = 1;
    count(l, SIGNALLED, 1);
    while (write(l->wake_fd, &one, sizeof one) < 0 && errno == EINTR) continue;
  }
}

/* The owner ----------------------------------------------------------------------- */

/* Pass completions to the reader. Each is taken out of the ring before it is handled. Queues no requests. */
static unsigned hand_back(struct weft_file_ring *l) {
  struct weft_ring *r = &l->ring;
  unsigned n = 0;
  for (unsigned head = *r->cq_head; head != weft_ring_get(r->cq_tail); weft_ring_put(r->cq_head, ++head)) {
    const struct io_uring_cqe *c = &r->cqes[head & r->cq_mask];
    if (c->user_data == UINT64_MAX) continue;
    if (c->user_data == WAKE) {
      if (!(c->flags & IORING_CQE_F_MORE)) l->unwatched = 1;
      continue;
    }
    unsigned slot = (uint32_t)c->user_data;
    l->slots[slot].result = c->res;
    push(l, &l->done, slot);
    n++;
  }
  l->in_flight -= n;
  if (n) {
    void *waiter = __atomic_exchange_n(&l->waiter, 0, __ATOMIC_SEQ_CST);
    if (waiter) {
      count(l, RUNG, 1);
      hs_try_putmvar(l->capability, waiter);
    }
  }
  return n;
}

/* A free entry of the submission queue, which usually has room for all slots and as many cancellations. When it is
 * full, its entries are submitted. If the kernel refuses that, it has no memory, or no room for more completions
 * (before Linux 5.19); these are then taken out. */
static struct io_uring_sqe *entry(struct weft_file_ring *l) {
  struct io_uring_sqe *e;
  while (!(e = weft_ring_next(&l->ring)))
    if (weft_ring_enter(&l->ring, weft_ring_queued(&l->ring), 0, IORING_ENTER_GETEVENTS, 0, 0) < 0 && hand_back(l) == 0)
      usleep(100);
  return e;
}

static void watch_wake(struct weft_file_ring *l) {
  struct io_uring_sqe *e = entry(l);
  e->opcode = IORING_OP_POLL_ADD;
  e->fd = l->wake_fd;
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
  e->poll32_events = POLLIN << 16;
#else
  e->poll32_events = POLLIN;
#endif
  e->len = IORING_POLL_ADD_MULTI;
  e->user_data = WAKE;
  weft_ring_push(&l->ring);
  l->unwatched = 0;
}

static void queue(struct weft_file_ring *l, unsigned slot) {
  const struct slot *s = &l->slots[slot];
  struct io_uring_sqe *e = entry(l);
  e->opcode = s->op.opcode;
  e->fd = s->op.fd;
  e->off = s->op.off;
  e->addr = s->op.addr;
  e->len = s->op.len;
  if (s->op.opcode == IORING_OP_OPENAT2)
    e->flags = s->op.flags & WEFT_OPEN_ASYNC ? IOSQE_ASYNC : 0;
  else
    e->rw_flags = (int)s->op.flags;
  e->user_data = name(slot, s->generation);
  weft_ring_push(&l->ring);
  l->in_flight++;
}

static void queue_cancel(struct weft_file_ring *l, uint64_t target) {
  struct io_uring_sqe *e = entry(l);
  e->opcode = IORING_OP_ASYNC_CANCEL;
  e->fd = -1;
  e->addr = target;
  e->user_data = UINT64_MAX;
  weft_ring_push(&l->ring);
  count(l, CANCELS, 1);
}

static unsigned words(const struct weft_file_ring *l) { return (l->depth + 63) / 64; }

/* Move the inbox into the ring, oldest request first; then the cancellations. Their bits are taken before the inbox:
 * a bit is set after its request was pushed, so the request is in the ring already, or in the inbox that is taken
 * here. If the bits were taken later, one could belong to a request that is still in the inbox: the kernel would find
 * nothing to cancel, and the cancellation would be lost. Returns the number of requests. */
static unsigned take_in(struct weft_file_ring *l) {
  int cancel = __atomic_load_n(&l->any_cancel, __ATOMIC_RELAXED) &&
               __atomic_exchange_n(&l->any_cancel, 0, __ATOMIC_SEQ_CST);
  uint64_t *taken = l->cancels + words(l);
  for (unsigned w = 0; cancel && w < words(l); w++) taken[w] = __atomic_exchange_n(&l->cancels[w], 0, __ATOMIC_SEQ_CST);
  uint32_t newest = take_all(&l->inbox), oldest = 0;
  unsigned n = 0;
  while (newest) {
    uint32_t next = l->slots[newest - 1].next;
    l->slots[newest - 1].next = oldest;
    oldest = newest;
    newest = next;
  }
  for (; oldest; oldest = l->slots[oldest - 1].next, n++) queue(l, oldest - 1);
  if (n) count(l, SUBMITTED, n);
  for (unsigned w = 0; cancel && w < words(l); w++)
    for (uint64_t bits = taken[w]; bits; bits &= bits - 1) {
      unsigned slot = 64 * w + (unsigned)__builtin_ctzll(bits);
      queue_cancel(l, name(slot, __atomic_load_n(&l->slots[slot].cancelled, __ATOMIC_SEQ_CST)));
    }
  return n;
}

static void turn(struct weft_file_ring *l) {
  take_in(l);
  if (l->unwatched) watch_wake(l);
  __atomic_store_n(&l->asleep, 1, __ATOMIC_SEQ_CST);
  int news = __atomic_load_n(&l->inbox, __ATOMIC_SEQ_CST) || __atomic_load_n(&l->any_cancel, __ATOMIC_SEQ_CST) ||
             __atomic_load_n(&l->stopping, __ATOMIC_SEQ_CST);
  int r = news ? 0 : weft_ring_enter(&l->ring, weft_ring_queued(&l->ring), 1, IORING_ENTER_GETEVENTS, 0, 0);
  __atomic_store_n(&l->asleep, 0, __ATOMIC_SEQ_CST);
  count(l, ENTERED, !news);
  /* No memory for requests: those in flight will free some. */
  if (hand_back(l) == 0 && r < 0 && r != -EINTR) usleep(1000);
}

/* Cancel the requests of all slots by their user data, which kernels before 5.19 can do too; for a slot without a
 * request the kernel finds none. Repeated if a request arrived late. */
static void finish(struct weft_file_ring *l) {
  take_in(l);
  for (int fresh = 1; l->in_flight > 0; fresh = take_in(l) > 0) {
    for (unsigned slot = 0; fresh && slot < l->depth; slot++) queue_cancel(l, name(slot, l->slots[slot].generation));
    if (l->in_flight == 0) break;
    int r = weft_ring_enter(&l->ring, weft_ring_queued(&l->ring), 1, IORING_ENTER_GETEVENTS, 0, 0);
    if (hand_back(l) == 0 && r < 0 && r != -EINTR) usleep(1000);
  }
}

static void *own(void *argument) {
  static const unsigned best_first[] = {
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG, /* Linux 6.1 */
      IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,                                /* Linux 5.19 */
      0};
  struct weft_file_ring *l = argument;
  pthread_setname_np(pthread_self(), "weft files");
  l->error = weft_ring_open(&l->ring, l->entries ? l->entries : 2 * l->depth + 8, l->entries ? l->entries : 4 * l->depth + 8, best_first);
  int ok = l->error == 0;
  if (ok) watch_wake(l);
  sem_post(&l->started); /* after a failure the ring is freed from here on */
  if (!ok) return 0;
  while (!__atomic_load_n(&l->stopping, __ATOMIC_SEQ_CST)) turn(l);
  finish(l);
  return 0;
}

/* Other threads ------------------------------------------------------------------- */

static void release(struct weft_file_ring *l) {
  if (l->wake_fd >= 0) weft_close_own(l->wake_fd);
  sem_destroy(&l->started);
  free(l->slots);
  free(l->cancels);
  free(l);
}

static int start(struct weft_file_ring *l) {
  sigset_t all, before;
  if (!l->slots || !l->cancels) return -ENOMEM;
  if (l->wake_fd < 0) return -errno;
  /* Signals are for the program's own threads. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  int err = pthread_create(&l->owner, 0, own, l);
  pthread_sigmask(SIG_SETMASK, &before, 0);
  if (err) return -err;
  while (sem_wait(&l->started) < 0) continue;
  if (l->error) pthread_join(l->owner, 0);
  return l->error;
}

/* A ring with this many slots, a reader that runs on this capability, and this many entries in
 * its queues (0: as many as it can use). 0 or -errno. */
int weft_file_ring_open(unsigned depth, int capability, unsigned entries, struct weft_file_ring **out) {
  struct weft_file_ring *l = aligned_alloc(64, (sizeof *l + 63) / 64 * 64);
  if (!l) return -ENOMEM;
  memset(l, 0, sizeof *l);
  l->depth = depth;
  l->entries = entries;
  l->capability = capability;
  l->maker = getpid();
  l->slots = calloc(depth, sizeof *l->slots);
  l->cancels = calloc(2 * words(l), sizeof *l->cancels);
  l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  sem_init(&l->started, 0, 0);
  int err = start(l);
  if (err)
    release(l);
  else
    *out = l;
  return err;
}

/* Cancel the requests in flight, wait until all have completed, and end the owner. Blocks. The ring's memory stays
 * until weft_file_ring_free. */
void weft_file_ring_stop(struct weft_file_ring *l) {
  __atomic_store_n(&l->stopping, 1, __ATOMIC_SEQ_CST);
  wake(l);
  pthread_join(l->owner, 0);
}

/* Free the ring, and the pointer that a reader has left. In a forked child the ring is the parent's and there is no
 * owner. */
void weft_file_ring_free(struct weft_file_ring *l) {
  if (l->waiter) hs_free_stable_ptr(l->waiter);
  weft_ring_close(&l->ring, getpid() == l->maker);
  release(l);
}

/* The generation that the next request in a slot will have. */
uint32_t weft_file_ring_generation(struct weft_file_ring *l, unsigned slot) { return l->slots[slot].generation + 1; }

/* Submit an operation in a slot that the caller holds. The owner is woken,
 * unless the reader is going to do that. */
void weft_file_ring_submit(struct weft_file_ring *l, unsigned slot, uint8_t opcode, int32_t fd, uint64_t off,
                      uint64_t addr, uint32_t len, uint32_t flags) {
  struct slot *s = &l->slots[slot];
  s->op = (struct weft_file_op){opcode, fd, off, addr, len, flags};
  /* Not cancelled. An older generation would count as newer after 2^31 requests. */
  __atomic_store_n(&s->cancelled, s->generation++, __ATOMIC_RELAXED);
  push(l, &l->inbox, slot);
  if (!__atomic_load_n(&l->handing, __ATOMIC_SEQ_CST)) wake(l);
}

/* The reader has delivered the completions that it collected: wake the owner for
 * the requests that were submitted meanwhile. */
void weft_file_ring_wake(struct weft_file_ring *l) {
  __atomic_store_n(&l->handing, 0, __ATOMIC_SEQ_CST);
  if (__atomic_load_n(&l->inbox, __ATOMIC_SEQ_CST)) wake(l);
}

/* Ask for a request to be cancelled. It may have ended already. A caller with an earlier generation
 * does not overwrite the request of a caller with the slot's present one. */
void weft_file_ring_cancel(struct weft_file_ring *l, unsigned slot, uint32_t generation) {
  uint32_t *cancelled = &l->slots[slot].cancelled, before = __atomic_load_n(cancelled, __ATOMIC_SEQ_CST);
  while ((int32_t)(generation - before) > 0 &&
         !__atomic_compare_exchange_n(cancelled, &before, generation, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
    ;
  __atomic_fetch_or(&l->cancels[slot / 64], (uint64_t)1 << slot % 64, __ATOMIC_SEQ_CST);
  __atomic_store_n(&l->any_cancel, 1, __ATOMIC_SEQ_CST);
  wake(l);
}

/* Write the completed slots, at most n of them, as (slot, result) pairs to out. The list that the caller
 * keeps holds the rest. If there are any, the caller has to call weft_file_ring_wake afterwards. */
int weft_file_ring_collect(struct weft_file_ring *l, uint32_t *list, int32_t *out, int n) {
  int i = 0;
  if (*list == 0) *list = take_all(&l->done);
  for (; i < n && *list; i++) {
    unsigned slot = *list - 1;
    out[2 * i] = (int32_t)slot;
    out[2 * i + 1] = l->slots[slot].result;
    *list = l->slots[slot].next;
  }
  if (i) __atomic_store_n(&l->handing, 1, __ATOMIC_SEQ_CST);
  return i;
}

/* Leave a stable pointer to an MVar that is filled once, when a request completes.
 * If one is complete already, the pointer is taken back and returned. Null if the MVar has been
 * or will be filled. */
void *weft_file_ring_await(struct weft_file_ring *l, void *waiter) {
  __atomic_store_n(&l->waiter, waiter, __ATOMIC_SEQ_CST);
  return __atomic_load_n(&l->done, __ATOMIC_SEQ_CST) ? __atomic_exchange_n(&l->waiter, 0, __ATOMIC_SEQ_CST) : 0;
}

uint64_t weft_file_ring_counter(struct weft_file_ring *l, int which) {
  return which < COUNTERS ? __atomic_load_n(&l->counters[which], __ATOMIC_RELAXED) : 0;
}
