/* Clients as a server on the open net has them, at a steady rate. Beside N connections that send a head a byte
 * at a time, and R that ask for a large file and take little of it, so many times a second one of these, in turn:
 *
 *   - a flood: 200 requests at once, none of whose answers is read at first;
 *   - a large file asked for and reset at its beginning;
 *   - a length and a chunked body, which contradict each other;
 *   - a head of 64 KiB.
 *
 * Each of these is closed after 0.2 s at the latest. What the server closes is opened again. It says "ready" when
 * the slow ones are all there, and goes on until its input ends.
 *
 *   rude-client --port P [--host A] [--slow N] [--readers R] [--rate HZ] [--small PATH] [--large PATH] */
#define _GNU_SOURCE
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FLOOD 200
#define DEEDS 512          /* at most so many at a time */
#define LONG_HEAD 65536
#define TICK_NS 10000000u  /* everything is done by the tick */
#define SLOW_TICKS 500     /* a byte every 5 s */
#define READ_TICKS 20      /* 4 KiB every 0.2 s */
#define DEED_TICKS 20

enum deed { FLOODING, RESETTING, CONTRADICTING, LENGTHY, KINDS };

typedef struct {
  int fd;
  enum deed kind;
  uint64_t until; /* the tick of its end */
} deed;

static struct sockaddr_in server;
static char request[256], large_request[256], contradiction[256];
static char *texts[KINDS];
static size_t lengths[KINDS];

/* Connecting, or -1: a server may refuse. */
static int begin(int small_window) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  struct linger reset = {.l_onoff = 1, .l_linger = 0};
  int window = 4096;
  if (fd < 0)
    die("socket");
  if (setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset) < 0)
    die("SO_LINGER");
  if (small_window && setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &window, sizeof window) < 0)
    die("SO_RCVBUF");
  if (connect(fd, (struct sockaddr *)&server, sizeof server) < 0 && errno != EINPROGRESS) {
    close(fd);
    return -1;
  }
  return fd;
}

/* 0 when the connection is over. */
static int take(int fd, size_t most) {
  static char into[65536];
  while (most > 0) {
    ssize_t got = recv(fd, into, most < sizeof into ? most : sizeof into, 0);
    if (got < 0)
      return errno == EAGAIN || errno == ENOTCONN || errno == EINPROGRESS;
    if (got == 0)
      return 0;
    most -= (size_t)got;
  }
  return 1;
}

static int say(int fd, const char *text, size_t length) {
  return send(fd, text, length, MSG_NOSIGNAL) >= 0 || errno == EAGAIN || errno == ENOTCONN;
}

/* One of the slow ones: its next byte, on a new connection if there is none. */
static void dawdle(int *fd) {
  if (*fd >= 0 && (!take(*fd, 4096) || !say(*fd, "x", 1))) {
    close(*fd);
    *fd = -1;
  }
  if (*fd < 0) {
    *fd = begin(0);
    if (*fd >= 0)
      say(*fd, "GET /", 5);
  }
}

static void read_little(int *fd) {
  if (*fd >= 0 && !take(*fd, 4096)) {
    close(*fd);
    *fd = -1;
  }
  if (*fd < 0) {
    *fd = begin(1);
    struct pollfd ready = {.fd = *fd, .events = POLLOUT};
    if (*fd >= 0 && poll(&ready, 1, 100) == 1)
      say(*fd, large_request, strlen(large_request));
  }
}

static void start_deed(deed *d, enum deed kind, uint64_t tick) {
  d->fd = begin(0);
  d->kind = kind;
  d->until = tick + DEED_TICKS;
  struct pollfd ready = {.fd = d->fd, .events = POLLOUT};
  if (d->fd >= 0 && poll(&ready, 1, 100) == 1)
    say(d->fd, texts[kind], lengths[kind]);
}

static void go_on(deed *d, uint64_t tick) {
  uint64_t age = tick + DEED_TICKS - d->until;
  int over = tick >= d->until;
  /* The flood is left alone for the first half of its time. */
  if (!over && (d->kind != FLOODING || age > DEED_TICKS / 2))
    over = !take(d->fd, 65536);
  if (!over && d->kind == RESETTING)
    over = age > 1;
  if (over) {
    close(d->fd);
    d->fd = -1;
  }
}

static void prepare(const char *small, const char *large) {
  snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: rude\r\n\r\n", small);
  snprintf(large_request, sizeof large_request, "GET %s HTTP/1.1\r\nHost: rude\r\n\r\n", large);
  snprintf(contradiction, sizeof contradiction,
           "POST %s HTTP/1.1\r\nHost: rude\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", small);
  size_t one = strlen(request);
  char *flood = malloc(one * FLOOD + 1), *head = malloc(LONG_HEAD + 64);
  if (flood == NULL || head == NULL)
    die("malloc");
  for (int i = 0; i < FLOOD; i++)
    memcpy(flood + one * (size_t)i, request, one + 1);
  size_t start = (size_t)sprintf(head, "GET %s HTTP/1.1\r\nHost: rude\r\nLong: ", small);
  memset(head + start, 'x', LONG_HEAD - start);
  texts[FLOODING] = flood, lengths[FLOODING] = one * FLOOD;
  texts[RESETTING] = large_request, lengths[RESETTING] = strlen(large_request);
  texts[CONTRADICTING] = contradiction, lengths[CONTRADICTING] = strlen(contradiction);
  texts[LENGTHY] = head, lengths[LENGTHY] = LONG_HEAD;
}

/* Has the input ended? Waits for it until the next tick. */
static int told_to_end(uint64_t next_ns) {
  for (;;) {
    uint64_t now = now_ns();
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    if (now >= next_ns)
      return 0;
    if (poll(&input, 1, (int)((next_ns - now + 999999) / 1000000)) > 0) {
      char byte;
      if (read(STDIN_FILENO, &byte, 1) <= 0)
        return 1;
    }
  }
}

int main(int argc, char **argv) {
  const char *host = option(argc, argv, "host", "127.0.0.1");
  long port = option_long(argc, argv, "port", 0);
  long slow = option_long(argc, argv, "slow", 8000), readers = option_long(argc, argv, "readers", 64);
  double rate = option_double(argc, argv, "rate", 200);
  errno = 0;
  if (port == 0)
    die("usage: rude-client --port P [--host A] [--slow N] [--readers R] [--rate HZ] [--small PATH] [--large PATH]");
  size_t limit = raise_open_files();
  if ((size_t)(slow + readers) + DEEDS + 16 > limit)
    die("%ld connections need more than the %zu open files allowed here", slow + readers, limit);
  server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  if (inet_pton(AF_INET, host, &server.sin_addr) != 1)
    die("--host needs an IPv4 address, not '%s'", host);
  prepare(option(argc, argv, "small", "/"), option(argc, argv, "large", "/large"));

  int *slow_fds = malloc(sizeof(int) * (size_t)(slow + 1)), *reader_fds = malloc(sizeof(int) * (size_t)(readers + 1));
  deed deeds[DEEDS];
  if (slow_fds == NULL || reader_fds == NULL)
    die("malloc");
  for (int i = 0; i < DEEDS; i++)
    deeds[i].fd = -1;
  for (long i = 0; i < slow; i++) {
    slow_fds[i] = peer_connect(host, port);
    fcntl(slow_fds[i], F_SETFL, O_NONBLOCK);
    say(slow_fds[i], "GET /", 5);
  }
  for (long i = 0; i < readers; i++) {
    reader_fds[i] = -1;
    read_little(&reader_fds[i]);
  }
  puts("ready");
  fflush(stdout);

  double due = 0;
  int kind = 0;
  uint64_t start = now_ns();
  for (uint64_t tick = 1; !told_to_end(start + tick * TICK_NS); tick++) {
    for (long i = (long)(tick % SLOW_TICKS); i < slow; i += SLOW_TICKS)
      dawdle(&slow_fds[i]);
    for (long i = (long)(tick % READ_TICKS); i < readers; i += READ_TICKS)
      read_little(&reader_fds[i]);
    due += rate * TICK_NS / 1e9;
    for (int i = 0; i < DEEDS; i++) {
      if (deeds[i].fd >= 0)
        go_on(&deeds[i], tick);
      else if (due >= 1) {
        start_deed(&deeds[i], (enum deed)(kind++ % KINDS), tick);
        due--;
      }
    }
    /* A server that answers nothing makes no debts. */
    if (due > rate)
      due = rate;
  }
  return 0;
}
