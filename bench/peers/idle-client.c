/* Opens N connections that never send anything, says "ready", and holds them
 * until its input ends. For each line of input it says how many the server has
 * closed.
 *
 *   idle-client --port P [--host A] [--count N] */
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv) {
  const char *host = option(argc, argv, "host", "127.0.0.1");
  long port = option_long(argc, argv, "port", 0);
  long count = option_long(argc, argv, "count", 1000);
  size_t limit = raise_open_files();
  errno = 0;
  if (port == 0)
    die("usage: idle-client --port P [--host A] [--count N]");
  if ((size_t)count + 16 > limit)
    die("%ld connections need more than the %zu open files allowed here", count, limit);

  int *fds = calloc((size_t)count, sizeof *fds);
  if (fds == NULL)
    die("memory");
  for (long i = 0; i < count; i++) {
    int fd = fds[i] = peer_connect(host, port);
    /* Reset at the end: nothing lingers in TIME_WAIT and takes up ports. */
    struct linger reset = {.l_onoff = 1, .l_linger = 0};
    if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) < 0)
      die("SO_LINGER");
  }
  puts("ready");
  fflush(stdout);
  for (int c; (c = getchar()) != EOF;) {
    if (c != '\n')
      continue;
    long closed = 0;
    for (long i = 0; i < count; i++) {
      char byte;
      closed += recv(fds[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK) >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    }
    printf("closed %ld\n", closed);
    fflush(stdout);
  }
  return 0;
}
