/* kqueue with the interface that the Haskell code uses: filters and modes as small numbers, a timeout in nanoseconds,
 * and -errno as the result. The layout of struct kevent differs from system to system, so it stays here. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/event.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { READ, WRITE, EXCEPT };              /* filters, as in Weft.Backend.KqueueEvents */
enum { PLAIN, ONESHOT, CLEAR, REMOVE };    /* what to do with one */
enum { END = 4, FAILED = 8 };             /* what comes with an event, beside the filter */
enum { MOST_CHANGES = 8, MOST_EVENTS = 256 };

struct weft_change {
  int32_t filter, mode;
};

struct weft_event {
  int64_t token;
  int32_t fd, what;
};

int weft_kqueue_open(void) {
  int kq = kqueue();
  if (kq < 0) return -errno;
  fcntl(kq, F_SETFD, FD_CLOEXEC);
  return kq;
}

/* Whether there is a filter for urgent data. */
int weft_kqueue_has_except(void) {
#if defined(EVFILT_EXCEPT) && defined(NOTE_OOB)
  return 1;
#else
  return 0;
#endif
}

static int native(int filter) {
#if defined(EVFILT_EXCEPT) && defined(NOTE_OOB)
  if (filter == EXCEPT) return EVFILT_EXCEPT;
#endif
  return filter == WRITE ? EVFILT_WRITE : EVFILT_READ;
}

/* Apply changes to one descriptor. Returns the first error. To remove a filter that
 * does not exist is no error: the kernel removes a filter when its descriptor is closed. */
int weft_kqueue_change(int kq, int fd, int64_t token, const struct weft_change *c, int n) {
  static const unsigned short flags[] = {EV_ADD, EV_ADD | EV_ONESHOT, EV_ADD | EV_CLEAR, EV_DELETE};
  struct kevent in[MOST_CHANGES], out[MOST_CHANGES];
  if (n > MOST_CHANGES) return -EINVAL;
  for (int i = 0; i < n; i++) {
    unsigned note = 0;
#if defined(EVFILT_EXCEPT) && defined(NOTE_OOB)
    if (c[i].filter == EXCEPT) note = NOTE_OOB;
#endif
    /* With a receipt for each change no event is collected here. */
    EV_SET(&in[i], fd, native(c[i].filter), flags[c[i].mode] | EV_RECEIPT, note, 0,
           (__typeof__(in[i].udata))(intptr_t)token);
  }
  const struct timespec now = {0, 0};
  int r = kevent(kq, in, n, out, n, &now);
  if (r < 0) return -errno;
  /* The receipts come in the order of the changes. */
  for (int i = 0; i < r; i++)
    if (out[i].flags & EV_ERROR && out[i].data && c[i].mode != REMOVE) return -(int)out[i].data;
  return 0;
}

/* Collect at most n events; ns < 0 waits for ever. */
int weft_kqueue_wait(int kq, struct weft_event *evs, int n, int64_t ns) {
  struct kevent out[MOST_EVENTS];
  struct timespec ts = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
  int r = kevent(kq, 0, 0, out, n < MOST_EVENTS ? n : MOST_EVENTS, ns < 0 ? 0 : &ts);
  if (r < 0) return -errno;
  for (int i = 0; i < r; i++) {
    int filter = out[i].filter == EVFILT_WRITE ? WRITE : out[i].filter == EVFILT_READ ? READ : EXCEPT;
    int end = (out[i].flags & EV_EOF) != 0;
    evs[i].token = (intptr_t)out[i].udata;
    evs[i].fd = (int32_t)out[i].ident;
    evs[i].what = filter | (end ? END : 0) | (out[i].fflags ? FAILED : 0);
  }
  return r;
}

int weft_kqueue_look(int kq, struct weft_event *evs, int n) { return weft_kqueue_wait(kq, evs, n, 0); }
