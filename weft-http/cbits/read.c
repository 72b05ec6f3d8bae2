/* Reads of files that do not wait. */
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

/* Copies what the kernel has in its cache of up to `n` bytes of a file at an offset. 0 or less: nothing was copied, for
 * whatever reason; pread(2) then tells it. */
ssize_t weft_read_cached(int file, void *to, size_t n, int64_t offset) {
#ifdef RWF_NOWAIT
  struct iovec part = {.iov_base = to, .iov_len = n};
  return preadv2(file, &part, 1, (off_t)offset, RWF_NOWAIT);
#else
  (void)file, (void)to, (void)n, (void)offset;
  return -1;
#endif
}
