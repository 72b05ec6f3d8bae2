/* The pong server on io_uring: one thread, multishot accept, multishot recv
 * into a ring of provided buffers, one send in flight a connection. */
#define _GNU_SOURCE
#include "peer.h"

#include <errno.h>
#include <liburing.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define ENTRIES 4096
#define BUFFERS 4096 /* a power of two */
#define GROUP 0

enum operation { ACCEPT = 1, RECV, SEND };

typedef struct {
  unsigned matched; /* how much of the end of a head has been seen */
  long owed;        /* bytes of answers not yet sent */
  int sending;      /* a send is in flight */
  int receiving;    /* the multishot recv is armed */
  int broken;       /* to be closed once nothing is in flight */
} connection;

static struct io_uring ring;
static struct io_uring_buf_ring *buffer_ring;
static char *buffers;
static connection *connections; /* by descriptor */
static size_t room;

static struct io_uring_sqe *entry(void) {
  struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
  if (sqe == NULL) {
    io_uring_submit(&ring);
    sqe = io_uring_get_sqe(&ring);
    if (sqe == NULL)
      die("submission ring full");
  }
  return sqe;
}

/* Say what a completion will belong to; older liburings clear it in prep. */
static void label(struct io_uring_sqe *sqe, enum operation operation, int fd) {
  io_uring_sqe_set_data64(sqe, (uint64_t)operation << 32 | (uint32_t)fd);
}

static void start_accept(int listener) {
  struct io_uring_sqe *sqe = entry();
  io_uring_prep_multishot_accept(sqe, listener, NULL, NULL, SOCK_CLOEXEC);
  label(sqe, ACCEPT, listener);
}

static void start_recv(int fd) {
  struct io_uring_sqe *sqe = entry();
  io_uring_prep_recv_multishot(sqe, fd, NULL, 0, 0);
  sqe->flags |= IOSQE_BUFFER_SELECT;
  sqe->buf_group = GROUP;
  label(sqe, RECV, fd);
  connections[fd].receiving = 1;
}

static void start_send(int fd) {
  connection *c = &connections[fd];
  struct io_uring_sqe *sqe = entry();
  io_uring_prep_send(sqe, fd, owed_start(c->owed), owed_chunk(c->owed), MSG_NOSIGNAL);
  label(sqe, SEND, fd);
  c->sending = 1;
}

static void give_buffer(unsigned id) {
  io_uring_buf_ring_add(buffer_ring, buffers + (size_t)id * READ_SIZE, READ_SIZE,
                        (unsigned short)id, io_uring_buf_ring_mask(BUFFERS), 0);
  io_uring_buf_ring_advance(buffer_ring, 1);
}

/* Close once the kernel holds nothing of this connection any more. */
static void close_when_free(int fd) {
  connection *c = &connections[fd];
  if (c->broken && !c->sending && !c->receiving)
    close(fd);
}

static void accepted(const struct io_uring_cqe *cqe, int listener) {
  if (cqe->res >= 0) {
    if ((size_t)cqe->res >= room) {
      errno = 0;
      die("descriptor %d is past the limit", cqe->res);
    }
    connections[cqe->res] = (connection){0};
    start_recv(cqe->res);
  } else if (cqe->res != -ECONNABORTED) {
    errno = -cqe->res;
    die("accept");
  }
  if (!(cqe->flags & IORING_CQE_F_MORE))
    start_accept(listener);
}

static void received(const struct io_uring_cqe *cqe, int fd) {
  connection *c = &connections[fd];
  if (!(cqe->flags & IORING_CQE_F_MORE))
    c->receiving = 0;
  if (cqe->flags & IORING_CQE_F_BUFFER) {
    unsigned id = cqe->flags >> IORING_CQE_BUFFER_SHIFT;
    if (cqe->res > 0) {
      size_t heads = scan_heads(buffers + (size_t)id * READ_SIZE, (size_t)cqe->res, &c->matched);
      c->owed += (long)(heads * PONG_LENGTH);
    }
    give_buffer(id);
  }
  if (cqe->res <= 0 && cqe->res != -ENOBUFS)
    c->broken = 1;
  if (!c->broken && !c->receiving)
    start_recv(fd);
  if (!c->broken && !c->sending && c->owed > 0)
    start_send(fd);
  close_when_free(fd);
}

static void sent(const struct io_uring_cqe *cqe, int fd) {
  connection *c = &connections[fd];
  c->sending = 0;
  if (cqe->res > 0)
    c->owed -= cqe->res;
  else if (!c->broken) {
    c->broken = 1;
    shutdown(fd, SHUT_RDWR); /* ends the multishot recv */
  }
  if (!c->broken && c->owed > 0)
    start_send(fd);
  close_when_free(fd);
}

static void start_ring(void) {
  struct io_uring_params params = {0};
  params.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_CQSIZE;
  params.cq_entries = 8 * ENTRIES;
  int result = io_uring_queue_init_params(ENTRIES, &ring, &params);
  errno = -result;
  if (result < 0)
    die("io_uring_queue_init");
  io_uring_register_ring_fd(&ring);

  size_t size = BUFFERS * sizeof(struct io_uring_buf);
  buffer_ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_PRIVATE, -1, 0);
  buffers = malloc((size_t)BUFFERS * READ_SIZE);
  if (buffer_ring == MAP_FAILED || buffers == NULL)
    die("buffers");
  struct io_uring_buf_reg registration = {
      .ring_addr = (uint64_t)(uintptr_t)buffer_ring, .ring_entries = BUFFERS, .bgid = GROUP};
  result = io_uring_register_buf_ring(&ring, &registration, 0);
  errno = -result;
  if (result < 0)
    die("io_uring_register_buf_ring");
  io_uring_buf_ring_init(buffer_ring);
  for (unsigned id = 0; id < BUFFERS; id++)
    give_buffer(id);
}

int main(int argc, char **argv) {
  room = raise_open_files();
  connections = calloc(room, sizeof *connections);
  if (connections == NULL)
    die("calloc");
  start_ring();
  int listener = peer_listen(argc, argv);
  start_accept(listener);

  for (;;) {
    int result = io_uring_submit_and_wait(&ring, 1);
    if (result < 0 && result != -EINTR) {
      errno = -result;
      die("io_uring_submit_and_wait");
    }
    unsigned head, seen = 0;
    struct io_uring_cqe *cqe;
    io_uring_for_each_cqe(&ring, head, cqe) {
      int fd = (int)(uint32_t)cqe->user_data;
      enum operation operation = (enum operation)(cqe->user_data >> 32);
      if (operation == ACCEPT)
        accepted(cqe, fd);
      else if (operation == RECV)
        received(cqe, fd);
      else
        sent(cqe, fd);
      seen++;
    }
    io_uring_cq_advance(&ring, seen);
  }
}
