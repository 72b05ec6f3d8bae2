/* A program whose cache lines move a known number of times, to test the counting of transfers (transfers.c).
 *
 * Two threads hand a token to each other through pipes. With the token a thread adds to a word that both share: a
 * transfer for the read and one for the write. It writes to a word beside one of the other thread's: one transfer, of
 * false sharing. And it writes to a word on a line of its own: none. So a round trip takes six, and it is counted by
 * one call of send(2). */
#define _GNU_SOURCE
#include "peer.h"
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static _Alignas(128) volatile long planted;
static _Alignas(128) volatile long beside[2];
static struct {
  _Alignas(128) volatile long word;
} own[2];
static int pipes[2][2];

static void *side(void *which) {
  long me = (long)which;
  char token;
  while (read(pipes[me][0], &token, 1) == 1) {
    planted = planted + 1;
    beside[me] = 1;
    own[me].word++;
    /* There is no such socket: only the call is counted. */
    if (me) send(-1, &token, 0, 0);
    if (write(pipes[!me][1], &token, 1) != 1) break;
  }
  return NULL;
}

int main(void) {
  pthread_t other;
  if (pipe(pipes[0]) || pipe(pipes[1])) die("pipe");
  printf("listening on 0\n");
  fflush(stdout);
  if (pthread_create(&other, NULL, side, (void *)1)) die("pthread_create");
  if (write(pipes[1][1], "", 1) != 1) die("write");
  side(NULL);
}
