/* Opens N connections that never send anything, says "ready", and holds them
 * until its input ends. For each line of input it says how many the server has
 * closed. With --tls and a path they are connections of TLS with HTTP/1.1, each
 * of which has had one answer.
 *
 *   idle-client --port P [--host A] [--count N] [--tls PATH] */
#include "peer-tls.h"
#include "peer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* A handshake, a request and its answer. */
static void ask(SSL_CTX *context, int fd, const char *path) {
  char request[1024], answer[READ_SIZE];
  size_t have = 0, length = 0;
  SSL *tls = tls_over(context, fd, NULL, NULL);
  if (snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path) >= (int)sizeof request)
    die("the path is too long");
  tls_send(tls, request, strlen(request));
  while (length == 0 || have < length) {
    ssize_t got = tls_receive(tls, answer + have, sizeof answer - have);
    if (got <= 0)
      die("the server closed a connection");
    have += (size_t)got;
    length = answer_length(answer, have);
    if (length > sizeof answer)
      die("an answer of more than %zu bytes", sizeof answer);
  }
}

int main(int argc, char **argv) {
  const char *host = option(argc, argv, "host", "127.0.0.1");
  long port = option_long(argc, argv, "port", 0);
  long count = option_long(argc, argv, "count", 1000);
  const char *tls = option(argc, argv, "tls", NULL);
  SSL_CTX *context = tls != NULL ? tls_client() : NULL;
  size_t limit = raise_open_files();
  errno = 0;
  if (port == 0)
    die("usage: idle-client --port P [--host A] [--count N] [--tls PATH]");
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
    if (tls != NULL)
      ask(context, fd, tls);
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
