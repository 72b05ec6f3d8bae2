/* The shared memory of an io_uring, for the back end and for files. Uses system calls and the kernel's
 * own header, so no library has to be installed. */
#ifndef WEFT_RING_H
#define WEFT_RING_H

#include <linux/io_uring.h>
#include <stddef.h>

/* For older headers; the running kernel decides in any case. */
#ifndef IORING_SETUP_COOP_TASKRUN /* Linux 5.19 */
#define IORING_SETUP_COOP_TASKRUN (1U << 8)
#define IORING_SETUP_TASKRUN_FLAG (1U << 9)
#define IORING_SQ_TASKRUN (1U << 2)
#endif
#ifndef IORING_SETUP_DEFER_TASKRUN /* Linux 6.1 */
#define IORING_SETUP_SINGLE_ISSUER (1U << 12)
#define IORING_SETUP_DEFER_TASKRUN (1U << 13)
#endif
#ifndef IORING_ENTER_EXT_ARG /* Linux 5.11 */
#define IORING_ENTER_EXT_ARG (1U << 3)
#define IORING_FEAT_EXT_ARG (1U << 8)
struct io_uring_getevents_arg {
  __u64 sigmask;
  __u32 sigmask_sz, pad;
  __u64 ts;
};
#endif

struct weft_ring {
  int fd;
  unsigned features, setup; /* IORING_FEAT_*; the IORING_SETUP_* that it got */
  /* In memory shared with the kernel. */
  unsigned *sq_head, *sq_tail, *sq_flags, *cq_head, *cq_tail;
  struct io_uring_sqe *sqes;
  struct io_uring_cqe *cqes;
  unsigned sq_mask, sq_entries, cq_mask;
  void *rings;
  size_t rings_size, sqes_size;
};

/* Make a ring with the first of these sets of flags, of which the last must be 0,
 * that the kernel knows. Requires that no completion is ever dropped, that a timeout
 * can be given with the wait, and that one mapping serves both queues (Linux 5.11).
 * 0 or -errno. A forked child inherits no mapping. */
int weft_ring_open(struct weft_ring *r, unsigned entries, unsigned completions, const unsigned *flags);
/* Close the ring, with its mappings (a forked child has none) or only the descriptor. */
void weft_ring_close(struct weft_ring *r, int mapped);

/* The next free entry of the submission queue, zeroed, or null. It is queued by
 * weft_ring_push. Both belong to one thread at a time. */
struct io_uring_sqe *weft_ring_next(struct weft_ring *r);

static inline unsigned weft_ring_get(unsigned *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void weft_ring_put(unsigned *p, unsigned v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline void weft_ring_push(struct weft_ring *r) { weft_ring_put(r->sq_tail, *r->sq_tail + 1); }

/* The number of entries that are queued and not submitted. */
static inline unsigned weft_ring_queued(struct weft_ring *r) {
  return weft_ring_get(r->sq_tail) - weft_ring_get(r->sq_head);
}

/* io_uring_enter(2). Returns its result, or -errno. */
int weft_ring_enter(struct weft_ring *r, unsigned submit, unsigned want, unsigned flags, void *arg, size_t size);

#endif
