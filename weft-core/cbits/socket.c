/* Socket calls with the interface that the Haskell code uses: they never block unless it is stated, return results or
 * -errno, and are repeated when a signal interrupts them.
 *
 * O_NONBLOCK belongs to the open file description (open(2)), which other processes may share: one that clears the flag
 * clears it here. Calls that send and receive therefore carry MSG_DONTWAIT, which is the same for one call. accept(2),
 * connect(2) and sendfile(2) have no such flag, and do block then. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/sock_diag.h>
#include <linux/tcp.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#ifndef MSG_MORE
#define MSG_MORE 0
#endif
#ifndef MSG_CMSG_CLOEXEC
#define MSG_CMSG_CLOEXEC 0
#endif

/* Flags of every call that receives, and of every call that sends. */
#define RECEIVING MSG_DONTWAIT
#define SENDING (MSG_DONTWAIT | MSG_NOSIGNAL)

#define RETRY(type, call)                  \
  type r;                                  \
  do r = (call);                           \
  while (r < 0 && errno == EINTR);         \
  return r < 0 ? -errno : r

#ifndef SOCK_NONBLOCK
static int prepare(int fd) {
  int fl = fcntl(fd, F_GETFL);
  if (fl < 0 || fcntl(fd, F_SETFL, fl | O_NONBLOCK) < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0) {
    int e = errno;
    close(fd);
    return -e;
  }
  return fd;
}
#endif

int weft_socket(int family, int type, int protocol) {
#ifdef SOCK_NONBLOCK
  int fd = socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol);
  return fd < 0 ? -errno : fd;
#else
  int fd = socket(family, type, protocol);
  return fd < 0 ? -errno : prepare(fd);
#endif
}

int weft_socketpair(int family, int type, int protocol, int *fds) {
#ifdef SOCK_NONBLOCK
  return socketpair(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, protocol, fds) < 0 ? -errno : 0;
#else
  if (socketpair(family, type, protocol, fds) < 0) return -errno;
  int r = prepare(fds[0]);
  if (r >= 0) {
    r = prepare(fds[1]);
    if (r < 0) close(fds[0]);
  } else
    close(fds[1]);
  return r < 0 ? r : 0;
#endif
}

int weft_set_nonblocking(int fd) {
  int fl = fcntl(fd, F_GETFL);
  if (fl < 0) return -errno;
  if (fl & O_NONBLOCK) return 0;
  return fcntl(fd, F_SETFL, fl | O_NONBLOCK) < 0 ? -errno : 0;
}

/* Whether a read of less than was asked for has emptied it, and a write of less has filled it: 1 for a stream of TCP and
 * for a pipe, unless that carries packets. Unix sockets stop a read at control data; SCTP, datagrams and sequential
 * packets at the end of a message; a terminal gives one line at a time, and other devices one event. Where the system
 * cannot tell, the answer is 0, which costs another try. */
int weft_drains(int fd) {
  int type;
  socklen_t len = sizeof type;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0) {
#ifdef SO_PROTOCOL
    int protocol;
    len = sizeof protocol;
    return type == SOCK_STREAM && getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) == 0 &&
           protocol == IPPROTO_TCP;
#else
    return 0;
#endif
  }
  struct stat st;
  if (fstat(fd, &st) < 0) return -errno;
  if (!S_ISFIFO(st.st_mode)) return 0;
#ifdef O_DIRECT
  int fl = fcntl(fd, F_GETFL);
  if (fl < 0) return -errno;
  if (fl & O_DIRECT) return 0;
#endif
  return 1;
}

int weft_accept(int fd, struct sockaddr *addr, socklen_t *len) {
#ifdef SOCK_NONBLOCK
  RETRY(int, accept4(fd, addr, len, SOCK_NONBLOCK | SOCK_CLOEXEC));
#else
  int r;
  do r = accept(fd, addr, len);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : prepare(r);
#endif
}

/* Whether accept would return something: a connection or an error. It takes a sixth of the time of an accept that finds
 * none, for which the kernel makes a file first. */
int weft_acceptable(int fd) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  return poll(&p, 1, 0) != 0;
}

/* Not repeated: an interrupted connect goes on by itself. */
int weft_connect(int fd, const struct sockaddr *addr, socklen_t len) {
  int r = connect(fd, addr, len);
  return r < 0 ? (errno == EINTR ? -EINPROGRESS : -errno) : 0;
}

/* Whether a socket listens. If the system cannot tell, the answer is yes. */
int weft_listens(int fd) {
#ifdef SO_ACCEPTCONN
  int yes = 0;
  socklen_t len = sizeof yes;
  return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &yes, &len) < 0 ? -errno : yes != 0;
#else
  (void)fd;
  return 1;
#endif
}

/* Whether a connect has ended: 0, -EINPROGRESS, or the error. */
int weft_connected(int fd) {
  int err = 0;
  socklen_t len = sizeof err;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0) return -errno;
  if (err) return -err;
  struct sockaddr_storage ss;
  len = sizeof ss;
  if (getpeername(fd, (struct sockaddr *)&ss, &len) == 0) return 0;
  return errno == ENOTCONN ? -EINPROGRESS : -errno;
}

/* Progress of a TCP peer, on Linux: the number of bytes that it has acknowledged. The result is the sum of 1, if none of
 * the bytes that filled the kernel's buffer have left it, and 2, if bytes or the end of the stream are not
 * acknowledged. */
int weft_send_progress(int fd, int64_t *acknowledged) {
#ifdef __linux__
  struct tcp_info info;
  uint32_t memory[SK_MEMINFO_VARS];
  socklen_t n = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) < 0) return -errno;
  if (n < offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked) return -ENOSYS;
  n = sizeof memory;
  if (getsockopt(fd, SOL_SOCKET, SO_MEMINFO, memory, &n) < 0) return -errno;
  *acknowledged = (int64_t)info.tcpi_bytes_acked;
  return (memory[SK_MEMINFO_WMEM_QUEUED] >= memory[SK_MEMINFO_SNDBUF] ? 1 : 0) |
         (info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0 ? 2 : 0);
#else
  (void)fd;
  (void)acknowledged;
  return -ENOSYS;
#endif
}

ssize_t weft_recv(int fd, void *buf, size_t n, int flags) {
  RETRY(ssize_t, recv(fd, buf, n, flags | RECEIVING));
}

ssize_t weft_recvfrom(int fd, void *buf, size_t n, int flags, struct sockaddr *addr, socklen_t *len) {
  RETRY(ssize_t, recvfrom(fd, buf, n, flags | RECEIVING, addr, len));
}

ssize_t weft_send(int fd, const void *buf, size_t n, int flags) {
  RETRY(ssize_t, send(fd, buf, n, flags | SENDING));
}

ssize_t weft_sendto(int fd, const void *buf, size_t n, const struct sockaddr *addr, socklen_t len) {
  RETRY(ssize_t, sendto(fd, buf, n, SENDING, addr, len));
}

ssize_t weft_sendv(int fd, struct iovec *iov, int n, struct sockaddr *addr, socklen_t len) {
  struct msghdr m = {.msg_name = addr, .msg_namelen = addr ? len : 0, .msg_iov = iov, .msg_iovlen = n};
  RETRY(ssize_t, sendmsg(fd, &m, SENDING));
}

/* Two pieces of memory by one call. */
ssize_t weft_send_two(int fd, void *first, size_t n, void *second, size_t m) {
  struct iovec iov[2] = {{first, n}, {second, m}};
  return weft_sendv(fd, iov, 2, NULL, 0);
}

/* A send after which more data follows at once, so the kernel may wait for that before it sends a packet. */
ssize_t weft_sendv_more(int fd, struct iovec *iov, int n) {
  struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
  RETRY(ssize_t, sendmsg(fd, &m, SENDING | MSG_MORE));
}

/* Reads from a file at an offset; may wait for the disk. 0 at the end of the file. */
ssize_t weft_read_at(int file, void *buf, size_t n, int64_t offset) {
  RETRY(ssize_t, pread(file, buf, n, offset));
}

/* Sends from a file at an offset; may wait for the disk. 0 at the end of the file. */
ssize_t weft_sendfile(int sock, int file, int64_t offset, size_t n) {
#ifdef __linux__
  off_t off = offset;
  RETRY(ssize_t, sendfile(sock, file, &off, n));
#else
  char buf[65536];
  ssize_t got;
  do got = pread(file, buf, n < sizeof buf ? n : sizeof buf, offset);
  while (got < 0 && errno == EINTR);
  if (got <= 0) return got < 0 ? -errno : 0;
  RETRY(ssize_t, send(sock, buf, got, SENDING));
#endif
}

/* Sends from the page cache, without waiting for the disk, until the socket has no
 * more room, at most WEFT_PROMPT bytes. If the socket had no more room, WEFT_FULL is added to the number of bytes.
 * -ENOSYS: some of the data may not be in the page cache, and nothing was sent. (That is always so before Linux 6.5,
 * which has cachestat(2), and on other systems.) If data leaves the page cache
 * between the check and the sending, the call waits for the disk. */
#define WEFT_PROMPT 2097152
#define WEFT_FULL ((ssize_t)1 << 62)
ssize_t weft_sendfile_cached(int sock, int file, int64_t offset, size_t n) {
#if defined(__linux__)
  enum { cachestat_number = 451 }; /* on all architectures; younger than Debian 12's headers */
  static int absent;
  long page = sysconf(_SC_PAGESIZE);
  if (n > WEFT_PROMPT) n = WEFT_PROMPT;
  struct { uint64_t off, len; } range = {offset, n};
  struct { uint64_t cache, dirty, writeback, evicted, recent; } found;
  if (__atomic_load_n(&absent, __ATOMIC_RELAXED)) return -ENOSYS;
  if (syscall(cachestat_number, file, &range, &found, 0) < 0) {
    if (errno == ENOSYS) __atomic_store_n(&absent, 1, __ATOMIC_RELAXED);
    return -ENOSYS;
  }
  if (found.cache < (uint64_t)((offset + (int64_t)n - 1) / page - offset / page + 1)) return -ENOSYS;
  size_t done = 0;
  /* A short count may mean the end of the file, or that the socket has no more room: only another try shows which. */
  while (done < n) {
    ssize_t r = weft_sendfile(sock, file, offset + (int64_t)done, n - done);
    if (r == -EAGAIN && done > 0) return (ssize_t)done | WEFT_FULL;
    if (r <= 0) return done > 0 ? (ssize_t)done : r;
    done += r;
  }
  return done;
#else
  (void)sock, (void)file, (void)offset, (void)n;
  return -ENOSYS;
#endif
}

int weft_bind(int fd, const struct sockaddr *a, socklen_t n) { return bind(fd, a, n) < 0 ? -errno : 0; }
int weft_listen(int fd, int n) { return listen(fd, n) < 0 ? -errno : 0; }
int weft_shutdown(int fd, int how) { return shutdown(fd, how) < 0 ? -errno : 0; }
int weft_dup(int fd) {
  int r = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  return r < 0 ? -errno : r;
}
int weft_getsockname(int fd, struct sockaddr *a, socklen_t *n) { return getsockname(fd, a, n) < 0 ? -errno : 0; }
int weft_getpeername(int fd, struct sockaddr *a, socklen_t *n) { return getpeername(fd, a, n) < 0 ? -errno : 0; }

/* Whether close(2) waits for the peer. With a time of zero it resets the connection, and does not wait (socket(7)). The
 * kernel takes a negative time for a very long one. */
static int lingers(const struct linger *l) { return l->l_onoff && l->l_linger != 0; }

/* Whether any socket of this process may linger. Written once, by any thread; read at each close. Connections
 * inherit the option from their listener, so one socket with the option is enough. */
static int may_linger;
void weft_expect_lingering(void) { __atomic_store_n(&may_linger, 1, __ATOMIC_RELAXED); }
int weft_expects_lingering(void) { return __atomic_load_n(&may_linger, __ATOMIC_RELAXED); }

int weft_setsockopt(int fd, int level, int name, const void *p, socklen_t n) {
  if (level == SOL_SOCKET && name == SO_LINGER) {
    struct linger l;
    if (n >= sizeof l && lingers(memcpy(&l, p, sizeof l))) weft_expect_lingering();
  }
  return setsockopt(fd, level, name, p, n) < 0 ? -errno : 0;
}
int weft_getsockopt(int fd, int level, int name, void *p, socklen_t *n) {
  return getsockopt(fd, level, name, p, n) < 0 ? -errno : 0;
}
/* Whatever close returns, the descriptor is gone. */
void weft_close(int fd) { close(fd); }

/* Release the number without blocking. A socket that lingers does so when the last of its descriptors is closed: a
 * duplicate is returned for that, otherwise -1. If there is no descriptor free for a duplicate, the kernel goes on
 * sending in the background, as it does for sockets that do not linger. */
int weft_close_now(int fd) {
  int copy = -1;
  if (weft_expects_lingering()) {
    struct linger l = {0, 0};
    socklen_t n = sizeof l;
    if (getsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &n) == 0 && lingers(&l)) {
      copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
      if (copy < 0) {
        l.l_onoff = 0;
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
      }
    }
  }
  close(fd);
  return copy;
}

/* The file of a Unix socket stays when its owner is gone. If the address is that of a socket of fd's kind on which a
 * connect is refused, remove the file: 0. Otherwise it is in use, or is not a socket's: -EADDRINUSE. */
int weft_unlink_stale(int fd, const struct sockaddr *addr, socklen_t len) {
  char path[sizeof ((struct sockaddr_un *)0)->sun_path + 1] = {0};
  struct stat st;
  int type, r, e;
  socklen_t n = sizeof type;
  size_t offset = offsetof(struct sockaddr_un, sun_path);
  if (addr->sa_family != AF_UNIX || len <= offset || len - offset >= sizeof path) return -EADDRINUSE;
  memcpy(path, (const char *)addr + offset, len - offset);
  if (!path[0]) return -EADDRINUSE;
  if (lstat(path, &st) < 0) return errno == ENOENT ? 0 : -errno;
  if (!S_ISSOCK(st.st_mode)) return -EADDRINUSE;
  if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0) return -errno;
  int probe = weft_socket(AF_UNIX, type, 0);
  if (probe < 0) return probe;
  r = connect(probe, addr, len);
  e = errno;
  close(probe);
  if (r == 0 || e != ECONNREFUSED) return -EADDRINUSE;
  return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

/* Without O_NONBLOCK, opening a named pipe waits for a writer. With it, a regular file is refused while another process
 * gives up its lease of it (fcntl(2), F_SETLEASE): then the call without it waits for that. */
int weft_open_read(const char *path) {
  int r = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (r < 0 && errno == EWOULDBLOCK) {
    struct stat st;
    if (stat(path, &st) < 0) return -errno;
    r = S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : (errno = EWOULDBLOCK, -1);
  }
  return r < 0 ? -errno : r;
}
int64_t weft_file_size(int fd) {
  off_t r = lseek(fd, 0, SEEK_END);
  return r < 0 ? -errno : r;
}

/* Messages with control data. The address of a message that was received is *alen
 * bytes long, its control data *clen. Descriptors that come with it are not inherited
 * by other programs. */
ssize_t weft_sendmsg(int fd, struct iovec *iov, int n, void *addr, uint32_t alen, void *control, size_t clen,
                     int flags) {
  struct msghdr m = {.msg_name = alen ? addr : 0,
                     .msg_namelen = alen,
                     .msg_iov = iov,
                     .msg_iovlen = n,
                     .msg_control = clen ? control : 0,
                     .msg_controllen = clen};
  RETRY(ssize_t, sendmsg(fd, &m, flags | SENDING));
}

ssize_t weft_recvmsg(int fd, struct iovec *iov, int n, void *addr, uint32_t *alen, void *control, size_t *clen,
                     int *flags) {
  int wanted = *flags | RECEIVING | MSG_CMSG_CLOEXEC;
  struct msghdr m = {.msg_name = addr,
                     .msg_namelen = *alen,
                     .msg_iov = iov,
                     .msg_iovlen = n,
                     .msg_control = *clen ? control : 0,
                     .msg_controllen = *clen};
  ssize_t r;
  do r = recvmsg(fd, &m, wanted);
  while (r < 0 && errno == EINTR);
  if (r < 0) return -errno;
  *alen = m.msg_namelen;
  *clen = m.msg_controllen;
  *flags = m.msg_flags & ~(RECEIVING | MSG_CMSG_CLOEXEC);
  return r;
}

/* Room for an item of control data with this many bytes. */
size_t weft_cmsg_space(size_t n) { return CMSG_SPACE(n); }

/* Write the header of an item of control data at p. Returns the address of its data. */
void *weft_cmsg_put(void *p, int level, int type, size_t n) {
  struct cmsghdr *c = p;
  c->cmsg_len = CMSG_LEN(n);
  c->cmsg_level = level;
  c->cmsg_type = type;
  return CMSG_DATA(c);
}

/* The item at p, with the given number of bytes left to the end of the control data. Returns its data, or 0 if there
 * is no item. *step is the distance to the next one. */
void *weft_cmsg_get(void *p, size_t left, int *level, int *type, size_t *n, size_t *step) {
  struct cmsghdr *c = p;
  if (left < sizeof *c || c->cmsg_len < CMSG_LEN(0) || c->cmsg_len > left) return 0;
  *level = c->cmsg_level;
  *type = c->cmsg_type;
  *n = c->cmsg_len - CMSG_LEN(0);
  *step = CMSG_SPACE(*n);
  return CMSG_DATA(c);
}

/* The type of control data that passes descriptors. */
int weft_rights_level(void) { return SOL_SOCKET; }
int weft_rights_type(void) { return SCM_RIGHTS; }
