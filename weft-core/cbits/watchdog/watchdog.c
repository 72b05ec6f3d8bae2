/* The watchdog: an OS thread that detects a manager's runner without progress, because a callback does not return or
 * a thread does not release its capability, and reports it on stderr. It runs no Haskell code and holds no
 * capability, so it also detects a loop that never allocates on the only capability. On Linux it adds the busy OS
 * threads of the program and their code.
 *
 * A hold begins where the state was written or, if the runner was asleep, where it should have been back: it sleeps for
 * a fifth of the bound at most (Weft.Core.Heartbeat). The watchdog looks when the first hold can exceed the bound, and
 * not before a twentieth of it. So it reports each hold of the bound and a quarter, and the times that it says are
 * right within that quarter.
 *
 * A block's states, as the watchdog sees them:
 *
 *   quiet     the beat moves, or the runner is asleep and not overdue, or outside of its loop
 *   held      the beat has not moved for longer than the bound     quiet -> held: one report
 *   released  it moves again                                       held -> quiet: one more, with the whole time
 *
 * Its thread is started when a bound is first set and then stays; without a bound it waits for one. A forked child
 * has no watchdog until it sets a bound or opens a block. */
#define _GNU_SOURCE
#include "watchdog.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "busy_code.h"

enum { BLOCKS = 256 };
static struct weft_heartbeat blocks[BLOCKS];
/* For managers that find no block: never watched. */
static struct weft_heartbeat spare;

/* Guards the blocks' 'used', the bound and the start of the thread; held for moments only. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int running;
static int64_t bound;
static int64_t stalls, longest; /* written by the watchdog's thread */

static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The shortest time between two looks. */
static int64_t shortest(int64_t limit) { return limit / 20 < 250000 ? 250000 : limit / 20; }

/* The time until the next look, if the first hold can exceed the bound at that instant: up to 250 ms, since the bound
 * may change. */
static int64_t until(int64_t due, int64_t now, int64_t limit) {
  int64_t left = due - now, most = 250000000, least = shortest(limit);
  if (least > most) least = most;
  return left < least ? least : left > most ? most : left;
}

static void nap(int64_t ns) {
  struct timespec t = {ns / 1000000000, ns % 1000000000};
  while (nanosleep(&t, &t) < 0 && errno == EINTR) continue;
}

/* One report is one write, so that lines of others do not come between. */
struct report {
  char text[4096];
  size_t length;
};

static void say(struct report *r, const char *format, ...) {
  va_list more;
  va_start(more, format);
  size_t left = sizeof r->text - r->length;
  int n = vsnprintf(r->text + r->length, left, format, more);
  if (n > 0) r->length += (size_t)n < left ? (size_t)n : left - 1;
  va_end(more);
}

static void send_report(const struct report *r) {
  size_t sent = 0;
  while (sent < r->length) {
    ssize_t n = write(2, r->text + sent, r->length - sent);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) sent += (size_t)n;
  }
}

static void say_whose(struct report *r, const struct weft_heartbeat *h) {
  if (h->index >= 0)
    say(r, "weft watchdog: capability %lld", (long long)h->index);
  else
    say(r, "weft watchdog: an event manager of the program");
}

static void report_held(const struct weft_heartbeat *h, int64_t phase, int64_t detail, int64_t held) {
  struct report r = {.length = 0};
  say_whose(&r, h);
  say(&r, " has been held for %.3f s ", (double)held / 1e9);
  switch (phase) {
  case WEFT_CALLBACK:
    say(&r, "by a callback of descriptor %lld\n", (long long)detail);
    break;
  case WEFT_TIMERS:
    say(&r, "by the action of a timer\n");
    break;
  case WEFT_TURN:
    say(&r, "by its dispatcher, outside of callbacks\n");
    break;
  default:
    say(&r, "by other threads: its dispatcher waits to run\n");
  }
  char code[2048];
  if (weft_busy_code(code, sizeof code, &h->beat, h->seen_beat))
    say(&r, "%s", code);
  else
    say(&r, "  no OS thread of the program is busy: a foreign call waits, or the machine is\n");
  send_report(&r);
}

static void report_released(const struct weft_heartbeat *h, int64_t held) {
  struct report r = {.length = 0};
  say_whose(&r, h);
  say(&r, " is free again, after %.3f s\n", (double)held / 1e9);
  send_report(&r);
}

static void note_longest(int64_t held) {
  if (held > longest) __atomic_store_n(&longest, held, __ATOMIC_RELAXED);
}

/* Look at a block, for the first time since 'before'. Returns the instant at which to look again. */
static int64_t look_at(struct weft_heartbeat *h, int64_t before, int64_t now, int64_t limit) {
  int64_t beat = __atomic_load_n(&h->beat, __ATOMIC_ACQUIRE);
  int64_t state = __atomic_load_n(&h->state, __ATOMIC_ACQUIRE);
  int64_t phase = state & 7, detail = state >> 3;
  int64_t at = __atomic_load_n(&h->at, __ATOMIC_ACQUIRE);
  int64_t began = __atomic_load_n(&h->watch, __ATOMIC_ACQUIRE);
  if (began != h->seen_watch) {
    /* It was not watched for some time, which does not count, nor does what was reported before. */
    h->seen_watch = began;
    h->reported_since = 0;
    h->not_before = now;
  }
  if (beat != h->seen_beat || state != h->seen_state) {
    if (h->reported_since) {
      int64_t held = now - h->reported_since;
      note_longest(held);
      h->reported_since = 0;
      report_released(h, held);
    }
    h->seen_beat = beat;
    h->seen_state = state;
    /* A processor may show the state before the instant that belongs to it; it is not from before the last look. */
    h->since = at > before ? at : before;
  }
  int64_t since = phase == WEFT_ASLEEP ? detail : h->since;
  if (since < h->not_before) since = h->not_before;
  if (h->reported_since) return now + shortest(limit);
  /* The next hold begins now at the earliest. */
  if (phase == WEFT_OUTSIDE || since > now) return now + limit;
  if (now - since <= limit) return since + limit + 1;
  h->reported_since = since;
  note_longest(now - since);
  report_held(h, phase, detail, now - since);
  __atomic_store_n(&stalls, stalls + 1, __ATOMIC_RELAXED);
  return now + shortest(limit);
}

static void *watch(void *unused) {
  (void)unused;
  int64_t before = now_ns(), due = before;
  for (;;) {
    pthread_mutex_lock(&lock);
    while (bound == 0) pthread_cond_wait(&changed, &lock);
    int64_t limit = bound;
    pthread_mutex_unlock(&lock);
    int64_t lay = now_ns(), rest = until(due, lay, limit);
    nap(rest);
    int64_t now = now_ns();
    /* If this thread itself was late by more than the bound, the process was stopped, or the machine was asleep. The
       time that a report took does not count. */
    int missed = now - lay > limit + rest;
    due = now + limit;
    for (int i = 0; i < BLOCKS; i++) {
      struct weft_heartbeat *h = &blocks[i];
      if (!__atomic_load_n(&h->used, __ATOMIC_ACQUIRE)) continue;
      if (!__atomic_load_n(&h->watched, __ATOMIC_ACQUIRE)) continue;
      if (missed) h->not_before = now;
      int64_t again = look_at(h, before, now, limit);
      if (again < due) due = again;
    }
    before = now;
  }
  return 0;
}

/* Start the watchdog's thread. The caller holds the lock. */
static int start_thread(void) {
  pthread_t thread;
  sigset_t all, old;
  if (running) return 0;
  /* Signals of the program are for its own threads. */
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  int error = pthread_create(&thread, 0, watch, 0);
  pthread_sigmask(SIG_SETMASK, &old, 0);
  if (error) return -error;
  pthread_detach(thread);
#ifdef __linux__
  pthread_setname_np(thread, "weft watchdog");
#endif
  running = 1;
  return 0;
}

void weft_watchdog_warn(const char *line) {
  struct report r = {.length = 0};
  say(&r, "%.*s\n", (int)sizeof r.text - 2, line);
  send_report(&r);
}

/* Set the bound in ns, 0 for none. Returns 0, or -errno if the thread cannot be started. */
int weft_watchdog_set(int64_t ns) {
  pthread_mutex_lock(&lock);
  int error = ns ? start_thread() : 0;
  if (!error) {
    bound = ns;
    for (int i = 0; i < BLOCKS; i++) {
      /* The state of a runner from before it was watched does not count. */
      if (!blocks[i].watched) {
        __atomic_store_n(&blocks[i].state, WEFT_OUTSIDE, __ATOMIC_RELAXED);
        __atomic_store_n(&blocks[i].watch, blocks[i].watch + 1, __ATOMIC_RELEASE);
      }
      __atomic_store_n(&blocks[i].watched, ns, __ATOMIC_RELEASE);
    }
    pthread_cond_signal(&changed);
  }
  pthread_mutex_unlock(&lock);
  return error;
}

int64_t weft_watchdog_bound(void) { return __atomic_load_n(&bound, __ATOMIC_RELAXED); }
int64_t weft_watchdog_stalls(void) { return __atomic_load_n(&stalls, __ATOMIC_RELAXED); }
int64_t weft_watchdog_longest(void) { return __atomic_load_n(&longest, __ATOMIC_RELAXED); }

struct weft_heartbeat *weft_heartbeat_open(int64_t index) {
  struct weft_heartbeat *found = &spare;
  pthread_mutex_lock(&lock);
  if (bound) start_thread(); /* in a child of a process that has one */
  for (int i = 0; i < BLOCKS && found == &spare; i++)
    if (!blocks[i].used) {
      found = &blocks[i];
      memset(found, 0, sizeof *found);
      found->index = index;
      found->watched = bound;
      found->seen_beat = -1;
      __atomic_store_n(&found->used, 1, __ATOMIC_RELEASE);
    }
  pthread_mutex_unlock(&lock);
  return found;
}

void weft_heartbeat_close(struct weft_heartbeat *h) {
  pthread_mutex_lock(&lock);
  h->state = WEFT_OUTSIDE;
  h->used = 0;
  pthread_mutex_unlock(&lock);
}

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }

/* The threads are gone, and so are the runners of the parent's managers. */
static void in_child(void) {
  running = 0;
  stalls = longest = 0;
  for (int i = 0; i < BLOCKS; i++) blocks[i].used = 0;
  pthread_mutex_init(&lock, 0);
  pthread_cond_init(&changed, 0);
}

__attribute__((constructor)) static void prepare_forks(void) { pthread_atfork(before_fork, in_parent, in_child); }
