/* For `weft-bench tcp`: the kernel's side of a trial. It runs in a network namespace of
 * its own (unshare -n) and needs root.
 *
 *   tcp-peer serve ADDRESS
 *     kernel sockets: echo on port 7, sink on 9, source on 19 ("N\n" is answered by N bytes)
 *   tcp-peer trial [-m MODE] [-c CONNECTIONS] [-s SECONDS] [-o] [-r] [-d MS] [-l LOSS]
 *                  [-S SEED] -- COMMAND...
 *     a TUN device weft0 at 10.9.1.1, COMMAND with "weft0 10.9.1.2 offload" (or "plain")
 *     as its last arguments, and a load on it: send (the source sends), receive, rr, flood.
 *     With -r a second namespace lies between, behind a relay of two TUN devices that
 *     delays each way and loses packets; COMMAND "kernel" is then `tcp-peer serve` there.
 *   tcp-peer trial -m web [-k] [...] -- COMMAND...
 *     a web server: COMMAND gets "--port 80 --stack tun:weft0,10.9.1.2", or with -k, which includes -r,
 *     "--port 80 --host 10.9.0.2" behind the relay. The load asks for /f0 to /f255 at random.
 *
 * Prints one line of JSON. The server has the first core, the client the second. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/sockios.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) {
  fprintf(stderr, "tcp-peer: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void shell(const char *format, ...) {
  char line[400];
  va_list rest;
  va_start(rest, format);
  vsnprintf(line, sizeof line, format, rest);
  va_end(rest);
  if (system(line) != 0) {
    fprintf(stderr, "tcp-peer: failed: %s\n", line);
    exit(1);
  }
}

static void pin(int core) {
  cpu_set_t set;
  if (sysconf(_SC_NPROCESSORS_ONLN) < 2) return;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  sched_setaffinity(0, sizeof set, &set);
}

/* Within two seconds, or -1. */
/* How long a connection may take, in seconds. */
static int patience = 2;

static int connect_to(const char *address, int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
  struct timeval limit = {patience, 0};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) fail("socket");
  inet_pton(AF_INET, address, &to.sin_addr);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
    close(fd);
    return -1;
  }
  limit.tv_sec = 0;
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  return fd;
}

/* Serving ------------------------------------------------------------------------- */

static char block[262144];

struct job {
  int fd, port;
};

static void *serve_one(void *arg) {
  struct job j = *(struct job *)arg;
  char buffer[65536];
  ssize_t n;
  free(arg);
  if (j.port == 7)
    while ((n = read(j.fd, buffer, sizeof buffer)) > 0)
      for (ssize_t at = 0, w; at < n; at += w)
        if ((w = write(j.fd, buffer + at, n - at)) <= 0) goto end;
  if (j.port == 9) {
    long long all = 0;
    while ((n = read(j.fd, buffer, sizeof buffer)) > 0) all += n;
    dprintf(j.fd, "%lld", all);
  }
  if (j.port == 19 && (n = read(j.fd, buffer, 100)) > 0) {
    buffer[n] = 0;
    for (long long left = atoll(buffer); left > 0; left -= n)
      if ((n = write(j.fd, block, left < (long long)sizeof block ? left : (long long)sizeof block)) <= 0) break;
  }
end:
  close(j.fd);
  return NULL;
}

static _Noreturn void serve(const char *address) {
  int ports[3] = {7, 9, 19}, one = 1;
  struct pollfd listening[3];
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < 3; i++) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(ports[i])};
    inet_pton(AF_INET, address, &at.sin_addr);
    listening[i].fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    listening[i].events = POLLIN;
    setsockopt(listening[i].fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    /* The machine's default may be another. */
    setsockopt(listening[i].fd, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5);
    if (bind(listening[i].fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(listening[i].fd, 1024) < 0) fail("listen");
  }
  for (;;) {
    poll(listening, 3, -1);
    for (int i = 0; i < 3; i++)
      if (listening[i].revents & POLLIN) {
        pthread_t t;
        struct job *j = malloc(sizeof *j);
        j->fd = accept(listening[i].fd, NULL, NULL);
        j->port = ports[i];
        setsockopt(j->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (j->fd < 0 || pthread_create(&t, NULL, serve_one, j) != 0) free(j);
        else pthread_detach(t);
      }
  }
}

/* The relay ------------------------------------------------------------------------ */

struct packet {
  struct packet *next;
  double due;
  int size;
  unsigned char bytes[];
};

struct way {
  int from, to;
  uint64_t random;
  struct packet *first, **last;
  long waiting;
};

static int tun_open(const char *name, int offload) {
  struct ifreq r;
  int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  memset(&r, 0, sizeof r);
  strncpy(r.ifr_name, name, IFNAMSIZ - 1);
  r.ifr_flags = IFF_TUN | IFF_NO_PI | (offload ? IFF_VNET_HDR : 0);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &r) < 0) fail("TUN device");
  if (offload && ioctl(fd, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6) < 0) fail("TUNSETOFFLOAD");
  return fd;
}

static int lost(struct way *w, double loss) {
  w->random ^= w->random << 13;
  w->random ^= w->random >> 7;
  w->random ^= w->random << 17;
  return (w->random >> 11) * 0x1p-53 < loss;
}

static void relay(int a, int b, double delay, double loss, uint64_t seed) {
  static unsigned char buffer[65600];
  struct way ways[2] = {{a, b, seed * 0x9e3779b97f4a7c15ull + 1, NULL, NULL, 0}, {b, a, seed * 0xbf58476d1ce4e5b9ull + 7, NULL, NULL, 0}};
  for (int i = 0; i < 2; i++) {
    ways[i].last = &ways[i].first;
    for (int k = 0; k < 20; k++) lost(&ways[i], 0);
  }
  for (;;) {
    struct timespec wait = {3600, 0};
    double now = seconds_now();
    for (int i = 0; i < 2; i++) {
      struct way *w = &ways[i];
      while (w->first && w->first->due <= now) {
        struct packet *p = w->first;
        if (write(w->to, p->bytes, p->size) < 0 && errno == EAGAIN) break;
        w->first = p->next;
        if (!w->first) w->last = &w->first;
        w->waiting--;
        free(p);
      }
      if (w->first) {
        double left = w->first->due - now;
        if (left < 0) left = 0.0005;
        if (left < wait.tv_sec + wait.tv_nsec / 1e9) {
          wait.tv_sec = left;
          wait.tv_nsec = (left - wait.tv_sec) * 1e9;
        }
      }
    }
    struct pollfd fds[2] = {{a, POLLIN, 0}, {b, POLLIN, 0}};
    ppoll(fds, 2, &wait, NULL);
    for (int i = 0; i < 2; i++)
      for (int k = 0; k < 64; k++) {
        struct way *w = &ways[i];
        ssize_t n = read(w->from, buffer, sizeof buffer);
        if (n <= 0) break;
        if (loss > 0 && lost(w, loss)) continue;
        if (delay <= 0 && !w->first && write(w->to, buffer, n) >= 0) continue;
        if (w->waiting > 20000) continue;
        struct packet *p = malloc(sizeof *p + n);
        p->next = NULL;
        p->due = seconds_now() + delay;
        p->size = n;
        memcpy(p->bytes, buffer, n);
        *w->last = p;
        w->last = &p->next;
        w->waiting++;
      }
  }
}

/* Loads ----------------------------------------------------------------------------- */

static pid_t server_pid;
static double window;
static int connections = 1;
static const char *target = "10.9.1.2";

/* Seconds of CPU and resident memory in megabytes, of the server. */
static double server_cpu(void) {
  char path[64], text[1024];
  unsigned long user = 0, system_ = 0;
  snprintf(path, sizeof path, "/proc/%d/stat", server_pid);
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  if (fgets(text, sizeof text, f)) {
    char *end = strrchr(text, ')');
    if (end) sscanf(end + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system_);
  }
  fclose(f);
  return (double)(user + system_) / sysconf(_SC_CLK_TCK);
}

static double server_rss(void) {
  char path[64], text[256];
  double kb = 0;
  snprintf(path, sizeof path, "/proc/%d/status", server_pid);
  FILE *f = fopen(path, "r");
  if (!f) return 0;
  while (fgets(text, sizeof text, f)) sscanf(text, "VmRSS: %lf", &kb);
  fclose(f);
  return kb / 1e3;
}

/* Bytes that are alive in the server's heap. */
static double server_live(void) {
  char text[64] = "";
  size_t got = 0;
  ssize_t n;
  int fd = connect_to(target, 11);
  if (fd < 0) fail("connect to port 11");
  while (got < sizeof text - 1 && (n = recv(fd, text + got, sizeof text - 1 - got, 0)) > 0) got += n;
  close(fd);
  if (got == 0) fail("no figure from port 11");
  return atof(text);
}

static void bulk(int sends) {
  static char buffer[1 << 20];
  int fd = connect_to(target, sends ? 19 : 9);
  double begin, now, cpu, warm = window / 4;
  long long bytes = 0;
  if (fd < 0) fail("connect");
  if (sends) dprintf(fd, "1000000000000\n");
  begin = seconds_now();
  cpu = 0;
  for (int counting = 0;;) {
    ssize_t n = sends ? read(fd, buffer, sizeof buffer) : write(fd, buffer, 262144);
    if (n <= 0) fail("the connection ended");
    bytes += n;
    now = seconds_now();
    if (!counting && now - begin >= warm) {
      counting = 1;
      bytes = 0;
      begin = now;
      cpu = server_cpu();
    }
    if (counting && now - begin >= window) break;
  }
  cpu = server_cpu() - cpu;
  printf("{\"gbit_per_s\": %.5f, \"ns_per_kib\": %.2f, \"cpu_s\": %.3f, \"wall_s\": %.3f, \"cpu_ns_per_kib\": %.2f, \"max_rss_mb\": %.1f}\n", bytes * 8 / 1e9 / (now - begin), (now - begin) * 1e9 / (bytes / 1024.0), cpu, now - begin, cpu * 1e9 / (bytes / 1024.0), server_rss());
  close(fd);
}

static int by_size(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return (x > y) - (x < y);
}

/* Of the web server: the size of an answer, head and body, which is the same for all files. */
static int answer_size(void) {
  const char *request = "GET /f0 HTTP/1.1\r\nHost: weft\r\nConnection: close\r\n\r\n";
  char buffer[65536];
  int fd = connect_to(target, 80), size = 0;
  ssize_t n;
  if (fd < 0 || write(fd, request, strlen(request)) < 0) fail("web server");
  while ((n = read(fd, buffer, sizeof buffer)) > 0) {
    if (size == 0 && strncmp(buffer, "HTTP/1.1 200", 12) != 0) {
      fprintf(stderr, "tcp-peer: no page: %.60s\n", buffer);
      exit(1);
    }
    size += n;
  }
  close(fd);
  return size;
}

/* What is asked for next. */
static int next_request(int web, char *message, int size) {
  static uint64_t r = 88172645463325252ull;
  if (!web) return size;
  r ^= r << 13;
  r ^= r >> 7;
  r ^= r << 17;
  return snprintf(message, size, "GET /f%d HTTP/1.1\r\nHost: weft\r\n\r\n", (int)(r >> 40 & 255));
}

static void request_response(int web) {
  int expected = web ? answer_size() : 64, port = web ? 80 : 7;
  int poller = epoll_create1(0), *fds = calloc(connections, sizeof *fds), *got = calloc(connections, sizeof *got);
  double *sent = calloc(connections, sizeof *sent), begin, cpu = 0, warm = window / 4;
  long most = 20000000, n = 0;
  float *times = malloc(most * sizeof *times);
  char message[64] = {1};
  static char buffer[65536];
  for (int i = 0; i < connections; i++) {
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = i};
    if ((fds[i] = connect_to(target, port)) < 0) fail("connect");
    epoll_ctl(poller, EPOLL_CTL_ADD, fds[i], &e);
  }
  begin = seconds_now();
  for (int i = 0; i < connections; i++) {
    sent[i] = begin;
    int size = next_request(web, message, sizeof message);
    if (write(fds[i], message, size) != size) fail("write");
  }
  for (int counting = 0;;) {
    struct epoll_event ready[64];
    int k = epoll_wait(poller, ready, 64, 5000);
    double now = seconds_now();
    if (k <= 0) fail("no answer for 5 s");
    for (int j = 0; j < k; j++) {
      int i = ready[j].data.u32;
      ssize_t r = read(fds[i], buffer, sizeof buffer);
      if (r <= 0) fail("the connection ended");
      if ((got[i] += r) < expected) continue;
      got[i] = 0;
      now = seconds_now();
      if (counting && n < most) times[n++] = now - sent[i];
      sent[i] = now;
      int size = next_request(web, message, sizeof message);
      if (write(fds[i], message, size) != size) fail("write");
    }
    if (!counting && now - begin >= warm) {
      counting = 1;
      begin = now;
      cpu = server_cpu();
    }
    if (counting && now - begin >= window) {
      double wall = now - begin;
      cpu = server_cpu() - cpu;
      qsort(times, n, sizeof *times, by_size);
      printf("{\"ops_per_s\": %.1f, \"p50_us\": %.1f, \"p99_us\": %.1f, \"cpu_s\": %.3f, \"cpu_us_per_op\": %.3f, \"wall_s\": %.3f}\n", n / wall, times[n / 2] * 1e6, times[n * 99 / 100] * 1e6, cpu, cpu * 1e6 / n, wall);
      return;
    }
  }
}

static volatile int flooding = 1;
static volatile long flooded;

static uint16_t checksum(const void *p, int n, uint32_t sum) {
  const uint8_t *b = p;
  for (; n > 1; n -= 2, b += 2) sum += b[0] << 8 | b[1];
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  return htons(~sum);
}

/* Packets that the device has dropped in front of the server, since nobody had read those before. */
static long device_drops(void) {
  char line[512];
  unsigned long dropped = 0;
  FILE *f = fopen("/proc/self/net/dev", "r");
  if (!f) fail("/proc/self/net/dev");
  while (fgets(line, sizeof line, f))
    if (sscanf(line, " weft0: %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %*u %lu", &dropped) == 1) break;
  fclose(f);
  return (long)dropped;
}

/* How many SYNs may have been sent by now: as many as the device carries. Every 20 ms the rate grows by 2 % if nothing was
 * dropped, and falls by a tenth otherwise. */
static long flood_allowed(void) {
  static double rate = 200000, allowed, last, checked;
  static long dropped;
  double now = seconds_now();
  if (last == 0) last = checked = now, dropped = device_drops();
  allowed += rate * (now - last);
  last = now;
  if (now - checked >= 0.02) {
    long drops = device_drops();
    rate *= drops > dropped ? 0.9 : 1.02;
    dropped = drops;
    checked = now;
  }
  return (long)allowed;
}

/* SYNs of sources that there are not, as many as one thread can send and the device carries. */
static void *flood(void *unused) {
  struct {
    struct iphdr ip;
    struct tcphdr tcp;
    uint8_t options[4];
  } __attribute__((packed)) s;
  struct sockaddr_in to = {.sin_family = AF_INET};
  uint64_t r = 88172645463325252ull;
  int fd = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);
  (void)unused;
  if (fd < 0) fail("raw socket");
  inet_pton(AF_INET, target, &to.sin_addr);
  while (flooding) {
    uint32_t sum = 0;
    if (flooded % 32 == 0)
      while (flooding && flooded >= flood_allowed()) usleep(50);
    r ^= r << 13;
    r ^= r >> 7;
    r ^= r << 17;
    memset(&s, 0, sizeof s);
    s.ip.version = 4;
    s.ip.ihl = 5;
    s.ip.tot_len = htons(sizeof s);
    s.ip.ttl = 64;
    s.ip.protocol = 6;
    s.ip.saddr = htonl(0x0b000000 | (r & 0xffffff));
    s.ip.daddr = to.sin_addr.s_addr;
    s.tcp.source = htons(1024 + (r >> 24) % 60000);
    s.tcp.dest = htons(7);
    s.tcp.seq = (uint32_t)(r >> 32);
    s.tcp.doff = 6;
    s.tcp.syn = 1;
    s.tcp.window = htons(64240);
    s.options[0] = 2;
    s.options[1] = 4;
    s.options[2] = 5;
    s.options[3] = 0xb4;
    sum = (ntohl(s.ip.saddr) >> 16) + (ntohl(s.ip.saddr) & 0xffff) + (ntohl(s.ip.daddr) >> 16) + (ntohl(s.ip.daddr) & 0xffff) + 6 + 24;
    s.tcp.check = checksum(&s.tcp, 24, sum);
    if (sendto(fd, &s, sizeof s, 0, (struct sockaddr *)&to, sizeof to) > 0) flooded++;
  }
  return NULL;
}

enum { FLOOD_CLIENTS = 64 };
static double flood_end;
static long flood_tried, flood_served;

/* Connections one after the other, each for one message and its echo. */
static void *flood_client(void *unused) {
  struct timeval limit = {patience, 0};
  char message[64] = {1}, buffer[64];
  (void)unused;
  while (seconds_now() < flood_end) {
    int fd = connect_to(target, 7), ok = 0;
    if (fd >= 0) {
      setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
      ok = write(fd, message, sizeof message) == sizeof message && recv(fd, buffer, sizeof buffer, MSG_WAITALL) == sizeof buffer;
      close(fd);
    }
    __atomic_add_fetch(&flood_tried, 1, __ATOMIC_RELAXED);
    __atomic_add_fetch(&flood_served, ok, __ATOMIC_RELAXED);
  }
  return NULL;
}

static void under_flood(void) {
  pthread_t t, clients[FLOOD_CLIENTS];
  double begin, before, grown;
  long tried, served, sent;
  pthread_create(&t, NULL, flood, NULL);
  usleep(1000000);
  /* A browser waits for longer. */
  patience = 10;
  /* The live bytes of 64 connections change by some 100 KB, which has to be little in relation to the SYNs. */
  if (window < 3) window = 3;
  flood_end = seconds_now() + 2 + window;
  for (int i = 0; i < FLOOD_CLIENTS; i++) pthread_create(&clients[i], NULL, flood_client, NULL);
  /* Once cookies are on, and as many clients are connected as ever, no memory may be taken. */
  usleep(2000000);
  before = server_live();
  sent = flooded;
  begin = seconds_now();
  usleep((useconds_t)(window * 1e6));
  double wall = seconds_now() - begin;
  sent = flooded - sent;
  grown = server_live() - before;
  for (int i = 0; i < FLOOD_CLIENTS; i++) pthread_join(clients[i], NULL);
  tried = flood_tried;
  served = flood_served;
  flooding = 0;
  pthread_join(t, NULL);
  printf("{\"syns_per_s\": %.0f, \"clients\": %ld, \"unserved_ratio\": %.5f, \"live_bytes_per_syn\": %.3f, \"max_rss_mb\": %.1f, \"wall_s\": %.3f}\n", sent / wall, tried, tried ? 1 - (double)served / tried : 1.0, (grown > 0 ? grown : 0) / (sent + 1), server_rss(), wall);
}

/* Trials ------------------------------------------------------------------------------ */

static void ignored(int number) { (void)number; }

/* A server that ends interrupts the system call that waits for it. */
static void hear_children(void) {
  struct sigaction action = {.sa_handler = ignored};
  sigaction(SIGCHLD, &action, NULL);
}

static pid_t start(int core, char **command) {
  pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    /* The output is for the result alone. */
    dup2(2, 1);
    pin(core);
    execvp(command[0], command);
    fail(command[0]);
  }
  return pid;
}

static int trial(int argc, char **argv) {
  const char *mode = "send";
  int option, offload = 0, relayed = 0, outer, r1 = -1, r2 = -1, web = 0, on_kernel = 0;
  double delay = 0, loss = 0;
  uint64_t seed = 1;
  char *command[64];
  int n = 0, kernel;
  pid_t relaying = 0;
  window = 2;
  while ((option = getopt(argc, argv, "m:c:s:orkd:l:S:")) != -1) switch (option) {
      case 'm': mode = optarg; break;
      case 'c': connections = atoi(optarg); break;
      case 's': window = atof(optarg); break;
      case 'o': offload = 1; break;
      case 'r': relayed = 1; break;
      case 'k': on_kernel = relayed = 1; break;
      case 'd': delay = atof(optarg) / 1e3; break;
      case 'l': loss = atof(optarg); break;
      case 'S': seed = strtoull(optarg, NULL, 10); break;
      default: return 2;
    }
  if (optind >= argc) return 2;
  for (; optind < argc && n < 56; optind++) command[n++] = argv[optind];
  web = strcmp(mode, "web") == 0;
  kernel = strcmp(command[0], "kernel") == 0 || (web && on_kernel);
  signal(SIGPIPE, SIG_IGN);
  shell("ip link set lo up");
  outer = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (relayed) {
    r1 = tun_open("relay1", offload);
    shell("ip addr add 10.9.0.1/30 dev relay1 && ip link set relay1 txqueuelen 10000 up && ip route add 10.9.1.0/24 dev relay1");
    if (unshare(CLONE_NEWNET) < 0) fail("unshare");
    r2 = tun_open("relay2", offload);
    shell("ip link set lo up && ip addr add 10.9.0.2/30 dev relay2 && ip link set relay2 txqueuelen 10000 up && sysctl -qw net.ipv4.ip_forward=1");
    relaying = fork();
    if (relaying == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      pin(kernel ? 0 : 1);
      relay(r1, r2, delay, loss, seed);
    }
  }
  if (kernel) {
    if (!relayed) return 2;
    target = "10.9.0.2";
    if (web) {
      command[n++] = "--port";
      command[n++] = "80";
      command[n++] = "--host";
      command[n++] = "10.9.0.2";
      command[n] = NULL;
    } else {
      command[0] = "/proc/self/exe";
      command[1] = "serve";
      command[2] = "10.9.0.2";
      command[3] = NULL;
    }
  } else {
    shell("ip tuntap add dev weft0 mode tun && ip addr add 10.9.1.1/24 dev weft0 && ip link set weft0 txqueuelen 10000 up");
    if (web) {
      command[n++] = "--port";
      command[n++] = "80";
      command[n++] = "--stack";
      command[n++] = "tun:weft0,10.9.1.2";
    } else {
      command[n++] = "weft0";
      command[n++] = "10.9.1.2";
      command[n++] = offload ? "offload" : "plain";
    }
    command[n] = NULL;
  }
  hear_children();
  server_pid = start(0, command);
  if (setns(outer, CLONE_NEWNET) < 0) fail("setns");
  pin(1);
  for (int i = 0;; i++) {
    int ended = waitpid(server_pid, NULL, WNOHANG) > 0, fd = ended ? -1 : connect_to(target, web ? 80 : 7);
    if (fd >= 0) {
      close(fd);
      break;
    }
    if (ended || i > 100) {
      fprintf(stderr, "tcp-peer: the server does not answer\n");
      return 1;
    }
    usleep(100000);
  }
  if (strcmp(mode, "send") == 0) bulk(1);
  else if (strcmp(mode, "receive") == 0) bulk(0);
  else if (strcmp(mode, "rr") == 0) request_response(0);
  else if (web) request_response(1);
  else if (strcmp(mode, "flood") == 0) under_flood();
  else return 2;
  fflush(stdout);
  kill(server_pid, SIGKILL);
  if (relaying) kill(relaying, SIGKILL);
  return 0;
}

int main(int argc, char **argv) {
  if (argc >= 3 && strcmp(argv[1], "serve") == 0) serve(argv[2]);
  if (argc >= 3 && strcmp(argv[1], "trial") == 0) return trial(argc - 1, argv + 1);
  fprintf(stderr, "tcp-peer serve ADDRESS | trial [-m MODE] [-c N] [-s SECONDS] [-o] [-r] [-k] [-d MS] [-l LOSS] [-S SEED] -- COMMAND...\n");
  return 2;
}
