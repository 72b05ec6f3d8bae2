/* Shared parts of the C programs: see peer.h. */
#define _GNU_SOURCE
#include "peer.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void die(const char *format, ...) {
  int saved = errno;
  va_list arguments;
  fprintf(stderr, "%s: ", program_invocation_short_name);
  va_start(arguments, format);
  vfprintf(stderr, format, arguments);
  va_end(arguments);
  if (saved != 0)
    fprintf(stderr, ": %s", strerror(saved));
  fputc('\n', stderr);
  exit(1);
}

/* ---- options ---- */

static int is_option(const char *argument, const char *name) {
  return strncmp(argument, "--", 2) == 0 && strcmp(argument + 2, name) == 0;
}

const char *option(int argc, char **argv, const char *name, const char *fallback) {
  for (int i = 1; i + 1 < argc; i++)
    if (is_option(argv[i], name))
      return argv[i + 1];
  return fallback;
}

double option_double(int argc, char **argv, const char *name, double fallback) {
  const char *text = option(argc, argv, name, NULL);
  if (text == NULL)
    return fallback;
  char *end;
  double value = strtod(text, &end);
  if (*text == '\0' || *end != '\0' || value < 0) {
    errno = 0;
    die("--%s needs a number, not '%s'", name, text);
  }
  return value;
}

long option_long(int argc, char **argv, const char *name, long fallback) {
  return (long)option_double(argc, argv, name, (double)fallback);
}

int option_flag(int argc, char **argv, const char *name) {
  for (int i = 1; i < argc; i++)
    if (is_option(argv[i], name))
      return 1;
  return 0;
}

/* ---- sockets ---- */

size_t raise_open_files(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
    die("getrlimit");
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) < 0)
    die("setrlimit");
  return limit.rlim_cur;
}

static void set_option(int fd, int level, int name, const char *what) {
  int on = 1;
  if (setsockopt(fd, level, name, &on, sizeof on) < 0)
    die("%s", what);
}

/* A listener at the port in the address, which becomes that which it got. */
static int listener_at(struct sockaddr_in *address, int shared) {
  socklen_t size = sizeof *address;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0)
    die("socket");
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, "SO_REUSEADDR");
  if (shared)
    set_option(fd, SOL_SOCKET, SO_REUSEPORT, "SO_REUSEPORT");
  /* Inherited by the connections that it accepts. */
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, "TCP_NODELAY");
  if (bind(fd, (struct sockaddr *)address, sizeof *address) < 0)
    die("bind");
  if (listen(fd, 4096) < 0)
    die("listen");
  if (getsockname(fd, (struct sockaddr *)address, &size) < 0)
    die("getsockname");
  return fd;
}

void peer_listen_many(int argc, char **argv, int *listeners, int count) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons((uint16_t)option_long(argc, argv, "port", 0));

  for (int i = 0; i < count; i++)
    listeners[i] = listener_at(&address, count > 1);
  signal(SIGPIPE, SIG_IGN);
  printf("listening on %d\n", ntohs(address.sin_port));
  fflush(stdout);
}

int peer_listen(int argc, char **argv) {
  int listener;
  peer_listen_many(argc, argv, &listener, 1);
  return listener;
}

int peer_connect(const char *host, long port) {
  struct sockaddr_in address = {.sin_family = AF_INET};
  address.sin_port = htons((uint16_t)port);
  errno = 0;
  if (inet_pton(AF_INET, host, &address.sin_addr) != 1)
    die("--host needs a numeric IPv4 address, not '%s'", host);

  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0)
    die("socket");
  if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
    die("connect to %s:%ld", host, port);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, "TCP_NODELAY");
  return fd;
}

/* ---- the pong protocol ---- */

size_t answer_length(char *bytes, size_t have) {
  char *end = memmem(bytes, have, "\r\n\r\n", 4);
  errno = 0;
  if (end == NULL && have == READ_SIZE)
    die("a head of more than %d bytes", READ_SIZE);
  if (end == NULL)
    return 0;
  if (have < 12 || memcmp(bytes, "HTTP/1.", 7) != 0 || memcmp(bytes + 8, " 200", 4) != 0)
    die("not a 200 answer: %.*s", 40, bytes);
  *end = '\0';
  char *field = strcasestr(bytes, "\r\ncontent-length:");
  if (field == NULL)
    die("an answer without Content-Length");
  size_t body = strtoul(field + 17, NULL, 10);
  *end = '\r';
  return (size_t)(end - bytes) + 4 + body;
}

size_t scan_heads(const char *bytes, size_t length, unsigned *matched) {
  static const char mark[4] = {'\r', '\n', '\r', '\n'};
  unsigned state = *matched;
  size_t heads = 0;
  for (size_t i = 0; i < length; i++) {
    if (bytes[i] == mark[state]) {
      if (++state == 4) {
        heads++;
        state = 0;
      }
    } else {
      state = bytes[i] == '\r';
    }
  }
  *matched = state;
  return heads;
}

static const char *pong_stream(void) {
  static char stream[PONG_COPIES * PONG_LENGTH];
  if (stream[0] == '\0')
    for (size_t i = 0; i < PONG_COPIES; i++)
      memcpy(stream + i * PONG_LENGTH, PONG_RESPONSE, PONG_LENGTH);
  return stream;
}

const char *owed_start(long owed) {
  size_t into = (PONG_LENGTH - (size_t)owed % PONG_LENGTH) % PONG_LENGTH;
  return pong_stream() + into;
}

size_t owed_chunk(long owed) {
  size_t most = (PONG_COPIES - 1) * PONG_LENGTH;
  return (size_t)owed < most ? (size_t)owed : most;
}

long send_owed(int fd, long owed) {
  while (owed > 0) {
    ssize_t sent = send(fd, owed_start(owed), owed_chunk(owed), MSG_NOSIGNAL);
    if (sent < 0)
      return errno == EAGAIN ? owed : -1;
    owed -= sent;
  }
  return 0;
}

/* ---- time and latencies ---- */

uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void make_room(latencies *all, size_t room) {
  if (room <= all->room)
    return;
  all->room = room < 2 * all->room ? 2 * all->room : room;
  all->ns = realloc(all->ns, all->room * sizeof *all->ns);
  if (all->ns == NULL)
    die("out of memory");
}

void latencies_add(latencies *all, uint64_t ns) {
  if (all->count == all->room)
    make_room(all, all->count + 65536);
  all->ns[all->count++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

void latencies_append(latencies *all, const latencies *more) {
  if (more->count == 0)
    return;
  make_room(all, all->count + more->count);
  memcpy(all->ns + all->count, more->ns, more->count * sizeof *more->ns);
  all->count += more->count;
}

static int compare_ns(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

void latencies_sort(latencies *all) {
  if (all->count > 0)
    qsort(all->ns, all->count, sizeof *all->ns, compare_ns);
}

double latencies_percentile(const latencies *all, double percent) {
  if (all->count == 0)
    return 0;
  double exact = percent / 100 * (double)all->count;
  size_t rank = (size_t)exact;
  if ((double)rank < exact)
    rank++;
  if (rank < 1)
    rank = 1;
  if (rank > all->count)
    rank = all->count;
  return all->ns[rank - 1] / 1000.0;
}
