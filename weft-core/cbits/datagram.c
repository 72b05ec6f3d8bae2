/* Many datagrams by one system call. On Linux by recvmmsg(2) and sendmmsg(2), with udp(7)'s segmentation offload:
 * UDP_SEGMENT (Linux 4.18) has the kernel cut one piece of memory into datagrams of one size, as late as it can, and
 * UDP_GRO (Linux 5.0) gives the datagrams of one sender that came together as one piece. Elsewhere it is one call for
 * each datagram, up to the first that would wait. */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0
#endif
#ifdef __linux__
enum { UDP_LEVEL = 17, SEGMENT = 103, COALESCED = 104 };
#endif

/* The most messages of a call; Weft.FFI.Datagram has the same number. And the room for a sender's address. */
enum { MOST = 64, NAME = 128 };

/* What is known of a message that was received, and of one that is to be sent. */
struct received {
  int32_t size, name_size, truncated, segment;
};

struct sending {
  int32_t name_offset, name_size, first_piece, pieces, segment;
};

union control {
  char room[CMSG_SPACE(sizeof(int))];
  struct cmsghdr aligned;
};

static void take_in(struct msghdr *m, int size, struct received *r) {
  r->size = size;
  r->name_size = m->msg_name ? m->msg_namelen : 0;
  r->truncated = (m->msg_flags & MSG_TRUNC) != 0;
  r->segment = 0;
#ifdef __linux__
  for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c))
    if (c->cmsg_level == UDP_LEVEL && c->cmsg_type == COALESCED) {
      int segment;
      memcpy(&segment, CMSG_DATA(c), sizeof segment);
      r->segment = segment;
    }
#endif
}

/* Receives up to n messages, which begin `room` bytes apart. Returns their number, or -errno. */
int weft_receive_many(int fd, char *to, size_t room, int n, char *names, struct received *found) {
  struct iovec pieces[MOST];
  union control control[MOST];
#ifdef __linux__
  struct mmsghdr all[MOST];
  if (n > MOST) n = MOST;
  for (int i = 0; i < n; i++) {
    pieces[i] = (struct iovec){to + i * room, room};
    all[i].msg_hdr = (struct msghdr){.msg_name = names + i * NAME,
                                     .msg_namelen = NAME,
                                     .msg_iov = &pieces[i],
                                     .msg_iovlen = 1,
                                     .msg_control = control[i].room,
                                     .msg_controllen = sizeof control[i].room};
  }
  int r;
  do r = recvmmsg(fd, all, n, MSG_DONTWAIT, NULL);
  while (r < 0 && errno == EINTR);
  if (r < 0) return -errno;
  for (int i = 0; i < r; i++) take_in(&all[i].msg_hdr, all[i].msg_len, &found[i]);
  return r;
#else
  if (n > MOST) n = MOST;
  for (int i = 0; i < n; i++) {
    pieces[i] = (struct iovec){to + i * room, room};
    struct msghdr m = {.msg_name = names + i * NAME,
                       .msg_namelen = NAME,
                       .msg_iov = &pieces[i],
                       .msg_iovlen = 1,
                       .msg_control = control[i].room,
                       .msg_controllen = sizeof control[i].room};
    ssize_t r;
    do r = recvmsg(fd, &m, MSG_DONTWAIT);
    while (r < 0 && errno == EINTR);
    if (r < 0) return i > 0 ? i : -errno;
    take_in(&m, r, &found[i]);
  }
  return n;
#endif
}

static void give_out(struct msghdr *m, char *names, struct iovec *pieces, const struct sending *s,
                     union control *control) {
  *m = (struct msghdr){.msg_name = s->name_size ? names + s->name_offset : NULL,
                       .msg_namelen = s->name_size,
                       .msg_iov = pieces + s->first_piece,
                       .msg_iovlen = s->pieces};
#ifdef __linux__
  if (s->segment) {
    uint16_t segment = s->segment;
    m->msg_control = control->room;
    m->msg_controllen = CMSG_SPACE(sizeof segment);
    struct cmsghdr *c = CMSG_FIRSTHDR(m);
    c->cmsg_level = UDP_LEVEL;
    c->cmsg_type = SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof segment);
    memcpy(CMSG_DATA(c), &segment, sizeof segment);
  }
#else
  (void)control;
#endif
}

/* Sends messages. Returns the number of those that were sent; if it is none, -errno. */
int weft_send_many(int fd, char *names, struct iovec *pieces, const struct sending *what, int n) {
  union control control[MOST];
  if (n > MOST) n = MOST;
#ifdef __linux__
  struct mmsghdr all[MOST];
  for (int i = 0; i < n; i++) give_out(&all[i].msg_hdr, names, pieces, &what[i], &control[i]);
  int r;
  do r = sendmmsg(fd, all, n, MSG_DONTWAIT | MSG_NOSIGNAL);
  while (r < 0 && errno == EINTR);
  return r < 0 ? -errno : r;
#else
  for (int i = 0; i < n; i++) {
    struct msghdr m;
    give_out(&m, names, pieces, &what[i], &control[i]);
    ssize_t r;
    do r = sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (r < 0 && errno == EINTR);
    if (r < 0) return i > 0 ? i : -errno;
  }
  return n;
#endif
}

/* Whether the kernel cuts messages of this socket: it is one of UDP, and the kernel knows how. */
int weft_segments(int fd) {
#if defined(__linux__) && defined(SO_PROTOCOL)
  int protocol = 0, segment = 0;
  socklen_t n = sizeof protocol, m = sizeof segment;
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &n) == 0 && protocol == IPPROTO_UDP &&
         getsockopt(fd, UDP_LEVEL, SEGMENT, &segment, &m) == 0;
#else
  (void)fd;
  return 0;
#endif
}

/* Whether the kernel joins, from now on, datagrams that came together. */
int weft_coalesce(int fd) {
#if defined(__linux__) && defined(SO_PROTOCOL)
  int protocol = 0, on = 1;
  socklen_t n = sizeof protocol;
  return getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &n) == 0 && protocol == IPPROTO_UDP &&
         setsockopt(fd, UDP_LEVEL, COALESCED, &on, sizeof on) == 0;
#else
  (void)fd;
  return 0;
#endif
}
