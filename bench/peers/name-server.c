/* A name server that knows every name: 127.0.0.1 and ::1. By UDP, one question
 * at a time (RFC 1035). What resolvers are measured beside each other with.
 *
 *   name-server [--port P] */
#define _GNU_SOURCE
#include "peer.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#define HEAD 12
#define TYPE_A 1
#define TYPE_AAAA 28

/* The end of the question behind the head of a query, or 0. */
static size_t question_end(const unsigned char *query, size_t length) {
  size_t at = HEAD;
  while (at < length && query[at] != 0)
    at += 1u + query[at];
  return at + 5 <= length ? at + 5 : 0;
}

/* The answer in place of the query; its length. */
static size_t answer(unsigned char *query, size_t end) {
  static const unsigned char name_class_ttl[] = {0xc0, HEAD, 0, 0, 0, 1, 0, 0, 0, 60, 0};
  unsigned type = query[end - 4] * 256u + query[end - 3];
  size_t size = type == TYPE_A ? 4 : type == TYPE_AAAA ? 16 : 0, at = end;
  query[2] = 0x85; /* an answer, authoritative; recursion was desired, */
  query[3] = 0x80; /* and is available */
  memset(query + 6, 0, 6);
  query[5] = 1;
  query[7] = size > 0;
  if (size == 0)
    return end;
  memcpy(query + at, name_class_ttl, sizeof name_class_ttl);
  query[at + 3] = (unsigned char)type;
  at += sizeof name_class_ttl;
  query[at++] = (unsigned char)size;
  memset(query + at, 0, size);
  if (type == TYPE_A)
    query[at] = 127;
  query[at + size - 1] = 1;
  return at + size;
}

int main(int argc, char **argv) {
  struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)option_long(argc, argv, "port", 0)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t size = sizeof here;
  int room = 4 << 20;
  int s = socket(AF_INET, SOCK_DGRAM, 0);
  if (s < 0 || bind(s, (struct sockaddr *)&here, size) < 0 || getsockname(s, (struct sockaddr *)&here, &size) < 0)
    die("socket");
  /* A burst of queries is not lost. */
  setsockopt(s, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
  printf("listening on %d\n", ntohs(here.sin_port));
  fflush(stdout);
  for (;;) {
    unsigned char query[1024];
    struct sockaddr_in from;
    socklen_t length = sizeof from;
    ssize_t got = recvfrom(s, query, 512, 0, (struct sockaddr *)&from, &length);
    size_t end = got < HEAD ? 0 : question_end(query, (size_t)got);
    if (end > 0)
      sendto(s, query, answer(query, end), 0, (struct sockaddr *)&from, length);
  }
}
