/* The protocol of the ring for files, step by step: the production source over a queue that is plain memory. The owner
 * has no thread here; the test calls its turns, and completes requests. */
#define hs_try_putmvar steps_ring
#define hs_free_stable_ptr steps_free_pointer
#include "../../../cbits/linux/file_ring.c"

enum { SIZE = 1024 };
static unsigned sq_head, sq_tail, sq_flags, cq_head, cq_tail;
static struct io_uring_sqe sqes[SIZE];
static struct io_uring_cqe cqes[SIZE];
static uint64_t submitted[3 * SIZE];
static int submissions;

void steps_ring(int capability, HsStablePtr sp) { (void)capability, (void)sp; }

static int pointers_freed;
void steps_free_pointer(HsStablePtr sp) { (void)sp, pointers_freed++; }
int steps_pointers_freed(void) { return pointers_freed; }

int weft_ring_open(struct weft_ring *r, unsigned entries, unsigned completions, const unsigned *flags) {
  (void)entries, (void)completions, (void)flags;
  *r = (struct weft_ring){.sq_head = &sq_head, .sq_tail = &sq_tail, .sq_flags = &sq_flags, .cq_head = &cq_head, .cq_tail = &cq_tail,
                          .sqes = sqes, .cqes = cqes, .sq_mask = SIZE - 1, .sq_entries = SIZE, .cq_mask = SIZE - 1};
  return 0;
}

void weft_ring_close(struct weft_ring *r, int mapped) { (void)r, (void)mapped; }

struct io_uring_sqe *weft_ring_next(struct weft_ring *r) {
  struct io_uring_sqe *e = &r->sqes[*r->sq_tail & r->sq_mask];
  memset(e, 0, sizeof *e);
  return e;
}

/* What others do while the owner is in the kernel. */
enum { SUBMIT, CANCEL, ROUSE };
static struct { int what; unsigned slot; uint32_t generation; } meanwhile[64];
static int first, last;
static struct weft_file_ring *whose;

void steps_meanwhile(int what, unsigned slot, uint32_t generation) {
  meanwhile[last].what = what, meanwhile[last].slot = slot, meanwhile[last].generation = generation;
  last++;
}

static void others(void) {
  while (first < last) {
    int i = first++;
    if (meanwhile[i].what == CANCEL)
      weft_file_ring_cancel(whose, meanwhile[i].slot, meanwhile[i].generation);
    else if (meanwhile[i].what == ROUSE)
      weft_file_ring_wake(whose);
    else
      weft_file_ring_submit(whose, meanwhile[i].slot, IORING_OP_READ, 0, 0, meanwhile[i].slot, 0, 0);
  }
}

/* Takes all that is queued, and never blocks. */
int weft_ring_enter(struct weft_ring *r, unsigned submit, unsigned want, unsigned flags, void *arg, size_t size) {
  (void)want, (void)flags, (void)arg, (void)size;
  for (; sq_head != sq_tail; sq_head++) {
    const struct io_uring_sqe *e = &r->sqes[sq_head & r->sq_mask];
    uint64_t *s = &submitted[3 * submissions++];
    s[0] = e->opcode, s[1] = e->user_data, s[2] = e->addr;
  }
  others();
  return (int)submit;
}

struct weft_file_ring *steps_new(unsigned depth) {
  struct weft_file_ring *l = aligned_alloc(64, (sizeof *l + 63) / 64 * 64);
  memset(l, 0, sizeof *l);
  l->depth = depth;
  l->slots = calloc(depth, sizeof *l->slots);
  l->cancels = calloc(2 * words(l), sizeof *l->cancels);
  l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  sem_init(&l->started, 0, 0);
  sq_head = sq_tail = cq_head = cq_tail = 0;
  submissions = 0;
  weft_ring_open(&l->ring, 0, 0, 0);
  return l;
}

void steps_free(struct weft_file_ring *l) { weft_file_ring_free(l); }

/* A slot has been used that often. */
void steps_used(struct weft_file_ring *l, unsigned slot, uint32_t times) { l->slots[slot].generation = times; }

void steps_submit(struct weft_file_ring *l, unsigned slot) { weft_file_ring_submit(l, slot, IORING_OP_READ, 0, 0, slot, 0, 0); }

/* Whatever was to be done meanwhile is done afterwards, if the owner did not go to sleep. */
void steps_turn(struct weft_file_ring *l) {
  whose = l;
  turn(l);
  others();
  first = last = 0;
}

void steps_complete(unsigned slot, uint32_t generation, int result) {
  cqes[cq_tail & (SIZE - 1)] = (struct io_uring_cqe){.user_data = name(slot, generation), .res = result};
  cq_tail++;
}

/* What was submitted since the last time: (is it a cancellation, slot, generation) of each. Their number. */
int steps_submissions(int32_t *out) {
  int n = submissions;
  for (int i = 0; i < n; i++) {
    int cancels = submitted[3 * i] == IORING_OP_ASYNC_CANCEL;
    uint64_t whose = submitted[3 * i + (cancels ? 2 : 1)];
    out[3 * i] = cancels, out[3 * i + 1] = (int32_t)(uint32_t)whose, out[3 * i + 2] = (int32_t)(whose >> 32);
  }
  submissions = 0;
  return n;
}

static int chain(struct weft_file_ring *l, uint32_t top, int64_t *out) {
  int n = 0;
  for (; top; top = l->slots[top - 1].next) out[++n] = top;
  out[0] = n;
  return n + 1;
}

/* All words, as FileRing.observe has them. Their number. */
int steps_observe(struct weft_file_ring *l, int64_t *out) {
  int n = 0;
  out[n++] = l->asleep, out[n++] = l->any_cancel, out[n++] = l->handing, out[n++] = l->waiter != 0, out[n++] = (int64_t)l->cancels[0];
  n += chain(l, l->inbox, out + n);
  n += chain(l, l->done, out + n);
  for (unsigned s = 0; s < l->depth; s++)
    out[n++] = l->slots[s].generation, out[n++] = l->slots[s].cancelled, out[n++] = l->slots[s].result;
  out[n++] = (int64_t)l->counters[SUBMITTED], out[n++] = (int64_t)l->counters[SIGNALLED];
  out[n++] = (int64_t)l->counters[RUNG], out[n++] = (int64_t)l->counters[CANCELS];
  return n;
}
