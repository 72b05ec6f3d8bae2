/* The size of the allocation areas, by what collections cost. A collection costs what lives, so the larger the areas,
 * the less of a program's time its collections take, and the more memory it has. With 512 clients that connect for ten
 * requests each, collections took a tenth of the time of `weft serve` with areas of 2 MiB (doc/rationale/cores.md).
 *
 * But where what is copied goes on to live, as the state of many clients that connect and wait, a larger area would
 * only take memory. Whether it does is known after a collection of the old generation, so sizes are chosen then.
 *
 * The run-time system calls weft_after_collection after each collection, while no other thread of the program runs, and
 * takes the size that it leaves there with the next collection. So nothing here is shared, and a program that allocates
 * nothing is not woken. If +RTS -A, -n, -G1 or -M choose otherwise, the areas stay as they are. */

#include "allocation_area.h"
#include "weft_runtime.h"
#include <time.h>
#include <unistd.h>

enum {
  MIB = 1 << 20,
  LEAST = 2 * MIB / BLOCK_SIZE, /* -A2m, which `weft` is linked with */
  MOST = 16 * MIB / BLOCK_SIZE,
  MUCH = 64,    /* collections that take more than this part of the program's CPU time have the areas doubled, */
  SURVIVED = 4, /* unless this part of what they have copied lives on, */
  BUSY = 30,    /* or the old generation was not collected for so many seconds; */
  QUIET = 300   /* if it was not for so many, they are halved */
};

#define SECOND 1000000000u

uint32_t weft_area_most(uint64_t cache, uint32_t capabilities) {
  uint64_t all = cache == 0 ? 16 * MIB : cache;
  uint64_t most = all / (capabilities == 0 ? 1 : capabilities) / BLOCK_SIZE;
  return most < LEAST ? LEAST : most > MOST ? MOST : (uint32_t)most;
}

uint32_t weft_area_after(uint32_t area, uint32_t most, uint64_t elapsed_ns, uint64_t times, uint64_t copied,
                         uint64_t grown) {
  uint32_t next = area;
  if (elapsed_ns > (uint64_t)QUIET * SECOND)
    next = area / 2;
  else if (elapsed_ns < (uint64_t)BUSY * SECOND && times < MUCH && grown < copied / SURVIVED)
    next = area * 2;
  if (next > most) next = most;
  return next < LEAST ? LEAST : next;
}

/* In bytes; 0 if it is not known. */
static uint64_t third_level_cache(void) {
#ifdef _SC_LEVEL3_CACHE_SIZE
  long size = sysconf(_SC_LEVEL3_CACHE_SIZE);
  return size > 0 ? (uint64_t)size : 0;
#else
  return 0;
#endif
}

static int chosen_otherwise(void) {
  return RtsFlags.GcFlags.minAllocAreaSize != LEAST || RtsFlags.GcFlags.nurseryChunkSize != 0 ||
         RtsFlags.GcFlags.generations == 1 || RtsFlags.GcFlags.maxHeapSize != 0;
}

static uint64_t nanoseconds(clockid_t clock) {
  struct timespec t;
  return clock_gettime(clock, &t) == 0 ? (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec : 0;
}

void weft_after_collection(const struct GCDetails_ *collection) {
  static enum { BEFORE_FIRST, ADAPTS, KEEPS } state = BEFORE_FIRST;
  /* Since the old generation was collected before; and the clocks, and what lived, then. */
  static uint64_t collecting, copied, then, used_then, live_then;
  static uint64_t cache;
  if (state == BEFORE_FIRST && chosen_otherwise()) state = KEEPS;
  if (state == KEEPS) return;
  collecting += (uint64_t)collection->cpu_ns;
  if (collection->gen + 1 < RtsFlags.GcFlags.generations) {
    copied += collection->copied_bytes;
    return;
  }
  uint64_t now = nanoseconds(CLOCK_MONOTONIC), used = nanoseconds(CLOCK_PROCESS_CPUTIME_ID);
  if (state == BEFORE_FIRST) {
    cache = third_level_cache();
    state = ADAPTS;
  } else {
    uint64_t grown = collection->live_bytes > live_then ? collection->live_bytes - live_then : 0;
    RtsFlags.GcFlags.minAllocAreaSize =
        weft_area_after(RtsFlags.GcFlags.minAllocAreaSize, weft_area_most(cache, enabled_capabilities), now - then,
                        (used - used_then) / (collecting + 1), copied, grown);
  }
  then = now;
  used_then = used;
  live_then = collection->live_bytes;
  collecting = copied = 0;
}
