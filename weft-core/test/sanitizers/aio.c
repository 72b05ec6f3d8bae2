/* The shim of io_submit(2) under sanitizers (scripts/sanitizers): threads submit reads and writes of a file, past the
 * page cache where the file system permits, and one thread collects the completions. Every request that was submitted
 * completes once, with the bytes of its place in the file. Prints what it counted; the status is 1 if a result was
 * wrong.
 *   aio ROUNDS SEED DEPTH */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

int weft_aio_open(uint32_t depth, uint64_t *context), weft_aio_collect(uint64_t, int32_t, uint32_t, struct io_event *);
int weft_aio_wait(uint64_t, uint32_t, struct io_event *);
void weft_aio_close(uint64_t context);
int weft_aio_submit(uint64_t context, int32_t signal, uint8_t opcode, int32_t fd, uint64_t off, uint64_t addr,
                    uint32_t len, uint64_t name, int32_t watched);

enum { THREADS = 3, SLOTS = 24, BLOCK = 4096, BLOCKS = 64 };

static uint64_t context;
static int events, file;
static unsigned rounds, wrong;
static int over;
static unsigned char contents[BLOCKS][BLOCK];
static unsigned long reads, writes, again, full;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t freed = PTHREAD_COND_INITIALIZER;
/* Block b is written by the slot whose number is b, and with the same bytes as before, so that any read may be checked. */
static struct {
  int used, writes;
  unsigned block;
  struct iovec parts[2];
  unsigned char *buffer;
} slots[SLOTS];

static void blame(const char *what, long a, long b) {
  fprintf(stderr, "wrong: %s (%ld, %ld)\n", what, a, b);
  __atomic_store_n(&wrong, 1, __ATOMIC_SEQ_CST);
}

static void release(unsigned s) {
  slots[s].used = 0;
  pthread_cond_signal(&freed);
}

static void *submit(void *argument) {
  unsigned seed = (unsigned)(uintptr_t)argument;
  for (unsigned i = 0; i < rounds; i++) {
    unsigned s;
    pthread_mutex_lock(&lock);
    for (;;) {
      for (s = 0; s < SLOTS && slots[s].used; s++) continue;
      if (s < SLOTS) break;
      pthread_cond_wait(&freed, &lock);
    }
    slots[s].used = 1;
    slots[s].writes = rand_r(&seed) % 4 == 0;
    slots[s].block = slots[s].writes ? s : (unsigned)rand_r(&seed) % BLOCKS;
    int vector = rand_r(&seed) % 2, watched = rand_r(&seed) % 2;
    uint8_t opcode = slots[s].writes ? (vector ? IORING_OP_WRITEV : IORING_OP_WRITE) : (vector ? IORING_OP_READV : IORING_OP_READ);
    if (slots[s].writes)
      memcpy(slots[s].buffer, contents[s], BLOCK);
    else
      memset(slots[s].buffer, 0, BLOCK);
    uint64_t address = (uint64_t)(uintptr_t)(vector ? (void *)slots[s].parts : slots[s].buffer);
    uint32_t length = vector ? 2 : BLOCK;
    uint64_t offset = (uint64_t)slots[s].block * BLOCK;
    pthread_mutex_unlock(&lock);
    /* With the slot's number as name. From here on the collector may release it. */
    int r = weft_aio_submit(context, events, opcode, file, offset, address, length, s, watched);
    if (r >= 0) continue;
    if (r != -EAGAIN) blame("a submission", r, s);
    pthread_mutex_lock(&lock);
    full++;
    release(s);
    pthread_mutex_unlock(&lock);
  }
  return 0;
}

static void check(const struct io_event *e) {
  unsigned s = (unsigned)e->data;
  if (e->data >= SLOTS || !slots[s].used) {
    blame("a completion of a slot that is free", (long)e->data, (long)e->res);
    return;
  }
  /* EAGAIN: it would have had to wait. EOPNOTSUPP: the file system cannot tell. */
  if (e->res == -EAGAIN || e->res == -EOPNOTSUPP)
    again++;
  else if (e->res != BLOCK)
    blame("a transfer", (long)e->res, (long)s);
  else if (slots[s].writes)
    writes++;
  else if (memcmp(slots[s].buffer, contents[slots[s].block], BLOCK) != 0)
    blame("a read gave other bytes", (long)slots[s].block, (long)s);
  else
    reads++;
  release(s);
}

/* Polls the descriptor, as a manager does, or waits for a completion, as a program without one does. */
static void *collect(void *argument) {
  struct io_event some[4];
  unsigned seed = (unsigned)(uintptr_t)argument;
  while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
    struct pollfd p = {.fd = events, .events = POLLIN};
    int n, direct = rand_r(&seed) % 8 == 0;
    if (!direct && poll(&p, 1, 100) <= 0) continue;
    do {
      n = direct ? weft_aio_wait(context, 4, some) : weft_aio_collect(context, events, 4, some);
      if (n < 0) blame("collect", n, direct);
      pthread_mutex_lock(&lock);
      for (int i = 0; i < n; i++) check(&some[i]);
      pthread_mutex_unlock(&lock);
    } while (n > 0 && !direct);
  }
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  rounds = (unsigned)atoi(argv[1]);
  unsigned seed = (unsigned)atoi(argv[2]), depth = (unsigned)atoi(argv[3]);
  char path[] = "sanitizer-aio-XXXXXX";
  file = mkostemp(path, O_DIRECT);
  if (file < 0 && errno == EINVAL) file = mkstemp(path);
  if (file < 0) return perror(path), 1;
  unlink(path);
  unsigned char *memory;
  if (posix_memalign((void **)&memory, BLOCK, (SLOTS + 1) * BLOCK) != 0) return 1;
  for (unsigned b = 0; b < BLOCKS; b++) {
    for (unsigned i = 0; i < BLOCK; i++) contents[b][i] = (unsigned char)(b * 31 + i * 7 + i / 256);
    memcpy(memory, contents[b], BLOCK);
    if (pwrite(file, memory, BLOCK, (off_t)b * BLOCK) != BLOCK) return perror("pwrite"), 1;
  }
  for (unsigned s = 0; s < SLOTS; s++) {
    slots[s].buffer = memory + (size_t)s * BLOCK;
    slots[s].parts[0] = (struct iovec){slots[s].buffer, BLOCK / 2};
    slots[s].parts[1] = (struct iovec){slots[s].buffer + BLOCK / 2, BLOCK / 2};
  }
  events = weft_aio_open(depth, &context);
  if (events < 0) {
    printf("no context: %s\n", strerror(-events));
    return 0;
  }
  if (weft_aio_submit(context, events, IORING_OP_FSYNC, file, 0, 0, 0, 0, 0) != -EINVAL) blame("an unknown opcode", 0, 0);
  if (weft_aio_submit(context, events, IORING_OP_READ, file, 0, (uint64_t)(uintptr_t)memory, 1 << 21, 0, 0) != -EAGAIN)
    blame("a transfer that is too long", 0, 0);
  pthread_t submitters[THREADS], collector;
  pthread_create(&collector, 0, collect, (void *)(uintptr_t)seed);
  for (uintptr_t t = 0; t < THREADS; t++) pthread_create(&submitters[t], 0, submit, (void *)(seed * 16 + t));
  for (unsigned t = 0; t < THREADS; t++) pthread_join(submitters[t], 0);
  pthread_mutex_lock(&lock);
  for (unsigned s = 0; s < SLOTS; s++)
    while (slots[s].used) pthread_cond_wait(&freed, &lock);
  pthread_mutex_unlock(&lock);
  __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
  pthread_join(collector, 0);
  weft_aio_close(context);
  close(events);
  close(file);
  free(memory);
  if (reads + writes + again + full != (unsigned long)rounds * THREADS) blame("requests", (long)(reads + writes), (long)(again + full));
  printf("%lu reads, %lu writes, %lu would have waited, %lu refused\n", reads, writes, again, full);
  return (int)wrong;
}
