/* Pairs of kernel threads that pass turns of 32 KiB to each other through pipes of
 * 4 KiB, beside threads that wait for idle pipes (2007, figure 18). Prints JSON.
 *
 *   c-fifo [--pairs N] [--idle N] [--seconds S] */
#define _GNU_SOURCE
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { turn = 32768, pipe_size = 4096 };

struct end {
  int from, to, first;
  _Alignas(64) atomic_long moved;
};

static void make_pipe(int ends[2]) {
  if (pipe(ends) < 0)
    die("pipe");
  if (fcntl(ends[1], F_SETPIPE_SZ, pipe_size) < 0)
    die("F_SETPIPE_SZ");
}

static void send_turn(int fd, const char *buffer) {
  for (ssize_t done = 0, n; done < turn; done += n)
    if ((n = write(fd, buffer + done, turn - done)) < 0)
      die("write");
}

static void receive_turn(int fd, char *buffer) {
  for (ssize_t done = 0, n; done < turn; done += n)
    if ((n = read(fd, buffer + done, turn - done)) <= 0)
      die("read");
}

static void *talk(void *argument) {
  struct end *end = argument;
  char *buffer = calloc(1, turn);
  if (end->first)
    send_turn(end->to, buffer);
  for (;;) {
    receive_turn(end->from, buffer);
    atomic_fetch_add_explicit(&end->moved, turn, memory_order_relaxed);
    send_turn(end->to, buffer);
  }
  return NULL;
}

static void *wait_for(void *argument) {
  char byte;
  if (read((int)(long)argument, &byte, 1) < 0)
    die("read");
  return NULL;
}

static void start(void *(*run)(void *), void *argument) {
  pthread_attr_t attributes;
  pthread_t thread;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 32768);
  if ((errno = pthread_create(&thread, &attributes, run, argument)))
    die("pthread_create");
}

static long total(struct end *ends, long n) {
  long sum = 0;
  for (long i = 0; i < n; i++)
    sum += atomic_load(&ends[i].moved);
  return sum;
}

int main(int argc, char **argv) {
  long pairs = option_long(argc, argv, "pairs", 128);
  long idle = option_long(argc, argv, "idle", 0);
  long seconds = option_long(argc, argv, "seconds", 3);
  struct end *ends = aligned_alloc(64, 2 * pairs * sizeof *ends);
  struct timespec before, after;
  raise_open_files();
  for (long i = 0; i < idle; i++) {
    int p[2];
    make_pipe(p);
    start(wait_for, (void *)(long)p[0]);
  }
  for (long i = 0; i < pairs; i++) {
    int a[2], b[2];
    make_pipe(a);
    make_pipe(b);
    ends[2 * i] = (struct end){.from = b[0], .to = a[1], .first = 1};
    ends[2 * i + 1] = (struct end){.from = a[0], .to = b[1]};
  }
  for (long i = 0; i < 2 * pairs; i++)
    start(talk, &ends[i]);
  sleep(1);
  clock_gettime(CLOCK_MONOTONIC, &before);
  long begun = total(ends, 2 * pairs);
  sleep((unsigned)seconds);
  long moved = total(ends, 2 * pairs) - begun;
  clock_gettime(CLOCK_MONOTONIC, &after);
  printf("{\"gbit_per_s\": %.4f}\n",
         moved * 8e-9 / (after.tv_sec - before.tv_sec + (after.tv_nsec - before.tv_nsec) / 1e9));
  fflush(stdout);
  getchar(); /* until whoever reads this has asked the kernel about the process */
  exit(0);
}
