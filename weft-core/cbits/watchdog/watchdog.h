#ifndef WEFT_WATCHDOG_H
#define WEFT_WATCHDOG_H
#include <stdint.h>

/* The state of a manager's runner, in a block of its own outside the heap, so that an OS thread of C code can read
 * it while no Haskell code runs. Weft.Core.Heartbeat has the same order of the first six words. */
struct weft_heartbeat {
  /* Written by the runner. */
  _Alignas(128) int64_t beat; /* grows after each change of state */
  int64_t state;              /* a phase, and from bit 3 on the descriptor of a callback, or when a sleeper will be back, in ns */
  /* The bound in ns, or 0. Written by the watchdog. */
  int64_t watched;
  /* The longest callback while it was watched, in ns, and its descriptor or -1. Written by the runner. */
  int64_t longest, longest_of;
  /* When the state was written. Written by the runner, before the state. */
  int64_t at;
  /* The watchdog's own: the capability, or -1; the beat and the state that it saw last; the instant at which they
   * began; the instant before which nothing counts, as the process was stopped; the instant at which the stall
   * began that it has reported, or 0; the watch that these belong to. */
  int64_t index, seen_beat, seen_state, since, not_before, reported_since, seen_watch;
  /* How often it began to be watched. Written under the lock. */
  int64_t watch;
  int32_t used;
};

enum weft_phase { WEFT_OUTSIDE, WEFT_TURN, WEFT_CALLBACK, WEFT_TIMERS, WEFT_YIELDED, WEFT_ASLEEP };

struct weft_heartbeat *weft_heartbeat_open(int64_t index);
void weft_heartbeat_close(struct weft_heartbeat *h);
int weft_watchdog_set(int64_t bound_ns);
void weft_watchdog_warn(const char *line);
int64_t weft_watchdog_bound(void);
int64_t weft_watchdog_stalls(void);
int64_t weft_watchdog_longest(void);

#endif
