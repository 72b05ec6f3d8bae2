/* What the C programs of this directory share: reading options, listening,
 * recognising request heads, and exact latency percentiles. */
#ifndef PEER_H
#define PEER_H

#include <stddef.h>
#include <stdint.h>

/* The answer to every request, and the bound on how much a server reads at once. */
#define PONG_RESPONSE                                                          \
  "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\n"   \
  "Pong!"
#define PONG_LENGTH (sizeof(PONG_RESPONSE) - 1)
#define READ_SIZE 4096

/* Copies of the answer in pong_stream, so that a pipelined batch is one send. */
#define PONG_COPIES 64

/* Print "NAME: message" (with errno's text when errno is set) and exit 1. */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* The value of --NAME in argv, or fallback when it is not given. */
const char *option(int argc, char **argv, const char *name, const char *fallback);
long option_long(int argc, char **argv, const char *name, long fallback);
double option_double(int argc, char **argv, const char *name, double fallback);
int option_flag(int argc, char **argv, const char *name);

/* Raise the soft limit of open files to the hard one; the result is the limit. */
size_t raise_open_files(void);

/* A non-blocking listening socket on 127.0.0.1 at --port (0: the kernel
 * chooses), after "listening on PORT" has been printed. */
int peer_listen(int argc, char **argv);

/* Several of them at one port (SO_REUSEPORT): the kernel shares the connections out. */
void peer_listen_many(int argc, char **argv, int *listeners, int count);

/* Connect to --host (numeric, 127.0.0.1) and --port, with TCP_NODELAY. */
int peer_connect(const char *host, long port);

/* How many request heads (each ends in CR LF CR LF) end in these bytes;
 * *matched says how much of the end mark the previous bytes had shown. */
size_t scan_heads(const char *bytes, size_t length, unsigned *matched);

/* The length of an answer of 200 whose head is among these bytes, or 0; it needs Content-Length. */
size_t answer_length(char *bytes, size_t have);

/* Send what is owed of the endless stream of answers, without blocking.
 * The result is what is still owed; -1 when the connection is broken. */
long send_owed(int fd, long owed);

/* The stream position for an amount owed: answers repeat with one period. */
const char *owed_start(long owed);
size_t owed_chunk(long owed);

/* Monotonic nanoseconds. */
uint64_t now_ns(void);

/* Every latency, in nanoseconds, kept until the end. */
typedef struct {
  uint32_t *ns;
  size_t count, room;
} latencies;

void latencies_add(latencies *all, uint64_t ns);
void latencies_append(latencies *all, const latencies *more);
void latencies_sort(latencies *all);
/* Nearest rank in sorted latencies, in microseconds. */
double latencies_percentile(const latencies *all, double percent);

#endif
