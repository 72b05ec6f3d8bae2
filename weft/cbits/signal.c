/* What the kernel does when a signal comes, saved and put back, beside the run-time system's own table. */
#include <errno.h>
#include <signal.h>
#include <string.h>

/* What Weft.FFI.Signal allocates. */
enum { ROOM = 256 };
_Static_assert(sizeof(struct sigaction) <= ROOM, "struct sigaction is larger than that");

int weft_signal_save(int signal, struct sigaction *to) {
  memset(to, 0, ROOM);
  return sigaction(signal, NULL, to) < 0 ? -errno : 0;
}

int weft_signal_restore(int signal, const struct sigaction *from) {
  return sigaction(signal, from, NULL) < 0 ? -errno : 0;
}
