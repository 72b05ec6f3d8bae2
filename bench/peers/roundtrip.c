/* One client of an echo server: K blocking round trips of SIZE bytes on one
 * connection, each timed; prints exact percentiles as JSON.
 *
 *   roundtrip --port P [--host A] [--count K] [--warmup K] [--size BYTES] */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void round_trip(int fd, const char *out, char *in, size_t size) {
  if (send(fd, out, size, MSG_NOSIGNAL) != (ssize_t)size)
    die("send");
  for (size_t have = 0; have < size;) {
    ssize_t got = recv(fd, in + have, size - have, 0);
    if (got <= 0) {
      errno = got == 0 ? 0 : errno;
      die("the server closed the connection");
    }
    have += (size_t)got;
  }
  errno = 0;
  if (memcmp(out, in, size) != 0)
    die("the echo differs from what was sent");
}

int main(int argc, char **argv) {
  long count = option_long(argc, argv, "count", 20000);
  long warmup = option_long(argc, argv, "warmup", 2000);
  size_t size = (size_t)option_long(argc, argv, "size", 64);
  long port = option_long(argc, argv, "port", 0);
  char *out = malloc(size + 1), *in = malloc(size + 1);
  latencies all = {0};
  errno = 0;
  if (port == 0 || count < 1 || size < 1 || out == NULL || in == NULL)
    die("usage: roundtrip --port P [--host A] [--count K] [--warmup K] [--size BYTES]");
  for (size_t i = 0; i < size; i++)
    out[i] = (char)('a' + i % 26);

  int fd = peer_connect(option(argc, argv, "host", "127.0.0.1"), port);
  for (long i = 0; i < warmup; i++)
    round_trip(fd, out, in, size);
  uint64_t start = now_ns(), before = start;
  for (long i = 0; i < count; i++) {
    round_trip(fd, out, in, size);
    uint64_t after = now_ns();
    latencies_add(&all, after - before);
    before = after;
  }
  uint64_t wall = now_ns() - start;
  close(fd);

  latencies_sort(&all);
  printf("{\"round_trips\": %ld, \"wall_s\": %.9f, \"p50_us\": %.3f, \"p95_us\": %.3f, "
         "\"p99_us\": %.3f, \"max_us\": %.3f}\n",
         count, (double)wall / 1e9, latencies_percentile(&all, 50),
         latencies_percentile(&all, 95), latencies_percentile(&all, 99),
         latencies_percentile(&all, 100));
  return 0;
}
