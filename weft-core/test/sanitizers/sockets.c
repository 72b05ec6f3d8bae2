/* The shims for sockets under sanitizers (scripts/sanitizers): each call with memory of exactly the size that it is
 * given, control data that is truncated and malformed, and a stream in both directions while other threads close
 * sockets that linger.
 *   sockets ROUNDS SEED */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

int weft_socket(int, int, int), weft_socketpair(int, int, int, int *), weft_set_nonblocking(int);
int weft_acceptable(int), weft_accept(int, struct sockaddr *, socklen_t *), weft_connect(int, const struct sockaddr *, socklen_t);
int weft_listens(int), weft_connected(int), weft_bind(int, const struct sockaddr *, socklen_t), weft_listen(int, int);
int weft_shutdown(int, int), weft_dup(int), weft_close_now(int), weft_unlink_stale(int, const struct sockaddr *, socklen_t);
int weft_getsockname(int, struct sockaddr *, socklen_t *), weft_getpeername(int, struct sockaddr *, socklen_t *);
int weft_setsockopt(int, int, int, const void *, socklen_t), weft_getsockopt(int, int, int, void *, socklen_t *);
void weft_close(int), weft_expect_lingering(void);
ssize_t weft_recv(int, void *, size_t, int), weft_send(int, const void *, size_t, int);
ssize_t weft_recvfrom(int, void *, size_t, int, struct sockaddr *, socklen_t *);
ssize_t weft_sendto(int, const void *, size_t, const struct sockaddr *, socklen_t);
ssize_t weft_sendv(int, struct iovec *, int, struct sockaddr *, socklen_t), weft_sendv_more(int, struct iovec *, int);
ssize_t weft_send_two(int, void *, size_t, void *, size_t);
ssize_t weft_read_at(int, void *, size_t, int64_t), weft_sendfile(int, int, int64_t, size_t);
ssize_t weft_sendfile_cached(int, int, int64_t, size_t);
ssize_t weft_sendmsg(int, struct iovec *, int, void *, uint32_t, void *, size_t, int);
ssize_t weft_recvmsg(int, struct iovec *, int, void *, uint32_t *, void *, size_t *, int *);
size_t weft_cmsg_space(size_t);
void *weft_cmsg_put(void *, int, int, size_t), *weft_cmsg_get(void *, size_t, int *, int *, size_t *, size_t *);
int weft_rights_level(void), weft_rights_type(void), weft_open_read(const char *);
int64_t weft_file_size(int);

static unsigned rounds, wrong;
static int over;

static void expect(const char *what, long got, long wanted) {
  if (got == wanted) return;
  fprintf(stderr, "wrong: %s gave %ld, not %ld\n", what, got, wanted);
  __atomic_store_n(&wrong, 1, __ATOMIC_SEQ_CST);
}

/* Memory of exactly that size, so that a step beyond is seen. */
static void *exactly(size_t n, int fill) {
  void *p = malloc(n ? n : 1);
  if (!p) abort();
  memset(p, fill, n);
  return p;
}

static void streams(void) {
  int fds[2];
  expect("socketpair", weft_socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  char *out = exactly(1000, 'a'), *in = exactly(1000, 0);
  struct iovec parts[3] = {{out, 10}, {out, 0}, {out + 10, 990}};
  expect("recv of nothing", weft_recv(fds[0], in, 1000, 0), -EAGAIN);
  expect("send", weft_send(fds[1], out, 1000, 0), 1000);
  expect("recv", weft_recv(fds[0], in, 999, 0), 999);
  expect("recv", weft_recv(fds[0], in + 999, 1, 0), 1);
  expect("bytes", memcmp(in, out, 1000), 0);
  expect("sendv", weft_sendv(fds[1], parts, 3, 0, 0), 1000);
  expect("sendv_more", weft_sendv_more(fds[1], parts, 3), 1000);
  expect("recv", weft_recv(fds[0], in, 1000, MSG_PEEK), 1000);
  char *one = exactly(10, 'b'), *two = exactly(20, 'c');
  expect("send_two", weft_send_two(fds[1], one, 10, two, 20), 30);
  free(one), free(two);
  expect("shutdown", weft_shutdown(fds[1], SHUT_WR), 0);
  expect("send after shutdown", weft_send(fds[1], out, 1, 0), -EPIPE);
  int copy = weft_dup(fds[0]);
  expect("dup", copy >= 0, 1);
  expect("set_nonblocking", weft_set_nonblocking(copy), 0);
  expect("close_now", weft_close_now(copy), -1);
  weft_close(fds[0]);
  weft_close(fds[1]);
  expect("set_nonblocking of none", weft_set_nonblocking(copy), -EBADF);
  free(out);
  free(in);
}

static void files(void) {
  char path[] = "/tmp/weft-sockets-XXXXXX";
  int fds[2], made = mkstemp(path);
  char *bytes = exactly(10000, 'f'), *in = exactly(10000, 0);
  if (made < 0 || write(made, bytes, 10000) != 10000) abort();
  close(made);
  int file = weft_open_read(path);
  unlink(path);
  expect("file_size", weft_file_size(file), 10000);
  expect("read_at", weft_read_at(file, in, 10000, 1), 9999);
  expect("read_at the end", weft_read_at(file, in, 10, 10000), 0);
  expect("socketpair", weft_socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  expect("sendfile", weft_sendfile(fds[1], file, 9000, 5000), 1000);
  ssize_t r = weft_sendfile_cached(fds[1], file, 0, 1000);
  expect("sendfile_cached", r == 1000 || r == -ENOSYS, 1);
  expect("recv", weft_recv(fds[0], in, 1000, 0), 1000);
  weft_close(fds[0]);
  weft_close(fds[1]);
  weft_close(file);
  expect("open_read", weft_open_read("/nowhere/at/all"), -ENOENT);
  free(bytes);
  free(in);
}

/* Items of control data, at every length that is too short, and with lengths that lie. */
static void messages(void) {
  int fds[2], level, type;
  size_t space = weft_cmsg_space(sizeof(int)), n, step;
  expect("socketpair", weft_socketpair(AF_UNIX, SOCK_DGRAM, 0, fds), 0);
  for (size_t room = 0; room <= 2 * space; room++) {
    char *control = exactly(space, 0), *back = exactly(room, 0xff), byte = 'm', *in = exactly(1, 0), *address = exactly(sizeof(struct sockaddr_un), 0);
    struct iovec one = {&byte, 1}, into = {in, 1};
    uint32_t alen = sizeof(struct sockaddr_un);
    size_t clen = room;
    int flags = 0;
    memcpy(weft_cmsg_put(control, weft_rights_level(), weft_rights_type(), sizeof(int)), &fds[0], sizeof(int));
    expect("sendmsg", weft_sendmsg(fds[1], &one, 1, 0, 0, control, space, 0), 1);
    expect("recvmsg", weft_recvmsg(fds[0], &into, 1, address, &alen, back, &clen, &flags), 1);
    expect("the byte", *in, 'm');
    void *data = weft_cmsg_get(back, clen, &level, &type, &n, &step);
    if ((data || room >= space) && (!data || level != SOL_SOCKET || type != SCM_RIGHTS || n != sizeof(int))) expect("cmsg_get", 0, 1);
    if (data)
      for (size_t i = 0; i + sizeof(int) <= n; i += sizeof(int)) {
        int passed;
        memcpy(&passed, (char *)data + i, sizeof passed);
        expect("close-on-exec", fcntl(passed, F_GETFD), FD_CLOEXEC);
        weft_close(passed);
      }
    if (!data && !(flags & MSG_CTRUNC)) expect("MSG_CTRUNC", flags, MSG_CTRUNC);
    free(control), free(back), free(in), free(address);
  }
  for (size_t size = 0; size <= 2 * sizeof(struct cmsghdr); size++)
    for (size_t says = 0; says <= 64; says++) {
      char *lie = exactly(size < sizeof(struct cmsghdr) ? sizeof(struct cmsghdr) : size, 0);
      ((struct cmsghdr *)lie)->cmsg_len = says == 64 ? (size_t)-1 : says;
      void *data = weft_cmsg_get(lie, size, &level, &type, &n, &step);
      if (data && (char *)data + n > lie + size) expect("cmsg_get beyond the end", (long)says, (long)size);
      free(lie);
    }
  weft_close(fds[0]);
  weft_close(fds[1]);
}

static void internet(void) {
  struct sockaddr_in *a = exactly(sizeof *a, 0), *b = exactly(sizeof *b, 0);
  socklen_t n = sizeof *a;
  a->sin_family = AF_INET;
  a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = weft_socket(AF_INET, SOCK_STREAM, 0), c = weft_socket(AF_INET, SOCK_STREAM, 0), s, flag = 1;
  expect("setsockopt", weft_setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &flag, sizeof flag), 0);
  expect("bind", weft_bind(l, (struct sockaddr *)a, n), 0);
  expect("listens", weft_listens(l), 0);
  expect("listen", weft_listen(l, 5), 0);
  expect("listens", weft_listens(l), 1);
  expect("getsockname", weft_getsockname(l, (struct sockaddr *)a, &n), 0);
  expect("acceptable", weft_acceptable(l), 0);
  int r = weft_connect(c, (struct sockaddr *)a, n);
  expect("connect", r == 0 || r == -EINPROGRESS, 1);
  n = sizeof *b;
  while ((s = weft_accept(l, (struct sockaddr *)b, &n)) == -EAGAIN) continue;
  expect("acceptable", weft_acceptable(l), 0);
  while (weft_connected(c) == -EINPROGRESS) continue;
  expect("connected", weft_connected(c), 0);
  n = sizeof *b;
  expect("getpeername", weft_getpeername(c, (struct sockaddr *)b, &n), 0);
  expect("the peer", b->sin_port, a->sin_port);
  n = sizeof flag;
  expect("getsockopt", weft_getsockopt(l, SOL_SOCKET, SO_REUSEADDR, &flag, &n), 0);
  weft_close(c), weft_close(s), weft_close(l);
  int u = weft_socket(AF_INET, SOCK_DGRAM, 0), v = weft_socket(AF_INET, SOCK_DGRAM, 0);
  a->sin_port = 0, n = sizeof *a;
  expect("bind", weft_bind(u, (struct sockaddr *)a, n), 0);
  expect("getsockname", weft_getsockname(u, (struct sockaddr *)a, &n), 0);
  char *in = exactly(3, 0);
  expect("sendto", weft_sendto(v, "abcd", 4, (struct sockaddr *)a, sizeof *a), 4);
  n = sizeof *b;
  expect("recvfrom", weft_recvfrom(u, in, 3, 0, (struct sockaddr *)b, &n), 3);
  weft_close(u), weft_close(v);
  free(in), free(a), free(b);
}

static void stale(unsigned seed) {
  struct sockaddr_un *a = exactly(sizeof *a, 0);
  a->sun_family = AF_UNIX;
  snprintf(a->sun_path, sizeof a->sun_path, "/tmp/weft-stale-%d-%u", (int)getpid(), seed);
  socklen_t offset = offsetof(struct sockaddr_un, sun_path), n = offset + (socklen_t)strlen(a->sun_path);
  int l = weft_socket(AF_UNIX, SOCK_STREAM, 0), m = weft_socket(AF_UNIX, SOCK_STREAM, 0);
  expect("bind", weft_bind(l, (struct sockaddr *)a, n), 0);
  expect("listen", weft_listen(l, 1), 0);
  expect("unlink_stale of a live one", weft_unlink_stale(m, (struct sockaddr *)a, n), -EADDRINUSE);
  weft_close(l);
  expect("unlink_stale", weft_unlink_stale(m, (struct sockaddr *)a, n), 0);
  expect("bind", weft_bind(m, (struct sockaddr *)a, n), 0);
  unlink(a->sun_path);
  /* A path that fills the whole address, without a zero. */
  memset(a->sun_path, '/', sizeof a->sun_path);
  weft_unlink_stale(m, (struct sockaddr *)a, sizeof *a);
  expect("unlink_stale of a short address", weft_unlink_stale(m, (struct sockaddr *)a, offset), -EADDRINUSE);
  weft_close(m);
  free(a);
}

struct end {
  int fd;
  unsigned long bytes;
};

static void *writing(void *argument) {
  struct end *e = argument;
  unsigned char some[777];
  for (unsigned long i = 0; i < e->bytes;) {
    unsigned n = (unsigned)(e->bytes - i < sizeof some ? e->bytes - i : sizeof some);
    for (unsigned k = 0; k < n; k++) some[k] = (unsigned char)((i + k) * 31);
    ssize_t r = weft_send(e->fd, some, n, 0);
    if (r > 0) i += (unsigned long)r;
    if (r < 0 && r != -EAGAIN) expect("send", r, 0);
  }
  return 0;
}

static void *reading(void *argument) {
  struct end *e = argument;
  unsigned char some[1024];
  for (unsigned long i = 0; i < e->bytes;) {
    ssize_t r = weft_recv(e->fd, some, sizeof some, 0);
    for (ssize_t k = 0; k < r; k++)
      if (some[k] != (unsigned char)((i + (unsigned long)k) * 31)) expect("a byte", some[k], (long)i + k);
    if (r > 0) i += (unsigned long)r;
    if (r < 0 && r != -EAGAIN) expect("recv", r, 0);
  }
  return 0;
}

static void *lingering(void *argument) {
  (void)argument;
  while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
    struct linger l = {1, 1};
    int s = weft_socket(AF_INET, SOCK_STREAM, 0), copy;
    weft_expect_lingering();
    expect("SO_LINGER", weft_setsockopt(s, SOL_SOCKET, SO_LINGER, &l, sizeof l), 0);
    if ((copy = weft_close_now(s)) < 0) expect("a copy to linger", copy, 0);
    weft_close(copy);
  }
  return 0;
}

int main(int argc, char **argv) {
  rounds = argc > 1 ? (unsigned)atoi(argv[1]) : 20;
  unsigned seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
  for (unsigned i = 0; i < 20; i++) streams(), files(), messages(), internet(), stale(seed + i);
  int fds[2];
  expect("socketpair", weft_socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  struct end a = {fds[0], 100ul * rounds}, b = {fds[1], 100ul * rounds};
  pthread_t threads[6];
  pthread_create(&threads[0], 0, writing, &a);
  pthread_create(&threads[1], 0, reading, &a);
  pthread_create(&threads[2], 0, writing, &b);
  pthread_create(&threads[3], 0, reading, &b);
  pthread_create(&threads[4], 0, lingering, 0);
  pthread_create(&threads[5], 0, lingering, 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
  __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
  for (int i = 4; i < 6; i++) pthread_join(threads[i], 0);
  weft_close(fds[0]), weft_close(fds[1]);
  printf("%lu bytes each way, and each call by itself\n", a.bytes);
  return (int)wrong;
}
