#ifndef WEFT_OPEN_H
#define WEFT_OPEN_H

#include <linux/openat2.h>

/* openat2(2). Where the kernel has no such call (before Linux 5.6), or a sandbox refuses it, openat(2) does its
 * work. A path that has to stay below the directory is then opened name by name; it may contain no "..", and no
 * symbolic link is followed. RESOLVE_CACHED gives EAGAIN then. As the system call: a descriptor, or -1 and errno. */
long weft_openat2(int dir, const char *path, const struct open_how *how);

#endif
