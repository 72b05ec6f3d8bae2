/* A closed-loop HTTP load: every connection has one request in flight and
 * sends the next one as soon as the answer is complete. Every latency of the
 * measured time is kept, so percentiles are exact.
 * With --rate it is an open loop: so many requests a second, evenly in time and
 * over the connections. A latency begins when the request was due, also if its
 * connection still waited for the answer before.
 *
 *   load --port P [--host A] [--path P] --connections N [--threads T]
 *        [--warmup S] [--duration S] [--watch PID] [--hold] [--cut]
 *        [--browser] [--post BYTES] [--tls kept|full|resumed]
 *        [--script FILE] [--renew] [--websocket BYTES] [--rate N]
 *
 * With --browser a request has the ten fields that a browser sends. With --post it is
 * a POST with a body of so many bytes.
 * With --tls the connections are of TLS, and certificates are not checked. They are
 * kept; or there is one for each request, with a full handshake or one that resumes
 * the session of the connection before. A latency then begins with the connection,
 * and the next one is opened when the server has closed this one.
 * With --script each connection sends the requests of a file in turn: there each
 * has a line with its number of bytes before it. With --renew a connection is
 * closed after the last one's answer, and the next one is opened; the latency of
 * its first request begins with the connection.
 * With --websocket the path is upgraded (RFC 6455), and a request is a message of
 * so many bytes, whose answer is a message of that size.
 * --path may be given as a pattern with one %ld and --files N: each request then
 * asks for the file of a number from 0 to N-1 at random (the same numbers in
 * every run).
 * Each connection makes one round trip before anything is counted. With --hold
 * the program then prints "connected" and waits for a line on its input, and
 * after the result line it keeps the connections until its input ends.
 * With --cut it is bytes that count: there is no first round trip, and when the
 * measured time is over the connections are closed, wherever they are.
 * With --watch the result has the CPU time that process PID used during the
 * measured time, read at its two ends. */
#define _GNU_SOURCE
#include "peer-tls.h"
#include "peer.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENTS 512
#define BODY_SIZE 65536

enum phase { WARM, MEASURE, DRAIN };

static atomic_int phase = WARM;
static char request[2048]; /* or its pattern, when there are several files */
static struct { char *bytes; size_t length; } *script; /* whole requests, with --post, --script or --websocket */
static long scripted;      /* their number */
static int renew;
static size_t message;     /* with --websocket: the bytes of an answer's frame */
static long files;         /* 0: one request for all */
static int cut;            /* do not wait for the ends of answers */
static double rate;        /* requests a second of all threads, or 0: a closed loop */
static long all_connections;
static enum { CLEAR, KEPT, FULL, RESUMED } tls = CLEAR;
static SSL_CTX *context;
static pthread_barrier_t connected, begin;

typedef struct {
  int fd;
  int waiting; /* a request is out */
  SSL *tls;
  SSL_SESSION *session; /* the last one, to be resumed */
  int unsent;           /* the request waits for the handshake */
  int closing;          /* answered; the server is to close the connection */
  size_t have; /* bytes of the answer's head so far; with the end of the head: of the answer */
  size_t length; /* of the answer, once its head is complete */
  long step;   /* the request of the script that is under way */
  size_t sent; /* bytes of it */
  int fresh;   /* its first request is next, and the time began with the connection */
  uint64_t sent_ns;
  uint64_t due_ns; /* with --rate, of the next request */
  uint64_t numbers; /* state of the generator of file numbers */
  char head[READ_SIZE];
} connection;

typedef struct {
  const char *host;
  long port;
  long count;
  int epoll;
  connection *connections;
  latencies measured;
  uint64_t total; /* answers since the start, warm-up included */
  uint64_t bytes; /* received in the measured time */
  pthread_t thread;
} worker;

/* xorshift64*: the same sequence in every run. */
static long next_number(connection *c) {
  c->numbers ^= c->numbers >> 12;
  c->numbers ^= c->numbers << 25;
  c->numbers ^= c->numbers >> 27;
  return (long)((c->numbers * 0x2545f4914f6cdd1du) >> 33) % files;
}

/* What an ordinary browser adds to a request. */
static const char browser_fields[] =
    "Connection: keep-alive\r\n"
    "sec-ch-ua-platform: \"Linux\"\r\n"
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36\r\n"
    "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n"
    "Sec-Fetch-Site: same-origin\r\n"
    "Sec-Fetch-Mode: navigate\r\n"
    "Sec-Fetch-Dest: document\r\n"
    "Referer: http://127.0.0.1/index.html\r\n"
    "Accept-Encoding: gzip, deflate, br, zstd\r\n";

/* Send what the socket takes of a request of the script. */
static void send_more(connection *c) {
  while (c->sent < script[c->step].length) {
    ssize_t sent = send(c->fd, script[c->step].bytes + c->sent, script[c->step].length - c->sent, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN)
      return;
    if (sent < 0)
      die("send");
    c->sent += (size_t)sent;
  }
}

/* Send a request over TLS: at once, or when the handshake is complete. */
static void send_tls(connection *c) {
  c->unsent = tls_send(c->tls, request, strlen(request)) == 0;
}

static void send_request(connection *c) {
  c->have = c->length = c->sent = 0;
  c->waiting = 1;
  if (tls != FULL && tls != RESUMED && !c->fresh)
    c->sent_ns = now_ns();
  c->fresh = 0;
  if (c->tls != NULL) {
    send_tls(c);
    return;
  }
  if (scripted > 0) {
    c->length = message;
    send_more(c);
    return;
  }
  char numbered[sizeof request + 24];
  const char *text = request;
  if (files > 0) {
    snprintf(numbered, sizeof numbered, request, next_number(c));
    text = numbered;
  }
  size_t length = strlen(text);
  ssize_t sent = send(c->fd, text, length, MSG_NOSIGNAL);
  if (sent != (ssize_t)length)
    die("send");
}

/* A new connection. */
static void open_connection(worker *w, connection *c) {
  c->sent_ns = now_ns();
  c->fd = peer_connect(w->host, w->port);
  if (tls != CLEAR)
    c->tls = tls_over(context, c->fd, tls == RESUMED ? c->session : NULL, tls == RESUMED ? &c->session : NULL);
}

/* After an answer, with a connection for each request: whether the server has closed it. */
static int closed_by_server(connection *c) {
  char byte;
  ssize_t got = tls_receive(c->tls, &byte, 1);
  if (got > 0)
    die("bytes after the end of an answer");
  if (got < 0)
    return 0;
  /* OpenSSL resumes no session of a connection that was not shut down. */
  SSL_set_shutdown(c->tls, SSL_SENT_SHUTDOWN | SSL_RECEIVED_SHUTDOWN);
  SSL_free(c->tls);
  close(c->fd);
  c->closing = 0;
  return 1;
}

/* Read once: 1 when the answer is complete, -1 when there was nothing. What follows the head is dropped. */
static int receive(worker *w, connection *c) {
  static __thread char body[BODY_SIZE];
  char *into = c->length == 0 ? c->head + c->have : body;
  size_t room = c->length == 0 ? READ_SIZE - c->have : BODY_SIZE;
  ssize_t got = c->tls != NULL ? tls_receive(c->tls, into, room) : recv(c->fd, into, room, 0);
  if (got < 0 && errno == EAGAIN)
    return -1;
  if (got <= 0) {
    errno = got == 0 ? 0 : errno;
    die("the server closed a connection");
  }
  if (atomic_load_explicit(&phase, memory_order_relaxed) == MEASURE)
    w->bytes += (uint64_t)got;
  c->have += (size_t)got;
  if (c->length == 0)
    c->length = answer_length(c->head, c->have);
  errno = 0;
  if (c->length != 0 && c->have > c->length)
    die("bytes after the end of an answer");
  return c->length != 0 && c->have == c->length;
}

static int readable(int fd) {
  char byte;
  return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

static void watch_connection(worker *w, connection *c) {
  struct epoll_event event = {.events = scripted > 0 ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLIN, .data.ptr = c};
  fcntl(c->fd, F_SETFL, O_NONBLOCK);
  if (epoll_ctl(w->epoll, EPOLL_CTL_ADD, c->fd, &event) < 0)
    die("epoll_ctl");
}

/* A connection's first bytes are the request for an upgrade, which is answered with a head alone. */
static void upgrade(connection *c) {
  char *end = NULL;
  if (send(c->fd, request, strlen(request), MSG_NOSIGNAL) != (ssize_t)strlen(request))
    die("send");
  for (c->have = 0; end == NULL; end = memmem(c->head, c->have, "\r\n\r\n", 4)) {
    ssize_t got = recv(c->fd, c->head + c->have, READ_SIZE - c->have, 0);
    if (got <= 0)
      die("no upgrade");
    c->have += (size_t)got;
  }
  if (memcmp(c->head, "HTTP/1.1 101", 12) != 0 || end + 4 != c->head + c->have)
    die("no upgrade: %.*s", 40, c->head);
}

/* A connection is kept, or there is one for each request. */
static int once(void) { return tls == FULL || tls == RESUMED; }

static void open_connections(worker *w) {
  w->connections = calloc((size_t)w->count, sizeof *w->connections);
  if (w->connections == NULL)
    die("calloc");
  for (long i = 0; i < w->count; i++)
    open_connection(w, &w->connections[i]);
  for (long i = 0; i < w->count; i++) {
    connection *c = &w->connections[i];
    c->numbers = 0x9e3779b97f4a7c15u * (uint64_t)(i + 1);
    if (message > 0)
      upgrade(c);
    for (int all = 0; !cut && !all;) {
      send_request(c);
      while (receive(w, c) <= 0)
        ;
      c->waiting = 0;
      all = scripted == 0 || ++c->step == scripted;
    }
    c->step = 0;
    if (renew) {
      close(c->fd);
      open_connection(w, c);
    }
    if (!once())
      watch_connection(w, c);
    else
      while (!closed_by_server(c))
        ;
  }
}

static void next_request(worker *w, connection *c) {
  if (once()) {
    open_connection(w, c);
    watch_connection(w, c);
  }
  send_request(c);
}

/* With --rate: nanoseconds between two requests of a thread. */
static uint64_t gap(const worker *w) { return (uint64_t)(1e9 * (double)all_connections / (double)w->count / rate); }

/* The request that is due. */
static void send_due(const worker *w, connection *c) {
  send_request(c);
  c->sent_ns = c->due_ns;
  c->due_ns += gap(w) * (uint64_t)w->count;
}

static void answered(worker *w, connection *c, int now, long *out) {
  w->total++;
  if (now == MEASURE)
    latencies_add(&w->measured, now_ns() - c->sent_ns);
  if (tls == RESUMED && !SSL_session_reused(c->tls))
    die("the server did not resume a session");
  if (now == DRAIN) {
    c->waiting = 0;
    --*out;
  } else if (rate > 0) {
    c->waiting = 0;
    if (c->due_ns <= now_ns())
      send_due(w, c);
  } else if (once()) {
    c->waiting = 0;
    c->closing = 1;
  } else {
    if (scripted > 0 && ++c->step == scripted) {
      c->step = 0;
      if (renew) {
        close(c->fd);
        open_connection(w, c);
        watch_connection(w, c);
        c->fresh = 1;
      }
    }
    send_request(c);
  }
}

/* OpenSSL may have bytes of which the socket knows nothing, so read until there is nothing. */
static void exchange_tls(worker *w, connection *c, int now, long *out) {
  if (c->unsent)
    send_tls(c);
  while (c->waiting && !c->unsent) {
    int whole_answer = receive(w, c);
    if (whole_answer < 0)
      break;
    if (whole_answer > 0)
      answered(w, c, now, out);
  }
  if (!c->closing || !closed_by_server(c))
    return;
  if (now == DRAIN)
    --*out;
  else
    next_request(w, c);
}

/* With --rate: the connections take turns. One that waits sends what is due when it is answered. */
typedef struct {
  long next; /* the connection whose turn is next, */
  uint64_t at; /* and when */
  int over;
} turns;

/* Until the next turn, or for 100 ms. */
static int wait_for_turn(worker *w, struct epoll_event *events, const turns *t) {
  uint64_t now = now_ns(), left = t->over ? 100000000u : t->at > now ? t->at - now : 0;
  struct timespec wait = {.tv_sec = (time_t)(left / 1000000000u), .tv_nsec = (long)(left % 1000000000u)};
  return epoll_pwait2(w->epoll, events, EVENTS, &wait, NULL);
}

static void take_turns(worker *w, turns *t, int now, long *out) {
  if (now == DRAIN && !t->over) {
    t->over = 1;
    for (long i = 0; i < w->count; i++)
      *out -= !w->connections[i].waiting;
  }
  for (uint64_t time = now_ns(); !t->over && t->at <= time; t->at += gap(w)) {
    connection *c = &w->connections[t->next];
    if (!c->waiting)
      send_due(w, c);
    t->next = (t->next + 1) % w->count;
  }
}

static turns first_turns(worker *w) {
  turns t = {.at = now_ns()};
  for (long i = 0; i < w->count; i++)
    w->connections[i].due_ns = t.at + (uint64_t)i * gap(w);
  return t;
}

/* Until the main thread says DRAIN and every answer has come. */
static void exchange(worker *w) {
  struct epoll_event events[EVENTS];
  long out = w->count;
  uint64_t last = now_ns();
  turns t = {0};
  if (rate > 0)
    t = first_turns(w);
  else
    for (long i = 0; i < w->count; i++)
      next_request(w, &w->connections[i]);
  while (out > 0 && !(cut && atomic_load_explicit(&phase, memory_order_relaxed) == DRAIN)) {
    int count = rate > 0 ? wait_for_turn(w, events, &t) : epoll_wait(w->epoll, events, EVENTS, 100);
    int now = atomic_load_explicit(&phase, memory_order_relaxed);
    if (count < 0 && errno != EINTR)
      die("epoll_wait");
    for (int i = 0; i < count; i++) {
      connection *c = events[i].data.ptr;
      if (tls != CLEAR) {
        exchange_tls(w, c, now, &out);
        continue;
      }
      if (scripted == 0) {
        if (receive(w, c) > 0)
          answered(w, c, now, &out);
        continue;
      }
      /* Bodies are edge-triggered, as both directions may have to wait. */
      if (c->waiting)
        send_more(c);
      while (c->waiting && readable(c->fd))
        if (receive(w, c) > 0)
          answered(w, c, now, &out);
    }
    if (rate > 0)
      take_turns(w, &t, now, &out);
    if (count > 0)
      last = now_ns();
    errno = 0;
    if (count == 0 && now_ns() - last > 20000000000u)
      die("no answer for 20 s, %ld requests are out", out);
  }
}

static void *work(void *argument) {
  worker *w = argument;
  /* Requests of an open loop are sent when they are due, and not up to 50 us later. */
  prctl(PR_SET_TIMERSLACK, 1);
  w->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (w->epoll < 0)
    die("epoll_create1");
  open_connections(w);
  pthread_barrier_wait(&connected);
  pthread_barrier_wait(&begin);
  exchange(w);
  return NULL;
}

static void sleep_seconds(double seconds) {
  struct timespec t = {.tv_sec = (time_t)seconds};
  t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
  while (nanosleep(&t, &t) < 0 && errno == EINTR)
    ;
}

/* The CPU clock of a process covers all its threads, dead ones too. */
static uint64_t cpu_ns(pid_t pid) {
  clockid_t clock;
  struct timespec t;
  if (pid == 0)
    return 0;
  errno = clock_getcpuclockid(pid, &clock);
  if (errno != 0 || clock_gettime(clock, &t) < 0)
    die("CPU time of process %d", (int)pid);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void print_result(worker *workers, long threads, uint64_t wall, uint64_t cpu) {
  latencies all = {0};
  uint64_t total = 0, bytes = 0;
  for (long i = 0; i < threads; i++) {
    latencies_append(&all, &workers[i].measured);
    total += workers[i].total;
    bytes += workers[i].bytes;
  }
  latencies_sort(&all);
  printf("{\"requests\": %zu, \"total_requests\": %llu, \"bytes\": %llu, \"wall_s\": %.9f, \"cpu_s\": %.9f, "
         "\"p50_us\": %.3f, \"p95_us\": %.3f, \"p99_us\": %.3f, \"max_us\": %.3f}\n",
         all.count, (unsigned long long)total, (unsigned long long)bytes, (double)wall / 1e9, (double)cpu / 1e9,
         latencies_percentile(&all, 50), latencies_percentile(&all, 95),
         latencies_percentile(&all, 99), latencies_percentile(&all, 100));
  fflush(stdout);
}

static void wait_for_line(void) {
  int c;
  do
    c = getchar();
  while (c != EOF && c != '\n');
}

/* A request of the script more, with room for so many bytes. */
static char *add_request(size_t length) {
  script = realloc(script, (size_t)(scripted + 1) * sizeof *script);
  char *bytes = malloc(length + 1);
  if (script == NULL || bytes == NULL)
    die("malloc");
  script[scripted].bytes = bytes;
  script[scripted].length = length;
  scripted++;
  return bytes;
}

static void read_script(const char *name) {
  FILE *file = fopen(name, "r");
  size_t length;
  if (file == NULL)
    die("%s", name);
  while (fscanf(file, "%zu", &length) == 1) {
    char *bytes = add_request(length);
    if (getc(file) != '\n' || fread(bytes, 1, length, file) != length)
      die("%s: a request that is cut off", name);
  }
  fclose(file);
  if (scripted == 0)
    die("%s: no request", name);
}

/* A frame with a mask of zeros, and the size of the answer's, which has none. */
static void write_message(size_t size) {
  size_t more = size < 126 ? 0 : 2;
  if (size == 0 || size > 65535)
    die("--websocket: from 1 to 65535 bytes");
  char *bytes = add_request(2 + more + 4 + size);
  memset(bytes, 0, 2 + more + 4);
  memset(bytes + 2 + more + 4, 'x', size);
  bytes[0] = (char)0x82;
  bytes[1] = (char)(0x80 | (more == 0 ? size : 126));
  if (more > 0) {
    bytes[2] = (char)(size >> 8);
    bytes[3] = (char)size;
  }
  message = 2 + more + size;
}

static const char upgrade_fields[] =
    "Connection: Upgrade\r\n"
    "Upgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

static void write_request(const char *host, long port, const char *path, int browser, long body) {
  char length_field[64] = "";
  if (body >= 0)
    snprintf(length_field, sizeof length_field, "Content-Length: %ld\r\n", body);
  size_t length = (size_t)snprintf(request, sizeof request, "%s %s HTTP/1.1\r\nHost: %s:%ld\r\n%s%s%s\r\n",
                                   body >= 0 ? "POST" : "GET", path, host, port, browser ? browser_fields : message > 0 ? upgrade_fields : "",
                                   once() ? "Connection: close\r\n" : "", length_field);
  if (length >= sizeof request)
    die("the path is too long");
  if (body < 0)
    return;
  char *whole = add_request(length + (size_t)body);
  memcpy(whole, request, length);
  memset(whole + length, 'x', (size_t)body);
}

static worker *start_workers(int argc, char **argv, long threads) {
  const char *host = option(argc, argv, "host", "127.0.0.1");
  long port = option_long(argc, argv, "port", 0);
  long connections = option_long(argc, argv, "connections", 64);
  worker *workers = calloc((size_t)threads, sizeof *workers);
  errno = 0;
  if (port == 0 || threads < 1 || connections < threads || workers == NULL)
    die("usage: load --port P [--path P] [--files N] --connections N "
        "[--threads T <= N] [--warmup S] [--duration S] [--watch PID] [--hold] [--cut] [--browser] [--post BYTES] "
        "[--tls kept|full|resumed] [--script FILE] [--renew] [--websocket BYTES] [--rate N]");
  files = option_long(argc, argv, "files", 0);
  const char *name = option(argc, argv, "script", NULL);
  if (name != NULL)
    read_script(name);
  if (option_long(argc, argv, "websocket", 0) > 0)
    write_message((size_t)option_long(argc, argv, "websocket", 0));
  renew = option_flag(argc, argv, "renew");
  if (tls != CLEAR && (scripted > 0 || files > 0 || cut || option_long(argc, argv, "post", -1) >= 0))
    die("--tls is for requests without a body, of one path, whose answers are waited for");
  rate = option_double(argc, argv, "rate", 0);
  all_connections = connections;
  if (rate > 0 && (once() || scripted > 0 || cut))
    die("--rate is for requests without a body, over connections that are kept");
  write_request(host, port, option(argc, argv, "path", "/"), option_flag(argc, argv, "browser"),
                option_long(argc, argv, "post", -1));
  for (long i = 0; i < threads; i++) {
    long share = connections / threads + (i < connections % threads);
    workers[i] = (worker){.host = host, .port = port, .count = share};
    errno = pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    if (errno != 0)
      die("pthread_create");
  }
  return workers;
}

static void read_tls(const char *word) {
  if (word == NULL)
    return;
  tls = strcmp(word, "kept") == 0 ? KEPT : strcmp(word, "full") == 0 ? FULL : RESUMED;
  if (tls == RESUMED && strcmp(word, "resumed") != 0)
    die("--tls is kept, full or resumed");
  signal(SIGPIPE, SIG_IGN);
  context = tls_client();
}

int main(int argc, char **argv) {
  long threads = option_long(argc, argv, "threads", 1);
  pid_t watch = (pid_t)option_long(argc, argv, "watch", 0);
  int hold = option_flag(argc, argv, "hold");
  cut = option_flag(argc, argv, "cut");
  read_tls(option(argc, argv, "tls", NULL));
  raise_open_files();
  pthread_barrier_init(&connected, NULL, (unsigned)threads + 1);
  pthread_barrier_init(&begin, NULL, (unsigned)threads + 1);

  worker *workers = start_workers(argc, argv, threads);
  pthread_barrier_wait(&connected);
  if (hold) {
    puts("connected");
    fflush(stdout);
    wait_for_line();
  }
  pthread_barrier_wait(&begin);
  sleep_seconds(option_double(argc, argv, "warmup", 1));

  uint64_t start = now_ns(), cpu = cpu_ns(watch);
  atomic_store(&phase, MEASURE);
  sleep_seconds(option_double(argc, argv, "duration", 3));
  uint64_t cpu_used = cpu_ns(watch) - cpu, wall = now_ns() - start;
  atomic_store(&phase, DRAIN);

  for (long i = 0; i < threads; i++)
    pthread_join(workers[i].thread, NULL);
  print_result(workers, threads, wall, cpu_used);
  while (hold && getchar() != EOF)
    ;
  return 0;
}
