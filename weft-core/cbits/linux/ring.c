#define _GNU_SOURCE
#include "ring.h"
#include "own.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *share(int fd, size_t size, off_t what) {
  void *p = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, what);
  /* A forked child must not write into its parent's rings. */
  if (p != MAP_FAILED) madvise(p, size, MADV_DONTFORK);
  return p;
}

static int setup(unsigned entries, unsigned completions, const unsigned *flags, struct io_uring_params *p) {
  for (;; flags++) {
    *p = (struct io_uring_params){.flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE | *flags,
                                  .cq_entries = completions};
    int fd = syscall(SYS_io_uring_setup, entries, p);
    if (fd >= 0) return fd;
    if (errno != EINVAL || *flags == 0) return -errno;
  }
}

int weft_ring_open(struct weft_ring *r, unsigned entries, unsigned completions, const unsigned *flags) {
  const unsigned need = IORING_FEAT_NODROP | IORING_FEAT_EXT_ARG | IORING_FEAT_SINGLE_MMAP;
  struct io_uring_params p;
  int err = r->fd = setup(entries, completions, flags, &p);
  if (err < 0) return err;
  err = 0;
  r->features = p.features;
  r->setup = p.flags;
  size_t sq = p.sq_off.array + p.sq_entries * sizeof(unsigned);
  size_t cq = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
  r->rings_size = sq > cq ? sq : cq;
  r->sqes_size = p.sq_entries * sizeof(struct io_uring_sqe);
  r->rings = r->sqes = MAP_FAILED;
  if ((p.features & need) != need) {
    err = -EINVAL;
  } else if ((r->rings = share(r->fd, r->rings_size, IORING_OFF_SQ_RING)) == MAP_FAILED ||
             (r->sqes = share(r->fd, r->sqes_size, IORING_OFF_SQES)) == MAP_FAILED) {
    err = -errno;
  }
  if (err) {
    if (r->rings != MAP_FAILED) munmap(r->rings, r->rings_size);
    close(r->fd);
    return err;
  }
  char *m = r->rings;
  r->sq_head = (unsigned *)(m + p.sq_off.head);
  r->sq_tail = (unsigned *)(m + p.sq_off.tail);
  r->sq_flags = (unsigned *)(m + p.sq_off.flags);
  r->sq_mask = p.sq_entries - 1;
  r->sq_entries = p.sq_entries;
  r->cq_head = (unsigned *)(m + p.cq_off.head);
  r->cq_tail = (unsigned *)(m + p.cq_off.tail);
  r->cqes = (struct io_uring_cqe *)(m + p.cq_off.cqes);
  r->cq_mask = p.cq_entries - 1;
  unsigned *array = (unsigned *)(m + p.sq_off.array);
  for (unsigned i = 0; i < p.sq_entries; i++) array[i] = i;
  return 0;
}

void weft_ring_close(struct weft_ring *r, int mapped) {
  if (mapped) {
    munmap(r->sqes, r->sqes_size);
    munmap(r->rings, r->rings_size);
  }
  weft_close_own(r->fd);
}

struct io_uring_sqe *weft_ring_next(struct weft_ring *r) {
  unsigned tail = *r->sq_tail;
  if (tail - weft_ring_get(r->sq_head) == r->sq_entries) return 0;
  struct io_uring_sqe *e = &r->sqes[tail & r->sq_mask];
  memset(e, 0, sizeof *e);
  return e;
}

int weft_ring_enter(struct weft_ring *r, unsigned submit, unsigned want, unsigned flags, void *arg, size_t size) {
  int n = syscall(SYS_io_uring_enter, r->fd, submit, want, flags, arg, size);
  return n < 0 ? -errno : n;
}
