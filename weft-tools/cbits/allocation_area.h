#ifndef WEFT_ALLOCATION_AREA_H
#define WEFT_ALLOCATION_AREA_H

#include <stdint.h>

struct GCDetails_;

/* The most blocks of memory of an area: all areas together have no more than the third-level cache, whose size is given
 * in bytes (0: not known), but 2 MiB each, and one has no more than 16 MiB. */
uint32_t weft_area_most(uint64_t cache, uint32_t capabilities);

/* How many blocks an area should have that has so many now, and may have so many. The other arguments say what has
 * happened since the old generation was collected before: the time, how many times the CPU time of collections the
 * program has used, the bytes that collections of the young generation have copied, and how many more live now. */
uint32_t weft_area_after(uint32_t area, uint32_t most, uint64_t elapsed_ns, uint64_t times, uint64_t copied,
                         uint64_t grown);

/* To be called by the run-time system after each collection (RtsConfig's gcDoneHook). */
void weft_after_collection(const struct GCDetails_ *collection);

#endif
