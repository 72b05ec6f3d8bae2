/* Listening sockets that take no further connections. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <sys/socket.h>

/* Refuse connections from now on, and keep those that are established and not accepted yet, and those whose handshake
 * has begun. There is no call for that. What does it:
 *
 * TCP: the socket is bound to a network interface that does not exist. The kernel finds no listener for a SYN then, and
 * answers with a reset. A handshake in progress is found by its own entry, and ends in the queue of its listener; the
 * accepted socket is bound to nothing. (shutdown(2) would reset the queue; listen(2) with a backlog of 0 ignores SYNs
 * and also the last segment of handshakes.)
 *
 * Unix: shutdown(2) of the reading side does it.
 *
 * Neither can be undone without privileges, and both affect every process that has the socket. Without privileges
 * Linux 5.7 is needed, and a socket that is bound to no interface. Returns 0 or -errno. */
int weft_refuse_new(int fd) {
#ifdef SO_BINDTOIFINDEX
  int domain, none = INT_MAX;
  socklen_t size = sizeof domain;
  if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) < 0) return -errno;
  if (domain == AF_UNIX) return shutdown(fd, SHUT_RD) < 0 ? -errno : 0;
  if (domain != AF_INET && domain != AF_INET6) return -EOPNOTSUPP;
  return setsockopt(fd, SOL_SOCKET, SO_BINDTOIFINDEX, &none, sizeof none) < 0 ? -errno : 0;
#else
  (void)fd;
  return -EOPNOTSUPP;
#endif
}
