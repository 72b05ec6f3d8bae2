/* The pong server as a bare epoll loop: level triggered, one recv and one send
 * a request. The reference for what the kernel itself costs. With --threads N
 * each of N threads has a loop and a listener of its own (SO_REUSEPORT), and
 * keeps the connections that the kernel gives it. */
#define _GNU_SOURCE
#include "peer.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define EVENTS 512
#define MOST_THREADS 64

typedef struct {
  unsigned matched; /* how much of the end of a head has been seen */
  long owed;        /* bytes of answers that the socket did not take yet */
} connection;

static connection *connections; /* by descriptor; each of one thread */
static size_t room;

static void interest(int epoll, int operation, int fd, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = fd};
  if (epoll_ctl(epoll, operation, fd, &event) < 0)
    die("epoll_ctl");
}

static void accept_all(int epoll, int listener) {
  for (;;) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EAGAIN || errno == ECONNABORTED)
        return;
      die("accept4");
    }
    if ((size_t)fd >= room)
      die("descriptor %d is past the limit", fd);
    connections[fd] = (connection){0, 0};
    interest(epoll, EPOLL_CTL_ADD, fd, EPOLLIN);
  }
}

/* One event of one connection. While answers are owed nothing more is read, so
 * that a client that pipelines and does not read is held back. */
static void serve(int epoll, int fd, uint32_t events) {
  static _Thread_local char buffer[READ_SIZE];
  connection *c = &connections[fd];
  long before = c->owed;

  if (before == 0) {
    ssize_t got = recv(fd, buffer, sizeof buffer, 0);
    if (got < 0 && errno == EAGAIN)
      return;
    if (got <= 0) {
      close(fd);
      return;
    }
    c->owed = (long)(scan_heads(buffer, (size_t)got, &c->matched) * PONG_LENGTH);
  } else if (events & EPOLLERR) {
    close(fd);
    return;
  }
  if (c->owed > 0)
    c->owed = send_owed(fd, c->owed);
  if (c->owed < 0)
    close(fd);
  else if ((before == 0) != (c->owed == 0))
    interest(epoll, EPOLL_CTL_MOD, fd, c->owed == 0 ? EPOLLIN : EPOLLOUT);
}

static void *loop(void *argument) {
  int listener = *(int *)argument;
  int epoll = epoll_create1(EPOLL_CLOEXEC);
  if (epoll < 0)
    die("epoll_create1");
  interest(epoll, EPOLL_CTL_ADD, listener, EPOLLIN);

  struct epoll_event events[EVENTS];
  for (;;) {
    int count = epoll_wait(epoll, events, EVENTS, -1);
    if (count < 0 && errno != EINTR)
      die("epoll_wait");
    for (int i = 0; i < count; i++) {
      if (events[i].data.fd == listener)
        accept_all(epoll, listener);
      else
        serve(epoll, events[i].data.fd, events[i].events);
    }
  }
}

int main(int argc, char **argv) {
  long threads = option_long(argc, argv, "threads", 1);
  int listeners[MOST_THREADS];
  if (threads < 1 || threads > MOST_THREADS)
    die("--threads must be from 1 to %d", MOST_THREADS);
  room = raise_open_files();
  connections = calloc(room, sizeof *connections);
  if (connections == NULL)
    die("start");
  owed_start(0); /* made before there are threads */
  peer_listen_many(argc, argv, listeners, (int)threads);
  for (long i = 1; i < threads; i++) {
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, loop, &listeners[i])) != 0)
      die("pthread_create");
  }
  loop(&listeners[0]);
}
