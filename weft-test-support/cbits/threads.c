/* Counts the Haskell threads of the process. Called unsafely, so that the caller keeps its capability: no collection,
   which changes the lists, can run meanwhile. New threads enter at a list's head. */
#define THREADED_RTS 1
#include <stdint.h>
#include "Rts.h"

/* The threads with numbers above this one that have not ended. */
int weft_test_threads_above(uint64_t number) {
  int count = 0;
  for (uint32_t g = 0; g < RtsFlags.GcFlags.generations; g++)
    for (const StgTSO *t = generations[g].threads; t != END_TSO_QUEUE; t = t->global_link)
      if (t->id > number && t->what_next != ThreadComplete && t->what_next != ThreadKilled) count++;
  return count;
}
