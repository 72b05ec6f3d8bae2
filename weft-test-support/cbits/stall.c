/* When a test has run for too long, its name and the Haskell threads of the process are printed on stderr. An OS thread
   without Haskell code does that, so that it also works if no capability is released.

   The threads are read under rts_lock: no collection runs meanwhile. If no capability can be had for five seconds, they
   are read without it, since the process is about to be killed anyway. */
/* Otherwise the types of the run-time system's headers are those of the one without threads. */
#define THREADED_RTS 1
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "Rts.h"

enum { TESTS = 64, SHOWN = 60, REASONS = 32 };

static struct test {
  char name[200];
  time_t due; /* 0: free, or reported */
} tests[TESTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int watching;
static volatile int printed;

static time_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec;
}

static const char *reason(const StgTSO *t) {
  switch (t->why_blocked) {
    case NotBlocked: return "is running or ready";
    case BlockedOnMVar: return "waits for an MVar";
    case BlockedOnMVarRead: return "waits to read an MVar";
    case BlockedOnBlackHole: return "waits for another thread's evaluation";
    case BlockedOnSTM: return "waits in STM";
    case BlockedOnCCall: return "is in a foreign call";
    case BlockedOnCCall_Interruptible: return "is in an interruptible foreign call";
    case BlockedOnMsgThrowTo: return "waits for throwTo";
    case ThreadMigrating: return "is moving to another capability";
    default: return "waits for another reason";
  }
}

/* Threads are listed by the generation that their stack is in. */
static void print_threads(const char *how) {
  const char *reasons[REASONS];
  unsigned long numbers[REASONS], all = 0;
  int used = 0;
  fprintf(stderr, "threads of the process%s:\n", how);
  for (uint32_t g = 0; g < RtsFlags.GcFlags.generations; g++)
    for (const StgTSO *t = generations[g].threads; t != END_TSO_QUEUE; t = t->global_link) {
      const char *why = reason(t);
      int i = 0;
      if (t->what_next == ThreadComplete || t->what_next == ThreadKilled) continue;
      while (i < used && reasons[i] != why) i++;
      if (i == used && used < REASONS) {
        reasons[used] = why;
        numbers[used++] = 0;
      }
      numbers[i]++;
      if (all++ < SHOWN)
        fprintf(stderr, "  ThreadId %llu %s%s\n", (unsigned long long)t->id, why,
                t->flags & TSO_BLOCKEX ? ", masked" : "");
    }
  if (all > SHOWN) fprintf(stderr, "  and %lu more\n", all - SHOWN);
  for (int i = 0; i < used; i++) fprintf(stderr, "  %lu: %s\n", numbers[i], reasons[i]);
  fflush(stderr);
}

static void *locked(void *unused) {
  Capability *cap = rts_lock();
  (void)unused;
  if (!__sync_lock_test_and_set(&printed, 1)) print_threads("");
  rts_unlock(cap);
  return NULL;
}

static void *watch(void *unused) {
  (void)unused;
  for (;;) {
    char name[200] = "";
    sleep(1);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < TESTS && !*name; i++)
      if (tests[i].due && tests[i].due <= now()) {
        memcpy(name, tests[i].name, sizeof name);
        tests[i].due = 0;
      }
    pthread_mutex_unlock(&lock);
    if (*name) {
      pthread_t thread;
      fprintf(stderr, "\nthe test has not ended: %s\n", name);
      printed = 0;
      if (!pthread_create(&thread, NULL, locked, NULL)) {
        pthread_detach(thread);
        for (int i = 0; i < 50 && !printed; i++) usleep(100000);
      }
      if (!__sync_lock_test_and_set(&printed, 1)) print_threads(", of which none releases its capability");
    }
  }
  return NULL;
}

/* Returns a number for weft_test_ended, or -1 if too many tests are running. */
int weft_test_started(const char *name, int seconds) {
  int found = -1;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < TESTS && found < 0; i++)
    if (!*tests[i].name) {
      snprintf(tests[i].name, sizeof tests[i].name, "%s", *name ? name : "unnamed");
      tests[i].due = now() + seconds;
      found = i;
    }
  if (!watching) {
    pthread_t thread;
    watching = !pthread_create(&thread, NULL, watch, NULL);
    if (watching) pthread_detach(thread);
  }
  pthread_mutex_unlock(&lock);
  return found;
}

void weft_test_ended(int number) {
  if (number < 0) return;
  pthread_mutex_lock(&lock);
  tests[number].due = 0;
  *tests[number].name = 0;
  pthread_mutex_unlock(&lock);
}
