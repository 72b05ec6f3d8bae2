/* Operations on files, in the form in which io_uring(7) takes them. */
#ifndef WEFT_FILE_H
#define WEFT_FILE_H

#include <stdint.h>

/* The members of struct io_uring_sqe that operations on files use, with the
 * meanings that they have there for each IORING_OP_*. */
struct weft_file_op {
  uint8_t opcode;
  int32_t fd;
  uint64_t off, addr;
  uint32_t len, flags;
};

/* getdents64(2), for which a ring has no operation: the memory at addr, len bytes; with
 * offset 0 from the first name on, else where the last one ended. */
enum { WEFT_OP_NAMES = 255 };

/* statx(2) for each name that getdents64(2) has put into the memory at addr, len bytes: a struct statx each, from the
 * address in off on, links not followed. One that fails has stx_mask 0, and the errno in stx_blksize. The result is the
 * number of names. */
enum { WEFT_OP_STATS = 254 };

/* Carry one out; blocks. The result is what the system call returns, or -errno. */
int weft_file_run(uint8_t opcode, int32_t fd, uint64_t off, uint64_t addr, uint32_t len, uint32_t flags);

/* Carry one out if that takes no waiting for a disk, else -EAGAIN. */
int weft_file_try(uint8_t opcode, int32_t fd, uint64_t off, uint64_t addr, uint32_t len, uint32_t flags);

/* Whether an open without O_NONBLOCK may wait for another process (fifo(7), serial lines): 0 no (regular files,
 * directories, and what does not exist or cannot be opened), 1 yes, or the kernel cannot say so without reading the
 * disk (before Linux 5.12), 2 unknown: the kernel has not cached the path. A ring first tries an open with O_NONBLOCK,
 * if the path is cached; that does not wait for the other end of a named pipe, or fails. With the flag WEFT_OPEN_ASYNC
 * it does not try that. */
enum { WEFT_OPEN_ASYNC = 1 };
int weft_file_open_waits(int32_t fd, uint64_t off, uint64_t addr);

#endif
